-- What happened within a window is found by its time. A BRIN index holds one entry for many pages, in the order in
-- which they were written: an append costs nothing more.
CREATE INDEX journal_at ON journal USING brin (at) WITH (pages_per_range = 32, autosummarize = on);

-- The size of the database at each full hour of the last days: from it comes its growth.
CREATE TABLE database_sizes (
    at    timestamptz PRIMARY KEY,
    bytes bigint NOT NULL
);
