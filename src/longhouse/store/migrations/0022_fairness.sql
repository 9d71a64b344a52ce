-- These changes wait for whoever reads the tables; the indexes that go with them are built apart from them.

ALTER TABLE sessions
    ADD COLUMN key_id    text,          -- the API key that prompted last; NULL: none, or a process of an earlier release
    ADD COLUMN queued_at timestamptz,   -- since when it is due; NULL: a process of an earlier release made it due
    ADD COLUMN waits_for text;          -- the limit of which it waits for a place; it is not due meanwhile

-- How many sessions that this key prompted may run at once. NULL: what the settings say.
ALTER TABLE api_keys ADD COLUMN max_running integer CHECK (max_running > 0);

-- Which sessions run under a limit, `template:<name>` or `key:<id>`. A row counts while its session is due: whoever looks
-- for a place deletes the others.
CREATE TABLE places (
    held       text NOT NULL,
    session_id text NOT NULL REFERENCES sessions (id) ON DELETE CASCADE,
    PRIMARY KEY (held, session_id)
);
CREATE INDEX places_session ON places (session_id);

-- Whose session got the last place of a limit: the next is another owner's.
CREATE TABLE place_turns (
    held       text PRIMARY KEY,
    last_owner text NOT NULL
);

-- What is left of a limit of a key at `filled_at`; gateways take permits in blocks.
CREATE TABLE key_permits (
    key_id    text NOT NULL,
    kind      text NOT NULL,
    left_over double precision NOT NULL,
    granted   integer NOT NULL,         -- by the last statement
    filled_at timestamptz NOT NULL,
    PRIMARY KEY (key_id, kind)
);

-- Open requests of keys, by gateway: a gateway that says nothing for some seconds has none.
CREATE TABLE open_requests (
    gateway text NOT NULL,
    key_id  text NOT NULL,
    open    integer NOT NULL,
    at      timestamptz NOT NULL,
    PRIMARY KEY (key_id, gateway)
);
