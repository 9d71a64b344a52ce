-- Passages: texts that are found by words and meaning, each by those of one scope. Documents, interactions, notes and
-- memory files write them; whoever wrote them can write them again.

-- A shard holds passages of one scope and one kind: a search never reads the words of another scope.
CREATE TABLE passage_shards (
    id       integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    scope    text NOT NULL,
    kind     text NOT NULL,
    recipe   integer NOT NULL,              -- of the code that chose the terms and their weights
    revision integer NOT NULL DEFAULT 0,    -- grows when vectors of filled slots change
    slots    integer NOT NULL DEFAULT 0,    -- given out so far; a slot is not given out again
    gone     integer NOT NULL DEFAULT 0     -- slots whose passage has left
);
CREATE INDEX passage_shards_scope ON passage_shards (scope, kind);

CREATE TABLE passages (
    id       bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    scope    text NOT NULL,
    kind     text NOT NULL,
    source   text COLLATE "C" NOT NULL,
    "group"  text COLLATE "C" NOT NULL,     -- what it is deleted by
    text     text NOT NULL,
    title    text NOT NULL,
    context  text NOT NULL,                 -- found with less weight, not shown
    at       timestamptz,
    facts    jsonb NOT NULL,
    thread   text NOT NULL,                 -- passages of one thread are found by their neighbours too
    position bigint NOT NULL,               -- within the thread
    shard    integer NOT NULL,
    slot     integer NOT NULL,
    terms    text[] NOT NULL,               -- what it has postings of: they leave with it
    model    integer,                       -- NULL: words alone
    vector   bytea,

    UNIQUE (scope, kind, source),
    UNIQUE (shard, slot)
);
-- A vector of ordinary length stays in its row: it is read with it, never alone.
ALTER TABLE passages ALTER vector SET STORAGE MAIN;
CREATE INDEX passages_group ON passages (kind, "group");
CREATE INDEX passages_model ON passages (model, id);

-- Four bytes for each passage that has the term: its slot and its weight.
CREATE TABLE passage_postings (
    shard    integer NOT NULL,
    term     text COLLATE "C" NOT NULL,
    postings bytea NOT NULL,

    PRIMARY KEY (shard, term)
);
ALTER TABLE passage_postings ALTER postings SET STORAGE EXTERNAL;  -- numbers do not compress
