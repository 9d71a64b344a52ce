"""A session is the sum of its events: `fold` adds them up, nothing edits it."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import StrEnum
from typing import Any, Final, Literal, assert_never

import msgspec

from longhouse.journal import events, fingerprint
from longhouse.journal.events import Event, Outcome, Output, Recorded
from longhouse.journal.messages import Content, Message, text_of

FOLD_VERSION: Final = 4
"""Part of every snapshot; a change of what `fold` computes raises it, and old snapshots are ignored."""

AGENT_FAILED: Final = "agent_failed"
"""The code of a turn whose agent itself said that it could not fulfil the request: its words are an answer."""


class State(StrEnum):
    INITED = "INITED"
    RESEARCHING = "RESEARCHING"
    WAITING_FOR_CLARIFICATION = "WAITING_FOR_CLARIFICATION"
    WAITING_FOR_APPROVAL = "WAITING_FOR_APPROVAL"
    WAITING_FOR_AGENT = "WAITING_FOR_AGENT"
    COMPLETED = "COMPLETED"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"


class _Entry(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    pass


class Heard(_Entry, frozen=True, kw_only=True, tag="Heard"):
    """A prompt as it entered the transcript: the task of a turn, on the day the turn started."""

    seq: int
    """Of its `Started`: a prompt may have waited behind a turn, and the transcript is in the order of its seqs."""
    content: Content
    date: str


class Use(_Entry, frozen=True, kw_only=True):
    """One call of a step and, once it is there, its outcome."""

    call: str
    tool: str
    arguments: str
    outcome: Outcome | None = None
    question: str = ""
    effect: events.Effect = "read"


class Step(_Entry, frozen=True, kw_only=True, tag="Step"):
    """A reply of the model and the calls it led to; calls and outcomes stay in pairs by construction."""

    seq: int
    text: str = ""
    uses: tuple[Use, ...] = ()
    phase: str = ""
    problem: str = ""


class Told(_Entry, frozen=True, kw_only=True, tag="Told"):
    """Messages that came along with a prompt: what was said before this session knew of it."""

    seq: int
    messages: tuple[Message, ...]


class Summary(_Entry, frozen=True, kw_only=True, tag="Summary"):
    seq: int
    text: str


Entry = Heard | Step | Told | Summary


class Open(_Entry, frozen=True, kw_only=True):
    """A call that has not returned yet."""

    call: str
    tool: str
    version: int
    arguments: str
    effect: events.Effect
    kind: events.CallKind
    seq: int
    question: str = ""
    deadline: datetime | None = None
    uncertain: bool = False
    """Begun by a worker that is gone, and not to be begun twice: a person must say what became of it."""

    @property
    def is_due(self) -> bool:
        return self.kind == "tool" and not self.uncertain


class Artifact(_Entry, frozen=True, kw_only=True):
    """A file that the session made; its seq is its id."""

    seq: int
    at: datetime
    file: events.Stored


class Waiting(_Entry, frozen=True, kw_only=True):
    """A prompt in the queue."""

    seq: int
    prompt: events.Prompted


@dataclass(frozen=True, slots=True)
class Turn:
    """One prompt and what it has caused in this session so far. Counters and budgets belong to it."""

    trace: str
    prompt: int
    version: int
    instance: str
    limits: events.Limits
    date: str
    started_at: datetime
    task: str
    system: str | None = None
    sampling: events.Sampling | None = None
    chain: str = ""
    reply_to: events.ReplyTo | None = None
    iteration: int = 0
    is_thinking: bool = False
    """Has the iteration brought a thought so far, and its action not yet?"""
    searches_used: int = 0
    clarifications_used: int = 0
    tokens: int = 0
    calls: int = 0
    """Of tools; those by which a thought is written are not counted."""
    unreadable: int = 0
    """Replies in a row that could not be read."""
    waited: float = 0.0
    """Seconds spent at rest, waiting for people: they do not count against the time budget."""
    resting_since: datetime | None = None
    verdict: Literal["", "COMPLETED", "FAILED"] = ""
    """Set by the first finishing tool; the turn ends when its other calls have returned."""
    answer: str | None = None
    ended: Literal["", "COMPLETED", "FAILED", "CANCELLED"] = ""
    error: str | None = None
    code: str | None = None
    usage: events.Usage = field(default_factory=events.Usage)


@dataclass(frozen=True, slots=True)
class Session:
    """One agent's life in one conversation."""

    id: str
    agent: str
    owner: str
    conversation: str
    user: str | None = None
    side: events.Side = "root"
    label: str = ""
    opened_version: int = 1
    created_at: datetime | None = None
    updated_at: datetime | None = None
    head: int = 0
    iteration: int = 0
    """Counts over all turns, so that call ids stay unique in the session."""
    turn: Turn | None = None
    queue: tuple[Waiting, ...] = ()
    open: dict[str, Open] = field(default_factory=dict)
    transcript: tuple[Entry, ...] = ()
    offered: tuple[str, ...] = ()
    context: dict[str, Any] = field(default_factory=dict)
    """What tools wrote to their context: searches, sources, reasoning."""
    notes: tuple[str, ...] = ()
    files: tuple[Artifact, ...] = ()

    @property
    def is_running(self) -> bool:
        return self.turn is not None and not self.turn.ended

    @property
    def due_calls(self) -> list[Open]:
        return [call for call in self.open.values() if call.is_due]

    @property
    def questions(self) -> list[Open]:
        return [call for call in self.open.values() if call.kind == "ask"]

    @property
    def uncertain(self) -> list[Open]:
        return [call for call in self.open.values() if call.uncertain]

    @property
    def can_move(self) -> bool:
        """Is there anything to do without waiting for somebody?"""
        if self.is_running:
            return not self.open or bool(self.due_calls)
        return bool(self.queue)

    @property
    def has_just_thought(self) -> bool:
        """Was the last thing that happened a phase of reasoning?"""
        return _is_thought(self.transcript)

    @property
    def stage(self) -> Literal["plan", "research", "synthesize"]:
        """How far the work on the task is: a plan, then sources, then the answer."""
        thought = self.context.get("current_step_reasoning")
        if isinstance(thought, dict) and thought.get("enough_data"):
            return "synthesize"
        if self._has_used("generateplantool") or self.context.get("sources"):
            return "research"
        return "plan"

    def _has_used(self, tool: str) -> bool:
        return any(use.tool == tool and isinstance(use.outcome, Output) for step in self.steps for use in step.uses)

    @property
    def steps(self) -> list[Step]:
        """The steps of the present turn, the newest first."""
        found = []
        for entry in reversed(self.transcript):
            if isinstance(entry, Heard):
                break
            if isinstance(entry, Step):
                found.append(entry)
        return found

    @property
    def spoken(self) -> str | None:
        """What a client is sent as content when the session comes to rest: the answer, or the oldest question."""
        if self.turn is None:
            return None
        if self.state is State.WAITING_FOR_CLARIFICATION:
            return self.questions[0].question
        if self.state is State.WAITING_FOR_APPROVAL:
            call = self.uncertain[0]
            return f"A worker was lost while {call.tool} ({call.call}) ran: please say whether it happened."
        if self.turn.ended == "COMPLETED":
            return self.turn.answer
        return self.turn.error if self.turn.code == AGENT_FAILED else None

    @property
    def rest_mark(self) -> str | None:
        """The fingerprint under which a client that resends everything finds this rest."""
        said = self.spoken
        if said is None or self.turn is None or not self.turn.chain:
            return None
        return fingerprint.grown(self.turn.chain, [("assistant", said)])

    @property
    def state(self) -> State:
        if self.turn is None:
            return State.INITED
        if self.turn.ended:
            return State(self.turn.ended)
        if self.can_move:
            return State.RESEARCHING
        if self.questions:
            return State.WAITING_FOR_CLARIFICATION
        if self.uncertain:
            return State.WAITING_FOR_APPROVAL
        return State.WAITING_FOR_AGENT


def fold(recorded: Iterable[Recorded], session: Session) -> Session:
    """`session` with these events added to it. Start from `blank(id)`, or from a snapshot."""
    builder = _Builder(session)
    for record in recorded:
        builder.add(record)
    return builder.freeze()


def blank(session_id: str) -> Session:
    return Session(id=session_id, agent="", owner="", conversation="")


class _Builder:
    """The mutable inside of `fold`: a long journal is added up without copying it at every event."""

    def __init__(self, session: Session) -> None:
        self.base = session
        self.turn = session.turn
        self.queue = list(session.queue)
        self.open = dict(session.open)
        self.transcript = list(session.transcript)
        self.offered = list(session.offered)
        self.context = session.context
        self.notes = list(session.notes)
        self.files = list(session.files)
        self.iteration = session.iteration
        self.head = session.head
        self.updated_at = session.updated_at

    def freeze(self) -> Session:
        return replace(
            self.base,
            turn=self.turn,
            queue=tuple(self.queue),
            open=self.open,
            transcript=tuple(self.transcript),
            offered=tuple(self.offered),
            context=self.context,
            notes=tuple(self.notes),
            files=tuple(self.files),
            iteration=self.iteration,
            head=self.head,
            updated_at=self.updated_at,
        )

    def add(self, record: Recorded) -> None:
        was_waiting = self._is_waiting
        self._apply(record.event, record.seq, record.at)
        self.head = record.seq
        self.updated_at = record.at
        if self.turn and self._is_waiting != was_waiting:
            self.turn = _rested(self.turn, record.at) if self._is_waiting else _woken(self.turn, record.at)

    @property
    def _is_waiting(self) -> bool:
        if self.turn is None or self.turn.ended or not self.open:
            return False
        return not any(call.is_due for call in self.open.values())

    def _apply(self, event: Event, seq: int, at: datetime) -> None:  # noqa: PLR0912 - one case for each kind of event
        match event:
            case events.Opened():
                self.base = replace(
                    self.base,
                    agent=event.agent,
                    owner=event.owner,
                    user=event.user,
                    conversation=event.conversation,
                    side=event.side,
                    label=event.label,
                    opened_version=event.version,
                    created_at=at,
                )
            case events.Prompted():
                self.queue.append(Waiting(seq=seq, prompt=event))
            case events.Started():
                self._start(event, seq, at)
            case events.Replied():
                self._reply(event, seq)
            case events.Called():
                self._call(event, seq)
            case events.Returned():
                self._return(event)
            case events.Decided():
                self._decide(event)
            case events.Condensed():
                kept = [entry for entry in self.transcript if entry.seq > event.upto]
                self.transcript = [Summary(seq=event.upto, text=event.summary), *kept]
            case events.Noted():
                self.notes.append(event.text)
            case events.Stored():
                self.files.append(Artifact(seq=seq, at=at, file=event))
            case events.Resumed():
                self._resume()
            case events.Finished():
                self._end("COMPLETED", answer=event.answer)
            case events.Failed():
                self._end("FAILED", error=event.reason, code=event.code)
            case events.Cancelled():
                self.queue = [waiting for waiting in self.queue if waiting.prompt.trace != event.trace]
                if self.turn and self.turn.trace == event.trace and not self.turn.ended:
                    self._end("CANCELLED")
            case _:
                assert_never(event)

    def _start(self, event: events.Started, seq: int, at: datetime) -> None:
        waiting = next(waiting for waiting in self.queue if waiting.seq == event.prompt)
        self.queue.remove(waiting)
        prompt = waiting.prompt
        if prompt.prior:
            self.transcript.append(Told(seq=seq, messages=prompt.prior))
        self.transcript += [Heard(seq=seq, content=content, date=event.date) for content in prompt.content]
        self.turn = Turn(
            trace=event.trace,
            prompt=event.prompt,
            version=event.version,
            instance=event.instance,
            limits=event.limits,
            date=event.date,
            started_at=at,
            task=_task_of(prompt),
            system=prompt.system,
            sampling=prompt.sampling,
            chain=prompt.chain,
            reply_to=prompt.reply_to,
        )

    def _reply(self, event: events.Replied, seq: int) -> None:
        assert self.turn is not None
        # An action belongs to the iteration of the thought before it.
        step = 0 if event.phase == "action" and _is_thought(self.transcript) else 1
        self.iteration += step
        usage = event.usage or events.Usage()
        self.turn = replace(
            self.turn,
            iteration=self.turn.iteration + step,
            is_thinking=event.phase == "reasoning",
            tokens=self.turn.tokens + usage.total_tokens,
            unreadable=self.turn.unreadable + 1 if event.problem else 0,
            usage=_sum(self.turn.usage, usage),
        )
        if event.thought:
            self.context = {**self.context, "current_step_reasoning": _thought(event.thought)}
        gone = set(event.withdrawn)
        self.offered = [ref for ref in self.offered if ref not in gone] + list(event.offered)
        text = event.thought or event.text
        self.transcript.append(Step(seq=seq, text=text, phase=event.phase, problem=event.problem))

    def _call(self, event: events.Called, seq: int) -> None:
        if self.turn and not self.turn.is_thinking:
            self.turn = replace(self.turn, calls=self.turn.calls + 1)
        step = self.transcript[-1]
        assert isinstance(step, Step)
        use = Use(
            call=event.call,
            tool=event.tool,
            arguments=event.arguments,
            question=event.question,
            effect=event.effect,
        )
        self.transcript[-1] = msgspec.structs.replace(step, uses=(*step.uses, use))
        self.open[event.call] = Open(
            call=event.call,
            tool=event.tool,
            version=event.version,
            arguments=event.arguments,
            effect=event.effect,
            kind=event.call_kind,
            seq=seq,
            question=event.question,
            deadline=event.deadline,
        )

    def _return(self, event: events.Returned) -> None:
        call = self.open.pop(event.call)
        # The step that made the call is the last one, or close to it: search from the end.
        for index in range(len(self.transcript) - 1, -1, -1):
            entry = self.transcript[index]
            if isinstance(entry, Step) and any(use.call == event.call for use in entry.uses):
                uses = tuple(
                    msgspec.structs.replace(use, outcome=event.outcome) if use.call == event.call else use
                    for use in entry.uses
                )
                self.transcript[index] = msgspec.structs.replace(entry, uses=uses)
                break
        if self.turn is None:
            return
        if call.kind == "ask" and isinstance(event.outcome, Output):
            self.turn = replace(self.turn, clarifications_used=self.turn.clarifications_used + 1, chain=event.chain)
        if event.writes or event.adds:
            self._write(event.writes, event.adds)

    def _write(self, writes: dict[str, Any], adds: dict[str, Any]) -> None:
        assert self.turn is not None
        context = {**self.context, **writes}
        for name, added in adds.items():
            context[name] = _added(context.get(name), added)
        state, result = context.pop("state", None), context.pop("execution_result", None)
        if state in ("COMPLETED", "FAILED") and not self.turn.verdict:
            self.turn = replace(self.turn, verdict=state, answer=result if result is not None else "")
        if searches := context.pop("searches_used", 0):
            self.turn = replace(self.turn, searches_used=self.turn.searches_used + searches)
        self.context = context

    def _decide(self, event: events.Decided) -> None:
        call = self.open.get(event.call)
        if call and event.decision == "did_not_happen":
            self.open[event.call] = msgspec.structs.replace(call, uncertain=False, deadline=None)

    def _resume(self) -> None:
        """What a vanished worker may have begun, and must not be begun again, is now a question."""
        for call in list(self.open.values()):
            if call.kind == "tool" and call.effect == "once":
                self.open[call.call] = msgspec.structs.replace(call, uncertain=True)

    def _end(
        self,
        ended: Literal["COMPLETED", "FAILED", "CANCELLED"],
        *,
        answer: str | None = None,
        error: str | None = None,
        code: str | None = None,
    ) -> None:
        assert self.turn is not None
        self.turn = replace(self.turn, ended=ended, answer=answer, error=error, code=code)


def _is_thought(transcript: Sequence[Entry]) -> bool:
    last = transcript[-1] if transcript else None
    return isinstance(last, Step) and last.phase == "reasoning"


def _thought(text: str) -> Any:
    """Structured reasoning as a value; a thought in plain words stays words."""
    try:
        return msgspec.json.decode(text)
    except msgspec.DecodeError:
        return text


def _added(there: Any, added: Any) -> Any:
    if isinstance(added, list):
        return [*(there or ()), *added]
    if isinstance(added, dict):
        return {**(there or {}), **added}
    return (there or 0) + added


def _task_of(prompt: events.Prompted) -> str:
    return "\n\n".join(text_of(content) for content in prompt.content)


def _sum(one: events.Usage, other: events.Usage) -> events.Usage:
    return events.Usage(
        prompt_tokens=one.prompt_tokens + other.prompt_tokens,
        completion_tokens=one.completion_tokens + other.completion_tokens,
        total_tokens=one.total_tokens + other.total_tokens,
        cached_tokens=one.cached_tokens + other.cached_tokens,
    )


def _rested(turn: Turn, at: datetime) -> Turn:
    return replace(turn, resting_since=at)


def _woken(turn: Turn, at: datetime) -> Turn:
    if turn.resting_since is None:
        return turn
    waited = max(0.0, (at - turn.resting_since).total_seconds())
    return replace(turn, waited=turn.waited + waited, resting_since=None)
