-- What happened, under the names people look for: views of the journal, so that they can never disagree with it.
-- Fields of a body that hold their default are left out there, hence the many COALESCE.

-- The ledger is asked by conversation. No update changes this column, so those of a running session stay heap-only.
CREATE INDEX sessions_conversation ON sessions (conversation_id);

-- A model may write arguments that are no JSON; they are shown as the string they are.
CREATE FUNCTION json_or_text(said text) RETURNS json LANGUAGE plpgsql IMMUTABLE STRICT AS $$
BEGIN
    RETURN said::json;
EXCEPTION WHEN invalid_text_representation OR statement_too_complex THEN
    RETURN to_json(said);
END
$$;

-- The words of a message's content, which is a text or a list of parts; images are left out.
CREATE FUNCTION words_of(content json) RETURNS text LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE json_typeof(content)
        WHEN 'string' THEN content #>> '{}'
        WHEN 'array' THEN COALESCE((
            SELECT string_agg(part ->> 'text', E'\n' ORDER BY nth)
            FROM json_array_elements(content) WITH ORDINALITY AS parts (part, nth)
            WHERE part ->> 'type' = 'text'
        ), '')
    END
$$;

-- One name for an event of any session: the session, then the seq in digits of one length, to sort as seqs do.
CREATE FUNCTION event_id(session_id text, seq bigint) RETURNS text LANGUAGE sql IMMUTABLE AS $$
    SELECT session_id || ':' || lpad(seq::text, 10, '0')
$$;

-- The journal with every body in its place, also one that was too long for its row. What was forgotten is not there.
-- IS DISTINCT FROM, not IS NULL: the planner takes the latter for rare, and would plan for next to no rows.
CREATE VIEW journal_events AS
SELECT j.session_id, j.seq, j.conversation_id, j.trace_id, j.kind, j.call_id, j.append_id, j.nth, j.at,
       CASE WHEN f.content IS NULL THEN j.body ELSE convert_from(f.content, 'UTF8')::json END AS body
FROM journal j LEFT JOIN files f ON f.digest = j.body_digest
WHERE j.body ->> 'forgotten' IS DISTINCT FROM 'true';

-- Each call with its outcome, once that is there. An index leads from a call to its outcome and none leads back:
-- LIMIT keeps the planner from starting at the outcomes, which in a long session would read it once for each of them.
CREATE VIEW journal_calls AS
SELECT c.session_id, c.call_id, c.trace_id, c.seq, c.at, r.seq AS returned_seq, r.at AS returned_at,
       c.body ->> 'tool' AS tool,
       COALESCE((c.body ->> 'version')::integer, 1) AS version,
       c.body ->> 'arguments' AS arguments,
       COALESCE(c.body ->> 'effect', 'read') AS effect,
       COALESCE(c.body ->> 'question', '') AS question,
       COALESCE(r.type = 'Fault', false) AS failed,
       r.words AS outcome
FROM journal_events c
LEFT JOIN LATERAL (
    SELECT e.seq, e.at, e.body #>> '{outcome,type}' AS type,
           COALESCE(e.body #>> '{outcome,content}', e.body #>> '{outcome,message}') AS words
    FROM journal_events e
    WHERE e.session_id = c.session_id AND e.call_id = c.call_id AND e.kind = 'Returned' LIMIT 1
) r ON true
WHERE c.kind = 'Called';

CREATE VIEW tool_executions AS
SELECT session_id, call_id, tool AS tool_name, version AS tool_version, json_or_text(arguments) AS args,
       outcome AS result,
       CASE WHEN returned_seq IS NULL THEN 'open' WHEN failed THEN 'error' ELSE 'ok' END AS status,
       at AS started_at, returned_at AS finished_at, effect
FROM journal_calls;

-- The OpenAI messages in the order (seq, nth) in which they came to be.
CREATE VIEW session_messages AS
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

-- A file that a tool made; its bytes are in `files`, under the digest.
CREATE VIEW artifacts AS
SELECT session_id, seq AS artifact_id, body ->> 'path' AS path, body ->> 'media_type' AS media_type,
       COALESCE((body ->> 'size')::bigint, 0) AS size, body ->> 'digest' AS digest, body ->> 'call' AS call_id, at
FROM journal_events WHERE kind = 'Stored';

-- What tools wrote to `context.sources`, in whatever shape.
CREATE VIEW journal_sources AS
SELECT e.session_id, e.seq, e.at, found.url,
       CASE WHEN found.source ->> 'number' ~ '^\d{1,9}$' THEN (found.source ->> 'number')::integer END AS number,
       found.source ->> 'title' AS title,
       found.source ->> 'snippet' AS snippet,
       found.source ->> 'full_content' AS full_content
FROM journal_events e
CROSS JOIN LATERAL json_each(COALESCE(e.body #> '{adds,sources}', e.body #> '{writes,sources}')) AS kept (url, source)
CROSS JOIN LATERAL (
    SELECT kept.url, CASE WHEN json_typeof(kept.source) = 'object' THEN kept.source END AS source
) AS found
WHERE e.kind = 'Returned';

-- Each number an agent was shown. Two searches side by side may give two numbers to one page, never one to two.
CREATE VIEW session_sources AS
SELECT DISTINCT session_id, number, url FROM journal_sources;

-- Each page once, with the newest that is known of it.
CREATE VIEW sources AS
SELECT url,
       COALESCE((array_agg(title ORDER BY at DESC, seq DESC) FILTER (WHERE title <> ''))[1], '') AS title,
       COALESCE((array_agg(snippet ORDER BY at DESC, seq DESC) FILTER (WHERE snippet <> ''))[1], '') AS snippet,
       COALESCE((array_agg(full_content ORDER BY at DESC, seq DESC) FILTER (WHERE full_content <> ''))[1], '')
           AS full_content,
       min(at) AS first_seen
FROM journal_sources GROUP BY url;

-- Who said what to whom. An input and its output share a `pair_id`, the id of the input.
CREATE VIEW interactions AS
SELECT event_id(e.session_id, e.seq) AS id, s.conversation_id, e.trace_id,
       said.sender AS source, CASE said.sender WHEN 'user' THEN 'user' ELSE 'agent' END AS source_type,
       s.agent AS target, 'agent' AS target_type,
       said.words AS content, 'input' AS type, e.at AS timestamp, event_id(e.session_id, e.seq) AS pair_id
FROM sessions s
JOIN journal_events e ON e.session_id = s.id AND e.kind = 'Prompted'
CROSS JOIN LATERAL (
    SELECT COALESCE(e.body ->> 'sender', 'user') AS sender,
           (SELECT string_agg(words_of(one.content), E'\n\n' ORDER BY one.nth)
            FROM json_array_elements(e.body -> 'content') WITH ORDINALITY AS one (content, nth)) AS words
) said
UNION ALL
SELECT event_id(e.session_id, e.seq), s.conversation_id, e.trace_id,
       s.agent, 'agent',
       prompt.sender, CASE prompt.sender WHEN 'user' THEN 'user' ELSE 'agent' END,
       COALESCE(e.body ->> 'answer', e.body ->> 'reason'), 'output', e.at, event_id(e.session_id, prompt.seq)
FROM sessions s
JOIN journal_events e ON e.session_id = s.id AND e.kind IN ('Finished', 'Failed')
-- The turn that ends is the one that started last; it names its prompt.
CROSS JOIN LATERAL (
    SELECT (b.body ->> 'prompt')::bigint AS seq FROM journal_events b
    WHERE b.session_id = e.session_id AND b.seq < e.seq AND b.kind = 'Started' ORDER BY b.seq DESC LIMIT 1
) turn
CROSS JOIN LATERAL (
    SELECT p.seq, COALESCE(p.body ->> 'sender', 'user') AS sender FROM journal_events p
    WHERE p.session_id = e.session_id AND p.seq = turn.seq LIMIT 1
) prompt
UNION ALL
SELECT event_id(c.session_id, c.seq), s.conversation_id, c.trace_id, s.agent, 'agent', c.tool, 'tool',
       c.arguments, 'input', c.at, event_id(c.session_id, c.seq)
FROM sessions s JOIN journal_calls c ON c.session_id = s.id
UNION ALL
SELECT event_id(c.session_id, c.returned_seq), s.conversation_id, c.trace_id, c.tool, 'tool', s.agent, 'agent',
       c.outcome, 'output', c.returned_at, event_id(c.session_id, c.seq)
FROM sessions s JOIN journal_calls c ON c.session_id = s.id
WHERE c.returned_seq IS NOT NULL
UNION ALL
-- Of a request the journal keeps the digest, and no moment of its own: it followed the event before the reply.
SELECT event_id(e.session_id, e.seq) || ':in', s.conversation_id, e.trace_id,
       s.agent, 'agent', COALESCE(e.body ->> 'model', 'llm'), 'llm',
       COALESCE(e.body ->> 'digest', ''), 'input',
       (SELECT earlier.at FROM journal earlier WHERE earlier.session_id = e.session_id AND earlier.seq = e.seq - 1),
       event_id(e.session_id, e.seq) || ':in'
FROM sessions s JOIN journal_events e ON e.session_id = s.id AND e.kind = 'Replied'
UNION ALL
SELECT event_id(e.session_id, e.seq) || ':out', s.conversation_id, e.trace_id,
       COALESCE(e.body ->> 'model', 'llm'), 'llm', s.agent, 'agent',
       COALESCE(NULLIF(e.body ->> 'text', ''), NULLIF(e.body ->> 'thought', ''), e.body ->> 'calls', ''),
       'output', e.at, event_id(e.session_id, e.seq) || ':in'
FROM sessions s JOIN journal_events e ON e.session_id = s.id AND e.kind = 'Replied';
