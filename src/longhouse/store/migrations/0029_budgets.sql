-- What teams need of keys: an end, what they may do, what they may spend, and a former secret that still works a while.
ALTER TABLE api_keys
    ADD COLUMN tokens_per_day bigint CHECK (tokens_per_day > 0),
    ADD COLUMN tokens_per_month bigint CHECK (tokens_per_month > 0),
    ADD COLUMN turns_per_day bigint CHECK (turns_per_day > 0),
    ADD COLUMN turns_per_month bigint CHECK (turns_per_month > 0),
    ADD COLUMN read_only boolean NOT NULL DEFAULT false,
    ADD COLUMN templates text[], -- NULL: all
    ADD COLUMN expires_at timestamptz,
    ADD COLUMN former_digest text,
    ADD COLUMN former_until timestamptz;
CREATE UNIQUE INDEX api_keys_former ON api_keys (former_digest) WHERE former_digest IS NOT NULL;

-- The budget of its key for which a session waits, as `tokens_per_day`; its `wake_at` is when the budget is full again.
-- Both stay until a worker appends again: it says how long the session has waited.
ALTER TABLE sessions ADD COLUMN paused text, ADD COLUMN paused_at timestamptz;
CREATE INDEX sessions_paused ON sessions (key_id) WHERE paused IS NOT NULL;

-- What was used, written with the append that says so. Rows are only added here: sessions of one key never wait for each
-- other. Workers move them into the table below; what a key has used is the sum of both.
CREATE TABLE usage_lately (
    id                bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    key_id            text NOT NULL, -- empty: no keys are set
    owner             text NOT NULL,
    model             text NOT NULL,
    at                timestamptz NOT NULL DEFAULT now(),
    turns             bigint NOT NULL,
    replies           bigint NOT NULL,
    prompt_tokens     bigint NOT NULL,
    cached_tokens     bigint NOT NULL,
    completion_tokens bigint NOT NULL,
    total_tokens      bigint NOT NULL
);
CREATE INDEX usage_lately_key ON usage_lately (key_id, at);

-- Days are those of UTC.
CREATE TABLE usage_days (
    key_id            text NOT NULL,
    day               date NOT NULL,
    owner             text NOT NULL,
    model             text NOT NULL,
    turns             bigint NOT NULL,
    replies           bigint NOT NULL,
    prompt_tokens     bigint NOT NULL,
    cached_tokens     bigint NOT NULL,
    completion_tokens bigint NOT NULL,
    total_tokens      bigint NOT NULL,
    PRIMARY KEY (key_id, day, owner, model)
);
CREATE INDEX usage_days_owner ON usage_days (owner, day);
