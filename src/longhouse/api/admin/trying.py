"""Runs one tool outside any session, so that an operator can see what it does before agents use it."""

import time
import uuid
from typing import Annotated, Any, Final, Literal, TypedDict

import msgspec
import structlog
from pydantic import Field

from longhouse import clock
from longhouse.agents.tool import Tool
from longhouse.api import auth, wire
from longhouse.api.admin import docs
from longhouse.api.admin.catalog import Name, VersionNumber
from longhouse.api.caller import Caller
from longhouse.api.http.json_route import of_app, refuses, strict_router
from longhouse.catalog.service import CatalogService
from longhouse.errors import CallerError
from longhouse.journal import events
from longhouse.journal.events import Fault
from longhouse.journal.fold import blank, extended
from longhouse.journal.session import Open, Session
from longhouse.tools.toolbox import Result, Toolbox

log = structlog.get_logger()

AGENT: Final = "try_it"
"""Stands for the agent in what the tool sees."""
MOST_SHOWN: Final = 100_000
"""Characters of a result in the answer."""

TRIED: Final[dict[str, Any]] = {
    "name": "stock_of_item",
    "version": 2,
    "status": "ok",
    "content": "17",
    "error": None,
    "seconds": 0.12,
    "files": [],
}


class TriedError(TypedDict):
    code: str
    message: str


class TriedFile(TypedDict):
    path: str
    media_type: str
    size: int


class TriedOutcome(TypedDict):
    status: Literal["ok", "error"]
    content: str | None
    error: TriedError | None
    files: list[TriedFile]


class TriedTool(TriedOutcome):
    name: str
    version: int
    seconds: float


class Trial(wire.StrictModel):
    arguments: dict[str, Any] = Field(default_factory=dict)
    version: VersionNumber | None = None
    """None: the active version, or the latest if none is active."""
    confirm: bool = False
    """Needed by tools whose effect must not happen twice, and by those that need approval."""


router = strict_router("Admin", auth.admin)


@router.post(
    "/admin/tools/{name}/try",
    openapi_extra=wire.example(arguments={"sku": "A-17"}),
    responses={200: wire.answer("What it returned, or its error.", TRIED), **docs.missing("tool"), **refuses(409)},
)
async def try_tool(
    caller: auth.Admin,
    name: Name,
    asked: Trial,
    toolbox: Annotated[Toolbox, of_app("toolbox")],
    tools: Annotated[CatalogService, of_app("tools")],
) -> wire.Json[TriedTool]:
    """Runs a tool once with these arguments, outside any session: with its timeout, its rate limit and its switch, but
    no journal. A tool with the effect `once`, or one that needs approval, runs only with `confirm`."""
    version = asked.version or (await tools.version(name)).version
    tool = await toolbox.resolve(name, (await tools.version(name, version)).version)
    if tool is None:
        raise CallerError(f"{name} cannot be run by this process.", status=409, code="tool_not_runnable")
    if tool.is_delegated or tool.asks:
        message = f"{name} works only within a session: an agent or a person answers it. Talk to an agent that has it."
        raise CallerError(message, status=409, code="tool_not_runnable")
    if (tool.effect == "once" or tool.needs_approval) and not asked.confirm:
        message = f"{name} has an effect that cannot be taken back: send confirm as true if it is to happen."
        raise CallerError(message, status=409, code="confirm_needed", param="confirm")
    log.info("tool_tried", tool=name, version=version, by=caller.key)
    began = time.perf_counter()
    result = await _performed(toolbox, tool, asked, caller)
    return wire.Json({"name": name, "version": version, **_shown(result), "seconds": time.perf_counter() - began})


async def _performed(toolbox: Toolbox, tool: Tool, asked: Trial, caller: Caller) -> Result:
    arguments = msgspec.json.encode(asked.arguments).decode()
    session = _session(caller, f"{tool.name}@{tool.version}")
    call = Open(call=uuid.uuid4().hex, tool=tool.name, version=tool.version, arguments=arguments, seq=0)
    return await toolbox.perform(call, session, session.latest_turn)


def _session(caller: Caller, ref: str) -> Session:
    """A session that exists for this one call; nothing of it is stored."""
    now, trace = clock.now(), uuid.uuid4().hex
    session = blank(f"{AGENT}_{uuid.uuid4()}")
    limits = events.Limits(max_iterations=1, max_clarifications=0, time_budget=600.0)
    began: tuple[events.Event, ...] = (
        events.Opened(agent=AGENT, version=1, owner=caller.owner, user=caller.owner, conversation=trace),
        events.Prompted(trace=trace, content=(f"Try {ref}.",)),
        events.Started(trace=trace, prompt=2, version=1, instance="", limits=limits, date=now.date().isoformat()),
    )
    return extended(session, began, now)


def _shown(result: Result) -> TriedOutcome:
    files = [wire.body_of(TriedFile, one, size=len(one.content)) for one in result.made]
    outcome = result.outcome
    if isinstance(outcome, Fault):
        return {"status": "error", "content": None, "error": wire.body_of(TriedError, outcome), "files": files}
    return {"status": "ok", "content": outcome.content[:MOST_SHOWN], "error": None, "files": files}
