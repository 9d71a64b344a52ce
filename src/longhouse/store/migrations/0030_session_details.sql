-- What operators ask of a session, under the names of GET /v1/sessions/{id}: a view of its journal, so that it cannot
-- disagree with it. Each column is a query of its own: one that is not asked for costs nothing.

-- Fields of a body that hold their default are left out there, hence the many COALESCE. The values are json, not jsonb,
-- which knows no \u0000.
CREATE VIEW session_details AS
SELECT d.session_id, d.template_id, d.version, d.instance_id, d.owner, d."user", d.conversation_id, d.side, d.label,
       d.parent, d.trace_id, d.state, d.first_task, d.task, d.result, d.error, d.turns, d.steps, d.tool_calls,
       d.failed_calls, d.tokens, d.prompt_tokens, d.cached_tokens, d.completion_tokens,
       d.iteration, d.searches_used, d.clarifications_used, d.created_at, d.updated_at,
       json_build_object(
           'state', d.state, 'iteration', d.iteration, 'searches_used', d.searches_used,
           'clarifications_used', d.clarifications_used,
           'searches', COALESCE((
               SELECT json_agg(one.item ORDER BY w.seq, w.part, one.nth)
               FROM (
                   SELECT e.seq, said.part, said.value
                   FROM journal_events e
                   CROSS JOIN LATERAL (
                       VALUES (1, e.body #> '{writes,searches}'), (2, e.body #> '{adds,searches}')
                   ) AS said (part, value)
                   WHERE e.session_id = d.session_id AND e.kind = 'Returned' AND e.seq > d.context_since
                     AND json_typeof(said.value) = 'array'
                     -- What a tool wrote takes the place of what was added before.
                     AND e.seq >= COALESCE((
                         SELECT max(b.seq) FROM journal_events b
                         WHERE b.session_id = d.session_id AND b.kind = 'Returned' AND b.seq > d.context_since
                           AND b.body #> '{writes,searches}' IS NOT NULL), 0)
               ) w CROSS JOIN LATERAL json_array_elements(w.value) WITH ORDINALITY AS one (item, nth)), '[]'),
           'sources', COALESCE((
               SELECT json_object_agg(newest.url, newest.source ORDER BY newest.url)
               FROM (
                   SELECT DISTINCT ON (kept.url) kept.url, kept.source
                   FROM journal_events e
                   CROSS JOIN LATERAL (
                       VALUES (1, e.body #> '{writes,sources}'), (2, e.body #> '{adds,sources}')
                   ) AS said (part, value)
                   CROSS JOIN LATERAL json_each(said.value) AS kept (url, source)
                   WHERE e.session_id = d.session_id AND e.kind = 'Returned' AND e.seq > d.context_since
                     AND json_typeof(said.value) = 'object'
                   ORDER BY kept.url, e.seq DESC, said.part DESC
               ) newest), '{}'),
           'execution_result', d.result,
           'current_step_reasoning', (
               SELECT CASE e.kind WHEN 'Replied' THEN json_or_text(e.body ->> 'thought')
                                  ELSE e.body #> '{writes,current_step_reasoning}' END
               FROM journal_events e
               WHERE e.session_id = d.session_id AND e.seq > d.turn_since
                 AND (e.kind = 'Replied' AND e.body ->> 'thought' <> ''
                      OR e.kind = 'Returned' AND e.body #> '{writes,current_step_reasoning}' IS NOT NULL)
               ORDER BY e.seq DESC LIMIT 1)
       ) AS context_snapshot
FROM (
    SELECT t.*,
           (SELECT b.body ->> 'instance' FROM journal_events b
            WHERE b.session_id = t.session_id AND b.seq = t.turn_since) AS instance_id,
           -- The prompt of the present turn, and the first one, in full.
           (SELECT string_agg(words_of(one.content), E'\n\n' ORDER BY one.nth)
            FROM journal_events b
            JOIN journal_events p ON p.session_id = b.session_id AND p.seq = (b.body ->> 'prompt')::bigint
            CROSS JOIN LATERAL json_array_elements(p.body -> 'content') WITH ORDINALITY AS one (content, nth)
            WHERE b.session_id = t.session_id AND b.seq = t.turn_since) AS task,
           (SELECT string_agg(words_of(one.content), E'\n\n' ORDER BY one.nth)
            FROM (SELECT e.body FROM journal_events e
                  WHERE e.session_id = t.session_id AND e.kind = 'Prompted' ORDER BY e.seq LIMIT 1) p
            CROSS JOIN LATERAL json_array_elements(p.body -> 'content') WITH ORDINALITY AS one (content, nth)
           ) AS first_task,
           -- An agent that says that it failed has said so to its user.
           (SELECT CASE WHEN e.kind = 'Finished' THEN e.body ->> 'answer'
                        WHEN e.body ->> 'code' = 'agent_failed' THEN e.body ->> 'reason' END
            FROM journal_events e
            WHERE e.session_id = t.session_id AND e.seq > t.turn_since AND e.kind IN ('Finished', 'Failed')
           ) AS result,
           (SELECT e.body ->> 'reason' FROM journal_events e
            WHERE e.session_id = t.session_id AND e.seq > t.turn_since AND e.kind = 'Failed') AS error,
           (SELECT count(*) FROM journal e
            WHERE e.session_id = t.session_id AND e.kind = 'Started')::integer AS turns,
           (SELECT count(*) FROM journal e
            WHERE e.session_id = t.session_id AND e.kind = 'Replied')::integer AS steps,
           (SELECT count(*) FROM journal e
            WHERE e.session_id = t.session_id AND e.kind = 'Called')::integer AS tool_calls,
           (SELECT count(*) FROM journal_events e
            WHERE e.session_id = t.session_id AND e.kind = 'Returned' AND e.body #>> '{outcome,type}' = 'Fault'
           )::integer AS failed_calls,
           -- Those of its sub-agents included, as in lists; the three below are its own.
           (SELECT COALESCE(sum(COALESCE((e.body #>> '{usage,total_tokens}')::bigint, 0)
                                + COALESCE((e.body #>> '{spent,total_tokens}')::bigint, 0)), 0)
            FROM journal_events e WHERE e.session_id = t.session_id
              AND e.kind IN ('Replied', 'Condensed', 'Spent', 'Returned'))::bigint AS tokens,
           (SELECT COALESCE(sum((e.body #>> '{usage,prompt_tokens}')::bigint), 0) FROM journal_events e
            WHERE e.session_id = t.session_id AND e.kind IN ('Replied', 'Condensed', 'Spent'))::bigint AS prompt_tokens,
           (SELECT COALESCE(sum((e.body #>> '{usage,cached_tokens}')::bigint), 0) FROM journal_events e
            WHERE e.session_id = t.session_id AND e.kind IN ('Replied', 'Condensed', 'Spent'))::bigint AS cached_tokens,
           (SELECT COALESCE(sum((e.body #>> '{usage,completion_tokens}')::bigint), 0) FROM journal_events e
            WHERE e.session_id = t.session_id AND e.kind IN ('Replied', 'Condensed', 'Spent')
           )::bigint AS completion_tokens,
           -- The counters of the present turn. An action belongs to the iteration of the reasoning before it.
           (SELECT count(*) FROM (
                SELECT COALESCE(e.body ->> 'phase', '') AS phase,
                       lag(e.body ->> 'phase') OVER (ORDER BY e.seq) AS before
                FROM journal_events e
                WHERE e.session_id = t.session_id AND e.kind = 'Replied' AND e.seq > t.turn_since) replies
            WHERE NOT (phase = 'action' AND before IS NOT DISTINCT FROM 'reasoning'))::integer AS iteration,
           (SELECT COALESCE(sum(COALESCE((e.body #>> '{writes,searches_used}')::numeric, 0)
                                + COALESCE((e.body #>> '{adds,searches_used}')::numeric, 0)), 0)
            FROM journal_events e
            WHERE e.session_id = t.session_id AND e.kind = 'Returned' AND e.seq > t.turn_since
           )::integer AS searches_used,
           (SELECT count(*) FROM journal_events c
            JOIN journal_events r ON r.session_id = c.session_id AND r.call_id = c.call_id AND r.kind = 'Returned'
            WHERE c.session_id = t.session_id AND c.kind = 'Called' AND c.seq > t.turn_since
              AND c.body ->> 'call_kind' = 'ask' AND r.body #>> '{outcome,type}' = 'Output'
           )::integer AS clarifications_used
    FROM (
        SELECT s.id AS session_id, s.agent AS template_id, s.version, s.owner, s."user", s.conversation_id, s.side,
               s.label, s.parent, s.trace_id, s.state, s.created_at, s.updated_at,
               -- Where the present turn begins, and the context: a template may have it cleaned for each turn.
               COALESCE((SELECT max(b.seq) FROM journal b
                         WHERE b.session_id = s.id AND b.kind = 'Started'), 0) AS turn_since,
               COALESCE((SELECT max(b.seq) FROM journal_events b
                         WHERE b.session_id = s.id AND b.kind = 'Started'
                           AND b.body ->> 'cleaned' LIKE '%"context"%'), 0) AS context_since
        FROM sessions s
    ) t
) d;
