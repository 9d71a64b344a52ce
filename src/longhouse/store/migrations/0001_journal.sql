-- What happened: one list of events for each session, and the row that is its lock.

CREATE TABLE sessions (
    id              text PRIMARY KEY,
    owner           text NOT NULL,
    "user"          text,
    conversation_id text NOT NULL,
    side            text NOT NULL CHECK (side IN ('root', 'sub')),
    agent           text NOT NULL,
    label           text NOT NULL DEFAULT '',
    parent          text,

    -- The lock. `head` is the last seq, `fence` the number of the present holder's claim.
    head            bigint NOT NULL,
    fence           bigint NOT NULL DEFAULT 0,
    holder          text,
    due             boolean NOT NULL,
    wake_at         timestamptz,
    -- Provider trouble that is being waited out; cleared by the next append of the holder.
    attempts        integer NOT NULL DEFAULT 0,
    troubled_at     timestamptz,

    -- The listing: what the fold said at the last append.
    state           text NOT NULL DEFAULT 'INITED',
    version         integer NOT NULL,
    trace_id        text,
    task            text,
    created_at      timestamptz NOT NULL,
    updated_at      timestamptz NOT NULL,

    UNIQUE (owner, conversation_id, side, agent, label)
) WITH (fillfactor = 70);  -- room on the page, so that an append's update stays on it

-- Only `id` is indexed: a running session changes no indexed column, so its updates stay heap-only.
CREATE INDEX sessions_due ON sessions (id) WHERE due;
CREATE INDEX sessions_wake ON sessions (wake_at) WHERE wake_at IS NOT NULL;
CREATE INDEX sessions_listed ON sessions (owner, created_at DESC, id DESC);

CREATE TABLE files (
    digest     text PRIMARY KEY,
    media_type text NOT NULL,
    content    bytea NOT NULL,
    at         timestamptz NOT NULL DEFAULT now()
);

CREATE TABLE journal (
    session_id      text NOT NULL,
    seq             bigint NOT NULL,
    conversation_id text NOT NULL,
    trace_id        text,
    kind            text NOT NULL,
    call_id         text,
    reply_to        text,
    worker          text,
    fence           bigint,
    append_id       uuid NOT NULL,
    nth             smallint NOT NULL,
    body            json NOT NULL,   -- json, not jsonb: a model's key order is part of what it said
    body_digest     text REFERENCES files (digest),
    at              timestamptz NOT NULL,

    CONSTRAINT journal_pkey PRIMARY KEY (session_id, seq),
    -- An append whose outcome is unknown is sent again as it was; this refuses it if it had been written.
    CONSTRAINT journal_append UNIQUE (session_id, append_id, nth)
);

-- A call returns once; a parent's call prompts a child once.
CREATE UNIQUE INDEX journal_returned ON journal (session_id, call_id) WHERE kind = 'Returned';
CREATE UNIQUE INDEX journal_reply_to ON journal (session_id, reply_to) WHERE kind = 'Prompted';

-- Rebuildable: a fold that need not be computed again.
CREATE TABLE snapshots (
    session_id   text PRIMARY KEY,
    seq          bigint NOT NULL,
    fold_version integer NOT NULL,
    state        bytea NOT NULL
);

-- Rebuildable: the fingerprint of everything a client and we had said, at each point where a session rested.
CREATE TABLE rests (
    fingerprint text NOT NULL,
    session_id  text NOT NULL,
    seq         bigint NOT NULL,
    PRIMARY KEY (fingerprint, session_id, seq)
);
CREATE INDEX rests_session ON rests (session_id, seq);

-- Requests accepted lately, so that a repeated one attaches to its turn instead of starting another.
CREATE TABLE requests (
    owner      text NOT NULL,
    digest     text NOT NULL,
    key        text,
    session_id text NOT NULL,
    trace_id   text NOT NULL,
    seq        bigint NOT NULL,
    at         timestamptz NOT NULL
);
CREATE UNIQUE INDEX requests_key ON requests (owner, key) WHERE key IS NOT NULL;
CREATE INDEX requests_digest ON requests (owner, digest, at DESC);
CREATE INDEX requests_at ON requests (at);

-- The roster of workers; a holder that is not on it is gone.
CREATE TABLE workers (
    id         text PRIMARY KEY,
    lock_key   bigint NOT NULL,
    node       text NOT NULL,
    pid        integer NOT NULL,
    slots      integer NOT NULL,
    started_at timestamptz NOT NULL DEFAULT now(),
    beat_at    timestamptz NOT NULL DEFAULT now()
);
