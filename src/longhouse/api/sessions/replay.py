"""Replay: rebuilds the model request of any step from the journal."""

from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from itertools import takewhile
from typing import Annotated, Final, TypedDict

import msgspec
from msgspec.structs import replace

from longhouse.agents.requests import tokens
from longhouse.agents.strategies.base import AgentRegistry
from longhouse.agents.strategies.protocol import Body, Request
from longhouse.agents.template import Template
from longhouse.agents.tool import Tool
from longhouse.api import auth, wire
from longhouse.api.http.json_route import of_app, refuses, strict_router
from longhouse.api.pagination import Digits
from longhouse.api.sessions.routes import SESSION_PATH, Held, Sessions
from longhouse.errors import CallerError
from longhouse.journal.events import Noted, Recorded, Replied, Started
from longhouse.journal.fold import blank, fold
from longhouse.journal.messages import System
from longhouse.journal.session import Session, Turn
from longhouse.memory.session_memory import SessionMemory
from longhouse.runtime.workers.instances import strategy_of
from longhouse.store import journals
from longhouse.store.capsules import imported as capsules
from longhouse.store.database import Database
from longhouse.tools import client_tools
from longhouse.tools.toolbox import Toolbox

router = strict_router("Sessions", auth.user)

MOST_LATE: Final = 20
"""Interactions beyond these are taken as known to the request."""


@dataclass(frozen=True, slots=True)
class BeforeReply:
    """The session and its turn just before a reply, that reply, and the tools (name@version) it was offered."""

    session: Session
    turn: Turn
    replied: Replied
    offered: Sequence[str]
    seq: int
    """Of the reply."""
    late: int
    """Interactions that were added from outside since the worker's last append: maybe after the request was sent."""
    undeleted: Session | None
    """The session as it was then, where turns of it were deleted since."""

    @property
    def tools(self) -> list[str]:
        """The names of the offered tools."""
        return [ref.rpartition("@")[0] for ref in self.offered]

    @property
    def sessions(self) -> Iterator[Session]:
        """The session, and as it was before each of the late interactions, the last one first, and late deletions."""
        memory, count = self.session.memory, len(self.session.memory.interactions)
        for late in range(min(self.late, count, MOST_LATE) + 1):
            yield replace(self.session, memory=replace(memory, interactions=memory.interactions[: count - late]))
        if self.undeleted:
            yield self.undeleted


class RequestTokens(TypedDict):
    """Estimated tokens of the parts of a request."""

    system: int
    tools: int
    history: int


class ScoredTool(TypedDict):
    name: str
    score: float | None


class ShownSelection(TypedDict):
    """Why these tools were offered and others were not."""

    query: str
    stage: str
    offered: list[ScoredTool]
    left_out: list[ScoredTool]
    more: int


class ReplayedRequest(TypedDict):
    """A request to a model, composed again."""

    request: msgspec.Raw
    digest: str
    matches: bool
    """Whether it is the request that was sent, byte for byte."""
    selection: ShownSelection | None
    tokens: RequestTokens


@router.get(f"{SESSION_PATH}/steps/{{step}}/request", responses=refuses(409))
async def get_request(
    caller: auth.User,
    sessions: Held,
    toolbox: Annotated[Toolbox, of_app("toolbox")],
    session_id: str,
    step: Annotated[int, Digits],
) -> wire.Json[ReplayedRequest]:
    """The model request of the session's n-th reply, byte for byte; stored images are named by digest.

    `selection` says how its tools were chosen, if more were permitted than can be offered; `tokens` estimates what its
    parts weigh.
    """
    row = await sessions.find(caller, session_id)
    asked = await asked_at(sessions.db, row.id, step)
    request = await request_at(sessions, toolbox.resolve, row.agent, asked)
    if request is None:
        name = f"{row.agent}@{asked.turn.version}"
        message = f"This step cannot be composed again: {name} is not known here any more."
        raise CallerError(message, status=409, code="template_not_found")
    return wire.Json(
        {
            "request": msgspec.Raw(request.encoded),
            "digest": request.digest,
            "matches": request.digest == asked.replied.digest,
            "selection": _selection(asked.replied, asked.tools),
            "tokens": tokens_of(request.body),
        }
    )


Resolve = Callable[[str, int], Awaitable[Tool | None]]
"""Finds a version of a tool."""


async def request_at(sessions: Sessions, resolve: Resolve, agent: str, asked: BeforeReply) -> Request | None:
    """The model request of a step; None if its agent is not known here any more."""
    capsule = await capsules.capsule_of(sessions.db, asked.session.id)
    template = await template_then(sessions, capsule, agent, asked.turn.version)
    if template is None or AgentRegistry.get(template.base_agent_class) is None:
        return None
    if capsule:
        return await _imported(sessions, capsule, template, asked)
    return (await composed(sessions.memory, asked, template, await offered_then(asked, resolve)))[0]


async def template_then(sessions: Sessions, capsule: str | None, agent: str, version: int) -> Template | None:
    """A version of an agent: of this house, or the one that came with a capsule."""
    templates = sessions.catalog.templates
    if not capsule:
        return await templates.find(agent, version)
    described = await capsules.descriptor(sessions.db, capsule, "template", agent, version)
    return templates.decoded(described, version) if described else None


async def offered_then(asked: BeforeReply, resolve: Resolve) -> list[Tool]:
    """The offered tools; those of the client came with its request."""
    tools: list[Tool | None] = []
    for name, _, version in (ref.rpartition("@") for ref in asked.offered):
        is_client = int(version) == client_tools.VERSION
        found = client_tools.named(asked.turn.client_tools, name) if is_client else await resolve(name, int(version))
        tools.append(found)
    return [tool for tool in tools if tool]


async def _imported(sessions: Sessions, capsule: str, template: Template, asked: BeforeReply) -> Request:
    """The request of a session from another house, with the versions and the memory that came along."""
    db = sessions.db

    async def resolve(name: str, version: int) -> Tool | None:
        described = await capsules.descriptor(db, capsule, "tool", name, version)
        return sessions.catalog.tools.decoded(described, version).tool if described else None

    text = await capsules.remembered(db, asked.session.id, asked.seq)
    shown = replace(asked.session, recall=text, asked=asked.replied.source)
    return strategy_of(template.base_agent_class).propose(shown, template, await offered_then(asked, resolve))


async def composed(
    memory: SessionMemory, asked: BeforeReply, template: Template, offered: Sequence[Tool]
) -> tuple[Request, str]:
    """The request as it was sent, and what it shows from memory; if none matches, as it would be sent now."""
    turn, replied, requests = asked.turn, asked.replied, list[tuple[Request, str]]()
    # What was recalled then is shown, and nothing is searched: the turn counts as one that has begun.
    begun = replace(turn, recalled=replied.recalled or turn.recalled, iteration=turn.iteration + 1)
    for session in asked.sessions:
        text, _ = await memory.text_for(session, begun, template)
        shown = replace(session, recall=text, asked=replied.source)
        requests.append((strategy_of(template.base_agent_class).propose(shown, template, offered), text))
        if requests[-1][0].digest == replied.digest:
            return requests[-1]
    return requests[0]


def tokens_of(body: Body) -> RequestTokens:
    """The estimated tokens of the parts of a request; a response format has the tools of agents that choose by it."""
    system = [message for message in body.messages if isinstance(message, System)]
    history = [message for message in body.messages if not isinstance(message, System)]
    tools = sum(tokens.estimate(bytes(one).decode()) for one in (*body.tools, body.response_format))
    return {"system": tokens.total(system), "tools": tools, "history": tokens.total(history)}


def _selection(replied: Replied, offered: Sequence[str]) -> ShownSelection | None:
    """Why these tools were offered and others were not; None if all were offered."""
    chosen = replied.selection
    if chosen is None:
        return None

    def scored(names: Sequence[str]) -> list[ScoredTool]:
        return [{"name": name, "score": chosen.scores.get(name)} for name in names]

    return wire.body_of(ShownSelection, chosen, offered=scored(offered), left_out=scored(chosen.left_out))


class StepRecord(msgspec.Struct, frozen=True):
    """One reply of a session, counted over all its turns, and what it was asked with."""

    number: int
    turn: int
    record: Recorded
    asked: BeforeReply


async def steps_from(db: Database, session_id: str, first: int) -> AsyncGenerator[StepRecord, None]:
    """The replies of a session from this number on."""
    session, number, turn = blank(session_id), 0, 0
    while page := await journals.read(db, session_id, session.head):
        done = 0
        for nth, record in enumerate(page):
            turn += isinstance(record.event, Started)
            if not isinstance(record.event, Replied):
                continue
            number += 1
            if number >= first:
                late = _late_notes(page[:nth])
                undeleted = fold(page[done : max(done, nth - late)], session)
                session, done = fold(page[done:nth], session), nth
                if session.turn:
                    offered = fold([record], session).offered
                    before = undeleted if undeleted.deleted != session.deleted else None
                    asked = BeforeReply(session, session.turn, record.event, offered, record.seq, late, before)
                    yield StepRecord(number, turn, record, asked)
        session = fold(page[done:], session)


async def asked_at(db: Database, session_id: str, step: int) -> BeforeReply:
    async with aclosing(steps_from(db, session_id, step)) as steps:
        async for found in steps:
            if found.number == step:
                return found.asked
            break
    raise wire.not_found(f"There is no step {str(step)[:20]} in this session.", code="step_not_found")


def _late_notes(records: Sequence[Recorded]) -> int:
    """How many of the last records, since a worker's append, are notes from outside."""
    return sum(isinstance(one.event, Noted) for one in takewhile(lambda one: not one.worker, reversed(records)))
