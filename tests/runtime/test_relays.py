"""Hints between processes, on a real NATS and through Postgres: who follows hears, one worker wakes, and all may be
lost."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
import structlog
from bench.nats_server import NatsServer, nats_server

from longhouse.journal import events
from longhouse.journal.events import Recorded
from longhouse.runtime.bus.doorbell import Doorbell
from longhouse.runtime.bus.items import (
    Draft,
    Facts,
    Fragment,
    Gone,
    GrowingDraft,
    Item,
    JournalGrew,
    SubagentsChanged,
    Written,
)
from longhouse.runtime.bus.local import NEVER, Bus, Subscription
from longhouse.runtime.bus.nats import AWAY, NOT_SECURE, REFUSED, NatsRelay
from longhouse.runtime.bus.nats import LARGEST as LARGEST_MESSAGE
from longhouse.store.database import Database, open_database
from longhouse.store.notifications import LARGEST
from server_helpers import BEGAN, so_far

FACTS = Facts((Recorded(seq=7, at=BEGAN, event=events.Finished(answer="x")),))
HELD = """
    INSERT INTO sessions (id, owner, conversation_id, side, agent, label, version, head, fence, holder, due, state,
                          created_at, updated_at)
    VALUES ('s', 'o', 'c', 'root', 'a', '', 1, 1, 1, 'worker-0', true, 'RESEARCHING', now(), now())
"""


@dataclass
class End:
    """The bus of one process, with a worker that has room or not."""

    bus: Bus
    has_room: bool = True
    woken: list[str] = field(default_factory=list)
    stopped: list[tuple[str, int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.bus.on_wake.append(self._wake)
        self.bus.on_stop.append(lambda session_id, fence: self.stopped.append((session_id, fence)))

    def _wake(self, session_id: str) -> bool:
        if self.has_room:
            self.woken.append(session_id)
        return self.has_room


async def until(is_so: Callable[[], object]) -> None:
    async with asyncio.timeout(20):
        while not is_so():
            await asyncio.sleep(0.005)


async def heard(subscription: Subscription, last: Item) -> list[Item]:
    """What a follower is told, until it is told this."""
    items: list[Item] = []
    async with asyncio.timeout(20):
        while last not in items:
            items += await subscription.take()
    return items


class Fleet:
    """Processes on one database; each is an end of the same relay."""

    def __init__(self, db: Database, nats: NatsServer | None) -> None:
        self._db = db
        self.nats = nats
        self._stack = AsyncExitStack()
        self._ends: list[End] = []

    async def joined(self, *, works: bool = True) -> End:
        bus, name = Bus(), f"worker-{len(self._ends)}"
        if self.nats:
            relay = bus.relay = NatsRelay(self._db, bus, name, "house", works=works)
            await self._stack.enter_async_context(relay.connected([self.nats.url]))
        else:
            doorbell = bus.relay = Doorbell(self._db, bus, name)
            await self._stack.enter_async_context(doorbell.connected())
        self._ends.append(End(bus, has_room=works))
        await self.linked()
        return self._ends[-1]

    async def linked(self) -> None:
        """Until each end hears the others."""
        for one in self._ends:
            for other in self._ends:
                if one is not other:
                    await self._hears(one, other)

    async def _hears(self, one: End, other: End) -> None:
        with other.bus.subscribed("hello") as subscription:
            async with asyncio.timeout(20):
                while True:
                    one.bus.publish("hello", SubagentsChanged())
                    try:
                        await asyncio.wait_for(subscription.take(), 0.1)
                    except TimeoutError:
                        continue
                    return

    async def left(self) -> None:
        await self._stack.aclose()


@pytest.fixture(params=["nats", "doorbell"])
async def fleet(request: pytest.FixtureRequest, db: Database) -> AsyncIterator[Fleet]:
    async with _nats(request.param == "nats") as server:
        fleet = Fleet(db, server)
        try:
            yield fleet
        finally:
            await fleet.left()


@asynccontextmanager
async def _nats(is_wanted: bool) -> AsyncIterator[NatsServer | None]:
    if not is_wanted:
        yield None
        return
    async with nats_server() as server:
        yield server


async def test_a_follower_hears_what_another_process_does_and_nothing_of_other_sessions(fleet: Fleet) -> None:
    worker, gateway = await fleet.joined(), await fleet.joined(works=False)
    with gateway.bus.subscribed("s") as mine, gateway.bus.subscribed("Агент №1 *.>") as odd:
        await fleet.linked()
        for number in range(5):
            worker.bus.publish("other", JournalGrew(number))
        worker.bus.publish("s", Fragment(1, 1, "content", 0, "Hel"))
        worker.bus.publish("s", Fragment(1, 1, "content", 3, "lo, "))
        worker.bus.publish("s", Fragment(1, 1, "content", 7, "мир 你好"))
        worker.bus.publish("s", SubagentsChanged())
        worker.bus.publish("s", FACTS)
        items = await heard(mine, JournalGrew(7))
        texts = [item.text for item in items if isinstance(item, Fragment)]
        assert "".join(texts) == "Hello, мир 你好"
        assert [item for item in items if not isinstance(item, Fragment)] == [SubagentsChanged(), JournalGrew(7)]
        worker.bus.gone("Агент №1 *.>")
        assert await heard(odd, Gone()) == [Gone()]
    await until(lambda: ("Агент №1 *.>", NEVER) in gateway.stopped)
    assert gateway.bus.followed == []


async def test_who_joins_in_the_middle_gets_what_is_written_so_far(fleet: Fleet, db: Database) -> None:
    worker, gateway = await fleet.joined(), await fleet.joined(works=False)
    await db.run(HELD)
    draft = GrowingDraft(after=1, fence=1, content="Half of ", reasoning="hm")
    with worker.bus.drafting("s", draft), gateway.bus.subscribed("s") as late:
        assert await heard(late, Written(1, 1, "Half of ", "hm")) == [Written(1, 1, "Half of ", "hm")]
        assert so_far(gateway.bus, "s") == Draft(1, 1, "Half of ", "hm")
        worker.bus.publish("s", Fragment(1, 1, "content", 8, "it"))
        assert await heard(late, Fragment(1, 1, "content", 8, "it"))
        assert so_far(gateway.bus, "s") == Draft(1, 1, "Half of it", "hm")
        # A fragment was lost on the way: the whole is asked for again.
        draft.content.add("it, and more.")
        worker.bus.publish("s", Fragment(1, 1, "content", 12, " more."))
        assert await heard(late, Written(1, 1, "Half of it, and more.", "hm"))
        assert so_far(gateway.bus, "s") == Draft(1, 1, "Half of it, and more.", "hm")
        # The reply is recorded: there is no draft any more.
        worker.bus.publish("s", JournalGrew(2))
        await heard(late, JournalGrew(2))
        assert gateway.bus.draft("s") is None
    assert gateway.bus.draft("s") is None


async def test_a_wake_up_reaches_a_worker_that_has_room(fleet: Fleet) -> None:
    gateway, full, free = await fleet.joined(works=False), await fleet.joined(), await fleet.joined()
    full.has_room = False
    for number in range(20):
        gateway.bus.wake(f"s{number}")
    await until(lambda: len(set(free.woken)) == 20)
    assert full.woken == []
    full.has_room = True
    before = len(free.woken)
    for number in range(20, 60):
        gateway.bus.wake(f"s{number}")
    await until(lambda: len({*full.woken, *free.woken}) == 60)
    if fleet.nats:
        assert len(full.woken) + len(free.woken) - before == 40, "each wakes one worker"
    # A worker with room of its own tells nobody.
    free.bus.wake("own")
    free.bus.stop("own", 3)
    await until(lambda: ("own", 3) in full.stopped)
    assert "own" in free.woken
    assert "own" not in full.woken


async def test_hints_come_again_when_what_carries_them_was_away(fleet: Fleet, db: Database) -> None:
    worker, gateway = await fleet.joined(), await fleet.joined(works=False)
    with gateway.bus.subscribed("s") as follower:
        if fleet.nats:
            await fleet.nats.kill()
            for number in range(1000):
                worker.bus.publish("s", JournalGrew(number))
            await fleet.nats.start()
        else:
            await db.run(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                " WHERE datname = current_database() AND query LIKE '%pg_notify%' AND pid <> pg_backend_pid()"
            )
        async with asyncio.timeout(20):
            while True:
                worker.bus.publish("s", JournalGrew(2000))
                try:
                    items = await asyncio.wait_for(follower.take(), 0.1)
                except TimeoutError:
                    continue
                if JournalGrew(2000) in items:
                    break


async def test_nats_may_be_away_at_the_start_as_may_postgres_when_it_comes(db: Database, dsn: str) -> None:
    server = NatsServer()
    fleet = Fleet(db, server)
    async with open_database(dsn, schema=db.schema) as gone:
        pass
    bus = Bus()
    relay = bus.relay = NatsRelay(gone, bus, "alone", "house", works=True)
    with structlog.testing.capture_logs() as logs:
        first = await fleet.joined()  # alone, it waits for nobody
        first.bus.publish("s", JournalGrew(1))
        await until(lambda: logs)
        assert [(one["log_level"], one["event"], one["error"]) for one in logs] == [
            ("warning", "bus_disconnected", "ConnectionRefusedError")
        ]
        async with relay.connected([server.url]):
            with bus.subscribed("followed"):
                await server.start()
                try:
                    other = await fleet.joined()
                    assert isinstance(other.bus.relay, NatsRelay)
                    assert other.bus.relay.is_connected
                    # Who is asked for what is written is in Postgres; the connection stays all the same.
                    await until(lambda: [one for one in logs if one.get("task")])
                    assert {one["task"] for one in logs if "task" in one} == {"bus_follow"}
                finally:
                    await fleet.left()
                    await server.kill()


async def logged_while_away(db: Database, url: str) -> list[Any]:
    """What a process logs that tries twice to connect, and leaves."""
    with structlog.testing.capture_logs() as logs:
        relay = NatsRelay(db, Bus(), "w", "house", works=True)
        async with relay.connected([url]):
            await until(lambda: [one for one in logs if one["log_level"] == "debug"])
            assert not relay.is_connected
    return [*logs]


async def test_what_keeps_nats_away_is_told_without_its_address_and_who_never_reached_it_leaves_as_quietly(
    db: Database,
) -> None:
    server = NatsServer("--user", "me", "--pass", "s/cret")
    refused = server.url.replace("//", "//me:sEcReT9@")
    told = {refused: REFUSED, server.url.replace("nats:", "tls:"): NOT_SECURE, "nats://me:sEcReT9@127.0.0.1:1": AWAY}
    await server.start()
    try:
        for url, message in told.items():
            logs = await logged_while_away(db, url)
            warned = [one for one in logs if one["log_level"] != "debug"]
            assert [(one["event"], one["message"]) for one in warned] == [("bus_disconnected", message)]
            assert "sEcReT9" not in str(logs)
        relay = NatsRelay(db, Bus(), "w", "house", works=True)
        with structlog.testing.capture_logs() as logs:
            async with relay.connected([server.url.replace("//", "//me:s%2Fcret@")]):
                await until(lambda: relay.is_connected)
                # The password is changed: it is refused when it connects again.
                server.options = ("--user", "me", "--pass", "other")
                await server.kill()
                await server.start()
                await until(lambda: [one for one in logs if one.get("message") == REFUSED])
        assert [one["event"] for one in logs if one["log_level"] == "warning"] == ["bus_disconnected"] * 2
    finally:
        await server.kill()


async def test_who_joins_in_the_middle_of_a_long_reply_gets_all_of_it(fleet: Fleet, db: Database) -> None:
    worker, gateway = await fleet.joined(), await fleet.joined(works=False)
    await db.run(HELD)
    many = LARGEST_MESSAGE if fleet.nats else 3 * LARGEST
    draft = GrowingDraft(1, 1, "Привет,\n" * (many // 10), "\x00hm" * (many // 10))
    with worker.bus.drafting("s", draft), gateway.bus.subscribed("s") as late:
        await until(lambda: so_far(gateway.bus, "s") == draft.so_far)
        worker.bus.publish("s", Fragment(1, 1, "content", len(draft.content), "The end."))
        items = await heard(late, Fragment(1, 1, "content", len(draft.content), "The end."))
    [begun] = [item for item in items if isinstance(item, Written)]
    text = begun.content + "".join(one.text for one in items if isinstance(one, Fragment) and one.kind == "content")
    assert text == f"{draft.content}The end."


async def test_who_is_alone_rings_nobody_and_what_is_too_long_comes_in_pieces(db: Database) -> None:
    fleet = Fleet(db, None)
    try:
        first = await fleet.joined()
        assert isinstance(first.bus.relay, Doorbell)
        assert first.bus.relay.is_alone
        other = await fleet.joined()
        assert not first.bus.relay.is_alone
        with other.bus.subscribed("s") as follower:
            first.bus.publish("s", Fragment(1, 1, "content", 0, "x" * LARGEST))
            for number in range(2_000):
                first.bus.publish(f"s{number}", JournalGrew(1))
            first.bus.publish("s", JournalGrew(2))
            *pieces, last = await heard(follower, JournalGrew(2))
            assert last == JournalGrew(2)
            assert len(pieces) == 2
            assert "".join(one.text for one in pieces if isinstance(one, Fragment)) == "x" * LARGEST
    finally:
        await fleet.left()
