"""Places under limits: who gets one next, also where somebody is under two of them, or is erased while it waits."""

import asyncio
from collections import Counter

from longhouse.journal import events
from longhouse.store import journals, leases
from longhouse.store.database import Database
from longhouse.store.leases import Claimant
from longhouse.store.limits import places
from longhouse.store.requests import RequestIdentity

ROUNDS = 60
CATALOG = """
    INSERT INTO catalog_versions (kind, name, version, descriptor, published_by, digest)
    VALUES ('template', 'narrow', 1, '{"execution_policy": {"max_running": 2}}', 'test', 'd')
"""
ACTIVE = """
    INSERT INTO catalog_names (kind, name, active) VALUES ('template', 'narrow', 1)
    ON CONFLICT (kind, name) DO UPDATE SET active = 1
"""
KEY = """
    INSERT INTO api_keys (id, name, owner, role, digest, max_running) VALUES ('key', 'k', 'ann', 'user', 'd', 2)
"""

WORKER = "INSERT INTO workers (id, lock_key, node, pid, slots, version) VALUES ('w', 1, 'n', 1, 99, '')"


async def prompted(db: Database, session_id: str, *, owner: str, agent: str, key: str | None) -> None:
    about = events.Opened(agent=agent, version=1, owner=owner, conversation=session_id)
    prompt = events.Prompted(trace=session_id, content=("Hello",))
    await journals.open(db, session_id, about, prompt, task="Hello")
    await db.run("UPDATE sessions SET key_id = :key WHERE id = :id", key=key, id=session_id)


async def test_a_session_under_two_limits_gets_its_turns(db: Database) -> None:
    for sql in (CATALOG, ACTIVE, KEY, WORKER):
        await db.run(sql)
    for nth in range(4):
        await prompted(db, f"template{nth}", owner=f"other{nth}", agent="narrow", key=None)
        await prompted(db, f"key{nth}", owner="ann", agent="wide", key="key")
    await prompted(db, "both", owner="ann", agent="narrow", key="key")
    running: dict[str, leases.Lease] = {}
    turns: Counter[str] = Counter()
    for nth in range(ROUNDS):
        _, is_awaited, _ = await leases.fire(db)
        if is_awaited:
            await places.let_in(db, await places.with_room(db, per_key=None), per_key=None)
        for session_id, _ in await leases.runnable(db, "w", 50, running=running):
            claim = await leases.claim(db, session_id, "w")
            if claim.lease:
                running[session_id] = claim.lease
                turns[session_id] += 1
        for limit in ("template", "key"):
            assert sum(one == "both" or one.startswith(limit) for one in running) <= 2
        # The one that runs longest has ended, and its user goes on talking.
        session_id = next(iter(running))
        lease = running.pop(session_id)
        await ended(db, lease)
        await places.let_in(db, lease.limits, per_key=None)
        again = events.Prompted(trace=f"{session_id}{nth}", content=("More",))
        await journals.add(db, session_id, [again], trace=again.trace)
    assert min(turns[one] for one in ("both", "key0", "template0")) >= ROUNDS / 20, turns
    # One under a limit is not claimed where it is opened; one that is under none is.
    asked = [("wide", None, None), ("narrow", None, None), ("wide", "key", None), ("wide", "free", None)]
    for agent, key, per_key in (*asked, ("wide", "free", 1), ("wide", None, 1)):
        about = events.Opened(agent=agent, version=1, owner="ann", conversation=f"{agent}{key}{per_key}")
        prompt, accepted = events.Prompted(trace="t", content=("Hello",)), RequestIdentity("ann", "d", api_key=key)
        claimant = Claimant("w", per_key)
        placed = await journals.open(
            db, about.conversation, about, prompt, task="Hello", accepted=accepted, claimant=claimant
        )
        is_free = (agent, key) == ("wide", None) or (key, per_key) == ("free", None)
        assert (placed.lease is not None) == is_free
        held = await db.row("SELECT holder, fence FROM sessions WHERE id = :id", id=about.conversation)
        assert held
        assert tuple(held) == (("w", 1) if is_free else (None, 0))


async def test_who_waits_keeps_its_place_in_line_and_who_is_erased_leaves_it_to_the_next(db: Database) -> None:
    for sql in (KEY, WORKER):
        await db.run(sql)
    waiting = [f"waiting{nth}" for nth in range(4)]
    running = []
    for session_id in ("first", "second", *waiting):
        await prompted(db, session_id, owner="ann", agent="wide", key="key")
        running += [lease] if (lease := (await leases.claim(db, session_id, "w")).lease) else []
    assert [lease.session_id for lease in running] == ["first", "second"]
    # Its user says one more word meanwhile, over either way.
    await journals.add(db, "waiting0", [events.Prompted(trace="more", content=("More",))], trace="more")
    about = events.Opened(agent="wide", version=1, owner="ann", conversation="waiting1")
    await journals.open(db, "other", about, events.Prompted(trace="more", content=("More",)), task="Hello")
    for session_id in ("waiting0", "waiting1"):
        assert (await leases.claim(db, session_id, "w")).lease is None
    await ended(db, running[0])
    assert await places.let_in(db, running[0].limits, per_key=None) == ["waiting0"]

    await ended(db, running[1])
    async with db.pool.acquire() as eraser, eraser.transaction():
        await eraser.execute("DELETE FROM sessions WHERE id = 'waiting1'")
        letting_in = asyncio.create_task(places.let_in(db, ["key:key"], per_key=None))
        while not await db.value("SELECT EXISTS (SELECT FROM pg_locks WHERE NOT granted)"):
            await asyncio.sleep(0.01)
    assert await letting_in == []
    assert await places.let_in(db, await places.with_room(db, per_key=None), per_key=None) == ["waiting2"]


async def ended(db: Database, lease: leases.Lease) -> None:
    head = await db.value("SELECT head FROM sessions WHERE id = :id", id=lease.session_id)
    assert await leases.rest(db, lease, head=head, state="COMPLETED", fingerprint=None)
