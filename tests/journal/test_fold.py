"""Laws of the fold, over journals that a machine made up: it can be cut anywhere, and a snapshot is the session."""

import random
from datetime import timedelta
from hashlib import sha256

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from longhouse.journal import events
from longhouse.journal.events import Event, Recorded
from longhouse.journal.fold import FOLD_VERSION, blank, fold
from longhouse.journal.session import Session, State
from longhouse.journal.transcript import Step
from server_helpers import BEGAN, opened, prompted, returned, started, used

OUTCOMES: list[events.Outcome] = [events.Output(content="é"), events.Fault(code="x", message="y")]
WRITES: list[dict[str, object]] = [
    {},
    {"sources": {"u": {"title": "t"}}},
    {"searches": ["q"], "searches_used": 1},
    {"state": "COMPLETED", "execution_result": "42"},
    {"current_step_reasoning": None},
]


def lived(choices: list[int]) -> list[Recorded]:
    """A life as it may happen: each number chooses one of the events that are legal where it stands."""
    session, at = blank("a_1"), BEGAN
    recorded = [Recorded(seq=1, at=at, event=opened())]
    for number in choices:
        session = fold(recorded[-1:], session)
        possible = _next(session, number)
        at += timedelta(milliseconds=number % 5003)
        recorded.append(Recorded(seq=session.head + 1, at=at, event=possible[number % len(possible)]))
    return recorded


def _next(session: Session, number: int) -> list[Event]:
    trace = f"t{number % 3}"
    possible: list[Event] = [
        prompted("hello", trace=trace),
        events.Noted(text="note"),
        events.Stored(path=trace, digest="d", media_type="text/plain"),
        events.Cancelled(trace=trace, by="user"),
        events.Resumed(worker="w2", previous="w1"),
    ]
    if session.queue and not session.is_running:
        possible += 4 * [started(session.queue[0].seq, trace=session.queue[0].prompt.trace)]
    if session.open:
        call = list(session.open)[number % len(session.open)]
        possible += [events.Returned(call=call, outcome=o, writes=w) for o in OUTCOMES for w in WRITES]
        possible += 2 * [events.Decided(call=call, decision="did_not_happen", by="ann")]
        possible += [events.Decided(call=call, decision="unknown", by="w1", comment="lost", probed=number % 3 == 0)]
        possible += [events.Resumed(worker="w2", previous="w2", unbegun=(call,))]
    if session.is_running and not session.open:
        possible += 4 * [events.Replied(text="hm", offered=(f"tool{session.iteration}@1",))]
        possible += [events.Finished(answer="a"), events.Failed(reason="r")]
        possible += [events.Condensed(upto=session.head, summary="s", usage=events.Usage(total_tokens=2))]
        possible += [events.Spent(usage=events.Usage(total_tokens=1))]
    if session.is_running and session.transcript and isinstance(session.transcript[-1], Step):
        name = f"{session.iteration}-action-{len(session.transcript[-1].uses)}"
        possible += 2 * [used(name), used(name, effect="once"), used(name, call_kind="ask", question="?")]
        possible += [used(name, call_kind="agent")]
    return possible


JOURNALS = st.lists(st.integers(0, 2**16), min_size=10, max_size=40).map(lived)


@given(JOURNALS, st.data())
@settings(max_examples=100, deadline=None)
def test_a_journal_may_be_folded_in_two_parts(journal: list[Recorded], data: st.DataObject) -> None:
    cut = data.draw(st.integers(0, len(journal)))
    first = fold(journal[:cut], blank("a_1"))
    kept = msgspec.json.encode(first)
    assert fold(journal[cut:], first) == fold(journal, blank("a_1"))
    assert msgspec.json.encode(first) == kept, "folding on changed the session that it began with"


@given(JOURNALS)
@settings(max_examples=100, deadline=None)
def test_a_snapshot_is_the_session(journal: list[Recorded]) -> None:
    session = fold(journal, blank("a_1"))
    assert msgspec.json.decode(msgspec.json.encode(session), type=Session) == session


@given(JOURNALS)
@settings(max_examples=100, deadline=None)
def test_the_stored_journal_folds_to_the_same_session(journal: list[Recorded]) -> None:
    stored = [msgspec.structs.replace(one, event=events.decode(events.encode(one.event))) for one in journal]
    assert fold(stored, blank("a_1")) == fold(journal, blank("a_1"))


@given(JOURNALS)
@settings(max_examples=100, deadline=None)
def test_the_state_says_whether_the_session_moves_or_waits(journal: list[Recorded]) -> None:
    session = blank("a_1")
    for record in journal:
        session = fold([record], session)
        waits = session.state.startswith("WAITING")
        assert waits == (session.is_running and not session.can_move)
        assert (session.state is State.RESEARCHING) == (session.is_running and session.can_move)
        if session.is_running:
            assert session.can_step == (not session.open or bool(session.due_calls))
            assert session.can_move == (session.can_step or any(call.probed for call in session.open.values()))
        assert session.head == record.seq
        if session.turn:
            assert session.turn.waited >= 0
            assert (session.turn.resting_since is not None) == waits


def test_the_same_journals_give_the_same_bytes_as_long_as_the_version_of_the_fold_is_the_same() -> None:
    """Snapshots of earlier releases are read as the fold of today: where this digest changes, the version must too."""
    digest = sha256()
    for seed in range(100):
        journal = lived(random.Random(seed).choices(range(2**16), k=40))
        digest.update(msgspec.json.encode(fold(journal, blank("a_1"))))
    assert (FOLD_VERSION, digest.hexdigest()[:16]) == (21, "6010aef60ecd738a")


def test_a_waiting_call_is_counted_once_however_the_events_are_batched() -> None:
    journal: list[events.Event] = [
        opened(), prompted("x"), started(2), events.Replied(),
        used("1-action-0", call_kind="ask", question="?"), returned("1-action-0"),
    ]  # fmt: skip
    recorded = [
        Recorded(seq=nth + 1, at=BEGAN + timedelta(seconds=nth), event=event) for nth, event in enumerate(journal)
    ]
    one_by_one = blank("a_1")
    for record in recorded:
        one_by_one = fold([record], one_by_one)
    assert one_by_one == fold(recorded, blank("a_1"))
    assert one_by_one.turn is not None
    assert one_by_one.turn.waited == 1
