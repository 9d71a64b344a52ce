"""Whose things a command means that names no owner: those that a request without an API key would mean."""

from longhouse.journal.session import LOCAL_OWNER
from longhouse.settings import Settings
from longhouse.store.access import keys
from longhouse.store.database import Database


async def default_owner(settings: Settings, db: Database) -> str | None:
    """The local owner while no API key is set; None once there are keys, since then an owner has to be named."""
    has_keys = settings.admin_key.get_secret_value().strip() or await keys.is_any_valid(db)
    return None if has_keys else LOCAL_OWNER
