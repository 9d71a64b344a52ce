"""Claims, appends, prompts, answers, cancels and takeovers in any order, against a model of the store in memory.

Any statement may lose its reply after it was committed, as with a connection that dies at the worst moment.
"""

import asyncio
import uuid
from collections.abc import Coroutine
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import pairwise
from typing import Any, ClassVar

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from unsteady_connection import Line, unsteady

from longhouse import clock
from longhouse.errors import AlreadyReturned, Deposed
from longhouse.journal import events
from longhouse.journal.events import Event, Fault, Output, Recorded
from longhouse.journal.fold import blank, fold
from longhouse.journal.session import Session
from longhouse.store import journals, leases
from longhouse.store.database import Database
from longhouse.store.leases import Lease

WORKERS = ("anna", "ben", "cleo")
LIMITS = events.Limits(max_iterations=100, max_clarifications=100, time_budget=1e9)

workers = st.sampled_from(WORKERS)
losses = st.sampled_from([0, 0, 0, 1])
"""How many replies of the next statement are lost."""
interruptions = st.sampled_from([False, False, False, True])
"""Does a prompt arrive in mid-step, after the holder has decided and before it writes?"""


@dataclass
class Hold:
    """What a worker believes: its lease, and the session as it knows it."""

    lease: Lease
    session: Session
    owes_resumed: bool


@dataclass
class Expected:
    """The session's row and journal as they must be."""

    told: list[Event]
    fence: int = 0
    holder: str | None = None
    due: bool = True
    wake: datetime | None = None
    attempts: int = 0


class StoreMachine(RuleBasedStateMachine):
    runner: ClassVar[asyncio.Runner]
    db: ClassVar[Database]
    line: ClassVar[Line]

    @initialize(lost=losses)
    def begin(self, lost: int) -> None:
        self.id, self.number = uuid.uuid4().hex, 0
        self.roster: set[str] = set()
        for worker in WORKERS:
            self._enlist(worker)
        self.holds: dict[str, Hold] = {}
        about = events.Opened(agent="a", version=1, owner="local", conversation=self.id)
        first = self._prompted()
        self.expected = Expected(told=[about, first])
        self._lossy(lost, journals.open(self.db, self.id, about, first, task=""))

    def teardown(self) -> None:
        for table in ("workers", "sessions", "journal", "snapshots"):
            self.runner.run(self.db.run(f"DELETE FROM {table}"))

    def _prompted(self) -> events.Prompted:
        self.number += 1
        return events.Prompted(trace=f"t{self.number}", content=(f"prompt {self.number}",))

    def _lossy(self, lost: int, doing: Coroutine[Any, Any, Any]) -> Any:
        self.line.lose_reply(lost)
        try:
            return self.runner.run(doing)
        finally:
            self.line.lose_reply(0)

    @property
    def now(self) -> Session:
        """The fold of what must be in the journal."""
        return fold((Recorded(seq=i, at=clock.now(), event=e) for i, e in enumerate(self.expected.told, 1)), blank("s"))

    def _is_current(self, hold: Hold) -> bool:
        return hold.lease.fence == self.expected.fence

    # Workers come, freeze, die

    def _enlist(self, worker: str) -> None:
        self.roster.add(worker)
        values = {"worker": worker, "lock_key": leases.lock_key(worker), "node": "node", "pid": 1, "slots": 8}
        values["version"] = "0"
        self.runner.run(self.db.run(leases.REGISTER_WORKER, **values))

    @rule(data=st.data(), worker=workers, lost=losses)
    def fate(self, data: st.DataObject, worker: str, lost: int) -> None:
        """What happens less often; in one rule, so that most of what happens is work."""
        match data.draw(st.sampled_from(["roster", "renew", "fire", "let go", "snapshot"])):
            case "roster":
                self._bury_or_enlist(worker)
            case "renew":
                self._renew_or_expire(worker, beats=data.draw(st.booleans()), lost=lost)
            case "fire":
                self._fire(lost)
            case "let go" if worker in self.holds:
                self._let_go(worker, lost, is_rough=data.draw(st.booleans()))
            case "snapshot":
                self._snapshot(lost)

    def _bury_or_enlist(self, worker: str) -> None:
        """The worker goes on in either case: it may only be frozen, and knows nothing of its burial."""
        if worker not in self.roster:
            self._enlist(worker)
            return
        self.roster.discard(worker)
        self.runner.run(leases.retire(self.db, worker))

    def _renew_or_expire(self, worker: str, *, beats: bool, lost: int) -> None:
        """Somebody finds the worker silent; if it beats before it is removed, it stays."""
        found = self.runner.run(leases.suspects(self.db, "nobody", lease=0.0))
        suspect = next((one for one in found if one.worker == worker), None)
        assert (suspect is not None) == (worker in self.roster)
        if beats:
            assert self.runner.run(self._beat(worker)) == (worker in self.roster)
        if suspect:
            self._lossy(lost, leases.delete_dead_worker(self.db, suspect))
        if not beats:
            self.roster.discard(worker)

    async def _beat(self, worker: str) -> bool:
        async with self.db.pool.acquire() as connection:
            return await leases.beat(connection, worker)

    @rule(worker=workers, lost=losses)
    def claim(self, worker: str, lost: int) -> None:
        row = self.expected
        is_due = row.due or (row.wake is not None and row.wake <= clock.now())
        may = is_due and (row.holder in (None, worker) or row.holder not in self.roster)
        lease = self._lossy(lost, leases.claim(self.db, self.id, worker)).lease
        assert (lease is not None) == may
        if lease is None:
            return
        # A claim that is sent again takes the session over from itself: nothing that went before is forgotten.
        previous = worker if lost else row.holder
        assert (lease.fence, lease.previous, lease.attempts) == (row.fence + 1 + lost, previous, row.attempts)
        self.expected = replace(row, fence=lease.fence, holder=worker, due=True, wake=None)
        session = self.runner.run(journals.load(self.db, self.id, lease.head))
        self.holds[worker] = Hold(lease=lease, session=session, owes_resumed=lease.previous is not None)

    # What holders do, and those who believe that they are

    @rule(data=st.data(), worker=workers, steps=st.integers(1, 8))
    def work(self, data: st.DataObject, worker: str, steps: int) -> None:
        """Several steps on end, as workers do; a session that nobody holds is claimed first."""
        if self.expected.holder is None:
            self.claim(worker, 0)
        for _ in range(steps):
            if self.expected.holder not in self.holds:
                break
            self._append(self.expected.holder, data, 0, data.draw(interruptions))
            self.row_and_journal_are_as_expected()

    @precondition(lambda self: self.holds)
    @rule(data=st.data(), lost=losses, is_interrupted=interruptions)
    def append(self, data: st.DataObject, lost: int, is_interrupted: bool) -> None:
        """One step of anybody who has, or had, a lease."""
        self._append(data.draw(st.sampled_from(sorted(self.holds))), data, lost, is_interrupted)

    def _append(self, worker: str, data: st.DataObject, lost: int, is_interrupted: bool) -> None:
        hold = self.holds[worker]
        new = self._next(hold, data)
        if is_interrupted:
            self._prompt(0)
        if not new:
            self._rest(hold, lost)
            return
        at, before = clock.now(), hold.session
        after = fold((Recorded(seq=before.head + 1 + i, at=at, event=event) for i, event in enumerate(new)), before)
        rest = None if after.can_move else journals.Rest(head=before.head)
        appending = journals.append(
            self.db, after, new, fence=hold.lease.fence, worker=worker, at=at, rest=rest, fingerprint=None
        )
        if not self._is_current(hold):
            with pytest.raises(Deposed):
                self._lossy(lost, appending)
            del self.holds[worker]
            return
        if any(isinstance(event, events.Returned) and event.call not in self.now.open for event in new[:1]):
            with pytest.raises(AlreadyReturned):
                self._lossy(lost, appending)
            hold.session = self.runner.run(journals.catch_up(self.db, before))
            return
        appended = self._lossy(lost, appending)
        first = len(self.expected.told) + 1
        assert [record.seq for record in appended.recorded] == list(range(first, first + len(new)))
        may_rest = rest is not None and before.head == first - 1
        assert appended.rested == may_rest
        self.expected = replace(
            self.expected, told=[*self.expected.told, *new], due=not may_rest, wake=None, attempts=0,
            holder=None if may_rest else self.expected.holder,
        )  # fmt: skip
        hold.owes_resumed = False
        hold.session = after if before.head == first - 1 else self.runner.run(journals.catch_up(self.db, before))

    def _next(self, hold: Hold, data: st.DataObject) -> list[Event]:
        """What a holder has to say next, by what it knows; nothing if it can only rest."""
        session = hold.session
        if hold.owes_resumed:
            return [events.Resumed(worker=hold.lease.session_id, previous=hold.lease.previous or "")]
        if not session.can_move:
            return []
        if not session.is_running:
            waiting = session.queue[0]
            return [
                events.Started(
                    trace=waiting.prompt.trace, prompt=waiting.seq, version=1, instance="i", limits=LIMITS, date=""
                )
            ]
        if session.due_calls:
            return [events.Returned(call=session.due_calls[0].call, outcome=Output(content="done"))]
        made = data.draw(st.sampled_from([(), ("read",), ("once",), ("ask",), ("once", "read"), ("ask", "once")]))
        if not made:
            return [events.Replied(text="done"), events.Finished(answer="done")]
        called: list[Event] = [
            events.Called(
                call=f"{session.iteration + 1}-action-{index}", tool=kind, arguments="{}",
                effect="once" if kind == "once" else "read",
                call_kind="ask" if kind == "ask" else "tool", question="?" if kind == "ask" else "",
            )
            for index, kind in enumerate(made)
        ]  # fmt: skip
        return [events.Replied(text="thinking"), *called]

    def _rest(self, hold: Hold, lost: int) -> None:
        session = hold.session
        may = self._is_current(hold) and session.head == len(self.expected.told)
        resting = leases.rest(self.db, hold.lease, head=session.head, state=session.state, fingerprint=None)
        assert self._lossy(lost, resting) == may
        if may:
            self.expected = replace(self.expected, holder=None, due=False)
        hold.session = self.runner.run(journals.catch_up(self.db, session))

    @precondition(lambda self: self.holds)
    @rule(data=st.data(), lost=losses, is_interrupted=interruptions, seconds=st.sampled_from([-1, 3600]))
    def wait_out(self, data: st.DataObject, lost: int, is_interrupted: bool, seconds: int) -> None:
        hold = self.holds[data.draw(st.sampled_from(sorted(self.holds)))]
        if hold.owes_resumed or not hold.session.can_move:
            return
        if is_interrupted:
            self._prompt(0)
        head = hold.session.head
        may = self._is_current(hold) and head == len(self.expected.told)
        assert self._lossy(lost, leases.wait_out(self.db, hold.lease, head=head, seconds=seconds)) == may
        if may:
            attempts = self.expected.attempts + 1 + lost
            wake_at = self.runner.run(self.db.value("SELECT wake_at FROM sessions WHERE id = :id", id=self.id))
            assert (wake_at > clock.now()) == (seconds > 0)
            self.expected = replace(self.expected, holder=None, due=False, wake=wake_at, attempts=attempts)

    def _fire(self, lost: int) -> None:
        self._lossy(lost, leases.fire(self.db))
        if self.expected.wake and self.expected.wake <= clock.now():
            self.expected = replace(self.expected, due=True, wake=None)

    def _let_go(self, worker: str, lost: int, *, is_rough: bool) -> None:
        hold = self.holds.pop(worker)
        held = self._is_current(hold) and self.expected.holder in WORKERS
        self._lossy(lost, (leases.break_off if is_rough else leases.let_go)(self.db, hold.lease))
        if held:
            holder = f"{self.expected.holder} (interrupted)" if is_rough else None
            self.expected = replace(self.expected, holder=holder, due=True)
        elif self._is_current(hold) and not is_rough:
            self.expected = replace(self.expected, holder=None, due=True)

    # Outsiders

    def _add(self, lost: int, new: list[Event]) -> None:
        placed = self._lossy(lost, journals.add(self.db, self.id, new, trace="t"))
        assert placed.seq == len(self.expected.told) + len(new)
        self.expected = replace(self.expected, told=[*self.expected.told, *new], due=True)

    @rule(data=st.data(), lost=losses)
    def outside(self, data: st.DataObject, lost: int) -> None:
        """A client, a person or a deposed worker says something, of what there is to say."""
        now, may = self.now, ["prompt"]
        if now.questions or now.uncertain:
            may += ["answer", "answer"]
        if now.uncertain:
            may.append("decide")
        if any(call.effect == "once" for call in now.open.values()):
            may.append("report")
        if now.is_running or now.queue:
            may.append("cancel")
        match data.draw(st.sampled_from(may)):
            case "prompt":
                self._prompt(lost)
            case "answer":
                asked = [one.call for one in (*now.questions, *now.uncertain)]
                self._answer(data.draw(st.sampled_from(asked)), lost)
            case "decide":
                self._decide(lost)
            case "report":
                self._report(lost)
            case "cancel":
                self._cancel(lost, is_late=data.draw(st.booleans()))

    def _prompt(self, lost: int) -> None:
        self._add(lost, [self._prompted()])

    def _answer(self, call: str, lost: int) -> None:
        """A person answers a question, or says that an effect of a lost worker happened; a second word is refused."""
        returned = events.Returned(call=call, outcome=Output(content="yes"), by="user")
        self._add(lost, [returned])
        with pytest.raises(AlreadyReturned):
            self._lossy(lost, journals.add(self.db, self.id, [returned], trace="t"))

    def _decide(self, lost: int) -> None:
        self._add(lost, [events.Decided(call=self.now.uncertain[0].call, decision="did_not_happen", by="user")])

    def _report(self, lost: int) -> None:
        """A deposed worker says what became of an effect that it had begun."""
        call = next(call.call for call in self.now.open.values() if call.effect == "once")
        self._add(lost, [events.Returned(call=call, outcome=Output(content="sent"))])

    def _cancel(self, lost: int, *, is_late: bool) -> None:
        session = self.runner.run(journals.load(self.db, self.id))
        trace = session.turn.trace if session.turn and session.is_running else session.queue[0].prompt.trace
        fault = Fault(code="cancelled", message="")
        new: list[Event] = [events.Returned(call=call, outcome=fault) for call in session.open]
        new.append(events.Cancelled(trace=trace, by="user"))
        at = clock.now()
        after = fold((Recorded(seq=session.head + 1 + i, at=at, event=e) for i, e in enumerate(new)), session)
        if is_late:
            self._prompt(0)
        placed = self._lossy(lost, journals.cancel(self.db, session, new, after=after))
        assert (placed is None) == is_late
        if placed:
            self.expected = Expected(
                told=[*self.expected.told, *new], fence=self.expected.fence + 1, due=after.can_move
            )

    def _snapshot(self, lost: int) -> None:
        session = self.runner.run(journals.catch_up(self.db, blank(self.id)))
        self._lossy(lost, journals.snapshot(self.db, session))

    # What must hold at any time

    @invariant()
    def row_and_journal_are_as_expected(self) -> None:
        row = self.runner.run(self.db.row("SELECT * FROM sessions WHERE id = :id", id=self.id))
        told = self.runner.run(journals.read(self.db, self.id))
        expected = self.expected
        assert row is not None
        assert [record.seq for record in told] == list(range(1, len(told) + 1))
        assert [record.event for record in told] == expected.told
        assert row["head"] == len(told)
        assert (row["fence"], row["holder"], row["due"]) == (expected.fence, expected.holder, expected.due)
        assert (row["wake_at"], row["attempts"]) == (expected.wake, expected.attempts)
        fences = [record.fence for record in told if record.worker]
        assert all(one <= other for one, other in pairwise(fences))
        assert {one.worker for one in self.runner.run(leases.suspects(self.db, "nobody", 0.0))} == self.roster
        returned = [record.event.call for record in told if isinstance(record.event, events.Returned)]
        assert len(returned) == len(set(returned))
        loaded = self.runner.run(journals.load(self.db, self.id))
        assert loaded == fold(told, blank(self.id))
        assert not loaded.can_move or row["due"] or row["wake_at"]
        may_be_claimed = row["due"] and (row["holder"] is None or row["holder"] not in self.roster)
        found = self.runner.run(leases.runnable(self.db, "nobody", 1000, running=[]))
        assert (self.id in [found_id for found_id, _ in found]) == may_be_claimed


async def _entered(stack: AsyncExitStack, dsn: str) -> tuple[Database, Line]:
    return await stack.enter_async_context(unsteady(dsn))


def test_the_store_agrees_with_its_model(dsn: str) -> None:
    with asyncio.Runner() as runner:
        stack = AsyncExitStack()
        db, line = runner.run(_entered(stack, dsn))
        StoreMachine.runner, StoreMachine.db, StoreMachine.line = runner, db, line
        bounds = settings(
            max_examples=25,
            stateful_step_count=30,
            deadline=None,
            database=None,
            # A failing example is printed as it is: to make it small would take minutes of statements.
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        try:
            run_state_machine_as_test(StoreMachine, settings=bounds)
            assert line.cuts > 0
        finally:
            runner.run(stack.aclose())
