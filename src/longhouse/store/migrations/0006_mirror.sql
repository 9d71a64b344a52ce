-- How far the journals have been carried elsewhere: to Redis, to the session logs. Rebuildable.

CREATE TABLE projection_cursors (
    projection text NOT NULL,
    session_id text NOT NULL,
    epoch      text NOT NULL,   -- of the place it was carried to; another epoch there means: carry it again
    head       bigint NOT NULL,

    PRIMARY KEY (projection, session_id)
);

-- By this a place that outlives the database knows whose copies it holds.
CREATE TABLE identity (id uuid NOT NULL DEFAULT gen_random_uuid());
INSERT INTO identity DEFAULT VALUES;
