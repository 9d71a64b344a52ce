-- What appends and the ledger pay for: entries of indexes that nobody needs, conditions that call a trigger for nothing,
-- and records that are sent as text.

-- A record of the ledger as it is sent. It is not the row of the table: a release that gives the table one more column
-- makes a type of its own, so that processes of this one go on.
CREATE TYPE ledger_record AS (
    id              text,
    conversation_id text,
    trace_id        text,
    source          text,
    source_type     text,
    target          text,
    target_type     text,
    content         text,
    type            text,
    "timestamp"     timestamptz,
    pair_id         text,
    owner           text,
    "user"          text,
    session_id      text,
    seq             bigint,
    agent           text,
    depth           smallint,
    shown           boolean,
    detail          json,
    since           bigint
);
