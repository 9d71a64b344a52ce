"""Publishes the tools of MCP servers to the catalog. A server describes its tools; it never sets their permissions."""

from collections.abc import Sequence
from dataclasses import replace

import structlog

from longhouse.agents.tool import Tool
from longhouse.agents.tool_descriptor import RuntimeBinding, ToolDescriptor
from longhouse.store.catalog.catalog import Catalog
from longhouse.store.catalog.publish import Published, PublishTerms, retry_on_change

log = structlog.get_logger()


async def publish_served(catalog: Catalog, server: str, tools: Sequence[Tool]) -> None:
    """Publishes the tool list of a server; an operator's decisions about a tool are kept."""
    for one in await retry_on_change(lambda: _publish(catalog, server, tools)):
        if one.is_new and not one.is_active:
            message = "a tool of an MCP server has changed; the new version waits for activation"
            log.warning("mcp_tool_changed", message=message, tool=one.name, version=one.version)


async def _publish(catalog: Catalog, server: str, tools: Sequence[Tool]) -> list[Published]:
    by, names = f"mcp:{server}", [tool.name for tool in tools]
    shaped = await catalog.tools.shaped(names, besides=by)
    given = [_described(server, tool, shaped.get(tool.name)) for tool in tools]
    terms = PublishTerms(over=(by,), seen={name: one.version for name, one in shaped.items()}, keep_owner=set(names))
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
    )
