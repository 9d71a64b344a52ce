"""What an agent has heard, done and been told: the transcript, as the fold of a journal."""

import msgspec

from longhouse.journal import events
from longhouse.journal.events import Outcome
from longhouse.journal.messages import Content, Message


class _Entry(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    pass


class Heard(_Entry, frozen=True, kw_only=True, tag="Heard"):
    """A prompt as it entered the transcript: the task of a turn, on the day the turn started."""

    seq: int
    """Of its `Started`: a prompt may have waited behind a turn, and the transcript is in the order of its seqs."""
    content: Content
    date: str
    form: int = 0
    """As in its `Started`."""


class Use(_Entry, frozen=True, kw_only=True):
    """One call of a step and, once it is there, its outcome."""

    call: str
    tool: str
    role: str = ""
    """Of the tool, as in its `Called`."""
    arguments: str
    outcome: Outcome | None = None
    question: str = ""
    effect: events.Effect = "read"
    date: str = ""
    """The day on which a person has answered; empty in turns of the first form."""


class Step(_Entry, frozen=True, kw_only=True, tag="Step"):
    """A reply of the model and the calls it led to; calls and outcomes stay in pairs by construction."""

    seq: int
    text: str = ""
    uses: tuple[Use, ...] = ()
    phase: str = ""
    problem: str = ""
    thought: bool = False
    """Is the text structured reasoning, not words?"""
    answer: str = ""
    """What the turn ended with, where it ended with this step."""
    asides: tuple[Content, ...] = ()
    """What the user said while calls of this step waited for a decision."""


class Told(_Entry, frozen=True, kw_only=True, tag="Told"):
    """Messages that came along with a prompt: what was said before this session knew of it."""

    seq: int
    messages: tuple[Message, ...]


class Summary(_Entry, frozen=True, kw_only=True, tag="Summary"):
    seq: int
    text: str


Entry = Heard | Step | Told | Summary
