"""Fires schedules: a prompt comes by itself, with the rights and at the expense of the key that made the schedule.

Whether and how it fires is found out first. The prompt, the run and the next moment are then written in one
transaction, which is refused if another process was first: a process that is killed has fired, or another one does.
"""

import asyncio
import uuid
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Final

import asyncpg
import msgspec
import structlog
from msgspec import structs

from longhouse import background, timing
from longhouse.agents.template import Template
from longhouse.api import wire
from longhouse.api.auth import Authenticator
from longhouse.api.caller import Caller
from longhouse.api.model_names import find_template
from longhouse.errors import CallerError, UnknownShape
from longhouse.journal.events import Opened, Prompted
from longhouse.journal.messages import Message
from longhouse.runtime.inbox import Inbox
from longhouse.runtime.steps.delegation import PriorOf
from longhouse.search.router import AUTO
from longhouse.store import journals, sessions
from longhouse.store.automation import schedules
from longhouse.store.automation.schedules import Schedule, ShownScheduleRun
from longhouse.store.catalog.catalog import Catalog
from longhouse.store.database import UNREACHABLE, Database, Transaction
from longhouse.store.journals import Placed
from longhouse.store.projections import HistoryOf
from longhouse.store.requests import RequestIdentity

log = structlog.get_logger()

MOST_WAITING: Final = 10
"""Where so many prompts wait in a session, those of schedules are skipped, which leaves room for what people write."""
NO_KEY: Final = "The key that it fires with was revoked, or has expired."


class _Target(msgspec.Struct, frozen=True):
    """Where a prompt goes: to a session that is there, or to a new one."""

    caller: Caller
    template: Template
    version: int | None
    """The version that the schedule names."""
    session_id: str | None
    prior: tuple[Message, ...] = ()
    """What an external store has of the conversation, for a new session."""


class _Attempt(msgspec.Struct, frozen=True):
    """One moment: it is fired, unless something is in the way."""

    due_at: datetime
    state: schedules.RunState = "fired"
    target: _Target | None = None
    error: str | None = None
    code: str | None = None
    count: int = 1
    last_due_at: datetime | None = None


class Scheduler(msgspec.Struct, frozen=True):
    inbox: Inbox
    catalog: Catalog
    authenticator: Authenticator
    prior: PriorOf | None = None
    most: int = 100
    """Schedules that an owner may have."""
    count: Callable[[schedules.RunState, int], None] = lambda state, moments: None
    """Told what became of so many moments."""

    @property
    def db(self) -> Database:
        return self.inbox.db

    async def fire_due(self) -> None:
        """Fires what is due, each schedule for itself: one that fails holds up no other."""
        while taken := await schedules.take(self.db):
            for one, now in taken:
                await background.guarded("schedule_firing", self.fire(one, now))
            if len(taken) < schedules.AT_ONCE:
                return

    async def serve(self, is_due: asyncio.Event) -> None:
        """Fires what is due when it is told so."""
        await is_due.wait()
        is_due.clear()
        await self.fire_due()

    async def fire(self, schedule: Schedule, now: datetime) -> None:
        """Fires a schedule whose moment has come, unless another process was first."""
        stopped, due = schedule.stopped, None
        try:
            assert schedule.next_at is not None
            due = timing.due(schedule.timing, schedule.next_at, now, schedule.missed)
        except ValueError as error:
            stopped = f"Its next run cannot be computed: {error}."
        caller = None if stopped else await self.authenticator.caller_of(schedule.key_id)
        attempts: list[_Attempt] = []
        if caller is None or due is None:
            # It fires no more until somebody changes it, and says why.
            stopped, next_at = stopped or NO_KEY, None
            attempts.append(_Attempt(schedule.next_at or now, "failed", error=stopped, code="stopped"))
        else:
            next_at = due.next_at
            if due.missed:
                first, last = due.missed[0], due.missed[-1]
                attempts.append(_Attempt(first, "missed", count=len(due.missed), last_due_at=last))
            attempts += await self._attempts(schedule, caller, due.fires)

        async def write(tx: Transaction) -> list[tuple[_Attempt, Placed | None]]:
            if not await schedules.claim(tx, schedule):
                return []
            placed = [await self._write(tx, schedule, one) for one in attempts]
            await schedules.move(tx, schedule, next_at, stopped=stopped)
            return placed

        written = await self.db.together(write)
        for attempt, placed in written:
            self.count(attempt.state, attempt.count)
            if placed:
                self.inbox.notify(placed)
                log.info("schedule_fired", schedule=schedule.id, session=placed.session_id)
        if written and stopped:
            log.info("schedule_stopped", schedule=schedule.id)

    async def run(self, caller: Caller, schedule: Schedule, run_id: str) -> ShownScheduleRun:
        """Fires a schedule now, with the rights of the caller; once for each id."""
        if known := await schedules.find_run(self.db, run_id):
            return known
        target = await self._target(caller, schedule)
        await _pay(target, opens=target.session_id is None)

        async def write(tx: Transaction) -> Placed | None:
            if not await schedules.lock(tx, schedule):
                raise no_such_schedule()
            if await schedules.find_run(tx, run_id):
                return None
            attempt = _Attempt(await schedules.now(tx), target=target)
            return (await self._write(tx, schedule, attempt, run_id=run_id))[1]

        if placed := await self.db.together(write):
            self.count("fired", 1)
            self.inbox.notify(placed)
        made = await schedules.find_run(self.db, run_id)
        if made is None:
            raise no_such_schedule()  # it was deleted meanwhile
        return made

    async def template(self, model: str, owner: str) -> tuple[Template, int | None]:
        """The template that a schedule names, and the version, if it names one."""
        found = await find_template(self.catalog, model, owner)
        if found is None:
            why = f"There is no agent {model[:100]!r}; see GET /v1/models."
            if model == AUTO:
                why = "A schedule names its agent: 'auto' chooses one for a message of a person."
            raise CallerError(why, status=404, code="model_not_found", param="template")
        return found

    # What would come of it

    async def _attempts(self, schedule: Schedule, caller: Caller, moments: Sequence[datetime]) -> list[_Attempt]:
        """What comes of each moment: the limits and budgets of the key are those of a request."""
        attempts: list[_Attempt] = []
        for moment in moments:
            fired = sum(one.state == "fired" for one in attempts)
            try:
                attempts.append(await self._attempt(schedule, caller, moment, fired))
            except CallerError as error:
                attempts.append(_Attempt(moment, "failed", error=str(error), code=error.code))
            except (*UNREACHABLE, asyncpg.PostgresError, UnknownShape):
                raise  # it stays due
            except Exception:
                log.exception("schedule_failed", schedule=schedule.id)
                why = "An internal error: the log of the server has schedule_failed."
                attempts.append(_Attempt(moment, "failed", error=why, code="internal_error"))
        return attempts

    async def _attempt(self, schedule: Schedule, caller: Caller, moment: datetime, fired: int) -> _Attempt:
        caller.writes()
        target = await self._target(caller, schedule)
        if schedule.overlap == "skip" and (fired or await self._is_busy(schedule, target.session_id)):
            return _Attempt(moment, "skipped", error="The run before it has not ended.", code="overlap")
        if caller.meter:
            await caller.meter.enter()
            caller.meter.leave()
        is_opened = target.session_id is not None or (fired > 0 and schedule.conversation_id is not None)
        await _pay(target, opens=not is_opened)
        return _Attempt(moment, target=target)

    async def _target(self, caller: Caller, schedule: Schedule) -> _Target:
        template, version = await self.template(schedule.template, schedule.owner)
        caller.uses(template.name)
        conversation, prior = schedule.conversation_id, tuple[Message, ...]()
        if conversation is None:
            return _Target(caller, template, version, None)
        found = await sessions.find(self.db, owner=schedule.owner, conversation=conversation, agent=template.name)
        if found is None and self.prior:
            [prior] = await self.prior(conversation, schedule.owner, [HistoryOf()])
        return _Target(caller, template, version, found, prior)

    async def _is_busy(self, schedule: Schedule, session_id: str | None) -> bool:
        """Has the session of the last firing something to do?"""
        if schedule.conversation_id is None:
            session_id = await schedules.last_session(self.db, schedule)
        if session_id is None:
            return False
        session = await journals.load(self.db, session_id)
        return session.running_turn is not None or bool(session.queue)

    # Writing it down

    async def _write(
        self, tx: Transaction, schedule: Schedule, attempt: _Attempt, *, run_id: str | None = None
    ) -> tuple[_Attempt, Placed | None]:
        """Writes a run, and the prompt that it sends; one that is not taken, as what came of it."""
        known, trace, placed = run_id or new_run_id(), uuid.uuid4().hex, None
        if attempt.target:
            try:
                placed = await self._prompt(tx, schedule, attempt.target, trace, known)
            except CallerError as error:
                if run_id:
                    raise
                state: schedules.RunState = "skipped" if error.code == journals.TOO_MANY_WAITING else "failed"
                attempt = structs.replace(attempt, state=state, error=str(error), code=error.code)
        await schedules.record(
            tx,
            schedule.id,
            id=known,
            state=attempt.state,
            due_at=attempt.due_at,
            last_due_at=attempt.last_due_at or attempt.due_at,
            count=attempt.count,
            is_manual=run_id is not None,
            session_id=placed.session_id if placed else None,
            trace_id=trace if placed else None,
            seq=placed.seq if placed else None,
            error=attempt.error,
            code=attempt.code,
        )
        return attempt, placed

    async def _prompt(self, tx: Transaction, schedule: Schedule, target: _Target, trace: str, run_id: str) -> Placed:
        """Appends the prompt to its session, or opens one with it; if that was deleted meanwhile, the conversation
        begins anew."""
        caller, template = target.caller, target.template
        user = caller.user(schedule.user)
        opened = Opened(
            agent=template.name,
            version=template.version,
            owner=schedule.owner,
            user=user,
            conversation=schedule.conversation_id or str(uuid.uuid4()),
        )
        prompt = Prompted(
            trace=trace,
            content=(schedule.prompt,),
            user=user or "",
            version=target.version,
            prior=target.prior,
            schedule=schedule.id,
        )
        accepted = RequestIdentity(
            owner=schedule.owner,
            digest=f"schedule/{run_id}",
            api_key=caller.key or None,
            has_turn_budget=caller.has_turn_budget,
        )
        return await self.inbox.prompt_within(
            tx,
            target.session_id,
            opened,
            prompt,
            task=schedule.prompt,
            accepted=accepted,
            most_waiting=MOST_WAITING,
        )


async def _pay(target: _Target, *, opens: bool) -> None:
    """Takes what the prompt costs of the limits of its key, or raises; `opens`: a session, too."""
    target.caller.spends(begins_turn=True)
    if opens:
        await target.caller.opens_session()


def new_run_id() -> str:
    return f"run_{uuid.uuid4().hex}"


def no_such_schedule() -> CallerError:
    return wire.not_found("There is no such schedule.", code="schedule_not_found")
