"""A session's journal as a timeline: turns, steps, calls, their durations, and what held them up."""

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Final, Literal

import msgspec

from longhouse.journal import events, open_calls
from longhouse.journal.events import INTERRUPTED, Outcome, Recorded
from longhouse.journal.messages import text_of
from longhouse.journal.session import Open, QuestionKind, are_waiting

WaitsFor = Literal["clarification", "approval", "unknown_outcome", "worker_lost", "client", "agent", "retry"]

IN_ORDER: Final[tuple[QuestionKind, ...]] = ("clarification", "approval", "unknown_outcome", "worker_lost", "client")


class TimelineUse(msgspec.Struct):
    """One call, from its intent to its outcome."""

    called: events.Called
    began_at: datetime
    outcome: Outcome | None = None
    ended_at: datetime | None = None
    is_remembered: bool = False
    """Answered from memory: the tool did not run."""


class TimelineRetry(msgspec.Struct, frozen=True):
    """A model call that failed, and after which the step was tried again."""

    at: datetime
    reason: str


class TimelineStep(msgspec.Struct):
    """One reply of the model, and its calls."""

    number: int
    """Counted over all turns, as in the address of its request."""
    replied: events.Replied
    began_at: datetime
    ended_at: datetime
    worker: str = ""
    uses: list[TimelineUse] = msgspec.field(default_factory=list)
    retries: list[TimelineRetry] = msgspec.field(default_factory=list)


class TimelineWait(msgspec.Struct):
    """A time in which the turn could not move by itself; without `until`, it still waits."""

    reason: WaitsFor
    since: datetime
    until: datetime | None = None


class Takeover(msgspec.Struct, frozen=True):
    """The turn went on in another worker."""

    at: datetime
    previous: str
    worker: str
    is_loss: bool
    """Whether the previous worker was lost; otherwise it had let the session go."""
    seconds: float | None
    """Since the last heartbeat of the lost worker; where that is not known, since the last event before."""


class TimelineTurn(msgspec.Struct):
    """One prompt and its events in this session."""

    number: int
    prompt: int
    trace: str
    task: str
    began_at: datetime
    version: int = 0
    steps: list[TimelineStep] = msgspec.field(default_factory=list)
    waits: list[TimelineWait] = msgspec.field(default_factory=list)
    takeovers: list[Takeover] = msgspec.field(default_factory=list)
    ended: str = ""
    """Empty while the turn runs."""
    ended_at: datetime | None = None
    words: str = ""
    """The final text."""

    def end(self, ended: str, at: datetime, words: str = "") -> None:
        self.ended, self.ended_at, self.words = ended, at, words


class Timeline(msgspec.Struct):
    """The turns of a journal, oldest first, as its events come; `turns_before` and `steps_before` were not read."""

    turns_before: int = 0
    steps_before: int = 0
    turns: list[TimelineTurn] = msgspec.field(default_factory=list)
    open: dict[str, Open] = msgspec.field(default_factory=dict)
    """The calls without an outcome."""
    queue: dict[int, str] = msgspec.field(default_factory=dict)
    """Prompts that no turn has begun with: seq -> trace."""
    _prompts: dict[int, str] = msgspec.field(default_factory=dict)
    _uses: dict[str, TimelineUse] = msgspec.field(default_factory=dict)
    _retries: list[TimelineRetry] = msgspec.field(default_factory=list)
    _before: datetime | None = None
    _worker: str = ""

    @property
    def running(self) -> TimelineTurn | None:
        return self.turns[-1] if self.turns and not self.turns[-1].ended else None

    def add(self, record: Recorded) -> None:
        if turn := self.running:
            self._note_worker(turn, record)
        self._apply(record)
        open_calls.apply(self.open, record.event, record.seq, record.at)
        if turn := self.running or turn:
            self._note_wait(turn, record.at)
        # Whoever goes on after a wait has taken nothing over.
        self._worker = "" if are_waiting(self.open) else record.worker or self._worker
        self._before = record.at

    def _apply(self, record: Recorded) -> None:
        event, at, turn = record.event, record.at, self.running
        match event:
            case events.Prompted():
                self._prompts[record.seq] = task_of(event)
                self.queue |= {} if event.aside else {record.seq: event.trace}
            case events.Started():
                self._start(event, record)
            case events.Replied() if turn:
                self._reply(turn, event, record)
            case events.Spent() if turn and event.title is None:
                self._retries.append(TimelineRetry(at, event.reason))
            case events.Called() if turn and turn.steps:
                self._uses[event.call] = TimelineUse(event, at)
                turn.steps[-1].uses.append(self._uses[event.call])
            case events.Returned() if use := self._uses.get(event.call):
                use.outcome, use.ended_at = event.outcome, at
                use.is_remembered = event.by == events.BY_MEMORY
            case events.Finished() if turn:
                turn.end("COMPLETED", at, event.answer)
            case events.Failed() if turn:
                turn.end("FAILED", at, event.reason)
            case events.Cancelled():
                self.queue = {seq: trace for seq, trace in self.queue.items() if trace != event.trace}
                if turn and turn.trace == event.trace:
                    turn.end("CANCELLED", at)

    def _start(self, event: events.Started, record: Recorded) -> None:
        number, task = self.turns_before + len(self.turns) + 1, self._prompts.get(event.prompt, "")
        turn = TimelineTurn(number, event.prompt, event.trace or record.trace, task, record.at, event.version)
        self.turns.append(turn)
        self.queue.pop(event.prompt, None)
        self._retries = []

    def _reply(self, turn: TimelineTurn, event: events.Replied, record: Recorded) -> None:
        at = record.at
        number = self.steps_before + sum(len(one.steps) for one in self.turns) + 1
        began, retries = self._before or at, self._retries
        if event.troubled_at:
            turn.waits.append(TimelineWait("retry", event.troubled_at, at))
            began = min(began, event.troubled_at)
            if not retries:  # those that cost tokens are events of their own
                words = (
                    "the model call failed" if event.attempts == 1 else f"the model call failed {event.attempts} times"
                )
                retries = [TimelineRetry(event.troubled_at, words)]
        turn.steps.append(TimelineStep(number, event, began, at, record.worker, retries=retries))
        self._retries = []

    def _note_worker(self, turn: TimelineTurn, record: Recorded) -> None:
        """Notes that another worker goes on with the turn."""
        event, at = record.event, record.at
        if isinstance(event, events.Replied) and event.troubled_at:
            return  # it had been let go to wait for the model
        if isinstance(event, events.Resumed):
            since = event.seen_at or self._before
            seconds = max(0.0, (at - since).total_seconds()) if since else None
            previous = event.previous.removesuffix(INTERRUPTED)
            turn.takeovers.append(Takeover(at, previous, event.worker, event.is_loss, seconds))
        elif record.worker and self._worker not in ("", record.worker):
            turn.takeovers.append(Takeover(at, self._worker, record.worker, is_loss=False, seconds=None))

    def _note_wait(self, turn: TimelineTurn, at: datetime) -> None:
        last = next((wait for wait in reversed(turn.waits) if wait.until is None), None)
        reason = None if turn.ended else waits_for(self.open)
        if last and last.reason == reason:
            return
        if last and last.since == at:  # events of one append, of which the first ones did not say it all
            turn.waits.remove(last)
        elif last:
            last.until = at
        if reason:
            turn.waits.append(TimelineWait(reason, at))


def timeline_of(records: Iterable[Recorded], *, turns_before: int = 0, steps_before: int = 0) -> Timeline:
    """The timeline of these events; those before them held so many turns and steps."""
    timeline = Timeline(turns_before, steps_before)
    for record in records:
        timeline.add(record)
    return timeline


def waits_for(calls: Mapping[str, Open]) -> WaitsFor | None:
    """What a turn with these open calls waits for; None if it can move."""
    if not are_waiting(calls):
        return None
    kinds = {call.question_kind for call in calls.values()}
    return next((kind for kind in IN_ORDER if kind in kinds), "agent")


def task_of(prompt: events.Prompted) -> str:
    return "\n".join(text_of(content) for content in prompt.content)
