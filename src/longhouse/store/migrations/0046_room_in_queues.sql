-- Whether a session's queue takes one more prompt. It is asked by the statement that appends, which asks again when it has
-- waited for the session's row: each query in here sees what was committed meanwhile, so that no bound is passed.
-- Waiting are the prompts behind that of the last turn that were not cancelled, and what was said beside a call that waits
-- until the agent has read it. With those that were cancelled they may be ten times as many. Long texts are measured
-- without being read.
CREATE FUNCTION queue_has_room(asked text, most integer, most_bytes bigint) RETURNS boolean LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    begun bigint;
    replied bigint;
    waiting record;
BEGIN
    SELECT COALESCE((body ->> 'prompt')::bigint, 0) INTO begun FROM journal
    WHERE session_id = asked AND kind = 'Started' ORDER BY seq DESC LIMIT 1;
    SELECT seq INTO replied FROM journal WHERE session_id = asked AND kind = 'Replied' ORDER BY seq DESC LIMIT 1;
    IF (SELECT count(*) FROM journal WHERE session_id = asked AND seq > COALESCE(begun, 0) AND kind = 'Prompted'
        AND (body ->> 'aside' IS NULL OR seq > COALESCE(replied, 0))) >= 10 * most THEN
        RETURN false; -- before they are compared with what was cancelled: the session's row is held meanwhile
    END IF;
    SELECT count(*) FILTER (WHERE gone.seq IS NULL) AS number,
           COALESCE(sum(COALESCE(octet_length(f.content), pg_column_size(p.body))) FILTER (WHERE gone.seq IS NULL), 0) AS bytes
    INTO waiting
    FROM journal p LEFT JOIN files f ON f.digest = p.body_digest LEFT JOIN (
        SELECT e.trace_id, max(e.seq) AS seq FROM journal e
        WHERE e.session_id = asked AND e.seq > COALESCE(begun, 0) AND e.kind = 'Cancelled' GROUP BY e.trace_id
    ) AS gone ON gone.trace_id = p.trace_id AND gone.seq > p.seq
    WHERE p.session_id = asked AND p.seq > COALESCE(begun, 0) AND p.kind = 'Prompted'
      AND (p.body ->> 'aside' IS NULL OR p.seq > COALESCE(replied, 0));
    RETURN waiting.number < most AND waiting.bytes < most_bytes;
END
$$;
