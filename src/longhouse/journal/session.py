"""The state of a session and its running turn, computed from the journal by `fold`; nothing else changes it."""

import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from enum import StrEnum
from typing import Any, Final, Literal

import msgspec

from longhouse.journal import events, fingerprint
from longhouse.journal.events import Output
from longhouse.journal.messages import text_of
from longhouse.journal.transcript import Entry, PromptEntry, Step, Use
from longhouse.journal.words.pending_decisions import Undecided, decision_text

AGENT_FAILED: Final = "agent_failed"
"""The code of a turn whose agent itself reported that it could not do the task: its text is the answer."""
LOCAL_OWNER: Final = "local"
"""The owner of everything when no API keys are set, and then also the default user."""
EPHEMERAL: Final = "ephemeral/"
"""Label prefix of sessions whose history the caller stores; no agent can choose such a label."""
EPHEMERAL_LABEL: Final = "^ephemeral(/|-[0-9a-f]{32}(/|$))"
"""Regular expression for such labels, earlier formats included; also used in Postgres."""
BLANK_LINE: Final = "\n\n"
"""Between the texts of the replies that a client gets, and the answer."""
MOST_LOST: Final = 3
"""After so many lost workers a step is not retried: it may be what crashes them."""
MOST_EXCUSED: Final = 30
"""So many losses do not count, because the session merely waited: what takes workers down even so is found later."""
INTERRUPTED: Final = "was interrupted three times by the loss of its worker"
"""Why a person is asked about a call, or a step, that is not retried."""
TAKES_WORKERS: Final = f"it {INTERRUPTED}"
"""The doubt about a call that took three workers down."""
LOST_STEP: Final = "The worker was lost three times in this step. Try it again?"
"""What a person is asked about a step without a call to blame."""
LOST_STEP_PREFIX: Final = "step-"
"""Begins the ids of such questions; those of calls begin with a number."""
QuestionKind = Literal["clarification", "approval", "unknown_outcome", "worker_lost", "client"]
"""`client`: no person is asked; the client has to send the result of a call that it runs itself."""


def joined_text(replies: Sequence[str], words: str = "") -> str:
    """The text of each reply, then `words`, separated by blank lines.

    If `words` only repeat the text of the last reply, they are not added again.
    """
    if replies and words.strip() == replies[-1].strip():
        words = ""
    return BLANK_LINE.join([part for part in (*replies, words) if part.strip()])


def own_label(label: str) -> str:
    """A label as the calling agent gave it: without the prefix of sessions whose history the caller stores."""
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


Ended = Literal["", "COMPLETED", "FAILED", "CANCELLED"]


class _SessionValue(msgspec.Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    pass


class Open(events.Called, frozen=True, kw_only=True, tag="Open"):
    """A call that has not returned yet: its `Called`, and what happened to it since."""

    seq: int
    at: datetime | None = None
    """When the call was made."""
    uncertain: bool = False
    """Started, must not run twice: its worker or its result was lost, and a person must say whether it took effect."""
    doubt: str = ""
    """How its result was lost; empty if its worker was lost."""
    lost: int = 0
    """Workers that were lost while they ran it."""
    retried: bool = False
    """It took workers down, and a person let it be tried again."""
    has_waited: bool = False
    """It runs because somebody has decided so, a while after it was made."""
    probed: bool = False
    """It is uncertain, and its probe is asked; until that has said that it cannot tell, no person is."""

    @property
    def awaits_person(self) -> bool:
        """Whether somebody outside has to act: a person, or the client."""
        return self.question_kind is not None

    @property
    def awaits_decision(self) -> bool:
        return self.question_kind not in (None, "clarification", "client")

    @property
    def is_client(self) -> bool:
        """Whether the client runs it."""
        return self.call_kind == "client"

    @property
    def is_step(self) -> bool:
        """Whether it is no call, but the question about a step that lost its workers."""
        return self.call_kind == "step"

    @property
    def takes_workers(self) -> bool:
        """Whether it took three workers down and could be repeated: the question is whether it is tried again."""
        return self.uncertain and self.effect != "once" and self.doubt == TAKES_WORKERS

    @property
    def question_kind(self) -> QuestionKind | None:
        """What a person is asked about it; None: nothing."""
        if self.is_step or self.takes_workers:
            return "worker_lost"
        if self.uncertain:
            return None if self.probed else "unknown_outcome"
        if self.approve_by is not None:
            return "approval"
        if self.is_client:
            return "client"
        return "clarification" if self.call_kind == "ask" else None

    @property
    def is_due(self) -> bool:
        return self.call_kind == "tool" and not self.uncertain and self.approve_by is None


class Artifact(_SessionValue, frozen=True, kw_only=True):
    """A file that the session created; its seq is its id."""

    seq: int
    at: datetime
    file: events.Stored


class Waiting(_SessionValue, frozen=True, kw_only=True):
    """A prompt in the queue."""

    seq: int
    prompt: events.Prompted


class SubagentUsage(_SessionValue, frozen=True, kw_only=True):
    """What the sub-agents that a turn waited for have used; it is included in the turn's own counters."""

    tokens: int = 0
    calls: int = 0
    seconds: float = 0.0


class Read(_SessionValue, frozen=True, kw_only=True):
    """The result of a reading call, by which the same call is answered again."""

    call: str
    content: str
    revision: str = ""
    seq: int = 0


class ReadSource(_SessionValue, frozen=True, kw_only=True):
    """A reading call that outlines or chunks come from: by it, the tool can say whether they are still current."""

    tool: str
    """Name@version."""
    arguments: str
    revision: str
    chapters: tuple[str, ...] = ()


class WorkingMemory(_SessionValue, frozen=True, kw_only=True):
    """What the agent has read in this session, as noted in its journal."""

    query: str = ""
    """The task of the current turn."""
    outlines: dict[str, str] = msgspec.field(default_factory=dict)
    """Document -> key of the call that read its outline."""
    chapters: tuple[str, ...] = ()
    """Titles of known chapters."""
    chunks: tuple[events.NotedChunk, ...] = ()
    """The most relevant first; of equally relevant ones the newest."""
    reads: dict[str, Read] = msgspec.field(default_factory=dict)
    """Results by the key of their call, the newest last."""
    sources: dict[str, ReadSource] = msgspec.field(default_factory=dict)
    """By the key of their call: where the outlines and chunks come from."""
    interactions: tuple[str, ...] = ()
    """Ids of interactions from outside that this agent took part in."""

    @property
    def is_empty(self) -> bool:
        return not (self.reads or self.outlines or self.chunks or self.interactions)


class Turn(events.Started, frozen=True, kw_only=True, tag="Turn"):
    """A turn: its `Started`, and what happened in it since, with its counters."""

    prompted: events.Prompted
    """The prompt, without the history that came with it: that is in the transcript; and without the client's tools."""
    client_tools: events.ClientTools | None = None
    """What the client offers to run, as it last said."""
    started_at: datetime
    worked_at: datetime
    """The last moment of work: that of the last event which a worker has recorded, or at which a wait ended."""
    chain: str = ""
    """The fingerprint of the client's conversation up to the user's last message."""
    user: str | None = None
    """Who it is for, as in `Prompted`: the sender of the prompt, or another who wrote to the turn since."""
    iteration: int = 0
    pins: dict[str, int] = msgspec.field(default_factory=dict)
    """Tool -> the version that the turn was first offered; it keeps it, even if the tool was closed in between."""
    is_thinking: bool = False
    """Whether the iteration has its reasoning but not yet its action."""
    searches_used: int = 0
    clarifications_used: int = 0
    calls: int = 0
    """Tool calls; calls of reasoning tools are not counted."""
    unreadable: int = 0
    """Consecutive replies that could not be parsed."""
    waited: float = 0.0
    """Seconds up to `worked_at` in which nobody worked: they do not count against the time budget. Negative after a
    clock was put back."""
    resting_since: datetime | None = None
    delegated_seconds: float = 0.0
    """Seconds that sub-agents have worked for it since `resting_since`: this part was not waiting for people."""
    is_given_up: bool = False
    """A person has said that the step that lost its workers is not tried again: the turn is to be ended."""
    subagents: SubagentUsage = SubagentUsage()
    verdict: Literal["", "COMPLETED", "FAILED"] = ""
    """Set by the first tool that finishes; the turn ends when its other calls have returned."""
    answer: str | None = None
    refused: bool = False
    """As in `Finished`."""
    ended: Ended = ""
    error: str | None = None
    code: str | None = None
    usage: events.Usage = events.Usage()
    recalled: tuple[str, ...] = ()
    """Ids of the items from other conversations that its first request showed; later requests show the same."""
    reply_texts: tuple[str, ...] = ()
    """The text of each reply to the user since the user's last message; empty for a reply without text."""
    last_chat_message_at: datetime | None = None
    """Time of the user's last chat message during the turn: the answer to it reports what waits by then."""
    resumed_outside_chat_at: datetime | None = None
    """When the turn was last resumed outside the chat, by the decision route or a deadline, with no chat message since:
    what it asks after that is not sent to the chat."""

    @property
    def task(self) -> str:
        return "\n\n".join(map(text_of, self.prompted.content))


class Session(events.Opened, frozen=True, gc=True, kw_only=True, tag="Session", weakref=True):
    """The state of one agent in one conversation: its `Opened`, and what happened since."""

    id: str
    version: int = 1
    """The version of the agent with which the session was opened."""
    created_at: datetime | None = None
    updated_at: datetime | None = None
    head: int = 0
    iteration: int = 0
    """Counted over all turns, so that call ids are unique in the session."""
    turn: Turn | None = None
    queue: tuple[Waiting, ...] = ()
    withdrawn: bool = False
    """A prompt was cancelled before a turn began with it."""
    open: dict[str, Open] = msgspec.field(default_factory=dict)
    transcript: tuple[Entry, ...] = ()
    offered: tuple[str, ...] = ()
    context: dict[str, Any] = msgspec.field(default_factory=dict)
    """Values that tools wrote to their context: searches, sources, reasoning."""
    notes: tuple[str, ...] = ()
    memory: WorkingMemory = WorkingMemory()
    recall: str = ""
    """Text for the end of the system prompt of one request; set for that request only, and never stored."""
    asked: str = ""
    """Who is asked, as in `Replied.source`; set for one request only, too."""
    files: tuple[Artifact, ...] = ()
    lost: int = 0
    """Workers lost with this session since its last progress, other than while it merely waited."""
    excused: int = 0
    """Workers lost since then while it merely waited."""
    retried: bool = False
    """The step took workers down, and a person let it be tried again; there was no progress since."""
    deleted: tuple[int, ...] = ()
    """Turns that were deleted from the ledger, by their `Started`; see `conversation.shown`."""
    title: str | None = None
    """The title that the model gave it; None: the model was not asked, empty: it gave none."""

    @property
    def running_turn(self) -> Turn | None:
        """The turn, while it has not ended."""
        return self.turn if self.turn and not self.turn.ended else None

    @property
    def trace(self) -> str:
        """The trace of the turn; empty before the first one."""
        return self.turn.trace if self.turn else ""

    @property
    def has_thinking(self) -> bool:
        """Is there a step whose thinking goes back to whoever wrote it?"""
        for entry in reversed(self.transcript):
            if isinstance(entry, Step):
                return entry.source != ""  # each step after such a one names its source too
        return False

    def maker_of(self, seq: int) -> str:
        """The session that recorded this event first: in a branch, what came before the fork is its origin's. 0: an
        event that is not recorded yet."""
        for nth, origin in enumerate(self.origins):
            if 0 < seq <= min(one.after for one in self.origins[nth:]):
                return origin.session
        return self.id

    def is_inherited(self, call: Open) -> bool:
        """Whether the call was made in the session of which this one is a branch: there it may have been run."""
        return self.maker_of(call.seq) != self.id

    def is_own(self, turn: Turn) -> bool:
        """Whether a turn is the session's own user's: another one may write in the same conversation."""
        return self.is_own_user(turn.user)

    def is_own_user(self, user: str | None) -> bool:
        return is_same_user(self.owner, self.user, user)

    @property
    def is_running(self) -> bool:
        return self.turn is not None and not self.turn.ended

    @property
    def due_calls(self) -> list[Open]:
        return [call for call in self.open.values() if call.is_due]

    @property
    def next_calls(self) -> list[Open]:
        return calls_to_run(self.open.values()) if self.open else []

    @property
    def is_suspect(self) -> bool:
        """Whether a worker was lost during the current step, however often it was tried anew."""
        calls = self.open.values()
        return self.lost > 0 or self.retried or any((call.lost or call.retried) and call.is_due for call in calls)

    @property
    def is_blamed(self) -> bool:
        """Whether the next worker that it loses would be the last, or a person let it be tried again."""
        due = self.due_calls
        most_lost = max([self.lost, *(call.lost for call in due)])
        return most_lost >= MOST_LOST - 1 or self.retried or any(call.retried for call in due)

    @property
    def is_hopeless(self) -> bool:
        """Whether so many workers were lost, with no call as the cause, that the step is not retried unasked; or
        somebody was asked, and gave it up."""
        turn = self.running_turn
        return (self.lost >= MOST_LOST or (turn is not None and turn.is_given_up)) and not self.due_calls

    @property
    def questions(self) -> list[Open]:
        return [call for call in self.open.values() if call.call_kind == "ask"]

    @property
    def client_calls(self) -> list[Open]:
        """Calls whose results the client has to send."""
        return [call for call in self.open.values() if call.is_client]

    @property
    def client_ids(self) -> dict[str, Open]:
        """The same, by the ids under which the client knows them."""
        return {fingerprint.client_id(self.id, call.call): call for call in self.client_calls}

    @property
    def awaits_agents(self) -> bool:
        return any(call.call_kind == "agent" for call in self.open.values())

    @property
    def uncertain(self) -> list[Open]:
        return [call for call in self.open.values() if call.uncertain]

    @property
    def unapproved(self) -> list[Open]:
        return [call for call in self.open.values() if call.approve_by]

    @property
    def undecided_calls(self) -> list[Open]:
        """What waits for a person's decision: approvals, unknown outcomes, or the step that lost its workers."""
        doubtful = (call for call in self.uncertain if not call.probed)
        return [*self.unapproved, *doubtful, *(call for call in self.open.values() if call.is_step)]

    @property
    def wake_at(self) -> datetime | None:
        """The next timeout: when the first call without approval is denied."""
        return min((call.approve_by for call in self.unapproved if call.approve_by), default=None)

    @property
    def can_move(self) -> bool:
        """Whether a worker can advance the session now, without waiting for a person or a sub-agent."""
        turn = self.turn
        if turn is None or turn.ended:
            return bool(self.queue)
        return not (self.open and are_waiting(self.open))

    @property
    def can_step(self) -> bool:
        """Whether its agent can be advanced now: probes are asked without it."""
        if not self.is_running:
            return bool(self.queue)
        for call in self.open.values():
            if call.is_due:
                return True
        return not self.open

    @property
    def latest_turn(self) -> Turn:
        """The running turn, or the last one; ValueError before the first."""
        if self.turn is None:
            raise ValueError(f"the session {self.id!r} has not started a turn")
        return self.turn

    @property
    def lacks_title(self) -> bool:
        """Whether a worker is to ask the model for a title: the turn has its answer, and nothing else is to do."""
        turn = self.turn
        if turn is None or self.title is not None or self.queue or self.lost >= MOST_LOST:
            return False
        return turn.wants_title and turn.ended == "COMPLETED"

    @property
    def stage(self) -> Literal["plan", "research", "synthesize"]:
        """The stage of the task: plan, then research, then the answer."""
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
        return any(use.role == "plans" and isinstance(use.outcome, Output) for step in self.steps for use in step.uses)

    @property
    def steps(self) -> list[Step]:
        """The steps of the current turn, the newest first."""
        found = []
        for entry in reversed(self.transcript):
            if type(entry) is Step:
                found.append(entry)
            elif type(entry) is PromptEntry:
                break
        return found

    @property
    def uses(self) -> list[Use]:
        """The calls of all its turns."""
        return [use for entry in self.transcript if isinstance(entry, Step) for use in entry.uses]

    @property
    def client_text(self) -> str | None:
        """All content that a client gets until the session stops: texts of the replies, then the answer or question."""
        words = self.closing_text
        return None if words is None or self.turn is None else joined_text(self.turn.reply_texts, words)

    @property
    def closing_text(self) -> str | None:
        """The text that tells a client why the session stopped: the answer, the oldest question, or calls to decide."""
        if self.turn is None:
            return None
        if self.state is State.WAITING_FOR_CLARIFICATION:
            # A client that has calls to run gets these first, and no words.
            return "" if self.client_calls else self.questions[0].question
        if self.state is State.WAITING_FOR_APPROVAL:
            return decision_text([self.undecided(call) for call in self.undecided_calls], self.id)
        return self.turn.answer if self.turn.ended == "COMPLETED" or self.turn.code == AGENT_FAILED else None

    def undecided(self, call: Open) -> Undecided:
        """An open call as a person is asked to decide it."""
        return Undecided(
            tool=call.tool,
            call=call.call,
            arguments=call.arguments,
            is_uncertain=call.uncertain,
            is_step=call.is_step,
            takes_workers=call.takes_workers,
            doubt=call.doubt,
            in_chat=self.turn is not None and self.turn.approve_in_chat,
        )

    @property
    def rest_mark(self) -> str | None:
        """The fingerprint by which a client that resends the whole conversation finds the session at this point."""
        if self.is_running and not self.can_move and (ids := self.client_ids):
            return fingerprint.of_calls(ids)
        return self.text_mark

    @property
    def text_mark(self) -> str | None:
        """The fingerprint of the conversation up to here, as its texts alone give it."""
        text = self.client_text
        if text is None or self.turn is None or not self.turn.chain:
            return None
        return fingerprint.grown(self.turn.chain, [("assistant", text)])

    @property
    def state(self) -> State:
        if self.turn is None:
            return State.CANCELLED if self.withdrawn and not self.queue else State.INITED
        if self.turn.ended:
            return State(self.turn.ended)
        if not self.open or not are_waiting(self.open):
            return State.RESEARCHING
        if self.questions or self.client_calls:
            return State.WAITING_FOR_CLARIFICATION
        if self.undecided_calls:
            return State.WAITING_FOR_APPROVAL
        return State.WAITING_FOR_AGENT


def ended_turn(before: Session, after: Session) -> Turn | None:
    """The turn that has ended between `before` and `after`, if there is one."""
    turn = after.turn
    if turn is None or not turn.ended:
        return None
    was_over = before.turn is not None and before.turn.prompt == turn.prompt and before.turn.ended
    return None if was_over else turn


def is_same_user(owner: str, known: str | None, user: str | None) -> bool:
    """Whether the user of a request is that of its session. None: yes; an empty name means the owner."""
    return user is None or user == known or (user.strip() or owner) == ((known or "").strip() or owner)


def are_waiting(calls: Mapping[str, Open]) -> bool:
    """Whether there are open calls, and a worker can neither run one of them nor ask its probe."""
    for call in calls.values():
        if call.is_due or call.probed:
            return False
    return bool(calls)


def calls_to_run(calls: Iterable[Open]) -> list[Open]:
    """The open calls to run now: all that are due; on the last retry one by one, to find which one crashes workers."""
    due = [call for call in calls if call.is_due]
    for call in due:
        if call.lost >= MOST_LOST - 1:
            return [call]
    return due


def is_thought(transcript: Sequence[Entry]) -> bool:
    """Whether the last step was a reasoning phase."""
    last = transcript[-1] if transcript else None
    return isinstance(last, Step) and last.phase == "reasoning"
