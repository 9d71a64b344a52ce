-- What is to be erased and is not yet: a conversation, a user, an owner. Whoever began it may have been killed; any
-- process goes on. The row goes with the last of what it names.
CREATE TABLE erasures (
    kind       text NOT NULL CHECK (kind IN ('conversation', 'user', 'owner')),
    owner      text NOT NULL,
    name       text NOT NULL,                      -- of the conversation or the user; empty: the owner itself
    at         timestamptz NOT NULL DEFAULT now(), -- asked for: what begins later stays
    touched_at timestamptz NOT NULL DEFAULT now(), -- by whoever works on it

    PRIMARY KEY (kind, owner, name)
);

-- After how many days an owner's sessions of a state are erased; without a row, what the settings say.
CREATE TABLE retention_policies (
    owner text NOT NULL,
    state text NOT NULL CHECK (state IN ('COMPLETED', 'FAILED', 'CANCELLED')),
    days  integer CHECK (days > 0),                -- NULL: never

    PRIMARY KEY (owner, state)
);
