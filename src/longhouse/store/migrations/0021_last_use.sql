-- Apart from the index of the journal: these changes wait for whoever reads the tables, and nobody should wait with them
-- for longer than they take.

-- Written at most once a minute for each key.
ALTER TABLE api_keys ADD COLUMN last_used_at timestamptz;

-- Empty: a worker of an earlier release.
ALTER TABLE workers ADD COLUMN version text NOT NULL DEFAULT '';
