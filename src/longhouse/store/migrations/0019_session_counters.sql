-- Rebuildable: what lists tell of a session, counted from its journal up to `head` when somebody looks. It goes with its
-- session, also where a process of an earlier release erases it.
CREATE TABLE session_counters (
    session_id   text PRIMARY KEY REFERENCES sessions (id) ON DELETE CASCADE,
    version      integer NOT NULL,   -- of the way of counting
    head         bigint NOT NULL,
    found_by     text NOT NULL,      -- title and task, in lower case
    failed_tools text[] NOT NULL,
    counted      bytea NOT NULL
);
