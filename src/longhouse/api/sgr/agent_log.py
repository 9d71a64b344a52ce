"""The agent log of a session, as users of SGR-Agent Core know it."""

from fastapi import Response

from longhouse.api import auth, wire
from longhouse.api.json_route import strict_router
from longhouse.api.sessions.routes import SESSION, Held
from longhouse.integrations.agent_log_files import log_of

router = strict_router("Sessions", auth.user)


@router.get(f"{SESSION}/log")
async def get_log(caller: auth.User, sessions: Held, session_id: str) -> Response:
    """What the agent thought and did, step by step: id, model_config, task, toolkit, log."""
    session = await sessions.load(caller, session_id)
    return wire.Json(await log_of(sessions.db, sessions.catalog, session))
