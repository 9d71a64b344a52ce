-- What each append pays for. Postgres reads the conditions of triggers and checks anew for each statement, and prepares
-- every branch of a plan, be it one that is never taken: both took a quarter of an append's time.

-- What a key has used, in the order of the budgets' columns.
CREATE FUNCTION usage_of_key(asked text)
RETURNS TABLE (tokens_per_day bigint, tokens_per_month bigint, turns_per_day bigint, turns_per_month bigint)
LANGUAGE sql STABLE AS $$
    SELECT COALESCE(sum(tokens) FILTER (WHERE day = (now() AT TIME ZONE 'UTC')::date), 0)::bigint,
           COALESCE(sum(tokens), 0)::bigint,
           COALESCE(sum(turns) FILTER (WHERE day = (now() AT TIME ZONE 'UTC')::date), 0)::bigint,
           COALESCE(sum(turns), 0)::bigint
    FROM (
        SELECT day, total_tokens AS tokens, turns FROM usage_days
        WHERE key_id = asked AND day >= date_trunc('month', now() AT TIME ZONE 'UTC')::date
        UNION ALL
        SELECT (at AT TIME ZONE 'UTC')::date, total_tokens, turns FROM usage_lately
        WHERE key_id = asked AND at >= date_trunc('month', now() AT TIME ZONE 'UTC') AT TIME ZONE 'UTC'
    ) counted
$$;

-- The budget that a key has used up, with what is about to be counted; NULL: none. One without budgets costs a look at
-- its row.
CREATE FUNCTION spent_budget(asked text, new_tokens bigint, new_turns bigint) RETURNS text LANGUAGE plpgsql STABLE AS $$
DECLARE
    k record;
    u record;
BEGIN
    SELECT a.tokens_per_month, a.tokens_per_day, a.turns_per_month, a.turns_per_day INTO k FROM api_keys a
    WHERE a.id = asked
      AND COALESCE(a.tokens_per_month, a.tokens_per_day, a.turns_per_month, a.turns_per_day) IS NOT NULL;
    IF NOT FOUND THEN
        RETURN NULL;
    END IF;
    SELECT * INTO u FROM usage_of_key(asked);
    RETURN CASE WHEN k.tokens_per_month <= u.tokens_per_month + new_tokens THEN 'tokens_per_month'
                WHEN k.tokens_per_day <= u.tokens_per_day + new_tokens THEN 'tokens_per_day'
                WHEN k.turns_per_month <= u.turns_per_month + new_turns THEN 'turns_per_month'
                WHEN k.turns_per_day <= u.turns_per_day + new_turns THEN 'turns_per_day' END;
END
$$;

-- What follows from a session's row, in one place: its side is one of three, the list of questions, the news of webhooks,
-- and that a session from a capsule is read-only. A step of a session at work changes none of it, and is not looked at any further.
CREATE FUNCTION follow_session() RETURNS trigger LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
DECLARE
    asks  boolean := NEW.state IN ('WAITING_FOR_CLARIFICATION', 'WAITING_FOR_APPROVAL');
    asked boolean := TG_OP = 'UPDATE' AND OLD.state IN ('WAITING_FOR_CLARIFICATION', 'WAITING_FOR_APPROVAL');
    moves boolean := TG_OP = 'INSERT' OR NEW.head <> OLD.head;
    is_news boolean;
BEGIN
    IF NEW.side NOT IN ('root', 'sub', 'external') THEN
        RAISE EXCEPTION 'a session has no side %', NEW.side
            USING ERRCODE = 'check_violation', CONSTRAINT = 'sessions_side_check', TABLE = 'sessions';
    END IF;
    IF NEW.capsule IS NOT NULL
       AND (NEW.due OR NEW.holder IS NOT NULL OR NEW.wake_at IS NOT NULL OR NEW.head IS DISTINCT FROM NEW.capsule_head)
    THEN
        RAISE EXCEPTION 'session % came in a capsule: it is read-only', NEW.id
            USING ERRCODE = 'check_violation', CONSTRAINT = 'sessions_read_only', TABLE = 'sessions';
    END IF;
    IF asks AND (moves OR NOT asked) THEN
        INSERT INTO asking_sessions AS a (id, owner, agent, due_by, asked_at, is_single)
        SELECT NEW.id, NEW.owner, NEW.agent, COALESCE(q.due_by, NEW.created_at), COALESCE(q.asked_at, NEW.created_at),
               COALESCE(q.questions = 1, false)
        FROM first_question(NEW.id) q
        ON CONFLICT (id) DO UPDATE
        SET due_by = excluded.due_by, asked_at = excluded.asked_at, is_single = excluded.is_single
        WHERE (a.due_by, a.asked_at, a.is_single) IS DISTINCT FROM (excluded.due_by, excluded.asked_at, excluded.is_single);
    ELSIF asked AND NOT asks THEN
        DELETE FROM asking_sessions WHERE id = NEW.id;
    END IF;
    -- A turn has ended, somebody is asked, or nobody works on the session any more, be it without a further event; and a
    -- branch may begin with the end of a turn.
    IF TG_OP = 'INSERT' THEN
        is_news := NEW.head > NEW.inherited;
    ELSE
        is_news := moves AND (asks OR NEW.state IN ('COMPLETED', 'FAILED', 'CANCELLED'))
                   OR (OLD.due OR OLD.holder IS NOT NULL) AND NOT NEW.due AND NEW.holder IS NULL;
    END IF;
    IF is_news AND EXISTS (SELECT FROM webhooks WHERE owner = NEW.owner AND status <> 'disabled') THEN
        INSERT INTO webhook_news (session_id) VALUES (NEW.id);
    END IF;
    RETURN NULL;
END
$$;
DROP TRIGGER sessions_ask ON sessions;
DROP TRIGGER sessions_begin_asking ON sessions;
DROP TRIGGER sessions_news ON sessions;
DROP TRIGGER sessions_branch_news ON sessions;
DROP FUNCTION note_asking_session();
DROP FUNCTION note_webhook_news();
CREATE TRIGGER sessions_change AFTER UPDATE ON sessions FOR EACH ROW
    WHEN (NOT NEW.due OR NEW.state <> 'RESEARCHING' OR OLD.state <> 'RESEARCHING' OR NEW.capsule IS NOT NULL)
    EXECUTE FUNCTION follow_session();
CREATE TRIGGER sessions_begin AFTER INSERT ON sessions FOR EACH ROW EXECUTE FUNCTION follow_session();
-- No statement of ours changes a side: this one costs the others nothing.
CREATE TRIGGER sessions_side AFTER UPDATE OF side ON sessions FOR EACH ROW EXECUTE FUNCTION follow_session();
ALTER TABLE sessions DROP CONSTRAINT sessions_read_only;
ALTER TABLE sessions DROP CONSTRAINT sessions_side_check;
