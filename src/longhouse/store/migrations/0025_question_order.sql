-- The list of open questions is read page by page, in its order: each session that asks says when its first question is
-- due, and when it was asked. The trigger reads that from the journal, whichever process appends.

-- The first open question of a session that waits for a person, in the order of the list, and how many there are. OFFSET
-- keeps the planner from reading outcomes of the whole session; plpgsql keeps its plan. A step that lost its workers is
-- no call: a decision with an id of its own asks about it, and the next one with this id answers.
CREATE FUNCTION first_question(wanted text, OUT due_by timestamptz, OUT asked_at timestamptz, OUT questions bigint)
LANGUAGE plpgsql STABLE SET search_path FROM CURRENT AS $$
DECLARE
    reply bigint := COALESCE(
        (SELECT seq FROM journal WHERE session_id = wanted AND kind = 'Replied' ORDER BY seq DESC LIMIT 1), 0);
BEGIN
    SELECT COALESCE(CASE WHEN d.decided THEN NULL ELSE (c.body ->> 'approve_by')::timestamptz END,
                    '9999-12-31 00:00:00+00') AS due, c.at, count(*) OVER ()
    INTO due_by, asked_at, questions
    FROM (
        SELECT seq, kind, call_id, at, body FROM journal_events
        WHERE session_id = wanted AND seq > reply AND (
            kind = 'Called' OR (kind = 'Decided' AND call_id LIKE 'step-%' AND body ->> 'decision' = 'unknown')
        ) OFFSET 0
    ) c
    LEFT JOIN LATERAL (
        SELECT true AS decided FROM journal d
        WHERE d.session_id = wanted AND d.seq > c.seq AND d.kind = 'Decided' AND d.call_id = c.call_id LIMIT 1
    ) d ON true
    LEFT JOIN LATERAL (
        SELECT true AS ended FROM journal r
        WHERE r.session_id = wanted AND r.call_id = c.call_id AND r.kind = 'Returned' LIMIT 1
    ) r ON true
    WHERE COALESCE(c.body ->> 'call_kind', 'tool') <> 'agent' AND r.ended IS NULL
      AND NOT (c.kind = 'Decided' AND d.decided IS NOT NULL)
    ORDER BY due, c.at LIMIT 1;
END
$$;

ALTER TABLE asking_sessions
    ADD COLUMN agent     text,
    ADD COLUMN due_by    timestamptz,
    ADD COLUMN asked_at  timestamptz,
    ADD COLUMN is_single boolean;   -- it asks one question: no other stands further down in the list

-- A session whose question is not in the journal yet stands where nothing of it can come earlier.
CREATE OR REPLACE FUNCTION note_asking_session() RETURNS trigger LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
BEGIN
    IF NEW.state IN ('WAITING_FOR_CLARIFICATION', 'WAITING_FOR_APPROVAL') THEN
        INSERT INTO asking_sessions AS a (id, owner, agent, due_by, asked_at, is_single)
        SELECT NEW.id, NEW.owner, NEW.agent, COALESCE(q.due_by, NEW.created_at), COALESCE(q.asked_at, NEW.created_at),
               COALESCE(q.questions = 1, false)
        FROM first_question(NEW.id) q
        ON CONFLICT (id) DO UPDATE
        SET due_by = excluded.due_by, asked_at = excluded.asked_at, is_single = excluded.is_single
        WHERE (a.due_by, a.asked_at, a.is_single) IS DISTINCT FROM (excluded.due_by, excluded.asked_at, excluded.is_single);
    ELSE
        DELETE FROM asking_sessions WHERE id = NEW.id;
    END IF;
    RETURN NULL;
END
$$;
DROP TRIGGER sessions_ask ON sessions;
CREATE TRIGGER sessions_ask AFTER UPDATE ON sessions FOR EACH ROW
    WHEN ((OLD.state IN ('WAITING_FOR_CLARIFICATION', 'WAITING_FOR_APPROVAL'))
          <> (NEW.state IN ('WAITING_FOR_CLARIFICATION', 'WAITING_FOR_APPROVAL'))
          OR (NEW.head <> OLD.head AND NEW.state IN ('WAITING_FOR_CLARIFICATION', 'WAITING_FOR_APPROVAL')))
    EXECUTE FUNCTION note_asking_session();

UPDATE asking_sessions a
SET agent = s.agent, due_by = COALESCE(q.due_by, s.created_at), asked_at = COALESCE(q.asked_at, s.created_at),
    is_single = COALESCE(q.questions = 1, false)
FROM sessions s CROSS JOIN LATERAL first_question(s.id) q
WHERE s.id = a.id;

ALTER TABLE asking_sessions
    ALTER COLUMN agent SET NOT NULL,
    ALTER COLUMN due_by SET NOT NULL,
    ALTER COLUMN asked_at SET NOT NULL,
    ALTER COLUMN is_single SET NOT NULL;
DROP INDEX asking_sessions_owner;
CREATE INDEX asking_sessions_owner ON asking_sessions (owner, due_by, asked_at, id);
CREATE INDEX asking_sessions_all ON asking_sessions (due_by, asked_at, id);
CREATE INDEX asking_sessions_several ON asking_sessions (due_by, asked_at) WHERE NOT is_single;
