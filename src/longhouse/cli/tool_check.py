"""The check of `longhouse tools check`: why a tool cannot be used in this installation."""

from collections.abc import Iterator

from longhouse.agents.tool_descriptor import ToolDescriptor
from longhouse.config.effective import Configured
from longhouse.tools.arguments import schema_problem
from longhouse.tools.bindings import python
from longhouse.tools.mcp.client import Away, belongs
from longhouse.tools.toolbox import Toolbox


def problems_of(tool: ToolDescriptor, setup: Configured, served: Toolbox, away: Away) -> Iterator[str]:
    """The problems that a call would have, as sentences. `served` has the tools that the MCP servers list now."""
    if tool.input_schema is not None and (problem := schema_problem(tool.input_schema)):
        yield f"input_schema: {problem}"
    way = tool.runtime_binding
    if way.python_entrypoint is not None:
        try:
            described = python.class_of(tool, setup.settings.tool_packages).described(tool)
            if problem := schema_problem(described.schema):
                yield f"the schema of its class: {problem}"
        except python.EntrypointError as error:
            yield python.fault_of(tool, error).message
    if url := way.remote_endpoint:
        missing = setup.secrets.problem(way.api_key_ref, url) if way.api_key_ref is not None else None
        if problem := setup.egress.problem(url) or missing:
            yield problem
    if way.mcp is not None and not served.find(tool.name):
        server = next((one.name for one in setup.servers if belongs(tool.name, [one])), None)
        if server is None:
            yield "no MCP server that is configured here brings it"
        elif server in (unreachable := away()):
            yield f"the MCP server {server!r} cannot be reached: {unreachable[server]}"
        else:
            yield f"the MCP server {server!r} does not offer it"
