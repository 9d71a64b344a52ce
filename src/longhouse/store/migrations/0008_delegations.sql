-- Who works for whom: rebuildable from the journals, kept so that an end finds those who wait for it.

-- A task that an agent gave to another: the call of the parent, the prompt of the child.
CREATE TABLE delegations (
    parent  text NOT NULL,
    call    text NOT NULL,
    child   text NOT NULL,
    prompt  bigint NOT NULL,
    trace   text NOT NULL,
    outcome json,                -- NULL: the child is at it
    at      timestamptz NOT NULL DEFAULT now(),

    PRIMARY KEY (parent, call)
);
CREATE INDEX delegations_child ON delegations (child, prompt);
CREATE INDEX delegations_open ON delegations (parent) WHERE outcome IS NULL;

-- Open calls that wait for a delegation's outcome: the call itself, or one that collects it later.
CREATE TABLE awaits (
    parent  text NOT NULL,
    call    text NOT NULL,
    awaited text NOT NULL,

    PRIMARY KEY (parent, call),
    FOREIGN KEY (parent, awaited) REFERENCES delegations (parent, call) ON DELETE CASCADE
);
CREATE INDEX awaits_awaited ON awaits (parent, awaited);
