"""Routes compatible with SGR-Agent Core: /agents, /agents/{id}/state, /agents/{id}/provide_clarification."""

from typing import Any

from fastapi import APIRouter, Request, Response
from pydantic import Field, StrictStr

from longhouse.api import auth, wire
from longhouse.api.inflight import VISIT
from longhouse.api.json_route import strict_router
from longhouse.api.openai.completions import Completion
from longhouse.api.openai.turn_handle import TurnHandle
from longhouse.api.openai.turn_stream import follow_turn
from longhouse.api.pagination import MAX_PAGE
from longhouse.api.sessions.routes import Sessions, snapshot_of
from longhouse.api.sessions.waiting import Question, shown, waiting_status
from longhouse.api.streaming import ChatStream
from longhouse.errors import AlreadyReturned, CallerError
from longhouse.journal.session import Session, State
from longhouse.runtime.bus import Bus
from longhouse.store import sessions as views
from longhouse.store.database import Database

OLD_STATES = {
    State.WAITING_FOR_AGENT: State.RESEARCHING,
    State.WAITING_FOR_APPROVAL: State.WAITING_FOR_CLARIFICATION,
}
"""Our states that SGR-Agent Core lacks -> the nearest state that it has."""


class Clarifications(wire.Strict):
    """The request body: a text, several texts, or messages, of which those of the user are used."""

    clarifications: StrictStr | wire.Many[StrictStr] | None = None
    messages: wire.Many[wire.ChatMessage] | None = Field(default=None, min_length=1, max_length=wire.MAX_MESSAGES)

    @property
    def text(self) -> str:
        if self.messages:
            return "\n".join(message.text for message in self.messages if message.role == "user")
        if isinstance(self.clarifications, list):
            return "\n".join(self.clarifications)
        return self.clarifications or ""


def routes(db: Database, bus: Bus, sessions: Sessions) -> APIRouter:
    router = strict_router("SGR-Agent Core", auth.user)

    @router.get("/agents")
    async def list_agents(caller: auth.User) -> Response:
        """The newest sessions, in the format of SGR-Agent Core's list of agents."""
        rows = await views.sessions(db, views.SessionQuery(owner=caller.owner), before=None, limit=MAX_PAGE)
        agents = [_listed(row) for row in await shown(db, rows)]
        return wire.Json({"agents": agents, "total": len(agents)})

    @router.get("/agents/{agent_id}/state")
    async def get_state(caller: auth.User, agent_id: str) -> Response:
        """The context snapshot of a session."""
        session = await sessions.load(caller, agent_id)
        snapshot = snapshot_of(session, await waiting_status(db, session))
        shown_as = {**snapshot, "state": _old(snapshot["state"])}
        return wire.Json({"agent_id": session.id, "task": _task(session), **shown_as})

    @router.post(
        "/agents/{agent_id}/provide_clarification",
        openapi_extra=wire.example(clarifications="Oslo"),
    )
    async def provide_clarification(
        caller: auth.User, agent_id: str, given: Clarifications, request: Request
    ) -> Response:
        """Answers the oldest open question, also one of a sub-agent, and streams the rest of the turn."""
        if not given.text:
            raise CallerError("Send the answer under 'clarifications' or 'messages'.", param="clarifications")
        session = await sessions.load(caller, agent_id)
        below = await waiting_status(db, session)
        asked = [Question(session, call) for call in session.questions]
        asked += [one for one in below.questions if one.call.call_kind == "ask"]
        if session.turn is None or not asked:
            raise CallerError("There is no open question to answer.", status=409, code="already_settled")
        try:
            attached = await sessions.turns.answer(asked[0].session, asked[0].call.call, given.text)
        except AlreadyReturned:
            raise CallerError("This question was answered already.", status=409, code="already_settled") from None
        if asked[0].session is not session:
            attached = TurnHandle(session=session, trace=session.turn.trace, seen_heads=attached.seen_heads)
        telling = follow_turn(request.scope[VISIT], db, bus, attached)
        return ChatStream(Completion(telling=telling, include_usage=False, ignored=[]).chunks())

    return router


def _old(state: str) -> str:
    return OLD_STATES.get(State(state), State(state))


def _listed(row: views.SessionRow) -> dict[str, Any]:
    return {"agent_id": row.id, "task": row.task, "state": _old(row.state), "created_at": row.created_at}


def _task(session: Session) -> str | None:
    return session.turn.task if session.turn else None
