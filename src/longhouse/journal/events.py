"""The journal's event types. Stored rows are never rewritten: old versions are upgraded when they are read."""

from collections.abc import Callable
from datetime import datetime
from typing import Any, Final, Literal, get_args

import msgspec

from longhouse.errors import UnknownShape
from longhouse.journal.messages import Content, Message
from longhouse.journal.roles import FORM, role_of

Side = Literal["root", "sub", "external"]
"""`external`: interactions that were added from outside; such a session is never run."""
Effect = Literal["read", "idempotent", "once"]
CallKind = Literal["tool", "agent", "ask", "step", "client"]
"""`client`: a function that the client runs itself; the call is open until the client sends the result.
`step`: no call, but a step that lost its workers; it is open while a person is asked, and is never `Called`."""
Cleanable = Literal["conversation", "context", "artifacts", "query_context", "working_memory"]
"""`query_context`: the chunks of working memory; `working_memory`: its outlines too."""
Collected = Literal["user", "agent", "tool", "llm", "knowledge"]
"""What takes part in an interaction of the ledger."""
Decision = Literal["approve", "deny", "happened", "did_not_happen", "give_up"]
"""The decisions that a person can make on a call."""
BY_MEMORY: Final = "memory"
BY_PROBE: Final = "probe:"
"""Begins the `by` of what a probe has said, before its name."""
INTERRUPTED: Final = " (interrupted)"
"""Suffix of the name of a worker that interrupted a step itself and recorded it."""


class _Value(msgspec.Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """Not looked through for cyclic garbage, as all that journals are made of: frozen JSON has no cycles."""


class Sampling(_Value, frozen=True, kw_only=True):
    """The client's sampling parameters for one turn; None: the template's value."""

    temperature: float | None = None
    top_p: float | None = None
    max_tokens: int | None = None
    seed: int | None = None
    stop: tuple[str, ...] = ()
    response_format: str | None = None
    """As JSON text, in the client's own key order."""


class ClientTool(_Value, frozen=True, kw_only=True):
    """A function that the client runs itself."""

    name: str
    description: str = ""
    parameters: str = ""
    """Its JSON Schema as JSON text, in the client's own key order; empty: it takes no arguments."""
    strict: bool = False


class ClientTools(_Value, frozen=True, kw_only=True):
    """What the client offers to run; it holds for the turn, until the client says something else."""

    tools: tuple[ClientTool, ...] = ()
    must_call: tuple[str, ...] = ()
    """The model must call one of these first; empty: it may answer at once."""
    parallel: bool = True
    """Whether one reply may call several of them."""


class ReplyTo(_Value, frozen=True, kw_only=True):
    """The open call of the parent session that gets the result when the turn of this prompt ends."""

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
    """Tool calls, not counting tools that finish the turn."""
    token_budget: int | None = None


class SharedBudget(_Value, frozen=True, kw_only=True):
    """The budget that all sub-agents below the root session share; None: no limit."""

    tool_budget: int | None = None
    token_budget: int | None = None
    root_calls: int = 0
    """The calls that the root session itself had made by then: `tool_budget` is without them."""


class Rights(_Value, frozen=True, kw_only=True):
    """Tools that a turn must not use, whatever its template says; sub-agents inherit it and can only narrow it."""

    denied: tuple[str, ...] = ()
    max_risk: Literal["low", "medium", "high"] = "high"


class ProviderCall(_Value, frozen=True, kw_only=True):
    """A tool call as the model wrote it."""

    id: str
    name: str
    arguments: str
    extra: str = ""
    """What the endpoint wants back with the call, as JSON text; nobody else reads it."""


class Origin(_Value, frozen=True, kw_only=True):
    """A session of which another one is a branch, and the last event that the branch has of it."""

    session: str
    after: int
    left_out: tuple[str, ...] = ()
    """Memory files of the conversation that were changed since, and that the branch is without."""


class Usage(_Value, frozen=True, kw_only=True):
    prompt_tokens: int = 0
    completion_tokens: int = 0
    total_tokens: int = 0
    cached_tokens: int = 0
    reasoning_tokens: int = 0
    """Those of the completion that were spent on thinking."""


class Selection(_Value, frozen=True, kw_only=True):
    """How the tools of a step were selected, where not all permitted tools could be offered."""

    query: str = ""
    """The search query, shortened; empty if there was no search."""
    stage: str = ""
    scores: dict[str, float] = {}
    """Scores of tools that the search found, offered or not; comparable within this step. No score: not found."""
    left_out: tuple[str, ...] = ()
    """Permitted tools that did not fit into the offered set, the highest ranked first."""
    more: int = 0
    """How many more were left out, beside those in `left_out`."""


class NotedChunk(_Value, frozen=True, kw_only=True):
    """A piece of text that working memory keeps."""

    content: str
    source: str
    relevance_score: float
    chunk_type: Literal["search_result", "page_content", "table"] = "search_result"
    metadata: dict[str, Any] = {}
    key: str = ""
    """The key of the note that it came with; in a note itself empty."""


class ExternalInteraction(_Value, frozen=True, kw_only=True):
    """An interaction that was added from outside; its content is the text of the note."""

    id: str
    trace: str
    source: str
    source_type: Collected
    target: str
    target_type: Collected
    type: Literal["input", "output"]
    at: datetime
    pair_id: str = ""


class Output(_Value, frozen=True, kw_only=True, tag="Output"):
    content: str


class Fault(_Value, frozen=True, kw_only=True, tag="Fault"):
    """A failed call: the agent reads the error as the outcome."""

    code: str
    message: str


Outcome = Output | Fault


class _Fact(msgspec.Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True, tag_field="kind"):
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
    origins: tuple[Origin, ...] = ()
    """Of a branch: the session that it was forked from is the last one, and where that was a branch, the ones before
    it stand before. The events up to there are copies, under the numbers that they have there."""


class Prompted(_Fact, frozen=True, kw_only=True, tag="Prompted"):
    """A message for this agent, from the user or from another agent."""

    trace: str
    content: tuple[Content, ...]
    sender: str = "user"
    user: str | None = None
    """The user it is from, empty if the request names none; None: the user of the session. Sub-agents inherit it."""
    reply_to: ReplyTo | None = None
    prior: tuple[Message, ...] = ()
    system: str | None = None
    sampling: Sampling | None = None
    version: int | None = None
    chain: str = ""
    """The fingerprint of the client's conversation up to here (see fingerprint.py); empty for prompts of agents."""
    depth: int = 0
    """The delegation depth: the number of agents between the user and this one."""
    root: str = ""
    """The root session, which the user talks to; empty for a prompt of the user."""
    rights: Rights | None = None
    """The rights of the calling agent."""
    budget: Limits | None = None
    """The calling agent's remaining budget: the sub-agent cannot have more."""
    shared_budget: SharedBudget | None = msgspec.field(default=None, name="purse")
    shared: tuple[Message, ...] = ()
    """The part of the calling agent's conversation that it shares; shown in this turn only."""
    contexts: dict[str, tuple[Message, ...]] = {}
    """Histories of sub-agents, by name, that the client stores itself and sends with the request."""
    named: tuple[str, ...] = ()
    """Names of the agents whose histories the client sent; sub-agents get the names, the root session the histories."""
    ephemeral: str = ""
    """The label prefix of these sub-agents."""
    traceparent: str = ""
    """The trace context of the client's request (W3C), if it had one; prompts of agents repeat it."""
    aside: bool = False
    """Sent while calls of the running turn waited for a decision, or for the client: the agent reads it together with
    their outcomes."""
    client_tools: ClientTools | None = None
    """The functions that the client runs itself; None: it has named none, and an aside changes nothing."""
    schedule: str = ""
    """The schedule that sent it; empty: somebody did."""


class Started(_Fact, frozen=True, kw_only=True, tag="Started"):
    """A worker started a turn with the prompt: the turn's version, limits and rights are fixed here."""

    trace: str
    prompt: int
    version: int
    instance: str
    limits: Limits
    rights: Rights | None = None
    cleaned: tuple[Cleanable, ...] = ()
    """The parts of the session that were reset for this turn."""
    date: str
    form: int = 0
    """The version of request composition, so that requests can be reproduced; 0: as in the first releases."""
    approve_in_chat: bool = False
    """Whether the session's user may decide on calls by a message in the chat."""
    collect: tuple[Collected, ...] | None = None
    """What the ledger collects of this turn; None: everything."""
    wants_title: bool = False
    """Whether the model is asked for the session's title once the turn has ended."""


class Replied(_Fact, frozen=True, kw_only=True, tag="Replied"):
    """The model's finished message."""

    text: str = ""
    reasoning: str = ""
    returns_reasoning: bool = False
    """Whether the endpoint wants its reasoning back: it came as `reasoning_content`."""
    extra: str = ""
    """What the endpoint wants back with the message, as JSON text; nobody else reads it."""
    source: str = ""
    """Who was asked, as a digest, where thinking is given back: its endpoint, and the family of its model."""
    calls: tuple[ProviderCall, ...] = ()
    usage: Usage | None = None
    phase: str = ""
    thought: str = ""
    """Structured reasoning, where the reply contained it beside the chosen tool."""
    problem: str = ""
    """Why the reply could not be parsed; the model gets this as an error message."""
    streamed_chars: int = msgspec.field(default=0, name="said")
    """How many leading characters of the text were streamed to the client as content."""
    finish: str = ""
    model: str = ""
    offered: tuple[str, ...] = ()
    """Tools (name@version) added to the offered set by this step, in order."""
    withdrawn: tuple[str, ...] = ()
    selection: Selection | None = None
    """None: all permitted tools were offered."""
    recalled: tuple[str, ...] = ()
    """Ids of the items from other conversations that the request showed."""
    digest: str = ""
    """The digest of the request as sent, to compare with a reproduced request."""
    attempts: int = 0
    """Model calls that failed before this reply came."""
    troubled_at: datetime | None = None
    """When the first of them failed."""


class Called(_Fact, frozen=True, kw_only=True, tag="Called"):
    """A tool call; written before the tool runs."""

    call: str
    provider_id: str = ""
    tool: str
    version: int = 1
    arguments: str
    effect: Effect = "read"
    deadline: datetime | None = None
    call_kind: CallKind = "tool"
    question: str = ""
    """The text that a call of kind `ask` shows to the person."""
    approve_by: datetime | None = None
    """If set, a person must approve the call before it runs; after this time it is denied."""
    role: str = ""
    """The role of the tool, see roles.py."""

    def __post_init__(self) -> None:
        if not self.role and (role := role_of(self.tool)):
            msgspec.structs.force_setattr(self, "role", role)

    @property
    def is_work(self) -> bool:
        """Whether the call is shown as tool activity. Reasoning, answers and questions are shown in their own form."""
        return self.role not in FORM and not self.question


class Returned(_Fact, frozen=True, kw_only=True, tag="Returned"):
    """A call ended, with its result or its error."""

    call: str
    outcome: Outcome
    by: str = ""
    """Who gave it, if not the tool: as in `Decided`, or `agent`; BY_MEMORY: working memory did, and no tool ran."""
    chain: str = ""
    """As in `Prompted`: an answer to a question is part of the client's conversation."""
    user: str | None = None
    """As in `Prompted`, for an answer to a question; and for the result of a sub-agent whose question was answered."""
    writes: dict[str, Any] = {}
    """Values that the tool set in the context."""
    adds: dict[str, Any] = {}
    """Values that it added: list items, mapping entries, counts. Parallel calls do not overwrite each other."""
    spent: Usage | None = None
    """Tokens that a sub-agent used for this outcome; `calls` and `seconds` are its tool calls and working time."""
    calls: int = 0
    seconds: float = 0.0
    client_tools: ClientTools | None = None
    """What the client offers from here on, where it sent the result and that has changed."""


class Decided(_Fact, frozen=True, kw_only=True, tag="Decided"):
    """A decision on a call that stays open: by a person, or by the worker that was to run it."""

    call: str
    decision: Decision | Literal["unknown"]
    """`unknown`: the call was started, its result was lost, and a person must say whether it took effect. For a step,
    which has an id of its own: it lost its workers, and a person must say whether it is tried again."""
    by: str
    """Who has made it: the id of the API key (of early releases also the user that a request named), `user` where no
    keys are set, `cli`, a worker, or BY_PROBE with the name of a probe."""
    user: str | None = None
    """The user that the request named, if it did: what a client says, not who it is."""
    comment: str = ""
    ended: bool = False
    """With `unknown`: the process of the tool has ended, so that the call can take effect no more."""
    probed: bool = False
    """With `unknown`: a probe is asked first, and a person only if it cannot tell, which a second `unknown` says."""
    via: Literal["", "chat"] = ""
    """Where the decision was made, if not through the decision route."""
    chain: str = ""
    """As in `Prompted`, for decisions made in the chat."""


class Condensed(_Fact, frozen=True, kw_only=True, tag="Condensed"):
    """History up to and including `upto` is now represented by this summary."""

    upto: int
    summary: str
    usage: Usage | None = None
    """The tokens that the summary cost."""
    deleted: int = 0
    """How many deleted turns its writer knew of: one that knew of fewer than there are may tell of one."""


class Spent(_Fact, frozen=True, kw_only=True, tag="Spent"):
    """What a turn used besides its steps: tokens of a reply that was discarded, whose step is retried, or of a title;
    or time in which nobody worked."""

    usage: Usage
    reason: str = ""
    title: str | None = None
    """The title that the model gave the session; empty if it gave none, and is not asked again."""
    waited: float = 0.0
    """Seconds between two events in which nobody worked, or which a clock has added: less than none, if it was put
    back. What passes before a `Resumed` is never work, and is not said."""


class Noted(_Fact, frozen=True, kw_only=True, tag="Noted"):
    """Something that the agent keeps: a note, the result of a reading call, or an interaction from outside."""

    text: str = msgspec.field(default_factory=str)
    """Always written, even if it is empty: earlier releases cannot read a note without it."""
    cites: tuple[int, ...] = ()
    about: Literal["", "outline", "search", "page", "interaction", "outdated"] = ""
    """Empty: a note of its own. A result of a call is noted with that call's `Returned`, after it; that what was read
    has changed since is noted at the start of a turn."""
    call: str = ""
    tool: str = ""
    """The tool of the call, name@version."""
    key: str = ""
    """Identifies calls that ask for the same: a digest of the tool and its arguments."""
    revision: str = ""
    """The state of what was read; a result of another state is not given again."""
    subject: str = ""
    """The document of an outline, or the id of an interaction."""
    chapters: tuple[str, ...] = ()
    chunks: tuple[NotedChunk, ...] = ()
    interaction: ExternalInteraction | None = None
    """In a session of side `external`: the interaction itself."""
    deleted: tuple[int, ...] = ()
    """With `outdated`: turns, by their `Started`, that were deleted from the ledger. The agent is not shown them any
    more, nor what was read up to them."""


class Stored(_Fact, frozen=True, kw_only=True, tag="Stored"):
    """A file of this session."""

    path: str
    digest: str
    media_type: str
    size: int = 0
    call: str = ""
    """The call that made it."""


class Resumed(_Fact, frozen=True, kw_only=True, tag="Resumed"):
    """A worker took the session over from a previous one."""

    worker: str
    previous: str
    unbegun: tuple[str, ...] = ()
    """Calls that certainly were not started, so no person has to be asked about their outcome."""
    seen_at: datetime | None = None
    """The last heartbeat of the previous worker, where it is known."""
    probed: tuple[str, ...] = ()
    """Calls in doubt whose probes are asked first, and a person only if those cannot tell."""
    excused: bool = False
    """The session merely waited when its worker was lost: it was not the cause."""

    @property
    def counts(self) -> bool:
        """Whether the session may have taken a worker down."""
        return self.is_loss and not self.excused

    @property
    def is_loss(self) -> bool:
        """Whether a worker was lost; false if it is alive and interrupted the step, at shutdown or without Postgres."""
        return self.previous != self.worker and not self.previous.endswith(INTERRUPTED)


class Finished(_Fact, frozen=True, kw_only=True, tag="Finished"):
    answer: str
    refused: bool = False
    """Whether the model refused: the answer is what it said instead of one."""


class Failed(_Fact, frozen=True, kw_only=True, tag="Failed"):
    reason: str
    code: str = "failed"


class Cancelled(_Fact, frozen=True, kw_only=True, tag="Cancelled"):
    trace: str
    by: str


ENDS: Final = (Finished, Failed, Cancelled)
"""The events that end a turn."""

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

OUTSIDE: Final = (Opened, Prompted, Returned, Decided, Noted, Cancelled)
"""Events that API, parent sessions, approvers and operators may append; the lease holder's reply stays valid."""


class Recorded(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """An event with its position in the journal."""

    seq: int
    at: datetime
    event: Event
    trace: str = ""
    worker: str = ""
    fence: int = 0


KINDS: Final[dict[str, type[Event]]] = {kind.__name__: kind for kind in get_args(Event)}
VERSIONS: Final = dict.fromkeys(KINDS, 1)
"""Newest schema version of each kind; a kind that changes raises its version and adds an upgrade to `UPGRADES`."""
Upgrade = Callable[[dict[str, Any]], dict[str, Any]]
UPGRADES: Final[dict[tuple[str, int], Upgrade]] = {}
"""(kind, version) -> a function that upgrades a body of that version to the next version."""

MEANS_MORE: Final = 2
"""The version of a body that an older process would misunderstand, so it must not read it as version 1."""
OFFERS_TOOLS: Final = 3
"""The version of a prompt with the client's tools: an older process would begin its turn without them."""

_decoder: Final[msgspec.json.Decoder[Event]] = msgspec.json.Decoder(Event)
_known: Final = (
    *VERSIONS.items(),
    *((kind.__name__, MEANS_MORE) for kind in (Opened, Prompted, Called, Resumed)),
    (Prompted.__name__, OFFERS_TOOLS),
)
_current: Final = {f'{{"v":{version},"kind":"{kind}"'.encode() for kind, version in _known}


# Every event that is written passes through these. They compare types: `isinstance` takes six times as long to say that
# a struct is of another type.


def encode(event: Event) -> str:
    """The body of a journal row, its schema version first."""
    return f'{{"v":{_version_of(event)},{msgspec.json.encode(event)[1:].decode()}'


def _version_of(event: Event) -> int:
    means_more = False
    if type(event) is Called:
        means_more = event.call_kind == "client"  # an older process would run it, or wait for a person
    elif type(event) is Prompted:
        if event.client_tools is not None:
            return OFFERS_TOOLS
        means_more = event.aside  # an older process would start a turn with it
    elif type(event) is Opened:
        means_more = bool(event.origins)  # an older process would take the calls of its origin for calls of its own
    elif type(event) is Resumed:
        means_more = bool(event.unbegun)  # an older process would ask a person about calls that never started
    return MEANS_MORE if means_more else VERSIONS[type(event).__name__]


def decode(body: str | bytes) -> Event:
    """The event of a stored body, upgraded to the newest version."""
    raw = body.encode() if isinstance(body, str) else body
    is_current = raw[: raw.find(b",", 7)] in _current
    try:
        return _decoder.decode(raw if is_current else _upgraded(raw))
    except msgspec.DecodeError as error:
        raise UnknownShape(f"this process does not know an event of the journal: {error}") from error


def _upgraded(raw: bytes) -> bytes:
    body = msgspec.json.decode(raw, type=dict[str, Any])
    kind, version = str(body.get("kind")), body.get("v")
    newest = VERSIONS.get(kind)
    while type(version) is int and version != newest and (upgrade := UPGRADES.get((kind, version))):
        body, version = upgrade(body), version + 1
    if version is None or version != newest:
        raise UnknownShape(f"the journal holds {kind!r} in version {version!r}; this process knows version {newest}")
    return msgspec.json.encode(body)


def kind_of(event: Event) -> str:
    return type(event).__name__


def call_of(event: Event) -> str | None:
    if type(event) is Called or type(event) is Returned or type(event) is Decided:
        return event.call
    return None


def reply_to_of(event: Event) -> str | None:
    if type(event) is Prompted and event.reply_to:
        return f"{event.reply_to.session}:{event.reply_to.call}"
    return None
