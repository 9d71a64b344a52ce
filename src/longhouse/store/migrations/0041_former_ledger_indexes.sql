-- Those of before 0040. Readers of the ledger wait for this, for a moment. The primary key stays: processes of the release
-- before name it in ON CONFLICT.
DROP INDEX ledger_source;
DROP INDEX ledger_target;
DROP INDEX ledger_source_type;
DROP INDEX ledger_target_type;
DROP INDEX ledger_trace;
