-- Numbers of versions are never given twice: a process keeps what it has read of a version, and a session names the one
-- that it works with, also after its tool or template was erased with its owner. A name that is new begins after these.
ALTER TABLE catalog_generation ADD COLUMN erased_upto integer NOT NULL DEFAULT 0;
