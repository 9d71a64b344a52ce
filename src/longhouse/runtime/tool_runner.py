"""Runs the calls that are due, side by side, and hands their outcomes to the recorder."""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

from longhouse import clock
from longhouse.agents import rules
from longhouse.errors import AlreadyReturned, Deposed, UnknownShape
from longhouse.journal import events
from longhouse.journal.events import Fault
from longhouse.journal.session import Open, Session
from longhouse.runtime.inbox import Inbox
from longhouse.runtime.recorder import Recorder, Run
from longhouse.runtime.reply_handler import returned
from longhouse.store import files, journals, leases
from longhouse.store.database import PASSING, Database
from longhouse.tools.toolbox import Result, Toolbox
from longhouse.tools.uncertain import LOST

REPORT_AGAIN: Final = (0.5, 1, 2, 4, 8, 15, 30)
"""Seconds between tries to report an effect to a Postgres in trouble: without the report, a person is to be asked."""
LOOK_AGAIN: Final = (0.0, 0.25, 0.5, 1.0, 2.0, 4.0)
"""Seconds between looks at a session that was taken from us, until its new holder asks what we can answer."""


class Withheld(Exception):  # noqa: N818 - it says what happened to the call
    """Others may be about to take the session: what must not happen twice was not begun."""


@dataclass
class ToolRunner:
    db: Database
    inbox: Inbox
    toolbox: Toolbox
    recorder: Recorder
    is_alive: Callable[[], bool] = lambda: True
    """Is our own heartbeat fresh? Asked right before an effect that must not happen twice."""
    background: Callable[[Coroutine[Any, Any, None]], object] = asyncio.ensure_future
    """Runs what must outlive a deposed run: the report of a `once` call that it had started."""
    begun: set[tuple[str, str]] = field(default_factory=set)
    """(session, call) of `once` calls that this process has begun, until they are settled."""

    async def perform(self, run: Run, due: Sequence[Open], memory_scope: str) -> None:
        """Runs calls side by side; their outcomes pass one recorder, in the order in which they arrive."""
        self._forget(run.session, due)
        if any(call.effect == "once" for call in due) and not self.is_alive():
            await self._withdraw(run)
            return
        if doubtful := [call for call in due if await self._may_have_begun(run, call)]:
            await self.record_outcomes(run, [self._doubted(call, LOST) for call in doubtful])
            due = [call for call in due if call not in doubtful]
        doing = {asyncio.create_task(self._perform_one(run, call, memory_scope)): call for call in due}
        unrecorded, withheld = list(doing), False
        try:
            while unrecorded:
                await asyncio.wait(unrecorded, return_when=asyncio.FIRST_COMPLETED)
                arrived = [task for task in unrecorded if task.done()]
                results = {task: result for task in arrived if (result := task.result())}
                withheld = withheld or len(results) < len(arrived)
                outcomes = [
                    event for task, result in results.items() for event in await self._kept(doing[task], result)
                ]
                if outcomes:
                    await self.record_outcomes(run, outcomes)
                unrecorded = [task for task in unrecorded if task not in arrived]
                self._forget(run.session, [doing[task] for task in arrived])
        finally:
            await self._leave(run, {task: doing[task] for task in unrecorded})
        if withheld:
            await self._withdraw(run)

    async def _perform_one(self, run: Run, call: Open, memory_scope: str) -> Result | None:
        """None: it was not begun, and others are to do it."""
        begin = partial(self._begin, run, call)
        try:
            result = await self.toolbox.perform(call, run.session, memory_scope=memory_scope, begin=begin)
        except Withheld:
            return None
        if isinstance(result.outcome, Fault) and not result.doubt:
            tool = await self.toolbox.resolve(call.tool, call.version)
            finishes = tool is not None and tool.finishes
            return Result(rules.told(run.session, call.tool, call.arguments, result.outcome, finishes=finishes))
        return result

    def _begin(self, run: Run, call: Open) -> Fault | None:
        """The last look before an effect that must not happen twice."""
        if call.deadline and call.deadline < clock.now():
            # We were held up between intent and effect: whoever waited for it may have drawn conclusions.
            return _too_late(call)
        if run.is_lost or not self.is_alive():
            raise Withheld
        self.begun.add((run.session.id, call.call))
        return None

    def _forget(self, session: Session, calls: Sequence[Open]) -> None:
        """Whatever was begun of these calls, the journal knows."""
        self.begun.difference_update((session.id, call.call) for call in calls)

    async def forget_settled(self) -> None:
        """Forgets what others have settled of calls that we could not report: until then, nobody may say that they
        had not begun."""
        for session_id, call in tuple(self.begun):
            with suppress(UnknownShape):  # a newer process goes on with it, and may yet settle it
                if call not in (await journals.load(self.db, session_id)).open:
                    self.begun.discard((session_id, call))

    def unbegun(self, session: Session) -> tuple[str, ...]:
        """Of a session that a run of our own was lost with: the calls that it surely had not begun."""
        due = (call.call for call in session.due_calls if call.effect == "once")
        return tuple(call for call in due if (session.id, call) not in self.begun)

    async def _may_have_begun(self, run: Run, call: Open) -> bool:
        """Was it made as one that may be run again, by a worker that is gone, and is known by now to be none?

        The journal is asked, and not our lease: whoever took over from that worker may have left in peace.
        """
        if call.effect == "once" or call.seq > run.loaded:
            return False
        tool = await self.toolbox.resolve(call.tool, call.version)
        if tool is None or tool.effect != "once":
            return False
        return bool(_loser(await journals.read(self.db, run.session.id, after=call.seq), call))

    async def _withdraw(self, run: Run) -> None:
        """Others may be about to take this session: what must not happen twice is left to them."""
        run.rested = True
        if not await leases.let_go(self.db, run.lease):
            self.background(self.disclaim(run.session.id))

    async def _leave(self, run: Run, doing: dict[asyncio.Task[Result | None], Open]) -> None:
        """Stops calls that we may not record. An effect cannot be called back: its outcome is still worth reporting."""
        run.is_lost = bool(doing)
        stopped = [task for task, call in doing.items() if call.effect != "once"]
        for task in stopped:
            task.cancel()
        for task in doing.keys() - stopped:
            self.background(self._report(run, doing[task], task))
        await asyncio.gather(*stopped, return_exceptions=True)

    async def _kept(self, call: Open, result: Result) -> list[events.Stored | events.Returned | events.Decided]:
        """An outcome as events, the files that came with it kept first."""
        if result.doubt:
            return [self._doubted(call, result.doubt)]
        stored = []
        for made in result.made:
            digest = await files.put(self.db, made.content, made.media_type)
            fact = events.Stored(
                path=made.path, digest=digest, media_type=made.media_type, size=len(made.content), call=call.call
            )
            stored.append(fact)
        return [*stored, returned(call.call, result)]

    def _doubted(self, call: Open, why: str) -> events.Decided:
        return events.Decided(call=call.call, decision="unknown", by=self.recorder.worker, comment=why)

    async def record_outcomes(
        self, run: Run, outcomes: Sequence[events.Stored | events.Returned | events.Decided]
    ) -> None:
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

    async def _report(self, run: Run, call: Open, doing: asyncio.Task[Result | None]) -> None:
        """What a `once` call came to, from a worker that no longer holds the session."""
        result = await doing
        if result is None or result.doubt:
            return  # not begun, which is told elsewhere; or begun, and what came of it is as open as it was
        outcome = returned(call.call, result)
        trace = run.session.turn.trace if run.session.turn else ""
        for pause in (*REPORT_AGAIN, None):
            try:
                await self.inbox.report(run.session.id, [outcome], trace=trace)
            except (AlreadyReturned, journals.NotThere):
                self._forget(run.session, [call])
                return
            except PASSING:
                if pause is None:
                    raise
                await asyncio.sleep(pause)
            else:
                self._forget(run.session, [call])
                return

    async def disclaim(self, session_id: str) -> None:
        """Says of a session that was taken from us which `once` calls we had not begun: nobody need be asked."""
        for pause in LOOK_AGAIN:
            await asyncio.sleep(pause)
            try:
                if not await self._disclaim(session_id):
                    return
            except (LookupError, AlreadyReturned, *PASSING):
                continue  # somebody was faster, or Postgres is in trouble: the next look shows what is left to say

    async def _disclaim(self, session_id: str) -> bool:
        """Is there something left to say?"""
        session = await journals.load(self.db, session_id)
        ours = [call for call in session.open.values() if self._is_in_question(session, call)]
        if not ours:
            return False
        told = await journals.read(self.db, session_id, after=min(call.seq for call in ours) - 1)
        worker = self.recorder.worker
        if unbegun := [call for call in ours if call.uncertain and leases.is_lost_by(worker, _loser(told, call))]:
            facts = [_disclaimed(call, worker) for call in unbegun]
            trace = session.turn.trace if session.turn else ""
            await self.inbox.report(session_id, facts, trace=trace, head=session.head)
        # A call that is not in question yet may be so as soon as the new holder says that it took over.
        return any(not call.uncertain for call in ours)

    def _is_in_question(self, session: Session, call: Open) -> bool:
        is_pending = call.kind == "tool" and call.approve_by is None and not call.doubt
        return is_pending and call.effect == "once" and (session.id, call.call) not in self.begun


def _loser(told: Sequence[events.Recorded], call: Open) -> str:
    """The worker that had this call to make when it was lost; empty where none was."""
    loser = ""
    for record in told:
        event = record.event
        if isinstance(event, events.Decided) and event.call == call.call:
            loser = ""
        elif isinstance(event, events.Resumed) and call.call not in event.unbegun:
            loser = loser or event.previous
    return loser


def _disclaimed(call: Open, worker: str) -> events.Decided | events.Returned:
    """It has not happened. It still may, unless its time is over."""
    if call.deadline and call.deadline < clock.now():
        return events.Returned(call=call.call, outcome=_too_late(call))
    why = "the worker that was to begin it was held up before it did"
    return events.Decided(call=call.call, decision="did_not_happen", by=worker, comment=why)


def _too_late(call: Open) -> Fault:
    return Fault(code="too_late", message=f"{call.tool} was not begun in time; nothing happened")
