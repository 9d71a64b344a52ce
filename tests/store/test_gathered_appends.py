"""Appends of several sessions at the same moment: one commit, and each of them as if it had been written alone."""

import asyncio
from collections.abc import Sequence

from unsteady_connection import unsteady

from longhouse import clock
from longhouse.errors import AlreadyReturned, Deposed
from longhouse.journal import events
from longhouse.journal.events import Event, Recorded
from longhouse.journal.fold import fold
from longhouse.journal.session import Session
from longhouse.store import journals, leases
from longhouse.store.access import keys
from longhouse.store.database import Database, Transaction, open_database
from longhouse.store.gathering import PATIENCE
from server_helpers import AGENT, prompted, returned, started, used

USAGE = events.Usage(prompt_tokens=100, cached_tokens=40, completion_tokens=5, total_tokens=105)
NAMES = tuple("abcdef")
TASK = "Привет, 世界"
REPLIED = events.Replied(text="Здравствуйте, 世界 \\u0000", model="m", usage=USAGE)
# Transactions that wrote the last events of the sessions.
COMMITS = """
    SELECT count(DISTINCT j.xmin::text) FROM journal j JOIN sessions s ON s.id = j.session_id AND s.head = j.seq
    WHERE s.id = ANY(:ids)
"""


class Holder:
    """Holds sessions, and appends to them as a worker does."""

    def __init__(self, db: Database) -> None:
        self.db = db
        self.sessions: dict[str, Session] = {}
        self.fences: dict[str, int] = {}

    async def hold(self, *names: str, key: str | None = None) -> None:
        for name in names:
            about = events.Opened(agent=AGENT, version=1, owner="local", conversation=name)
            await journals.open(self.db, name, about, prompted(TASK), task=TASK)
            await self.db.run("UPDATE sessions SET key_id = :key WHERE id = :id", key=key, id=name)
            lease = (await leases.claim(self.db, name, f"worker of {name}")).lease
            assert lease
            self.sessions[name], self.fences[name] = await journals.load(self.db, name), lease.fence
            await self.append(name, started(2))

    async def append(self, name: str, *new: Event, db: Database | None = None) -> journals.Appended:
        before, at = self.sessions[name], clock.now()
        told = [Recorded(seq=before.head + 1 + nth, at=at, event=event) for nth, event in enumerate(new)]
        self.sessions[name] = after = fold(told, before)
        fence, worker = self.fences[name], f"worker of {name}"
        return await journals.append(db or self.db, after, new, fence=fence, worker=worker, at=at, rest=None)

    async def is_whole(self, name: str, *last: Event) -> None:
        """The journal has no gap, ends with these events, and the session's row says what its fold says."""
        told = await journals.read(self.db, name)
        assert [one.seq for one in told] == list(range(1, len(told) + 1))
        assert [one.event for one in told[-len(last) :]] == list(last)
        assert {(one.worker, one.fence, one.trace) for one in told[2:]} == {(f"worker of {name}", 1, "t")}
        row = await self.db.row("SELECT head, state, task, trace_id, due FROM sessions WHERE id = :id", id=name)
        assert row is not None
        assert tuple(row) == (len(told), "RESEARCHING", TASK, "t", True)


async def test_appends_of_one_moment_are_one_commit_and_each_is_whole(db: Database) -> None:
    holder = Holder(db)
    poor, _ = await keys.create(db, name="poor", owner="local", role="user", tokens_per_day=200)
    await holder.hold("a", "b", "e", "f")
    await holder.hold("c", "d", key=poor.id)
    written = await asyncio.gather(*(holder.append(name, REPLIED, used(f"1-{name}")) for name in NAMES))
    # The first one was under way, and the others have waited for it; the last one did not fit in.
    assert await db.value(COMMITS, ids=NAMES[1:5]) == 1
    for name, appended in zip(NAMES, written, strict=True):
        assert [one.seq for one in appended.recorded] == [4, 5]
        assert appended.recorded == tuple((await journals.read(db, name))[3:]), "also their times are those told"
        # The budget is used up by two of one key together.
        assert (appended.rested, appended.spent) == (False, "tokens_per_day" if name in "cd" else None)
        await holder.is_whole(name, REPLIED, used(f"1-{name}"))
    columns = "key_id, owner, model, turns, replies, prompt_tokens, cached_tokens, completion_tokens, total_tokens"
    counted = await db.rows(f"SELECT {columns} FROM usage_lately WHERE model = 'm' ORDER BY key_id")
    assert [tuple(row) for row in counted] == [
        *[("", "local", "m", 0, 1, 100, 40, 5, 105)] * 4,
        *[(poor.id, "local", "m", 0, 1, 100, 40, 5, 105)] * 2,
    ]
    # What does not fit into one statement for several is written as well.
    long = events.Replied(text="з" * journals.BODY_LIMIT, model="m")
    three: list[Event] = [returned("1-c"), used("2-c"), returned("2-c")]
    rest = journals.Rest(head=5)
    ends = journals.append(
        db, holder.sessions["d"], [events.Finished(answer="done")], fence=1, worker="worker of d", at=clock.now(),
        rest=rest, fingerprint="mark",
    )  # fmt: skip
    *_, ended = await asyncio.gather(
        holder.append("a", returned("1-a")),
        holder.append("b", long),
        holder.append("c", *three),
        holder.append("e", returned("1-e")),
        holder.append("e", used("2-e")),
        ends,
    )
    assert ended.rested
    assert await db.value("SELECT count(*) FROM rests WHERE session_id = 'd'") == 1
    await holder.is_whole("a", returned("1-a"))
    await holder.is_whole("b", long)
    await holder.is_whole("c", *three)
    await holder.is_whole("e", returned("1-e"), used("2-e"))


async def test_one_that_may_not_be_written_keeps_no_other_from_it(db: Database) -> None:
    holder = Holder(db)
    await holder.hold(*NAMES)
    await asyncio.gather(*(holder.append(name, REPLIED, used("1")) for name in NAMES))
    # Another worker has taken "c" over.
    holder.fences["c"], unaware = 0, holder.sessions["d"]
    written = await asyncio.gather(*(holder.append(name, returned("1")) for name in NAMES), return_exceptions=True)
    assert [type(one) for one in written] == [Deposed if name == "c" else journals.Appended for name in NAMES]
    assert await db.value(COMMITS, ids=("b", "d", "e")) == 1
    assert await db.value("SELECT head FROM sessions WHERE id = 'c'") == 5
    # The call of "d" has its outcome already, of which its holder does not know.
    holder.sessions["d"] = unaware
    new: dict[str, Event] = {"a": used("2"), "b": used("2"), "d": returned("1"), "e": used("2"), "f": used("2")}
    written = await asyncio.gather(*(holder.append(*one) for one in new.items()), return_exceptions=True)
    assert [type(one) for one in written] == [AlreadyReturned if name == "d" else journals.Appended for name in new]
    for name in "abef":
        await holder.is_whole(name, returned("1"), used("2"))

    # Somebody else has locked "b", and the one who waits for "e" leaves.
    async def locked(tx: Transaction) -> asyncio.Task[journals.Appended]:
        await tx.run("SELECT FROM sessions WHERE id = 'b' FOR UPDATE")
        tasks = [asyncio.create_task(holder.append(name, returned("2"))) for name in "abef"]
        await asyncio.sleep(0)
        tasks[2].cancel()
        _, waiting, left, _ = tasks
        await asyncio.wait([tasks[0], left, tasks[3]])
        assert left.cancelled()
        assert not waiting.done()
        # Two of one session do not fit into one statement: the second one does not wait for the lock either.
        both = [asyncio.create_task(holder.append("a", event)) for event in (used("3"), returned("3"))]
        _, late = await asyncio.wait(both, timeout=10)
        assert not late
        return waiting

    assert [one.seq for one in (await (await db.together(locked))).recorded] == [8]
    for name in "bf":
        await holder.is_whole(name, returned("2"))
    await holder.is_whole("a", used("3"), returned("3"))
    await holder.is_whole("e", used("2"))


async def test_appends_of_one_moment_whose_reply_is_lost_are_there_once(dsn: str, db: Database) -> None:
    holder = Holder(db)
    await holder.hold(*NAMES)
    async with unsteady(dsn) as (shaky, line):

        async def locked(tx: Transaction) -> Sequence[asyncio.Task[journals.Appended]]:
            await tx.run("SELECT FROM sessions WHERE id = 'a' FOR UPDATE")
            tasks = [asyncio.create_task(holder.append(name, REPLIED, used("1"), db=shaky)) for name in NAMES]
            waits = "SELECT EXISTS (SELECT FROM pg_locks WHERE NOT granted)"
            while not await db.value(waits):
                await asyncio.sleep(0.01)
            line.lose_reply()  # of the statement for all others, since the first one is sent already
            await asyncio.sleep(2 * PATIENCE)
            tasks[-1].cancel()  # while the others have no connection yet
            return tasks

        *written, left = await asyncio.gather(*await db.together(locked), return_exceptions=True)
        assert line.cuts == 1
        assert isinstance(left, asyncio.CancelledError)
    assert [[one.seq for one in one.recorded] for one in written if isinstance(one, journals.Appended)] == [[4, 5]] * 5
    assert await db.value(COMMITS, ids=NAMES[1:5]) == 1
    for name in NAMES[:5]:
        await holder.is_whole(name, REPLIED, used("1"))
    await holder.is_whole("f", started(2))


async def test_appends_of_one_moment_are_not_planned_anew_each_time(dsn: str, db: Database) -> None:
    holder = Holder(db)
    await holder.hold(*NAMES)
    plans = """
        SELECT generic_plans > custom_plans, cardinality(parameter_types), name FROM pg_prepared_statements
        WHERE statement LIKE '%SKIP LOCKED%' AND generic_plans + custom_plans >= 10
    """
    async with open_database(dsn, pool_size=1) as narrow:
        for nth in range(15):
            await asyncio.gather(*(holder.append(name, REPLIED, used(f"{nth}"), db=narrow) for name in NAMES))
        [(is_kept, places, name)] = await narrow.rows(plans)
        assert is_kept
        # Postgres knows nothing of a table that is new, and keeps the plan while it grows.
        plan = await narrow.rows(f'EXPLAIN EXECUTE "{name}" ({", ".join(["NULL"] * places)})')
        assert not [line for (line,) in plan if "Seq Scan on sessions" in line]
