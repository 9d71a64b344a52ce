-- Each record of the ledger was in five indexes: two of them said once more what kind of party spoke to which, and took two
-- fifths of the time of writing it. Now it is in three. Here they are built, while records wait; those of before leave
-- apart from this, since readers wait for that.

-- Calls of tools and models are most of a conversation, and so are the records of an agent: who asks for those reads the
-- conversation in its order. What people said, and what documents were asked for, is rare in it.
CREATE INDEX ledger_rare_source ON ledger (conversation_id, owner, source_type, timestamp)
    WHERE source_type IN ('user', 'knowledge');
CREATE INDEX ledger_rare_target ON ledger (conversation_id, owner, target_type, timestamp)
    WHERE target_type IN ('user', 'knowledge');
-- Without the moment: the records of a trace share their entry.
CREATE INDEX ledger_of_trace ON ledger (trace_id);
