"""The checks of the chaos test find what they are there for; what it patches by name is there."""

from collections.abc import AsyncGenerator, Callable, MutableMapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest
from chaos import freezing, kill_points, mutants
from chaos.checks import CHECKS, check, takeovers
from chaos.evidence import Evidence, Row
from chaos.history import Answered, History, Loss, Message, Streamed
from chaos.ledger import Effect
from chaos.patching import located, replaced
from chaos.report import report

from longhouse.api.http.streaming import EventStream, Last
from longhouse.api.inflight import InflightRequest
from longhouse.journal import events
from longhouse.journal.counters import Counters
from longhouse.journal.events import Event, Fault, Output, Recorded
from longhouse.journal.fold import blank, fold
from server_helpers import LIMITS

BEGAN = datetime(2026, 1, 31, 12, tzinfo=UTC)
OLD, NEW = "vm-11-aaaa", "vm-22-bbbb"
CALL = "1-action-0"
PROMPTED = events.Prompted(trace="t", content=("m-1 do once",))
CALLED = events.Called(call=CALL, tool="ledger_once", arguments="{}", effect="once")
RETURNED = events.Returned(call=CALL, outcome=Output(content="written"))
FINISHED = events.Finished(answer="done")
STORY: tuple[tuple[Event, str, int], ...] = (
    (events.Opened(agent="a", version=1, owner="local", conversation="c"), "", 0),
    (PROMPTED, "", 0),
    (events.Started(trace="t", prompt=2, version=1, instance="i", limits=LIMITS, date=""), OLD, 1),
    (events.Replied(text="thinking"), OLD, 1),
    (CALLED, OLD, 1),
    (events.Resumed(worker=NEW, previous=OLD), NEW, 2),
    (RETURNED, "", 0),
    (events.Replied(text="done"), NEW, 2),
    (FINISHED, NEW, 2),
)
"""A worker is killed in the middle of a call, reports its outcome before, and another one ends the turn."""
EFFECT = Effect(key=f"s:{CALL}", effect="once", arguments="x", at=0.0)


def written(story: Sequence[tuple[Event, str, int]] = STORY) -> list[Recorded]:
    return [
        Recorded(seq=seq, at=BEGAN + timedelta(seconds=seq), event=event, trace="t", worker=worker, fence=fence)
        for seq, (event, worker, fence) in enumerate(story, 1)
    ]


def evidence(told: Sequence[Recorded] | None = None, **changes: object) -> Evidence:
    told = written() if told is None else told
    history = History()
    history.messages["m-1"] = Message("m-1", "retrying", posts=2, acknowledged=True, session_ids={"s"})
    history.losses.append(Loss(pid=11, kind="killed", at=told[4].at.timestamp() + 0.5))
    history.streams["s"] = [
        Streamed(one.seq, one.seq, msgspec.json.decode(msgspec.json.encode(one.event))) for one in told
    ]
    found = Evidence(journals={"s": told}, rows={"s": Row(len(told), "COMPLETED")}, history=history, ledger=[EFFECT])
    return replace(found, **changes)  # type: ignore[arg-type]


def changed(change: Callable[[History], object]) -> Evidence:
    found = evidence()
    change(found.history)
    return found


def without(kind: type[Event]) -> list[Recorded]:
    return written([one for one in STORY if not isinstance(one[0], kind)])


def with_more(*more: tuple[Event, str, int], at: int = len(STORY)) -> list[Recorded]:
    return written([*STORY[:at], *more, *STORY[at:]])


def violated(found: Evidence) -> set[str]:
    return {violation.invariant for violation in check(found)}


def test_a_story_as_it_should_be_violates_nothing() -> None:
    assert check(evidence()) == []
    [takeover] = takeovers(evidence())
    assert (takeover.kind, takeover.seconds) == ("killed", 0.5)
    assert "None." in report(evidence(), [], seed=1, seconds=1.0, nats=False)


def test_a_clock_that_was_set_by_days_makes_no_takeover_slow() -> None:
    for days in (-1, 1):
        resumed = [msgspec.structs.replace(one, at=one.at + timedelta(days=days * (one.seq > 5))) for one in written()]
        [takeover] = takeovers(evidence(resumed))
        assert (takeover.kind, takeover.seconds) == ("killed", 0.5)


LOST = events.Returned(call=CALL, outcome=Fault(code="worker_lost", message=""))
ENDED = Row(len(STORY), "COMPLETED")
SLOW = [msgspec.structs.replace(one, at=one.at + timedelta(seconds=3 * (one.seq > 5))) for one in written()]
LATE = events.Returned(call=CALL, outcome=Output(content="again"))
VIOLATIONS: dict[str, tuple[str, Evidence]] = {
    "an acknowledged message is lost": ("I1", evidence(without(events.Prompted))),
    "a message is there twice": ("I1", evidence(with_more((PROMPTED, "", 0), at=2))),
    "a call has two results": ("I2", evidence(with_more((LATE, NEW, 2), at=7))),
    "a result without an effect": ("I2", evidence(ledger=[])),
    "a once call is started twice": ("I2", evidence(ledger=[EFFECT, EFFECT])),
    "an effect that no journal tells of": ("I2", evidence(ledger=[EFFECT, replace(EFFECT, key="s:9-action-0")])),
    "other arguments under the same key": ("I2", evidence(ledger=[EFFECT, replace(EFFECT, arguments="y")])),
    "two workers under one fence": ("I3", evidence(with_more((events.Replied(text=""), OLD, 2), at=6))),
    "a fence that goes back": ("I3", evidence(with_more((events.Replied(text=""), OLD, 1), at=6))),
    "a turn that ends twice": ("I3", evidence(with_more((FINISHED, NEW, 2)))),
    "a session that nobody advances": ("I4", evidence(rows={"s": Row(9, "RESEARCHING", due=True)})),
    "a session that a dead worker holds": ("I4", evidence(rows={"s": Row(9, "COMPLETED", holder=OLD)})),
    "a live worker is taken for dead": ("I4", changed(lambda history: history.losses.clear())),
    "a takeover that takes too long": (
        "I4",
        evidence([msgspec.structs.replace(one, at=one.at + timedelta(minutes=one.seq > 5)) for one in written()]),
    ),
    "takeovers that are slower than promised": (
        "I4",
        replace(
            evidence(), journals={f"s{nth}": SLOW for nth in range(5)}, rows={f"s{nth}": ENDED for nth in range(5)}
        ),
    ),
    "a turn that fails by a defect": (
        "I4",
        evidence(with_more((events.Failed(reason="KeyError", code="internal_error"), NEW, 2))),
    ),
    "a turn that fails for time that was no work": (
        "I4",
        evidence(with_more((events.Failed(reason="within its limit of 10 seconds", code="limit_reached"), NEW, 2))),
    ),
    "a session whose only prompt was cancelled does not end": ("I4", evidence(rows={"s": Row(9, "INITED")})),
    "a gap in a journal": (
        "I5",
        evidence([msgspec.structs.replace(one, seq=one.seq + (one.seq > 5)) for one in written()]),
    ),
    "a journal that counts anew": (
        "I5",
        evidence([msgspec.structs.replace(one, seq=one.seq - 5 * (one.seq > 5)) for one in written()]),
    ),
    "a follower misses an event": ("I5", changed(lambda history: history.streams["s"].pop(3))),
    "a follower gets an event twice": (
        "I5",
        changed(lambda history: history.streams["s"].insert(3, history.streams["s"][3])),
    ),
    "a turn ends with an open call": ("I6", evidence(without(events.Returned))),
    "a session takes no next turn": ("I6", changed(lambda history: history.unaccepted.append("s"))),
    "one key, two sessions": (
        "I7",
        changed(lambda history: history.messages.update(k=Message("m-1", "keyed", session_ids={"s", "r"}))),
    ),
    "one key, two bodies": ("I7", changed(lambda history: history.reused_keys.append(("k", 200)))),
    "a row that says something else": ("I8", evidence(rows={"s": Row(9, "FAILED")})),
    "a snapshot that says something else": (
        "I8",
        evidence(snapshots={"s": (9, fold(written()[:8], blank("s")))}),
    ),
    "counters that say something else": ("I8", evidence(counters={"s": Counters(head=9, turns=7)})),
    "two answers are accepted": (
        "I9",
        changed(lambda history: history.answers.extend([Answered("s", CALL, "written", 202)] * 2)),
    ),
    "an accepted answer is not there": (
        "I9",
        changed(lambda history: history.answers.append(Answered("s", CALL, "Oslo", 202))),
    ),
    "a question does not survive": (
        "I9",
        replace(
            evidence(written([(LOST, "", 0) if one[0] is RETURNED else one for one in STORY])),
            history=changed(lambda history: history.held.update(s=CALL)).history,
        ),
    ),
    "a secret in a log": ("I10", evidence(leaks=["log worker-1.1.log"])),
    "a secret in a stream": ("I10", changed(lambda history: history.seen.append(b"sk-canary"))),
}


@pytest.mark.parametrize("name", VIOLATIONS)
def test_each_violation_is_found(name: str) -> None:
    invariant, found = VIOLATIONS[name]
    assert invariant in violated(found)


def test_every_invariant_has_a_violation_that_it_finds() -> None:
    assert {invariant for invariant, _ in VIOLATIONS.values()} == set(CHECKS)


def test_what_is_patched_by_name_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    for point in kill_points.POINTS:
        for target in point.targets:
            assert callable(getattr(*located(target)))
    assert callable(getattr(*located(freezing.RECORDS)))
    with pytest.raises(LookupError, match=r"there is no .*seize any more"):
        located("longhouse.store.leases:seize")


@pytest.mark.parametrize("mutant", mutants.MUTANTS, ids=lambda one: one.name)
def test_every_mutant_breaks_something(mutant: mutants.Mutant, monkeypatch: pytest.MonkeyPatch) -> None:
    patched: list[str] = []

    def noted(target: str, wrap: Callable[[object], object]) -> None:
        owner, name = located(target)
        monkeypatch.setattr(owner, name, before := getattr(owner, name))  # put back afterwards
        replaced(target, wrap)
        assert getattr(owner, name) is not before
        patched.append(target)

    monkeypatch.setattr(mutants, "replaced", noted)
    mutant.break_it()
    assert patched
    assert mutant.invariant in CHECKS


async def test_a_point_is_passed_so_often_and_no_further(monkeypatch: pytest.MonkeyPatch) -> None:
    killed: list[str] = []
    monkeypatch.setattr(kill_points.Trigger, "kill", lambda trigger: killed.append(trigger._name))
    for moment, wrap in kill_points._WRAPS.items():
        if moment in ("before", "after"):

            async def work(result: object) -> object:
                return result

            wrapped = wrap(work, kill_points.Trigger(moment, 2))
            for _ in range(4):
                assert await wrapped("x") == "x"
    assert killed == ["before", "after"]


async def test_a_stream_is_cut_in_the_middle_of_any_of_its_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    killed, sent = list[int](), list[bytes]()
    monkeypatch.setattr(kill_points.Trigger, "kill", lambda trigger: killed.append(len(sent)))
    pieces = (b"accepted", b"text", Last(b"done"))

    async def source() -> AsyncGenerator[bytes, None]:
        for piece in pieces:
            yield piece

    async def send(message: MutableMapping[str, Any]) -> None:
        sent.append(message.get("body", b""))

    for nth, piece in enumerate(pieces, 1):
        write = kill_points._WRAPS["half_sent"](EventStream._write, kill_points.Trigger("half_sent", nth))
        sent.clear()
        await write(EventStream(source()), send, InflightRequest(None, send))
        assert sent == [b"", *pieces[: nth - 1], piece[: len(piece) // 2], *pieces[nth - 1 :]]
    assert killed == [2, 3, 4]
