"""Writes journals as agents would leave them, with the real statements and without any agent."""

import uuid
from typing import Any

from longhouse import clock
from longhouse.journal import events
from longhouse.journal.events import Event, Recorded
from longhouse.journal.fold import fold
from longhouse.store import journals, leases
from longhouse.store.database import Database
from server_helpers import returned, started, used


class Scribe:
    def __init__(self, db: Database) -> None:
        self.db = db
        self._leases: dict[str, leases.Lease] = {}
        self._prompts: dict[str, journals.Placed] = {}

    async def prompt(
        self, agent: str, text: str, *, conversation: str = "12345", side: events.Side = "root", owner: str = "local",
        label: str = "", **extra: Any,
    ) -> str:  # fmt: skip
        """Opens or finds the session and prompts it; returns its id."""
        opened = events.Opened(agent=agent, version=1, owner=owner, conversation=conversation, side=side, label=label)
        prompted = events.Prompted(trace=uuid.uuid4().hex, content=(text,), **extra)
        placed = await journals.open(self.db, f"{agent}_{uuid.uuid4()}", opened, prompted, task=text)
        self._prompts[placed.session_id] = placed
        return placed.session_id

    async def record(self, session_id: str, *new: Event) -> None:
        """What the worker that holds the session appends."""
        if session_id not in self._leases:
            lease = (await leases.claim(self.db, session_id, "scribe")).lease
            assert lease is not None
            self._leases[session_id] = lease
        before, at = await journals.load(self.db, session_id), clock.now()
        after = fold((Recorded(seq=before.head + 1 + n, at=at, event=event) for n, event in enumerate(new)), before)
        fence = self._leases[session_id].fence
        await journals.append(self.db, after, new, fence=fence, worker="scribe", at=at, rest=None)

    async def start(self, session_id: str) -> None:
        await self.record(session_id, started(self._prompts[session_id].seq))

    async def use(self, session_id: str, tool: str, result: str) -> None:
        """One step with one call."""
        call = f"{(await journals.load(self.db, session_id)).iteration + 1}-action-0"
        await self.record(session_id, events.Replied(), used(call, tool=tool), returned(call, result))

    async def answer(self, session_id: str, text: str) -> None:
        await self.record(session_id, events.Replied(text=text), events.Finished(answer=text))

    async def turn(self, agent: str, text: str, answer: str, **where: Any) -> str:
        """A whole turn: prompt and answer."""
        session_id = await self.prompt(agent, text, **where)
        await self.start(session_id)
        await self.answer(session_id, answer)
        return session_id

    async def task(self, agent: str, text: str, answer: str, **where: Any) -> str:
        """A whole turn of a sub-agent."""
        return await self.turn(agent, text, answer, side="sub", sender="master", **where)
