"""The catalog in Postgres: versions of tools and templates, and the security overlays of operators."""
