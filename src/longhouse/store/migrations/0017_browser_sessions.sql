-- Browsers that are signed in to the console. Each is bound to the key that it was signed in with, and ends with it.

CREATE TABLE browser_sessions (
    digest     text PRIMARY KEY,   -- of the token in the browser's cookie
    key_id     text NOT NULL,      -- 'admin': the key of the settings, which is in no table
    key_digest text NOT NULL,      -- as in api_keys; that of the settings' key is mixed with the token
    created_at timestamptz NOT NULL DEFAULT now(),
    expires_at timestamptz NOT NULL
);
CREATE INDEX browser_sessions_expiry ON browser_sessions (expires_at);
CREATE INDEX browser_sessions_key ON browser_sessions (key_id, created_at);
