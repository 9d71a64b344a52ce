-- Responses of /v1/responses: which request each is, and where in the journal of its session it begins. What it says is
-- made of that journal each time.
CREATE TABLE responses (
    id         text PRIMARY KEY,
    owner      text NOT NULL,
    placed_in  text NOT NULL,                 -- the session whose journal has the request: that of a sub-agent who asked, too
    placed_at  bigint NOT NULL,
    session_id text NOT NULL,                 -- the session that the client talks to
    trace_id   text NOT NULL,
    after      bigint NOT NULL,               -- the events of the response follow this one
    request    json NOT NULL,                 -- what its object repeats, and its input
    is_stored  boolean NOT NULL,              -- false: erased soon after its end
    is_deleted boolean NOT NULL DEFAULT false,
    rest       json,                          -- what it ended with, where its turn waits for somebody and has not ended
    created_at timestamptz NOT NULL
);
CREATE INDEX responses_session ON responses (session_id, after);
CREATE UNIQUE INDEX responses_placed ON responses (placed_in, placed_at);
CREATE INDEX responses_unstored ON responses (created_at) WHERE NOT is_stored;

-- Text that was shown before its reply was recorded: it is written here first, so that a step that starts anew cannot
-- change what a client has seen. `seq`: the head of the journal at that moment. Once the journal alone says the same, it
-- goes.
CREATE TABLE response_drafts (
    response_id text NOT NULL REFERENCES responses ON DELETE CASCADE,
    seq         bigint NOT NULL,
    nth         integer NOT NULL,
    step        text NOT NULL,                -- which attempt at a step
    part        text NOT NULL CHECK (part IN ('content', 'reasoning')),
    text        text NOT NULL,
    PRIMARY KEY (response_id, seq, nth)
);

-- Conversations that were created by themselves; others begin with their first session.
CREATE TABLE conversations (
    owner      text NOT NULL,
    id         text NOT NULL,
    metadata   json NOT NULL,
    created_at timestamptz NOT NULL,
    PRIMARY KEY (owner, id)
);

-- Items that were added to a conversation: the next response in it reads them.
CREATE TABLE conversation_items (
    id              text PRIMARY KEY,
    owner           text NOT NULL,
    conversation_id text NOT NULL,
    nth             bigint GENERATED ALWAYS AS IDENTITY,
    item            json NOT NULL,
    used_in         text,                     -- the session whose journal has it now
    created_at      timestamptz NOT NULL,
    FOREIGN KEY (owner, conversation_id) REFERENCES conversations ON DELETE CASCADE
);
CREATE INDEX conversation_items_order ON conversation_items (owner, conversation_id, nth);
