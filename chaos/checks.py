"""The invariants I1 to I10, as pure functions over what a run has left."""

import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from typing import Any, Final, Literal

import msgspec

from chaos import clocks
from chaos.evidence import Evidence
from longhouse.errors import UnknownShape
from longhouse.journal import events
from longhouse.journal.counters import NOT_COUNTED, Counters
from longhouse.journal.events import Fault, Output, Recorded
from longhouse.journal.fold import blank, fold
from longhouse.journal.messages import text_of
from longhouse.journal.session import Session

RESTING: Final = ("COMPLETED", "FAILED", "CANCELLED", "WAITING_FOR_CLARIFICATION", "WAITING_FOR_APPROVAL")
ENDS: Final = (events.Finished, events.Failed, events.Cancelled)
UNREADABLE: Final = (UnknownShape, KeyError, AssertionError)
"""What the fold says of a journal that cannot be."""
DEFECTS: Final = ("internal_error", "not_set_up", "template_not_found", "limit_reached")
"""Codes of turns that failed for no fault of ours that was meant. No turn works for longer than it may."""


@dataclass(frozen=True)
class Violation:
    invariant: str
    session: str
    what: str

    def __str__(self) -> str:
        return f"{self.invariant} {self.session or '-'}: {self.what}"


def check(evidence: Evidence) -> list[Violation]:
    return [Violation(name, session, what) for name, find in CHECKS.items() for session, what in find(evidence)]


Found = Iterator[tuple[str, str]]
"""(session, what is wrong)."""


def _messages_once(evidence: Evidence) -> Found:
    """I1: an acknowledged message is in the journals once, any other at most once (once per POST if it has no key)."""
    said: Counter[str] = Counter()
    for told in evidence.journals.values():
        for record in told:
            said.update(_tokens(record.event))
    for message in evidence.history.messages.values():
        times, most = said[message.token], message.posts if message.driver == "bare" else 1
        if message.acknowledged and not times:
            yield "", f"{message.token} was acknowledged and is in no journal"
        if times > max(most, 1):
            yield "", f"{message.token} was sent by a {message.driver} client and is there {times} times"


def _tokens(event: events.Event) -> list[str]:
    """What a user has said: each message begins with its token."""
    if isinstance(event, events.Prompted) and event.sender == "user" and not event.root:
        return [text_of(content).split(" ", 1)[0] for content in event.content]
    if isinstance(event, events.Returned) and event.by and isinstance(event.outcome, Output):
        return [event.outcome.content.split(" ", 1)[0]]
    return []


def _results_once(evidence: Evidence) -> Found:
    """I2: one result for each call, an effect behind each output, the same key and arguments, `once` at most once."""
    effects = defaultdict(list)
    for effect in evidence.ledger:
        effects[effect.key].append(effect)
    for session, told in evidence.journals.items():
        returned = Counter(one.event.call for one in told if isinstance(one.event, events.Returned))
        yield from ((session, f"{call} has {times} results") for call, times in returned.items() if times > 1)
        called = [(one.seq, one.event) for one in told if isinstance(one.event, events.Called)]
        for call, times in Counter(event.call for _, event in called).items():
            if times > 1:
                yield session, f"{call} was called {times} times"
        lost = [one.seq for one in told if isinstance(one.event, events.Resumed)]
        results = {one.event.call: one for one in told if isinstance(one.event, events.Returned)}
        for seq, event in called:
            if not event.tool.startswith("ledger_"):
                continue
            made, result = effects.pop(f"{session}:{event.call}", []), results.get(event.call)
            yield from ((session, f"{event.call}: {what}") for what in _of_call(event, seq, made, result, lost))
    yield from (("", f"the ledger has {key}, which no journal tells of") for key in effects)


def _of_call(
    called: events.Called, seq: int, made: Sequence[Any], result: Recorded | None, lost: Sequence[int]
) -> Iterator[str]:
    outcome = result.event.outcome if result and isinstance(result.event, events.Returned) else None
    by = result.event.by if result and isinstance(result.event, events.Returned) else ""
    if isinstance(outcome, Output) and not made and by != events.BY_MEMORY:
        yield f"it has a result, and the ledger knows nothing of it (by {by or 'its tool'})"
    if len({effect.arguments for effect in made}) > 1:
        yield "it reached the ledger with different arguments under one key"
    if called.effect == "once" and len(made) > 1:
        yield f"it must be started once, and was started {len(made)} times"
    if len(made) > 1 and not any(seq < one for one in lost):
        yield f"it reached the ledger {len(made)} times although no worker was lost"


def _one_writer(evidence: Evidence) -> Found:
    """I3: fences never go back, each has one worker, and after `Resumed` only its worker or a later one writes."""
    for session, told in evidence.journals.items():
        ours = [record for record in told if record.worker]
        for one, other in pairwise(ours):
            if other.fence < one.fence:
                yield session, f"the fence goes back from {one.fence} to {other.fence} at {other.seq}"
        writers = defaultdict(set)
        for record in ours:
            writers[record.fence].add(record.worker)
        for fence, workers in writers.items():
            if len(workers) > 1:
                yield session, f"the fence {fence} has {len(workers)} workers: {', '.join(sorted(workers))}"
        for record in ours:
            if isinstance(record.event, events.Resumed) and record.event.worker != record.worker:
                yield session, f"{record.worker} says at {record.seq} that {record.event.worker} has resumed"
        traces = Counter(one.event.trace for one in told if isinstance(one.event, events.Started))
        yield from (
            (session, f"the turn {trace} started {times} times") for trace, times in traces.items() if times > 1
        )
        ends = Counter(one.trace for one in told if isinstance(one.event, ENDS))
        yield from ((session, f"the turn {trace} ended {times} times") for trace, times in ends.items() if times > 1)


def _all_rest(evidence: Evidence) -> Found:
    """I4: every session rests; nobody alive was taken for dead; a turn failed only by what was meant to fail."""
    for session, row in evidence.rows.items():
        if row.due or row.holder or row.wake_at or row.state not in RESTING:
            yield session, f"it does not rest: {row.state}, due {row.due}, held by {row.holder}, wakes at {row.wake_at}"
    for session, told in evidence.journals.items():
        for record in told:
            if isinstance(record.event, events.Failed) and record.event.code in DEFECTS:
                yield session, f"its turn failed at {record.seq}: {record.event.reason}"
    found = list(takeovers(evidence))
    for takeover in found:
        if takeover.kind == "alive":
            yield takeover.session, f"{takeover.worker} was alive when its session was taken at {takeover.seq}"
        elif takeover.seconds > evidence.lease + STALLED and not takeover.is_disturbed:
            yield takeover.session, f"{takeover.worker} was lost, and replaced only after {takeover.seconds:.1f} s"
    for kind, promised in (("killed", DEAD_WITHIN), ("frozen", evidence.lease + DEAD_WITHIN)):
        seconds = [one.seconds for one in found if one.kind == kind and not one.is_disturbed]
        if len(seconds) >= FEW and median(seconds) > promised:
            yield "", f"workers that were {kind} are replaced after {median(seconds):.2f} s, not {promised:g}"


DEAD_WITHIN: Final = 1.0
"""Seconds in which a dead worker is replaced; a frozen one in a lease more. Held against the median: on a busy machine
a single takeover may take longer."""
FEW: Final = 5
STALLED: Final = 10.0
"""Seconds beyond a lease after which a takeover is not slow but stuck, on however busy a machine."""


@dataclass(frozen=True)
class Takeover:
    session: str
    seq: int
    worker: str
    kind: Literal["killed", "frozen", "alive"]
    seconds: float
    """From the loss of the worker to `Resumed`."""
    is_disturbed: bool = False
    """Something else went wrong in that time too."""


def takeovers(evidence: Evidence) -> Iterator[Takeover]:
    """The sessions that were taken over from a worker that did not let them go."""
    history = evidence.history
    for session, told in evidence.journals.items():
        previous_at = 0.0
        for record in told:
            at = clocks.really(record.at.timestamp(), history.losses[0].at if history.losses else time.time())
            if isinstance(record.event, events.Resumed) and record.event.is_loss:
                worker = record.event.previous
                losses = [
                    loss for loss in history.losses if worker.split("-")[-2:-1] == [str(loss.pid)] and loss.at <= at
                ]
                if not losses:
                    yield Takeover(session, record.seq, worker, "alive", 0.0)
                if losses:
                    loss = max(losses, key=lambda one: one.at)
                    # What was claimed by a worker that was lost in its turn waits for the second takeover.
                    others = [one.at for one in history.losses if one is not loss and loss.at - 1 <= one.at <= at]
                    others += [began for began, ended in history.troubles if began <= at and ended >= loss.at - 1]
                    since = max(loss.at, previous_at)
                    yield Takeover(session, record.seq, worker, loss.kind, at - since, is_disturbed=bool(others))
            previous_at = at


def _no_gap(evidence: Evidence) -> Found:
    """I5: seq counts 1, 2, 3 in each journal, and what a follower got over all its connections is the journal."""
    for session, told in evidence.journals.items():
        seqs = sorted(record.seq for record in told)
        if seqs != list(range(1, len(seqs) + 1)):
            gaps = [f"{one} to {other}" for one, other in pairwise(seqs) if other != one + 1]
            yield session, f"seq does not count on: {', '.join(gaps[:5]) or f'it begins at {seqs[0]}'}"
        elif evidence.rows[session].head != len(seqs):
            yield session, f"its head is {evidence.rows[session].head}, and it has {len(seqs)} events"
    for session, stream in evidence.history.streams.items():
        got = [(fact.id, fact.seq, fact.event) for fact in stream]
        told = sorted(evidence.journals.get(session, ()), key=lambda record: record.seq)  # moments may cross
        journal = [(one.seq, one.seq, msgspec.json.decode(msgspec.json.encode(one.event))) for one in told]
        if got != journal:
            where = next((n for n, (one, other) in enumerate(zip(got, journal, strict=False)) if one != other), None)
            detail = (
                f"they differ at {journal[where][0]}" if where is not None else f"{len(got)} of {len(journal)} events"
            )
            yield session, f"its follower has not got what its journal says: {detail}"


def _calls_are_paired(evidence: Evidence) -> Found:
    """I6: each call of a turn that is over has its result, and the next turn is accepted."""
    for session, told in evidence.journals.items():
        open_calls: set[str] = set()
        for record in told:
            match record.event:
                case events.Called(call=call):
                    open_calls.add(call)
                case events.Returned(call=call):
                    open_calls.discard(call)
                case events.Finished() | events.Failed() | events.Cancelled() if open_calls:
                    yield session, f"its turn ended at {record.seq} with open calls: {sorted(open_calls)}"
    yield from ((session, "a next turn did not come to its end") for session in evidence.history.unaccepted)


def _keys_hold(evidence: Evidence) -> Found:
    """I7: a repeated key leads to the same session; with another body it is refused."""
    for message in evidence.history.messages.values():
        if message.driver == "keyed" and len(message.session_ids) > 1:
            yield "", f"{message.token} led to {len(message.session_ids)} sessions under one key"
    for key, status in evidence.history.reused_keys:
        if not 400 <= status < 500:
            yield "", f"{key} was sent with another body, and answered with {status}"


def _folds_agree(evidence: Evidence) -> Found:
    """I8: rows, snapshots and counters say what the journal adds up to."""
    for session, written in evidence.journals.items():
        # What gateways add takes its moment before it takes its place: two at once may stand the other way round.
        told = sorted(written, key=lambda record: record.seq)
        try:
            folded = fold(told, blank(session))
            yield from ((session, what) for what in _derived(evidence, session, told, folded))
        except UNREADABLE as error:
            yield session, f"its journal does not add up: {error!r}"


def _derived(evidence: Evidence, session: str, told: Sequence[Recorded], folded: Session) -> Iterator[str]:
    row = evidence.rows[session]
    if row.state != folded.state:
        yield f"its row says {row.state}, its journal {folded.state}"
    if session in evidence.snapshots:
        seq, snapshot = evidence.snapshots[session]
        if snapshot != fold([one for one in told if one.seq <= seq], blank(session)):
            yield f"its snapshot at {seq} is not the fold of its journal"
    if session in evidence.counters:
        kept, counted = evidence.counters[session], Counters()
        for record in told:
            if record.seq <= kept.head and events.kind_of(record.event) not in NOT_COUNTED:
                counted.add(record)
        counted.head = kept.head
        if msgspec.json.encode(counted) != msgspec.json.encode(kept):
            yield f"its counters at {kept.head} are not those of its journal"


def _questions_wait(evidence: Evidence) -> Found:
    """I9: who waits, waits through everything, and goes on once, with one of two answers that came at once."""
    by_call = defaultdict(list)
    for answer in evidence.history.answers:
        by_call[answer.session_id, answer.call_id].append(answer)
    for (session, call), answers in by_call.items():
        accepted = [one for one in answers if one.status == 202]
        told = [one.event for one in evidence.journals.get(session, ()) if isinstance(one.event, events.Returned)]
        texts = [one.outcome.content for one in told if one.call == call and isinstance(one.outcome, Output)]
        if len(accepted) > 1:
            yield session, f"{len(accepted)} answers to {call} were accepted"
        if accepted and texts != [accepted[0].text]:
            yield session, f"the answer {accepted[0].text!r} to {call} was accepted, and {texts} is in the journal"
    for session, call in evidence.history.held.items():
        told = [one.event for one in evidence.journals.get(session, ()) if isinstance(one.event, events.Returned)]
        if any(one.call == call and isinstance(one.outcome, Fault) for one in told):
            yield session, f"its question {call} did not survive the faults"


def _no_secret(evidence: Evidence) -> Found:
    """I10: no secret in any log, table or stream."""
    yield from (("", f"a secret is in {where}") for where in evidence.leaks)
    yield from (("", f"a client was sent a secret: {piece[:80]!r}") for piece in evidence.history.seen)


CHECKS: Final[dict[str, Callable[[Evidence], Found]]] = {
    "I1": _messages_once,
    "I2": _results_once,
    "I3": _one_writer,
    "I4": _all_rest,
    "I5": _no_gap,
    "I6": _calls_are_paired,
    "I7": _keys_hold,
    "I8": _folds_agree,
    "I9": _questions_wait,
    "I10": _no_secret,
}
