"""The loop: read the journal, fold it, decide, record, act, record the outcome; until the session rests."""

import asyncio
import random
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

import structlog

from longhouse import clock
from longhouse.agents import rules
from longhouse.agents.delegation import narrowed, within
from longhouse.agents.template import Template
from longhouse.errors import AlreadyReturned, ProviderError
from longhouse.journal import events
from longhouse.journal.events import Event, Fault, Recorded
from longhouse.journal.fold import fold
from longhouse.journal.session import AGENT_FAILED, Open, Session
from longhouse.runtime.bus import Bus, Facts, Stir
from longhouse.runtime.condense import condensed
from longhouse.runtime.delegate import Begun, Delegates, PriorOf
from longhouse.runtime.instance import Instance, Pool
from longhouse.runtime.listen import listen
from longhouse.runtime.reading import Reading, in_order, returned
from longhouse.store import delegations, files, journals, leases
from longhouse.store.catalog import Catalog
from longhouse.store.database import Database
from longhouse.store.delegations import Recording
from longhouse.store.leases import Lease
from longhouse.tools.offering import Offering
from longhouse.tools.toolbox import Result, Toolbox

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Patience:
    """How long provider trouble is waited out, in seconds."""

    attended: float = 60.0
    """While a client waits for the answer."""
    unattended: float = 900.0
    first: float = 0.5
    longest: float = 15.0


@dataclass(slots=True)
class Run:
    """One worker's hold on one session, from claim to rest."""

    lease: Lease
    session: Session
    loaded: int
    template: Template | None = None
    """That of the turn, once it is known."""
    rested: bool = False
    attempts: int = 0
    troubled_at: datetime | None = None


@dataclass
class Engine:
    db: Database
    bus: Bus
    catalog: Catalog
    toolbox: Toolbox
    offering: Offering
    pool: Pool
    worker: str
    patience: Patience = field(default_factory=Patience)
    is_alive: Callable[[], bool] = lambda: True
    """Is our own heartbeat fresh? Asked right before an effect that must not happen twice."""
    background: Callable[[Coroutine[Any, Any, None]], object] = asyncio.ensure_future
    """Runs what must outlive a deposed run: the report of a `once` call that it had started."""
    prior: PriorOf | None = None
    """What is known elsewhere of a conversation that is met for the first time."""
    stopping: bool = False

    def __post_init__(self) -> None:
        self.delegates = Delegates(self.catalog, self.toolbox, self.prior)

    async def advance(self, lease: Lease) -> Session:
        """Moves one session until it rests, waits for its provider, or we are shutting down."""
        session = await journals.load(self.db, lease.session_id, lease.head)
        run = Run(
            lease=lease,
            session=session,
            loaded=session.head,
            attempts=lease.attempts,
            troubled_at=lease.troubled_at,
        )
        if lease.previous:
            await self.record(run, [events.Resumed(worker=self.worker, previous=lease.previous)])
        while not run.rested:
            if self.stopping:
                await leases.let_go(self.db, lease)
                break
            await self._move(run)
        await self._snapshot(run)
        return run.session

    async def _move(self, run: Run) -> None:
        """One turn as far as it goes, or the end of the run."""
        session = run.session
        if not session.can_move:
            if late := _unapproved(session, clock.now()):
                await self.record(run, late)
            else:
                await self._rest(run)
            return
        template = await self._template(session)
        if template is None:
            reason = f"the agent {session.agent!r} is not known here any more"
            await self.give_up(run, reason, "template_not_found")
            return
        run.template = template
        async with self.pool.acquired(template, session.id) as instance:
            if not session.is_running:
                await self._start(run, instance)
            while run.session.is_running and run.session.can_move and not run.rested and not self.stopping:
                await self._step(run, instance)

    async def _template(self, session: Session) -> Template | None:
        """The template of the running turn, or of the next: what was asked for, what is pinned, or what is active."""
        shelf = self.catalog.templates
        if session.turn and session.is_running:
            return await shelf.find(session.agent, session.turn.version)
        if asked := session.queue[0].prompt.version:
            return await shelf.find(session.agent, asked)
        opened = await shelf.find(session.agent, session.opened_version)
        if opened and opened.follow == "pinned":
            return opened
        return await shelf.find(session.agent)

    async def give_up(self, run: Run, reason: str, code: str) -> None:
        """Ends a turn that cannot be worked on; one that had not started is started only to be ended."""
        end = events.Failed(reason=reason, code=code)
        if run.session.is_running:
            await self.record(run, [*_abandoned(run.session, reason), end])
            return
        limits = events.Limits(max_iterations=0, max_clarifications=0, time_budget=0)
        await self.record(run, [_started(run.session, version=0, instance="", limits=limits), end])

    async def _start(self, run: Run, instance: Instance) -> None:
        template, prompt = instance.template, run.session.queue[0].prompt
        started = _started(
            run.session,
            version=template.version,
            instance=instance.id,
            limits=within(template.execution_policy.limits, prompt.budget),
            rights=narrowed(prompt.rights, template),
            cleaned=template.reset_policy.cleaned,
        )
        await self.record(run, [started])

    async def _step(self, run: Run, instance: Instance) -> None:
        """Perform the calls that are due, or end what is over, or else think."""
        assert run.session.turn is not None
        if due := run.session.due_calls:
            await self._perform(run, due, instance.template.memory_policy.scope)
        elif run.session.turn.verdict:
            # The last call beside the finishing one has returned from outside: nothing is left but the end.
            await self.record(run, [])
        elif end := rules.overdue(run.session.turn, clock.now()):
            code, reason = end
            await self.record(run, [events.Failed(reason=reason, code=code)])
        else:
            await self._think(run, instance)

    async def _think(self, run: Run, instance: Instance) -> None:
        session = run.session
        assert session.turn is not None
        template = instance.template
        tools = await self.offering.tools(session, template)
        offered = in_order(session, rules.open_tools(session, template, tools, clock.now()))
        request = instance.strategy.propose(session, template, offered)
        try:
            if summary := await condensed(session, template, instance.model, request.body):
                await self.record(run, [summary])
                return
            reading = Reading(self.toolbox, session, request, offered, template.execution_policy.must_delegate)
            # What may be sent back is not shown before: nobody could take it back from the client.
            reply = await listen(
                self.db,
                self.bus,
                instance.model,
                request,
                session=session,
                fence=run.lease.fence,
                shows_answer=not reading.is_alone,
            )
            new = await reading.read(instance.strategy, reply)
        except ProviderError as error:
            await self._endure(run, error)
            return
        await self.record(run, new)

    async def _perform(self, run: Run, due: Sequence[Open], memory_scope: str) -> None:
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
                await self._record_outcomes(run, outcomes)
                unrecorded = [task for task in unrecorded if task not in arrived]
        finally:
            await self._leave(run, {task: doing[task] for task in unrecorded})

    async def _perform_one(self, run: Run, call: Open, memory_scope: str) -> Result:
        if call.effect == "once" and call.deadline and call.deadline < clock.now():
            # We were held up between intent and effect: whoever waited for it may have drawn conclusions.
            return Result(Fault(code="too_late", message=f"{call.tool} was not begun in time; nothing happened"))
        result = await self.toolbox.perform(call, run.session, memory_scope=memory_scope)
        if isinstance(result.outcome, Fault):
            return Result(rules.told(run.session, call.tool, call.arguments, result.outcome))
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

    async def _record_outcomes(self, run: Run, outcomes: Sequence[events.Stored | events.Returned]) -> None:
        try:
            await self.record(run, outcomes)
        except AlreadyReturned:
            # Somebody from outside has settled one of these calls meanwhile: that outcome stands.
            run.session = await journals.catch_up(self.db, run.session)
            if still_open := [one for one in outcomes if one.call in run.session.open]:
                await self._record_outcomes(run, still_open)

    async def _report(self, run: Run, call: Open, doing: asyncio.Task[Result]) -> None:
        """What a `once` call came to, from a worker that no longer holds the session."""
        outcome = returned(call.call, await doing)
        trace = run.session.turn.trace if run.session.turn else ""
        try:
            placed = await journals.add(self.db, run.session.id, [outcome], trace=trace)
        except AlreadyReturned:
            return
        self.bus.appended(run.session.id, placed.seq)

    async def _endure(self, run: Run, error: ProviderError) -> None:
        """Lets the session sleep until the provider may have recovered; past all patience, ends the turn in words."""
        now = clock.now()
        run.troubled_at = run.troubled_at or now
        root = run.session.turn.root if run.session.turn else ""
        attended = self.bus.is_followed(run.session.id) or self.bus.is_followed(root)
        patience = self.patience.attended if attended else self.patience.unattended
        pause = _pause(self.patience, run.attempts, error.retry_after)
        if not error.retryable or (now - run.troubled_at).total_seconds() + pause > patience:
            log.warning("a model failed", session=run.session.id, attempts=run.attempts + 1, error=str(error))
            await self.record(run, [events.Failed(reason=str(error), code="provider_error")])
            return
        log.info("a model is in trouble", session=run.session.id, attempt=run.attempts + 1, error=str(error))
        run.rested = await leases.wait_out(
            self.db, run.lease, head=run.session.head, wake_at=now + timedelta(seconds=pause)
        )
        if run.rested:
            # A hint only: the sweeper fires `wake_at` too.
            asyncio.get_running_loop().call_later(pause + 0.01, self.bus.wake, run.session.id)
        else:
            await self._look_again(run)

    async def _rest(self, run: Run) -> None:
        session = run.session
        run.rested = await leases.rest(
            self.db,
            run.lease,
            head=session.head,
            state=session.state,
            fingerprint=session.rest_mark,
            wake_at=session.wake_at,
        )
        if not run.rested:
            await self._look_again(run)

    async def _look_again(self, run: Run) -> None:
        """We may not let go: somebody appended meanwhile, or else the lease is not ours any more."""
        before, run.session = run.session, await journals.catch_up(self.db, run.session)
        run.rested = run.session.head == before.head

    async def record(self, run: Run, new: Sequence[Event]) -> None:
        """Appends, with what follows from it at once; asks to rest in the same statement when nothing is left to do."""
        at, before = clock.now(), run.session
        after, settled = _settled(before, new, at)
        begun = await self.delegates.begun(after, run.template, settled) if run.template else None
        try:
            if begun:
                after, appended = await self._begin(run, before, new, begun, at)
            elif delegations.ends_for_another(before, after):
                appended = await self._end(run, before, after, settled, at)
            else:
                appended = await self._append(run, before, after, settled, at)
        except delegations.Written:
            run.session = await journals.catch_up(self.db, before)
            return
        run.attempts, run.troubled_at = 0, None
        run.rested = appended.rested
        if appended.recorded[0].seq == before.head + 1:
            run.session = after
        else:
            run.session = await journals.catch_up(self.db, before)
        self.bus.publish(run.session.id, Facts(appended.recorded))
        if run.session.turn and run.session.turn.root:
            self.bus.publish(run.session.turn.root, Stir())

    async def _append(
        self, run: Run, before: Session, after: Session, settled: Sequence[Event], at: datetime
    ) -> journals.Appended:
        rest = None if after.can_move else journals.Rest(head=before.head, wake_at=after.wake_at)
        return await journals.append(
            self.db,
            after,
            settled,
            fence=run.lease.fence,
            worker=self.worker,
            at=at,
            rest=rest,
            fingerprint=after.rest_mark if rest or not after.is_running else None,
        )

    async def _begin(
        self, run: Run, before: Session, new: Sequence[Event], begun: Begun, at: datetime
    ) -> tuple[Session, journals.Appended]:
        """Records calls of agents together with the prompts of these agents."""
        after, appended, prompted = await delegations.begin(
            self.db,
            before,
            begun.refusing(new),
            begun.tasks,
            begun.collects,
            settle=lambda new: _settled(before, new, at),
            version_of=begun.versions.__getitem__,
            recording=Recording(run.lease.fence, self.worker, at),
        )
        for child, seq in prompted:
            self.bus.appended(child, seq)
        return after, appended

    async def _end(
        self, run: Run, before: Session, after: Session, settled: Sequence[Event], at: datetime
    ) -> journals.Appended:
        """Records the end of a turn together with the outcome of the call that waits for it."""
        recording = Recording(run.lease.fence, self.worker, at)
        appended, told = await delegations.end(self.db, before, after, settled, recording=recording)
        for session_id, seq in told:
            self.bus.appended(session_id, seq)
        return appended

    async def _snapshot(self, run: Run) -> None:
        every = journals.SNAPSHOT_EVERY
        if run.session.head // every > run.loaded // every:
            await journals.snapshot(self.db, run.session)


def _settled(session: Session, new: Sequence[Event], at: datetime) -> tuple[Session, list[Event]]:
    """The fold with these events; with the end of the turn, once a finishing tool has spoken and all calls are in."""
    settled = list(new)
    after = _folded(session, settled, at)
    turn = after.turn
    if turn and turn.verdict and not turn.ended and not after.open:
        answer = turn.answer or ""
        end: Event = events.Finished(answer=answer)
        if turn.verdict == "FAILED":
            end = events.Failed(reason=answer, code=AGENT_FAILED)
        settled.append(end)
        after = _folded(session, settled, at)
    return after, settled


def _folded(session: Session, new: Sequence[Event], at: datetime) -> Session:
    recorded = (Recorded(seq=session.head + 1 + index, at=at, event=event) for index, event in enumerate(new))
    return fold(recorded, session)


def _started(
    session: Session,
    *,
    version: int,
    instance: str,
    limits: events.Limits,
    rights: events.Rights | None = None,
    cleaned: tuple[events.Cleanable, ...] = (),
) -> events.Started:
    waiting = session.queue[0]
    return events.Started(
        trace=waiting.prompt.trace,
        prompt=waiting.seq,
        version=version,
        instance=instance,
        limits=limits,
        rights=rights,
        cleaned=cleaned,
        date=clock.now().date().isoformat(),
    )


def _unapproved(session: Session, now: datetime) -> list[Event]:
    """The calls that nobody approved in time are denied."""
    return [
        events.Returned(call=call.call, outcome=Fault(code="denied", message=f"nobody approved {call.tool} in time"))
        for call in session.unapproved
        if call.approve_by and call.approve_by <= now
    ]


def _abandoned(session: Session, reason: str) -> list[Event]:
    """An outcome for every open call, so that history stays paired."""
    fault = Fault(code="abandoned", message=reason)
    return [events.Returned(call=call, outcome=fault) for call in session.open]


def _pause(patience: Patience, attempts: int, retry_after: float | None) -> float:
    if retry_after is not None:
        return retry_after
    jitter = random.uniform(0.8, 1.2)  # noqa: S311 - spreads retries, keeps no secret
    return float(min(patience.first * 2**attempts, patience.longest) * jitter)
