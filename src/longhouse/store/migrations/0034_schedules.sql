-- Schedules: prompts that come by themselves, by a cron expression or once.
CREATE TABLE schedules (
    id              text PRIMARY KEY,
    owner           text NOT NULL,
    key_id          text,                     -- with whose rights it fires; NULL: it was made while no keys were set
    name            text NOT NULL,
    template        text NOT NULL,
    prompt          text NOT NULL,
    cron            text,
    at              timestamptz,
    time_zone       text NOT NULL,
    conversation_id text,                     -- NULL: each firing opens a session of its own
    "user"          text,
    metadata        json NOT NULL,
    missed          text NOT NULL CHECK (missed IN ('skip', 'once', 'all')),
    overlap         text NOT NULL CHECK (overlap IN ('queue', 'skip')),
    is_paused       boolean NOT NULL,
    stopped         text,                     -- why it does not fire any more, until somebody changes it
    next_at         timestamptz,              -- NULL: it is paused, stopped, or has nothing more to fire
    revision        bigint NOT NULL,          -- grows with each change and each firing: whoever is first fires
    taken_until     timestamptz,              -- some process is about to fire it, or was killed while it did
    created_at      timestamptz NOT NULL,
    updated_at      timestamptz NOT NULL,
    CHECK ((cron IS NULL) <> (at IS NULL))
);
CREATE INDEX schedules_due ON schedules (next_at) WHERE next_at IS NOT NULL;
CREATE INDEX schedules_owner ON schedules (owner, created_at, id);

-- What became of each moment at which a schedule was due.
CREATE TABLE schedule_runs (
    id          text PRIMARY KEY,
    schedule_id text NOT NULL REFERENCES schedules ON DELETE CASCADE,
    state       text NOT NULL CHECK (state IN ('fired', 'skipped', 'missed', 'failed')),
    due_at      timestamptz NOT NULL,
    last_due_at timestamptz NOT NULL,         -- of the moments that a row counts together
    count       integer NOT NULL,
    at          timestamptz NOT NULL,
    is_manual   boolean NOT NULL,
    session_id  text,
    trace_id    text,
    seq         bigint,                       -- where its prompt is in the journal
    error       text,
    code        text
);
CREATE INDEX schedule_runs_order ON schedule_runs (schedule_id, at, id);
CREATE INDEX schedule_runs_session ON schedule_runs (session_id) WHERE session_id IS NOT NULL;
CREATE INDEX schedule_runs_bare ON schedule_runs (schedule_id, at) WHERE session_id IS NULL;
