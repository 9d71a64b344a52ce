"""Long-term files: what is kept, what is refused, and that a change is made once for each call."""

import asyncio
import itertools
from typing import Any

import asyncpg
import pytest
from unsteady_connection import BIND, COMMIT, unsteady

from longhouse.store.database import Database, open_database
from longhouse.store.memory.memory_files import LOCKS, MAX_ENTRIES, MAX_FILE, MAX_SCOPE, File, Memories, Verdict
from longhouse.store.memory.memory_scopes import Scope

MINE = Scope("local", "mine")
_keys = itertools.count()


def key() -> str:
    return f"s:{next(_keys)}"


async def write(memories: Memories, path: str, content: str = "x", scope: Scope = MINE) -> Verdict:
    return await memories.write(scope, path, content, key=key())


async def paths(memories: Memories, path: str = "", scope: Scope = MINE) -> list[str]:
    return [entry.path for entry in await memories.list(scope, path)]


async def filled(db: Database, files: int, size: int, scope: Scope = MINE) -> None:
    """So many files of this size, put there without the way in."""
    await db.run(
        """
        INSERT INTO memories (owner, scope, path, content, written_by)
        SELECT :owner, :scope, 'fill/' || n, repeat('x', :size), 'test' FROM generate_series(1, :files) AS n
        """,
        owner=scope.owner, scope=scope.key, files=files, size=size,
    )  # fmt: skip


@pytest.fixture
def memories(db: Database) -> Memories:
    return Memories(db)


async def test_a_file_is_kept_with_the_directories_it_stands_in(memories: Memories) -> None:
    assert await write(memories, "people/friends/ann.md", "Ann, née Å") == "done"
    assert await memories.read(MINE, "people/friends/ann.md") == File("Ann, née Å")
    assert await memories.read(MINE, "people") == File(None)
    assert await memories.read(MINE, "people/ann.md") is None
    entries = await memories.list(MINE)
    assert [(entry.path, entry.is_directory, entry.size) for entry in entries] == [
        ("people", True, 0),
        ("people/friends", True, 0),
        ("people/friends/ann.md", False, len("Ann, née Å".encode())),
    ]


async def test_what_is_below_a_directory_is_not_what_begins_like_it(memories: Memories) -> None:
    for path in ("a/x.md", "a/b/y.md", "a.md", "a-b/z.md", "ab.md", "a%/q.md", "a_c.md"):
        assert await write(memories, path, "12345") == "done"
    assert await paths(memories, "a") == ["a/b", "a/b/y.md", "a/x.md"]
    assert await memories.size(MINE, "a") == 10
    assert await memories.size(MINE, "a/b") == 5
    assert await memories.size(MINE, "a.md") == 5
    assert await memories.size(MINE) == 35
    assert await memories.size(MINE, "nothing") is None


async def test_the_root_is_there_before_anything_is(memories: Memories) -> None:
    assert await memories.exists(MINE, "", directory=True)
    assert not await memories.exists(MINE, "", directory=False)
    assert await memories.size(MINE) == 0
    assert await memories.list(MINE) == []


async def test_files_and_directories_are_told_apart(memories: Memories) -> None:
    await write(memories, "a/x.md")
    assert await memories.exists(MINE, "a", directory=True)
    assert not await memories.exists(MINE, "a", directory=False)
    assert await memories.exists(MINE, "a/x.md", directory=False)
    assert not await memories.exists(MINE, "a/x.md", directory=True)
    assert await write(memories, "a") == "is_directory"
    assert await write(memories, "a/x.md/y.md") == "parent_is_file"
    assert await memories.make_dir(MINE, "a/x.md", key=key()) == "is_file"
    assert await memories.make_dir(MINE, "a/x.md/b", key=key()) == "parent_is_file"
    assert await memories.update(MINE, "a", "x", "y", key=key()) == "is_directory"
    assert await paths(memories) == ["a", "a/x.md"]


async def test_what_is_there_is_not_written_over(memories: Memories) -> None:
    await write(memories, "a.md", "first")
    assert await write(memories, "a.md", "second") == "exists"
    assert await memories.read(MINE, "a.md") == File("first")


async def test_a_directory_that_is_there_stays_as_it_is(memories: Memories) -> None:
    await write(memories, "a/b/x.md")
    assert await memories.make_dir(MINE, "a/b", key=key()) == "done"
    assert await memories.make_dir(MINE, "a/c/d", key=key()) == "done"
    assert await paths(memories) == ["a", "a/b", "a/b/x.md", "a/c", "a/c/d"]


async def test_the_first_place_is_changed_and_only_it(memories: Memories) -> None:
    for before, old, new, after in (
        ("one two one", "one", "1", "1 two one"),
        ("Å née Ω", "née", "born", "Å born Ω"),
        ("a%_b\\c$1", "%_b\\c$1", "\\1&", "a\\1&"),
        ("drop it", " it", "", "drop"),
        ("", "", "now", "now"),
        ("same", "same", "same", "same"),
        ("line\r\nend\n", "\r\nend", "", "line\n"),
    ):
        await write(memories, "a.md", before)
        assert await memories.update(MINE, "a.md", old, new, key=key()) == "done"
        assert await memories.read(MINE, "a.md") == File(after)
        assert await memories.size(MINE, "a.md") == len(after.encode())
        await memories.delete(MINE, "a.md", key=key())


async def test_a_passage_that_is_not_there_changes_nothing(memories: Memories) -> None:
    await write(memories, "a.md", "text")
    assert await memories.update(MINE, "a.md", "Text", "x", key=key()) == "not_found"
    assert await memories.update(MINE, "a.md", "", "x", key=key()) == "not_found"
    assert await memories.update(MINE, "b.md", "text", "x", key=key()) == "missing"
    assert await memories.read(MINE, "a.md") == File("text")


async def test_files_and_empty_directories_are_deleted_full_ones_are_not(memories: Memories) -> None:
    await write(memories, "a/x.md")
    await write(memories, "a-b/z.md")
    assert await memories.delete(MINE, "a", key=key()) == "not_empty"
    assert await memories.delete(MINE, "a/x.md", key=key()) == "done"
    assert await memories.delete(MINE, "a", key=key()) == "done"
    assert await memories.delete(MINE, "a", key=key()) == "missing"
    assert await paths(memories) == ["a-b", "a-b/z.md"]


async def test_scopes_do_not_see_each_other(memories: Memories) -> None:
    others = [Scope("local", "theirs"), Scope("other", "mine")]
    await write(memories, "a/x.md", "mine")
    for other in others:
        assert await memories.read(other, "a/x.md") is None
        assert not await memories.exists(other, "a", directory=True)
        assert (await memories.list(other), await memories.size(other)) == ([], 0)
        assert await memories.update(other, "a/x.md", "mine", "theirs", key=key()) == "missing"
        assert await memories.delete(other, "a/x.md", key=key()) == "missing"
        assert await write(memories, "a/x.md", "theirs", other) == "done"
    assert await memories.read(MINE, "a/x.md") == File("mine")
    assert len({MINE.lock, *(other.lock for other in others)}) == 3


async def test_a_file_has_a_largest_size_in_bytes(memories: Memories) -> None:
    assert await write(memories, "a.md", "é" * (MAX_FILE // 2)) == "done"
    assert await write(memories, "b.md", "é" * (MAX_FILE // 2) + "x") == "file_full"
    assert await memories.update(MINE, "a.md", "é", "abc", key=key()) == "file_full"
    assert await memories.update(MINE, "a.md", "é", "ab", key=key()) == "done"
    assert await memories.size(MINE) == MAX_FILE


async def test_a_scope_has_a_largest_size_over_all_depths(db: Database, memories: Memories) -> None:
    await filled(db, files=MAX_SCOPE // MAX_FILE - 1, size=MAX_FILE)
    assert await write(memories, "deep/down/a.md", "x" * (MAX_FILE - 3)) == "done"
    assert await write(memories, "b.md", "1234") == "scope_full"
    assert await write(memories, "b.md", "123") == "done"
    assert await memories.size(MINE) == MAX_SCOPE
    assert await memories.update(MINE, "b.md", "1", "11", key=key()) == "scope_full"
    assert await memories.update(MINE, "b.md", "1", "2", key=key()) == "done"
    assert await memories.make_dir(MINE, "empty", key=key()) == "done"
    assert await write(memories, "c.md", "1", Scope("local", "theirs")) == "done"
    assert await memories.delete(MINE, "b.md", key=key()) == "done"
    assert await write(memories, "c.md", "321") == "done"


async def test_a_scope_has_a_largest_number_of_entries_directories_too(db: Database, memories: Memories) -> None:
    await filled(db, files=MAX_ENTRIES - 3, size=1)
    assert await write(memories, "a/b/c/d.md") == "too_many"
    assert await write(memories, "a/b/c.md") == "done"
    assert len(await memories.list(MINE)) == MAX_ENTRIES
    assert await write(memories, "a/b/d.md") == "too_many"
    assert await memories.make_dir(MINE, "e", key=key()) == "too_many"
    assert await memories.make_dir(MINE, "a/b", key=key()) == "done"
    assert await memories.delete(MINE, "a/b/c.md", key=key()) == "done"
    assert await write(memories, "a/b/d.md") == "done"


async def test_writers_side_by_side_never_pass_the_size_together(dsn: str, db: Database) -> None:
    await filled(db, files=MAX_SCOPE // MAX_FILE - 1, size=MAX_FILE)
    half = "x" * (MAX_FILE // 2)
    async with open_database(dsn) as other:
        writers = [Memories(db), Memories(other)] * 4
        verdicts = await asyncio.gather(*(write(writer, f"{nth}.md", half) for nth, writer in enumerate(writers)))
    assert sorted(verdicts) == ["done"] * 2 + ["scope_full"] * 6
    assert await Memories(db).size(MINE) == MAX_SCOPE


async def test_writers_side_by_side_never_pass_the_number_together(dsn: str, db: Database) -> None:
    await filled(db, files=MAX_ENTRIES - 3, size=1)
    async with open_database(dsn) as other:
        writers = [Memories(db), Memories(other)] * 4
        verdicts = await asyncio.gather(*(write(writer, f"{nth}.md") for nth, writer in enumerate(writers)))
    assert sorted(verdicts) == ["done"] * 3 + ["too_many"] * 5


async def test_changes_side_by_side_are_all_made(memories: Memories) -> None:
    await write(memories, "a.md", "0 1 2 3 4 5 6 7")
    changes = (memories.update(MINE, "a.md", str(nth), f"<{nth}>", key=key()) for nth in range(8))
    assert set(await asyncio.gather(*changes)) == {"done"}
    assert await memories.read(MINE, "a.md") == File("<0> <1> <2> <3> <4> <5> <6> <7>")


async def test_one_of_many_creates_a_file(memories: Memories) -> None:
    verdicts = await asyncio.gather(*(write(memories, "a/b.md", str(nth)) for nth in range(8)))
    assert sorted(verdicts) == ["done"] + ["exists"] * 7


CHANGES: dict[str, Any] = {
    "write": lambda memories, key: memories.write(MINE, "new/b.md", "text", key=key),
    "make_dir": lambda memories, key: memories.make_dir(MINE, "new", key=key),
    "update": lambda memories, key: memories.update(MINE, "a.md", "one", "one and one", key=key),
    "delete": lambda memories, key: memories.delete(MINE, "a.md", key=key),
}


@pytest.mark.parametrize("change", CHANGES)
async def test_a_repeated_call_changes_nothing_and_succeeds_again(memories: Memories, change: str) -> None:
    await write(memories, "a.md", "one")
    assert await CHANGES[change](memories, "s:1-action-0") == "done"
    entries = await memories.list(MINE)
    assert await CHANGES[change](memories, "s:1-action-0") == "repeated"
    assert await memories.list(MINE) == entries


@pytest.mark.parametrize("change", CHANGES)
async def test_a_call_sent_twice_at_once_is_made_once(memories: Memories, change: str) -> None:
    await write(memories, "a.md", "one")
    verdicts = await asyncio.gather(*(CHANGES[change](memories, "s:1-action-0") for _ in range(4)))
    assert sorted(verdicts) == ["done"] + ["repeated"] * 3


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize(("at", "verdict"), [(BIND, "done"), (COMMIT, "repeated")])
async def test_a_connection_lost_on_the_way_makes_a_change_once(
    dsn: str, memories: Memories, change: str, at: bytes, verdict: Verdict
) -> None:
    await write(memories, "a.md", "one")
    async with unsteady(dsn) as (shaky, line):
        line.lose_reply(at=at)
        assert await CHANGES[change](Memories(shaky), "s:1-action-0") == verdict
        assert line.cuts == 1
    found = await memories.read(MINE, "a.md")
    assert found == {"update": File("one and one"), "delete": None}.get(change, File("one"))


async def test_a_repeat_does_not_undo_what_others_did_since(memories: Memories) -> None:
    await memories.write(MINE, "a.md", "draft", key="s:1")
    await memories.update(MINE, "a.md", "draft", "fair copy", key="s:2")
    await memories.update(MINE, "a.md", "fair copy", "draft", key="t:1")
    assert await memories.update(MINE, "a.md", "draft", "fair copy", key="s:2") == "repeated"
    assert await memories.read(MINE, "a.md") == File("draft")
    await memories.delete(MINE, "a.md", key="s:3")
    assert await memories.write(MINE, "a.md", "draft", key="s:1") == "repeated"
    await memories.write(MINE, "a.md", "again", key="t:2")
    assert await memories.delete(MINE, "a.md", key="s:3") == "repeated"
    assert await memories.read(MINE, "a.md") == File("again")


async def test_what_was_refused_may_succeed_when_it_is_repeated(memories: Memories) -> None:
    assert await memories.delete(MINE, "a.md", key="s:1") == "missing"
    await write(memories, "a.md")
    assert await memories.delete(MINE, "a.md", key="s:1") == "done"


async def test_calls_are_forgotten_after_a_month(db: Database, memories: Memories) -> None:
    await memories.write(MINE, "a.md", "x", key="old")
    await memories.write(Scope("local", "theirs"), "a.md", "x", key="old")
    await db.run("UPDATE memory_calls SET at = now() - interval '31 days'")
    await memories.write(MINE, "b.md", "x", key="new")
    rows = await db.rows("SELECT scope, key FROM memory_calls ORDER BY scope")
    assert [tuple(row) for row in rows] == [("mine", "new"), ("theirs", "old")]


async def test_a_file_says_which_call_wrote_it_last(db: Database, memories: Memories) -> None:
    await memories.write(MINE, "a.md", "x", key="s:1")
    assert await db.value("SELECT written_by FROM memories") == "s:1"
    await memories.update(MINE, "a.md", "x", "y", key="s:2")
    assert await db.value("SELECT written_by FROM memories") == "s:2"


async def test_two_scopes_wait_for_each_other_only_when_they_are_one(dsn: str, memories: Memories) -> None:
    """A writer that stands still holds up its own scope and no other."""
    standing = await asyncpg.connect(dsn)
    async with standing.transaction():
        await standing.execute("SELECT pg_advisory_xact_lock($1, $2)", LOCKS, MINE.lock)
        waiting = asyncio.create_task(write(memories, "a.md"))
        assert await write(memories, "a.md", scope=Scope("local", "theirs")) == "done"
        assert not waiting.done()
    assert await asyncio.wait_for(waiting, 10) == "done"
    await standing.close()
