"""The agent log of a session, as users of SGR-Agent Core know it."""

from fastapi import APIRouter, Depends, Response

from longhouse.integrations.agent_log_files import log_of
from longhouse.web import access, query, wire
from longhouse.web.sessions import Sessions


def routes(sessions: Sessions) -> APIRouter:
    router = APIRouter(tags=["Sessions"], dependencies=[Depends(access.user), Depends(query.none)])

    @router.get("/v1/sessions/{session_id}/log", response_model=None)
    async def get_log(caller: access.User, session_id: str) -> Response:
        """What the agent thought and did, step by step: id, model_config, task, toolkit, log."""
        session = await sessions.load(caller, session_id)
        return wire.Json(await log_of(sessions.db, sessions.catalog, session))

    return router
