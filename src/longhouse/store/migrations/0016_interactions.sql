-- The ledger: who said what to whom, derived from the journals as they grow. It was a view, which read whole journals.
-- Rebuildable: dropped and made again, the same rows are back, less those that `interaction_cuts` names.

DROP VIEW interactions;

CREATE TABLE ledger (
    id              text COLLATE "C" NOT NULL,
    conversation_id text NOT NULL,
    trace_id        text NOT NULL,
    source          text NOT NULL,
    source_type     text NOT NULL,
    target          text NOT NULL,
    target_type     text NOT NULL,
    content         text NOT NULL,
    type            text NOT NULL,
    timestamp       timestamptz NOT NULL,
    pair_id         text NOT NULL,

    owner           text NOT NULL,
    "user"          text,
    session_id      text NOT NULL,   -- whose journal tells it
    seq             bigint NOT NULL,
    agent           text NOT NULL,   -- the agent of that session; empty: an external session
    depth           smallint NOT NULL,
    shown           boolean NOT NULL,   -- false: kept for the memory of its agent alone
    detail          json,            -- what its agent's messages are rebuilt with

    -- A conversation has one session for what is added from outside: ids of two conversations never meet.
    PRIMARY KEY (session_id, id)
);
-- Without the id, which is long: rows of one moment are few, and are sorted when they are read. Each row is in one index
-- by its source and in one by its target.
CREATE INDEX ledger_listed ON ledger (conversation_id, owner, timestamp);
CREATE INDEX ledger_source ON ledger (conversation_id, owner, source, timestamp) WHERE source_type = 'agent';
CREATE INDEX ledger_target ON ledger (conversation_id, owner, target, timestamp) WHERE target_type = 'agent';
CREATE INDEX ledger_source_type ON ledger (conversation_id, owner, source_type, timestamp) WHERE source_type <> 'agent';
CREATE INDEX ledger_target_type ON ledger (conversation_id, owner, target_type, timestamp) WHERE target_type <> 'agent';
CREATE INDEX ledger_trace ON ledger (trace_id, timestamp);

CREATE VIEW interactions AS
SELECT id, conversation_id, trace_id, source, source_type, target, target_type, content, type, timestamp, pair_id
FROM ledger WHERE shown;

-- What was deleted or pruned: no word of it, only where it stood, so that no projection brings it back. What was added
-- from outside needs no cut: it leaves its journal.
CREATE TABLE interaction_cuts (
    owner           text NOT NULL,
    conversation_id text NOT NULL,
    agent           text NOT NULL,   -- empty: of every agent
    trace_id        text NOT NULL,   -- empty: of every trace
    up_to           timestamptz,     -- the last one that is gone; NULL: all that the sessions had told
    up_to_id        text COLLATE "C" NOT NULL,
    heads           jsonb NOT NULL,  -- session -> its head then: a cut never reaches what was journaled after it
    at              timestamptz NOT NULL DEFAULT now()
);
CREATE INDEX interaction_cuts_of ON interaction_cuts (owner, conversation_id);

-- Interactions from outside are journaled in a session of their own, which no worker ever runs.
ALTER TABLE sessions DROP CONSTRAINT sessions_side_check;
ALTER TABLE sessions ADD CONSTRAINT sessions_side_check CHECK (side IN ('root', 'sub', 'external'));
