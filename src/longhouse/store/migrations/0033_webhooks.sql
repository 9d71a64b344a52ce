-- Webhooks: whom to tell of what happens in the sessions of an owner. No statement that appends to a journal knows these
-- tables: what happened is read from the journals, by the cursors of projections.
CREATE TABLE webhooks (
    id            text PRIMARY KEY,
    owner         text NOT NULL,
    key_id        text NOT NULL,                -- the API key that it acts for; empty: no keys were set
    url           text NOT NULL,
    events        text[] NOT NULL,
    agent         text,                         -- of these sessions alone; NULL: of all
    description   text NOT NULL,
    status        text NOT NULL CHECK (status IN ('active', 'disabled', 'paused')),
    reason        text,                         -- why it is paused
    secret        text NOT NULL,                -- not its digest: what is sent is signed with it
    former_secret text,
    former_until  timestamptz,
    told_since    timestamptz NOT NULL,         -- what happened before was not meant for it
    failing_since timestamptz,                  -- no delivery has succeeded since
    holder        text,                         -- the worker that delivers, one at a time
    held_until    timestamptz,
    created_at    timestamptz NOT NULL,
    updated_at    timestamptz NOT NULL
);
CREATE INDEX webhooks_owner ON webhooks (owner, created_at DESC, id DESC);

-- What is to be sent, and what was: the log. Of erased sessions nothing stays, also where a process of an earlier
-- release erases them.
CREATE TABLE webhook_deliveries (
    id           text PRIMARY KEY,              -- made of the webhook and of what happened: one that is found twice is the same
    webhook_id   text NOT NULL REFERENCES webhooks ON DELETE CASCADE,
    nth          bigint GENERATED ALWAYS AS IDENTITY,
    type         text NOT NULL,
    session_id   text REFERENCES sessions ON DELETE CASCADE,  -- the root session; NULL: a test
    from_session text REFERENCES sessions ON DELETE CASCADE,  -- the one whose journal says so
    agent        text,                          -- of the root session
    payload      text NOT NULL,
    status       text NOT NULL DEFAULT 'pending' CHECK (status IN ('pending', 'delivered', 'failed')),
    attempts     integer NOT NULL DEFAULT 0,
    next_at      timestamptz NOT NULL DEFAULT now(),
    attempted_at timestamptz,
    last_status  integer,                       -- the HTTP status of the last answer
    last_error   text,
    created_at   timestamptz NOT NULL DEFAULT clock_timestamp()
);
CREATE INDEX webhook_deliveries_due ON webhook_deliveries (webhook_id, next_at) WHERE status = 'pending';
CREATE INDEX webhook_deliveries_order ON webhook_deliveries (webhook_id, session_id, nth) WHERE status = 'pending';
CREATE INDEX webhook_deliveries_log ON webhook_deliveries (webhook_id, created_at DESC, id DESC);
CREATE INDEX webhook_deliveries_age ON webhook_deliveries (created_at);
CREATE INDEX webhook_deliveries_session ON webhook_deliveries (session_id);
CREATE INDEX webhook_deliveries_from ON webhook_deliveries (from_session);
