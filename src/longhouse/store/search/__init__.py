"""The search index in Postgres: postings, vectors and indexed documents."""
