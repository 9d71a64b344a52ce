"""What followers of a session are told: events and pieces of a reply; and the reply that is being written."""

from datetime import datetime
from typing import Literal

import msgspec

from longhouse.journal.events import Recorded
from longhouse.journal.session import Session
from longhouse.runtime.bus.growing_text import GrowingText


class Facts(msgspec.Struct, frozen=True):
    """Events that were just recorded; a follower uses them only if they directly follow what it has."""

    recorded: tuple[Recorded, ...]
    more_follow: bool = False
    """The turn goes on: whoever follows it may wait a moment for what comes next."""
    session: Session | None = None
    """The session after them: whoever follows it in the same process does not add it up a second time."""


class Fragment(msgspec.Struct, frozen=True, tag=True):
    """A piece of a reply that is still streaming, dropped once the reply is recorded; or why it is tried again."""

    after: int
    """The journal head at which the step was decided."""
    fence: int
    kind: Literal["content", "reasoning", "retry"]
    offset: int
    text: str
    until: datetime | None = None
    """Of a retry: the session waits for a budget of its key, which is full again then."""


class JournalGrew(msgspec.Struct, frozen=True, tag=True):
    """The journal grew: a follower reads it, unless it already has it up to `head`."""

    head: int | None = None


class SubagentsChanged(msgspec.Struct, frozen=True, tag=True):
    """A sub-agent's journal changed: whoever follows the sub-agents reads them again."""

    more_follow: bool = False
    """As of `Facts`."""


class Gone(msgspec.Struct, frozen=True, tag=True):
    """The session was deleted: there is nothing left to follow."""


class Written(msgspec.Struct, frozen=True, tag=True):
    """What another process has written of a reply until now: who follows from here has its beginning."""

    after: int
    fence: int
    content: str
    reasoning: str


Item = Facts | Fragment | JournalGrew | SubagentsChanged | Gone | Written


class Draft(msgspec.Struct, frozen=True):
    """What is written so far of a reply, for followers that subscribe in the middle."""

    after: int
    fence: int
    content: str = ""
    reasoning: str = ""


class GrowingDraft:
    """A reply that is being written."""

    __slots__ = ("after", "content", "fence", "reasoning")

    def __init__(self, after: int, fence: int, content: str = "", reasoning: str = "") -> None:
        self.after, self.fence = after, fence
        self.content, self.reasoning = GrowingText(content), GrowingText(reasoning)

    @property
    def step(self) -> tuple[int, int]:
        return self.after, self.fence

    def begins_with(self, content: str, reasoning: str) -> bool:
        return str(self.content).startswith(content) and str(self.reasoning).startswith(reasoning)

    @property
    def so_far(self) -> Draft:
        return Draft(self.after, self.fence, str(self.content), str(self.reasoning))
