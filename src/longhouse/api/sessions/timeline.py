"""What happened in a session, for those who look into it: its timeline, its steps, and an export of its whole tree."""

import asyncio
import re
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from datetime import datetime
from typing import Annotated, Any, Final, Literal, TypedDict

import msgspec
from fastapi import Query
from pydantic import Field

from longhouse.agents.strategies.protocol import Request
from longhouse.api import auth, pagination, wire
from longhouse.api.http import streaming
from longhouse.api.http.json_route import of_app, strict_router
from longhouse.api.pagination import Omittable
from longhouse.api.sessions.replay import RequestTokens, StepRecord, request_at, steps_from, tokens_of
from longhouse.api.sessions.routes import SESSION_PATH, Held, described
from longhouse.api.sessions.sse import fact
from longhouse.api.sessions.waiting import waiting_status
from longhouse.journal.events import Fault, Usage, kind_of
from longhouse.journal.session import Open
from longhouse.journal.timeline import Takeover, TimelineStep, TimelineTurn, TimelineUse, TimelineWait
from longhouse.store import journals
from longhouse.store.database import Database
from longhouse.store.delegation import tree
from longhouse.store.lists import session_counters
from longhouse.store.lists.timelines import SessionTimeline, TreeTimelines, timelines_of
from longhouse.store.sessions import SessionRow
from longhouse.tools.toolbox import Toolbox

SHOWN: Final = 2_000
"""Characters of a task, a text, arguments and a result in a timeline."""
WEIGHED: Final = 40
"""Steps of a page whose requests are composed again, to estimate their tokens: all of a long session would take
seconds."""
EXPORTED_AT_ONCE: Final = 500
"""Events that an export holds in memory."""

router = strict_router("Sessions", auth.user)

Number = Annotated[int, Field(ge=1, le=1_000_000_000), pagination.Digits]


class TimelineQuery(wire.StrictModel):
    turns: Annotated[int, Field(ge=1, le=pagination.MAX_PAGE), pagination.Digits] = Field(
        50, description="How many turns, from the last one back"
    )


class Steps(pagination.Limited):
    before: Omittable[Number] = Field(None, description="Only steps before this one: the `next` of the page before")
    after: Omittable[Number] = Field(None, description="Only steps after this one, as those that came since")


ShownWait = TypedDict("ShownWait", {"from": datetime, "to": datetime | None, "for": str})
ShownTakeover = TypedDict(
    "ShownTakeover", {"at": datetime, "seconds": float | None, "from": str, "to": str, "is_loss": bool}
)


class ShownRetry(TypedDict):
    at: datetime
    reason: str


class TimelineCall(TypedDict):
    call_id: str
    tool: str
    arguments: str
    began_at: datetime | None
    ended_at: datetime | None
    status: Literal["open", "memory", "error", "ok"]
    waiting: Literal["person", "agent", "client"] | None
    result: str | None
    child: str | None
    """The session of the agent that was called."""


class ShownTimelineStep(TypedDict):
    n: int
    began_at: datetime
    replied_at: datetime
    ended_at: datetime | None
    model_seconds: float
    retries: list[ShownRetry]
    text: str
    calls: list[TimelineCall]


class ShownTurn(TypedDict):
    n: int
    trace_id: str
    task: str
    began_at: datetime
    ended_at: datetime | None
    state: str
    answer: str
    steps: list[ShownTimelineStep]
    waits: list[ShownWait]
    takeovers: list[ShownTakeover]


class SessionTurns(TypedDict):
    session_id: str
    agent: str
    label: str
    version: int | None
    state: str
    earlier_turns: int
    turns: list[ShownTurn]


class ShownTimeline(SessionTurns):
    children: dict[str, SessionTurns]
    children_left_out: int


class StepUsage(TypedDict):
    prompt_tokens: int
    completion_tokens: int


class ShownStep(TypedDict):
    """A reply of the model."""

    n: int
    turn: int
    at: datetime
    model: str
    usage: StepUsage
    seconds: float
    tools: list[str]
    """Those that it called."""
    offered: list[str]
    tokens: RequestTokens | None


@router.get(f"{SESSION_PATH}/timeline")
async def get_timeline(
    caller: auth.User, sessions: Held, session_id: str, asked: Annotated[TimelineQuery, Query()]
) -> wire.Json[ShownTimeline]:
    """The last turns of a session: steps, calls, waits, retries and takeovers, each with its times; and below
    `children` the same of the sub-agents that worked for them."""
    row = await sessions.find(caller, session_id)
    found = await timelines_of(sessions.db, row.id, asked.turns)
    if row.id not in found.sessions:
        raise wire.not_found("There is no such session.", code="session_not_found")
    return wire.Json(_tree(row, found))


@router.get(f"{SESSION_PATH}/steps")
async def list_steps(
    caller: auth.User,
    sessions: Held,
    toolbox: Annotated[Toolbox, of_app("toolbox")],
    session_id: str,
    asked: Annotated[Steps, Query()],
) -> wire.Json[pagination.Page[ShownStep]]:
    """The last replies of the model, in order, each with its usage and what it called; the last 40 of a page with the
    estimated tokens of the parts of their requests, which `/steps/{n}/request` has of each. `next` leads to earlier
    ones."""
    row = await sessions.find(caller, session_id)
    counters = await session_counters.counted(sessions.db, {row.id: row.head})
    end = min(asked.before or row.head + 1, counters[row.id].steps + 1)
    first = max(1, end - asked.limit, (asked.after or 0) + 1)
    data = []
    async with aclosing(steps_from(sessions.db, row.id, first)) as steps:
        async for step in steps:
            if step.number >= end:
                break
            is_weighed = step.number >= end - WEIGHED
            request = await request_at(sessions, toolbox.resolve, row.agent, step.asked) if is_weighed else None
            data.append(_step_row(step, request))
            await asyncio.sleep(0)  # composing the request of a long session takes milliseconds
    has_more = first > (asked.after or 0) + 1 and bool(data)
    return wire.Json(pagination.page(data, str(first) if has_more else None))


class LineStream(streaming.EventStream[bytes]):
    """JSON Lines, written as they are read; a browser saves them as a file."""

    media_type = "application/x-ndjson"

    def __init__(self, pieces: AsyncGenerator[bytes, None], name: str) -> None:
        super().__init__(pieces, error=lambda error: _line(wire.envelope_of(error)))
        plain = re.sub(r"[^A-Za-z0-9._-]", "_", name)
        self.headers["content-disposition"] = f'attachment; filename="{plain}"'
        self.headers["x-content-type-options"] = "nosniff"


@router.get(f"{SESSION_PATH}/export")
async def export(caller: auth.User, sessions: Held, session_id: str) -> LineStream:
    """The session and all agents that it called as JSON Lines: each session, then its events."""
    row = await sessions.find(caller, session_id)
    return LineStream(_lines(sessions.db, row.id), f"{row.id}.jsonl")


# The timeline


def _tree(row: SessionRow, found: TreeTimelines) -> ShownTimeline:
    top = found.sessions[row.id]
    below = {one: _session(one, shown) for one, shown in found.sessions.items() if one != row.id}
    # A session that has not begun a turn has the version that it was opened with.
    version = top.version or row.version
    return {**_session(row.id, top), "version": version, "children": below, "children_left_out": found.left_out}


def _session(session_id: str, shown: SessionTimeline) -> SessionTurns:
    turns = [_turn(shown, turn) for turn in shown.turns]
    earlier = shown.timeline.turns_before
    return wire.body_of(SessionTurns, shown, session_id=session_id, earlier_turns=earlier, turns=turns)


def _turn(shown: SessionTimeline, turn: TimelineTurn) -> ShownTurn:
    return {
        "n": turn.number,
        "trace_id": turn.trace,
        "task": turn.task[:SHOWN],
        "began_at": turn.began_at,
        "ended_at": turn.ended_at,
        "state": turn.ended or shown.state,
        "answer": turn.words[:SHOWN],
        "steps": [_step(shown, step) for step in turn.steps],
        "waits": [_wait(wait) for wait in turn.waits],
        "takeovers": [_takeover(one) for one in turn.takeovers],
    }


def _step(shown: SessionTimeline, step: TimelineStep) -> ShownTimelineStep:
    ends = [use.ended_at for use in step.uses]
    is_open = None in ends
    return {
        "n": step.number,
        "began_at": step.began_at,
        "replied_at": step.ended_at,
        "ended_at": None if is_open else max([step.ended_at, *filter(None, ends)]),
        "model_seconds": _seconds(step.began_at, step.ended_at),
        "retries": [wire.body_of(ShownRetry, retry) for retry in step.retries],
        "text": (step.replied.problem or step.replied.text)[:SHOWN],
        "calls": [_call(shown, use) for use in step.uses],
    }


def _call(shown: SessionTimeline, use: TimelineUse) -> TimelineCall:
    called, outcome = use.called, use.outcome
    task = shown.tasks.get(called.call)
    result = None if outcome is None else outcome.message if isinstance(outcome, Fault) else outcome.content
    return {
        "call_id": called.call,
        "tool": called.tool,
        "arguments": called.arguments[:SHOWN],
        "began_at": use.began_at,
        "ended_at": use.ended_at,
        "status": _status(use),
        "waiting": _waiting(shown.timeline.open.get(called.call)),
        "result": None if result is None else result[:SHOWN],
        "child": task[0] if task else None,
    }


def _status(use: TimelineUse) -> Literal["open", "memory", "error", "ok"]:
    if use.outcome is None:
        return "open"
    if use.is_remembered:
        return "memory"
    return "error" if isinstance(use.outcome, Fault) else "ok"


def _waiting(call: Open | None) -> Literal["person", "agent", "client"] | None:
    if call is None or call.is_due:
        return None
    if call.is_client:
        return "client"
    return "person" if call.awaits_person else "agent"


def _wait(wait: TimelineWait) -> ShownWait:
    return {"from": wait.since, "to": wait.until, "for": wait.reason}


def _takeover(one: Takeover) -> ShownTakeover:
    seconds = None if one.seconds is None else round(one.seconds, 3)
    return {"at": one.at, "seconds": seconds, "from": one.previous, "to": one.worker, "is_loss": one.is_loss}


def _seconds(since: datetime, until: datetime) -> float:
    return round(max(0.0, (until - since).total_seconds()), 3)


# Steps


def _step_row(step: StepRecord, request: Request | None) -> ShownStep:
    replied, at = step.asked.replied, step.record.at
    usage = replied.usage or Usage()
    return {
        "n": step.number,
        "turn": step.turn,
        "at": at,
        "model": replied.model,
        "usage": wire.body_of(StepUsage, usage),
        "seconds": _seconds(step.asked.session.updated_at or at, at),
        "tools": [call.name for call in replied.calls],
        "offered": step.asked.tools,
        "tokens": tokens_of(request.body) if request else None,
    }


# The export


async def _lines(db: Database, session_id: str) -> AsyncGenerator[bytes, None]:
    below = sorted(await tree.ever_called(db, session_id) - {session_id})
    for one in (session_id, *below):
        async for piece in _session_lines(db, one):
            yield piece


async def _session_lines(db: Database, session_id: str) -> AsyncGenerator[bytes, None]:
    session = await journals.load(db, session_id)
    status = await waiting_status(db, session)
    yield _line({"object": "session", **described(session, status)})
    seq = 0
    while seq < session.head and (page := await journals.read(db, session_id, seq, EXPORTED_AT_ONCE)):
        kept: Sequence[Any] = [record for record in page if record.seq <= session.head]
        lines = ({"object": "event", "kind": kind_of(one.event), **fact(session_id, one)} for one in kept)
        yield b"".join(map(_line, lines))
        seq = page[-1].seq


def _line(value: Any) -> bytes:
    return msgspec.json.encode(value) + b"\n"
