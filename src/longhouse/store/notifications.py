"""Notifications between processes on one database: each on a connection of its own, never in a journal's commit."""

from collections.abc import Callable
from typing import Final

import asyncpg

LARGEST: Final = 7_900
"""Bytes of a notification; Postgres refuses 8,000."""
NOTIFY_WITHIN: Final = 5.0
"""Seconds; a connection that takes longer is dead."""
CHANNEL: Final = "SELECT 'longhouse_' || md5(current_database() || '/' || current_schema())"


async def listen(connection: asyncpg.Connection, heard: Callable[[str], None]) -> str:
    """Calls `heard` with each notification of this database's schema; returns the channel's name."""
    channel = str(await connection.fetchval(CHANNEL))
    await connection.add_listener(channel, lambda *notification: heard(str(notification[-1])))
    return channel


async def notify(connection: asyncpg.Connection, channel: str, payload: str) -> None:
    await connection.execute("SELECT pg_notify($1, $2)", channel, payload, timeout=NOTIFY_WITHIN)
