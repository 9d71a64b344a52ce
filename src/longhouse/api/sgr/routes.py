"""Routes compatible with SGR-Agent Core: lists, states and clarifications of agents, and the agent log."""

from dataclasses import replace
from datetime import datetime
from typing import TypedDict

from fastapi import Request
from pydantic import Field, StrictStr

from longhouse.api import auth, wire
from longhouse.api.json_route import refuses, strict_router
from longhouse.api.openai.completions import ChatEvents, Completion
from longhouse.api.openai.turn_handle import append_reply
from longhouse.api.openai.turn_stream import follow_turn
from longhouse.api.pagination import MAX_PAGE
from longhouse.api.sessions.routes import SESSION_PATH, ContextSnapshot, Held, snapshot_of
from longhouse.api.sessions.waiting import settled, shown, waiting_status
from longhouse.api.streaming import ChatStream
from longhouse.errors import AlreadyReturned, CallerError
from longhouse.integrations.agent_log import AgentLog, log_of
from longhouse.journal.session import State
from longhouse.store import sessions as session_store

OLD_STATES = {
    State.WAITING_FOR_AGENT: State.RESEARCHING,
    State.WAITING_FOR_APPROVAL: State.WAITING_FOR_CLARIFICATION,
}
"""Our states that SGR-Agent Core lacks -> the nearest state that it has."""


class Clarifications(wire.StrictModel):
    """The request body: a text, several texts, or messages, of which those of the user are used."""

    clarifications: StrictStr | wire.Many[StrictStr] | None = None
    messages: wire.Many[wire.ChatMessage] | None = Field(default=None, min_length=1, max_length=wire.MAX_MESSAGES)
    user: wire.UserName = None

    @property
    def text(self) -> str:
        if self.messages:
            return "\n".join(message.text for message in self.messages if message.role == "user")
        if isinstance(self.clarifications, list):
            return "\n".join(self.clarifications)
        return self.clarifications or ""


class ListedAgent(TypedDict):
    agent_id: str
    task: str | None
    state: State
    created_at: datetime


class AgentList(TypedDict):
    agents: list[ListedAgent]
    total: int


class AgentState(ContextSnapshot):
    agent_id: str
    task: str | None


router = strict_router("SGR-Agent Core", auth.user)
log_router = strict_router("Sessions", auth.user)


@router.get("/agents")
async def list_agents(caller: auth.User, sessions: Held) -> wire.Json[AgentList]:
    """The newest sessions, in the format of SGR-Agent Core's list of agents."""
    rows = await session_store.sessions(sessions.db, owner=caller.owner, limit=MAX_PAGE)
    agents: list[ListedAgent] = [
        {"agent_id": row.id, "task": row.task, "state": _old(row.state), "created_at": row.created_at}
        for row in await shown(sessions.db, rows)
    ]
    return wire.Json({"agents": agents, "total": len(agents)})


@router.get("/agents/{agent_id}/state")
async def get_state(caller: auth.User, sessions: Held, agent_id: str) -> wire.Json[AgentState]:
    """The context snapshot of a session."""
    session = await sessions.load(caller, agent_id)
    snapshot = snapshot_of(session, await waiting_status(sessions.db, session))
    task = session.turn.task if session.turn else None
    return wire.Json({"agent_id": session.id, "task": task, **snapshot, "state": _old(snapshot["state"])})


@router.post(
    "/agents/{agent_id}/provide_clarification",
    openapi_extra=wire.example(clarifications="Oslo"),
    responses=refuses(409),
)
async def provide_clarification(
    caller: auth.User, sessions: Held, agent_id: str, given: Clarifications, request: Request
) -> ChatStream[ChatEvents]:
    """Answers the oldest open question, also one of a sub-agent, and streams the rest of the turn."""
    if not given.text:
        raise CallerError("Send the answer under 'clarifications' or 'messages'.", param="clarifications")
    session = await sessions.load(caller, agent_id, acts=True)
    status = await waiting_status(sessions.db, session)
    questions = [one for one in status.questions if one.call.call_kind == "ask"]
    if session.turn is None or not questions:
        raise settled("There is no open question to answer.")
    try:
        user = caller.user(given.user) or ""
        handle = await append_reply(sessions.inbox, session, questions[0], given.text, by=caller.decider, user=user)
        handle = replace(handle, is_own_user=session.is_own_user(user))
    except AlreadyReturned:
        raise settled("This question was answered already.") from None
    return ChatStream(Completion(follow_turn(request.scope, sessions.db, sessions.bus, handle)).chunks())


@log_router.get(f"{SESSION_PATH}/log")
async def get_log(caller: auth.User, sessions: Held, session_id: str) -> wire.Json[AgentLog]:
    """The agent's reasoning and calls, step by step: id, model_config, task, toolkit, log."""
    session = await sessions.load(caller, session_id)
    return wire.Json(await log_of(sessions.db, sessions.catalog, session))


def _old(state: str) -> State:
    return OLD_STATES.get(State(state), State(state))
