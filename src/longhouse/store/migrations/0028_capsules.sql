-- Sessions that were brought from another house in a capsule, to be looked at. They are read-only whoever asks, also
-- for processes of an earlier release: no append and no claim passes the constraint.

ALTER TABLE sessions
    ADD COLUMN capsule      text,     -- the session that the capsule was made of; NULL: a session of this house
    ADD COLUMN capsule_head bigint;
-- Not validated: that would read all sessions, and none of them has a capsule.
ALTER TABLE sessions ADD CONSTRAINT sessions_read_only CHECK (
    capsule IS NULL OR (NOT due AND holder IS NULL AND wake_at IS NULL AND head = capsule_head)
) NOT VALID;

CREATE TABLE capsules (
    id          text PRIMARY KEY REFERENCES sessions (id) ON DELETE CASCADE,
    manifest    json NOT NULL,    -- what the sessions came to where the capsule was made
    imported_at timestamptz NOT NULL DEFAULT now()
);

-- The versions that they were made with: a name and a number mean something else in each house.
CREATE TABLE capsule_versions (
    capsule    text NOT NULL REFERENCES sessions (id) ON DELETE CASCADE,
    kind       text NOT NULL,
    name       text COLLATE "C" NOT NULL,
    version    integer NOT NULL,
    descriptor json NOT NULL,

    PRIMARY KEY (capsule, kind, name, version)
);

-- What was remembered in the request before a reply: the memory that it came from stayed in the other house.
CREATE TABLE capsule_texts (
    session_id text NOT NULL REFERENCES sessions (id) ON DELETE CASCADE,
    seq        bigint NOT NULL,
    text       text NOT NULL,

    PRIMARY KEY (session_id, seq)
);
