-- Sessions that were forgotten: their rows are gone. What is kept here for a week are ids, and no word that was said, so
-- that copies elsewhere (Redis, logs and reports on every machine) go too, and are not read back.

CREATE TABLE forgotten (
    nth             bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    session_id      text NOT NULL,
    owner           text NOT NULL,
    conversation_id text NOT NULL,
    side            text NOT NULL,
    agent           text NOT NULL,
    label           text NOT NULL,
    reports         text[] NOT NULL,    -- digests by which files of its reports are known
    request         uuid NOT NULL,      -- what was sent again over a lost connection is done only once
    at              timestamptz NOT NULL DEFAULT now()
);
CREATE INDEX forgotten_conversation ON forgotten (owner, conversation_id);

-- Who else names a file: a long body, an artifact, an image in a prompt. Without these, forgetting would read all journals.
CREATE INDEX journal_long ON journal (body_digest) WHERE body_digest IS NOT NULL;
CREATE INDEX journal_stored ON journal ((body ->> 'digest')) WHERE kind = 'Stored';
CREATE INDEX journal_shown ON journal (session_id) WHERE kind = 'Prompted' AND body::text LIKE '%longhouse-file:%';
