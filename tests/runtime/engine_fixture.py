"""An engine put together by hand: real Postgres, a scripted model in this process, no worker around it."""

import asyncio
import uuid
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, ClassVar

from longhouse.agents.template import ExecutionPolicy, LLMPolicy, Template, ToolPolicy
from longhouse.app.publish import publish_classes, publish_files
from longhouse.journal import events
from longhouse.journal.events import Recorded
from longhouse.journal.messages import ToolResult
from longhouse.journal.session import Session
from longhouse.models.scripted import Playable, ScriptedModel
from longhouse.runtime.bus.local import Bus
from longhouse.runtime.engine import Engine
from longhouse.runtime.workers.instances import InstancePool
from longhouse.runtime.workers.trials import ON_TRIAL
from longhouse.store import journals, leases
from longhouse.store.catalog.catalog import Catalog
from longhouse.store.database import Database
from longhouse.store.leases import Lease
from longhouse.tools import BaseTool, ToolContext
from longhouse.tools.builtin.clock import ClockTool
from longhouse.tools.builtin.dialogue import ClarificationTool, FinalAnswerTool
from longhouse.tools.offering import Offering
from longhouse.tools.toolbox import Toolbox

AGENT = "worker_bee"


class Echo(BaseTool):
    """Say it back."""

    text: str = "echo"

    async def __call__(self, context: ToolContext, config: Any = None, **kwargs: Any) -> str:
        return self.text


class Broken(BaseTool):
    """Always fails."""

    async def __call__(self, context: ToolContext, config: Any = None, **kwargs: Any) -> str:
        raise ValueError("it is broken")


class Gate(BaseTool):
    """Waits until the test lets it pass; subclass it in the test."""

    begun: ClassVar[asyncio.Event]
    passed: ClassVar[asyncio.Event]
    times: ClassVar[list[str]]

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        cls.begun, cls.passed, cls.times = asyncio.Event(), asyncio.Event(), []

    async def __call__(self, context: ToolContext, config: Any = None, **kwargs: Any) -> str:
        self.times.append(context.key)
        self.begun.set()
        await self.passed.wait()
        return "passed"


BUILT_IN: tuple[type[BaseTool], ...] = (ClarificationTool, FinalAnswerTool, ClockTool, Echo, Broken)


@dataclass
class Room:
    db: Database
    script: Playable = ()
    tools: Iterable[type[BaseTool]] = ()
    """Beside those that are built in; all of them are the template's."""
    policy: ExecutionPolicy = field(default_factory=ExecutionPolicy)

    def __post_init__(self) -> None:
        classes = [*BUILT_IN, *self.tools]
        self.template = Template(
            name=AGENT,
            tool_policy=ToolPolicy(allowlist=tuple(cls.tool_name for cls in classes if cls is not ClockTool)),
            llm_policy=LLMPolicy(model="m"),
            execution_policy=self.policy,
        )
        self.bus, self.model, self.catalog = Bus(), ScriptedModel(self.script), Catalog(self.db)
        self.toolbox = Toolbox(classes, catalog=self.catalog)
        self.engine = self.another("w1")

    def another(self, worker: str, **parts: Any) -> Engine:
        """An engine of another worker, in the same room."""
        offering, pool = Offering(self.catalog, self.toolbox), InstancePool(self._model_for)
        return Engine(self.db, self.bus, self.catalog, self.toolbox, offering, pool, worker=worker, **parts)

    async def _model_for(self, template: Template) -> ScriptedModel:
        return self.model

    async def prompt(self, text: str = "Go", session_id: str | None = None, **extra: Any) -> str:
        """A message for a new session, or for this one."""
        await publish_classes(self.catalog, self.toolbox.classes)
        await publish_files(self.catalog, (), [self.template])
        prompted = events.Prompted(trace=uuid.uuid4().hex, content=(text,), **extra)
        if session_id:
            await journals.add(self.db, session_id, [prompted], trace=prompted.trace)
            return session_id
        opened = events.Opened(agent=AGENT, version=1, owner="local", conversation=uuid.uuid4().hex)
        placed = await journals.open(self.db, f"{AGENT}_{uuid.uuid4()}", opened, prompted, task=text)
        return placed.session_id

    async def claim(self, session_id: str, worker: str = "w1") -> Lease:
        lease = (await leases.claim(self.db, session_id, worker)).lease
        assert lease is not None
        return lease

    async def advance(self, session_id: str, engine: Engine | None = None, *, within: float = 20.0) -> Session:
        """Claims the session and moves it until it rests."""
        engine = engine or self.engine
        lease = await self.claim(session_id, engine.worker)
        async with asyncio.timeout(within):
            return await engine.advance(lease)

    async def run(self, text: str = "Go") -> Session:
        """One prompt, one session, until it rests."""
        return await self.advance(await self.prompt(text))

    async def answer(self, session_id: str, call: str, text: str) -> None:
        returned = events.Returned(call=call, outcome=events.Output(content=text), by="user")
        await journals.add(self.db, session_id, [returned], trace="")

    async def journal(self, session_id: str) -> list[Recorded]:
        return await journals.read(self.db, session_id)

    async def kinds(self, session_id: str) -> list[str]:
        return [events.kind_of(record.event) for record in await self.journal(session_id)]

    async def found(self, session_id: str, kind: type[events.Event]) -> list[Any]:
        return [record.event for record in await self.journal(session_id) if isinstance(record.event, kind)]

    async def outcomes(self, session_id: str) -> dict[str, events.Outcome]:
        return {one.call: one.outcome for one in await self.found(session_id, events.Returned)}

    async def until(self, session_id: str, kind: type[events.Event], count: int = 1) -> None:
        """Waits until the journal holds so many of a kind."""
        async with asyncio.timeout(10):
            while len(await self.found(session_id, kind)) < count:
                await asyncio.sleep(0.005)

    async def until_asked(self, times: int) -> None:
        """Waits until the model was asked so often."""
        async with asyncio.timeout(10):
            while len(self.model.bodies) < times:
                await asyncio.sleep(0.005)

    async def row(self, session_id: str) -> Any:
        return await self.db.row("SELECT * FROM sessions WHERE id = :id", id=session_id)

    def results(self, request: int = -1) -> list[str]:
        """What the tool messages of one request say."""
        return [one.content for one in self.model.bodies[request].messages if isinstance(one, ToolResult)]

    def offered(self, request: int = -1) -> list[str]:
        names = (bytes(spec).split(b'"name":"')[1].split(b'"')[0] for spec in self.model.bodies[request].tools)
        return [name.decode() for name in names]


async def under_way(
    room: Room, session_id: str, gate: type[Gate], engine: Engine | None = None
) -> asyncio.Task[object]:
    """A run that has begun the call of this gate."""
    running = asyncio.create_task(room.advance(session_id, engine))
    await asyncio.wait_for(gate.begun.wait(), 10)
    return running


async def lost_in_thought(
    room: Room, session_id: str, worker: str, *, breaks_off: bool, is_cause: bool = False
) -> None:
    """A run that does not survive its request to the model; the worker itself may, and say so. `is_cause`: it did not
    wait for the reply, but did something of its own."""
    asked, lease = len(room.model.bodies), await room.claim(session_id, worker)
    running = asyncio.create_task(room.another(worker).advance(lease))
    await room.until_asked(asked + 1)
    running.cancel()
    await asyncio.wait([running])
    if breaks_off:
        await leases.break_off(room.db, lease)
    if is_cause:
        await leases.note_trial(room.db, lease, ON_TRIAL)


async def until_waiting(db: Database) -> None:
    """Until a statement waits for a lock in this database."""
    waiting = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
    async with asyncio.timeout(10):
        while not await db.value(waiting):
            await asyncio.sleep(0.01)
