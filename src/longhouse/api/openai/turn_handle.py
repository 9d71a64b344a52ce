"""The handle of a committed chat request: the turn that its client follows, and the session at that moment."""

from collections.abc import Mapping, Sequence
from datetime import datetime

import msgspec
from msgspec.structs import replace

from longhouse.agents.template import Template
from longhouse.api.sessions.waiting import MAX_TEXT, Question
from longhouse.errors import CallerError
from longhouse.journal.events import Decided, Prompted
from longhouse.journal.session import Session, Turn
from longhouse.runtime.inbox import Inbox
from longhouse.search.router import Routed
from longhouse.store.database import Database
from longhouse.store.delegation import tree
from longhouse.store.requests import RequestIdentity
from longhouse.store.sessions import AcceptedRequest


class TurnHandle(msgspec.Struct, frozen=True):
    """A committed request: the turn to follow, and the session right after the request was appended."""

    session: Session
    trace: str
    is_behind: bool = False
    """The event was appended by an earlier request, or with others: the journal may have grown since."""
    routed: Routed | None = None
    """The chosen template, if the router chose it."""
    client_chain: str | None = None
    """The fingerprint of all that the client has sent, if its message went to a sub-agent: this session's journal does
    not contain it."""
    seen_heads: Mapping[str, int] = msgspec.field(default_factory=dict)
    """Sub-agent session -> the head of its journal when a question was answered: earlier events are not shown again."""
    is_aside: bool = False
    """The message waits for a decision on a call: the response says so at once."""
    is_own_user: bool = True
    """Does the session belong to the user of the request?"""
    repeats: AcceptedRequest | None = None
    """The request that this one repeats."""
    template: Template | None = None
    """The active version of the agent that the request names, if it was looked up."""
    passed_on_to: str = ""
    """The sub-agent that the message went to, if the turn of this session has ended without it: nothing is followed."""

    @property
    def version(self) -> int | None:
        """The template version of the turn; None: the version that is active when the turn begins."""
        source = self._source
        return source.version or None if source else None

    @property
    def chain(self) -> str:
        """The fingerprint of all that the client has sent so far; empty if unknown."""
        if self.client_chain is not None:
            return self.client_chain
        return self._source.chain if self._source else ""

    @property
    def offers_tools(self) -> bool:
        """Does the client offer to run functions itself?"""
        return bool(self._source and self._source.client_tools and self._source.client_tools.tools)

    @property
    def _source(self) -> Turn | Prompted | None:
        """The turn of the request, or its prompt while that is queued."""
        turn = self.session.turn
        if turn and turn.trace == self.trace:
            return turn
        return next((one.prompt for one in self.session.queue if one.prompt.trace == self.trace), None)


async def append_reply(
    inbox: Inbox,
    session: Session,
    question: Question,
    reply: str | Sequence[Decided],
    *,
    by: str = "",
    user: str | None = None,
    chain: str | None = None,
    accepted: RequestIdentity | None = None,
) -> TurnHandle:
    """Appends an answer to a question, or decisions on calls of its session; the client follows the turn of `session`,
    whoever asked.

    `by`, `user`: who has given the answer, and whom the request names; a decision has its own.
    Raises AlreadyReturned if another answer came first, and NotThere if a decision finds that the session has moved on.
    An answer that is too long is refused here, before a response has begun.
    """
    if isinstance(reply, str) and len(reply) > MAX_TEXT:
        message = f"An answer has {MAX_TEXT:,} characters at most, and this one has {len(reply):,}: shorten it."
        raise CallerError(message, code="answer_too_long")
    trace, asking, is_own = session.trace, question.session, question.session.id == session.id
    if accepted and not is_own:
        # The client follows this session, although its request is in another journal.
        response = accepted.response
        response = replace(response, followed=session.id, after=session.head) if response else None
        accepted = replace(accepted, follows=trace, response=response)
    own_chain = chain or "" if is_own else ""
    before = await seen_heads(inbox.db, asking)
    if isinstance(reply, str):
        call = question.call.call
        delivered = await inbox.answer(asking, call, reply, user=user, by=by, chain=own_chain, accepted=accepted)
    else:
        first, *also = (replace(one, chain=own_chain) for one in reply)
        delivered = await inbox.decide(asking, first, also=also, accepted=accepted)
    if is_own:
        return TurnHandle(delivered.session, trace, is_behind=delivered.is_behind, seen_heads=before)
    has_ended = session.turn is not None and bool(session.turn.ended)
    passed_on_to = asking.agent if has_ended else ""
    return TurnHandle(session, trace, client_chain=chain, seen_heads=before, passed_on_to=passed_on_to)


async def seen_heads(db: Database, session: Session, at: datetime | None = None) -> Mapping[str, int]:
    """How far the journals of sub-agents were shown before a question of this session is answered.

    If the session waits for a person only, they were shown up to the moment when it began to wait, though sub-agents
    may have worked on since.
    """
    is_alone = session.turn is not None and not session.turn.prompted.root and not session.awaits_agents
    return await tree.heads(db, session, session.updated_at if is_alone else at)
