"""Turns for protocols other than chat: a message is sent and followed in the way that chat requests are."""

import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

import msgspec
import pydantic
from starlette.types import Scope

from longhouse.api import wire
from longhouse.api.caller import Caller
from longhouse.api.openai.completions import last_activity
from longhouse.api.openai.session_resolver import SessionResolver
from longhouse.api.openai.turn_handle import TurnHandle
from longhouse.api.openai.turn_stream import TurnStream, follow_turn
from longhouse.errors import CallerError
from longhouse.journal.session import AGENT_FAILED, Session, State
from longhouse.runtime.bus.local import Bus
from longhouse.runtime.inbox import Inbox
from longhouse.store import journals
from longhouse.store import sessions as session_store
from longhouse.store.catalog.catalog import Catalog
from longhouse.store.database import Database

PASSED_ON: Final = ("traceparent", "idempotency-key")
"""Headers that mean here what they mean for chat."""
NAMESPACE: Final = uuid.UUID("5b0c3c1e-64f5-4d35-9a4b-2a6f0b2f8d51")
"""Of conversations that are named after the idempotency key of their first message."""


class TurnEnd(msgspec.Struct, frozen=True):
    """Where a turn has stopped: with an answer, with what it asks a person, or with an error."""

    session: Session
    text: str = ""
    error: CallerError | None = None
    asks: str = ""
    """The name of the question or the waiting call; empty if the turn waits for nobody."""
    waiting_for: Literal["", "clarification", "approval"] = ""
    is_yes_or_no: bool = False
    """A call waits to be approved or denied, and nothing else decides on it."""
    address: str = ""
    """The session's page in the console."""

    @property
    def state(self) -> State:
        """The session's state; a question of a sub-agent counts as its own."""
        waiting = {"clarification": State.WAITING_FOR_CLARIFICATION, "approval": State.WAITING_FOR_APPROVAL}
        return waiting.get(self.waiting_for, self.session.state)

    @property
    def has_failed(self) -> bool:
        turn = self.session.turn
        return self.error is not None or (not self.asks and turn is not None and turn.code == AGENT_FAILED)


@dataclass(frozen=True, slots=True)
class Turns:
    """What the MCP server and A2A send messages with."""

    db: Database
    bus: Bus
    catalog: Catalog
    resolver: SessionResolver

    @property
    def inbox(self) -> Inbox:
        return self.resolver.inbox

    async def send(
        self,
        caller: Caller,
        model: str,
        text: str,
        *,
        conversation: str = "",
        reply_to: str = "",
        headers: Mapping[str, str],
        sent: Any = None,
    ) -> TurnHandle:
        """Sends a message to a template, in this conversation or a new one, or to a session.

        `sent`: what the client has sent, and sends again if it repeats the request; by default all of the above.
        """
        caller.writes()
        key = headers.get("idempotency-key")
        # A repeated request without a conversation must name the same one.
        new = uuid.uuid5(NAMESPACE, f"{caller.owner}/{key}") if key else uuid.uuid4()
        metadata = {"reply_to": reply_to} if reply_to else {"conversation_id": conversation or str(new)}
        body = {"model": model, "messages": [{"role": "user", "content": text}], "metadata": metadata}
        encoded = encoded_text(body if sent is None else sent)
        try:
            request = wire.ChatRequest.model_validate(body)
        except pydantic.ValidationError as error:
            raise wire.validation_error(error) from None
        passed_on = {name: value for name in PASSED_ON if (value := headers.get(name)) is not None}
        return await self.resolver.attach(caller, request, encoded, passed_on)

    async def is_repeated(self, caller: Caller, headers: Mapping[str, str]) -> bool:
        """Whether a request with this idempotency key was accepted before."""
        key = headers.get("idempotency-key")
        return key is not None and await session_store.request_by_key(self.db, caller.owner, key) is not None

    async def find(self, caller: Caller, agent: str, conversation: str) -> Session | None:
        """The caller's session with this agent in a conversation."""
        found = await session_store.find(self.db, owner=caller.owner, conversation=conversation, agent=agent)
        return await journals.load(self.db, found) if found else None

    async def owned(self, caller: Caller, session_id: str, agent: str) -> Session | None:
        """The caller's session of this id, if it is one with this agent."""
        row = await session_store.session(self.db, session_id, caller.owner) if "\x00" not in session_id else None
        return await journals.load(self.db, row.id, row.head) if row and row.agent == agent else None

    def follow(self, scope: Scope, handle: TurnHandle, *, shows_drafts: bool = False) -> TurnStream:
        """Follows a turn until its request is over. Called right after the commit, it misses nothing."""
        stream = follow_turn(scope, self.db, self.bus, handle)
        stream.shows_drafts = shows_drafts
        return stream


def newest(session: Session) -> TurnHandle:
    """The newest turn of a session, as a request finds it that sends nothing: running, queued or ended."""
    trace = session.queue[-1].prompt.trace if session.queue else session.trace
    return TurnHandle(session, trace, is_behind=True)


def end_of(stream: TurnStream, text: str) -> TurnEnd:
    """Where a turn that was followed to its end has stopped; `text`: the content that its pieces had."""
    session, turn, address = stream.session, stream.session.turn, stream.address
    if stream.error:
        return TurnEnd(session, text, stream.error, address=address)
    if stream.handle.passed_on_to or (turn and turn.ended and turn.trace == stream.handle.trace):
        return TurnEnd(session, text, address=address)
    told: Mapping[str, Any] = last_activity(stream)
    open_call = stream.question.call if stream.question else session.open.get(told["call_id"])
    is_yes_or_no = open_call is not None and open_call.question_kind == "approval"
    waiting: dict[str, Any] = {"asks": told["name"], "waiting_for": told["waiting_for"]}
    return TurnEnd(session, text, **waiting, is_yes_or_no=is_yes_or_no, address=address)


def ended(session: Session) -> TurnEnd:
    """Where the last turn of a session has ended."""
    turn = session.latest_turn
    if turn.ended == "COMPLETED" or turn.code == AGENT_FAILED:
        return TurnEnd(session, session.client_text or "")
    if turn.ended == "CANCELLED":
        return TurnEnd(session, error=CallerError("the turn was cancelled", status=409, code="cancelled"))
    return TurnEnd(session, error=CallerError(turn.error or "the turn failed", status=500, code=turn.code))


def encoded_text(value: Any) -> bytes:
    """JSON that can be stored: refuses NUL characters and halves of characters."""
    try:
        encoded = msgspec.json.encode(value)
    except UnicodeEncodeError:
        raise CallerError("The text has half of a character (a lone surrogate), which cannot be stored.") from None
    wire.decode(encoded)
    return encoded
