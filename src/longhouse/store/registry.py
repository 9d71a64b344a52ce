"""The registry of agent instances: each worker writes its own. It may be lost: the workers write it again."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any, Final

import msgspec

from longhouse.store.database import Database
from longhouse.store.lists.pages import Position, page


class RegisteredInstance(msgspec.Struct, frozen=True):
    """An agent instance in the registry."""

    instance_id: str
    template_id: str
    version: int
    status: str
    node: str
    worker: str
    session_id: str | None
    last_used_at: datetime
    metrics: dict[str, Any]


COLUMNS: Final = "instance_id, template_id, version, status, node, worker, session_id, last_used_at, metrics"

WRITE: Final = f"""
    INSERT INTO agent_instances ({COLUMNS})
    SELECT {COLUMNS} FROM jsonb_populate_recordset(NULL::agent_instances, :entries)
    ON CONFLICT (instance_id) DO UPDATE SET
        status = EXCLUDED.status, session_id = EXCLUDED.session_id, last_used_at = EXCLUDED.last_used_at,
        metrics = EXCLUDED.metrics
"""

STATUSES: Final = "SELECT instance_id, status FROM agent_instances WHERE worker = :worker"

# A worker that is not in the table `workers` is dead, and so are its instances.
STOP_ORPHANED: Final = """
    UPDATE agent_instances i SET
        status = 'STOPPED', session_id = NULL,
        metrics = metrics || jsonb_build_object(
            'stopped_at', now(),
            'history', COALESCE(metrics -> 'history', '[]') || jsonb_build_object('status', 'STOPPED', 'at', now()))
    WHERE status <> 'STOPPED' AND worker <> :worker AND NOT EXISTS (SELECT FROM workers w WHERE w.id = i.worker)
"""

FORGET: Final = """
    DELETE FROM agent_instances
    WHERE status = 'STOPPED' AND COALESCE((metrics ->> 'stopped_at')::timestamptz, last_used_at) < :before
"""

FILTERS: Final = {"status": "status = :status", "template": "template_id = :template", "worker": "worker = :worker"}


async def write(db: Database, entries: Sequence[RegisteredInstance]) -> None:
    """Writes the present state of these instances."""
    await db.run(WRITE, entries=msgspec.json.encode(entries).decode())


async def statuses(db: Database, worker: str) -> dict[str, str]:
    """Instance id -> status, of one worker's instances."""
    return dict(await db.rows(STATUSES, worker=worker))


async def stop_orphaned(db: Database, worker: str) -> None:
    """Marks the instances of dead workers as stopped; those of `worker`, the caller, are not touched."""
    await db.run(STOP_ORPHANED, worker=worker)


async def forget(db: Database, before: datetime) -> None:
    """Deletes instances that were stopped before this time."""
    await db.run(FORGET, before=before)


async def instances(
    db: Database, *, before: Position | None, limit: int, **filters: str | None
) -> list[RegisteredInstance]:
    """A page of the instances of all workers, the last used first; `filters` are those of FILTERS."""
    select, by = f"SELECT {COLUMNS} FROM agent_instances", "last_used_at, instance_id"
    rows = await page(db, select, by=by, before=before, limit=limit, conditions=FILTERS, **filters)
    return [RegisteredInstance(*(*row[:-1], msgspec.json.decode(row["metrics"]))) for row in rows]
