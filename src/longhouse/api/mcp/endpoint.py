"""/mcp: the MCP server behind the keys of this one. What speaks the protocol is loaded when it is first asked for."""

import asyncio
import importlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Annotated

from fastapi import APIRouter, Depends, Request, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from longhouse.api import auth
from longhouse.api.http import origins
from longhouse.api.http.json_route import JsonRoute, of_app
from longhouse.api.turns import Turns
from longhouse.memory.documents.library import DocumentLibrary


@dataclass
class McpEndpoint:
    """The MCP server of a process, from the first request until the process ends."""

    hosts: tuple[str, ...] = ()
    """Host names by which it may be asked, besides local names and addresses."""
    turns: Turns | None = None
    library: DocumentLibrary | None = None
    _serving: asyncio.Task[None] | None = None
    _app: asyncio.Future[ASGIApp] | None = None
    _closing: asyncio.Event = field(default_factory=asyncio.Event)

    @asynccontextmanager
    async def running(self) -> AsyncIterator["McpEndpoint"]:
        try:
            yield self
        finally:
            self._closing.set()
            if self._serving:
                await self._serving

    async def app(self) -> ASGIApp:
        if self._app is None:
            self._app = asyncio.get_running_loop().create_future()
            self._serving = asyncio.create_task(self._serve(self._app))
        return await asyncio.shield(self._app)

    async def _serve(self, ready: "asyncio.Future[ASGIApp]") -> None:
        """One task opens and closes it: its sessions are tasks of a group."""
        try:
            # The SDK takes a while to import: only those who use it should pay for that.
            server = await asyncio.to_thread(importlib.import_module, "longhouse.api.mcp.server")
            manager = server.McpService(self.turns, self.library).manager
        except ImportError as error:
            self._app = None  # the next request tries again
            ready.set_exception(error)
            return
        async with manager.run():
            ready.set_result(manager.handle_request)
            await self._closing.wait()


class Forwarded(Response):
    """A response that another ASGI application gives."""

    def __init__(self, app: ASGIApp) -> None:
        super().__init__()
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._app(scope, receive, send)


Endpoint = Annotated[McpEndpoint, of_app("mcp")]


# Not in the OpenAPI document: what is sent here is described, and negotiated, by the Model Context Protocol.
router = APIRouter(tags=["MCP"], dependencies=[Depends(auth.user)], route_class=JsonRoute, include_in_schema=False)


@router.api_route("/mcp", methods=["POST", "DELETE"])
async def mcp(endpoint: Endpoint, request: Request) -> Response:
    """The streamable HTTP transport. Nothing is ever sent but in answer to a request, so there is no GET."""
    if error := origins.named_host_error(request.scope, endpoint.hosts):
        raise error
    return Forwarded(await endpoint.app())
