-- The turns that clients of a key have begun with their requests, on the day and in the month of `turns_on`. Only keys with
-- a budget of turns are counted here; what they have used is still told by `usage_of_key`.
ALTER TABLE api_keys
    ADD COLUMN turns_on date,
    ADD COLUMN turns_today bigint NOT NULL DEFAULT 0,
    ADD COLUMN turns_this_month bigint NOT NULL DEFAULT 0;

CREATE FUNCTION turns_of_key(asked text, OUT today bigint, OUT this_month bigint) LANGUAGE sql VOLATILE AS $$
    SELECT GREATEST(u.turns_per_day, CASE WHEN k.turns_on = now.day THEN k.turns_today END),
           GREATEST(u.turns_per_month, CASE WHEN k.turns_on >= date_trunc('month', now.day) THEN k.turns_this_month END)
    FROM api_keys k, usage_of_key(k.id) u, (SELECT (now() AT TIME ZONE 'UTC')::date AS day) now
    WHERE k.id = asked
$$;

-- The budget of turns that a key has used up, or NULL. The key is locked until the commit: whoever waited for it sees what
-- was taken meanwhile. A key is locked before sessions, as everywhere.
CREATE FUNCTION spent_turns(asked text) RETURNS text LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    k api_keys;
    taken record;
BEGIN
    SELECT * INTO k FROM api_keys WHERE id = asked FOR NO KEY UPDATE;
    SELECT * INTO taken FROM turns_of_key(asked);
    RETURN CASE WHEN k.turns_per_month <= taken.this_month THEN 'turns_per_month'
                WHEN k.turns_per_day <= taken.today THEN 'turns_per_day' END;
END
$$;
