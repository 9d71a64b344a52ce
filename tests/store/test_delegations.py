"""What two journals say of each other is written together or not at all, also where a cancel meets an end."""

import asyncio
import random
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import asyncpg
import msgspec
import pytest
from unsteady_connection import COMMIT, unsteady

from longhouse import clock
from longhouse.agents.delegation import MAX_OPEN_TASKS, AgentTask, Delegation, delegation_of
from longhouse.agents.template import Template
from longhouse.errors import Deposed
from longhouse.journal import events
from longhouse.journal.events import Event, Recorded
from longhouse.journal.fold import extended, fold
from longhouse.journal.session import Session
from longhouse.runtime.bus.local import Bus
from longhouse.runtime.inbox import Inbox
from longhouse.store import journals, leases
from longhouse.store.database import Database
from longhouse.store.delegation import delegations, results
from longhouse.store.delegation.delegations import Collect, Recording
from server_helpers import LIMITS, turn_of

MASTER, HELPER = Template(name="master"), Template(name="helper")
CALL = "1-action-0"
OUTPUT = events.Output(content="12:00")


@dataclass
class Held:
    """A session in the hands of a worker that does what the test says."""

    db: Database
    session: Session
    fence: int

    def settle(self, new: Sequence[Event]) -> tuple[Session, list[Event]]:
        return folded(self.session, new), list(new)

    @property
    def recording(self) -> Recording:
        return Recording(self.fence, "w", clock.now())

    async def append(self, *new: Event) -> None:
        after, settled = self.settle(new)
        await journals.append(self.db, after, settled, fence=self.fence, worker="w", at=clock.now(), rest=None)
        self.session = after

    async def begin(
        self, *new: Event, tasks: Sequence[Delegation] = (), collects: Sequence[Collect] = ()
    ) -> list[tuple[str, int]]:
        self.session, _, reached = await delegations.begin(
            self.db, self.session, new, tasks, collects,
            settle=self.settle, recording=self.recording,
        )  # fmt: skip
        return reached

    async def end(self, answer: str = "done") -> list[tuple[str, int]]:
        after, settled = self.settle([events.Finished(answer=answer)])
        _, told = await delegations.end(self.db, self.session, after, turn_of(after), settled, recording=self.recording)
        self.session = after
        return told


def folded(session: Session, new: Sequence[Event]) -> Session:
    at = clock.now()
    return fold((Recorded(seq=session.head + 1 + nth, at=at, event=one) for nth, one in enumerate(new)), session)


async def held(db: Database, session_id: str) -> Held:
    """Takes the session and starts on its next prompt."""
    lease = (await leases.claim(db, session_id, "w")).lease
    assert lease is not None
    there = Held(db, await journals.load(db, session_id), lease.fence)
    waiting = there.session.queue[0]
    await there.append(
        events.Started(
            trace=waiting.prompt.trace, prompt=waiting.seq, version=1, instance="i", limits=LIMITS, date="2026-01-31"
        )
    )
    return there


async def prompted(db: Database, session_id: str = "master-0", *, agent: str = "master", trace: str = "t-0") -> Held:
    opened = events.Opened(agent=agent, version=1, owner="local", conversation="c-0")
    prompt = events.Prompted(trace=trace, content=("Go",))
    await journals.open(db, session_id, opened, prompt, task="Go")
    return await held(db, session_id)


def called(call: str = CALL, tool: str = "agent.helper") -> events.Called:
    return events.Called(call=call, tool=tool, arguments='{"task": "Help."}', call_kind="agent")


def handed_down(session: Session, call: str, task: AgentTask) -> Delegation:
    assert session.turn is not None
    return delegation_of(session, session.turn, MASTER, task, call=call, agent="helper", version=1)


def task_for(parent: Session, call: str = CALL, **extra: Any) -> Delegation:
    after = folded(parent, [events.Replied(), called(call)])
    return handed_down(after, call, AgentTask(task="Help.", **extra))


async def delegated(db: Database, call: str = CALL, **extra: Any) -> tuple[Held, Held]:
    """A master that waits for its helper, and the helper at work."""
    parent = await prompted(db)
    [(child, _)] = await parent.begin(events.Replied(), called(call), tasks=[task_for(parent.session, call, **extra)])
    return parent, await held(db, child)


async def kinds(db: Database, session_id: str) -> list[str]:
    return [events.kind_of(one.event) for one in await journals.read(db, session_id)]


BREAK = """
    CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'refused'; END $$;
    CREATE TRIGGER refuse BEFORE INSERT ON journal FOR EACH ROW WHEN ({when}) EXECUTE FUNCTION refuse()
"""


async def break_down(db: Database, when: str) -> None:
    async with db.pool.acquire() as connection:
        await connection.execute(BREAK.format(when=when))


async def test_a_call_is_written_with_its_prompt_or_not_at_all(db: Database) -> None:
    parent = await prompted(db)
    await break_down(db, "NEW.kind = 'Prompted' AND NEW.session_id <> 'master-0'")
    with pytest.raises(asyncpg.RaiseError):
        await parent.begin(events.Replied(), called(), tasks=[task_for(parent.session)])
    assert await kinds(db, "master-0") == ["Opened", "Prompted", "Started"]
    assert await db.value("SELECT count(*) FROM sessions") == 1
    assert await db.value("SELECT count(*) FROM delegations") == 0


async def test_an_end_is_written_with_the_outcome_above_or_not_at_all(db: Database) -> None:
    parent, child = await delegated(db)
    await break_down(db, "NEW.kind = 'Returned' AND NEW.session_id = 'master-0'")
    with pytest.raises(asyncpg.RaiseError):
        await child.end()
    assert await kinds(db, child.session.id) == ["Opened", "Prompted", "Started"]
    assert await kinds(db, parent.session.id) == ["Opened", "Prompted", "Started", "Replied", "Called"]
    assert await db.value("SELECT count(*) FROM delegations WHERE outcome IS NULL") == 1
    assert await db.value("SELECT count(*) FROM awaits") == 1


async def test_an_end_reaches_the_call_that_waits_for_it(db: Database) -> None:
    parent, child = await delegated(db)
    assert await child.end("found it") == [("master-0", 6)]
    last = (await journals.read(db, parent.session.id))[-1].event
    assert isinstance(last, events.Returned)
    assert (last.call, last.by, last.outcome) == (CALL, "agent", events.Output(content="found it"))
    assert await db.value("SELECT due FROM sessions WHERE id = 'master-0'")


async def test_an_end_whose_call_was_settled_meanwhile_is_written_without_it(db: Database) -> None:
    parent, child = await delegated(db)
    given_up = events.Returned(call=CALL, outcome=events.Fault(code="x", message="settled by somebody"))
    await journals.add(db, parent.session.id, [given_up], trace="t-0")
    assert await child.end() == []
    assert (await kinds(db, child.session.id))[-1] == "Finished"
    assert (await kinds(db, parent.session.id)).count("Returned") == 1


async def test_a_deposed_child_ends_nothing(db: Database) -> None:
    parent, child = await delegated(db)
    await db.run("UPDATE sessions SET fence = fence + 1 WHERE id = :id", id=child.session.id)
    with pytest.raises(Deposed):
        await child.end()
    assert (await kinds(db, parent.session.id))[-1] == "Called"
    assert await db.value("SELECT count(*) FROM delegations WHERE outcome IS NULL") == 1


async def test_a_deposed_parent_prompts_nobody(db: Database) -> None:
    parent = await prompted(db)
    await db.run("UPDATE sessions SET fence = fence + 1 WHERE id = 'master-0'")
    with pytest.raises(Deposed):
        await parent.begin(events.Replied(), called(), tasks=[task_for(parent.session)])
    assert await db.value("SELECT count(*) FROM sessions") == 1


async def test_what_was_written_although_nobody_heard_of_it_is_written_once(db: Database, dsn: str) -> None:
    parent = await prompted(db)
    async with unsteady(dsn) as (shaky, line):
        line.lose_reply(at=COMMIT)
        with pytest.raises(delegations.DelegationWritten):
            await Held(shaky, parent.session, parent.fence).begin(
                events.Replied(), called(), tasks=[task_for(parent.session)]
            )
        assert line.cuts == 1
        child_id = await db.value("SELECT child FROM delegations")
        assert await kinds(db, child_id) == ["Opened", "Prompted"]
        child = await held(db, child_id)
        line.lose_reply(at=COMMIT)
        with pytest.raises(delegations.DelegationWritten):
            await Held(shaky, child.session, child.fence).end()
        assert line.cuts == 2
    assert (await kinds(db, child.session.id)).count("Finished") == 1
    assert (await kinds(db, parent.session.id)).count("Returned") == 1


async def test_a_cancel_that_was_written_although_nobody_heard_of_it_ends_nothing_else(db: Database, dsn: str) -> None:
    parent, child = await delegated(db)
    await journals.add(db, "master-0", [events.Prompted(trace="later", content=("Next",))], trace="later")
    async with unsteady(dsn) as (shaky, line):
        line.lose_reply(at=COMMIT)
        await Inbox(shaky, Bus()).cancel(await journals.load(shaky, "master-0"), by="user")
        assert line.cuts == 1
    assert (await kinds(db, "master-0")).count("Cancelled") == 1
    assert (await kinds(db, child.session.id)).count("Cancelled") == 1
    assert [one.prompt.trace for one in (await journals.load(db, parent.session.id)).queue] == ["later"]


async def test_two_calls_of_one_reply_open_one_child_with_two_prompts(db: Database) -> None:
    parent = await prompted(db)
    calls = ("1-action-0", "1-action-1")
    after = folded(parent.session, [events.Replied(), *(called(one) for one in calls)])
    tasks = [handed_down(after, one, AgentTask(task=one)) for one in calls]
    reached = await parent.begin(events.Replied(), *(called(one) for one in calls), tasks=tasks)
    assert len({session_id for session_id, _ in reached}) == 1
    assert await kinds(db, reached[0][0]) == ["Opened", "Prompted", "Prompted"]
    child = await held(db, reached[0][0])
    assert await child.end("first") == [("master-0", 7)]
    assert set((await journals.load(db, "master-0")).open) == {"1-action-1"}


AT_WORK = """
    INSERT INTO delegations (parent, call, child, prompt, trace)
    SELECT 'master-0', 'earlier-' || n, 'somebody', n, :trace FROM generate_series(1, :many) n
"""


async def test_no_more_agents_are_called_where_too_many_are_at_work_for_one_request(db: Database) -> None:
    parent = await prompted(db)
    await db.run(AT_WORK, many=MAX_OPEN_TASKS, trace="another")
    await db.run(AT_WORK.replace("earlier", "before"), many=MAX_OPEN_TASKS - 1, trace="t-0")
    calls = ("1-action-0", "1-action-1")
    new: list[events.Event] = [events.Replied(), *(called(one) for one in calls)]
    after = folded(parent.session, new)
    tasks = [handed_down(after, one, AgentTask(task=one, wait=False)) for one in calls]
    handles = [events.Returned(call=one, outcome=events.Output(content="a handle")) for one in calls]
    reached = await parent.begin(*new, *handles, tasks=tasks)
    assert len(reached) == 1
    told = [one.event for one in await journals.read(db, "master-0") if isinstance(one.event, events.Returned)]
    assert told[0] == handles[0]
    [refused] = [one.outcome for one in told[1:]]
    assert isinstance(refused, events.Fault)
    assert (refused.code, str(MAX_OPEN_TASKS) in refused.message) == ("too_many_agents", True)


async def test_what_an_agent_has_used_goes_up_with_its_outcome(db: Database) -> None:
    parent, child = await delegated(db)
    assert child.session.turn is not None
    usage = events.Usage(prompt_tokens=5, completion_tokens=2, total_tokens=7)
    await child.append(events.Replied(usage=usage), called(tool="clock"), events.Returned(call=CALL, outcome=OUTPUT))
    at = child.session.turn.started_at + timedelta(seconds=30)
    settled: list[events.Event] = [events.Finished(answer="done")]
    after = extended(child.session, settled, at)
    await delegations.end(db, child.session, after, turn_of(after), settled, recording=Recording(child.fence, "w", at))
    told = (await journals.read(db, parent.session.id))[-1].event
    assert told == events.Returned(
        call=CALL, outcome=events.Output(content="done"), by="agent", spent=usage, calls=1, seconds=30
    )
    shared = events.SharedBudget(token_budget=10)
    prompt = events.Prompted(trace="t-0", content=("x",), budget=LIMITS, shared_budget=shared)
    left = await results.budget_left(db, parent.session, prompt)
    assert left is not None
    assert (left.token_budget, left.tool_budget) == (3, None)
    assert await results.budget_left(db, parent.session, msgspec.structs.replace(prompt, trace="another")) == (
        msgspec.structs.replace(LIMITS, token_budget=10)
    )
    assert await results.budget_left(db, parent.session, msgspec.structs.replace(prompt, shared_budget=None)) == LIMITS


# Hundreds of races between an end below and a cancel above. One pair is made for real, the others are copies of it.

RACES, AT_ONCE = 400, 8
COPY = (
    """
    INSERT INTO sessions SELECT (jsonb_populate_record(s, jsonb_build_object(
        'id', replace(s.id, '-0', '-' || n), 'conversation_id', 'c-' || n, 'trace_id', 't-' || n,
        'parent', replace(s.parent, '-0', '-' || n)))).*
    FROM sessions s, generate_series(1, :many) n
    """,
    """
    INSERT INTO journal (session_id, seq, conversation_id, trace_id, kind, call_id, reply_to, worker, fence,
                         append_id, nth, body, at)
    SELECT replace(session_id, '-0', '-' || n), seq, 'c-' || n, 't-' || n, kind, call_id,
           replace(reply_to, 'master-0', 'master-' || n), worker, fence, append_id, nth,
           regexp_replace(body::text, '(master|t|c)-0"', '\\1-' || n || '"', 'g')::json, at
    FROM journal, generate_series(1, :many) n
    """,
    """
    INSERT INTO delegations (parent, call, child, prompt, trace)
    SELECT 'master-' || n, call, 'helper-' || n, prompt, 't-' || n FROM delegations, generate_series(1, :many) n
    """,
    "INSERT INTO awaits SELECT 'master-' || n, call, awaited FROM awaits, generate_series(1, :many) n",
)
NAME = (
    "UPDATE sessions SET id = 'helper-0' WHERE side = 'sub'",
    "UPDATE journal SET session_id = 'helper-0' WHERE session_id LIKE 'helper%'",
    "UPDATE delegations SET child = 'helper-0'",
)
TALLY = """
    SELECT m.id,
        (SELECT count(*) FROM journal WHERE session_id = m.id AND kind = 'Returned') AS returned,
        (SELECT count(*) FROM journal WHERE session_id = m.id AND kind = 'Cancelled') AS cancelled,
        (SELECT body->'outcome'->>'type' FROM journal WHERE session_id = m.id AND kind = 'Returned') AS outcome,
        (SELECT string_agg(kind, ' ') FROM journal
         WHERE session_id = d.child AND kind IN ('Finished', 'Cancelled')) AS ended,
        (SELECT count(*) = max(seq) FROM journal WHERE session_id IN (m.id)) AS unbroken,
        d.outcome IS NOT NULL AS settled, m.head, m.state
    FROM sessions m JOIN delegations d ON d.parent = m.id
"""


async def test_hundreds_of_ends_meet_as_many_cancels(db: Database) -> None:
    _, child = await delegated(db)
    for statement in NAME:
        await db.run(statement)
    for statement in COPY:
        await db.run(statement, many=RACES - 1)
    inbox = Inbox(db, Bus())
    dice, numbers, usual = random.Random(6), iter(range(RACES)), 0.01

    async def end(number: int) -> None:
        assert child.session.turn is not None
        mine = msgspec.structs.replace(child.session, id=f"helper-{number}", conversation=f"c-{number}")
        await asyncio.sleep(dice.choice((0, dice.random() * usual, dice.random() * usual)))
        try:
            await Held(db, mine, child.fence).end()
        except Deposed:
            return

    async def cancel(session_id: str) -> None:
        nonlocal usual
        await asyncio.sleep(dice.choice((0, 0, 0.002)))
        since = asyncio.get_running_loop().time()
        await inbox.cancel(await journals.load(db, session_id), by="user")
        # However busy the machine is: an end begins while a cancel is on its way, now early, now late.
        usual = 0.9 * usual + 0.1 * (asyncio.get_running_loop().time() - since)

    async def race() -> None:
        for number in numbers:
            both = [end(number), cancel(f"master-{number}")]
            if number % 5 == 0:
                both.append(cancel(f"helper-{number}"))
            await asyncio.gather(*both)

    async with asyncio.timeout(120):
        await asyncio.gather(*(race() for _ in range(AT_ONCE)))
    rows = await db.rows(TALLY)
    assert len(rows) == RACES
    for row in rows:
        assert (row["returned"], row["cancelled"], row["settled"], row["unbroken"]) == (1, 1, True, True), dict(row)
        assert row["ended"] in ("Finished", "Cancelled"), dict(row)
        assert (row["outcome"] == "Output") == (row["ended"] == "Finished"), dict(row)
        assert row["state"] == "CANCELLED"
    assert {row["ended"] for row in rows} == {"Finished", "Cancelled"}  # both sides have won some
    assert await db.value("SELECT count(*) FROM awaits") == 0
