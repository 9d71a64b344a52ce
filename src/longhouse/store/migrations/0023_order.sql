-- Who is next: owner by owner, the longest due first. Neither column changes while a session runs, so that its updates
-- stay heap-only. It serves whoever looks for due sessions, processes of earlier releases too.
CREATE INDEX sessions_queued ON sessions (owner, queued_at NULLS FIRST) WHERE due;

CREATE INDEX sessions_waiting ON sessions (waits_for, owner, queued_at) WHERE waits_for IS NOT NULL;

-- Templates with a limit: mostly none.
CREATE INDEX catalog_limited ON catalog_versions (name, version)
    WHERE kind = 'template' AND descriptor #>> '{execution_policy,max_running}' IS NOT NULL;
