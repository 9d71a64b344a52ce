"""Writes the status of a worker's instances to the table `agent_instances`; turns never wait for it."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from datetime import datetime, timedelta
from typing import Any, Final

from longhouse import background, clock
from longhouse.runtime.workers.instances import Instance, InstancePool, InstanceStatus
from longhouse.store import registry
from longhouse.store.database import Database
from longhouse.store.registry import RegisteredInstance

WRITE_EVERY: Final = 0.2
"""Seconds between two writes, if there is anything to write."""
POLL_EVERY: Final = 1.0
"""Seconds between two reads of the table, for our own rows and those of other workers."""
FORGET_EVERY: Final = 60.0
KEPT_FOR: Final = timedelta(hours=1)
"""How long the row of a stopped instance is kept."""
LAST_WRITE: Final = 5.0
"""Timeout in seconds of the last write at shutdown: without it, other workers mark our instances as stopped."""

_Mark = tuple[InstanceStatus, str | None, int, int, datetime]


class InstanceRegistry:
    """A worker's instances as the table `agent_instances` shows them."""

    def __init__(self, db: Database, pool: InstancePool, worker: str) -> None:
        self._db = db
        self._pool = pool
        self._worker = worker
        self._node = socket.gethostname()
        self._written: dict[str, _Mark] = {}
        """The state of each instance at its last write."""
        self._reconcile_at = self._forget_at = 0.0

    @asynccontextmanager
    async def kept(self) -> AsyncIterator[None]:
        """Keeps the table up to date while the block runs; at its end no session is running, and all instances stop."""
        try:
            async with background.running("instance_roster", self._keep):
                yield
        finally:
            self._pool.retire_idle()
            await background.guarded("instance_roster", asyncio.wait_for(self.write(), LAST_WRITE))

    async def write(self) -> int:
        """Writes the instances that changed since the last write; returns how many."""
        stopped = list(self._pool.stopped)
        changed = [one for one in (*self._pool.instances, *stopped) if self._written.get(one.id) != _mark(one)]
        marks = {one.id: _mark(one) for one in changed}
        if changed:
            await registry.write(self._db, [self._entry(one) for one in changed])
            self._written |= marks
        for one in stopped:
            self._pool.stopped.remove(one)
            self._written.pop(one.id, None)
        return len(changed)

    async def reconcile(self) -> None:
        """Marks the instances of dead workers as stopped; finds rows of ours that others changed or that were lost."""
        await registry.stop_orphaned(self._db, self._worker)
        now = asyncio.get_running_loop().time()
        if now >= self._forget_at:
            await registry.forget(self._db, clock.now() - KEPT_FOR)
            self._forget_at = now + FORGET_EVERY
        shown = await registry.statuses(self._db, self._worker) if self._written else {}
        for instance_id, (status, *_) in list(self._written.items()):
            if shown.get(instance_id) != status:
                del self._written[instance_id]

    async def _keep(self) -> None:
        """Waits for a change or for the time to read the table, and writes."""
        with suppress(TimeoutError):
            async with asyncio.timeout_at(self._reconcile_at):
                await self._pool.changed.wait()
        now = asyncio.get_running_loop().time
        if now() >= self._reconcile_at:
            await self.reconcile()
            self._reconcile_at = now() + background.until_tick(POLL_EVERY)
        self._pool.changed.clear()
        if await self.write():
            await asyncio.sleep(WRITE_EVERY)

    def _entry(self, instance: Instance) -> RegisteredInstance:
        history = [{"status": status, "at": at} for status, at in instance.history]
        metrics: dict[str, Any] = {"served": instance.served, "failed": instance.failed, "history": history}
        if instance.status is InstanceStatus.STOPPED:
            metrics["stopped_at"] = history[-1]["at"]
        return RegisteredInstance(
            instance_id=instance.id,
            template_id=instance.template.name,
            version=instance.template.version,
            status=instance.status,
            node=self._node,
            worker=self._worker,
            session_id=instance.session_id,
            last_used_at=instance.last_used_at,
            metrics=metrics,
        )


def _mark(instance: Instance) -> _Mark:
    _, moved_at = instance.history[-1]
    return instance.status, instance.session_id, instance.served, instance.failed, moved_at
