"""Followers of sessions look at Postgres from time to time: a hint may have been lost."""

from typing import Final

from longhouse.journal.session import State
from longhouse.runtime.bus.items import Gone, JournalGrew, SubagentsChanged
from longhouse.runtime.bus.local import Bus
from longhouse.store import leases
from longhouse.store.database import Database

LOOK_EVERY: Final = 0.5
"""Seconds between two looks."""


async def look(db: Database, bus: Bus) -> None:
    """Tells the followers in this process how far their sessions have come."""
    followed = bus.followed
    heads = await leases.heads(db, followed) if followed else {}
    for session_id in followed:
        if session_id not in heads:
            bus.deliver(session_id, Gone())
            continue
        head, state = heads[session_id]
        bus.deliver(session_id, JournalGrew(head))
        if state == State.WAITING_FOR_AGENT:
            bus.deliver(session_id, SubagentsChanged())
