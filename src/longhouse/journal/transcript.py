"""The entries of a session's transcript: prompts, steps with tool calls, imported messages, summaries."""

import msgspec

from longhouse.journal import events
from longhouse.journal.events import Outcome
from longhouse.journal.messages import Content, Message


class _Entry(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, weakref=True):
    """What is made of an entry may be kept for as long as there is the entry."""


class PromptEntry(_Entry, frozen=True, kw_only=True, tag="PromptEntry"):
    """The prompt of a turn, dated by the day the turn started."""

    seq: int
    """The seq of its `Started`: a prompt may have waited for a turn to end, and the transcript is ordered by seq."""
    content: Content
    date: str
    form: int = 0
    """As in the turn's `Started`."""


class Use(msgspec.Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """One call of a step and, once it has returned, its outcome."""

    call: str
    tool: str
    role: str = ""
    """The role of the tool, as in its `Called`."""
    arguments: str
    outcome: Outcome | None = None
    question: str = ""
    effect: events.Effect = "read"
    date: str = ""
    """The day on which a person answered; empty in turns of form 0."""
    extra: str = ""
    """As in its `ProviderCall`."""


class Step(_Entry, frozen=True, kw_only=True, tag="Step"):
    """A model reply and its calls; each call is stored with its outcome, so they cannot get separated."""

    seq: int
    text: str = ""
    uses: tuple[Use, ...] = ()
    phase: str = ""
    problem: str = ""
    thought: bool = False
    """Whether the text is structured reasoning instead of plain text."""
    answer: str = ""
    """The answer of the turn, if the turn ended with this step."""
    asides: tuple[Content, ...] = ()
    """Messages of the user while calls of this step waited for a decision."""
    source: str = ""
    """Who wrote it, if its thinking goes back there; as `extra` in its `Replied`."""
    reasoning: str = ""
    """The thinking that goes back."""
    extra: str = ""
    signed: dict[str, str] = {}
    """The `extra` of its calls, by their provider ids."""


class ImportedMessages(_Entry, frozen=True, kw_only=True, tag="ImportedMessages"):
    """Messages sent with a prompt: the conversation before this session."""

    seq: int
    messages: tuple[Message, ...]


class Summary(_Entry, frozen=True, kw_only=True, tag="Summary"):
    seq: int
    text: str


Entry = PromptEntry | Step | ImportedMessages | Summary
