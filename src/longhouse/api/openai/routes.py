"""The OpenAI protocol: /v1/chat/completions and /v1/models."""

from collections.abc import Sequence
from typing import Annotated, Final, Literal, NotRequired, TypedDict

from fastapi import APIRouter, Depends, Request

from longhouse.agents.naming import SESSION_ID
from longhouse.agents.template import Template
from longhouse.api import auth, wire
from longhouse.api.http.json_route import JsonRoute, of_app, refuses
from longhouse.api.http.streaming import EventStream
from longhouse.api.openai.background_jobs import BackgroundJobs, is_job
from longhouse.api.openai.completions import ChatCompletion, ChatEvents, completion_of
from longhouse.api.openai.session_resolver import unknown_model
from longhouse.api.openai.turn_stream import STATUSES
from longhouse.api.turns import Turns
from longhouse.errors import CallerError
from longhouse.search.router import AUTO
from longhouse.store import sessions

CREATED = 1_767_225_600
"""The `created` time of the built-in templates (2026-01-01); clients only need some value."""

EXAMPLE: Final = wire.example(model="tool_calling_agent", messages=[{"role": "user", "content": "Hello"}], stream=True)


class ListedModel(TypedDict):
    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    capabilities: NotRequired[str]
    tags: NotRequired[Sequence[str]]


class ModelList(TypedDict):
    object: Literal["list"]
    data: list[ListedModel]


Chatting = Annotated[Turns, of_app("turns")]
Jobs = Annotated[BackgroundJobs | None, of_app("jobs")]
"""None: requests of chat clients for titles and the like are answered by the agent."""
router = APIRouter(tags=["OpenAI"], dependencies=[Depends(auth.user)], route_class=JsonRoute)


@router.post("/v1/chat/completions", openapi_extra=EXAMPLE, responses=refuses(*STATUSES.values()))
async def chat_completions(
    caller: auth.User, chat: wire.ChatRequest, request: Request, turns: Chatting, jobs: Jobs
) -> wire.Json[ChatCompletion] | EventStream[ChatEvents] | wire.Json[wire.Envelope]:
    """Sends a message to an agent. `model` is a template, `template@version`, `auto` or a session id; the `model`
    of the response is the session. Titles, tags and suggestions that chat clients ask for are answered by the
    agent's model alone."""
    if jobs and is_job(chat, request.headers):
        return await jobs.answer(caller, chat)
    handle = await turns.resolver.attach(caller, chat, await request.body(), request.headers)
    turn_stream = turns.follow(request.scope, handle, shows_drafts=True)
    completion = await completion_of(turns.catalog, turn_stream, chat)
    accepts_stream = request.headers.get("accept", "").strip().startswith("text/event-stream")
    streams = accepts_stream if chat.stream is None else chat.stream
    return completion.streamed() if streams else await completion.whole()


@router.get("/v1/models")
async def list_models(caller: auth.User, turns: Chatting) -> wire.Json[ModelList]:
    """The active templates and what they can, and `auto`, which selects one of them."""
    templates = await turns.catalog.templates.active_ones(owner=caller.owner)
    usable = (template for template in templates if caller.may_use(template.name))
    data: list[ListedModel] = [_model(AUTO), *map(_described, usable)]
    return wire.Json({"object": "list", "data": data})


@router.get("/v1/models/{model:path}")
async def get_model(caller: auth.User, model: str, turns: Chatting) -> wire.Json[ListedModel]:
    """One template, or one of your sessions."""
    if model == AUTO:
        return wire.Json(_model(AUTO))
    if SESSION_ID.fullmatch(model):
        row = await sessions.session(turns.db, model, caller.owner)
        if row:
            return wire.Json(_model(row.id, created=int(row.created_at.timestamp())))
    try:
        template, _ = await turns.resolver.template(model, caller.owner)
        caller.uses(template.name)
    except CallerError:
        raise unknown_model(model) from None
    return wire.Json(_model(model))


def _described(template: Template) -> ListedModel:
    meta = template.multi_agent_meta
    return {**_model(template.name), "capabilities": meta.capabilities, "tags": meta.tags}


def _model(name: str, created: int = CREATED) -> ListedModel:
    return {"id": name, "object": "model", "created": created, "owned_by": "longhouse"}
