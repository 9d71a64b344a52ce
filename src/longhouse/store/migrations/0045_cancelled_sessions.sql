-- Sessions whose only prompts were cancelled before a worker began: they had come to their end, and their rows did not say
-- so. There are few of them, and they are found by the index on states that few have.
UPDATE sessions s SET state = 'CANCELLED'
WHERE s.state = 'INITED' AND s.side <> 'external' AND NOT s.due AND s.holder IS NULL AND s.wake_at IS NULL
  AND s.waits_for IS NULL
  AND EXISTS (SELECT FROM journal j WHERE j.session_id = s.id AND j.kind = 'Cancelled');
