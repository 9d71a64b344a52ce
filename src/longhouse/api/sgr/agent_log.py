"""The agent log of a session, in the format of SGR-Agent Core."""

from fastapi import Response

from longhouse.api import auth, wire
from longhouse.api.json_route import strict_router
from longhouse.api.sessions.routes import SESSION, Held, Loaded
from longhouse.integrations.agent_log_files import log_of

router = strict_router("Sessions", auth.user)


@router.get(f"{SESSION}/log")
async def get_log(sessions: Held, session: Loaded) -> Response:
    """The agent's reasoning and calls, step by step: id, model_config, task, toolkit, log."""
    return wire.Json(await log_of(sessions.db, sessions.catalog, session))
