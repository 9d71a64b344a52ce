"""What agents remember: files, documents, the ledger."""
