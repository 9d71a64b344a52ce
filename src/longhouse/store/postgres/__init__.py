"""The embedded Postgres: its account, its programs, its data folder, and a process that ends with Longhouse."""

from longhouse.store.postgres.server import Postgres, holds_data, open_postgres, require_data

__all__ = ["Postgres", "holds_data", "open_postgres", "require_data"]
