"""The facts of a session's life. Their shapes are for ever: rows stay as written, old ones are lifted while reading."""

from collections.abc import Callable
from datetime import datetime
from typing import Any, Final, Literal, get_args

import msgspec

from longhouse.errors import UnknownShape
from longhouse.journal.messages import Content, Message
from longhouse.journal.roles import FORM, role_of

Side = Literal["root", "sub"]
Effect = Literal["read", "idempotent", "once"]
CallKind = Literal["tool", "agent", "ask"]
Cleanable = Literal["conversation", "context", "artifacts"]
Decision = Literal["approve", "deny", "happened", "did_not_happen", "give_up"]
"""What a person may say of a call."""
INTERRUPTED: Final = " (interrupted)"
"""What follows the name of a worker that broke off in the middle of a step and said so."""


class _Value(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    pass


class Sampling(_Value, frozen=True, kw_only=True):
    """What the client asked of the model for one turn; None leaves it to the template."""

    temperature: float | None = None
    top_p: float | None = None
    max_tokens: int | None = None
    seed: int | None = None
    stop: tuple[str, ...] = ()
    response_format: str | None = None
    """As JSON text, in the client's own key order."""


class ReplyTo(_Value, frozen=True, kw_only=True):
    """The open call of a parent that this prompt answers when its turn ends."""

    session: str
    call: str


class Limits(_Value, frozen=True, kw_only=True):
    """The budgets of one turn."""

    max_iterations: int
    max_clarifications: int
    time_budget: float
    """Seconds of work; time spent waiting for people does not count."""
    max_searches: int | None = None
    tool_budget: int | None = None
    """Calls of tools that are not for finishing."""
    token_budget: int | None = None


class SharedBudget(_Value, frozen=True, kw_only=True):
    """What all agents beneath the one at the top may use up together; None: as much as they like."""

    tool_budget: int | None = None
    token_budget: int | None = None


class Rights(_Value, frozen=True, kw_only=True):
    """What a turn may not use, whatever its template says; handed down to sub-agents, and only ever narrowed."""

    denied: tuple[str, ...] = ()
    max_risk: Literal["low", "medium", "high"] = "high"


class ProviderCall(_Value, frozen=True, kw_only=True):
    """A tool call as the model wrote it."""

    id: str
    name: str
    arguments: str


class Usage(_Value, frozen=True, kw_only=True):
    prompt_tokens: int = 0
    completion_tokens: int = 0
    total_tokens: int = 0
    cached_tokens: int = 0


class Selection(_Value, frozen=True, kw_only=True):
    """How the tools of a step were chosen, where not all that are permitted may be offered."""

    query: str = ""
    """What was searched for, as far as it is worth keeping; empty where nothing was."""
    stage: str = ""
    scores: dict[str, float] = {}
    """Of tools that the search found, offered or not. They rank within this step; without one, a tool was not found."""
    left_out: tuple[str, ...] = ()
    """Permitted tools for which there was no place, the next in line first."""
    more: int = 0
    """Left out beside those that are named."""


class Output(_Value, frozen=True, kw_only=True, tag="Output"):
    content: str


class Fault(_Value, frozen=True, kw_only=True, tag="Fault"):
    """A failure is an outcome too, for the agent to read."""

    code: str
    message: str


Outcome = Output | Fault


class _Fact(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="kind"):
    pass


class Opened(_Fact, frozen=True, kw_only=True, tag="Opened"):
    """A session began."""

    agent: str
    version: int
    owner: str
    user: str | None = None
    conversation: str
    side: Side = "root"
    label: str = ""


class Prompted(_Fact, frozen=True, kw_only=True, tag="Prompted"):
    """A message for this agent, from the user or from another agent."""

    trace: str
    content: tuple[Content, ...]
    sender: str = "user"
    reply_to: ReplyTo | None = None
    prior: tuple[Message, ...] = ()
    system: str | None = None
    sampling: Sampling | None = None
    version: int | None = None
    chain: str = ""
    """The fingerprint of all that the client had said up to here (see fingerprint.py); empty for agents."""
    depth: int = 0
    """How many agents stand between the user and this one."""
    root: str = ""
    """The session at the top, which the user talks to; empty for a prompt of the user."""
    rights: Rights | None = None
    """Those of the agent that asks."""
    budget: Limits | None = None
    """What is left to the agent that asks: its helper has no more."""
    purse: SharedBudget | None = None
    shared: tuple[Message, ...] = ()
    """What was said to the agent that asks, as far as it shares that; shown in this turn only."""
    contexts: dict[str, tuple[Message, ...]] = {}
    """Histories of sub-agents, by name, that a client keeps itself and brings along."""
    named: tuple[str, ...] = ()
    """Whose histories the client has brought along, told to those beneath: the histories stay at the top."""
    ephemeral: str = ""
    """What the labels of these sub-agents begin with."""
    aside: bool = False
    """Said while calls of the running turn waited for a decision: the agent hears it with their outcomes."""


class Started(_Fact, frozen=True, kw_only=True, tag="Started"):
    """A worker took the prompt: what the turn may use is fixed here."""

    trace: str
    prompt: int
    version: int
    instance: str
    limits: Limits
    rights: Rights | None = None
    cleaned: tuple[Cleanable, ...] = ()
    """What of the session so far this turn begins without."""
    date: str
    form: int = 0
    """How the requests of this turn are composed, so that they can be composed again; 0: as the first releases did."""
    approve_in_chat: bool = False
    """May the user of the session decide on calls by a word in the chat?"""


class Replied(_Fact, frozen=True, kw_only=True, tag="Replied"):
    """The model's finished message."""

    text: str = ""
    reasoning: str = ""
    calls: tuple[ProviderCall, ...] = ()
    usage: Usage | None = None
    phase: str = ""
    thought: str = ""
    """Structured reasoning, where the reply held it beside the choice of a tool."""
    problem: str = ""
    """Why the reply could not be read; the model is told so."""
    said: int = 0
    """Characters of the text, from its beginning, that were shown to the client as content."""
    finish: str = ""
    model: str = ""
    offered: tuple[str, ...] = ()
    """Tools (name@version) added to the offered set by this step, in order."""
    withdrawn: tuple[str, ...] = ()
    selection: Selection | None = None
    """None: all that was permitted was offered."""
    recalled: tuple[str, ...] = ()
    digest: str = ""
    """Of the request as sent, so that one composed again can be compared."""


class Called(_Fact, frozen=True, kw_only=True, tag="Called"):
    """The intent to use a tool; written before anything happens."""

    call: str
    provider_id: str = ""
    tool: str
    version: int = 1
    arguments: str
    effect: Effect = "read"
    deadline: datetime | None = None
    call_kind: CallKind = "tool"
    question: str = ""
    """What a call of kind `ask` shows to the person."""
    approve_by: datetime | None = None
    """Set: a person must approve the call before it begins; past this moment it is denied."""
    role: str = ""
    """Of the tool, see roles.py."""

    def __post_init__(self) -> None:
        if not self.role and (role := role_of(self.tool)):
            msgspec.structs.force_setattr(self, "role", role)

    @property
    def is_work(self) -> bool:
        """Is it worth showing beside what the agent says? Thoughts, answers and questions are shown as such."""
        return self.role not in FORM and not self.question


class Returned(_Fact, frozen=True, kw_only=True, tag="Returned"):
    """A call ended; success and failure are both outcomes."""

    call: str
    outcome: Outcome
    by: str = ""
    chain: str = ""
    """As in `Prompted`: an answer is something the client said."""
    writes: dict[str, Any] = {}
    """What the tool set in the context."""
    adds: dict[str, Any] = {}
    """What it added there: items of a list, entries of a mapping, counts. Calls side by side do not undo each other."""
    spent: Usage | None = None
    """Tokens that a sub-agent used up for this outcome; beside them its calls of tools, and the time it worked."""
    calls: int = 0
    seconds: float = 0.0


class Decided(_Fact, frozen=True, kw_only=True, tag="Decided"):
    """What was decided on a call that stays open: by a person, or by the worker that had to make it."""

    call: str
    decision: Decision | Literal["unknown"]
    """`unknown`: it was begun, its answer was lost, and a person must say what became of it."""
    by: str
    comment: str = ""
    via: Literal["", "chat"] = ""
    """Where it was said, if not at the route for it."""
    chain: str = ""
    """As in `Prompted`, where it was said in the chat."""


class Condensed(_Fact, frozen=True, kw_only=True, tag="Condensed"):
    """History up to and including `upto` is now represented by this summary."""

    upto: int
    summary: str
    usage: Usage | None = None
    """What the summary has cost."""


class Spent(_Fact, frozen=True, kw_only=True, tag="Spent"):
    """A reply came to nothing and was paid for all the same; the step is tried again."""

    usage: Usage
    reason: str = ""


class Noted(_Fact, frozen=True, kw_only=True, tag="Noted"):
    """A fact worth keeping."""

    text: str
    cites: tuple[int, ...] = ()


class Stored(_Fact, frozen=True, kw_only=True, tag="Stored"):
    """A file of this session."""

    path: str
    digest: str
    media_type: str
    size: int = 0
    call: str = ""
    """The call that made it."""


class Resumed(_Fact, frozen=True, kw_only=True, tag="Resumed"):
    """Another worker took over from one that is gone."""

    worker: str
    previous: str
    unbegun: tuple[str, ...] = ()
    """Calls that were surely not begun: nobody need be asked what became of them."""

    @property
    def is_loss(self) -> bool:
        """Was a worker lost? Not where it lives and broke off, to leave or for want of Postgres."""
        return self.previous != self.worker and not self.previous.endswith(INTERRUPTED)


class Finished(_Fact, frozen=True, kw_only=True, tag="Finished"):
    answer: str


class Failed(_Fact, frozen=True, kw_only=True, tag="Failed"):
    reason: str
    code: str = "failed"


class Cancelled(_Fact, frozen=True, kw_only=True, tag="Cancelled"):
    trace: str
    by: str


Event = (
    Opened
    | Prompted
    | Started
    | Replied
    | Called
    | Returned
    | Decided
    | Condensed
    | Spent
    | Noted
    | Stored
    | Resumed
    | Finished
    | Failed
    | Cancelled
)

OUTSIDE: Final = (Opened, Prompted, Returned, Decided, Cancelled)
"""What gateways, parents, approvers and operators may append; they never cost the holder its reply."""


class Recorded(msgspec.Struct, frozen=True, kw_only=True):
    """An event in its place in the journal."""

    seq: int
    at: datetime
    event: Event
    trace: str = ""
    worker: str = ""
    fence: int = 0


KINDS: Final[dict[str, type[Event]]] = {kind.__name__: kind for kind in get_args(Event)}
VERSIONS: Final = dict.fromkeys(KINDS, 1)
"""The newest version of each kind's shape; a kind that changes raises its own, and says how the old one is lifted."""
Lift = Callable[[dict[str, Any]], dict[str, Any]]
LIFTS: Final[dict[tuple[str, int], Lift]] = {}
"""(kind, version) -> a function that reads that old body as the next version."""

MEANS_MORE: Final = 2
"""The version of a body whose meaning an older process would miss: it must not read it as version 1."""

_decoder: Final[msgspec.json.Decoder[Event]] = msgspec.json.Decoder(Event)
_known: Final = (*VERSIONS.items(), (Prompted.__name__, MEANS_MORE), (Resumed.__name__, MEANS_MORE))
_current: Final = {f'{{"v":{version},"kind":"{kind}"'.encode() for kind, version in _known}


def encode(event: Event) -> str:
    """The body of a journal row, its shape's version first."""
    return f'{{"v":{_version_of(event)},{msgspec.json.encode(event)[1:].decode()}'


def _version_of(event: Event) -> int:
    match event:
        case Prompted(aside=True):
            return MEANS_MORE  # an older process would start a turn with it
        case Resumed(unbegun=unbegun) if unbegun:
            return MEANS_MORE  # an older process would ask a person about calls that never began
    return VERSIONS[kind_of(event)]


def decode(body: str | bytes) -> Event:
    """The event of a stored body, lifted to the newest shape."""
    raw = body.encode() if isinstance(body, str) else body
    is_current = raw[: raw.find(b",", 7)] in _current
    try:
        return _decoder.decode(raw if is_current else _lifted(raw))
    except msgspec.DecodeError as error:
        raise UnknownShape(f"this process does not know an event of the journal: {error}") from error


def _lifted(raw: bytes) -> bytes:
    body = msgspec.json.decode(raw, type=dict[str, Any])
    kind, version = str(body.get("kind")), body.get("v")
    newest = VERSIONS.get(kind)
    while type(version) is int and version != newest and (lift := LIFTS.get((kind, version))):
        body, version = lift(body), version + 1
    if version is None or version != newest:
        raise UnknownShape(f"the journal holds {kind!r} in version {version!r}; this process knows version {newest}")
    return msgspec.json.encode(body)


def kind_of(event: Event) -> str:
    return type(event).__name__


def call_of(event: Event) -> str | None:
    return event.call if isinstance(event, Called | Returned | Decided) else None


def reply_to_of(event: Event) -> str | None:
    if isinstance(event, Prompted) and event.reply_to:
        return f"{event.reply_to.session}:{event.reply_to.call}"
    return None
