"""A chat request in its place: the turn that its client follows, and the session as it was just then."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

from longhouse.journal.session import Session
from longhouse.search.router import Routed
from longhouse.store.database import Database
from longhouse.store.delegation import tree


@dataclass(frozen=True, slots=True)
class TurnHandle:
    """A request in its place: the turn to follow, and the session as it was right after the request came in."""

    session: Session
    trace: str
    is_behind: bool = False
    """Placed by an earlier request, or among others: more may have happened since."""
    routed: Routed | None = None
    """Who was chosen, where the choice was ours."""
    answers_beneath: bool = False
    """What was said went to an agent beneath: this session's journal does not know of it."""
    seen_heads: Mapping[str, int] = field(default_factory=dict)
    """Agent beneath -> how far its journal went when a question was answered: that is not shown again."""
    is_aside: bool = False
    """What was said waits for a decision on something else: the client is told so at once."""
    is_own_user: bool = True
    """Is the session that of the user who speaks?"""

    @property
    def version(self) -> int | None:
        """The template's version that the turn is on, or is to be on; None: the active one, when it begins."""
        turn = self.session.turn
        if turn and turn.trace == self.trace:
            return turn.version or None
        asked = (waiting.prompt.version for waiting in self.session.queue if waiting.prompt.trace == self.trace)
        return next(asked, None)

    @property
    def chain(self) -> str:
        """The fingerprint of all that the client had said up to here; empty where it is not known."""
        turn = self.session.turn
        if turn and turn.trace == self.trace:
            return turn.chain
        return next((one.prompt.chain for one in self.session.queue if one.prompt.trace == self.trace), "")


async def seen_heads(db: Database, session: Session, at: datetime | None = None) -> Mapping[str, int]:
    """How far the journals beneath were shown before a question of this session is answered.

    Of one that waits for nobody but a person they were shown up to its rest, though others may have worked on since.
    """
    is_alone = session.turn is not None and not session.turn.root and not session.awaits_agents
    return await tree.heads(db, session, session.updated_at if is_alone else at)
