-- The files of sessions from before 0042, and cursors of sessions that were deleted. It stands alone: events are appended
-- meanwhile, and have their files written down as they come. Each kind of event is found by an index.
INSERT INTO session_files
SELECT j.session_id, named.digest, named.media_type
FROM journal j JOIN sessions s ON s.id = j.session_id CROSS JOIN LATERAL files_in(j.kind, j.body::text) AS named
WHERE j.kind = 'Stored'
FOR KEY SHARE OF s -- unless it is being erased
ON CONFLICT DO NOTHING;
INSERT INTO session_files
SELECT j.session_id, named.digest, named.media_type
FROM journal j JOIN sessions s ON s.id = j.session_id CROSS JOIN LATERAL files_in(j.kind, j.body::text) AS named
WHERE j.kind = 'Prompted' AND j.body::text LIKE '%longhouse-file:%'
FOR KEY SHARE OF s
ON CONFLICT DO NOTHING;
INSERT INTO session_files
SELECT j.session_id, named.digest, named.media_type
FROM journal j JOIN sessions s ON s.id = j.session_id JOIN files long ON long.digest = j.body_digest
CROSS JOIN LATERAL files_in(j.kind, convert_from(long.content, 'UTF8')) AS named
WHERE j.kind = 'Prompted' AND j.body_digest IS NOT NULL AND position('"longhouse-file:' IN long.content) > 0
FOR KEY SHARE OF s
ON CONFLICT DO NOTHING;
INSERT INTO session_files
SELECT r.session_id, named.digest, named.media_type
FROM responses r JOIN sessions s ON s.id = r.session_id
CROSS JOIN LATERAL files_in('', (r.request -> 'input')::text) AS named
WHERE r.request::text LIKE '%"longhouse-file:%'
FOR KEY SHARE OF s
ON CONFLICT DO NOTHING;
-- The events of a session from a capsule may name any file: it holds those that came with it.
DELETE FROM session_files held USING sessions s JOIN capsules c ON c.id = s.capsule
WHERE s.id = held.session_id AND (c.manifest -> 'files' -> held.digest) IS NULL;
SET CONSTRAINTS ALL IMMEDIATE;

-- Two words are no sessions: how far a copy has followed what was erased.
DELETE FROM projection_cursors c
WHERE c.session_id <> 'forgotten' AND NOT starts_with(c.session_id, 'forgotten ')
  AND NOT EXISTS (SELECT FROM sessions s WHERE s.id = c.session_id);
