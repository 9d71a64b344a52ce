"""A session is the sum of its events: `fold` adds them up, nothing edits it."""

import re
from collections.abc import Iterable, Sequence
from datetime import datetime
from enum import StrEnum
from typing import Any, Final, Literal

import msgspec

from longhouse.journal import events, fingerprint
from longhouse.journal.events import Output
from longhouse.journal.messages import Message
from longhouse.journal.pending_decisions import Undecided, words_for
from longhouse.journal.spoken import together
from longhouse.journal.transcript import Entry, Heard, Step

AGENT_FAILED: Final = "agent_failed"
"""The code of a turn whose agent itself said that it could not fulfil the request: its words are an answer."""
LOCAL_OWNER: Final = "local"
"""Whom everything belongs to where no keys are set, and then the user of whatever names none."""
EPHEMERAL: Final = "ephemeral/"
"""What the label of a session begins with whose history the caller keeps; no agent can choose such a label."""
EPHEMERAL_LABEL: Final = "^ephemeral(/|-[0-9a-f]{32}(/|$))"
"""Any such label, also as they were written before; for Postgres too."""
MOST_LOST: Final = 3
"""Workers that one step may lose: it is not tried again, for it may well be what takes them down."""


def own_label(label: str) -> str:
    """A label as the agent that called gave it: without what stands in front where the caller keeps the history."""
    return re.sub("^ephemeral[/-][0-9a-f]{32}(/|$)", "", label)


class State(StrEnum):
    INITED = "INITED"
    RESEARCHING = "RESEARCHING"
    WAITING_FOR_CLARIFICATION = "WAITING_FOR_CLARIFICATION"
    WAITING_FOR_APPROVAL = "WAITING_FOR_APPROVAL"
    WAITING_FOR_AGENT = "WAITING_FOR_AGENT"
    COMPLETED = "COMPLETED"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"


class _SessionValue(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    pass


class Open(_SessionValue, frozen=True, kw_only=True):
    """A call that has not returned yet."""

    call: str
    tool: str
    version: int
    arguments: str
    effect: events.Effect
    kind: events.CallKind
    seq: int
    at: datetime | None = None
    """When it was made."""
    question: str = ""
    deadline: datetime | None = None
    uncertain: bool = False
    """Begun, and not to be begun twice: its worker or its answer was lost, and a person must say what became of it."""
    doubt: str = ""
    """How its answer was lost; empty where its worker was."""
    approve_by: datetime | None = None
    """Not begun: a person must approve it by then. None: it needs no approval, or has it."""
    lost: int = 0
    """Workers that were lost while they ran it."""

    @property
    def awaits_person(self) -> bool:
        return self.kind == "ask" or self.uncertain or self.approve_by is not None

    @property
    def is_due(self) -> bool:
        return self.kind == "tool" and not self.uncertain and self.approve_by is None


class Artifact(_SessionValue, frozen=True, kw_only=True):
    """A file that the session made; its seq is its id."""

    seq: int
    at: datetime
    file: events.Stored


class Waiting(_SessionValue, frozen=True, kw_only=True):
    """A prompt in the queue."""

    seq: int
    prompt: events.Prompted


class Below(_SessionValue, frozen=True, kw_only=True):
    """What agents have used up that a turn has waited for; the turn's own counters have it too."""

    tokens: int = 0
    calls: int = 0
    seconds: float = 0.0


class Turn(_SessionValue, frozen=True, kw_only=True):
    """One prompt and what it has caused in this session so far. Counters and budgets belong to it."""

    trace: str
    prompt: int
    version: int
    instance: str
    limits: events.Limits
    date: str
    started_at: datetime
    task: str
    form: int = 0
    """How its requests are composed, see `Started`."""
    system: str | None = None
    sampling: events.Sampling | None = None
    chain: str = ""
    reply_to: events.ReplyTo | None = None
    depth: int = 0
    root: str = ""
    """The session that the user talks to, where it is another one."""
    rights: events.Rights | None = None
    shared: tuple[Message, ...] = ()
    contexts: dict[str, tuple[Message, ...]] = {}
    named: tuple[str, ...] = ()
    ephemeral: str = ""
    approve_in_chat: bool = False
    purse: events.SharedBudget | None = None
    iteration: int = 0
    pins: dict[str, int] = {}
    """Tool -> the version that the turn was first offered; it keeps it, also where the tool was closed in between."""
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
    delegated_seconds: float = 0.0
    """Seconds that others have worked for it since then: as much of the rest was no waiting for people."""
    below: Below = Below()
    verdict: Literal["", "COMPLETED", "FAILED"] = ""
    """Set by the first finishing tool; the turn ends when its other calls have returned."""
    answer: str | None = None
    ended: Literal["", "COMPLETED", "FAILED", "CANCELLED"] = ""
    error: str | None = None
    code: str | None = None
    usage: events.Usage = events.Usage()
    said: tuple[str, ...] = ()
    """What each reply has said to the user since the user spoke last; empty for one that said nothing."""
    spoke: datetime | None = None
    """When the user last said something in the chat while it ran: the answer to that tells what waits by then."""
    moved_on: datetime | None = None
    """When it was last moved on from a rest elsewhere, by a decision at the route or a deadline, and nobody has spoken
    since: what it asks after that is not told in the chat."""


class Session(_SessionValue, frozen=True, kw_only=True):
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
    open: dict[str, Open] = {}
    transcript: tuple[Entry, ...] = ()
    offered: tuple[str, ...] = ()
    context: dict[str, Any] = {}
    """What tools wrote to their context: searches, sources, reasoning."""
    notes: tuple[str, ...] = ()
    files: tuple[Artifact, ...] = ()
    lost: int = 0
    """Workers that were lost with it since it last got anywhere."""

    @property
    def is_running(self) -> bool:
        return self.turn is not None and not self.turn.ended

    @property
    def due_calls(self) -> list[Open]:
        return [call for call in self.open.values() if call.is_due]

    @property
    def next_calls(self) -> list[Open]:
        return side_by_side(self.open.values())

    @property
    def is_suspect(self) -> bool:
        """Was a worker lost with the step that it is in?"""
        return self.lost > 0 or any(call.lost for call in self.due_calls)

    @property
    def is_hopeless(self) -> bool:
        """Has it lost so many workers, with no call to blame, that its turn is not worth another?"""
        return self.lost >= MOST_LOST and not self.due_calls

    @property
    def questions(self) -> list[Open]:
        return [call for call in self.open.values() if call.kind == "ask"]

    @property
    def awaits_agents(self) -> bool:
        return any(call.kind == "agent" for call in self.open.values())

    @property
    def uncertain(self) -> list[Open]:
        return [call for call in self.open.values() if call.uncertain]

    @property
    def unapproved(self) -> list[Open]:
        return [call for call in self.open.values() if call.approve_by]

    @property
    def wake_at(self) -> datetime | None:
        """When something happens by itself: the first approval that nobody gave is denied."""
        return min((call.approve_by for call in self.unapproved if call.approve_by), default=None)

    @property
    def can_move(self) -> bool:
        """Is there anything to do without waiting for somebody?"""
        if self.is_running:
            return not self.open or bool(self.due_calls)
        return bool(self.queue)

    @property
    def has_just_thought(self) -> bool:
        """Was the last thing that happened a phase of reasoning?"""
        return is_thought(self.transcript)

    @property
    def stage(self) -> Literal["plan", "research", "synthesize"]:
        """How far the work on the task is: a plan, then sources, then the answer."""
        if self.enough_data:
            return "synthesize"
        if self.plan_made or self.context.get("sources"):
            return "research"
        return "plan"

    @property
    def enough_data(self) -> bool:
        thought = self.context.get("current_step_reasoning")
        return isinstance(thought, dict) and bool(thought.get("enough_data"))

    @property
    def plan_made(self) -> bool:
        uses = (use for step in self.steps for use in step.uses)
        return any(use.role == "plans" and isinstance(use.outcome, Output) for use in uses)

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
        """All that a client is sent as content up to this rest: what was said on the way, and why it rests."""
        words = self.last_words
        return None if words is None or self.turn is None else together(self.turn.said, words)

    @property
    def last_words(self) -> str | None:
        """Why the session rests, as a client is told: the answer, or the oldest question."""
        if self.turn is None:
            return None
        if self.state is State.WAITING_FOR_CLARIFICATION:
            return self.questions[0].question
        if self.state is State.WAITING_FOR_APPROVAL:
            return words_for([self._undecided(call) for call in (*self.unapproved, *self.uncertain)], self.id)
        return self.turn.answer if self.turn.ended == "COMPLETED" or self.turn.code == AGENT_FAILED else None

    def _undecided(self, call: Open) -> Undecided:
        return Undecided(
            tool=call.tool,
            call=call.call,
            arguments=call.arguments,
            is_uncertain=call.uncertain,
            doubt=call.doubt,
            in_chat=self.turn is not None and self.turn.approve_in_chat,
        )

    def heard_up_to(self, chain: str) -> "Session":
        """As it is for a client that was told, and has said, what the fingerprint `chain` stands for."""
        assert self.turn is not None
        return msgspec.structs.replace(self, turn=msgspec.structs.replace(self.turn, chain=chain))

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
        if self.uncertain or self.unapproved:
            return State.WAITING_FOR_APPROVAL
        return State.WAITING_FOR_AGENT


def side_by_side(calls: Iterable[Open]) -> list[Open]:
    """Of open calls those that are run now: all that are due; the last tries one by one, to know which one it is."""
    due = [call for call in calls if call.is_due]
    suspects = (call for call in due if call.lost >= MOST_LOST - 1)
    return next(([call] for call in suspects), due)


def is_thought(transcript: Sequence[Entry]) -> bool:
    last = transcript[-1] if transcript else None
    return isinstance(last, Step) and last.phase == "reasoning"
