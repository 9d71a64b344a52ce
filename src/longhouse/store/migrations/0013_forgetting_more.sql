-- Of a label, which is a word that an agent chose, only a digest is kept.
UPDATE forgotten SET label = '' WHERE label <> '';

-- Has whoever writes a file been forgotten meanwhile?
CREATE INDEX forgotten_session ON forgotten (session_id);

-- The sessions that had written a file of one conversation alone before the one that wrote it last: their words are
-- forgotten with them, whoever changed the file since. Files of long-term memory name nobody here.
ALTER TABLE memories ADD COLUMN former_writers text[] NOT NULL DEFAULT '{}';
