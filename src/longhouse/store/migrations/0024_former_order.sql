-- `sessions_queued` does its work. Apart from it, since this waits for whoever reads sessions: an index that was just
-- built would be lost with each attempt.
DROP INDEX sessions_due;
