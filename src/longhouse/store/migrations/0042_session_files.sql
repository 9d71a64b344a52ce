-- Which session holds which file. The bytes are kept once for all, by their digest: who may read them, and how long they
-- are kept, is said here alone. Rows are made of the events by the database itself, so that those that a process of an
-- earlier release appends have theirs too.
CREATE TABLE session_files (
    -- A branch gets its events before its row: it is looked at when both are there.
    session_id text NOT NULL REFERENCES sessions ON DELETE CASCADE DEFERRABLE INITIALLY DEFERRED,
    digest     text NOT NULL,
    media_type text,             -- as this session was sent it; NULL: written by an earlier release
    PRIMARY KEY (session_id, digest)
);
CREATE INDEX session_files_digest ON session_files (digest);

-- The files that the body of an event names: the file that is stored, or the images of messages. In a text that somebody
-- wrote a quote is escaped, so that no text is taken for the address of an image.
CREATE FUNCTION files_in(kind text, body text) RETURNS TABLE (digest text, media_type text) LANGUAGE sql IMMUTABLE AS $$
    SELECT stored ->> 'digest', stored ->> 'media_type'
    -- Other bodies are not read as JSON: what people write may have escapes that Postgres has no text for.
    FROM (SELECT CASE WHEN kind = 'Stored' THEN body::json END AS stored) AS event
    WHERE stored ->> 'digest' IS NOT NULL
    UNION ALL
    SELECT named[1], named[2]
    FROM regexp_matches(
        body, '"(?:image_)?url":"longhouse-file:([0-9a-f]{64})"(?:,"media_type":"([a-z0-9.+/-]+)")?', 'g'
    ) AS named
    WHERE kind <> 'Stored'
$$;

CREATE FUNCTION hold_files() RETURNS trigger LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
DECLARE
    body text := NEW.body::text;
BEGIN
    IF NEW.body_digest IS NOT NULL THEN
        SELECT convert_from(f.content, 'UTF8') INTO body FROM files f WHERE f.digest = NEW.body_digest;
    END IF;
    INSERT INTO session_files SELECT NEW.session_id, named.digest, named.media_type FROM files_in(NEW.kind, body) AS named
    ON CONFLICT DO NOTHING;
    RETURN NULL;
END
$$;
-- What a request of /v1/responses brought along may be in no journal.
CREATE FUNCTION hold_files_of_response() RETURNS trigger LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
BEGIN
    INSERT INTO session_files
    SELECT NEW.session_id, named.digest, named.media_type FROM files_in('', (NEW.request -> 'input')::text) AS named
    ON CONFLICT DO NOTHING;
    RETURN NULL;
END
$$;

CREATE TRIGGER responses_files AFTER INSERT ON responses FOR EACH ROW
    WHEN (NEW.request::text LIKE '%"longhouse-file:%') EXECUTE FUNCTION hold_files_of_response();
CREATE TRIGGER journal_files AFTER INSERT ON journal FOR EACH ROW
    WHEN (NEW.kind = 'Stored' OR NEW.kind = 'Prompted'
          AND (NEW.body_digest IS NOT NULL OR NEW.body::text LIKE '%longhouse-file:%'))
    EXECUTE FUNCTION hold_files();
