"""Who may go on with a session, and what becomes of an effect whose worker may not."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import asyncpg
import msgspec
import pytest
from engine_fixture import Gate, Room, lost_in_thought, under_way, until_waiting

from longhouse.agents.template import ExecutionPolicy
from longhouse.agents.tool_descriptor import RateLimits, SecurityPolicy, ToolDescriptor
from longhouse.errors import Deposed
from longhouse.journal import events
from longhouse.journal.events import Effect, Fault, Output
from longhouse.journal.fold import blank, fold
from longhouse.journal.session import MOST_EXCUSED, Session, State
from longhouse.models.scripted import Hang, ScriptedStatus, call, calls, say
from longhouse.runtime.inbox import Inbox
from longhouse.runtime.steps.retry_limits import RetryLimits
from longhouse.store import journals, leases
from longhouse.store.database import Database, Transaction
from longhouse.store.delegation import tree
from longhouse.store.erasing import erasure
from longhouse.tools import BaseTool, ToolContext
from server_helpers import full

FINISH = call("finalanswertool", answer="Done.")


async def taken_over(room: Room, session_id: str, worker: str = "w2") -> None:
    """w1 is on no roster, so that anybody may take its sessions."""
    await room.advance(session_id, room.another(worker))


@dataclass(frozen=True)
class Payment:
    """A session whose one call is an effect: under way in the first engine of its room."""

    room: Room
    session_id: str
    pay: type[Gate]
    running: asyncio.Task[object]

    async def ends(self) -> None:
        """Its run is stopped, and reports what came of the effect."""
        self.running.cancel()
        self.pay.passed.set()
        await self.room.until(self.session_id, events.Returned)


async def payment(db: Database, declared: Effect = "once") -> Payment:
    class Pay(Gate):
        """Pays, whatever is declared."""

        effect: ClassVar[Effect] = declared

    room = Room(db, [call("pay"), FINISH], [Pay])
    session_id = await room.prompt()
    return Payment(room, session_id, Pay, await under_way(room, session_id, Pay))


async def payment_taken_over(db: Database) -> Payment:
    """The same, once another worker holds the session, and asks what came of it."""
    made = await payment(db)
    await taken_over(made.room, made.session_id)
    return made


async def test_a_deposed_worker_stops_at_its_first_write_and_leaves_no_trace(db: Database) -> None:
    class Working(Gate):
        """Reads something."""

    room = Room(db, [call("working"), FINISH], [Working])
    session_id = await room.prompt()
    running = await under_way(room, session_id, Working)
    lease = await room.claim(session_id, "w2")
    before = await room.journal(session_id)
    Working.passed.set()
    with pytest.raises(Deposed):
        await running
    assert await room.journal(session_id) == before
    assert lease.previous == "w1"
    assert not room.engine.knows_all_holders(msgspec.structs.replace(lease, fence=lease.fence - 1)), (
        "nothing is kept of it"
    )
    session = await room.another("w2").advance(lease)
    assert session.state is State.COMPLETED
    assert Working.times == [f"{session_id}:1-action-0"] * 2, "what only reads is read again"
    assert [record.worker for record in await room.journal(session_id)][-5:] == ["w2"] * 5
    assert all(one.status == "IDLE" for one in room.engine.pool.instances)


async def test_after_a_takeover_a_call_that_may_have_happened_is_a_question(db: Database) -> None:
    class Pay(Gate):
        """Pays."""

        effect: ClassVar[Literal["once"]] = "once"

    class Look(Gate):
        """Looks."""

    room = Room(db, [calls(call("pay"), call("look"))], [Pay, Look])
    session_id = await room.prompt()
    running = await under_way(room, session_id, Pay)
    Look.passed.set()
    await room.until(session_id, events.Returned)
    lease = await room.claim(session_id, "w2")
    session = await room.another("w2").advance(lease)
    assert session.state is State.WAITING_FOR_APPROVAL
    assert await room.found(session_id, events.Resumed) == [events.Resumed(worker="w2", previous="w1")]
    assert len(Pay.times) == 1
    running.cancel()
    Pay.passed.set()
    await room.until(session_id, events.Returned, 2)


@pytest.mark.parametrize("leaves", ["cancelled", "deposed"])
async def test_a_deposed_worker_still_reports_the_effect_it_had_begun(db: Database, leaves: str) -> None:
    made = await payment_taken_over(db)
    room, session_id, running = made.room, made.session_id, made.running
    woken: list[str] = []
    room.bus.on_wake.append(woken.append)
    asking = await journals.load(db, session_id)
    assert await tree.closed_questions(db, asking, "1-action-0") == []
    if leaves == "cancelled":
        running.cancel()
        await asyncio.wait([running])
    made.pay.passed.set()
    await room.until(session_id, events.Returned)
    assert (await room.outcomes(session_id))["1-action-0"] == Output(content="passed")
    # What a person says of it now is meant for no other call with this id.
    assert [one.id for one in await tree.closed_questions(db, asking, "1-action-0")] == [session_id]
    with pytest.raises(asyncio.CancelledError if leaves == "cancelled" else Deposed):
        await running
    async with asyncio.timeout(10):
        while not woken:
            await asyncio.sleep(0.005)
    session = await room.advance(session_id, room.another("w2"))
    assert (session.state, session.client_text) == (State.COMPLETED, "Done.")
    assert len(made.pay.times) == 1
    assert room.engine.tool_runner.begun == set()


async def test_an_effect_that_was_settled_meanwhile_keeps_its_first_outcome(db: Database) -> None:
    made = await payment_taken_over(db)
    reports = reports_of(made.room)
    await made.room.answer(made.session_id, "1-action-0", "settled by hand")
    made.running.cancel()
    await asyncio.wait([made.running])
    made.pay.passed.set()
    await asyncio.wait_for(asyncio.gather(*reports), 10)
    assert (await made.room.outcomes(made.session_id)) == {"1-action-0": Output(content="settled by hand")}
    assert len(reports) == 1
    assert made.room.engine.tool_runner.begun == set()


async def test_the_effect_of_a_session_that_was_forgotten_is_forgotten_too(db: Database) -> None:
    made = await payment(db)
    reports = reports_of(made.room)
    await erasure.forget(db, made.session_id, "local")
    made.running.cancel()
    await asyncio.wait([made.running])
    made.pay.passed.set()
    await asyncio.wait_for(asyncio.gather(*reports), 10)
    assert len(reports) == 1
    assert made.room.engine.tool_runner.begun == set()


@pytest.mark.parametrize("settled", ["answered", "forgotten"])
async def test_an_effect_that_nobody_can_report_counts_as_begun_until_it_is_settled(db: Database, settled: str) -> None:
    class Pay(Gate):
        """Pays."""

        effect: ClassVar[Literal["once"]] = "once"
        timeout: ClassVar[float] = 0.3

    room = Room(db, [call("pay"), FINISH], [Pay])
    reports, tool_runner = reports_of(room), room.engine.tool_runner
    session_id = await room.prompt()
    running = await under_way(room, session_id, Pay)
    await taken_over(room, session_id)
    running.cancel()
    await asyncio.wait([running])
    await asyncio.wait_for(asyncio.gather(*reports), 10)
    assert await room.found(session_id, events.Returned) == [], "its time was up: what came of it is not known"
    await tool_runner.forget_settled()
    assert tool_runner.begun == {(session_id, "1-action-0")}
    if settled == "answered":
        await room.answer(session_id, "1-action-0", "settled by hand")
    else:
        await erasure.forget(db, session_id, "local")
    await tool_runner.forget_settled()
    assert tool_runner.begun == set()
    Pay.passed.set()


def reports_of(room: Room) -> list[asyncio.Task[None]]:
    """What the first engine of the room does beside its runs, from now on."""
    reports: list[asyncio.Task[None]] = []
    room.engine.tool_runner.background = lambda work: reports.append(asyncio.ensure_future(work))
    return reports


@pytest.mark.parametrize("count", [1, 2])
async def test_what_only_reads_is_stopped_with_its_run(db: Database, count: int) -> None:
    class Working(Gate):
        """Reads something."""

    room = Room(db, [calls(*[call("working")] * count)], [Working])
    session_id = await room.prompt()
    before = asyncio.all_tasks()
    running = await under_way(room, session_id, Working)
    running.cancel()
    await asyncio.wait([running])
    assert asyncio.all_tasks() - before == set()
    assert await room.found(session_id, events.Returned) == []


async def test_without_a_fresh_heartbeat_an_effect_is_not_begun_and_is_not_in_doubt(db: Database) -> None:
    class Pay(Gate):
        """Pays."""

        effect: ClassVar[Literal["once"]] = "once"

    room = Room(db, [call("pay"), FINISH], [Pay])
    room.engine.tool_runner.is_alive = lambda: False
    Pay.passed.set()
    session_id = await room.prompt()
    session = await room.advance(session_id)
    assert session.state is State.RESEARCHING
    assert Pay.times == []
    row = await room.row(session_id)
    assert (row["holder"], row["due"]) == (None, True)
    session = await room.advance(session_id, room.another("w2"))
    assert session.state is State.COMPLETED
    assert len(Pay.times) == 1
    assert await room.found(session_id, events.Resumed) == []


async def test_what_only_reads_needs_no_heartbeat(db: Database) -> None:
    room = Room(db, [call("echo"), FINISH])
    room.engine.tool_runner.is_alive = lambda: False
    assert (await room.run()).state is State.COMPLETED


async def test_a_worker_that_is_stopping_lets_go_between_two_steps(
    db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Working(Gate):
        """The step that is finished."""

    room = Room(db, [call("working"), FINISH], [Working])
    session_id = await room.prompt()
    running = await under_way(room, session_id, Working)
    room.engine.stopping = True
    Working.passed.set()
    session = await asyncio.wait_for(running, 10)
    assert session.state is State.RESEARCHING  # type: ignore[attr-defined]
    row = await room.row(session_id)
    assert (row["holder"], row["due"]) == (None, True)
    assert (await room.kinds(session_id))[-1] == "Returned"
    session = await room.advance(session_id, room.another("w2"))
    assert session.state is State.COMPLETED
    assert await room.found(session_id, events.Resumed) == [], "nothing was interrupted"
    assert len(Working.times) == 1

    # It is told so while a session waits for its turn: that begins no step either.
    leaving, asked, waits = room.another("w3"), len(room.model.bodies), await room.prompt()

    async def passed_late() -> None:
        leaving.stopping = True

    monkeypatch.setattr(leaving._turnstile, "passed", passed_late)
    assert (await room.advance(waits, leaving)).state is State.RESEARCHING
    assert len(room.model.bodies) == asked
    assert (await room.row(waits))["holder"] is None


async def test_a_deposed_worker_does_not_go_on_asking_a_model_in_trouble(db: Database) -> None:
    room = Room(db, lambda body: say("x", fault=ScriptedStatus(status=500)))
    session_id = await room.prompt()
    stale = await room.claim(session_id, "w1")
    await room.advance(session_id, room.another("w2", retry_limits=RetryLimits(first=30)))
    asked = len(room.model.bodies)
    await asyncio.wait_for(room.engine.advance(stale), 10)
    assert len(room.model.bodies) <= asked + 1
    assert {record.worker for record in (await room.journal(session_id))[2:]} == {"w2"}


async def test_a_lease_that_was_lost_while_resting_ends_the_run_quietly(db: Database) -> None:
    room = Room(db, [FINISH])
    session_id = await room.prompt()
    await room.advance(session_id)
    stale = leases.Lease(session_id=session_id, fence=0, head=0, previous=None, attempts=0, troubled_at=None)
    session = await asyncio.wait_for(room.engine.advance(stale), 10)
    assert session.state is State.COMPLETED
    assert len(await room.journal(session_id)) == session.head


async def test_a_denial_that_meets_the_deadline_of_its_approval_is_the_one_that_counts(db: Database) -> None:
    class Wire(BaseTool):
        """Sends money."""

        effect: ClassVar[Any] = "once"
        needs_approval: ClassVar[bool] = True

        @classmethod
        def descriptor(cls) -> ToolDescriptor:
            return replace(super().descriptor(), approval_timeout=0.001)

    room = Room(db, [call("wire"), FINISH], tools=[Wire])
    session = await room.run()
    assert session.state is State.WAITING_FOR_APPROVAL
    await db.run("UPDATE sessions SET due = true")
    lease = await room.claim(session.id)
    denied = events.Returned(call="1-action-0", outcome=Fault(code="denied", message="No."), by="user")
    async with db.pool.acquire() as person, person.transaction():
        # Written and not yet committed: the worker does not see it, and then meets it.
        await journals.add(Transaction(person), session.id, [denied], trace="")
        running = asyncio.create_task(room.engine.advance(lease))
        await until_waiting(db)
    session = await asyncio.wait_for(running, 10)
    assert session.state is State.COMPLETED
    assert (await room.outcomes(session.id))["1-action-0"] == denied.outcome


async def test_a_once_call_that_was_held_up_past_its_deadline_is_not_begun(db: Database) -> None:
    began: list[str] = []

    class Pay(BaseTool):
        """Pays."""

        effect: ClassVar[Any] = "once"
        timeout: ClassVar[float] = 0.0

        async def __call__(self, context: ToolContext, config: Any = None, **kwargs: Any) -> str:
            began.append(context.call)
            return "paid"

    room = Room(db, [call("pay"), FINISH], tools=[Pay])
    session = await room.run()
    outcome = (await room.outcomes(session.id))["1-action-0"]
    assert isinstance(outcome, Fault)
    assert (outcome.code, began) == ("too_late", [])


async def lost_three_times(room: Room, session_id: str, first: int = 1) -> Session:
    """The session in the hands of the worker after those."""
    for nth in range(first, first + 3):
        await lost_in_thought(room, session_id, f"w{nth}", breaks_off=False, is_cause=True)
    return await room.advance(session_id, room.another(f"w{first + 3}"))


async def decided(room: Room, session: Session, decision: events.Decision) -> None:
    [asked] = session.open.values()
    inbox = Inbox(room.db, room.bus)
    await inbox.decide(session, events.Decided(call=asked.call, decision=decision, by="ann"))


async def test_a_step_that_loses_three_workers_is_left_to_a_person(db: Database) -> None:
    """Whoever says so has it tried again, which counts anew, or ends the turn."""
    room = Room(db, [say("", fault=Hang(seconds=60))] * 6, policy=ExecutionPolicy(approve_in_chat=True))
    session = await lost_three_times(room, session_id := await room.prompt())
    assert (session.state, (await room.row(session_id))["state"]) == (State.WAITING_FOR_APPROVAL,) * 2
    assert not (await room.row(session_id))["due"]
    assert len(room.model.bodies) == 3
    [first] = session.open
    await decided(room, session, "did_not_happen")
    session = await lost_three_times(room, session_id, first=4)
    assert room.model.bodies == room.model.bodies[:1] * 6, "the model is told nothing of it"
    [second] = session.open
    assert first != second, "a decision on the first question reaches no other"
    listed = await db.row("SELECT is_single, asked_at FROM asking_sessions WHERE id = :id", id=session_id)
    assert tuple(listed or ()) == (True, session.open[second].at), "the first one is over"
    await decided(room, session, "give_up")
    session = await room.advance(session_id, room.another("w8"))
    assert session.turn is not None
    assert (session.state, session.turn.code, session.open) == (State.FAILED, "worker_lost", {})
    assert await room.found(session_id, events.Returned) == []
    assert await room.db.rows("SELECT * FROM tool_executions") == []
    records = await room.journal(session_id)
    assert fold(records, blank(session_id)) == await journals.load(db, session_id)


async def test_a_lost_step_that_waits_for_a_person_can_be_cancelled(db: Database) -> None:
    room = Room(db, [*[say("", fault=Hang(seconds=60))] * 3, FINISH])
    session = await lost_three_times(room, session_id := await room.prompt())
    await Inbox(db, room.bus).cancel(session, by="ann")
    session = await journals.load(db, session_id)
    assert (session.state, session.open) == (State.CANCELLED, {})
    assert await room.found(session_id, events.Returned) == [], "there was no call"
    await room.prompt("Again", session_id)
    assert (await room.advance(session_id, room.another("w4"))).state is State.COMPLETED


async def test_a_step_that_loses_three_workers_ends_its_turn_in_words_where_nobody_is_asked(db: Database) -> None:
    room = Room(db, [*[say("", fault=Hang(seconds=60))] * 3, FINISH], policy=ExecutionPolicy(unknown="tell"))
    session = await lost_three_times(room, session_id := await room.prompt())
    assert session.turn is not None
    assert (session.state, session.turn.code) == (State.FAILED, "worker_lost")
    assert (
        session.turn.error == "this step was interrupted three times by the loss of its worker; it is not tried again"
    )
    assert len(room.model.bodies) == 3
    # The next turn begins with a clean slate.
    await room.prompt("Again", session_id)
    assert (await room.advance(session_id, room.another("w4"))).state is State.COMPLETED


async def test_workers_that_leave_and_say_so_are_not_lost(db: Database) -> None:
    """As at a deployment, or when Postgres is silent for a while."""
    room = Room(db, [*[say("", fault=Hang(seconds=60))] * 4, FINISH])
    session_id = await room.prompt()
    for worker in ("w1", "w2", "w3", "w4"):
        await lost_in_thought(room, session_id, worker, breaks_off=True)
    session = await room.advance(session_id, room.another("w5"))
    assert (session.state, len(await room.found(session_id, events.Resumed))) == (State.COMPLETED, 4)


async def test_who_merely_waited_when_its_workers_were_lost_is_not_to_blame_for_thirty_of_them(db: Database) -> None:
    room = Room(db, [*[say("", fault=Hang(seconds=60))] * (MOST_EXCUSED + 4), FINISH])
    session_id = await room.prompt()
    for nth in range(MOST_EXCUSED + 3):
        await lost_in_thought(room, session_id, f"w{nth}", breaks_off=False)
        session = await journals.load(db, session_id)
        assert (session.lost, session.excused) == (
            min(nth, 1) + max(0, nth - 1 - MOST_EXCUSED),
            max(0, min(nth - 1, MOST_EXCUSED)),
        )
    session = await room.advance(session_id, room.another("last"))
    assert (session.state, len(room.model.bodies)) == (State.WAITING_FOR_APPROVAL, MOST_EXCUSED + 3)


async def test_who_merely_waits_is_not_tried_and_a_blamed_one_is_tried_after_the_others(db: Database) -> None:
    class Look(Gate):
        """Looks."""

    room = Room(db, [call("look"), *[say("", fault=Hang(seconds=60))] * 2, FINISH, FINISH], [Look])
    blamed, other = await room.prompt("blamed"), await room.prompt("other")
    for worker in ("w1", "w2"):
        Look.begun.clear()
        looking = await under_way(room, blamed, Look, room.another(worker))
        await lost_in_thought(room, other, worker, breaks_off=False)
        looking.cancel()
        await asyncio.wait([looking])
    engine = room.another("w3")
    running = [asyncio.create_task(engine.advance(await room.claim(other, "w3")))]
    await room.until(other, events.Resumed, 2)
    running.append(asyncio.create_task(engine.advance(await room.claim(blamed, "w3"))))
    Look.passed.set()
    async with asyncio.timeout(20):
        assert [session.state for session in await asyncio.gather(*running)] == [State.COMPLETED] * 2
    resumed = {one: await room.found(one, events.Resumed) for one in (blamed, other)}
    assert [event.excused for event in resumed[blamed]] == [False, False]
    assert [event.excused for event in resumed[other]] == [False, True]
    [finished] = [record for record in await room.journal(other) if isinstance(record.event, events.Finished)]
    [looked] = [record for record in await room.journal(blamed) if isinstance(record.event, events.Returned)][:1]
    assert looked.at > finished.at


class Paying(Gate):
    """Pays, so many times a minute; a test that holds the count holds the call before it begins."""

    effect: ClassVar[Literal["once"]] = "once"

    @classmethod
    def descriptor(cls) -> ToolDescriptor:
        limits = RateLimits(per_minute=60)
        return replace(super().descriptor(), security_policy=SecurityPolicy(rate_limits=limits))


@asynccontextmanager
async def held_up(db: Database) -> AsyncIterator[None]:
    """What uses a tool with a rate limit waits while the block runs: made, and not begun."""
    async with db.pool.acquire() as other, other.transaction():
        await other.execute("LOCK TABLE tool_uses IN ACCESS EXCLUSIVE MODE")
        yield


async def test_a_run_that_was_broken_off_begins_nothing_and_its_calls_are_no_question(db: Database) -> None:
    class Pay(Paying):
        """Pays."""

    room = Room(db, [call("pay"), FINISH], [Pay])
    session_id = await room.prompt()
    Pay.passed.set()
    async with held_up(db):
        running = asyncio.create_task(room.advance(session_id))
        await room.until(session_id, events.Called)
        await until_waiting(db)
        running.cancel()
        await asyncio.wait([running])
    # The same worker takes it up again: it knows that nothing had begun.
    session = await room.advance(session_id)
    assert (session.state, session.client_text) == (State.COMPLETED, "Done.")
    assert len(Pay.times) == 1
    [resumed] = await room.found(session_id, events.Resumed)
    assert resumed == events.Resumed(worker="w1", previous="w1", unbegun=("1-action-0",))
    assert await room.found(session_id, events.Decided) == []


@pytest.mark.parametrize("is_late", [False, True])
async def test_who_was_held_up_before_an_effect_says_so_to_whoever_took_over(db: Database, is_late: bool) -> None:
    class Pay(Paying):
        """Pays."""

        timeout: ClassVar[float] = 0.5 if is_late else 60.0

    room = Room(db, [call("pay"), FINISH], [Pay])
    session_id = await room.prompt()
    Pay.passed.set()
    async with held_up(db):
        running = asyncio.create_task(room.advance(session_id))
        await room.until(session_id, events.Called)
        await until_waiting(db)
        # While it is frozen, nobody can know.
        session = await room.advance(session_id, room.another("w2"))
        assert session.state is State.WAITING_FOR_APPROVAL
        room.engine.tool_runner.is_alive = lambda: False
        if is_late:
            await asyncio.sleep(0.6)
    await room.until(session_id, events.Returned if is_late else events.Decided)
    await asyncio.wait([running], timeout=10)
    session = await room.advance(session_id, room.another("w2"))
    assert session.state is State.COMPLETED
    outcome = (await room.outcomes(session_id))["1-action-0"]
    if is_late:
        assert outcome == Fault(code="too_late", message="pay was not begun in time; nothing happened")
        assert Pay.times == []
    else:
        [decided] = await room.found(session_id, events.Decided)
        assert (decided.decision, decided.by) == ("did_not_happen", "w1")
        assert (outcome, len(Pay.times)) == (Output(content="passed"), 1)


async def test_who_claims_twice_before_saying_so_does_not_speak_for_the_worker_that_was_lost(db: Database) -> None:
    made = await payment(db)
    room, session_id = made.room, made.session_id
    # The answer to the first claim is lost with its connection: the second finds the claimer itself as holder.
    await room.claim(session_id, "w2")
    lease = await room.claim(session_id, "w2")
    assert lease.previous == "w2"
    second = room.another("w2")
    session = await second.advance(lease)
    assert session.state is State.WAITING_FOR_APPROVAL
    assert [one.call for one in session.uncertain] == ["1-action-0"]
    await second.tool_runner.record_unbegun(session_id)
    assert [one.call for one in (await journals.load(db, session_id)).uncertain] == ["1-action-0"]
    assert len(made.pay.times) == 1
    await made.ends()


async def test_what_had_begun_is_not_recorded_as_unbegun(db: Database) -> None:
    made = await payment_taken_over(db)
    await made.room.engine.tool_runner.record_unbegun(made.session_id)
    # Nor by somebody who never had it, and so never began it.
    await made.room.another("w3").tool_runner.record_unbegun(made.session_id)
    session = await journals.load(db, made.session_id)
    assert [one.call for one in session.uncertain] == ["1-action-0"]
    await made.ends()


async def test_who_is_stopped_by_a_full_disk_before_an_effect_says_that_it_was_not_begun(db: Database) -> None:
    """No connection was lost, and still the run was: whoever takes over is told as well."""

    class Pay(Paying):
        """Pays."""

    room = Room(db, [call("pay"), FINISH], [Pay])
    reports = reports_of(room)
    Pay.passed.set()
    session_id = await room.prompt()
    async with full(db, "tool_uses", "INSERT"):
        with pytest.raises(asyncpg.DiskFullError):
            await room.advance(session_id)
    session = await room.advance(session_id, room.another("w2"))
    assert session.state is State.WAITING_FOR_APPROVAL
    await room.until(session_id, events.Decided)
    [decided] = await room.found(session_id, events.Decided)
    assert (decided.decision, decided.by) == ("did_not_happen", "w1")
    assert (await room.advance(session_id, room.another("w2"))).state is State.COMPLETED
    assert len(Pay.times) == 1
    await asyncio.gather(*reports, return_exceptions=True)


async def test_a_call_that_was_made_as_harmless_and_is_known_to_be_an_effect_is_a_question(db: Database) -> None:
    """The class has changed between two releases, or the older one did not look at it."""
    made = await payment(db, "read")
    session_id, pay = made.session_id, made.pay
    pay.effect = "once"
    newer = Room(db, [FINISH], [pay])
    session = await newer.advance(session_id, newer.another("w2"))
    made.running.cancel()
    assert session.state is State.WAITING_FOR_APPROVAL
    told = "It is not known whether pay (1-action-0) took effect: `the worker that ran it was lost`. Did it happen?"
    assert (session.client_text or "").startswith(told)
    pay.passed.set()
    happened = events.Decided(call="1-action-0", decision="did_not_happen", by="user")
    await journals.add(db, session_id, [happened], trace="")
    assert (await newer.advance(session_id, newer.another("w2"))).state is State.COMPLETED
    assert len(pay.times) == 2


async def test_what_may_have_begun_stays_a_question_after_a_hand_over_in_peace(db: Database) -> None:
    """A worker was lost with the call; the next one took over and left, and only the one after it knows better."""
    made = await payment(db, "read")
    room, session_id, pay = made.room, made.session_id, made.pay
    made.running.cancel()
    await asyncio.wait([made.running])
    await room.advance(session_id, room.another("w2", stopping=True))
    row = await room.row(session_id)
    assert (row["holder"], row["due"]) == (None, True)
    pay.effect = "once"
    pay.passed.set()
    newer = Room(db, [FINISH], [pay])
    session = await newer.advance(session_id, newer.another("w3"))
    assert session.state is State.WAITING_FOR_APPROVAL
    assert [one.call for one in session.uncertain] == ["1-action-0"]
    assert len(pay.times) == 1
    # A person's word is taken: it is run, and not asked about again.
    again = events.Decided(call="1-action-0", decision="did_not_happen", by="user")
    await journals.add(db, session_id, [again], trace="")
    unsure = newer.another("w4")
    unsure.tool_runner.is_alive = lambda: False
    assert (await newer.advance(session_id, unsure)).state is State.RESEARCHING
    row = await room.row(session_id)
    assert (row["holder"], row["due"], len(pay.times)) == (None, True, 1), "an effect that waits for a fresh heartbeat"
    assert (await newer.advance(session_id, newer.another("w5"))).state is State.COMPLETED
    assert len(pay.times) == 2


@pytest.mark.parametrize("lost", ["worker", "answer"])
async def test_an_agent_may_be_told_instead_that_nobody_knows(db: Database, lost: str) -> None:
    class Pay(Gate):
        """Pays."""

        effect: ClassVar[Literal["once"]] = "once"
        timeout: ClassVar[float] = 60.0 if lost == "worker" else 0.05

    room = Room(db, [call("pay"), FINISH], [Pay], policy=ExecutionPolicy(unknown="tell"))
    session_id = await room.prompt()
    if lost == "worker":
        running = await under_way(room, session_id, Pay)
        session = await room.advance(session_id, room.another("w2"))
        running.cancel()
    else:
        session = await room.advance(session_id)
    assert session.state is State.COMPLETED
    why = "the worker that ran it was lost" if lost == "worker" else "pay did not answer within 0.05 seconds"
    outcome = (await room.outcomes(session_id))["1-action-0"]
    assert outcome == Fault(
        code="unknown_outcome",
        message=f"it is not known whether pay took effect: {why}; do not repeat it without checking",
    )
    assert "it is not known whether pay took effect" in room.results()[0]
    assert len(Pay.times) == 1
    Pay.passed.set()


async def test_an_effect_whose_time_is_up_is_a_question_and_can_be_settled(db: Database) -> None:
    class Pay(Gate):
        """Pays."""

        effect: ClassVar[Literal["once"]] = "once"
        timeout: ClassVar[float] = 0.05

    class Look(Gate):
        """Looks."""

    Look.passed.set()
    room = Room(db, [calls(call("pay"), call("look")), FINISH], [Pay, Look])
    session_id = await room.prompt()
    session = await room.advance(session_id)
    assert session.state is State.WAITING_FOR_APPROVAL
    assert (session.client_text or "").startswith(
        "It is not known whether pay (1-action-0) took effect: `pay did not answer"
    )
    assert (await room.outcomes(session_id)) == {"1-action-1": Output(content="passed")}
    row = await room.row(session_id)
    assert (row["holder"], row["due"], row["state"]) == (None, False, "WAITING_FOR_APPROVAL")
    Pay.passed.set()
    again = events.Decided(call="1-action-0", decision="did_not_happen", by="user")
    await journals.add(db, session_id, [again], trace="")
    assert (await room.advance(session_id, room.another("w2"))).state is State.COMPLETED
    assert Pay.times == [f"{session_id}:1-action-0"] * 2
