-- What appends and the ledger pay for: conditions that call a trigger for nothing, entries of indexes that nobody needs,
-- and records that are sent as text. Tables are locked in the order in which an append does: it holds `sessions` when it
-- comes to the others.

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
