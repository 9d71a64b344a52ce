"""Attacks on the ledger: ids, moments and deletions of one conversation never reach what others have said."""

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from ledger_helpers import ledger_of, told
from longhouse import clock
from longhouse.errors import CallerError
from longhouse.journal import events
from longhouse.memory.ledger import Ledger, new_interaction
from longhouse.store import journals, leases
from longhouse.store.database import Database
from longhouse.store.memory.interactions import Interaction
from server_helpers import AGENT, prompted, started

FUTURE = datetime(2099, 1, 1, tzinfo=UTC)


def given(conversation: str, content: str, **extra: Any) -> Interaction:
    about = {"source": "user", "source_type": "user", "target": AGENT, "target_type": "agent", "type": "input"}
    return new_interaction(conversation, **{"trace_id": "x", **about, "content": content, **extra})


async def turn(db: Database, session_id: str, conversation: str, text: str, *, owner: str = "local") -> None:
    """A session of one turn, or one more turn of it; every answer repeats the text."""
    about = events.Opened(agent=AGENT, version=1, owner=owner, conversation=conversation)
    is_new = not await db.value("SELECT count(*) FROM sessions WHERE id = :id", id=session_id)
    prompt = prompted(text, trace=f"{session_id} {text}")
    if is_new:
        seq = (await journals.open(db, session_id, about, prompt, task="")).seq
        assert (await leases.claim(db, session_id, "w")).lease
    else:
        seq = (await journals.add(db, session_id, [prompt], trace=prompt.trace)).seq
    begun = started(seq, trace=prompt.trace)
    work = (begun, events.Replied(text=text), events.Finished(answer=text))
    await journals.note(db, session_id, work, trace=prompt.trace)


async def contents(ledger: Ledger, conversation: str, owner: str = "local") -> list[str]:
    found = await ledger.retrieve(owner, conversation, limit=100)
    return [one.content for one in found if "user" in (one.source_type, one.target_type)]


async def searched(ledger: Ledger, conversation: str, query: str, owner: str = "local") -> list[str]:
    return [one.content for one in await ledger.search(owner, conversation, query, limit=50)]


async def again(db: Database) -> Ledger:
    """The ledger, made again from the journals."""
    ledger = ledger_of(db)
    await ledger.reset()
    await told(db)
    return ledger


async def test_an_id_is_of_its_conversation_and_its_owner_alone(db: Database) -> None:
    ledger = ledger_of(db)
    said = {("a", "c1"): "apples", ("a", "c2"): "apples and pears", ("b", "c1"): "apples of b"}
    for (owner, conversation), text in said.items():
        added = await ledger.add(owner, conversation, [given(conversation, text, id="same")])
        assert [one.content for one in added.data] == [text]
    for (owner, conversation), text in said.items():
        assert await contents(ledger, conversation, owner) == [text]
        assert await searched(ledger, conversation, "apples", owner) == [text]
        assert [one.content for one in await ledger.external(owner, conversation, ["same"])] == [text]
    assert await ledger.external("a", "c3", ["same"]) == []
    assert await ledger.owners("x") == ["a", "b"]  # the command asks whose story is meant
    # One goes, and only that one: from the list, from what is found, from the journal and from every rebuild.
    assert await ledger.delete("a", "c1") == 1
    del said["a", "c1"]
    for _ in range(2):
        for (owner, conversation), text in said.items():
            assert await contents(ledger, conversation, owner) == [text]
            assert await searched(ledger, conversation, "apples", owner) == [text]
        assert (await contents(ledger, "c1", "a"), await searched(ledger, "c1", "apples", "a")) == ([], [])
        assert await db.value("SELECT count(*) FROM journal WHERE kind = 'Noted'") == 2
        ledger = await again(db)


async def test_an_id_from_outside_never_takes_the_place_of_what_is_told(db: Database) -> None:
    await turn(db, "s", "c", "Real")
    ledger = ledger_of(db)
    for forged in ("s:0000000002", "s:0000000004:in", "s:0000000004:out", "s:0000000009", "s:0000000005:turn"):
        with pytest.raises(CallerError, match="looks like one that the server gives"):
            await ledger.add("local", "c", [given("c", "Forged", id=forged)])
    assert await contents(ledger, "c") == ["Real", "Real"]
    # A note of a session names only what was added to its own conversation.
    assert await ledger.external("local", "c", ["s:0000000002"]) == []


@pytest.mark.parametrize("how", ["delete", "prune", "trace"])
async def test_a_moment_in_the_future_cuts_nothing_that_is_said_later(db: Database, how: str) -> None:
    ledger = ledger_of(db)
    await turn(db, "s", "c", "Before")
    await ledger.add("local", "c", [given("c", "Late", at=FUTURE, trace_id="s After")])
    match how:
        case "delete":
            assert await ledger.delete("local", "c") == 5
        case "trace":
            assert await ledger.delete("local", "c", trace="s After") == 1
        case "prune":
            assert await ledger.prune("local", "c", max_count=0) == 5
    await turn(db, "s", "c", "After")
    kept = ["After", "After", *(["Before", "Before"] if how == "trace" else [])]
    assert await contents(ledger, "c") == kept
    assert await contents(await again(db), "c") == kept
    assert await db.value("SELECT count(*) FROM interaction_cuts") == (0 if how == "trace" else 1)


async def test_cuts_are_merged_and_hold_all_that_they_held(db: Database) -> None:
    ledger = ledger_of(db)
    for n in range(4):
        await turn(db, "s", "c", f"Said {n}")
        await ledger.prune("local", "c", max_count=4)
    assert await db.value("SELECT count(*) FROM interaction_cuts") == 1
    assert await contents(await again(db), "c") == ["Said 3", "Said 3"]
    await ledger.delete("local", "c", trace="s Said 3")
    await ledger.prune("local", "c", max_count=0)
    assert await contents(await again(db), "c") == []
    # A conversation that is pruned late does not reach back over what was told later.
    await turn(db, "s", "c", "Said 4")
    assert await contents(await again(db), "c") == ["Said 4", "Said 4"]


@pytest.mark.parametrize("size", [10, 15_000])
async def test_the_same_id_at_once_is_added_once_and_leaves_nothing(db: Database, size: int) -> None:
    """A long content has its body in a file of its own."""
    first, second = (f"{letter * size} words" for letter in "ab")
    tries = [ledger_of(db).add("local", "c", [given("c", text, id="one")]) for text in (first, second) * 3]
    done = await asyncio.gather(*tries, return_exceptions=True)
    kept = [one.data[0].content for one in done if not isinstance(one, BaseException)]
    assert len(kept) == 3
    assert len(set(kept)) == 1
    assert all(isinstance(one, CallerError) and one.status == 409 for one in done if isinstance(one, BaseException))
    ledger = await again(db)
    assert await contents(ledger, "c") == kept[:1]
    assert await db.value("SELECT count(*) FROM journal WHERE kind = 'Noted'") == 1
    assert await ledger.delete("local", "c") == 1
    assert await db.value("SELECT count(*) FROM journal WHERE kind = 'Noted'") == 0
    assert await contents(await again(db), "c") == []
    assert await db.value("SELECT count(*) FROM passages") == 0


async def test_what_is_older_than_a_cut_can_be_added_after_it(db: Database) -> None:
    ledger = ledger_of(db)
    await turn(db, "s", "c", "Said")
    await ledger.delete("local", "c")
    await ledger.add("local", "c", [given("c", "By letter", at=clock.now() - timedelta(days=9), id="letter")])
    assert await contents(await again(db), "c") == ["By letter"]


async def test_what_is_added_locks_sessions_in_the_order_of_all_others(db: Database) -> None:
    """Here the agent's session comes before the one that holds what was added: a deletion takes the agent's first."""
    ledger = ledger_of(db)
    await turn(db, "a", "c", "Hello")
    await ledger.add("local", "c", [given("c", "By letter")])
    async with asyncio.timeout(60):
        async with db.pool.acquire() as other, other.transaction():
            await other.execute("SELECT FROM sessions WHERE id = 'a' FOR UPDATE")
            adding = asyncio.create_task(ledger.add("local", "c", [given("c", "By telephone")]))
            while not await db.value("SELECT count(*) FROM pg_locks WHERE NOT granted"):
                await asyncio.sleep(0.01)
            assert await other.fetch("SELECT FROM sessions WHERE side = 'external' FOR UPDATE NOWAIT")
        assert [seq for _, seq in (await adding).noted]
    assert {"By letter", "By telephone"} <= set(await contents(ledger, "c"))
