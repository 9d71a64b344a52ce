"""The agent log of a session, as users of SGR-Agent Core know it."""

from fastapi import APIRouter, Depends, Response

from longhouse.api import auth, pagination, wire
from longhouse.api.sessions.routes import Sessions
from longhouse.integrations.agent_log_files import log_of


def routes(sessions: Sessions) -> APIRouter:
    router = APIRouter(tags=["Sessions"], dependencies=[Depends(auth.user), Depends(pagination.none)])

    @router.get("/v1/sessions/{session_id}/log", response_model=None)
    async def get_log(caller: auth.User, session_id: str) -> Response:
        """What the agent thought and did, step by step: id, model_config, task, toolkit, log."""
        session = await sessions.load(caller, session_id)
        return wire.Json(await log_of(sessions.db, sessions.catalog, session))

    return router
