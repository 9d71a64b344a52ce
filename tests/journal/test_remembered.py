"""Working memory is folded from notes in the journal, and everything in it is bounded."""

from typing import Any

import msgspec

from longhouse.agents.template import ResetPolicy
from longhouse.journal import events, remembered
from longhouse.journal.events import Noted, NotedChunk
from longhouse.journal.session import Session, WorkingMemory
from server_helpers import BEGAN, folded, opened, prompted, returned, started, used

BEGUN = (opened(), prompted("What is a busbar?"), started(2))


def chunk(content: str, score: float, source: str = "angui_2024 P85", **more: Any) -> NotedChunk:
    return NotedChunk(content=content, source=source, relevance_score=score, **more)


def read(nth: int, content: str, **note: Any) -> list[events.Event]:
    """A step with one reading call, its result, and the note on it."""
    call = f"{nth}-action-0"
    noted = Noted(**{"about": "page", "call": call, "key": f"k{nth}", **note})
    return [events.Replied(), used(call, tool="pages"), returned(call, content), noted]


def contents(session: Session) -> list[str]:
    return [one.content for one in session.memory.chunks]


def test_a_note_on_a_call_keeps_its_result_and_what_was_understood_of_it() -> None:
    outline = read(1, '{"items": []}', about="outline", subject="angui_2024", chapters=("1 General",), revision="v1")
    session = folded(*BEGUN, *outline, *read(2, "page", chunks=(chunk("Busbars carry current.", 0.8),)))
    memory = session.memory
    assert (memory.query, memory.outlines, memory.chapters) == (
        "What is a busbar?",
        {"angui_2024": "k1"},
        ("1 General",),
    )
    assert (memory.reads["k1"].content, memory.reads["k1"].revision, memory.reads["k1"].call) == (
        '{"items": []}', "v1", "1-action-0",
    )  # fmt: skip
    assert contents(session) == ["Busbars carry current."]
    assert session.notes == ()
    assert msgspec.json.decode(msgspec.json.encode(session), type=Session) == session


def test_what_was_read_up_to_a_deleted_turn_is_forgotten_with_it() -> None:
    outline = read(1, '{"items": []}', about="outline", subject="angui_2024", chapters=("1 General",), revision="v1")
    first = folded(*BEGUN, *outline, *read(2, "page", chunks=(chunk("a", 0.8),)), events.Finished(answer="Rods."))
    began = folded(prompted("And then?"), started(first.head + 1), session=first)
    both = folded(*read(3, "page 2", chunks=(chunk("b", 0.7), chunk("c", 0.6)), revision="v1"), session=began)
    left = folded(Noted(about="outdated", deleted=(3,)), session=both).memory
    assert (set(left.reads), left.outlines, left.chapters, [one.content for one in left.chunks], set(left.sources)) == (
        {"k3"}, {}, (), ["b", "c"], {"k3"},
    )  # fmt: skip
    assert folded(Noted(about="outdated", deleted=(began.head,)), session=both).memory.reads == {}


def test_chunks_are_ordered_by_relevance_the_newest_first_among_equals_and_each_is_kept_once() -> None:
    first = read(1, "x", chunks=(chunk("a", 0.9), chunk("b", 0.6), chunk("c", 0.6)))
    second = read(2, "x", chunks=(chunk("d", 0.6), chunk("b", 0.7)))
    assert contents(folded(*BEGUN, *first)) == ["a", "b", "c"]
    session = folded(*BEGUN, *first, *second)
    assert [(one.content, one.relevance_score) for one in session.memory.chunks] == [
        ("a", 0.9), ("b", 0.7), ("d", 0.6), ("c", 0.6),
    ]  # fmt: skip
    again = read(3, "x", chunks=(chunk("a", 0.5), chunk("page, old", 0.8, "P1", chunk_type="page_content")))
    changed = read(4, "x", chunks=(chunk("page, new", 0.8, "P1", chunk_type="page_content"),))
    assert contents(folded(*again, *changed, session=session)) == ["a", "page, new", "b", "d", "c"]


def test_memory_is_bounded_and_outlines_stay_longest() -> None:
    outline = read(1, "outline", about="outline", subject="angui_2024")
    pages = [event for nth in range(2, 90) for event in read(nth, f"page {nth}", chunks=(chunk(f"c{nth}", 0.6),) * 2)]
    memory = folded(*BEGUN, *outline, *pages).memory
    assert (len(memory.reads), "k1" in memory.reads, "k89" in memory.reads) == (remembered.MAX_READS, True, True)
    large = [event for nth in range(2, 9) for event in read(nth, "x" * 300_000)]
    assert [*folded(*BEGUN, *outline, *large).memory.reads] == ["k1", "k6", "k7", "k8"]
    found = tuple(chunk(f"c{nth}", nth / 1000) for nth in range(300))
    assert len(folded(*BEGUN, *read(1, "x", chunks=found)).memory.chunks) == remembered.MAX_CHUNKS


def test_a_new_turn_asks_another_query_and_forgets_what_its_policy_cleans() -> None:
    outline = read(1, "toc", about="outline", subject="angui_2024", chapters=("1 General",))
    told = Noted(about="interaction", subject="i1")
    before = folded(*BEGUN, *outline, *read(2, "page", chunks=(chunk("a", 0.8),)), told, events.Finished(answer="x"))

    def after(*cleaned: events.Cleanable) -> WorkingMemory:
        start = msgspec.structs.replace(started(before.head + 1), cleaned=cleaned)
        return folded(prompted("And a breaker?"), start, session=before).memory

    kept = after("conversation", "context", "artifacts")
    assert (kept.query, kept.outlines, len(kept.chunks), [*kept.reads]) == (
        "And a breaker?", {"angui_2024": "k1"}, 1, ["k1", "k2"],
    )  # fmt: skip
    cleared = after("query_context")
    assert (cleared.query, [*cleared.outlines], cleared.chunks, [*cleared.reads]) == (
        "And a breaker?", ["angui_2024"], (), ["k1"],
    )  # fmt: skip
    assert after("working_memory") == WorkingMemory(query="And a breaker?", interactions=("i1",))


def test_what_a_policy_keeps_says_nothing_about_outlines() -> None:
    assert ResetPolicy().cleaned == ()
    assert ResetPolicy(keep=("conversation", "context")).cleaned == ("artifacts", "query_context")
    assert ResetPolicy(keep=("query_context",)).cleaned == ("conversation", "context", "artifacts")
    assert ResetPolicy(keep=("working_memory",)).cleaned == ("conversation", "context", "artifacts")
    assert ResetPolicy(clean=("working_memory",)).cleaned == ("working_memory",)
    assert ResetPolicy(keep=(), clean=("working_memory",)).cleaned[3:] == ("query_context", "working_memory")


def test_rows_of_earlier_releases_and_notes_without_a_result_are_read() -> None:
    old = events.decode('{"v":1,"kind":"Noted","text":"Ann lives in Oslo","cites":[2]}')
    assert old == Noted(text="Ann lives in Oslo", cites=(2,))
    session = folded(*BEGUN, old, Noted(about="page", call="9-action-0", key="k", chunks=(chunk("a", 0.6),)))
    assert (session.notes, contents(session), session.memory.reads) == (("Ann lives in Oslo",), ["a"], {})
    interaction = events.ExternalInteraction(
        id="i1", trace="t", source="crm", source_type="tool", target="a", target_type="agent", type="input",
        at=BEGAN,
    )  # fmt: skip
    for event in (
        Noted(text="call Ann", interaction=interaction),
        Noted(about="interaction", subject="i1"),
        events.Opened(agent="external", version=1, owner="local", conversation="c", side="external"),
        msgspec.structs.replace(started(2), collect=(), cleaned=("query_context", "working_memory")),
        msgspec.structs.replace(started(2), collect=("user", "llm")),
    ):
        assert events.decode(events.encode(event)) == event
    assert isinstance(Noted(), events.OUTSIDE)
    assert '"text":""' in events.encode(Noted(about="page")), "a process of an earlier release reads it"


def test_a_turn_keeps_what_its_first_reply_recalled() -> None:
    replies = [events.Replied(recalled=("passage:1",), problem="x"), events.Replied(recalled=("passage:2",))]
    session = folded(*BEGUN, *replies)
    assert session.turn
    assert session.turn.recalled == ("passage:1",)
