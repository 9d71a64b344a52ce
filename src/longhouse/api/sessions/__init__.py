"""Sessions as resources: read, follow, answer, cancel, forget."""
