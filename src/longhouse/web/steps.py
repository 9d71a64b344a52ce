"""What the model saw: the request of any step, composed again from the journal."""

from collections.abc import Mapping

import msgspec
from fastapi import APIRouter, Depends, Response

from longhouse.agents import replay
from longhouse.agents.strategy import Strategy
from longhouse.errors import CallerError
from longhouse.journal.events import Replied
from longhouse.journal.fold import blank, fold
from longhouse.journal.session import Session
from longhouse.store import journals
from longhouse.store.database import Database
from longhouse.tools.toolbox import Toolbox
from longhouse.web import query, wire
from longhouse.web.sessions import Sessions


def routes(sessions: Sessions, toolbox: Toolbox, strategies: Mapping[str, Strategy]) -> APIRouter:
    router = APIRouter(tags=["Sessions"], dependencies=[Depends(query.none)])

    @router.get("/v1/sessions/{session_id}/steps/{step}/request", response_model=None)
    async def get_request(session_id: str, step: int) -> Response:
        """The request that the session's n-th reply answered, byte for byte; stored images are named by digest."""
        row = await sessions.find(session_id)
        session, replied = await _before(sessions.db, row.id, step)
        assert session.turn is not None
        template = sessions.catalog.find(session.agent, session.turn.version)
        strategy = strategies.get(template.base_agent_class) if template else None
        if template is None or strategy is None:
            name = f"{session.agent}@{session.turn.version}"
            message = f"This step cannot be composed again: {name} is not known here any more."
            raise CallerError(message, status=409, code="template_not_found")
        request = replay.request_of(session, replied, template, strategy, toolbox.find)
        return wire.Json(
            {
                "request": msgspec.Raw(request.encoded),
                "digest": request.digest,
                "matches": request.digest == replied.digest,
            }
        )

    return router


async def _before(db: Database, session_id: str, step: int) -> tuple[Session, Replied]:
    """The session as it was just before its n-th reply, and that reply."""
    session, replies = blank(session_id), 0
    while page := await journals.read(db, session_id, session.head):
        for nth, record in enumerate(page):
            if isinstance(record.event, Replied):
                replies += 1
                if replies == step:
                    return fold(page[:nth], session), record.event
        session = fold(page, session)
    raise wire.not_found(f"There is no step {_short(step)} in this session.", code="step_not_found")


def _short(step: int) -> str:
    return str(step) if abs(step) < 10**9 else "with that number"
