"""Lists for operators: the agent instances and the workers of all processes."""

from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

import msgspec

from longhouse.store.database import Database


@dataclass(frozen=True, slots=True)
class InstanceRow:
    instance_id: str
    template_id: str
    version: int
    status: str
    node: str
    worker: str
    session_id: str | None
    last_used_at: datetime
    metrics: dict[str, Any]


@dataclass(frozen=True, slots=True)
class WorkerRow:
    worker_id: str
    node: str
    pid: int
    slots: int
    started_at: datetime
    beat_at: datetime
    is_alive: bool
    sessions: int
    """The number of sessions that it holds now."""


INSTANCES: Final = """
    SELECT instance_id, template_id, version, status, node, worker, session_id, last_used_at, metrics
    FROM agent_instances
    WHERE ($1::text IS NULL OR status = $1)
      AND ($2::text IS NULL OR template_id = $2)
      AND ($3::text IS NULL OR worker = $3)
      AND ($4::timestamptz IS NULL OR (last_used_at, instance_id) < ($4, $5))
    ORDER BY last_used_at DESC, instance_id DESC LIMIT $6
"""

# A session with a holder is always marked as due, and the index covers due sessions.
WORKERS: Final = """
    SELECT w.id, w.node, w.pid, w.slots, w.started_at, w.beat_at, w.beat_at > now() - interval '10 seconds',
           (SELECT count(*)::int FROM sessions s WHERE s.due AND s.holder = w.id)
    FROM workers w
    WHERE $1::timestamptz IS NULL OR (w.started_at, w.id) < ($1, $2)
    ORDER BY w.started_at DESC, w.id DESC LIMIT $3
"""

Place = tuple[datetime, str]
"""The last row of the previous page."""


async def instances(
    db: Database, *, status: str | None, template: str | None, worker: str | None, before: Place | None, limit: int
) -> list[InstanceRow]:
    """A page of agent instances, the last used first."""
    rows = await db.rows(INSTANCES, status, template, worker, *(before or (None, None)), limit)
    return [InstanceRow(**{**dict(row), "metrics": msgspec.json.decode(row["metrics"])}) for row in rows]


async def workers(db: Database, *, before: Place | None, limit: int) -> list[WorkerRow]:
    """A page of workers, the last started first."""
    return [WorkerRow(*row) for row in await db.rows(WORKERS, *(before or (None, None)), limit)]
