-- Branches: sessions that another one was forked into, at one of its events.

ALTER TABLE sessions
    ADD COLUMN family    text,     -- the conversation that the first of all forks was made in; NULL: no branch
    ADD COLUMN inherited bigint;   -- the events up to here are copies of those of the session it came from
CREATE INDEX sessions_family ON sessions (owner, family) WHERE family IS NOT NULL;
