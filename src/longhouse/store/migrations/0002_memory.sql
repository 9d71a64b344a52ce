-- What agents keep for later: files and directories of text, each in the scope of those who may see it.

CREATE TABLE memories (
    owner      text NOT NULL,
    scope      text NOT NULL,
    path       text COLLATE "C" NOT NULL,   -- bytewise: everything below a directory stands together
    content    text,                        -- NULL: a directory
    size       integer NOT NULL GENERATED ALWAYS AS (COALESCE(octet_length(content), 0)) STORED,
    written_by text NOT NULL,               -- the call that wrote it last: its session and its number there
    updated_at timestamptz NOT NULL DEFAULT now(),

    PRIMARY KEY (owner, scope, path)
);

-- Calls whose change was made, so that one repeated after a crash changes nothing, whatever happened in between.
CREATE TABLE memory_calls (
    owner text NOT NULL,
    scope text NOT NULL,
    key   text NOT NULL,
    at    timestamptz NOT NULL DEFAULT now(),

    PRIMARY KEY (owner, scope, key)
);
CREATE INDEX memory_calls_at ON memory_calls (owner, scope, at);
