"""Routes compatible with SGR-Agent Core 0.7: lists, states, clarifications, cancel and delete; and the agent log."""

from datetime import datetime
from typing import Any, Literal, TypedDict, cast

from fastapi import Request
from msgspec.structs import replace
from pydantic import Field

from longhouse.api import auth, wire
from longhouse.api.http.json_route import refuses, strict_router
from longhouse.api.http.streaming import EventStream
from longhouse.api.openai.completions import ChatEvents, completion_of
from longhouse.api.openai.turn_handle import append_reply
from longhouse.api.openai.turn_stream import follow_turn
from longhouse.api.pagination import MAX_PAGE
from longhouse.api.sessions.routes import SESSION_PATH, Held, no_such_session, snapshot_of
from longhouse.api.sessions.waiting import settled, shown, waiting_status
from longhouse.errors import AlreadyReturned, CallerError
from longhouse.integrations.agent_log import AgentLog, log_of
from longhouse.journal.session import State
from longhouse.store import sessions as session_store

OLD_STATES: dict[str, str] = {
    State.WAITING_FOR_AGENT: State.RESEARCHING,
    State.WAITING_FOR_APPROVAL: State.WAITING_FOR_CLARIFICATION,
}
"""Our states that SGR-Agent Core lacks -> the nearest state that it has."""


class Clarifications(wire.StrictModel):
    """The request body: a text, several texts, or messages, of which those of the user are used."""

    clarifications: str | wire.Many[str] | None = None
    messages: wire.Many[wire.ChatMessage] | None = Field(default=None, min_length=1, max_length=wire.MAX_MESSAGES)
    user: wire.UserName = None

    @property
    def text(self) -> str:
        if self.messages:
            return "\n".join(message.text for message in self.messages if message.role == "user")
        if isinstance(self.clarifications, list):
            return "\n".join(self.clarifications)
        return self.clarifications or ""


OldState = Literal["inited", "researching", "waiting_for_clarification", "completed", "failed", "cancelled"]


class TaskMessage(TypedDict):
    role: Literal["user"]
    content: str


class ListedAgent(TypedDict):
    agent_id: str
    task_messages: list[TaskMessage]
    state: OldState
    creation_time: datetime


class AgentList(TypedDict):
    agents: list[ListedAgent]
    total: int


class AgentState(TypedDict):
    agent_id: str
    task_messages: list[TaskMessage]
    state: OldState
    iteration: int
    searches_used: int
    clarifications_used: int
    sources_count: int
    current_step_reasoning: dict[str, Any] | None
    execution_result: str | None


class CancelledAgent(TypedDict):
    agent_id: str
    cancelled: Literal[True]
    state: OldState


class DeletedAgent(TypedDict):
    agent_id: str
    deleted: Literal[True]
    final_state: OldState


router = strict_router("SGR-Agent Core", auth.user)
log_router = strict_router("Sessions", auth.user)


@router.get("/agents")
async def list_agents(caller: auth.User, sessions: Held) -> wire.Json[AgentList]:
    """The newest sessions, in the format of SGR-Agent Core's list of agents."""
    rows = await session_store.sessions(sessions.db, owner=caller.owner, limit=MAX_PAGE)
    agents: list[ListedAgent] = [
        {
            "agent_id": row.id,
            "task_messages": _task_messages(row.task),
            "state": _old(row.state),
            "creation_time": row.created_at,
        }
        for row in await shown(sessions.db, rows)
    ]
    return wire.Json({"agents": agents, "total": len(agents)})


@router.get("/agents/{agent_id}/state")
async def get_state(caller: auth.User, sessions: Held, agent_id: str) -> wire.Json[AgentState]:
    """How far an agent is, in the format of SGR-Agent Core."""
    session = await sessions.load(caller, agent_id)
    snapshot = snapshot_of(session, await waiting_status(sessions.db, session))
    reasoning = snapshot["current_step_reasoning"]
    state: AgentState = {
        "agent_id": session.id,
        "task_messages": _task_messages(session.turn.task if session.turn else None),
        "state": _old(snapshot["state"]),
        "iteration": snapshot["iteration"],
        "searches_used": snapshot["searches_used"],
        "clarifications_used": snapshot["clarifications_used"],
        "sources_count": len(snapshot["sources"]),
        "current_step_reasoning": reasoning if isinstance(reasoning, dict) else None,
        "execution_result": snapshot["execution_result"],
    }
    return wire.Json(state)


@router.post(
    "/agents/{agent_id}/provide_clarification",
    openapi_extra=wire.example(clarifications="Oslo"),
    responses=refuses(409),
)
async def provide_clarification(
    caller: auth.User, sessions: Held, agent_id: str, given: Clarifications, request: Request
) -> EventStream[ChatEvents]:
    """Answers the oldest open question, also one of a sub-agent, and streams the rest of the turn."""
    if not given.text:
        raise CallerError("Send the answer under 'clarifications' or 'messages'.", param="clarifications")
    session = await sessions.load(caller, agent_id, acts=True)
    status = await waiting_status(sessions.db, session)
    questions = [one for one in status.questions if one.call.call_kind == "ask"]
    if session.turn is None or not questions:
        raise settled("There is no open question to answer.")
    caller.uses(questions[0].session.agent)
    try:
        user = caller.user(given.user) or ""
        handle = await append_reply(sessions.inbox, session, questions[0], given.text, by=caller.decider, user=user)
        handle = replace(handle, is_own_user=session.is_own_user(user))
    except AlreadyReturned:
        raise settled("This question was answered already.") from None
    turn_stream = follow_turn(request.scope, sessions.db, sessions.bus, handle)
    return (await completion_of(sessions.catalog, turn_stream)).streamed()


@router.post("/agents/{agent_id}/cancel", responses=refuses(409))
async def cancel_agent(caller: auth.User, sessions: Held, agent_id: str) -> wire.Json[CancelledAgent]:
    """Cancels the running turn, or the next queued one, and those of sub-agents."""
    session = await sessions.load(caller, agent_id, acts=True)
    cancelled = await sessions.inbox.cancel(session, by=caller.decider)
    return wire.Json({"agent_id": session.id, "cancelled": True, "state": _old(cancelled.state)})


@router.delete("/agents/{agent_id}", responses=refuses(409))
async def delete_agent(caller: auth.User, sessions: Held, agent_id: str) -> wire.Json[DeletedAgent]:
    """Cancels what runs, and deletes the session and the sub-agents that it called: none of their content is left."""
    session = await sessions.load(caller, agent_id, acts=True)
    if session.is_running or session.queue:
        session = await sessions.inbox.cancel(session, by=caller.decider)
    if not await sessions.inbox.forget(session.id, caller.owner):
        raise no_such_session()
    return wire.Json({"agent_id": session.id, "deleted": True, "final_state": _old(session.state)})


@log_router.get(f"{SESSION_PATH}/log")
async def get_log(caller: auth.User, sessions: Held, session_id: str) -> wire.Json[AgentLog]:
    """The agent's reasoning and calls, step by step: id, model_config, task, toolkit, log."""
    session = await sessions.load(caller, session_id)
    return wire.Json(await log_of(sessions.db, sessions.catalog, session))


def _old(state: str) -> OldState:
    return cast("OldState", OLD_STATES.get(state, state).lower())


def _task_messages(task: str | None) -> list[TaskMessage]:
    return [] if task is None else [{"role": "user", "content": task}]
