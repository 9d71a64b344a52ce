"""Runs the calls that are due, side by side, and hands their outcomes to the recorder."""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, Final

from longhouse import clock
from longhouse.agents import rules
from longhouse.errors import AlreadyReturned, Deposed
from longhouse.journal import events
from longhouse.journal.events import Fault
from longhouse.journal.session import Open
from longhouse.runtime.bus import Bus
from longhouse.runtime.reading import returned
from longhouse.runtime.recorder import Recorder, Run
from longhouse.store import files, journals, leases
from longhouse.store.database import PASSING, Database
from longhouse.tools.toolbox import Result, Toolbox

REPORT_AGAIN: Final = (0.5, 1, 2, 4, 8, 15, 30)
"""Seconds between tries to report an effect to a Postgres in trouble: without the report, a person is to be asked."""


@dataclass
class Performer:
    db: Database
    bus: Bus
    toolbox: Toolbox
    recorder: Recorder
    is_alive: Callable[[], bool] = lambda: True
    """Is our own heartbeat fresh? Asked right before an effect that must not happen twice."""
    background: Callable[[Coroutine[Any, Any, None]], object] = asyncio.ensure_future
    """Runs what must outlive a deposed run: the report of a `once` call that it had started."""

    async def perform(self, run: Run, due: Sequence[Open], memory_scope: str) -> None:
        """Runs calls side by side; their outcomes pass one recorder, in the order in which they arrive."""
        if any(call.effect == "once" for call in due) and not self.is_alive():
            # Others may be about to take this session: what must not happen twice is not begun now.
            await leases.let_go(self.db, run.lease)
            run.rested = True
            return
        doing = {asyncio.create_task(self._perform_one(run, call, memory_scope)): call for call in due}
        unrecorded = list(doing)
        try:
            while unrecorded:
                await asyncio.wait(unrecorded, return_when=asyncio.FIRST_COMPLETED)
                arrived = [task for task in unrecorded if task.done()]
                outcomes = [event for task in arrived for event in await self._kept(doing[task], task.result())]
                await self.record_outcomes(run, outcomes)
                unrecorded = [task for task in unrecorded if task not in arrived]
        finally:
            await self._leave(run, {task: doing[task] for task in unrecorded})

    async def _perform_one(self, run: Run, call: Open, memory_scope: str) -> Result:
        if call.effect == "once" and call.deadline and call.deadline < clock.now():
            # We were held up between intent and effect: whoever waited for it may have drawn conclusions.
            return Result(Fault(code="too_late", message=f"{call.tool} was not begun in time; nothing happened"))
        result = await self.toolbox.perform(call, run.session, memory_scope=memory_scope)
        if isinstance(result.outcome, Fault):
            tool = await self.toolbox.taken(call.tool, call.version)
            finishes = tool is not None and tool.finishes
            return Result(rules.told(run.session, call.tool, call.arguments, result.outcome, finishes=finishes))
        return result

    async def _leave(self, run: Run, doing: dict[asyncio.Task[Result], Open]) -> None:
        """Stops calls that we may not record. An effect cannot be called back: its outcome is still worth reporting."""
        stopped = [task for task, call in doing.items() if call.effect != "once"]
        for task in stopped:
            task.cancel()
        for task in doing.keys() - stopped:
            self.background(self._report(run, doing[task], task))
        await asyncio.gather(*stopped, return_exceptions=True)

    async def _kept(self, call: Open, result: Result) -> list[events.Stored | events.Returned]:
        """An outcome as events, the files that came with it kept first."""
        stored = []
        for made in result.made:
            digest = await files.put(self.db, made.content, made.media_type)
            fact = events.Stored(
                path=made.path, digest=digest, media_type=made.media_type, size=len(made.content), call=call.call
            )
            stored.append(fact)
        return [*stored, returned(call.call, result)]

    async def record_outcomes(self, run: Run, outcomes: Sequence[events.Stored | events.Returned]) -> None:
        """Records them, but for those of calls that were settled by somebody else meanwhile."""
        try:
            await self.recorder.record(run, outcomes)
        except Deposed:
            made = [one.digest for one in outcomes if isinstance(one, events.Stored)]
            await files.drop_unused(self.db, made, session=run.session.id)
            raise
        except AlreadyReturned:
            # Somebody from outside has settled one of these calls meanwhile: that outcome stands.
            run.session = await journals.catch_up(self.db, run.session)
            if still_open := [one for one in outcomes if one.call in run.session.open]:
                await self.record_outcomes(run, still_open)

    async def _report(self, run: Run, call: Open, doing: asyncio.Task[Result]) -> None:
        """What a `once` call came to, from a worker that no longer holds the session."""
        outcome = returned(call.call, await doing)
        trace = run.session.turn.trace if run.session.turn else ""
        for pause in (*REPORT_AGAIN, None):
            try:
                placed = await journals.add(self.db, run.session.id, [outcome], trace=trace)
            except (AlreadyReturned, journals.NotThere):
                return
            except PASSING:
                if pause is None:
                    raise
                await asyncio.sleep(pause)
            else:
                self.bus.appended(run.session.id, placed.seq)
                return
