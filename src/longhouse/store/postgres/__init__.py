"""The Postgres we start ourselves, and all that it takes: an account, programs, a data folder, a life tied to ours."""

from longhouse.store.postgres.server import Postgres, open_postgres

__all__ = ["Postgres", "open_postgres"]
