-- Sessions that wait for a person: the list of open questions starts here, however many sessions there are. A table, and
-- no index of `sessions`: with one on `state`, few updates of a session would stay heap-only. A trigger keeps it, since
-- processes of an earlier release append too.
CREATE TABLE asking_sessions (
    id    text PRIMARY KEY REFERENCES sessions (id) ON DELETE CASCADE,
    owner text NOT NULL
);
CREATE INDEX asking_sessions_owner ON asking_sessions (owner);

CREATE FUNCTION note_asking_session() RETURNS trigger LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
BEGIN
    IF NEW.state IN ('WAITING_FOR_CLARIFICATION', 'WAITING_FOR_APPROVAL') THEN
        INSERT INTO asking_sessions (id, owner) VALUES (NEW.id, NEW.owner) ON CONFLICT DO NOTHING;
    ELSE
        DELETE FROM asking_sessions WHERE id = NEW.id;
    END IF;
    RETURN NULL;
END
$$;
CREATE TRIGGER sessions_ask AFTER UPDATE ON sessions FOR EACH ROW
    WHEN ((OLD.state IN ('WAITING_FOR_CLARIFICATION', 'WAITING_FOR_APPROVAL'))
          <> (NEW.state IN ('WAITING_FOR_CLARIFICATION', 'WAITING_FOR_APPROVAL')))
    EXECUTE FUNCTION note_asking_session();
CREATE TRIGGER sessions_begin_asking AFTER INSERT ON sessions FOR EACH ROW
    WHEN (NEW.state IN ('WAITING_FOR_CLARIFICATION', 'WAITING_FOR_APPROVAL'))
    EXECUTE FUNCTION note_asking_session();

INSERT INTO asking_sessions (id, owner)
SELECT id, owner FROM sessions WHERE state IN ('WAITING_FOR_CLARIFICATION', 'WAITING_FOR_APPROVAL');
