"""The search index in Postgres: postings, vectors, and the texts they stand for."""
