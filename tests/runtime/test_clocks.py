"""Clocks that are set by an hour, of a process or of Postgres: what becomes of each span, as in docs/operations.md."""

import asyncio
from datetime import timedelta
from typing import Any, ClassVar

import pytest
from engine_fixture import Room, until_waiting

from longhouse import clock
from longhouse.journal import events
from longhouse.journal.events import Effect
from longhouse.journal.session import State
from longhouse.models.scripted import Say, call
from longhouse.runtime.steps.retry_limits import RetryLimits
from longhouse.store import leases
from longhouse.store.access import keys
from longhouse.store.automation import webhook_deliveries, webhooks
from longhouse.store.automation.webhooks import Viewer
from longhouse.store.connections import connect
from longhouse.store.database import Database
from longhouse.store.limits import permits
from longhouse.tools import BaseTool, ToolContext

FINISH = call("finalanswertool", answer="Done.")
DATED = {
    "workers": ["beat_at"],
    "webhooks": ["held_until", "former_until"],
    "webhook_deliveries": ["next_at"],
    "key_permits": ["filled_at"],
    "api_keys": ["expires_at", "former_until"],
}
AHEAD_AND_BACK = pytest.mark.parametrize("hours", [1, -1], ids=["ahead", "back"])


def set_clock(patched: pytest.MonkeyPatch, minutes: float) -> None:
    """The clock of this process is off by so much, by that of Postgres."""
    patched.undo()
    true = clock.now
    patched.setattr(clock, "now", lambda: true() + timedelta(minutes=minutes))


async def set_postgres(db: Database, minutes: int) -> None:
    """Its clock jumps, or goes on: whatever it has dated lies so much further back, or comes so much sooner."""
    for table, columns in DATED.items():
        moved = ", ".join(f"{one} = {one} - make_interval(mins => :minutes)" for one in columns)
        await db.run(f"UPDATE {table} SET {moved}", minutes=minutes)


@AHEAD_AND_BACK
async def test_what_postgres_measures_heeds_its_own_clock_alone(
    dsn: str, db: Database, monkeypatch: pytest.MonkeyPatch, hours: int
) -> None:
    """Leases of workers and of senders, tries of webhooks, shared permits, keys that end and former secrets."""
    fields = {"url": "https://example.com", "events": ["session.rested"], "agent": None, "description": ""}
    viewer = Viewer("ann", "", only_own=False)
    soon = clock.now() + timedelta(minutes=30)
    ending, secret = await keys.create(db, name="ann", owner="ann", role="user", expires_at=soon)
    changing, former = await keys.create(db, name="bob", owner="ann", role="user")

    set_clock(monkeypatch, 60 * hours)
    lives = [await connect(dsn) for _ in range(2)]
    for worker, life in zip(("frozen", "lively"), lives, strict=True):
        await leases.register_worker(life, worker, node="n", pid=1, slots=1)
    hook, _ = await webhooks.create(db, viewer, **fields, status="active")
    told = await webhook_deliveries.add_test(db, hook.id, "key", "{}")
    assert await webhook_deliveries.claim(db, hook.id, "frozen", seconds=600)
    failure = {"status": 500, "error": "x", "delay": 1800, "pause_after": 86_400}
    await webhook_deliveries.failed(db, told.id, **failure)  # type: ignore[arg-type]
    await keys.rotate(db, changing.id, overlap=1800)
    while (await permits.take(db, ending.id, "requests", size=60, seconds=3600, block=60)).permits:
        pass

    async def silent() -> list[str]:
        return [one.worker for one in await leases.suspects(db, "me", 60) if one.silent]

    async def is_sent_by_another() -> bool:
        return await webhook_deliveries.claim(db, hook.id, "lively", seconds=600) is not None

    async def due() -> int:
        return len(await webhook_deliveries.due(db, hook.id, under_way=[], limit=9))

    async def granted() -> int:
        return (await permits.take(db, ending.id, "requests", size=60, seconds=3600, block=4)).permits

    async def valid() -> list[bool]:
        found = [await keys.with_digest(db, keys.digest_of(one)) for one in (secret, former)]
        return [one is not None and not one.is_expired for one in found]

    async def stand() -> Any:
        return await silent(), await is_sent_by_another(), await due(), await granted(), await valid()

    as_it_was: Any = ([], False, 0, 0, [True, True])
    assert await stand() == as_it_was, "whatever the clock of the process says"
    await set_postgres(db, 60 * hours)
    if hours > 0:
        assert await stand() == (["frozen", "lively"], True, 1, 4, [False, False])
        assert await leases.beat(lives[1], "lively")
        assert await silent() == ["frozen"], "that was once"
    else:
        assert await stand() == as_it_was
        assert await db.value("SELECT max(filled_at) <= now() + interval '1 minute' FROM key_permits")
        # Whoever is frozen is noticed an hour later; whoever has ended, at once.
        await db.run("UPDATE workers SET beat_at = beat_at - interval '2 minutes'")
        assert await silent() == []
        lives[0].terminate()
        async with asyncio.timeout(20):
            while [one.worker for one in await leases.suspects(db, "me", 60) if one.unlocked] != ["frozen"]:
                await asyncio.sleep(0.01)
        # What is due in half an hour is due an hour later.
        await set_postgres(db, 31)
        assert (await due(), await valid()) == (0, [True, True])
        await set_postgres(db, 60)
        assert (await due(), await valid()) == (1, [False, False])
    for life in lives:
        life.terminate()


async def test_trouble_of_a_model_is_waited_out_by_the_clock_of_the_process(
    db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    room = Room(db, [Say() for _ in range(6)])
    room.engine = room.another("w1", retry_limits=RetryLimits(first=0, unattended=900))

    async def tried(session_id: str, minutes: float) -> State:
        set_clock(monkeypatch, minutes)
        await leases.fire(db)
        return (await room.advance(session_id)).state

    ahead = await room.prompt()
    assert [await tried(ahead, at) for at in (0, 60)] == [State.RESEARCHING, State.FAILED]
    # It is put back by an hour, and an hour and a quarter go by.
    back = await room.prompt()
    assert [await tried(back, at) for at in (0, -60, 14, 16)] == [State.RESEARCHING] * 3 + [State.FAILED]


class Pay(BaseTool):
    """Pay a bill."""

    effect: ClassVar[Effect] = "once"
    paid: ClassVar[list[str]] = []

    async def __call__(self, context: ToolContext, config: object = None, **kwargs: object) -> str:
        self.paid.append(context.key)
        return "paid"


HOLD: tuple[str, str] = (
    """CREATE FUNCTION hold() RETURNS trigger LANGUAGE plpgsql AS
       $$ BEGIN PERFORM pg_advisory_xact_lock(4711); RETURN NEW; END $$""",
    """CREATE TRIGGER hold BEFORE INSERT ON journal FOR EACH ROW WHEN (NEW.kind = 'Called')
       EXECUTE FUNCTION hold()""",
)


@pytest.mark.parametrize(("minutes", "is_paid"), [(60, False), (-30, True)], ids=["ahead", "back"])
async def test_up_to_when_a_call_that_must_not_run_twice_may_begin_is_said_by_the_clock_of_its_process(
    db: Database, monkeypatch: pytest.MonkeyPatch, minutes: float, is_paid: bool
) -> None:
    """Half an hour goes by after its intent, and the clock is put back by an hour; or it is set ahead."""
    Pay.paid.clear()
    room = Room(db, [call("pay"), FINISH], [Pay])
    session_id = await room.prompt()
    for sql in HOLD:
        await db.run(sql)
    async with db.pool.acquire() as other:
        await other.execute("SELECT pg_advisory_lock(4711)")
        running = asyncio.create_task(room.advance(session_id))
        await until_waiting(db)
        set_clock(monkeypatch, minutes)
        await other.execute("SELECT pg_advisory_unlock(4711)")
    assert (await running).state is State.COMPLETED
    assert len(Pay.paid) == is_paid
    outcome = (await room.outcomes(session_id))["1-action-0"]
    assert isinstance(outcome, events.Output if is_paid else events.Fault)
    assert is_paid or "nothing happened" in room.results()[-1]
