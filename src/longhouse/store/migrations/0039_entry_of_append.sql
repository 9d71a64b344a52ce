-- An append is found by one entry of an index. This stands alone: while the index is built, appends wait for the journal
-- and hold `sessions`, which nothing here needs; and nobody else waits for them.

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

-- One entry for each append, not for each of its events: a repeated append begins with its first event again. A prompt to
-- a session that is open already is the second event of its append, without the first.
ALTER TABLE journal DROP CONSTRAINT journal_append;
CREATE UNIQUE INDEX journal_append ON journal (session_id, append_id, nth) WHERE nth = 1 OR kind = 'Prompted';
