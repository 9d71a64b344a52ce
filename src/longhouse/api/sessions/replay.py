"""Replay: rebuilds the model request of any step from the journal."""

from collections.abc import Sequence
from typing import Annotated, Any

import msgspec
from fastapi import Response

from longhouse.agents.strategies.base import AgentRegistry
from longhouse.api import auth, wire
from longhouse.api.json_route import of_app, strict_router
from longhouse.api.sessions.routes import SESSION_PATH, Held
from longhouse.errors import CallerError
from longhouse.journal.events import Replied
from longhouse.journal.fold import blank, fold
from longhouse.journal.session import Session, Turn
from longhouse.runtime.instances import strategy_of
from longhouse.store import journals
from longhouse.store.database import Database
from longhouse.tools.toolbox import Toolbox

router = strict_router("Sessions", auth.user)


@router.get(f"{SESSION_PATH}/steps/{{step}}/request")
async def get_request(
    caller: auth.User, sessions: Held, toolbox: Annotated[Toolbox, of_app("toolbox")], session_id: str, step: int
) -> Response:
    """The model request of the session's n-th reply, byte for byte; stored images are named by digest.

    `selection` says how its tools were chosen, if more were permitted than can be offered.
    """
    row = await sessions.find(caller, session_id)
    session, turn, replied, refs = await _before(sessions.db, row.id, step)
    template = await sessions.catalog.templates.find(session.agent, turn.version)
    if template is None or AgentRegistry.get(template.base_agent_class) is None:
        name = f"{session.agent}@{turn.version}"
        message = f"This step cannot be composed again: {name} is not known here any more."
        raise CallerError(message, status=409, code="template_not_found")
    versions = [ref.rpartition("@") for ref in refs]
    names = [name for name, _, _ in versions]
    tools = [await toolbox.resolve(name, int(version)) for name, _, version in versions]
    offered = [tool for tool in tools if tool]
    request = strategy_of(template.base_agent_class).propose(session, template, offered)
    return wire.Json(
        {
            "request": msgspec.Raw(request.encoded),
            "digest": request.digest,
            "matches": request.digest == replied.digest,
            "selection": _selection(replied, names),
        }
    )


def _selection(replied: Replied, offered: Sequence[str]) -> dict[str, Any] | None:
    """Why these tools were offered and others were not; None if all were offered."""
    chosen = replied.selection
    if chosen is None:
        return None

    def scored(names: Sequence[str]) -> list[dict[str, Any]]:
        return [{"name": name, "score": chosen.scores.get(name)} for name in names]

    return {
        "query": chosen.query,
        "stage": chosen.stage,
        "offered": scored(offered),
        "left_out": scored(chosen.left_out),
        "more": chosen.more,
    }


async def _before(db: Database, session_id: str, step: int) -> tuple[Session, Turn, Replied, Sequence[str]]:
    """The session and its turn just before its n-th reply, that reply, and the tools (name@version) it was offered."""
    session, replies = blank(session_id), 0
    while page := await journals.read(db, session_id, session.head):
        for nth, record in enumerate(page):
            if isinstance(record.event, Replied):
                replies += 1
                before = fold(page[:nth], session) if replies == step else None
                if before and before.turn:
                    return before, before.turn, record.event, fold([record], before).offered
        session = fold(page, session)
    raise wire.not_found(f"There is no step {str(step)[:20]} in this session.", code="step_not_found")
