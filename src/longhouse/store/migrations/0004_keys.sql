-- Who may come in. A key is kept as its digest only; a revoked one stays listed and opens nothing.

CREATE TABLE api_keys (
    id                text PRIMARY KEY,
    name              text NOT NULL,
    owner             text NOT NULL,
    role              text NOT NULL CHECK (role IN ('user', 'admin')),
    digest            text NOT NULL UNIQUE,

    -- NULL: what the settings say.
    rate_limit        integer CHECK (rate_limit > 0),
    max_concurrent    integer CHECK (max_concurrent > 0),
    sessions_per_hour integer CHECK (sessions_per_hour > 0),

    created_at        timestamptz NOT NULL DEFAULT now(),
    revoked_at        timestamptz
);
CREATE INDEX api_keys_valid ON api_keys (id) WHERE revoked_at IS NULL;
CREATE INDEX api_keys_listed ON api_keys (created_at DESC, id DESC);
