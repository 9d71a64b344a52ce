"""The journal: each event once, in order, in the words in which it was said; folded fast, however long."""

import asyncio
from datetime import timedelta
from typing import Any

import asyncpg
import pytest
from unsteady_connection import unsteady

from longhouse import clock
from longhouse.errors import AlreadyReturned, Deposed, ReadOnlySession, UnknownShape
from longhouse.journal import events, messages
from longhouse.journal.events import Event, Output, Recorded
from longhouse.journal.fold import FOLD_VERSION, blank, fold
from longhouse.journal.session import Session, State
from longhouse.models.scripted import Call, Say, call
from longhouse.store import journals, leases
from longhouse.store.database import Database, Executor, Transaction, open_database
from longhouse.store.leases import Claimant, Lease
from longhouse.store.requests import Repeated, RequestIdentity
from server_helpers import AGENT, Serving

LIMITS = events.Limits(max_iterations=1000, max_clarifications=3, time_budget=1800)


def prompted(text: str = "Hello", trace: str = "t1") -> events.Prompted:
    return events.Prompted(trace=trace, content=(text,))


async def opened(db: Database, *, conversation: str = "c", session_id: str = "s") -> journals.Placed:
    about = events.Opened(agent=AGENT, version=1, owner="local", conversation=conversation)
    return await journals.open(db, session_id, about, prompted(), task="Hello")


async def append(db: Database, lease: leases.Lease, new: list[Event], *, rest: bool = False) -> journals.Appended:
    before = await journals.load(db, lease.session_id)
    at = clock.now()
    after = fold((Recorded(seq=before.head + 1 + i, at=at, event=event) for i, event in enumerate(new)), before)
    mark = journals.Rest(head=before.head) if rest else None
    return await journals.append(db, after, new, fence=lease.fence, worker="w", at=at, rest=mark)


async def held(db: Database) -> leases.Lease:
    """An open session in our hands."""
    await opened(db)
    lease = (await leases.claim(db, "s", "w")).lease
    assert lease is not None
    return lease


def started(prompt: int = 2, trace: str = "t1") -> events.Started:
    return events.Started(trace=trace, prompt=prompt, version=1, instance="i", limits=LIMITS, date="2026-01-31")


def stepped(name: str, *, arguments: str = "{}", output: str = "noted") -> list[Event]:
    return [
        events.Replied(calls=(events.ProviderCall(id=f"p{name}", name="look", arguments=arguments),)),
        events.Called(call=name, provider_id=f"p{name}", tool="look", arguments=arguments),
        events.Returned(call=name, outcome=Output(content=output)),
    ]


async def whole(db: Database) -> list[events.Event]:
    told = await journals.read(db, "s")
    assert [record.seq for record in told] == list(range(1, len(told) + 1))
    assert await db.value("SELECT head FROM sessions WHERE id = 's'") == len(told)
    return [record.event for record in told]


async def test_appends_are_not_planned_anew_each_time(db: Database) -> None:
    """Postgres keeps a plan for all values unless plans for each look cheaper: planning costs more than the append."""
    lease = await held(db)
    await append(db, lease, [started()])
    session, used = await journals.load(db, "s"), events.Usage(prompt_tokens=100, completion_tokens=5, total_tokens=105)
    plans = """
        SELECT generic_plans > custom_plans FROM pg_prepared_statements
        WHERE statement LIKE '%UPDATE sessions s SET%head = s.head +%fence = $%' AND generic_plans + custom_plans >= 20
    """

    async def record(tx: Transaction) -> list[bool]:
        for nth in range(20):
            _, called, returned = stepped(f"{nth}")
            replied = events.Replied(model="m", usage=used)
            for new, mark in (([replied, called], None), ([returned], None), (list[Event](), f"{nth}")):
                await journals.append(
                    tx, session, new, fence=lease.fence, worker="w", at=clock.now(), rest=None, fingerprint=mark
                )
        return [row[0] for row in await tx.rows(plans)]

    assert await db.together(record) == [True, True, True]


# Written once, whatever happens on the way


async def test_an_append_whose_reply_is_lost_is_there_once(dsn: str, db: Database) -> None:
    async with unsteady(dsn) as (shaky, line):
        lease = await held(db)
        await shaky.value("SELECT 1")
        line.lose_reply(times=3)
        appended = await journals.append(
            shaky, await journals.load(db, "s"), [started(), *stepped("1")],
            fence=lease.fence, worker="w", at=clock.now(), rest=None,
        )  # fmt: skip
        assert line.cuts == 3
        assert [record.seq for record in appended.recorded] == [3, 4, 5, 6]
        assert len(await whole(db)) == 6


async def test_a_last_append_whose_reply_is_lost_knows_that_it_rests(dsn: str, db: Database) -> None:
    async with unsteady(dsn) as (shaky, line):
        lease = await held(db)
        await append(db, lease, [started()])
        before = await journals.load(db, "s")
        line.lose_reply()
        appended = await journals.append(
            shaky, before, [events.Finished(answer="done")],
            fence=lease.fence, worker="w", at=clock.now(), rest=journals.Rest(head=3), fingerprint="f",
        )  # fmt: skip
        assert line.cuts == 1
        assert appended.rested
        assert len(await whole(db)) == 4
        assert await db.value("SELECT count(*) FROM rests") == 1


async def test_an_append_that_names_its_head_finds_itself_when_its_reply_is_lost(dsn: str, db: Database) -> None:
    async with unsteady(dsn) as (shaky, line):
        await opened(db)
        line.lose_reply()
        placed = await journals.add(shaky, "s", [prompted("More", "t2")], trace="t2", head=2)
        assert (placed.seq, line.cuts) == (3, 1)
        assert len(await whole(db)) == 3
        with pytest.raises(journals.NotThere):
            await journals.add(shaky, "s", [prompted("Late", "t3")], trace="t3", head=2)


async def test_what_outsiders_add_is_there_once_when_its_reply_is_lost(dsn: str, db: Database) -> None:
    async with unsteady(dsn) as (shaky, line):
        line.lose_reply()
        assert (await opened(shaky)).seq == 2
        line.lose_reply(times=2)
        accepted = RequestIdentity(owner="local", digest="d", key="k")
        placed = await journals.add(shaky, "s", [prompted("More", "t2")], trace="t2", accepted=accepted)
        assert (placed.seq, line.cuts) == (3, 3)
        assert [type(event).__name__ for event in await whole(db)] == ["Opened", "Prompted", "Prompted"]
        assert await db.value("SELECT count(*) FROM requests") == 1
        # The key is taken now, by whomever it is tried again.
        with pytest.raises(Repeated):
            await journals.add(shaky, "s", [prompted("More", "t2")], trace="t2", accepted=accepted)
        assert len(await whole(db)) == 3


async def test_a_session_that_several_open_at_once_is_opened_once_and_has_one_past(dsn: str, db: Database) -> None:
    known = (messages.User(content="I am Aliya"), messages.Assistant(content="Noted"))
    about = events.Opened(agent=AGENT, version=1, owner="local", conversation="c")
    async with unsteady(dsn) as (shaky, line):
        for number, proposed in enumerate(("s", "another")):
            line.lose_reply(times=2)
            prompt = events.Prompted(trace=f"t{number}", content=("Hello",), prior=known)
            # Only the one that opens it claims it, also if nobody heard that it did.
            placed = await journals.open(shaky, proposed, about, prompt, task="Hello", claimant=Claimant("w"))
            assert (placed.session_id, placed.seq) == ("s", number + 2)
            assert placed.lease == (None if number else Lease("s", 1, 2, None, 0, None, "local"))
        assert line.cuts == 4
    assert [tuple(row) for row in await db.rows("SELECT holder, fence, due FROM sessions")] == [("w", 1, True)]
    [found] = await leases.runnable(db, "other", 9, running=())  # it is on no roster: its process has died
    assert found[0] == "s"
    told = await whole(db)
    assert [type(event).__name__ for event in told] == ["Opened", "Prompted", "Prompted"]
    assert [event.prior for event in told if isinstance(event, events.Prompted)] == [known, ()]


async def test_a_row_shows_the_beginning_of_a_task_and_the_journal_all_of_it(db: Database) -> None:
    task = "Hello " * 1_000
    about = events.Opened(agent=AGENT, version=1, owner="local", conversation="c")
    await journals.open(db, "s", about, prompted(task), task=task)
    assert await db.value("SELECT task FROM sessions") == task[:1_000]
    lease = (await leases.claim(db, "s", "w")).lease
    assert lease
    await append(db, lease, [started()])
    assert await db.value("SELECT task FROM sessions") == task[:1_000]
    session = await journals.load(db, "s")
    assert session.turn
    assert session.turn.task == task


async def test_a_cancel_whose_reply_is_lost_cancels_one_turn(dsn: str, db: Database) -> None:
    async with unsteady(dsn) as (shaky, line):
        await append(db, await held(db), [started()])
        await journals.add(db, "s", [prompted("Next", "t2")], trace="t2")
        session = await journals.load(db, "s")
        cancelled: list[Event] = [events.Cancelled(trace="t1", by="user")]
        after = fold([Recorded(seq=5, at=clock.now(), event=cancelled[0])], session)
        line.lose_reply()
        placed = await journals.cancel(shaky, session, cancelled, after=after)
        assert placed is not None
        assert (placed.seq, line.cuts, len(await whole(db))) == (5, 1, 5)
        assert await journals.cancel(db, session, cancelled, after=after) is None


async def test_appends_under_a_rain_of_cut_connections_are_all_there_once(dsn: str, db: Database) -> None:
    lease = await held(db)
    await append(db, lease, [started()])
    admin, cuts, said = await asyncpg.connect(dsn), 0, ["Hello"]

    async def rain() -> None:
        nonlocal cuts
        while cuts < 12:
            cuts += await admin.fetchval(
                "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity "
                "WHERE datname = current_database() AND pid <> pg_backend_pid()"
            )
            await asyncio.sleep(0.1)

    async def prompt(number: int) -> None:
        while cuts < 12:
            said.append(f"{number}-{len(said)}")
            await journals.add(db, "s", [prompted(said[-1])], trace="t", most_waiting=1_000_000)

    async def work() -> int:
        steps = 0
        while cuts < 12:
            await append(db, lease, stepped(str(steps)))
            steps += 1
        return steps

    async with asyncio.timeout(30):
        prompts = asyncio.gather(*(prompt(number) for number in range(4)))
        _, steps, _ = await asyncio.gather(rain(), work(), prompts)
    await admin.close()
    told = await whole(db)
    assert sorted(str(event.content[0]) for event in told if isinstance(event, events.Prompted)) == sorted(said)
    assert [event.call for event in told if isinstance(event, events.Returned)] == [str(one) for one in range(steps)]


async def test_a_stale_fence_never_writes(db: Database) -> None:
    lease = await held(db)
    await append(db, lease, [started()])
    newer = (await leases.claim(db, "s", "w2")).lease
    assert newer is not None
    with pytest.raises(Deposed):
        await append(db, lease, stepped("1"))
    assert len(await whole(db)) == 3
    await append(db, newer, stepped("1"))


async def test_a_call_returns_once(db: Database) -> None:
    lease = await held(db)
    await append(db, lease, [started(), *stepped("1")])
    again = events.Returned(call="1", outcome=Output(content="once more"))
    with pytest.raises(AlreadyReturned):
        await journals.add(db, "s", [again], trace="t1")
    assert len(await whole(db)) == 6


async def test_two_who_open_the_same_session_open_one(db: Database) -> None:
    placed = await asyncio.gather(*(opened(db, session_id=f"s{number}") for number in range(8)))
    assert len({one.session_id for one in placed}) == 1
    assert sorted(one.seq for one in placed) == list(range(2, 10))
    told = await journals.read(db, placed[0].session_id)
    assert [type(record.event).__name__ for record in told] == ["Opened"] + ["Prompted"] * 8


async def test_rest_is_refused_when_something_came_meanwhile(db: Database) -> None:
    lease = await held(db)
    await append(db, lease, [started()])
    before = await journals.load(db, "s")
    await journals.add(db, "s", [prompted("More", "t2")], trace="t2")
    end = [events.Finished(answer="done")]
    appended = await journals.append(
        db, before, end, fence=lease.fence, worker="w", at=clock.now(), rest=journals.Rest(head=before.head)
    )
    assert not appended.rested
    assert await db.value("SELECT due AND holder = 'w' FROM sessions")


# As it was said


async def test_arguments_come_back_in_the_models_own_words(serving: Serving) -> None:
    arguments = '{"reasoning": "zebra before aardvark",  "timezone":"UTC", "b":1.0, "a":[ 2,1 ], "é":"\\u00e9"}'
    said = Say(calls=(Call(name="clocktool", arguments=arguments),))
    async with serving([said, call("finalanswertool", answer="done")]) as house:
        session_id = (await house.say("When?"))["model"]
        told = await house.journal(session_id)
        [called] = [r.event for r in told if isinstance(r.event, events.Called) and r.event.tool == "clocktool"]
        assert called.arguments == arguments
        assert house.model is not None
        sent = house.model.requests[-1]["messages"]
        assert sent[2]["tool_calls"][0]["function"]["arguments"] == arguments


@pytest.mark.parametrize("text", ["x" * 70_000, "é" * 40_000], ids=["ascii", "two bytes a character"])
async def test_a_body_over_64_kilobytes_goes_to_files(db: Database, text: str) -> None:
    lease = await held(db)
    await append(db, lease, [started(), *stepped("1", output=text), *stepped("2", output="short")])
    rows = await db.rows("SELECT kind, body::text, body_digest FROM journal WHERE kind = 'Returned' ORDER BY seq")
    assert [(row["body"] == "{}", row["body_digest"] is not None) for row in rows] == [(True, True), (False, False)]
    [size] = [row["size"] for row in await db.rows("SELECT length(content) AS size FROM files")]
    assert size > 64 * 1024
    outcomes = [event.outcome for event in await whole(db) if isinstance(event, events.Returned)]
    assert outcomes == [Output(content=text), Output(content="short")]


async def test_an_unknown_shape_is_not_guessed(db: Database) -> None:
    await opened(db)
    await db.run("""UPDATE journal SET body = '{"v":2,"kind":"Prompted"}' WHERE seq = 2""")
    with pytest.raises(UnknownShape):
        await journals.load(db, "s")


# Long lives


async def written(db: Database, turns: int, steps: int) -> None:
    """A long journal, copied in: `turns` turns of so many steps of three events each."""
    await opened(db)
    await db.run("DELETE FROM journal")
    told: list[tuple[Event, str]] = []
    opening = events.Opened(agent=AGENT, version=1, owner="local", conversation="c")
    told.append((opening, "t0"))
    for turn in range(turns):
        trace = f"t{turn}"
        new: list[Event] = [prompted(f"Question {turn}", trace), started(prompt=len(told) + 1, trace=trace)]
        for step in range(steps):
            arguments = f'{{"query": "what about {turn} and {step}?", "limit": 10}}'
            new += stepped(f"{turn}-{step}", arguments=arguments, output=f"Some forty words on {turn}. " * 4)
        new.append(events.Finished(answer=f"The answer to question {turn}."))
        told += [(event, trace) for event in new]
    at = clock.now()
    columns = ["session_id", "seq", "conversation_id", "trace_id", "kind", "call_id", "append_id", "nth", "body", "at"]
    rows: list[Any] = [
        ("s", seq, "c", trace, events.kind_of(event), events.call_of(event),
         f"00000000-0000-0000-0000-{seq:012d}", 1, events.encode(event), at + timedelta(milliseconds=seq))
        for seq, (event, trace) in enumerate(told, 1)
    ]  # fmt: skip
    async with db.pool.acquire() as connection:
        await connection.copy_records_to_table("journal", records=rows, columns=columns)
    await db.run("UPDATE sessions SET head = :head, due = false", head=len(rows))


async def from_scratch(db: Database) -> Session:
    return await journals.catch_up(db, blank("s"))


# A process as `longhouse serve` and `longhouse work` are once they have started; prints the dearest wake of many.
class Counting(Executor):
    """Counts the rows that are read."""

    def __init__(self, db: Database) -> None:
        self._db, self.rows_read = db, 0

    async def _execute(self, method: str, statement: tuple[Any, ...]) -> Any:
        found = await self._db._execute(method, statement)
        self.rows_read += len(found) if method == "fetch" else 1
        return found


async def test_a_session_of_20_000_events_wakes_without_reading_them_all(db: Database) -> None:
    """With as many events after the snapshot as there may be."""
    await written(db, turns=318, steps=20)
    session = await from_scratch(db)
    assert session.head > 20_000
    told = await journals.read(db, "s", 0, session.head)
    await journals.snapshot(db, fold(told[:-199], blank("s")))
    counting = Counting(db)
    assert await journals.load(counting, "s", session.head) == session
    assert counting.rows_read == 200, "the snapshot, and what came after it"


async def test_snapshot_and_tail_equal_the_fold_from_scratch(db: Database) -> None:
    await written(db, turns=12, steps=10)
    session = await from_scratch(db)
    told = await journals.read(db, "s")
    for seq in range(1, session.head + 1, 37):
        await db.run("DELETE FROM snapshots")
        await journals.snapshot(db, fold(told[:seq], blank("s")))
        assert await journals.load(db, "s") == session


async def test_a_session_that_was_forgotten_leaves_no_snapshot(db: Database) -> None:
    await written(db, turns=1, steps=1)
    session = await from_scratch(db)
    await db.run("DELETE FROM sessions WHERE id = 's'")
    await journals.snapshot(db, session)
    assert await db.value("SELECT count(*) FROM snapshots") == 0


async def test_a_snapshot_of_another_fold_is_ignored(db: Database) -> None:
    await written(db, turns=12, steps=10)
    session = await from_scratch(db)
    insert = "INSERT INTO snapshots (session_id, seq, fold_version, state) VALUES ('s', :seq, :fold, :state)"
    await db.run(insert, seq=session.head, fold=FOLD_VERSION - 1, state=b'{"id":"an older shape"}')
    assert await journals.load(db, "s") == session
    # The next one at rest takes its place, though it is of the same event.
    await journals.snapshot(db, session)
    assert await db.value("SELECT fold_version FROM snapshots") == FOLD_VERSION


async def test_snapshots_are_written_at_rest_once_200_events_have_passed(serving: Serving, dsn: str) -> None:
    script = [*([call("clocktool")] * 15), call("finalanswertool", answer="done")] * 5
    async with serving(script) as house:
        session_id = (await house.say("Go", model=AGENT))["model"]
        heads = []
        for _ in range(4):
            heads.append((await house.session(session_id))["head"])
            assert heads[-1] > 200 or not await house.db.value("SELECT count(*) FROM snapshots")
            await house.say("Go on", model=session_id)
        async with asyncio.timeout(10):
            while not await house.db.value("SELECT count(*) FROM snapshots") or house.app.worker.busy:
                await asyncio.sleep(0.01)
        assert await house.db.value("SELECT seq FROM snapshots") > 200
        async with open_database(dsn) as db:
            woken = await journals.load(db, session_id)
            assert woken == await journals.catch_up(db, blank(session_id))
            assert woken.state is State.COMPLETED


async def test_no_process_of_any_release_writes_what_a_session_may_not_be(db: Database) -> None:
    await opened(db)
    await db.run("UPDATE sessions SET state = 'RESEARCHING'")
    copied = "owner, conversation_id, side, agent, version, head, due, created_at, updated_at"
    another = f"INSERT INTO sessions (id, {copied}, label) SELECT 'other', {copied}, 'other' FROM sessions"
    for change in (
        "UPDATE sessions SET side = 'aside'",
        another.replace("side", "'aside'").replace("'aside'", "side", 1),
    ):
        with pytest.raises(asyncpg.CheckViolationError) as refused:
            await db.run(change)
        assert refused.value.constraint_name == "sessions_side_check"
    from_capsule = {"capsule": "'s'", "capsule_head": "2", "due": "false"}
    for moved in ({"due": "true"}, {"head": "3"}, {"wake_at": "now()"}, {"holder": "'w'"}):
        changes = ", ".join(f"{name} = {value}" for name, value in (from_capsule | moved).items())
        with pytest.raises(ReadOnlySession):
            await db.run(f"UPDATE sessions SET {changes}")
    await db.run("UPDATE sessions SET capsule = 's', capsule_head = 2, due = false")
    # A branch may begin with the end of a turn, of which webhooks are told; what it has inherited is no news.
    await db.run("""
        INSERT INTO webhooks (id, owner, key_id, url, events, description, status, secret,
                              told_since, created_at, updated_at)
        VALUES ('w', 'local', '', 'https://example.org', '{}', '', 'active', 'x', now(), now(), now())
    """)
    for inherited in (1, 2):
        branch = another.replace("'other'", f"'branch {inherited}'").replace("(id", "(inherited, id")
        await db.run(branch.replace("SELECT", f"SELECT {inherited},") + " WHERE id = 's'")
    assert [row[0] for row in await db.rows("SELECT session_id FROM webhook_news")] == ["branch 1"]
