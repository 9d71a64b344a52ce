-- Vectors are kept as bytes, little-endian numbers of half precision, and compared by the process that searches: no
-- extension is needed. The index is made again from the catalog.

TRUNCATE search_documents, search_postings, search_shards;
UPDATE search_state SET generation = -1, model = NULL, done = 0, todo = 0, changed_at = now() WHERE kind <> 'recipe';

-- The views follow the old column, whatever its type is, until they are made again for what this Postgres can show.
ALTER TABLE search_documents RENAME vector TO embedding;
ALTER TABLE search_documents ADD vector bytea;
-- A vector of ordinary length stays in its row: it is read with it, never alone.
ALTER TABLE search_documents ALTER vector SET STORAGE MAIN;
