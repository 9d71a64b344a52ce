-- The sessions that had written a file of one conversation alone before the one that wrote it last: their words are
-- forgotten with them, whoever changed the file since. Files of long-term memory name nobody here.
ALTER TABLE memories ADD COLUMN former_writers text[] NOT NULL DEFAULT '{}';

-- A label is a word that an agent chose: none is kept of what was forgotten. The column stays, and stays empty.
UPDATE forgotten SET label = '' WHERE label <> '';
ALTER TABLE forgotten ALTER COLUMN label SET DEFAULT '';

-- Has whoever writes a file been forgotten meanwhile?
CREATE INDEX forgotten_session ON forgotten (session_id);
