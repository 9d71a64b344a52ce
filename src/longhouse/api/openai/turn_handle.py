"""The handle of a committed chat request: the turn that its client follows, and the session at that moment."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

from longhouse.journal.session import Session
from longhouse.search.router import Routed
from longhouse.store.database import Database
from longhouse.store.delegation import tree


@dataclass(frozen=True, slots=True)
class TurnHandle:
    """A committed request: the turn to follow, and the session right after the request was appended."""

    session: Session
    trace: str
    is_behind: bool = False
    """The event was appended by an earlier request, or with others: the journal may have grown since."""
    routed: Routed | None = None
    """The chosen template, if the router chose it."""
    answers_beneath: bool = False
    """The message went to a sub-agent: this session's journal does not contain it."""
    seen_heads: Mapping[str, int] = field(default_factory=dict)
    """Sub-agent session -> the head of its journal when a question was answered: earlier events are not shown again."""
    is_aside: bool = False
    """The message waits for a decision on a call: the response says so at once."""
    is_own_user: bool = True
    """Does the session belong to the user of the request?"""

    @property
    def version(self) -> int | None:
        """The template version of the turn; None: the version that is active when the turn begins."""
        turn = self.session.turn
        if turn and turn.trace == self.trace:
            return turn.version or None
        asked = (waiting.prompt.version for waiting in self.session.queue if waiting.prompt.trace == self.trace)
        return next(asked, None)

    @property
    def chain(self) -> str:
        """The fingerprint of all that the client has sent so far; empty if unknown."""
        turn = self.session.turn
        if turn and turn.trace == self.trace:
            return turn.chain
        return next((one.prompt.chain for one in self.session.queue if one.prompt.trace == self.trace), "")


async def seen_heads(db: Database, session: Session, at: datetime | None = None) -> Mapping[str, int]:
    """How far the journals of sub-agents were shown before a question of this session is answered.

    If the session waits for a person only, they were shown up to the moment when it began to wait, though sub-agents
    may have worked on since.
    """
    is_alone = session.turn is not None and not session.turn.prompted.root and not session.awaits_agents
    return await tree.heads(db, session, session.updated_at if is_alone else at)
