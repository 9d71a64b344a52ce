"""The catalog in Postgres: tools and templates in versions, and what operators have decided about them."""
