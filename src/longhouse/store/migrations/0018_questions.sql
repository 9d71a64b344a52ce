-- Sessions that wait for a person: the list of open questions starts here, however many sessions there are.
CREATE INDEX sessions_asking ON sessions (owner)
    WHERE state IN ('WAITING_FOR_CLARIFICATION', 'WAITING_FOR_APPROVAL');
