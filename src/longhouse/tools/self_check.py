"""Self-check of a tool: can it be used in this installation?"""

from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass

from longhouse.agents.tool_descriptor import ToolDescriptor
from longhouse.egress import Egress
from longhouse.store.catalog.catalog import Catalog
from longhouse.tools.arguments import schema_problem
from longhouse.tools.bindings import python
from longhouse.tools.mcp.client import Away, belongs
from longhouse.tools.mcp.config import McpServer
from longhouse.tools.toolbox import Toolbox


@dataclass(frozen=True, slots=True)
class Checkup:
    """The resources of this installation that tools can be bound to."""

    catalog: Catalog
    packages: Sequence[str]
    egress: Egress
    secret_problem: Callable[[str, str], str | None]
    """Why the secret of this name cannot be sent to this address."""
    servers: Sequence[McpServer]
    served: Toolbox
    """The toolbox with the tools that the MCP servers list now."""
    away: Away

    async def problems(self, tool: ToolDescriptor) -> AsyncIterator[str]:
        """The problems that a call would have, as sentences."""
        if tool.input_schema is not None and (says := schema_problem(tool.input_schema)):
            yield f"input_schema: {says}"
        way = tool.runtime_binding
        if way.python_entrypoint is not None:
            try:
                described = python.class_of(tool, self.packages).described(tool)
            except python.EntrypointError as error:
                yield python.fault_of(tool, error).message
            else:
                if says := schema_problem(described.schema):
                    yield f"the schema of its class: {says}"
        if way.remote_endpoint is not None:
            url, ref = way.remote_endpoint, way.api_key_ref
            if says := self.egress.problem(url) or (self.secret_problem(ref, url) if ref is not None else None):
                yield says
        if way.mcp is not None and (says := self._of_server(tool.name)):
            yield says
        if way.agent is not None and await self.catalog.templates.active(way.agent) is None:
            yield f"there is no active agent {way.agent!r}"

    def _of_server(self, name: str) -> str | None:
        if self.served.find(name):
            return None
        server = next((one.name for one in self.servers if belongs(name, [one])), None)
        if server is None:
            return "no MCP server that is configured here brings it"
        if server in (away := self.away()):
            return f"the MCP server {server!r} cannot be reached: {away[server]}"
        return f"the MCP server {server!r} does not offer it"
