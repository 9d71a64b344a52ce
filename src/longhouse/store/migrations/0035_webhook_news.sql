-- Whose events a webhook is told does not depend on clocks any more, and who has something to tell is written down.

-- The order of all events of the house, whichever process appends them: what happens after a webhook was made has a
-- greater number than it. NULL: written before this migration.
ALTER TABLE journal ADD COLUMN global_seq bigint;
CREATE SEQUENCE journal_global_seq OWNED BY journal.global_seq;
ALTER TABLE journal ALTER COLUMN global_seq SET DEFAULT nextval('journal_global_seq');

-- 0: made before this migration; then `told_since` says which of the events without a number it is told.
ALTER TABLE webhooks ADD COLUMN told_after bigint NOT NULL DEFAULT 0;
ALTER TABLE webhooks ALTER COLUMN told_after SET DEFAULT nextval('journal_global_seq');

-- Sessions in which something happened that webhooks may have to be told: whoever looks at a conversation deletes its
-- rows, in the transaction that writes what was found. Rows are only added by appends, which thus wait for nobody.
CREATE TABLE webhook_news (
    nth        bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    session_id text NOT NULL
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);
CREATE INDEX webhook_news_session ON webhook_news (session_id);

CREATE FUNCTION note_webhook_news() RETURNS trigger LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
BEGIN
    -- A turn has ended, somebody is asked, or nobody works on the session any more, be it without a further event.
    IF TG_OP = 'UPDATE' AND NOT (
        (NEW.head <> OLD.head AND NEW.state IN
            ('COMPLETED', 'FAILED', 'CANCELLED', 'WAITING_FOR_CLARIFICATION', 'WAITING_FOR_APPROVAL'))
        OR ((OLD.due OR OLD.holder IS NOT NULL) AND NOT NEW.due AND NEW.holder IS NULL)
    ) THEN
        RETURN NULL;
    END IF;
    IF EXISTS (SELECT FROM webhooks WHERE owner = NEW.owner AND status <> 'disabled') THEN
        INSERT INTO webhook_news (session_id) VALUES (NEW.id);
    END IF;
    RETURN NULL;
END
$$;

-- Postgres prepares a condition for each append anew: this one costs an append of a session at work 6 microseconds, all
-- that the function asks would cost it 17.
CREATE TRIGGER sessions_news AFTER UPDATE ON sessions FOR EACH ROW
    WHEN (NOT NEW.due OR NEW.state <> 'RESEARCHING')
    EXECUTE FUNCTION note_webhook_news();
-- A branch may begin with the end of a turn.
CREATE TRIGGER sessions_branch_news AFTER INSERT ON sessions FOR EACH ROW
    WHEN (NEW.head > NEW.inherited)
    EXECUTE FUNCTION note_webhook_news();

-- What the webhooks of before have not been told yet.
INSERT INTO webhook_news (session_id)
SELECT s.id FROM sessions s
LEFT JOIN projection_cursors c ON c.projection = 'webhooks' AND c.session_id = s.id
WHERE s.head > COALESCE(c.head, s.inherited, 0) AND s.updated_at > (
    SELECT min(w.told_since) - interval '1 hour' FROM webhooks w WHERE w.owner = s.owner AND w.status <> 'disabled'
);
