-- What appends and the ledger pay for: entries of indexes that nobody needs, conditions that call a trigger for nothing,
-- and records that are sent as text.

-- A record of the ledger as it is sent. It is not the row of the table: a release that gives the table one more column
-- makes a type of its own, so that processes of this one go on.
CREATE TYPE ledger_record AS (
    id              text,
    conversation_id text,
    trace_id        text,
    source          text,
    source_type     text,
    target          text,
    target_type     text,
    content         text,
    type            text,
    "timestamp"     timestamptz,
    pair_id         text,
    owner           text,
    "user"          text,
    session_id      text,
    seq             bigint,
    agent           text,
    depth           smallint,
    shown           boolean,
    detail          json,
    since           bigint
);

-- One entry for each append, not for each of its events: a repeated append begins with its first event again. A prompt to
-- a session that is open already is the second event of its append, without the first.
ALTER TABLE journal DROP CONSTRAINT journal_append;
CREATE UNIQUE INDEX journal_append ON journal (session_id, append_id, nth) WHERE nth = 1 OR kind = 'Prompted';

-- Other events of an append are found beside it. The same as before, but for the condition on `made.seq`.
CREATE OR REPLACE VIEW session_messages AS
-- What a client had said elsewhere and brought along.
SELECT e.session_id, e.seq, prior.nth,
       prior.message ->> 'role' AS role, words_of(prior.message -> 'content') AS content,
       prior.message -> 'tool_calls' AS tool_calls, prior.message ->> 'tool_call_id' AS tool_call_id,
       NULL::text AS name, e.at
FROM journal_events e
CROSS JOIN LATERAL json_array_elements(e.body -> 'prior') WITH ORDINALITY AS prior (message, nth)
WHERE e.kind = 'Prompted'
UNION ALL
SELECT e.session_id, e.seq, COALESCE(json_array_length(e.body -> 'prior'), 0) + said.nth,
       'user', words_of(said.content), NULL::json, NULL::text, NULL::text, e.at
FROM journal_events e
CROSS JOIN LATERAL json_array_elements(e.body -> 'content') WITH ORDINALITY AS said (content, nth)
WHERE e.kind = 'Prompted'
UNION ALL
-- A reply and its calls are one append. Words without a call that end the turn come as `Finished` below, not twice.
SELECT e.session_id, e.seq, 1::bigint, 'assistant',
       CASE WHEN led.calls IS NULL THEN COALESCE(said.words, '') ELSE said.words END,
       led.calls, NULL::text, NULL::text, e.at
FROM journal_events e
CROSS JOIN LATERAL (SELECT COALESCE(NULLIF(e.body ->> 'thought', ''), NULLIF(e.body ->> 'text', '')) AS words) said
CROSS JOIN LATERAL (
    SELECT json_agg(json_build_object('id', made.call_id, 'type', 'function', 'function', json_build_object(
               'name', made.body ->> 'tool', 'arguments', made.body ->> 'arguments')) ORDER BY made.nth)
               FILTER (WHERE made.kind = 'Called') AS calls,
           COALESCE(bool_or(made.kind = 'Finished'), false) AS the_end
    FROM journal_events made
    WHERE made.session_id = e.session_id AND made.append_id = e.append_id AND made.kind IN ('Called', 'Finished')
      AND made.seq > e.seq - e.nth AND made.seq < COALESCE((
          SELECT other.seq FROM journal other
          WHERE other.session_id = e.session_id AND other.seq > e.seq AND other.append_id <> e.append_id
          ORDER BY other.seq LIMIT 1
      ), 9223372036854775807)
) led
WHERE e.kind = 'Replied' AND NOT (led.the_end AND led.calls IS NULL)
UNION ALL
-- A question stands where it was asked; its answer is what a person said.
SELECT session_id, CASE WHEN question <> '' AND NOT failed THEN seq ELSE returned_seq END, 1::bigint, 'tool',
       CASE WHEN failed THEN 'Error: ' || outcome WHEN question <> '' THEN question ELSE outcome END,
       NULL::json, call_id, tool, CASE WHEN question <> '' AND NOT failed THEN at ELSE returned_at END
FROM journal_calls WHERE returned_seq IS NOT NULL OR question <> ''
UNION ALL
SELECT session_id, returned_seq, 1::bigint, 'user', outcome, NULL::json, NULL::text, NULL::text, returned_at
FROM journal_calls WHERE question <> '' AND NOT failed AND returned_seq IS NOT NULL
UNION ALL
-- An agent that says it failed says so to its user; other failures are nobody's words.
SELECT session_id, seq, 1::bigint, 'assistant', COALESCE(body ->> 'answer', body ->> 'reason'),
       NULL::json, NULL::text, NULL::text, at
FROM journal_events WHERE kind = 'Finished' OR (kind = 'Failed' AND body ->> 'code' = 'agent_failed');

-- What was used lately is taken in any order, and looked up by keys alone.
ALTER TABLE usage_lately DROP CONSTRAINT usage_lately_pkey;
DROP INDEX usage_lately_key;
CREATE INDEX usage_lately_key ON usage_lately (key_id, at) WHERE key_id <> '';
CREATE OR REPLACE FUNCTION usage_of_key(asked text)
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
        WHERE key_id = asked AND key_id <> ''
          AND at >= date_trunc('month', now() AT TIME ZONE 'UTC') AT TIME ZONE 'UTC'
    ) counted
$$;

-- Only where the function has something to do: not where a session is opened, or begins to work. Postgres reads these
-- conditions anew for each statement: the shorter, the better.
DROP TRIGGER sessions_change ON sessions;
CREATE TRIGGER sessions_change AFTER UPDATE ON sessions FOR EACH ROW
    WHEN (NOT NEW.due OR NEW.state <> 'RESEARCHING' OR OLD.state LIKE 'WAITING%' OR NEW.capsule IS NOT NULL)
    EXECUTE FUNCTION follow_session();
DROP TRIGGER sessions_begin ON sessions;
CREATE TRIGGER sessions_begin AFTER INSERT ON sessions FOR EACH ROW
    WHEN (NEW.side NOT IN ('root', 'sub', 'external') OR NEW.capsule IS NOT NULL OR NEW.head > NEW.inherited
          OR NEW.state LIKE 'WAITING%')
    EXECUTE FUNCTION follow_session();
