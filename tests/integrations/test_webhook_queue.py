"""What is told to webhooks, and in which order it waits: with journals that are written by hand, and no house."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import datetime, timedelta
from threading import Event
from typing import Any
from unittest.mock import ANY

import msgspec
import pytest
import structlog
from msgspec.structs import replace

from conftest import database
from longhouse import clock
from longhouse.egress import Egress, Lookup
from longhouse.integrations.webhooks import collector as collecting
from longhouse.integrations.webhooks import delivering
from longhouse.integrations.webhooks.collector import Collector, payload_of
from longhouse.integrations.webhooks.delivering import DeliveryOptions, Resolver, open_webhooks
from longhouse.journal import events
from longhouse.journal.events import Recorded
from longhouse.journal.fold import fold
from longhouse.store import journals, leases, migrate
from longhouse.store.automation import webhook_deliveries, webhooks
from longhouse.store.automation.webhook_deliveries import Findings, Member, NewDelivery
from longhouse.store.automation.webhooks import ShownWebhook, Viewer
from longhouse.store.database import Database, Transaction, bound, open_database
from longhouse.store.erasing import erasure
from longhouse.store.erasing.erasure import Forgotten
from server_helpers import plan_nodes, started
from webhook_receiver import Receiver, receiving

OWNER = "магазин"
VIEWER = Viewer(OWNER, "", only_own=False)
ENDED = (events.Finished(answer="Да。"),)
OPTIONS = DeliveryOptions(retry_delays=[0.05] * 50, timeout=5, pause_after=3600, log_days=30)
MANY = 2_000


async def made(db: Database, url: str = "https://example.com/hook", **values: Any) -> ShownWebhook:
    kinds = ["session.rested", "question.opened"]
    fields = {"url": url, "events": kinds, "agent": None, "description": "", "status": "active", **values}
    return (await webhooks.create(db, VIEWER, **fields))[0]


async def turn(
    db: Database, name: str, *told: events.Event, at: datetime | None = None, works: bool = False, owner: str = OWNER
) -> str:
    """A session, or one more turn of it, that ends with these events; the clock of its worker says `at`. `works`: the
    worker goes on."""
    at, trace = at or clock.now(), f"{name} {clock.now()}"
    opened = events.Opened(agent="clerk", version=1, owner=owner, conversation=f"c {name}")
    known = await db.value("SELECT id FROM sessions WHERE conversation_id = :name", name=f"c {name}")
    prompted = events.Prompted(trace=trace, content=("早上好",))
    proposed = f"clerk_{name} again" if known else f"clerk_{name}"
    session_id = (await journals.open(db, proposed, opened, prompted, task="早上好")).session_id
    session, lease = await journals.load(db, session_id), (await leases.claim(db, session_id, "worker")).lease
    assert lease
    new = [started(session.head, trace=trace), *told]
    records = [Recorded(seq=session.head + nth, at=at, event=one) for nth, one in enumerate(new, 1)]
    rest = None if works else journals.Rest(session.head)
    after = fold(records, session)
    await journals.append(db, after, new, fence=lease.fence, worker="worker", at=at, rest=rest)
    return session_id


async def told_of(db: Database, hook: ShownWebhook) -> list[str]:
    rows = "SELECT session_id FROM webhook_deliveries WHERE webhook_id = :id ORDER BY nth"
    return [row["session_id"].removeprefix("clerk_") for row in await db.rows(rows, id=hook.id)]


async def collected(db: Database, collector: Collector, hook: ShownWebhook, last: str) -> list[str]:
    """What the webhook was told of, once it was told of this one."""
    async with asyncio.timeout(60):
        while (told := await told_of(db, hook))[-1:] != [last]:
            await collector.step()
    return told


async def test_what_is_told_does_not_depend_on_clocks_nor_on_its_neighbours(db: Database) -> None:
    hour = timedelta(hours=1)
    await turn(db, "before", *ENDED, at=clock.now() + hour)
    hook = await made(db)
    await turn(db, "of another", *ENDED, owner="другой")
    assert not await db.value("SELECT count(*) FROM webhook_news"), "what nobody is told is not noted"
    collector, asks = (
        Collector(db, lambda: None),
        events.Called(call="1-action-0", tool="clarificationtool", arguments="{}", call_kind="ask", question="Где?"),
    )

    # A worker whose clock is an hour behind that of whoever made the webhook; one whose clock is ahead.
    await turn(db, "behind", *ENDED, at=clock.now() - hour)
    await turn(db, "ahead", *ENDED, at=clock.now() + hour)
    assert await collected(db, collector, hook, "ahead") == ["behind", "ahead"]
    await turn(db, "before", *ENDED, at=clock.now() - hour)
    told = await collected(db, collector, hook, "before")
    assert told == ["behind", "ahead", "before"], "its second turn, and not its first"

    # What happened while it was off is not told, nor what a second webhook had not been there for.
    await webhooks.change(db, VIEWER, hook.id, {"status": "disabled"})
    await turn(db, "while off", *ENDED, at=clock.now() + hour)
    await webhooks.change(db, VIEWER, hook.id, {"status": "active"})
    await turn(db, "not for the second", *ENDED, at=clock.now() + hour)
    second = await made(db)
    await turn(db, "while off", *ENDED, at=clock.now() - hour)
    await turn(db, "both", *ENDED, at=clock.now() - hour)
    assert (await collected(db, collector, hook, "both"))[3:] == ["not for the second", "while off", "both"]
    assert await told_of(db, second) == ["while off", "both"]

    # Webhooks and events of an earlier release have no numbers: clocks are all there is.
    old = await made(db)
    await db.run("UPDATE webhooks SET told_after = 0, told_since = :at WHERE id = :id", id=old.id, at=clock.now())
    for name, at in (("old", clock.now() - hour), ("late", clock.now() + hour)):
        await turn(db, name, *ENDED, at=at)
        await db.run("UPDATE journal SET global_seq = NULL WHERE session_id = :id", id=f"clerk_{name}")
    assert await collected(db, collector, old, "late") == ["late"]
    assert await told_of(db, second) == ["while off", "both"]

    # A session that asks and works on is told of before it rests: at a hint, and where that was lost, a little later.
    work = events.Called(call="1-action-1", tool="clocktool", arguments="{}")
    hinted = await turn(db, "asks, hinted", events.Replied(), asks, work, works=True)
    collector.nudge(hinted)
    await collector.step()
    assert (await told_of(db, hook))[-1] == "asks, hinted"
    await turn(db, "asks", events.Replied(), asks, work, works=True)
    await collected(db, collector, hook, "asks")
    # A worker that lets a session go without a further event: those who wait for it may be at rest now.
    await db.run("DELETE FROM webhook_news")
    await db.run("UPDATE sessions SET due = false, holder = NULL WHERE holder = 'worker'")
    assert await db.value("SELECT count(*) FROM webhook_news") == 2

    await one_without_a_key_is_paused_and_that_is_logged(db, collector)
    await one_that_cannot_be_read_keeps_no_other_back(db, collector, hook)
    await hints_come_between_the_pages_of_a_sweep(db, collector, hook)
    await little_is_read_however_many_sessions_there_are(db)


async def one_without_a_key_is_paused_and_that_is_logged(db: Database, collector: Collector) -> None:
    hook = await made(db)
    await db.run("UPDATE webhooks SET key_id = 'key_that_was_revoked' WHERE id = :id", id=hook.id)
    with structlog.testing.capture_logs() as logs:
        async with asyncio.timeout(60):
            while (found := await webhooks.find(db, VIEWER, hook.id)) and found.status == "active":
                await collector.step()
    assert [one["webhook"] for one in logs if one["event"] == "webhook_paused"] == [hook.id]


async def one_that_cannot_be_read_keeps_no_other_back(db: Database, collector: Collector, hook: ShownWebhook) -> None:
    bad = await turn(db, "bad", *ENDED)
    mended = await db.value("SELECT body::text FROM journal WHERE session_id = :id AND seq = 3", id=bad)
    broken = events.encode(events.Called(call="no step", tool="clocktool", arguments="{}"))
    write = "UPDATE journal SET body = :body::json WHERE session_id = :id AND seq = 3"
    await db.run(write, body=broken, id=bad)
    await turn(db, "after the bad one", *ENDED)
    with structlog.testing.capture_logs() as logs:
        await collected(db, collector, hook, "after the bad one")
    assert [one["conversation"] for one in logs if one["event"] == "webhook_events_failed"] == ["c bad"]
    assert await db.rows("SELECT FROM webhook_news WHERE session_id = :id", id=bad), "it is not given up"
    await db.run(write, body=mended, id=bad)
    await collected(db, collector, hook, "bad")


async def hints_come_between_the_pages_of_a_sweep(db: Database, collector: Collector, hook: ShownWebhook) -> None:
    for nth in range(webhook_deliveries.PAGE + 5):
        await turn(db, f"many {nth}", *ENDED)
    async with asyncio.timeout(10):
        while (await told_of(db, hook))[-1] == "bad":
            await collector.step()
    left = await db.value("SELECT count(*) FROM webhook_news")
    assert left, "the sweep is not over"
    collector.nudge(await turn(db, "hinted", *ENDED))
    await collector.step()
    new = (await told_of(db, hook))[-6:]
    assert new == ["hinted", *(f"many {webhook_deliveries.PAGE + nth}" for nth in range(5))]


async def examined(db: Database, sql: str, **values: object) -> int:
    """How many rows Postgres looks at for a statement; the plan is the one for a table that it knows."""
    statement, *given = bound(sql, values)

    async def explained(tx: Transaction) -> Any:
        return await tx._connection.fetchval(f"EXPLAIN (ANALYZE, FORMAT JSON) {statement}", *given)

    plan = msgspec.json.decode(await db.together(explained))[0]["Plan"]
    removed = ("Rows Removed by Filter", "Rows Removed by Join Filter", "Rows Removed by Index Recheck", "Actual Rows")
    return int(sum(node["Actual Loops"] * sum(node.get(one, 0) for one in removed) for node in plan_nodes(plan)))


async def little_is_read_however_many_sessions_there_are(db: Database) -> None:
    await db.run(
        """INSERT INTO sessions (id, owner, conversation_id, side, agent, head, due, state, version, created_at,
                                 updated_at)
           SELECT 'old ' || n, :owner, 'old ' || n, 'root', 'clerk', 5, false, 'COMPLETED', 1, now(), now()
           FROM generate_series(1, :many::int) n""",
        owner=OWNER,
        many=MANY,
    )
    for table in ("sessions", "webhook_news", "projection_cursors"):
        await db.run(f"ANALYZE {table}")
    assert not await db.value("SELECT count(*) FROM webhook_news")
    assert await examined(db, webhook_deliveries.NEWS, after=0) < 10
    assert await examined(db, webhook_deliveries.AT_WORK, owners=[OWNER]) < 10


def delivery(hook: ShownWebhook, session_id: str, nth: int) -> NewDelivery:
    payload = payload_of("session.rested", clock.now(), {"session_id": session_id, "nth": nth})
    return NewDelivery(hook.id, f"{session_id}:{nth}", "session.rested", session_id, session_id, "clerk", payload)


async def due(db: Database, hook: ShownWebhook) -> list[str]:
    return [one.id for one in await webhook_deliveries.due(db, hook.id, under_way=[], limit=100)]


def id_of(hook: ShownWebhook, session_id: str, nth: int) -> str:
    return webhook_deliveries.delivery_id(hook.id, f"{session_id}:{nth}")


async def test_of_a_session_one_waits_and_the_others_cost_nothing(db: Database) -> None:
    first, other = [await turn(db, name, *ENDED) for name in ("first", "other")]
    hook = await made(db)
    await db.run("INSERT INTO workers (id, lock_key, node, pid, slots) VALUES ('worker', 1, 'n', 1, 1)")
    work, one_due = {"worker": "worker"}, {"webhook": hook.id, "under_way": [], "limit": 4}

    async def write(*new: NewDelivery) -> None:
        async def written(tx: Transaction) -> int:
            return await webhook_deliveries._write(tx, new)

        await db.together(written)

    await write(*(delivery(hook, first, nth) for nth in range(MANY)), delivery(hook, other, 0))
    await db.run("ANALYZE webhook_deliveries")
    assert await due(db, hook) == [id_of(hook, first, 0), id_of(hook, other, 0)]
    again: dict[str, Any] = {"status": 500, "error": "The receiver answered 500", "pause_after": 1e9}
    await webhook_deliveries.failed(db, id_of(hook, first, 0), delay=3600, **again)
    await webhook_deliveries.delivered(db, id_of(hook, other, 0), status=200)
    assert await due(db, hook) == []
    assert await examined(db, webhook_deliveries.WITH_WORK, **work) < 50
    assert await examined(db, webhook_deliveries.DUE, **one_due) < 50
    shown = {one.id: one for one in await webhook_deliveries.log_of(db, hook.id, limit=MANY + 1)}
    assert shown[id_of(hook, first, 0)].next_attempt_at
    assert shown[id_of(hook, first, 1)].next_attempt_at is None, "nobody knows when what is before it is over"

    # As an earlier release has left them: all of them are due, and each is looked at once, not with all others.
    await db.run("UPDATE webhook_deliveries SET next_at = now() WHERE next_at = 'infinity'")
    await db.run("VACUUM ANALYZE webhook_deliveries")
    assert await due(db, hook) == []
    assert await examined(db, webhook_deliveries.WITH_WORK, **work) < 10 * MANY
    assert await examined(db, webhook_deliveries.DUE, **one_due) < 10 * MANY
    await db.run("DELETE FROM webhook_deliveries WHERE nth > 10 OR session_id = :other", other=other)
    await db.run("UPDATE webhook_deliveries SET next_at = 'infinity' WHERE nth > 1")

    # One that is over, for good or ill, is followed by the next; resuming does not let one overtake another.
    await webhooks.change(db, VIEWER, hook.id, {"status": "active"})
    assert await due(db, hook) == [id_of(hook, first, 0)]
    assert await db.value("SELECT count(*) FROM webhook_deliveries WHERE next_at = 'infinity'") == 9
    await webhook_deliveries.failed(db, id_of(hook, first, 0), delay=None, **again)
    assert await due(db, hook) == [id_of(hook, first, 1)]
    await webhook_deliveries.delivered(db, id_of(hook, first, 1), status=200)
    assert await due(db, hook) == [id_of(hook, first, 2)]
    await webhook_deliveries.retry(db, hook.id, id_of(hook, first, 0))
    assert await due(db, hook) == [id_of(hook, first, 0)], "what is sent once more comes first again"
    await webhook_deliveries.delivered(db, id_of(hook, first, 0), status=200)
    assert await due(db, hook) == [id_of(hook, first, 2)]

    # What came first was erased.
    await db.run("DELETE FROM webhook_deliveries WHERE id = :id", id=id_of(hook, first, 2))
    assert await due(db, hook) == []
    await webhook_deliveries.set_left_due(db)
    assert await due(db, hook) == [id_of(hook, first, 3)]
    await db.run("DELETE FROM webhook_deliveries WHERE id <> :id", id=id_of(hook, first, 3))
    await neither_is_lost_when_one_is_written_while_the_other_ends(db, hook, first, write)


async def neither_is_lost_when_one_is_written_while_the_other_ends(
    db: Database, hook: ShownWebhook, session_id: str, write: Any
) -> None:
    locked, go_on = asyncio.Event(), asyncio.Event()

    async def paused(work: Any) -> None:
        async def together(tx: Transaction) -> None:
            await work(tx)
            locked.set()
            await go_on.wait()

        await db.together(together)

    async def blocked(count: int = 1) -> None:
        waits = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
        async with asyncio.timeout(10):
            while await db.value(waits) < count:
                await asyncio.sleep(0.01)

    # The end comes while another is being written …
    async with asyncio.TaskGroup() as tasks:
        new = [delivery(hook, session_id, 20)]
        tasks.create_task(paused(lambda tx: webhook_deliveries._write(tx, new)))
        await locked.wait()
        tasks.create_task(webhook_deliveries.delivered(db, id_of(hook, session_id, 3), status=200))
        await blocked()
        go_on.set()
    assert await due(db, hook) == [id_of(hook, session_id, 20)]

    # … and another is written while the end is.
    locked.clear()
    go_on.clear()
    ends = "UPDATE webhook_deliveries SET status = 'delivered' WHERE id = :id"
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(paused(lambda tx: tx.run(ends, id=id_of(hook, session_id, 20))))
        await locked.wait()
        tasks.create_task(write(delivery(hook, session_id, 21)))
        await blocked()
        go_on.set()
    assert await due(db, hook) == [id_of(hook, session_id, 21)]


@asynccontextmanager
async def sending(db: Database, egress: Egress, lookup: Lookup, timeout: float = 5) -> AsyncIterator[None]:
    options = replace(OPTIONS, timeout=timeout)
    async with open_webhooks(db, "worker", egress, options, lookup=lookup) as running:
        assert set(running.outcomes()) == {"delivered", "retried", "failed"}
        yield


async def errors(db: Database, hook: ShownWebhook) -> set[str]:
    return {one.last_error or "" for one in await webhook_deliveries.log_of(db, hook.id, limit=200)}


async def test_who_is_reached_is_decided_when_something_is_sent(db: Database) -> None:
    found: list[str] = []

    async def lookup(host: str, port: int) -> Sequence[str]:
        assert found, "a defect of ours"
        return found

    await db.run("INSERT INTO workers (id, lock_key, node, pid, slots) VALUES ('worker', 1, 'n', 1, 1)")
    async with receiving(Receiver()) as receiver:
        port = receiver.url.rpartition(":")[2].partition("/")[0]
        url = f"http://hooks.example:{port}/hook"
        assert Egress().problem(url) is None, "when it is made, it is a name like others"
        hook, receiver.secret = await webhooks.create(
            db, VIEWER, url=url, events=["session.rested"], agent=None, description="", status="active"
        )
        await turn(db, "told", *ENDED)
        reached = "The receiver could not be reached: hooks.example"
        for addresses, refused in (
            (["127.0.0.1"], f"{reached} is not a public address"),
            (["192.0.2.1", "169.254.169.254"], f"{reached} is a link-local or metadata address"),
            (["8.8.8.8", "127.0.0.1"], f"{reached} is not a public address"),
            ([], "The request could not be made"),
        ):
            found[:] = addresses
            async with sending(db, Egress(), lookup), asyncio.timeout(60):
                while not any(one.startswith(refused) for one in await errors(db, hook)):
                    await asyncio.sleep(0.02)
            await db.run("UPDATE webhook_deliveries SET last_error = NULL")
        assert receiver.statuses == []
        found[:] = ["127.0.0.1"]
        async with sending(db, Egress([f"hooks.example:{port}"]), lookup):
            await receiver.first(1)  # the same name and address, once the operator has named them
        await a_name_that_is_never_resolved_holds_up_nothing_else(db, hook, receiver)
        await no_more_sockets_than_a_process_may_have(db, receiver)


async def a_name_that_is_never_resolved_holds_up_nothing_else(
    db: Database, hook: ShownWebhook, receiver: Receiver
) -> None:
    go_on = Event()

    def ask(host: str, port: int) -> Sequence[tuple[Any, ...]]:
        if host == "hooks.example":
            go_on.wait()
        return [(0, 0, 0, "", ("127.0.0.1", port))]

    before = len(receiver.got)
    await webhooks.change(db, VIEWER, hook.id, {"status": "disabled"})
    quick, receiver.secret = await webhooks.create(
        db, VIEWER, url=hook.url.replace("hooks", "quick"), events=["session.rested"], agent=None, description="",
        status="active",
    )  # fmt: skip
    await webhooks.change(db, VIEWER, hook.id, {"status": "active"})
    loop = asyncio.get_running_loop()
    loop.set_default_executor(ThreadPoolExecutor(1))
    for name in ("one", "two", "three"):
        await turn(db, name, *ENDED)
    port = hook.url.rpartition(":")[2].partition("/")[0]
    try:
        async with sending(db, Egress([f"{name}.example:{port}" for name in ("hooks", "quick")]), Resolver(ask, 2)):
            await receiver.until(lambda one: len(one.got) >= before + 3)
            async with asyncio.timeout(10):
                assert await asyncio.to_thread(lambda: "другое") == "другое"
        resolver = Resolver(ask, 2)
        waiting = [asyncio.create_task(resolver("hooks.example", 1)) for _ in range(3)]
        async with asyncio.timeout(10):  # of its two threads the one name has taken one
            assert await resolver("quick.example", 1) == ["127.0.0.1"]
    finally:
        go_on.set()
    assert await asyncio.gather(*waiting) == [["127.0.0.1"]] * 3
    await webhooks.delete(db, VIEWER, quick.id)
    await webhooks.delete(db, VIEWER, hook.id)


async def no_more_sockets_than_a_process_may_have(db: Database, receiver: Receiver) -> None:
    """Nor does one owner take them all: those of others, who answer, would wait."""

    async def crowd(owner: str) -> None:
        viewer, kinds = Viewer(owner, "", only_own=False), ["session.rested"]
        for _ in range(delivering.MOST_OF_OWNER // delivering.AT_ONCE + 1):
            values = {"url": receiver.url, "events": kinds, "agent": None, "description": "", "status": "active"}
            await webhooks.create(db, viewer, **values)
        await db.run("UPDATE webhooks SET secret = :secret", secret=receiver.secret)
        for nth in range(delivering.AT_ONCE):
            await turn(db, f"{owner} {nth}", *ENDED, owner=owner)

    async def are_held(most: int) -> None:
        async with asyncio.timeout(60):
            while receiver.held < most or await db.value(waiting):
                await asyncio.sleep(0.02)
        await asyncio.sleep(0.3)  # whoever were to come too many has had the time
        assert receiver.held == most

    waiting = "SELECT count(*) FROM webhooks WHERE holder IS NULL"
    receiver.answers = [0] * 1_000
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(sending(db, Egress(["127.0.0.0/8"]), Resolver(), timeout=200))
        stack.callback(receiver.go_on.set)
        await crowd("owner 0")
        await are_held(delivering.MOST_OF_OWNER)
        for nth in range(delivering.MOST_AT_ONCE // delivering.MOST_OF_OWNER):
            await crowd(f"owner {nth + 1}")
        await are_held(delivering.MOST_AT_ONCE)
        assert await db.value("SELECT max(attempts) FROM webhook_deliveries") <= 1, (
            "who waits for a socket has not failed"
        )


async def test_webhooks_of_an_earlier_release_are_told_what_they_had_not_been(request: pytest.FixtureRequest) -> None:
    async with database(request) as empty, open_database(empty) as db:
        async with db.connection() as connection:
            await migrate.bring(connection, db.schema, [one for one in migrate.known() if one.number < 35])
        # What appends and claims of today need; those of then did without.
        await db.run("CREATE FUNCTION spent_budget(text, bigint, bigint) RETURNS text LANGUAGE sql RETURN NULL::text")
        await db.run("CREATE FUNCTION queue_has_room(text, integer, bigint) RETURNS boolean LANGUAGE sql RETURN true")
        await db.run("ALTER TABLE sessions ADD COLUMN tried bigint")
        await turn(db, "long ago", *ENDED, at=clock.now() - timedelta(days=30))
        await db.run(
            """INSERT INTO webhooks (id, owner, key_id, url, events, description, status, secret, told_since,
                                     created_at, updated_at)
               VALUES ('wh_old', :owner, '', 'https://example.com', '{session.rested}', '', 'active', 'whsec_', :at,
                       :at, :at)
            """,
            owner=OWNER,
            at=clock.now() - timedelta(days=1),
        )
        await turn(db, "missed", *ENDED)
        await db.run("DROP FUNCTION spent_budget, queue_has_room")
        await db.run("ALTER TABLE sessions DROP COLUMN tried")
        await migrate.migrate(db)
        hook = await webhooks.find(db, VIEWER, "wh_old")
        assert hook
        await turn(db, "after", *ENDED, at=clock.now() - timedelta(days=7))
        assert await collected(db, Collector(db, lambda: None), hook, "after") == ["missed", "after"]


async def test_what_is_under_way_when_a_webhook_is_made_ends_before_it_is_answered(db: Database) -> None:
    """Numbers are not given in the order of commits: an append that began before, and ends after, has a smaller one."""
    session_id = await turn(db, "slow", *ENDED)
    async with db.pool.acquire() as other, other.transaction():
        await other.execute("UPDATE sessions SET head = head WHERE id = $1", session_id)
        making = asyncio.create_task(made(db))
        async with asyncio.timeout(60):
            while not await db.value("SELECT count(*) FROM webhooks"):
                await asyncio.sleep(0.01)
        done, _ = await asyncio.wait([making], timeout=0.2)
        assert not done
    async with asyncio.timeout(60):
        await making


async def test_a_session_that_is_erased_right_after_its_answer_is_no_deadlock(db: Database) -> None:
    """The erasure has locked it and comes to its news last; whoever looks at its conversation holds nothing of it."""
    await made(db)
    session_id = await turn(db, "short", *ENDED)
    looks: list[list[str]] = []

    async def look(tx: Transaction, members: Sequence[Member]) -> Findings:
        looks.append([one.id for one in members if one.is_news])
        return Findings(heads={one.id: one.head for one in members})

    waits = "SELECT count(*) FROM pg_locks WHERE NOT granted"
    async with asyncio.timeout(60):
        async with db.pool.acquire() as other, other.transaction():
            await other.execute(erasure.IN_ORDER)
            erasing = asyncio.create_task(erasure.forget(db, session_id, OWNER))
            while await db.value(waits) < 1:
                await asyncio.sleep(0.01)
            looking = asyncio.create_task(webhook_deliveries.collect(db, OWNER, "c short", look))
            while await db.value(waits) < 2:
                await asyncio.sleep(0.01)
            assert await other.fetch("SELECT FROM webhook_news FOR UPDATE NOWAIT")
        assert (await erasing, await looking) == (Forgotten([session_id], [], ANY), 0)
    assert looks == [[session_id]]
    assert await db.value("SELECT count(*) FROM webhook_news") == 0

    # What is noted during a look is looked at by the next one.
    session_id = await turn(db, "long", *ENDED)

    async def look_long(tx: Transaction, members: Sequence[Member]) -> Findings:
        if len(looks) == 1:
            await turn(db, "long", *ENDED)
        return await look(tx, members)

    for left in (2, 0):
        await webhook_deliveries.collect(db, OWNER, "c long", look_long)
        assert await db.value("SELECT count(*) FROM webhook_news") == left
    assert looks[1:] == [[session_id], [session_id]]


@pytest.mark.parametrize("hours", [1, -1], ids=["ahead", "back"])
async def test_what_is_signed_by_a_wrong_clock_is_refused_and_sent_again_when_it_is_right(
    db: Database, monkeypatch: pytest.MonkeyPatch, hours: int
) -> None:
    await db.run("INSERT INTO workers (id, lock_key, node, pid, slots) VALUES ('worker', 1, 'n', 1, 1)")
    async with receiving(Receiver()) as receiver:
        fields = {"url": receiver.url, "events": ["session.rested"], "agent": None, "description": ""}
        _, receiver.secret = await webhooks.create(db, VIEWER, **fields, status="active")
        true = clock.now
        monkeypatch.setattr(clock, "now", lambda: true() + timedelta(hours=hours))
        session_id = await turn(db, "told", *ENDED)
        async with sending(db, Egress(["127.0.0.0/8"]), Resolver()):
            await receiver.until(lambda one: one.statuses.count(401) > 1)
            monkeypatch.setattr(clock, "now", true)
            [told] = await receiver.first(1)
    assert told.data["session_id"] == session_id


async def test_what_nobody_may_be_told_is_not_kept_and_not_told_later(db: Database) -> None:
    hook, collector = await made(db), Collector(db, lambda: None)
    await db.run("UPDATE webhooks SET key_id = 'gone'")
    await turn(db, "without a key", *ENDED)
    assert await db.value("SELECT count(*) FROM webhook_news") > 0
    async with asyncio.timeout(60):
        while await db.value("SELECT count(*) FROM webhook_news"):
            await collector.step()
    await turn(db, "also without", *ENDED)
    # The same key is valid again, and it is switched on.
    await db.run("UPDATE webhooks SET key_id = ''")
    assert await webhooks.change(db, VIEWER, hook.id, {"status": "active"})
    await turn(db, "on", *ENDED)
    assert await collected(db, collector, hook, "on") == ["on"]


def test_slow_looks_are_taken_less_often_and_never_much_later() -> None:
    assert collecting._until_next(1.0, 0.001) == 1.0
    assert collecting._until_next(1.0, 0.1) == pytest.approx(5.0)
    assert collecting._until_next(1.0, 60.0) == collecting.LONGEST_BETWEEN == 10.0
