-- How many calls of tools each turn of a request has taken from the budget that its root and all below it share.
CREATE TABLE shared_calls (
    root       text NOT NULL,
    trace      text NOT NULL,
    session_id text NOT NULL REFERENCES sessions (id) ON DELETE CASCADE,
    prompt     bigint NOT NULL,  -- with the session: the turn
    calls      integer NOT NULL,

    PRIMARY KEY (root, trace, session_id, prompt)
);
CREATE INDEX shared_calls_session ON shared_calls (session_id);
