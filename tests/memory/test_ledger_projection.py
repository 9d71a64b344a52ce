"""The ledger follows the journals: nothing lost, nothing twice, nothing out of order, and nobody waits for it."""

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from ledger_helpers import ledger_of, told
from longhouse.integrations import projector
from longhouse.journal import conversation, events
from longhouse.journal.events import Event, Fault, Recorded
from longhouse.journal.fold import fold
from longhouse.journal.messages import Assistant, ImagePart, ImageUrl, System, TextPart, User
from longhouse.memory.ledger_projection import LedgerProjector
from longhouse.search.bounded_embedder import EMBED_WITHIN
from longhouse.search.passages import Passage, PassageIndex, PreparedPassages
from longhouse.store import journals, leases
from longhouse.store.database import Database, Transaction
from longhouse.store.erasing import erasure
from longhouse.store.memory import interactions
from server_helpers import AGENT, prompted, returned, started, used

NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)


class Journal:
    """A journal written by hand, with the real statements."""

    def __init__(self, db: Database, session_id: str = "s", conversation_id: str = "c") -> None:
        self.db = db
        self.id = session_id
        self.conversation = conversation_id
        self._fence = 0

    async def prompt(self, prompt: events.Prompted | str, **extra: Any) -> int:
        given = prompted(prompt, **extra) if isinstance(prompt, str) else prompt
        if self._fence:
            return (await journals.add(self.db, self.id, [given], trace=given.trace)).seq
        about = events.Opened(agent=AGENT, version=1, owner="local", conversation=self.conversation)
        placed = await journals.open(self.db, self.id, about, given, task="")
        return placed.seq

    async def append(self, *new: Event, at: datetime = NOON) -> None:
        if not self._fence:
            lease = (await leases.claim(self.db, self.id, "w")).lease
            assert lease
            self._fence = lease.fence
        before = await journals.load(self.db, self.id)
        after = fold((Recorded(seq=before.head + 1 + n, at=at, event=one) for n, one in enumerate(new)), before)
        await journals.append(self.db, after, new, fence=self._fence, worker="w", at=at, rest=None)

    async def turn(self, text: str, answered: str, **extra: Any) -> None:
        await self.append(started(await self.prompt(text, **extra)))
        await self.append(events.Replied(text=answered), events.Finished(answer=answered))


async def rows(db: Database, columns: str = "*", where: str = "true") -> list[tuple[Any, ...]]:
    order = "ORDER BY session_id, seq, id"
    return [tuple(row) for row in await db.rows(f"SELECT {columns} FROM ledger WHERE {where} {order}")]


async def made_again(db: Database, *, page: int = 1000) -> list[tuple[Any, ...]]:
    """The ledger as another process makes it, from nothing, in pages of this size."""
    ledger = ledger_of(db)
    await ledger.reset()
    await LedgerProjector(db, ledger.index, page=page).catch_up_all()
    return await rows(db)


# Odd journals

PICTURE = ImagePart(image_url=ImageUrl(url="longhouse-file:abc"))
ASKED = used("3-action-0", tool="clarificationtool", call_kind="ask", question="Which city?", arguments='{"q": 1}')


async def odd_journal(db: Database) -> Journal:
    """Parts, an aside, a waiting prompt, a fault, a question, a summary in a turn, a failure, a cancellation."""
    journal = Journal(db)
    parts = ("First.", (TextPart(text="Second"), PICTURE), (PICTURE,))
    await journal.append(started(await journal.prompt(events.Prompted(trace="t", content=parts, chain="x"))))
    await journal.append(
        events.Replied(text="Let me see.", model="m"), used("1-action-0", approve_by=NOON), used("1-action-1")
    )
    aside = events.Prompted(trace="t", content=("By the way…",), aside=True)
    await journals.add(db, "s", [aside], trace="t")
    queued = await journal.prompt("Second task", trace="t2")
    fault = events.Returned(call="1-action-1", outcome=Fault(code="x", message="no network"))
    await journal.append(fault)
    await journal.append(returned("1-action-0", "ok"))
    await journal.append(events.Replied(thought='{"why": 1}', text="…", phase="reasoning"), used("2-action-0"))
    await journal.append(returned("2-action-0", "x" * 3000))
    await journal.append(events.Condensed(upto=(await journals.load(db, "s")).head, summary="Long ago."))
    await journal.append(events.Replied(), ASKED)
    await journals.add(db, "s", [returned("3-action-0", "Осло", by="user")], trace="t")
    await journal.append(events.Replied(problem="no JSON", text="{"))
    await journal.append(events.Replied(), used("5-action-0", tool="finalanswertool", arguments='{"answer": "A"}'))
    await journal.append(returned("5-action-0", "A"), events.Finished(answer="A"))
    await journal.append(started(queued, trace="t2"), at=NOON + timedelta(hours=1))
    await journal.append(events.Failed(reason="the model is away", code="provider_error"), at=NOON)
    await journal.append(started(await journal.prompt("Third", trace="t3"), trace="t3"))
    await journal.append(events.Cancelled(trace="t3", by="user"))
    await journal.prompt("Never started", trace="t4")
    await journals.add(db, "s", [events.Cancelled(trace="t4", by="user")], trace="t4")
    await journal.turn("Last", "Words", trace="t5")
    return journal


@pytest.mark.parametrize("before", [(), (events.Replied(text="Let me see."),)])
async def test_what_was_said_beside_a_lost_step_is_told_and_rebuilt(
    db: Database, before: tuple[events.Event, ...]
) -> None:
    journal = Journal(db)
    await journal.turn("First", "Words")
    lost = [events.Resumed(worker=f"w{nth + 1}", previous=f"w{nth}") for nth in range(3)]
    asked = events.Decided(call="step-9", decision="unknown", by="w3")
    start = started(await journal.prompt("Rain?", trace="t2"), trace="t2")
    await journal.append(start, *before, *lost, asked)
    aside = events.Prompted(trace="t2", content=("In Осло, 好",), aside=True)
    again = events.Decided(call="step-9", decision="did_not_happen", by="ann")
    await journals.add(db, "s", [aside, again], trace="t2")
    await journal.append(events.Replied(text="Dry."), events.Finished(answer="Dry."))
    await told(db)
    spoken = await rows(db, "content", "'user' IN (source_type, target_type)")
    assert [one for (one,) in spoken] == ["First", "Words", "Rain?", "In Осло, 好", "Dry."]
    own = conversation.messages_of(await journals.load(db, journal.id))
    assert "In Осло, 好" in [one["content"] for one in own]
    assert await ledger_of(db).rebuild("local", "c", AGENT) == {"s": own}


async def test_an_odd_journal_is_told_in_pairs_and_rebuilt_as_it_is(db: Database) -> None:
    journal = await odd_journal(db)
    await told(db)
    spoken = await rows(db, "source, target, type, content", "source_type <> 'llm' AND target_type <> 'llm'")
    assert [one for one in spoken if "user" in one[:2]] == [
        ("user", AGENT, "input", "First.\n\nSecond\n\n[image]"),
        ("user", AGENT, "input", "By the way…"),
        ("user", AGENT, "input", "Second task"),
        (AGENT, "user", "input", "Which city?"),
        ("user", AGENT, "output", "Осло"),
        (AGENT, "user", "output", "A"),
        (AGENT, "user", "output", "the model is away"),
        ("user", AGENT, "input", "Third"),
        (AGENT, "user", "output", "cancelled by user"),
        ("user", AGENT, "input", "Last"),
        (AGENT, "user", "output", "Words"),
    ]
    sent = await rows(db, "content", "target_type = 'llm'")
    assert [one[0][:40] for one in sent] == [
        "First.\n\nSecond\n\n[image]", "By the way…\n\nno network\n\nok", "Summarise the conversation up to event 1",
        "x" * 40, "Осло", "no JSON", "Second task", "Last",
    ]  # fmt: skip
    assert sent[3][0].endswith("… [1000 characters more]")
    pairs = await db.rows("SELECT pair_id, count(*) AS n FROM ledger GROUP BY 1 HAVING count(*) <> 2")
    assert [row["n"] for row in pairs] == [1]  # nobody answers an aside by itself
    own = conversation.messages_of(await journals.load(db, journal.id))
    ledger = ledger_of(db)
    assert await ledger.rebuild("local", "c", AGENT) == {"s": own}
    # In a turn nothing is older than what led to it, whatever the clocks of two machines say.
    story = await ledger.story("t2")
    # A model that failed was asked all the same.
    assert [(one.source_type, one.target_type, one.content) for one in story] == [
        ("user", "agent", "Second task"),
        ("agent", "llm", "Second task"),
        ("llm", "agent", "the model is away"),
        ("agent", "user", "the model is away"),
    ]
    # However it is cut into pages, the same rows come out.
    before = await rows(db)
    for page in (1, 2, 3, 7):
        assert await made_again(db, page=page) == before


async def test_notes_of_an_agent_are_found_and_leave_with_their_session(db: Database) -> None:
    journal = Journal(db)
    await journal.turn("Hello", "Hi")
    await journal.append(events.Noted(text="The user likes blue."), events.Noted(about="outline", subject="r"))
    await told(db)
    noted = await db.rows("SELECT text, \"group\", facts ->> 'source_type' AS kind FROM passages WHERE kind = 'note'")
    assert [tuple(row) for row in noted] == [("The user likes blue.", "s", "note")]
    assert await erasure.forget(db, "s", "local")
    assert await db.value("SELECT (SELECT count(*) FROM passages) + (SELECT count(*) FROM ledger)") == 0


async def test_what_postgres_would_refuse_does_not_stop_the_others(db: Database) -> None:
    await Journal(db, "zero", "c1").turn("Hello", "a\0b")
    long = Journal(db, "long", "c2")
    await long.append(started(await long.prompt("Hello")))
    await long.append(events.Replied(), used("1-action-0", tool="x" * 100_000))
    await Journal(db, "fine", "c3").turn("Hello", "Hi")
    await told(db)
    assert await rows(db, "content", "target_type = 'user' AND session_id = 'zero'") == [("ab",)]
    assert await rows(db, "length(target)", "target_type = 'tool'") == [(200,)]
    assert {row[0] for row in await rows(db, "session_id")} == {"zero", "long", "fine"}


async def test_history_that_a_client_brought_along_is_in_the_memory_that_is_rebuilt(db: Database) -> None:
    journal = Journal(db)
    brought = (User(content="Раньше: \\u0000 [a\\b]"), Assistant(content="Да."), System(content="Be kind."))
    first = events.Prompted(trace="t", content=("Go on.",), prior=brought)
    await journal.append(started(await journal.prompt(first)))
    await journal.append(events.Replied(text="On."), events.Finished(answer="On."))
    await journal.turn("Next", "Then", trace="t2")
    await told(db)
    own = conversation.messages_of(await journals.load(db, "s"))
    assert [one["content"] for one in own][:3] == ["Раньше: \\u0000 [a\\b]", "Да.", "Go on."]
    assert await ledger_of(db).rebuild("local", "c", AGENT) == {"s": own}
    assert await rows(db, "content", "content LIKE '%Раньше%'") == []
    # Also where a summary was written in the turn that brought it.
    running = events.Prompted(trace="t3", content=("Long.",), prior=brought)
    await journal.append(started(await journal.prompt(running), trace="t3"))
    await journal.append(events.Replied(text="x"), used("1-action-0"))
    await journal.append(events.Condensed(upto=(await journals.load(db, "s")).head, summary="Before."))
    await told(db)
    own = conversation.messages_of(await journals.load(db, "s"))
    assert await ledger_of(db).rebuild("local", "c", AGENT) == {"s": own}


async def test_a_prompt_that_waited_during_a_deletion_is_told_with_its_answer(db: Database) -> None:
    """Of a pair both records are cut, or neither."""
    journal, ledger = Journal(db), ledger_of(db)
    await journal.append(started(await journal.prompt("Runs")))
    await journal.append(events.Replied(text="x"), used("1-action-0"))
    queued = await journal.prompt("Waits", trace="t2")
    assert await ledger.delete("local", "c") > 0
    await journal.append(returned("1-action-0", "ok"), events.Finished(answer="Ran"))
    await journal.append(started(queued, trace="t2"))
    await journal.append(events.Replied(text="Waited"), events.Finished(answer="Waited"))
    for _ in range(2):
        await told(db)
        assert await rows(db, "type, content", "'user' IN (source_type, target_type)") == [
            ("input", "Waits"),
            ("output", "Waited"),
        ]
        assert await rows(db, "content", "'tool' IN (source_type, target_type)") == []
        await ledger.reset()


async def test_calls_of_tools_are_found_once_somebody_looks_and_leave_with_their_deletion(db: Database) -> None:
    journal, ledger = Journal(db), ledger_of(db)
    in_index = "SELECT count(*) FROM passages WHERE kind = 'interaction'"
    for n in range(2):
        await journal.append(started(await journal.prompt("Hello", trace=f"t{n}"), trace=f"t{n}"))
        await journal.append(events.Replied(), used(f"{n}1-action-0", arguments='{"city": "Осло"}'))
        await journal.append(returned(f"{n}1-action-0", f"rain number {n}"))
        await journal.append(events.Replied(), used(f"{n}2-action-0", tool="finalanswertool", role="finishes"))
        await journal.append(returned(f"{n}2-action-0", "rain again"), events.Finished(answer="Wet."))
        await told(db)
        before = await db.value(in_index)
        found = await ledger.search("local", "c", "rain", limit=50, source_type="tool")
        assert sorted(one.content for one in found) == [f"rain number {m}" for m in range(n + 1)]
        assert await db.value(in_index) == before + 2
    # Looked for once more, nothing is written again; made again, it is found again; deleted, it is gone.
    assert len(await ledger.search("local", "c", "Осло", limit=50, target_type="tool")) == 2
    await ledger.reset()
    assert len(await ledger.search("local", "c", "Осло", limit=50, target_type="tool")) == 2
    await ledger.delete("local", "c", trace="t1")
    assert {one.trace_id for one in await ledger.search("local", "c", "Осло", limit=50)} == {"t0"}
    await erasure.forget(db, "s", "local")
    assert await db.value(f"SELECT ({in_index}) + (SELECT count(*) FROM ledger)") == 0
    assert await db.value("SELECT count(*) FROM projection_cursors WHERE session_id = 's'") == 0


async def test_a_text_filters_before_the_number_of_what_is_found(db: Database) -> None:
    journal, ledger = Journal(db), ledger_of(db)
    for n in range(12):
        await journal.turn(f"rain rain rain {n}" if n else "rain in Осло, which nobody likes", "Yes.", trace=f"t{n}")
    found = await ledger.search("local", "c", "rain", limit=2, text="осло")
    assert [one.content for one in found] == ["rain in Осло, which nobody likes"]


async def test_what_is_told_already_stays_as_it_is(db: Database) -> None:
    """As after a fork, which copies records, or beside a process that has told the same just now."""
    journal, ledger = Journal(db), ledger_of(db)
    await journal.turn("Дождь в Осло?", "Нет.")
    await ledger.search("local", "c", "Осло", limit=9)
    await db.run("UPDATE ledger SET shown = false WHERE seq = 2")
    before = await rows(db)
    assert len(before) > 1
    await db.run("DELETE FROM projection_cursors")
    await journal.turn("И завтра?", "Да.", trace="t1")
    assert await LedgerProjector(db, ledger.index).catch_up_all() == 1
    assert (await rows(db))[: len(before)] == before
    assert await rows(db, "content", "source_type = 'user' AND shown") == [("И завтра?",)]
    assert await LedgerProjector(db, ledger.index).catch_up_all() == 0


async def test_what_is_rare_has_an_index_and_the_rest_is_read_in_its_order(db: Database) -> None:
    """Planned without looking at the table, which is empty here."""

    async def plan(tx: Transaction) -> None:
        await tx.run("SET LOCAL enable_seqscan = off")
        sides = ("source", "target")
        kinds = {(kind, side): f"ledger_rare_{side}" for kind in ("user", "knowledge") for side in sides}
        kinds |= {(kind, side): "Backward using ledger_listed" for kind in ("tool", "llm", "agent") for side in sides}
        for (kind, side), index in kinds.items():
            where = f"conversation_id = 'c' AND owner = 'o' AND {side}_type = '{kind}'"
            sql = f"EXPLAIN SELECT * FROM ledger WHERE {where} ORDER BY timestamp DESC LIMIT 50"
            planned = "\n".join(row[0] for row in await tx.rows(sql))
            assert index in planned
            assert "Sort" not in planned

    await db.together(plan)


# Defects of others


async def test_hints_past_all_measure_never_fail_the_caller_and_lose_nothing(db: Database) -> None:
    """A full queue raised in the code that was watched."""
    journals_of = [Journal(db, f"s{n}", f"c{n}") for n in range(3)]
    for one in journals_of:
        await one.turn("Hello", "Hi")
    watching = LedgerProjector(db, PassageIndex(db, None))
    for number in range(3 * projector.MOST_HINTS):
        watching.nudge(f"nobody_{number}")
    async with watching.running():
        async with asyncio.timeout(20):
            while await db.value("SELECT count(DISTINCT session_id) FROM ledger") < 3:
                await asyncio.sleep(0.01)


async def test_two_processes_tell_each_event_once(db: Database) -> None:
    for n in range(10):
        await Journal(db, f"s{n}", f"c{n}").turn("Hello", "Hi")
    await asyncio.gather(*(told(db) for _ in range(4)))
    await told(db)
    first = await rows(db)
    assert len(first) == 10 * 4
    assert await made_again(db) == first


class SlowIndex(PassageIndex):
    """Lets something happen between the reading of a journal and the writing of what it tells."""

    def __init__(self, db: Database) -> None:
        super().__init__(db, None)
        self.reached, self.may_go = asyncio.Event(), asyncio.Event()

    async def prepare(self, passages: Sequence[Passage], *, within: float = EMBED_WITHIN) -> PreparedPassages:
        self.reached.set()
        await self.may_go.wait()
        return await super().prepare(passages, within=within)


@pytest.mark.parametrize("ends", ["cut", "erased", "reset"])
async def test_what_is_deleted_while_it_is_told_stays_deleted(db: Database, ends: str) -> None:
    await Journal(db).turn("Hello", "Hi")
    slow, ledger = SlowIndex(db), ledger_of(db)
    telling = asyncio.create_task(LedgerProjector(db, slow).catch_up_all())
    await slow.reached.wait()
    match ends:
        case "cut":
            assert await ledger.delete("local", "c") == 4
        case "erased":
            assert await erasure.forget(db, "s", "local")
        case "reset":
            await ledger.catch_up_all()
            await Journal(db, "s2", "c2").turn("Hello", "Hi")
            await ledger.reset()
    slow.may_go.set()
    await telling
    if ends == "reset":  # begun again from the first event, not from where the slow one stood
        await told(db)
        assert len(await rows(db)) == 8
    else:
        assert await db.value("SELECT (SELECT count(*) FROM passages) + (SELECT count(*) FROM ledger)") == 0


async def test_what_an_earlier_release_erases_leaves_the_ledger_too(db: Database) -> None:
    """That release deletes the session, notes it in `forgotten`, and does not know of the ledger."""
    await Journal(db).turn("Hello", "Hi")
    await Journal(db, "s2", "c2").turn("Hello", "Hi")
    projector = LedgerProjector(db, PassageIndex(db, None))
    await projector.catch_up_all()
    passages = "SELECT count(*) FROM passages WHERE \"group\" = 's'"
    assert await db.value(passages) == 2
    await db.run("INSERT INTO forgotten (session_id, owner, conversation_id, side, agent, label, reports, request)"
                 " VALUES ('s', 'local', 'c', 'root', 'a', '', '{}', gen_random_uuid())")  # fmt: skip
    await db.run("DELETE FROM journal WHERE session_id = 's'")
    await db.run("DELETE FROM sessions WHERE id = 's'")
    await projector.forget(await erasure.since(db, 0))
    assert {row[0] for row in await rows(db, "session_id")} == {"s2"}
    assert await db.value(passages) == 0


async def test_a_journal_of_a_newer_process_is_left_to_it_and_the_others_are_told(db: Database) -> None:
    await Journal(db, "odd", "c1").turn("Hello", "Hi")
    await db.run("""UPDATE journal SET body = '{"v":99,"kind":"Prompted"}' WHERE session_id = 'odd' AND seq = 2""")
    await Journal(db, "lost", "c2").turn("Hello", "Hi")
    await db.run("UPDATE journal SET body = :body WHERE session_id = 'lost' AND kind = 'Started'",
                 body=events.encode(started(99)))  # fmt: skip
    await Journal(db, "fine", "c3").turn("Hello", "Hi")
    await told(db)
    assert {row[0] for row in await rows(db, "session_id")} == {"fine"}
    assert await interactions.cursors(db, ["odd", "lost", "fine"]) == {"odd": 0, "lost": 0, "fine": 5}
