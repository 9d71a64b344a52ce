"""The streamable HTTP transport of the MCP server, as the SDK has it, with our bounds."""

from typing import Any, Final

from mcp.server.auth.middleware.bearer_auth import AuthenticatedUser, AuthorizationContext
from mcp.server.auth.provider import AccessToken
from mcp.server.streamable_http import StreamableHTTPServerTransport
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from starlette.types import Receive, Scope, Send

from longhouse.api import wire
from longhouse.api.auth import CALLER
from longhouse.api.caller import Caller
from longhouse.api.mcp.server import McpService
from longhouse.api.turns import Turns
from longhouse.memory.documents.library import DocumentLibrary

IDLE: Final = 1800.0
"""Seconds after which a session of the protocol that nobody uses is closed; a client then opens another one."""
MOST: Final = 2_000
MOST_OF_KEY: Final = 200
"""Open sessions of the protocol of one key, so that no key keeps the others out."""


class SessionManager(StreamableHTTPSessionManager):
    """The SDK's, which opens no more sessions for a key than it may have."""

    async def handle_request(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope["user"] = _user(scope[CALLER])
        await super().handle_request(scope, receive, send)

    def _admit_session(self, requestor: AuthorizationContext | None) -> StreamableHTTPServerTransport | None:
        if sum(owner == requestor for owner in self._session_owners.values()) >= MOST_OF_KEY:
            return None
        return super()._admit_session(requestor)


def manager_of(turns: Turns, library: DocumentLibrary | None) -> SessionManager:
    server: Any = McpService(turns, library).server
    return SessionManager(server, session_idle_timeout=IDLE, max_request_body_size=wire.MAX_BODY, max_sessions=MOST)


def _user(caller: Caller) -> AuthenticatedUser:
    """Whom a session of the protocol belongs to: with another key, or another owner, it is not found."""
    return AuthenticatedUser(AccessToken(token="", client_id=caller.key or "none", scopes=[], subject=caller.owner))
