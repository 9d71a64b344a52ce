"""Routes for operators: catalog, search, keys, sessions, workers."""
