"""What MCP servers list, as the catalog has it. A server says what its tools do, never what they are allowed to."""

from collections.abc import Sequence
from dataclasses import replace

import structlog

from longhouse.agents.tool import Tool
from longhouse.agents.tool_descriptor import RuntimeBinding, ToolDescriptor
from longhouse.store.catalog.catalog import Catalog
from longhouse.store.catalog.publish import Published, PublishTerms, persist

log = structlog.get_logger()


async def publish_served(catalog: Catalog, server: str, tools: Sequence[Tool]) -> None:
    """The catalog learns what a server lists; what an operator has decided about a tool stays."""
    for one in await persist(lambda: _publish(catalog, server, tools)):
        if one.is_new and not one.is_active:
            log.warning(
                "a tool of an MCP server has changed and waits to be activated", tool=one.name, version=one.version
            )


async def _publish(catalog: Catalog, server: str, tools: Sequence[Tool]) -> list[Published]:
    by, names = f"mcp:{server}", [tool.name for tool in tools]
    shaped = await catalog.tools.shaped(names, besides=by)
    given = [_described(server, tool, shaped.get(tool.name)) for tool in tools]
    terms = PublishTerms(over=(by,), seen={name: one.version for name, one in shaped.items()}, keep_owner=set(names))
    return await catalog.tools.publish(given, by=by, again=False, terms=terms)


def _described(server: str, tool: Tool, shaped: ToolDescriptor | None) -> ToolDescriptor:
    """What the server says of a tool; of one that an operator has shaped, only the words and the arguments."""
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
