-- Documents that people added for agents to read. A document is found by its passages (kind 'document', in the group
-- `text_id` of its current version); here are its pages, its outline and its versions.

CREATE TABLE documents (
    id         bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    owner      text,                              -- NULL: everybody's
    reg_id     text COLLATE "C" NOT NULL,         -- the name by which agents and people know it
    version    integer NOT NULL,                  -- the current one: only its text is kept
    text_id    text NOT NULL,                     -- new with each version, never used again
    outline    json NOT NULL,
    added_at   timestamptz NOT NULL DEFAULT now(),
    changed_at timestamptz NOT NULL DEFAULT now(),

    UNIQUE NULLS NOT DISTINCT (owner, reg_id)
);
CREATE INDEX documents_changed_at ON documents (changed_at, reg_id);
CREATE INDEX documents_text_id ON documents (text_id);

CREATE TABLE document_versions (
    document bigint NOT NULL REFERENCES documents (id) ON DELETE CASCADE,
    version  integer NOT NULL,
    digest   text NOT NULL,                       -- of the file's bytes
    recipe   integer NOT NULL,                    -- which code read it: a newer one reads the same bytes again
    filename text NOT NULL,
    format   text NOT NULL,
    title    text NOT NULL,
    size     bigint NOT NULL,
    pages    integer NOT NULL,
    chunks   integer NOT NULL,
    added_by text NOT NULL,                       -- the key that uploaded it, or 'cli'
    added_at timestamptz NOT NULL DEFAULT now(),

    PRIMARY KEY (document, version)
);

-- Markdown, tables included. Pages without text have no row.
CREATE TABLE document_pages (
    document bigint NOT NULL REFERENCES documents (id) ON DELETE CASCADE,
    page     integer NOT NULL,
    content  text NOT NULL,

    PRIMARY KEY (document, page)
);

-- Documents that came with a release and were offered here: one that somebody removed does not come back.
CREATE TABLE shipped_documents (
    reg_id   text PRIMARY KEY,
    digest   text NOT NULL,
    added_at timestamptz NOT NULL DEFAULT now()
);
