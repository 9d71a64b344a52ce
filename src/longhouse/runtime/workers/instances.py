"""The pool of agent instances: a template version with its strategy, tools and model, ready for a session."""

import asyncio
import uuid
from collections import defaultdict, deque
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Final

from longhouse import clock
from longhouse.agents.entrypoints import EntrypointError
from longhouse.agents.strategies.base import AgentRegistry, BaseAgent
from longhouse.agents.template import Template
from longhouse.errors import SetupError
from longhouse.models.protocol import Model

IDLE_FOR: Final = timedelta(minutes=10)
REMEMBERED: Final = 20
"""Status changes kept per instance."""

ModelFor = Callable[[Template], Awaitable[Model]]
"""Gives the model of a template."""


class InstanceStatus(StrEnum):
    IDLE = "IDLE"
    BUSY = "BUSY"
    RESETTING = "RESETTING"
    ERROR = "ERROR"
    STOPPED = "STOPPED"


MOVES: Final = {
    InstanceStatus.IDLE: {InstanceStatus.BUSY, InstanceStatus.STOPPED},
    InstanceStatus.BUSY: {InstanceStatus.RESETTING, InstanceStatus.ERROR},
    InstanceStatus.ERROR: {InstanceStatus.RESETTING},
    InstanceStatus.RESETTING: {InstanceStatus.IDLE},
    InstanceStatus.STOPPED: set[InstanceStatus](),
}


@dataclass
class Instance:
    """One template version kept warm; it serves one session at a time."""

    id: str
    template: Template
    strategy: BaseAgent
    model: Model
    status: InstanceStatus = InstanceStatus.IDLE
    session_id: str | None = None
    last_used_at: datetime = field(default_factory=clock.now)
    served: int = 0
    failed: int = 0
    history: deque[tuple[InstanceStatus, datetime]] = field(default_factory=lambda: deque(maxlen=REMEMBERED))
    """Recent status changes; some last too short to be seen otherwise."""

    def __post_init__(self) -> None:
        self.history.append((self.status, clock.now()))

    def move(self, status: InstanceStatus) -> None:
        if status not in MOVES[self.status]:
            raise ValueError(f"an instance cannot go from {self.status} to {status}")
        self.status = status
        self.history.append((status, clock.now()))

    def acquire(self, session_id: str) -> None:
        self.move(InstanceStatus.BUSY)
        self.session_id = session_id

    def release(self, *, failed: bool = False) -> None:
        """The session finished or paused, or an exception ended the run."""
        if failed:
            self.move(InstanceStatus.ERROR)
            self.failed += 1
        self.move(InstanceStatus.RESETTING)
        self.session_id = None
        self.last_used_at = clock.now()
        self.served += 1
        self.move(InstanceStatus.IDLE)


class InstancePool:
    """Instances by template version, built on demand and kept while in use."""

    def __init__(self, model_for: ModelFor, packages: Sequence[str] = ()) -> None:
        self._model_for = model_for
        self._packages = packages
        self._instances: dict[str, list[Instance]] = defaultdict(list)
        self.stopped: list[Instance] = []
        """Retired instances, until the registry has written them."""
        self.changed = asyncio.Event()
        """Set when an instance has another status; the registry clears it."""

    @property
    def instances(self) -> list[Instance]:
        return [instance for group in self._instances.values() for instance in group]

    @asynccontextmanager
    async def acquired(self, template: Template, session_id: str) -> AsyncIterator[Instance]:
        idle = (one for one in self._instances.get(template.ref, ()) if one.status is InstanceStatus.IDLE)
        instance = next(idle, None) or await self._build(template)
        instance.acquire(session_id)
        self.changed.set()
        try:
            yield instance
        except Exception:
            instance.release(failed=True)
            raise
        finally:
            if instance.status is InstanceStatus.BUSY:
                instance.release()
            self.changed.set()

    def retire_idle(self, now: datetime | None = None) -> None:
        """Stops the instances that were idle for long; without `now`, at shutdown, every idle one."""
        for instance in self.instances:
            is_old = now is None or now - instance.last_used_at > IDLE_FOR
            if is_old and instance.status is InstanceStatus.IDLE:
                instance.move(InstanceStatus.STOPPED)
                self._instances[instance.template.ref].remove(instance)
                self.stopped.append(instance)
                self.changed.set()
        self._instances = defaultdict(list, {ref: group for ref, group in self._instances.items() if group})

    async def _build(self, template: Template) -> Instance:
        instance = Instance(
            id=f"{template.name}-{uuid.uuid4()}",
            template=template,
            strategy=strategy_of(template.base_agent_class, self._packages),
            model=await self._model_for(template),
        )
        self._instances[template.ref].append(instance)
        return instance


def strategy_of(agent_class: str, packages: Sequence[str] = ()) -> BaseAgent:
    """The strategy of an agent class; one of these packages is imported if needed."""
    try:
        cls = AgentRegistry.load(agent_class, packages) if packages else AgentRegistry.get(agent_class)
    except EntrypointError as error:
        raise SetupError(f"The agent class {agent_class!r} cannot be used: {error}.") from None
    if cls is None:
        raise SetupError(f"There is no agent class {agent_class!r} in this process.")
    return cls()
