-- Rebuildable: what the active versions of the catalog are found by. Dropped and made again, the same picture is back.

-- Up to which change of the catalog the index has come, and how far it is with the rest.
CREATE TABLE search_state (
    kind       text PRIMARY KEY,
    generation bigint NOT NULL DEFAULT -1,
    model      integer,                  -- NULL: words alone
    done       integer NOT NULL DEFAULT 0,
    todo       integer NOT NULL DEFAULT 0,
    changed_at timestamptz NOT NULL DEFAULT now()
);
INSERT INTO search_state (kind) VALUES ('tool'), ('template');

-- Embedding models by number, so that an index can be made for each.
CREATE TABLE search_models (
    id         integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    name       text NOT NULL UNIQUE,
    dimensions integer NOT NULL
);

-- A shard holds texts of one owner only: a search never reads the words of somebody else's.
CREATE TABLE search_shards (
    id    integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    kind  text NOT NULL,
    owner text,
    slots integer NOT NULL DEFAULT 0,    -- given out so far; a slot is not given out again
    gone  integer NOT NULL DEFAULT 0     -- slots whose text has left
);
CREATE INDEX search_shards_owner ON search_shards (kind, owner);

CREATE TABLE search_documents (
    kind       text NOT NULL,
    name       text COLLATE "C" NOT NULL,
    version    integer NOT NULL,
    digest     text NOT NULL,            -- of what a template's text was made from; empty for tools
    owner      text,
    shard      integer NOT NULL,
    slot       integer NOT NULL,
    type       text NOT NULL,
    risk       smallint NOT NULL,
    tags       text[] NOT NULL,
    templates  text[],                   -- NULL: any template may use it
    sub_agents boolean NOT NULL,
    tools      text[] NOT NULL,          -- of a template: those it names
    model      integer,
    vector     bytea,

    PRIMARY KEY (kind, name),
    UNIQUE (shard, slot)
);
-- A vector of ordinary length stays in its row: it is read with it, never alone.
ALTER TABLE search_documents ALTER vector SET STORAGE MAIN;
CREATE INDEX search_documents_owner ON search_documents (kind, owner) WHERE owner IS NOT NULL;
CREATE INDEX search_documents_tools ON search_documents USING gin (tools) WITH (fastupdate = off)
    WHERE kind = 'template';

-- Four bytes for each text that has the term: its slot and its weight. Appended to, never edited.
CREATE TABLE search_postings (
    shard    integer NOT NULL,
    term     text COLLATE "C" NOT NULL,
    postings bytea NOT NULL,

    PRIMARY KEY (shard, term)
);
ALTER TABLE search_postings ALTER postings SET STORAGE EXTERNAL;  -- numbers do not compress
