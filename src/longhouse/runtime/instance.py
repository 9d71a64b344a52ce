"""The pool of warm templates: a template version with its strategy, its tools and its model, ready for a session."""

import uuid
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Final

from longhouse import clock
from longhouse.agents.strategy import Strategy
from longhouse.agents.template import Template
from longhouse.agents.tool import Tool
from longhouse.models.model import Model
from longhouse.tools.toolbox import Toolbox

IDLE_FOR: Final = timedelta(minutes=10)


class Status(StrEnum):
    IDLE = "IDLE"
    BUSY = "BUSY"
    RESETTING = "RESETTING"
    ERROR = "ERROR"
    STOPPED = "STOPPED"


MOVES: Final = {
    Status.IDLE: {Status.BUSY, Status.STOPPED},
    Status.BUSY: {Status.RESETTING, Status.ERROR},
    Status.ERROR: {Status.RESETTING},
    Status.RESETTING: {Status.IDLE},
    Status.STOPPED: set[Status](),
}


@dataclass
class Instance:
    """One template version kept warm; it serves one session at a time."""

    id: str
    template: Template
    strategy: Strategy
    tools: list[Tool]
    model: Model
    status: Status = Status.IDLE
    session_id: str | None = None
    last_used_at: datetime = field(default_factory=clock.now)
    served: int = 0

    def move(self, status: Status) -> None:
        if status not in MOVES[self.status]:
            raise ValueError(f"an instance cannot go from {self.status} to {status}")
        self.status = status

    def acquire(self, session_id: str) -> None:
        self.move(Status.BUSY)
        self.session_id = session_id

    def release(self) -> None:
        """The session finished or paused."""
        self.move(Status.RESETTING)
        self.cleanup()

    def recover(self) -> None:
        """The session ended in an exception: what it left behind is cleaned up before the next one."""
        self.move(Status.ERROR)
        self.move(Status.RESETTING)
        self.cleanup()

    def cleanup(self) -> None:
        self.session_id = None
        self.last_used_at = clock.now()
        self.served += 1
        self.move(Status.IDLE)

    def stop(self) -> None:
        self.move(Status.STOPPED)


class Pool:
    """Instances by template version, built on demand, kept while they are used."""

    def __init__(
        self, strategies: Mapping[str, Strategy], toolbox: Toolbox, model_for: Callable[[Template], Model]
    ) -> None:
        self._strategies = strategies
        self._toolbox = toolbox
        self._model_for = model_for
        self._instances: dict[str, list[Instance]] = defaultdict(list)

    @property
    def instances(self) -> list[Instance]:
        return [instance for group in self._instances.values() for instance in group]

    @contextmanager
    def acquired(self, template: Template, session_id: str) -> Iterator[Instance]:
        instance = self._idle(template) or self._build(template)
        instance.acquire(session_id)
        # Tools of MCP servers come and go: what is there now is what this run is offered.
        instance.tools = self._toolbox.offered(template.tools)
        try:
            yield instance
        except Exception:
            instance.recover()
            raise
        finally:
            if instance.status is Status.BUSY:
                instance.release()

    def retire_idle(self, now: datetime) -> None:
        for ref, group in list(self._instances.items()):
            for instance in [one for one in group if one.status is Status.IDLE and now - one.last_used_at > IDLE_FOR]:
                instance.stop()
                group.remove(instance)
            if not group:
                del self._instances[ref]

    def _idle(self, template: Template) -> Instance | None:
        return next((one for one in self._instances.get(template.ref, ()) if one.status is Status.IDLE), None)

    def _build(self, template: Template) -> Instance:
        instance = Instance(
            id=f"{template.name}-{uuid.uuid4()}",
            template=template,
            strategy=self._strategies[template.base_agent_class],
            tools=[],
            model=self._model_for(template),
        )
        self._instances[template.ref].append(instance)
        return instance
