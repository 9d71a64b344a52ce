"""What a forgotten session leaves behind in Postgres: of its conversation's memory nothing, and no word of anybody."""

import asyncio
import uuid
from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Any

import pytest

from longhouse.journal import events
from longhouse.runtime.bus.local import Bus
from longhouse.runtime.cleanup.eraser import Eraser
from longhouse.runtime.inbox import Inbox
from longhouse.store import journals, projections, sessions
from longhouse.store.database import Database
from longhouse.store.erasing import erasure
from longhouse.store.erasing.erasures import Target
from longhouse.store.memory.memory_files import LOCKS, Memories
from longhouse.store.memory.memory_scopes import Scope
from longhouse.store.migrate import migrate
from longhouse.tools.builtin.memory_files import scope_of
from longhouse.tools.context import ToolContext

LONG = "é" * 300
"""Of such a user, the scope is kept as a digest."""

WAITING = """
    SELECT count(*) FROM pg_locks l JOIN pg_database d ON d.oid = l.database
    WHERE d.datname = current_database() AND l.locktype = 'advisory' AND NOT l.granted
"""


@dataclass
class Life:
    """A session as its memory tools see it."""

    db: Database
    agent: str = "keeper"
    user: str | None = "ann"
    conversation: str = "c"
    owner: str = "local"
    side: events.Side = "root"
    label: str = ""
    id: str = ""

    async def begun(self) -> "Life":
        opened = events.Opened(
            agent=self.agent, version=1, owner=self.owner, user=self.user, conversation=self.conversation,
            side=self.side, label=self.label,
        )  # fmt: skip
        prompted = events.Prompted(trace=uuid.uuid4().hex, content=("Hi",))
        placed = await journals.open(self.db, f"{self.agent}_{uuid.uuid4()}", opened, prompted, task="Hi")
        self.id = placed.session_id
        return self

    def scope(self, kind: str) -> Scope:
        context = ToolContext(
            session_id=self.id, conversation_id=self.conversation, owner=self.owner, user=self.user, agent=self.agent,
            call="1", key="", memory_scope=kind,
        )  # fmt: skip
        return scope_of(context)

    async def keeps(self, path: str, kind: str = "conversation") -> str:
        return await Memories(self.db).write(self.scope(kind), path, path, key=f"{self.id}:{uuid.uuid4()}")

    async def changes(self, path: str, kind: str = "conversation") -> str:
        return await Memories(self.db).update(self.scope(kind), path, path, f"{path}!", key=f"{self.id}:{uuid.uuid4()}")

    async def forgotten(self) -> None:
        assert await erasure.forget(self.db, self.id, self.owner)


async def begun(db: Database, **about: str | None) -> Life:
    return await Life(db, **about).begun()  # type: ignore[arg-type]


async def left(db: Database) -> list[str]:
    return [row["path"] for row in await db.rows("SELECT path FROM memories ORDER BY path")]


@pytest.mark.parametrize("user", ["ann", LONG, "local", None, " "])
async def test_what_a_conversation_kept_for_itself_goes_with_those_who_wrote_it(db: Database, user: str | None) -> None:
    first, second = await begun(db, user=user), await begun(db, user=user, agent="other")
    for life, path in ((first, "mine.md"), (first, "ours.md"), (second, "theirs.md"), (second, "both.md")):
        assert await life.keeps(path) == "done"
    assert await second.changes("ours.md") == "done", "the last who wrote it stays"
    assert await first.changes("both.md") == "done"
    assert await second.changes("both.md") == "done"
    await first.forgotten()
    assert await left(db) == ["theirs.md"]
    await second.forgotten()
    assert await left(db) == []
    assert await db.value("SELECT count(*) FROM memory_calls") == 0


@pytest.mark.parametrize("kind", ["conversation", "agent"])
async def test_with_its_last_session_all_that_a_conversation_kept_is_gone(db: Database, kind: str) -> None:
    """Also files of which nobody knows any more whose they were."""
    life, branch = await begun(db, user=None), await begun(db, user=None, label="branch-1")
    assert await life.keeps("known.md", kind) == "done"
    assert await branch.keeps("branch.md", kind) == "done"
    assert await life.keeps("unknown.md", kind) == "done"
    await db.run("UPDATE memories SET written_by = 'nobody:1' WHERE path = 'unknown.md'")
    await branch.forgotten()
    assert await left(db) == ["known.md", "unknown.md"], "one is left who may read them"
    await life.forgotten()
    assert await left(db) == []


async def test_the_memory_of_others_and_what_is_meant_to_last_stays(db: Database) -> None:
    life = await begun(db, owner="acme")
    child = await begun(db, owner="acme", agent="helper", side="sub")
    others = [
        await begun(db, owner="acme", conversation="d"),
        await begun(db, owner="acme", user="bob", agent="other"),
        await begun(db, owner="acme", user=None, agent="third"),
        await begun(db, owner="globex"),
    ]
    for nth, other in enumerate(others):
        assert await other.keeps(f"other{nth}.md") == "done"
    assert await others[2].keeps("alone.md", "agent") == "done"
    assert await life.keeps("of-all.md", "owner") == "done"
    assert await life.keeps("of-ann.md", "agent") == "done"
    assert await child.changes("of-all.md", "owner") == "done"
    assert await life.keeps("gone.md") == "done"
    await life.forgotten()
    await child.forgotten()
    expected = ["alone.md", "of-all.md", "of-ann.md", *(f"other{nth}.md" for nth in range(4))]
    assert await left(db) == expected
    assert await db.value("SELECT count(*) FROM memories WHERE cardinality(former_writers) > 0") == 0


async def test_a_directory_stays_while_others_have_something_in_it(db: Database) -> None:
    first, second = await begun(db), await begun(db, agent="other")
    assert await first.keeps("people/near/ann.md") == "done"
    assert await first.keeps("places/oslo.md") == "done"
    assert await second.keeps("people/near/bob.md") == "done"
    await first.forgotten()
    assert await left(db) == ["people", "people/near", "people/near/bob.md"]
    await second.forgotten()
    assert await left(db) == []


async def test_whoever_still_writes_while_it_is_forgotten_writes_nothing(db: Database) -> None:
    """A call that was under way: done before, it is forgotten with the rest; after, it is refused."""
    life, other = await begun(db), await begun(db, agent="other")
    assert await other.keeps("theirs.md") == "done"
    async with db.connection() as holding:
        await holding.execute("SELECT pg_advisory_lock($1, $2)", LOCKS, life.scope("conversation").lock)
        writing = [asyncio.create_task(life.keeps(f"{nth}.md")) for nth in range(3)]
        forgetting_it = asyncio.create_task(life.forgotten())
        await asyncio.sleep(0.1)
        writing += [asyncio.create_task(life.keeps(f"late{nth}.md")) for nth in range(3)]
        await asyncio.sleep(0.1)
    async with asyncio.timeout(20):
        await forgetting_it
        assert set(await asyncio.gather(*writing)) <= {"done", "forgotten"}
    for write in (life.keeps("later.md"), life.changes("theirs.md"), life.keeps("later.md", "owner")):
        assert await write == "forgotten"
    assert await Memories(db).delete(life.scope("conversation"), "theirs.md", key=f"{life.id}:9") == "forgotten"
    assert await left(db) == ["theirs.md"]


COLUMNS = """
    SELECT table_name, column_name FROM information_schema.columns c JOIN pg_tables t ON t.tablename = c.table_name
    WHERE c.table_schema = current_schema() AND t.schemaname = current_schema()
      AND c.data_type = 'text' AND c.table_name <> 'forgotten'
"""
BLOCKED = "SELECT count(*) FROM pg_locks WHERE NOT granted AND pid <> pg_backend_pid()"


async def test_whoever_is_late_leaves_no_row_of_a_session_that_is_gone(db: Database) -> None:
    """Projections that save how far they came, and a response that ends: after the erasure, and while it goes on."""
    early, late = await begun(db), await begun(db, conversation="d")

    def writes(session: str) -> list[Coroutine[Any, Any, object]]:
        return [
            projections.save(db, "redis", epoch="x", heads={session: 2, early.id: 1}),
            projections.claim(db, "session_log", session, before=0, head=2),
            sessions.mark_rest(db, "f" * 64, session, 2),
        ]

    async with db.connection() as erasing:
        await erasing.execute("BEGIN")
        await erasing.execute("DELETE FROM sessions WHERE id = $1", late.id)
        writing = [asyncio.create_task(one) for one in writes(late.id)]
        async with asyncio.timeout(20):
            while await db.value(BLOCKED) < len(writing):
                await asyncio.sleep(0.01)
        await erasing.execute("DELETE FROM journal WHERE session_id = $1", late.id)
        await erasing.execute("COMMIT")
    _, claimed, _ = await asyncio.gather(*writing)
    assert claimed is False
    for one in writes(late.id):
        await one
    left_in = [
        table
        for table, column in await db.rows(COLUMNS)
        if await db.value(f'SELECT EXISTS (SELECT FROM "{table}" WHERE "{column}" = :id)', id=late.id)
    ]
    assert left_in == []
    assert await projections.cursor(db, "redis", early.id) == 1
    await projections.save_place(db, "redis", "forgotten", 7)
    assert await projections.cursor(db, "redis", "forgotten") == 7


async def test_what_a_session_writes_that_begins_meanwhile_stays(db: Database) -> None:
    life = await begun(db, user=None)
    first, second = sorted(("agent", "conversation"), key=lambda kind: life.scope(kind).lock)
    async with db.connection() as holding:
        await holding.execute("SELECT pg_advisory_lock($1, $2)", LOCKS, life.scope(first).lock)
        forgetting_it = asyncio.create_task(life.forgotten())
        async with asyncio.timeout(20):
            while not await db.value(WAITING):
                await asyncio.sleep(0.01)
        newcomer = await begun(db, user=None, label="branch-1")
        assert await newcomer.keeps("new.md", second) == "done"
    async with asyncio.timeout(20):
        await forgetting_it
    assert await left(db) == ["new.md"]


async def test_of_what_is_forgotten_ids_are_kept_and_no_label(db: Database) -> None:
    life = await begun(db, side="sub", label="the-divorce", user="ann-lee")
    await life.forgotten()
    [row] = await db.rows("SELECT f::text AS row FROM forgotten f")
    assert life.id in row["row"]
    assert not any(word in row["row"] for word in ("divorce", "ann-lee"))


async def test_what_an_older_release_has_kept_is_cleared_of_labels_and_forgotten_like_the_rest(db: Database) -> None:
    first, second = await begun(db), await begun(db, agent="other")
    assert await first.keeps("ours.md") == "done"
    before = "ALTER TABLE memories DROP COLUMN former_writers; DROP INDEX forgotten_session;"
    await db.run(f"{before} DELETE FROM schema_migrations WHERE number = 13")
    await db.run(
        """INSERT INTO forgotten (session_id, owner, conversation_id, side, agent, label, reports, request)
        VALUES ('a_1', 'local', 'd', 'sub', 'a', 'the-divorce', '{}', gen_random_uuid())"""
    )
    assert await migrate(db) == ["0013_forgetting_more.sql"]
    assert [row["label"] for row in await db.rows("SELECT label FROM forgotten")] == [""]
    assert await second.changes("ours.md") == "done"
    await first.forgotten()
    assert await left(db) == []


@pytest.mark.parametrize("user", ["a%", 'a","b', LONG, "安娜_", "local"])
async def test_the_memory_of_an_erased_user_goes_and_that_of_no_other(db: Database, user: str) -> None:
    """Whatever the name: it means itself, and no pattern."""
    life, old = await begun(db, user=user), await begun(db, user=user, agent="retired", conversation="d")
    others = [
        await begun(db, user=name, conversation=f"e{nth}") for nth, name in enumerate(("ab", "a", LONG + "é", None))
    ]
    others.append(await begun(db, user=user, owner="acme"))
    for nth, other in enumerate(others):
        for kind in ("agent", "conversation", "owner"):
            assert await other.keeps(f"other-{nth}-{kind}.md", kind) == "done"
    for one, name in ((life, "mine"), (old, "old")):
        for kind in ("agent", "conversation", "owner"):
            assert await one.keeps(f"{name}-{kind}.md", kind) == "done"
    assert await others[0].changes("mine-owner.md", "owner") == "done"
    await old.forgotten()
    kept = ["mine-agent.md", "mine-conversation.md", "mine-owner.md", "old-agent.md", "old-owner.md"]
    theirs = sorted(f"other-{nth}-{kind}.md" for nth in range(5) for kind in ("agent", "conversation", "owner"))
    assert await left(db) == sorted(kept + theirs)

    eraser, target = Eraser(Inbox(db, Bus())), Target("user", "local", user)
    plan = await eraser.plan(target)
    # Of a session that was erased before, nobody knows whose it was: what it wrote for all stays.
    assert (plan.counts["memory_files"], plan.kept_files) == (3, ["mine-owner.md"])
    assert (await eraser.erase(target)).counts == plan.counts
    assert await left(db) == sorted(["mine-owner.md", "old-owner.md", *theirs])
