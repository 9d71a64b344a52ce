"""The registry of agent instances: each worker writes its own. It may be lost: the workers write it again."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

import msgspec

from longhouse.store.database import Database


@dataclass(frozen=True, slots=True)
class RegisteredInstance:
    """An agent instance in the registry."""

    instance_id: str
    template_id: str
    version: int
    status: str
    session_id: str | None
    last_used_at: datetime
    metrics: dict[str, Any]


WRITE: Final = """
    INSERT INTO agent_instances
           (instance_id, template_id, version, status, node, worker, session_id, last_used_at, metrics)
    SELECT g.instance_id, g.template_id, g.version, g.status, $1, $2, g.session_id, g.last_used_at, g.metrics
    FROM unnest($3::text[], $4::text[], $5::int[], $6::text[], $7::text[], $8::timestamptz[], $9::jsonb[])
         AS g (instance_id, template_id, version, status, session_id, last_used_at, metrics)
    ON CONFLICT (instance_id) DO UPDATE SET
        status = EXCLUDED.status, session_id = EXCLUDED.session_id, last_used_at = EXCLUDED.last_used_at,
        metrics = EXCLUDED.metrics
"""

STATUSES: Final = "SELECT instance_id, status FROM agent_instances WHERE worker = $1"

# A worker that is not in the table `workers` is dead, and so are its instances.
STRIKE: Final = """
    UPDATE agent_instances i SET
        status = 'STOPPED', session_id = NULL,
        metrics = metrics || jsonb_build_object(
            'stopped_at', now(),
            'history', COALESCE(metrics -> 'history', '[]') || jsonb_build_object('status', 'STOPPED', 'at', now()))
    WHERE status <> 'STOPPED' AND worker <> $1 AND NOT EXISTS (SELECT FROM workers w WHERE w.id = i.worker)
    RETURNING instance_id
"""

FORGET: Final = """
    DELETE FROM agent_instances
    WHERE status = 'STOPPED' AND COALESCE((metrics ->> 'stopped_at')::timestamptz, last_used_at) < $1
"""


async def write(db: Database, entries: Sequence[RegisteredInstance], *, node: str, worker: str) -> None:
    """Writes the present state of these instances of `worker`."""
    await db.run(
        WRITE,
        node,
        worker,
        [entry.instance_id for entry in entries],
        [entry.template_id for entry in entries],
        [entry.version for entry in entries],
        [entry.status for entry in entries],
        [entry.session_id for entry in entries],
        [entry.last_used_at for entry in entries],
        [msgspec.json.encode(entry.metrics).decode() for entry in entries],
    )


async def statuses(db: Database, worker: str) -> dict[str, str]:
    """Instance id -> status, of one worker's instances."""
    return {row["instance_id"]: row["status"] for row in await db.rows(STATUSES, worker)}


async def strike(db: Database, worker: str) -> list[str]:
    """Marks the instances of dead workers as stopped; those of `worker`, the caller, are not touched."""
    return [row["instance_id"] for row in await db.rows(STRIKE, worker)]


async def forget(db: Database, before: datetime) -> None:
    """Deletes instances that were stopped before this time."""
    await db.run(FORGET, before)
