"""Runs the tool calls that are due concurrently and passes their outcomes to the recorder."""

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

import structlog
from msgspec.structs import replace

from longhouse import clock, tracing
from longhouse.agents import rules
from longhouse.agents.template import Template
from longhouse.errors import AlreadyReturned, Deposed, UnknownShape
from longhouse.journal import events
from longhouse.journal.events import Fault, Output
from longhouse.journal.open_calls import lost_in
from longhouse.journal.session import Open, Session, Turn
from longhouse.memory.recall import scope_of
from longhouse.memory.session_memory import SessionMemory
from longhouse.runtime.inbox import Inbox
from longhouse.runtime.recorder import Recorder, Run
from longhouse.runtime.steps.reply_handler import returned
from longhouse.store import files, journals, leases
from longhouse.store.database import PASSING, Database
from longhouse.tools.execution import done
from longhouse.tools.outcomes import LOST
from longhouse.tools.toolbox import CallToRemember, Result, Toolbox
from longhouse.tracing import Tracing

log = structlog.get_logger()

REPORT_AGAIN: Final = (0.5, 1, 2, 4, 8, 15, 30)
"""Seconds between retries of reporting an effect while Postgres fails: without the report, a person must be asked."""
RECORD_AGAIN: Final = (0.0, 0.25, 0.5, 1.0, 2.0, 4.0)
"""Seconds between reads of a session that was taken over, until the new holder marks the calls that we know about."""


OutcomeEvent = events.Stored | events.Returned | events.Noted | events.Decided


class Withheld(Exception):  # noqa: N818 - it says what happened to the call
    """The lease may be about to expire: a call that must not run twice was not begun."""


@dataclass
class ToolRunner:
    db: Database
    inbox: Inbox
    toolbox: Toolbox
    recorder: Recorder
    memory: SessionMemory = field(default_factory=SessionMemory)
    is_alive: Callable[[], bool] = lambda: True
    """Is our heartbeat fresh? Checked right before an effect that must not happen twice."""
    background: Callable[[Coroutine[Any, Any, None]], object] = asyncio.ensure_future
    """Runs tasks that must outlive a run that lost its lease: the report of a `once` call that it had started."""
    begun: set[tuple[str, str]] = field(default_factory=set)
    """(session, call) of `once` calls that this process has begun, until they are settled."""
    tracing: Tracing | None = None
    from_memory: Counter[str] = field(default_factory=Counter)
    """Calls that were answered from memory, counted by tool."""

    async def perform(self, run: Run, turn: Turn, due: Sequence[Open], template: Template) -> None:
        """Runs calls and records their outcomes."""
        self._forget(run.session, due)
        if any(call.effect == "once" for call in due) and not self.is_alive():
            await self._withdraw(run)
            return
        repeatable = [call for call in due if call.effect != "once" and call.seq <= run.loaded]
        if repeatable and (doubtful := [call for call in repeatable if await self._may_have_begun(run, call)]):
            await self.record_outcomes(run, [self._unknown_outcome(call, LOST) for call in doubtful])
            due = [call for call in due if call not in doubtful]
        if len(due) == 1 and due[0].effect != "once":
            await self._perform_alone(run, turn, due[0], template)
        else:
            await self._perform_together(run, turn, due, template)

    async def _perform_alone(self, run: Run, turn: Turn, call: Open, template: Template) -> None:
        """Runs a call that may be cancelled together with the run: it needs no task of its own."""
        result = await self._perform_one(run, turn, call, template)
        if result is None:
            await self._withdraw(run)
            return
        await self.record_outcomes(run, await self._events_of(call, result, template))
        if result.by_memory:
            self._count(run.session, [call])
        self._forget(run.session, [call])

    async def _perform_together(self, run: Run, turn: Turn, due: Sequence[Open], template: Template) -> None:
        """Runs calls concurrently; one recorder records their outcomes in the order of arrival."""
        doing = {asyncio.create_task(self._perform_one(run, turn, call, template)): call for call in due}
        unrecorded, withheld = list(doing), False
        try:
            while unrecorded:
                if len(unrecorded) == 1:
                    await done(unrecorded[0])
                else:
                    await asyncio.wait(unrecorded, return_when=asyncio.FIRST_COMPLETED)
                arrived = [task for task in unrecorded if task.done()]
                results = {task: result for task in arrived if (result := task.result())}
                withheld = withheld or len(results) < len(arrived)
                outcomes = [
                    event
                    for task, result in results.items()
                    for event in await self._events_of(doing[task], result, template)
                ]
                if outcomes:
                    await self.record_outcomes(run, outcomes)
                    self._count(run.session, [doing[task] for task, result in results.items() if result.by_memory])
                unrecorded = [task for task in unrecorded if task not in arrived]
                self._forget(run.session, [doing[task] for task in arrived])
        finally:
            await self._leave(run, {task: doing[task] for task in unrecorded})
        if withheld:
            await self._withdraw(run)

    async def _perform_one(self, run: Run, turn: Turn, call: Open, template: Template) -> Result | None:
        """None: the call was not begun and is left to the next lease holder."""
        begin, scope = partial(self._begin, run, call), scope_of(run.session, turn, template.memory_policy)
        remember = self.memory.is_on(template)
        try:
            with self._sending(run.session, turn, call):
                result = await self.toolbox.perform(
                    call, run.session, turn, memory_scope=scope, remember=remember, begin=begin
                )
        except Withheld:
            return None
        if isinstance(result.outcome, Fault) and not result.doubt:
            tool = await self.toolbox.resolve(call.tool, call.version)
            finishes = tool is not None and tool.finishes
            return Result(rules.explained(run.session, call.tool, call.arguments, result.outcome, finishes=finishes))
        return result

    def _sending(self, session: Session, turn: Turn, call: Open) -> AbstractContextManager[None]:
        """Requests that the tool makes carry the span of this call."""
        if self.tracing is None:
            return tracing.UNTRACED
        return self.tracing.sending(turn.prompted.traceparent, turn.trace, tracing.call_span(session.id, call.call))

    def _begin(self, run: Run, call: Open) -> Fault | None:
        """The last check before an effect that must not happen twice."""
        if call.deadline and call.deadline < clock.now():
            # The process stalled between intent and effect: whoever waited may have assumed that it did not happen.
            return _too_late(call)
        if run.is_lost or not self.is_alive():
            raise Withheld
        self.begun.add((run.session.id, call.call))
        return None

    def _forget(self, session: Session, calls: Sequence[Open]) -> None:
        """Removes these calls from `begun`: the journal has their outcomes."""
        if self.begun:
            self.begun.difference_update((session.id, call.call) for call in calls)

    async def forget_settled(self) -> None:
        """Removes calls from `begun` that we could not report and that others have settled: until then, nobody may
        claim that they had not begun."""
        for session_id, call in tuple(self.begun):
            with suppress(UnknownShape):  # a newer process advances the session, and may still settle the call
                if call not in (await journals.load(self.db, session_id)).open:
                    self.begun.discard((session_id, call))

    def unbegun(self, session: Session) -> tuple[str, ...]:
        """For a session whose lost run was in this process: the calls that certainly had not begun."""
        due = (call.call for call in session.due_calls if call.effect == "once")
        return tuple(call for call in due if (session.id, call) not in self.begun)

    async def _may_have_begun(self, run: Run, call: Open) -> bool:
        """Was a call that is recorded as repeatable begun by a worker that is lost, while its tool is now `once`?

        The journal decides, not our lease: the worker that took over from the lost one may have released normally.
        """
        tool = await self.toolbox.resolve(call.tool, call.version)
        if tool is None or tool.effect != "once":
            return False
        return bool(lost_in(await journals.read(self.db, run.session.id, after=call.seq), call))

    async def _withdraw(self, run: Run) -> None:
        """The lease may be about to expire: calls that must not run twice are left to the next holder."""
        run.rested = True
        if not await leases.let_go(self.db, run.lease):
            self.background(self.record_unbegun(run.session.id))

    async def _leave(self, run: Run, doing: dict[asyncio.Task[Result | None], Open]) -> None:
        """Cancels calls whose outcome we may not record. An effect cannot be undone: its outcome is still reported."""
        run.is_lost = bool(doing)
        stopped = [task for task, call in doing.items() if call.effect != "once"]
        for task in stopped:
            task.cancel()
        for task in doing.keys() - stopped:
            self.background(self._report(run, doing[task], task))
        await asyncio.gather(*stopped, return_exceptions=True)

    async def _events_of(self, call: Open, result: Result, template: Template) -> list[OutcomeEvent]:
        """The outcome as events; its files are stored first."""
        if result.doubt:
            return [replace(self._unknown_outcome(call, result.doubt), ended=result.has_ended)]
        stored: list[OutcomeEvent] = []
        for made in result.made:
            digest = await files.put(self.db, made.content, made.media_type)
            fact = events.Stored(
                path=made.path, digest=digest, media_type=made.media_type, size=len(made.content), call=call.call
            )
            stored.append(fact)
        noted = self._noted(call, result, result.reading, template) if result.reading else None
        return [*stored, returned(call.call, result), *([noted] if noted else ())]

    def _noted(self, call: Open, result: Result, reading: CallToRemember, template: Template) -> events.Noted | None:
        """The note by which the result is remembered."""
        if not isinstance(result.outcome, Output):
            return None
        noted = self.memory.noted(call.call, reading.about, call.arguments, result.outcome.content, template)
        if noted is None or result.writes or result.adds or result.made:
            # A tool that did more than read: a remembered result would leave that out, so the next call runs again.
            return noted
        return replace(noted, key=reading.key, revision=reading.revision, tool=f"{call.tool}@{call.version}")

    def _count(self, session: Session, answered: Sequence[Open]) -> None:
        for call in answered:
            self.from_memory[call.tool] += 1
            message = "a call was answered from memory; its tool did not run"
            log.info("answered_from_memory", message=message, session=session.id, call=call.call, tool=call.tool)

    def _unknown_outcome(self, call: Open, why: str) -> events.Decided:
        return events.Decided(call=call.call, decision="unknown", by=self.recorder.worker, comment=why)

    async def ask_about(self, run: Run, calls: Sequence[Open], why: str) -> None:
        """Leaves these calls to a person, who says what became of them, or whether they are tried again."""
        message = "calls are not tried again until a person has decided"
        log.warning("calls_left_to_person", message=message, session=run.session.id, tools=[one.tool for one in calls])
        await self.record_outcomes(run, [self._unknown_outcome(call, why) for call in calls])

    async def record_outcomes(self, run: Run, outcomes: Sequence[OutcomeEvent]) -> None:
        """Records the outcomes, except those of calls that were settled from outside in the meantime."""
        try:
            await self.recorder.record(run, outcomes)
        except Deposed:
            made = [one.digest for one in outcomes if isinstance(one, events.Stored)]
            await files.drop_unused(self.db, made, session=run.session.id)
            raise
        except AlreadyReturned:
            # One of these calls was settled from outside in the meantime: that outcome counts.
            run.session = await journals.catch_up(self.db, run.session)
            if still_open := [one for one in outcomes if one.call in run.session.open]:
                await self.record_outcomes(run, still_open)

    async def _report(self, run: Run, call: Open, doing: asyncio.Task[Result | None]) -> None:
        """Reports the outcome of a `once` call, from a worker that no longer holds the lease."""
        result = await doing
        if result is None or result.doubt:
            return  # not begun, which is recorded elsewhere; or begun, and its outcome is still unknown
        outcome = returned(call.call, result)
        for pause in (*REPORT_AGAIN, None):
            try:
                with suppress(AlreadyReturned, journals.NotThere):
                    await self.inbox.report(run.session.id, [outcome], trace=run.session.trace)
                self._forget(run.session, [call])
                return
            except PASSING:
                if pause is None:
                    raise
                await asyncio.sleep(pause)

    async def record_unbegun(self, session_id: str) -> None:
        """Records for a session that was taken over which `once` calls had not begun: no person needs to be asked."""
        for pause in RECORD_AGAIN:
            await asyncio.sleep(pause)
            try:
                if not await self._record_unbegun(session_id):
                    return
            except (LookupError, AlreadyReturned, *PASSING):
                continue  # somebody was faster, or Postgres failed: the next read shows what is left to record

    async def _record_unbegun(self, session_id: str) -> bool:
        """Is there something left to record?"""
        session = await journals.load(self.db, session_id)
        pending = (call for call in session.open.values() if call.call_kind == "tool" and call.effect == "once")
        pending = (call for call in pending if call.approve_by is None and not call.doubt)
        ours = [call for call in pending if (session_id, call.call) not in self.begun]
        if not ours:
            return False
        records = await journals.read(self.db, session_id, after=min(call.seq for call in ours) - 1)
        worker = self.recorder.worker
        if unbegun := [call for call in ours if call.uncertain and leases.is_lost_by(worker, lost_in(records, call))]:
            facts = [_unbegun_event(call, worker) for call in unbegun]
            await self.inbox.report(session_id, facts, trace=session.trace, head=session.head)
        # A call that is not uncertain yet may become so when the new holder records the takeover.
        return any(not call.uncertain for call in ours)


def _unbegun_event(call: Open, worker: str) -> events.Decided | events.Returned:
    """The call has not run. It may still run, unless its deadline has passed."""
    if call.deadline and call.deadline < clock.now():
        return events.Returned(call=call.call, outcome=_too_late(call))
    why = "the worker that was to begin it was held up before it did"
    return events.Decided(call=call.call, decision="did_not_happen", by=worker, comment=why)


def _too_late(call: Open) -> Fault:
    return Fault(code="too_late", message=f"{call.tool} was not begun in time; nothing happened")
