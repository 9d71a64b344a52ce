"""Adds the tools of MCP servers to the toolbox: `async with open_mcp(servers, toolbox)`."""

import asyncio
import importlib
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Final

from longhouse.tools.mcp.config import McpServer
from longhouse.tools.toolbox import Toolbox

Away = Callable[[], Mapping[str, str]]
"""Gives the servers that cannot be reached now, with the reasons."""

START_WITHIN: Final = 15.0
"""Seconds that start-up waits for the first tool list of every server; later lists are added when they arrive."""


@asynccontextmanager
async def open_mcp(
    servers: Sequence[McpServer], toolbox: Toolbox, *, start_within: float = START_WITHIN
) -> AsyncIterator[Away]:
    """Adds the tools of these servers to the toolbox and keeps them up to date.

    An unreachable server does not block start-up: the connection is retried, and its tools appear once it succeeds.
    """
    if not servers:
        yield dict
        return
    # The library takes seconds to import; without servers it is not needed.
    at_work = await asyncio.to_thread(importlib.import_module, "longhouse.tools.mcp.server")
    async with at_work.running(servers, toolbox, start_within) as away:
        yield away


def belongs(name: str, servers: Sequence[McpServer]) -> bool:
    """Is this the name of a tool (or with `*`, of all tools) of one of these servers?"""
    return any(name.startswith(f"{server.name}.") for server in servers)
