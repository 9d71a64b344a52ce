"""The agent loop: read the journal, fold it, decide, record, act, record the outcome, until the session rests."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from typing import Any, Final, get_args

import structlog
from msgspec.structs import replace

from longhouse import clock, tracing
from longhouse.activity import ActivityCounts
from longhouse.agents import rules
from longhouse.agents.delegation import capped_by_caller, narrowed
from longhouse.agents.requests import answer_format, window
from longhouse.agents.template import Template
from longhouse.agents.tool import Tool
from longhouse.errors import AlreadyReturned, Deposed, ProviderError, SetupError
from longhouse.journal import events
from longhouse.journal.events import Fault
from longhouse.journal.session import (
    INTERRUPTED,
    LOST_STEP_PREFIX,
    MOST_EXCUSED,
    MOST_LOST,
    TAKES_WORKERS,
    Open,
    Session,
    Turn,
)
from longhouse.memory.session_memory import SessionMemory
from longhouse.models.openai import source_of
from longhouse.runtime.bus.items import Fragment
from longhouse.runtime.bus.local import Bus
from longhouse.runtime.inbox import Inbox
from longhouse.runtime.recorder import Recorder, Run
from longhouse.runtime.steps import titles
from longhouse.runtime.steps.condense import condensed
from longhouse.runtime.steps.delegation import DelegationPlanner, PriorOf
from longhouse.runtime.steps.model_stream import listen
from longhouse.runtime.steps.prober import Prober
from longhouse.runtime.steps.reply_handler import ReplyHandler, in_order
from longhouse.runtime.steps.retry_limits import RetryLimits
from longhouse.runtime.steps.tool_runner import ToolRunner
from longhouse.runtime.workers.instances import Instance, InstancePool
from longhouse.runtime.workers.resident_sessions import ResidentSessions
from longhouse.runtime.workers.trials import WAITING, Trials
from longhouse.runtime.workers.turnstile import Turnstile
from longhouse.store import journals, leases
from longhouse.store.catalog.catalog import Catalog
from longhouse.store.catalog.repository import VersionRepository
from longhouse.store.database import PASSING, Database
from longhouse.store.delegation import delegations, results
from longhouse.store.leases import Lease
from longhouse.store.limits import budgets
from longhouse.tools.offering import Offering
from longhouse.tools.toolbox import Toolbox
from longhouse.tracing import Tracing

log = structlog.get_logger()

MOST_FENCES: Final = 10_000
"""Runs that were broken off and are remembered, for the case that the session comes back to this process."""

ExternalNotes = Callable[[Session], Awaitable[Sequence[events.Noted]]]
"""Finds interactions from outside that a session's agent took part in, as notes for its journal."""


@dataclass
class Engine:
    db: Database
    bus: Bus
    catalog: Catalog
    toolbox: Toolbox
    offering: Offering
    pool: InstancePool
    worker: str
    retry_limits: RetryLimits = field(default_factory=RetryLimits)
    prior: PriorOf | None = None
    """Loads the earlier messages of a conversation that is new here, from an external store."""
    memory: SessionMemory = field(default_factory=SessionMemory)
    collects: bool = True
    """Whether the ledger collects interactions at all."""
    external: ExternalNotes | None = None
    """Finds what was told to an agent from outside before its session began."""
    activity: ActivityCounts = field(default_factory=ActivityCounts)
    tracing: Tracing | None = None
    """None: requests to models and tools carry no trace context."""
    resident: ResidentSessions = field(default_factory=ResidentSessions)
    stopping: bool = False
    last_beats: dict[str, datetime] = field(default_factory=dict)
    """Other worker -> its last heartbeat that was seen."""
    takeovers: int = 0
    """Runs that were lost, and whose sessions went on here."""
    _turnstile: Turnstile = field(default_factory=Turnstile)
    _known_fences: dict[str, int] = field(default_factory=dict)
    """Session -> fence of our last run that knew the previous lease holder: only for such a run we know every call."""

    def __post_init__(self) -> None:
        delegates = DelegationPlanner(self.catalog, self.toolbox, self.db, self.prior)
        self.trials = Trials(self.db)
        self.prober = Prober(self.db, self.toolbox)
        self.recorder = Recorder(self.db, self.bus, delegates, self.worker, self.prober.able)
        inbox = Inbox(self.db, self.bus)
        self.tool_runner = ToolRunner(self.db, inbox, self.toolbox, self.recorder, self.memory, tracing=self.tracing)

    async def advance(self, lease: Lease) -> Session:
        """Advances one session until it rests, waits for its provider, or the worker shuts down."""
        session = await self.resident.load(self.db, lease.session_id, lease.head)
        run = Run(lease, session)
        try:
            with self._recording_unbegun(run):
                if lease.previous:
                    await self._take_over(run, lease.previous)
                elif session.turn:
                    run.measured = session.turn.worked_at, time.monotonic()
                self._remember(lease)
                while not run.rested:
                    await self._be_tried(run)
                    if self.stopping:
                        await leases.let_go(self.db, lease)
                        break
                    await self._move(run)
        finally:
            self.trials.end(session.id)
            self.toolbox.forget(session.id)
        self._known_fences.pop(session.id, None)
        self.resident.keep(run.session)
        await self._snapshot(run)
        return run.session

    def _remember(self, lease: Lease) -> None:
        self._known_fences.pop(lease.session_id, None)
        self._known_fences[lease.session_id] = lease.fence
        if len(self._known_fences) > MOST_FENCES:
            del self._known_fences[next(iter(self._known_fences))]

    def knows_all_holders(self, lease: Lease) -> bool:
        """Does the journal name every worker that held the lease before this run?"""
        return self._known_fences.get(lease.session_id) == lease.fence

    def leave(self) -> None:
        """Begins nothing more, and releases each session at its next step."""
        self.stopping = True
        self.trials.open()

    async def _be_tried(self, run: Run) -> None:
        """A session that lost a worker has the trial place until it gets on: if we crash too, the cause is known."""
        if run.session.is_suspect and not run.session.is_hopeless:
            await self.trials.enter(run.lease, is_blamed=run.session.is_blamed)
        else:
            self.trials.acquit(run.session.id)

    @contextmanager
    def _recording_unbegun(self, run: Run) -> Iterator[None]:
        """If a run is broken off, we may know that some of its recorded calls had not begun: that is recorded."""
        try:
            yield
        except (Deposed, asyncio.CancelledError, *PASSING) as error:
            may_have_written = run.is_recording and not isinstance(error, Deposed)
            may_have_unbegun = may_have_written or self.tool_runner.unbegun(run.session)
            if not self.stopping and may_have_unbegun and self.knows_all_holders(run.lease):
                self.tool_runner.background(self.tool_runner.record_unbegun(run.session.id))
            if isinstance(error, Deposed):
                self._known_fences.pop(run.session.id, None)
            raise

    async def _take_over(self, run: Run, previous: str) -> None:
        """Records that the previous run was lost; for a run of this process we know which calls had not begun."""
        if run.session.is_running:
            run.template = await template_of(run.session, self.catalog.templates)
        unbegun: tuple[str, ...] = ()
        if leases.is_lost_by(self.worker, previous):
            if self._known_fences.get(run.session.id) == run.lease.fence - 1:
                unbegun = self.tool_runner.unbegun(run.session)
            else:
                # Our name is there from a claim that failed: the worker before it is not known.
                previous = leases.UNKNOWN_HOLDER
        seen_at = self.last_beats.get(previous)
        resumed = events.Resumed(worker=self.worker, previous=previous, unbegun=unbegun, seen_at=seen_at)
        if resumed.is_loss:
            has_waited = run.session.is_suspect and run.lease.trial == WAITING
            resumed = replace(resumed, excused=has_waited and run.session.excused < MOST_EXCUSED)
        try:
            await self.recorder.record(run, [resumed])
            self.takeovers += 1
        except AlreadyReturned:
            # The outcome of a call was reported in the meantime.
            run.session = await journals.catch_up(self.db, run.session)
            await self._take_over(run, previous)

    async def _move(self, run: Run) -> None:
        """Advances one turn as far as possible, or ends the run."""
        session = run.session
        if not session.can_step:
            if late := _unapproved(session, clock.now()):
                await self.tool_runner.record_outcomes(run, late)
            elif await self._probe(run):
                pass
            elif session.lacks_title:
                await self._give_title(run)
            else:
                await self._rest(run)
            return
        if session.is_hopeless:
            await self._leave_to_person(run)
            return
        template = await template_of(session, self.catalog.templates)
        if template is None:
            reason = f"the agent {session.agent!r} is not known here any more"
            await self.give_up(run, reason, "template_not_found")
            return
        run.template = template
        await self.offering.refuse_lacking(template, session.owner)
        if not session.is_running and _is_spent(run) and await self._pause(run):
            return
        async with self.pool.acquired(template, session.id) as instance:
            if not session.is_running:
                await self._start(run, instance)
            while (turn := run.session.running_turn) and run.session.can_step and not run.rested and not self.stopping:
                await self._be_tried(run)
                await self._turnstile.passed()
                if not self.stopping:  # others may have gone first for a while
                    await self._step(run, turn, instance)

    async def _leave_to_person(self, run: Run) -> None:
        """Asks a person whether the step is tried again; if that was denied, or nobody is asked, ends the turn."""
        session, turn = run.session, run.session.running_turn
        template = await template_of(session, self.catalog.templates) if turn and not turn.is_given_up else None
        if template is None or template.execution_policy.unknown == "tell":
            await self.give_up(run, f"this step {INTERRUPTED}; it is not tried again", rules.WORKER_LOST)
            return
        message = "a step is not tried again until a person has decided"
        log.warning("step_left_to_person", message=message, session=session.id, agent=session.agent)
        # The head makes the id unique: the same step may be asked about again.
        step = f"{LOST_STEP_PREFIX}{session.head}"
        asked = events.Decided(call=step, decision="unknown", by=self.worker, comment=TAKES_WORKERS)
        await self.recorder.record(run, [asked])

    async def _probe(self, run: Run) -> bool:
        """Asks probes about calls in doubt, each once in a run; False if that changed nothing."""
        session, turn = run.session, run.session.turn
        doubtful = [call for call in session.uncertain if call.call not in run.probed]
        if turn is None or not doubtful or session.lost >= MOST_LOST:
            return False
        run.probed.update(call.call for call in doubtful)
        if self.trials.has(session.id) and await self.prober.asks_elsewhere(session, doubtful):
            await self.trials.step_aside(run.lease)
        settled, again = await self.prober.settled(session, turn, doubtful)
        await self._be_tried(run)
        run.probe_at = min(filter(None, (run.probe_at, again)), default=None)
        run.template = run.template or await template_of(session, self.catalog.templates)
        # Where the agent is told of calls in doubt, the recorder adds that.
        tells = run.template is not None and run.template.execution_policy.unknown == "tell"
        if settled or tells:
            await self.tool_runner.record_outcomes(run, settled)
        return bool(settled) or tells

    async def _give_title(self, run: Run) -> None:
        """Asks the model for the session's title; a prompt that comes meanwhile does not wait for it."""
        session, turn = run.session, run.session.latest_turn
        template = await self.catalog.templates.find(session.agent, turn.version)
        spent = titles.NONE
        if template is not None and not (run.spent or "").startswith("tokens"):
            with suppress(SetupError):  # a model that is not set up any more gives no title
                async with self.pool.acquired(template, session.id) as instance:
                    began = time.monotonic()
                    title = titles.titled(turn, template, instance.model)
                    with self._sending(turn, tracing.title_span(session.id, turn.prompt)):
                        await self.trials.step_aside(run.lease)
                        spent = await titles.unless_prompted(self.db, self.bus, run, title)
                    self._count(session, time.monotonic() - began, spent.usage)
        if spent is not titles.NONE or not run.session.can_move:
            await self.recorder.record(run, [spent])

    async def give_up(self, run: Run, reason: str, code: str) -> None:
        """Ends a turn that cannot be advanced; a turn that had not started is started and ended."""
        end = events.Failed(reason=reason, code=code)
        if run.session.is_running:
            # Each call in the history has an outcome.
            fault = Fault(code="abandoned", message=reason)
            await self.recorder.record(run, [*(_returned(call, fault) for call in run.session.open.values()), end])
            return
        limits = events.Limits(max_iterations=0, max_clarifications=0, time_budget=0)
        collect = None if self.collects else ()
        started = _started(run.session, version=0, instance="", limits=limits, collect=collect)
        await self.recorder.record(run, [started, end])

    async def _start(self, run: Run, instance: Instance) -> None:
        template, prompt = instance.template, run.session.queue[0].prompt
        started = _started(
            run.session,
            version=template.version,
            instance=instance.id,
            limits=capped_by_caller(
                template.execution_policy.limits, await results.budget_left(self.db, run.session, prompt)
            ),
            rights=narrowed(prompt.rights, template),
            cleaned=cleaned_parts(run.session, template),
            approve_in_chat=template.execution_policy.approve_in_chat,
            collect=self._collected(template),
            wants_title=template.title == "model" and run.session.side == "root" and run.session.title is None,
        )
        is_first = run.session.turn is None
        notes = await self.external(run.session) if self.external and is_first else ()
        # Asked once a turn: none of its requests shows what is outdated.
        outdated = await self.toolbox.outdated(run.session) if self.memory.is_on(template) else []
        gone = [events.Noted(about="outdated", key=key) for key in outdated]
        await self.recorder.record(run, [started, *notes, *gone])

    def _collected(self, template: Template) -> tuple[events.Collected, ...] | None:
        """What the ledger collects of a turn; None: everything."""
        if not self.collects:
            return ()
        collect = template.memory_policy.collect
        return None if set(collect) >= set(get_args(events.Collected)) else collect

    async def _step(self, run: Run, turn: Turn, instance: Instance) -> None:
        """Runs the calls that are due, or ends a finished turn, or else calls the model."""
        due = run.session.next_calls
        if due and (fatal := [call for call in due if call.lost >= MOST_LOST]):
            await self.tool_runner.ask_about(run, fatal, TAKES_WORKERS)
        elif due:
            if self.trials.has(run.session.id) and await self.toolbox.run_elsewhere(
                (call.tool, call.version) for call in due
            ):
                await self.trials.step_aside(run.lease)
            await self.tool_runner.perform(run, turn, due, instance.template)
        elif turn.verdict:
            # The last call besides the finishing one was returned from outside: only the end is left to record.
            await self.recorder.record(run, [])
        elif end := rules.overdue(turn):
            code, reason = end
            await self.recorder.record(run, [events.Failed(reason=reason, code=code)])
        elif not _is_spent(run) or not await self._pause(run):
            await self._think(run, turn, instance)

    async def _think(self, run: Run, turn: Turn, instance: Instance) -> None:
        template = instance.template
        session = replace(run.session, asked=source_of(instance.model, template.llm_policy.model or ""))
        chosen = await self.offering.choose(session, turn, template)
        offered = in_order(session, chosen.tools)
        text, recalled = await self.memory.text_for(session, turn, template)
        shown = replace(session, recall=text) if text else session
        request = instance.strategy.propose(shown, template, offered)
        span = tracing.chat_span(session.id, turn.prompt, len(session.steps)) if self.tracing else ""
        began = time.monotonic()
        try:
            handler = ReplyHandler(
                self.toolbox,
                session,
                turn,
                request,
                offered,
                must_delegate=template.execution_policy.must_delegate,
                selection=chosen.selection,
                recalled=recalled,
                take=partial(delegations.take_calls, self.db, session, turn),
            )
            with self._sending(turn, span):
                await self.trials.step_aside(run.lease)
                if summary := await condensed(session, template, instance.model, request.body):
                    self._count(session, time.monotonic() - began, summary.usage)
                    await self.recorder.record(run, [summary])
                    return
                # An answer that may be sent back is not streamed: it could not be withdrawn from the client.
                reply = await listen(
                    self.db,
                    self.bus,
                    instance.model,
                    request,
                    session=session,
                    fence=run.lease.fence,
                    shows_answer=not handler.must_delegate_first,
                    keeps_answer=handler.is_shaped,
                )
            took = time.monotonic() - began
            await self._be_tried(run)
            new = await handler.read(instance.strategy, reply)
        except ProviderError as error:
            self._count(session, time.monotonic() - began, error.usage, failed=True)
            await leases.tell_failure(self.db, self.worker, self.toolbox.hide(str(error)))
            await self._retry_later(run, turn, error)
            return
        self._count(session, took, reply.usage)
        await self.recorder.record(run, [_after_retries(run, event) for event in new] if run.attempts else new)
        _log_left_out(session, offered, chosen.selection)

    def _sending(self, turn: Turn, span: str) -> AbstractContextManager[None]:
        """Requests to the model carry this span of the turn."""
        if self.tracing is None:
            return tracing.UNTRACED
        return self.tracing.sending(turn.prompted.traceparent, turn.trace, span)

    def _count(self, session: Session, seconds: float, usage: events.Usage | None, *, failed: bool = False) -> None:
        calls, usage = self.activity.model(session.agent, session.owner), usage or events.Usage()
        calls.add(seconds)
        calls.errors += failed
        calls.read += usage.prompt_tokens
        calls.cached += usage.cached_tokens
        calls.written += usage.completion_tokens

    async def _retry_later(self, run: Run, turn: Turn, error: ProviderError) -> None:
        """Puts the session to sleep until the next retry; past the retry limit, fails the turn with a message."""
        now = clock.now()
        run.troubled_at = run.troubled_at or now
        attended = any(self.bus.is_attended(one) for one in (run.session.id, turn.prompted.root) if one)
        limit = self.retry_limits.attended if attended else self.retry_limits.unattended
        delay = self.retry_limits.delay(run.attempts, error.retry_after)
        spent = [events.Spent(usage=error.usage, reason=error.public_message)] if error.usage else []
        # Users can read the journal: details that name our hosts go to the log only.
        about = {"session": run.session.id, "error": str(error)}
        if not error.retryable or (now - run.troubled_at).total_seconds() + delay > limit:
            why = "past the retry limit" if error.retryable else "in a way that no retry can mend"
            message = f"the model call failed {why}: the turn ends"
            log.warning("model_call_failed", message=message, attempts=run.attempts + 1, **about)
            await self.recorder.record(run, [*spent, events.Failed(reason=error.public_message, code="provider_error")])
            return
        self.activity.model(run.session.agent, run.session.owner).retries += 1
        message = "the model call failed and is retried later"
        log.info("model_call_retry", message=message, attempt=run.attempts + 1, **about)
        why = f"{error.public_message}; tried again in {max(1, round(delay))} s"
        for watched in {run.session.id, turn.prompted.root} - {""}:
            self.bus.publish(watched, Fragment(run.session.head, run.lease.fence, "retry", 0, why))
        attempts, troubled_at = run.attempts, run.troubled_at
        if spent:
            await self.recorder.record(run, spent)
        run.rested = await leases.wait_out(
            self.db,
            run.lease,
            head=run.session.head,
            seconds=delay,
            attempts=attempts,
            troubled_at=troubled_at,
        )
        if run.rested:
            # Only a hint: the sweep also wakes the session at `wake_at`.
            asyncio.get_running_loop().call_later(delay + 0.01, self.bus.wake, run.session.id)
        else:
            await self._catch_up(run)

    async def _pause(self, run: Run) -> bool:
        """Lets the session wait for a budget of its key, and tells its followers; False if it has one again."""
        session, is_running = run.session, run.session.is_running
        lease, begins = run.lease, _begins_for_client(session)
        pause = await budgets.pause(self.db, session.id, fence=lease.fence, head=session.head, begins=begins)
        if pause is None:
            run.spent = None
            return False
        if not pause.is_paused:
            await self._catch_up(run)
            return True
        run.rested, spent = True, pause.spent
        message = "the session waits for a budget of its key"
        log.info("budget_spent", message=message, session=session.id, budget=spent.name, until=spent.until.isoformat())
        prompted = session.turn.prompted if session.turn and is_running else session.queue[0].prompt
        for watched in {session.id, prompted.root} - {""}:
            fragment = Fragment(session.head, lease.fence, "retry", 0, spent.words, until=spent.until)
            self.bus.publish(watched, fragment)
        return True

    async def _rest(self, run: Run) -> None:
        session = run.session
        run.rested = await leases.rest(
            self.db,
            run.lease,
            head=session.head,
            state=session.state,
            fingerprint=session.rest_mark,
            wake_at=min(filter(None, (session.wake_at, run.probe_at)), default=None),
        )
        if not run.rested:
            await self._catch_up(run)

    async def _catch_up(self, run: Run) -> None:
        """The session cannot be released: events were appended in the meantime, or the lease is lost."""
        before, run.session = run.session, await journals.catch_up(self.db, run.session)
        run.rested = run.session.head == before.head

    async def _snapshot(self, run: Run) -> None:
        every = journals.SNAPSHOT_EVERY
        if run.session.head // every > run.loaded // every:
            await journals.snapshot(self.db, run.session)


async def template_of(session: Session, templates: VersionRepository[Template]) -> Template | None:
    """The template of the running or next turn: the requested version, the pinned one, or the active one."""
    if turn := session.running_turn:
        return await templates.find(session.agent, turn.version)
    if requested := session.queue[0].prompt.version:
        return await _visible(session, await templates.find(session.agent, requested), templates)
    opened = await templates.find(session.agent, session.version)
    if opened and opened.follow == "pinned":
        return await _visible(session, opened, templates)
    return await templates.find(session.agent, owner=session.owner)


async def _visible(
    session: Session, version: Template | None, templates: VersionRepository[Template]
) -> Template | None:
    """The version, if the session's owner may see it: by its own visibility, or because its name is visible now."""
    if version is None or version.owner in (None, session.owner):
        return version
    is_named = await templates.active(session.agent, owner=session.owner) is not None
    return version if is_named else None


def _is_spent(run: Run) -> bool:
    """May the budgets of the session's key keep it from its next model call? A budget of turns only keeps a client's
    turn from beginning."""
    return run.spent is not None and (run.spent.startswith("tokens") or _begins_for_client(run.session))


def _begins_for_client(session: Session) -> bool:
    """Is the next turn one that a client has asked for, not another agent? In a branch of a sub-agent it may be."""
    return not session.is_running and bool(session.queue) and not session.queue[0].prompt.root


def _log_left_out(session: Session, offered: Sequence[Tool], selection: events.Selection | None) -> None:
    """Logs each change of the offered set once. The query stays in the journal only: it is what users have said."""
    if selection and selection.left_out and {tool.ref for tool in offered} != {*session.offered}:
        log.info(
            "tools_left_out",
            message="not all permitted tools are offered",
            session=session.id,
            agent=session.agent,
            iteration=session.iteration + 1,
            stage=selection.stage,
            offered=[tool.name for tool in offered],
            left_out=list(selection.left_out),
            more=selection.more,
        )


def _started(session: Session, **fields: Any) -> events.Started:
    """The start of the next turn, for the first prompt in the queue; `fields` are those of the template."""
    waiting, date = session.queue[0], clock.now().date().isoformat()
    form = window.SHAPED if answer_format.is_asked(waiting.prompt) else window.FORM
    return events.Started(trace=waiting.prompt.trace, prompt=waiting.seq, date=date, form=form, **fields)


def cleaned_parts(session: Session, template: Template) -> tuple[events.Cleanable, ...]:
    """What a new turn resets; parts of an empty working memory are not named: processes of earlier releases, which do
    not know them, can still read the session."""
    parts = template.reset_policy.cleaned
    if not session.memory.is_empty:
        return parts
    return tuple(part for part in parts if part not in {"query_context", "working_memory"})


def _after_retries(run: Run, event: events.Event) -> events.Event:
    """The reply says which failed calls came before it: the session's row forgets them."""
    if isinstance(event, events.Replied):
        return replace(event, attempts=run.attempts, troubled_at=run.troubled_at)
    return event


def _unapproved(session: Session, now: datetime) -> list[events.Returned]:
    """Denies the calls that were not approved in time."""
    return [
        _returned(call, Fault(code="denied", message=f"nobody approved {call.tool} in time"))
        for call in session.unapproved
        if call.approve_by and call.approve_by <= now
    ]


def _returned(call: Open, fault: Fault) -> events.Returned:
    return events.Returned(call=call.call, outcome=fault)
