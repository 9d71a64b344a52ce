-- Lists of sessions in a state that few have: whoever looks for them need not read all the others. Most sessions are
-- completed and are left out. A session that runs keeps its state, so that its updates stay heap-only.
CREATE INDEX sessions_of_state ON sessions (state, created_at DESC, id DESC) WHERE state <> 'COMPLETED';
CREATE INDEX sessions_of_owner_and_state ON sessions (owner, state, created_at DESC, id DESC) WHERE state <> 'COMPLETED';
