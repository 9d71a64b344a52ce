"""Tools of MCP servers beside our own: `async with open_mcp(servers, toolbox)`."""

import asyncio
import importlib
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Final

from longhouse.tools.mcp.config import McpServer
from longhouse.tools.toolbox import Toolbox

Away = Callable[[], Mapping[str, str]]
"""Which servers cannot be reached now, and why."""

START_WITHIN: Final = 15.0
"""Seconds that the start waits for the first list of every server; later ones are taken up when they come."""


@asynccontextmanager
async def open_mcp(
    servers: Sequence[McpServer], toolbox: Toolbox, *, start_within: float = START_WITHIN
) -> AsyncIterator[Away]:
    """Puts the tools of these servers into the toolbox and keeps them there as the servers have them.

    A server that cannot be reached keeps nobody from starting: it is tried again, and its tools appear with it.
    """
    if not servers:
        yield dict
        return
    # The library takes seconds to load, which those without servers should not spend.
    at_work = await asyncio.to_thread(importlib.import_module, "longhouse.tools.mcp.server")
    async with at_work.running(servers, toolbox, start_within) as away:
        yield away


def belongs(name: str, servers: Sequence[McpServer]) -> bool:
    """Is this the name of a tool (or with `*`, of all tools) of one of these servers?"""
    return any(name.startswith(f"{server.name}.") for server in servers)
