"""Places under limits: whoever is under two of them is not passed over for ever by those who are under one."""

from collections import Counter

from longhouse.journal import events
from longhouse.store import journals, leases, places
from longhouse.store.database import Database

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


async def prompted(db: Database, session_id: str, *, owner: str, agent: str, key: str | None) -> None:
    about = events.Opened(agent=agent, version=1, owner=owner, conversation=session_id)
    prompt = events.Prompted(trace=session_id, content=("Hello",))
    await journals.open(db, session_id, about, prompt, task="Hello")
    await db.run("UPDATE sessions SET key_id = :key WHERE id = :id", key=key, id=session_id)


async def test_a_session_under_two_limits_gets_its_turns(db: Database) -> None:
    for sql in (CATALOG, ACTIVE, KEY):
        await db.run(sql)
    await db.run("INSERT INTO workers (id, lock_key, node, pid, slots, version) VALUES ('w', 1, 'n', 1, 99, '')")
    for nth in range(4):
        await prompted(db, f"template{nth}", owner=f"other{nth}", agent="narrow", key=None)
        await prompted(db, f"key{nth}", owner="ann", agent="wide", key="key")
    await prompted(db, "both", owner="ann", agent="narrow", key="key")
    running: dict[str, leases.Lease] = {}
    turns: Counter[str] = Counter()
    for nth in range(ROUNDS):
        _, is_awaited = await leases.fire(db)
        if is_awaited:
            await places.let_in(db, await places.with_room(db, per_key=None), per_key=None)
        for session_id, _ in await leases.runnable(db, "w", 50, running=running):
            claim = await leases.claim_place(db, session_id, "w")
            if claim.lease:
                running[session_id] = claim.lease
                turns[session_id] += 1
        for limit in ("template", "key"):
            assert sum(one == "both" or one.startswith(limit) for one in running) <= 2
        # The one that runs longest has ended, and its user goes on talking.
        session_id = next(iter(running))
        lease = running.pop(session_id)
        head = await db.value("SELECT head FROM sessions WHERE id = :id", id=session_id)
        assert await leases.rest(db, lease, head=head, state="COMPLETED", fingerprint=None)
        await places.let_in(db, lease.places, per_key=None)
        again = events.Prompted(trace=f"{session_id}{nth}", content=("More",))
        await journals.add(db, session_id, [again], trace=again.trace)
    assert min(turns[one] for one in ("both", "key0", "template0")) >= ROUNDS / 20, turns
