"""Adds the tools of MCP servers to the toolbox, `async with open_mcp(servers, toolbox)`, and to the catalog."""

import asyncio
import importlib
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Final

import structlog

from longhouse.agents.tool import Tool
from longhouse.agents.tool_descriptor import RuntimeBinding, ToolDescriptor
from longhouse.store.catalog.catalog import FILES, Catalog
from longhouse.store.catalog.publish import Published, PublishTerms, retry_on_change
from longhouse.tools.mcp.config import McpServerConfig
from longhouse.tools.toolbox import Toolbox

log = structlog.get_logger()

Away = Callable[[], Mapping[str, str]]
"""Gives the servers that cannot be reached now, with the reasons."""

START_WITHIN: Final = 15.0
"""Seconds that start-up waits for the first tool list of every server; later lists are added when they arrive."""


@asynccontextmanager
async def open_mcp(
    servers: Sequence[McpServerConfig], toolbox: Toolbox, *, start_within: float = START_WITHIN
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


def belongs(name: str, servers: Sequence[McpServerConfig]) -> bool:
    """Is this the name of a tool (or with `*`, of all tools) of one of these servers?"""
    return any(name.startswith(f"{server.name}.") for server in servers)


async def publish_served(catalog: Catalog, server: str, tools: Sequence[Tool]) -> None:
    """Publishes the tool list of a server. It describes its tools; an operator's decisions about them are kept."""
    for one in await retry_on_change(lambda: _publish(catalog, server, tools)):
        if one.is_new and not one.is_active:
            message = "a tool of an MCP server has changed; the new version waits for activation"
            log.warning("mcp_tool_changed", message=message, tool=one.name, version=one.version)


async def _publish(catalog: Catalog, server: str, tools: Sequence[Tool]) -> list[Published]:
    by, names = f"mcp:{server}", [tool.name for tool in tools]
    shaped = await catalog.tools.shaped(names, besides=by)
    given = [_described(server, tool, shaped.get(tool.name)) for tool in tools]
    # What files say of a tool is taken over below: the server completes it.
    terms = PublishTerms(
        over=(by, FILES), seen={name: one.version for name, one in shaped.items()}, keep_owner=set(names)
    )
    return await catalog.tools.publish(given, by=by, again=False, terms=terms)


def _described(server: str, tool: Tool, shaped: ToolDescriptor | None) -> ToolDescriptor:
    """The descriptor of a server's tool; if an operator edited it, the server sets only description and arguments."""
    binding = RuntimeBinding(mcp=tool.name)
    if shaped:
        return replace(shaped, description_short=tool.description, input_schema=tool.schema, runtime_binding=binding)
    return ToolDescriptor(
        name=tool.name,
        tags=(server,),
        description_short=tool.description,
        input_schema=tool.schema,
        runtime_binding=binding,
        effect=tool.effect,
        timeout=tool.timeout,
        max_output=tool.max_output,
        remembers=tool.remembers,
    )
