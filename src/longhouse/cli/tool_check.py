"""`longhouse tools describe` and `longhouse tools check`: the descriptor of a tool class, and tools that cannot run."""

from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from typing import Final

import msgspec
import typer

from longhouse.agents.builtin import BUILT_IN
from longhouse.agents.tool_descriptor import RuntimeBinding, ToolDescriptor
from longhouse.app import TOOLS, open_store
from longhouse.config.effective import Configured, configure
from longhouse.errors import SetupError
from longhouse.settings import Settings
from longhouse.store.catalog.catalog import Catalog
from longhouse.store.catalog.repository import ADAPTERS
from longhouse.tools.arguments import schema_problem
from longhouse.tools.bindings import python
from longhouse.tools.mcp.client import Away, belongs, open_mcp
from longhouse.tools.toolbox import Toolbox

PAGE: Final = 500


def describe(settings: Settings, place: str) -> None:
    """Prints the complete descriptor of a class, ready to publish."""
    own = python.load(place, settings.tool_packages).descriptor()
    whole = replace(own, runtime_binding=RuntimeBinding(python_entrypoint=place))
    told = ADAPTERS["tool"].dump_python(whole, mode="json", exclude={"version"}, exclude_none=True)
    typer.echo(msgspec.json.format(msgspec.json.encode(told)).decode())


async def check_all(settings: Settings) -> None:
    """Prints for every active tool what prevents its use here."""
    setup = configure(settings, templates=BUILT_IN, tools=[cls.tool_name for cls in TOOLS])
    served, wrong, tools = Toolbox([]), 0, 0
    async with open_store(setup.settings, create=False) as (db, _), open_mcp(setup.servers, served) as away:
        catalog = Catalog(db)
        async for tool in _active(catalog):
            found = list(_problems(tool, setup, served, away))
            if (agent := tool.runtime_binding.agent) and await catalog.templates.active(agent) is None:
                found.append(f"there is no active agent {agent!r}")
            for says in found:
                typer.echo(f"{tool.ref}: {says}")
            wrong, tools = wrong + bool(found), tools + 1
    if wrong:
        raise SetupError(f"{wrong} of {tools} active tools cannot be used here.")
    typer.echo(f"all {tools} active tools can be used here")


async def _active(catalog: Catalog) -> AsyncIterator[ToolDescriptor]:
    after: str | None = None
    while page := await catalog.tools.page(after=after, limit=PAGE, inactive=False):
        for tool in await catalog.tools.several({one.name: one.active for one in page if one.active}):
            yield tool
        after = page[-1].name


def _problems(tool: ToolDescriptor, setup: Configured, served: Toolbox, away: Away) -> Iterator[str]:
    """The problems that a call would have, as sentences. `served` has the tools that the MCP servers list now."""
    if tool.input_schema is not None and (says := schema_problem(tool.input_schema)):
        yield f"input_schema: {says}"
    way = tool.runtime_binding
    if way.python_entrypoint is not None:
        try:
            described = python.class_of(tool, setup.settings.tool_packages).described(tool)
            if says := schema_problem(described.schema):
                yield f"the schema of its class: {says}"
        except python.EntrypointError as error:
            yield python.fault_of(tool, error).message
    if url := way.remote_endpoint:
        missing = setup.secrets.problem(way.api_key_ref, url) if way.api_key_ref is not None else None
        if says := setup.egress.problem(url) or missing:
            yield says
    if way.mcp is not None and not served.find(tool.name):
        server = next((one.name for one in setup.servers if belongs(tool.name, [one])), None)
        if server is None:
            yield "no MCP server that is configured here brings it"
        elif server in (unreachable := away()):
            yield f"the MCP server {server!r} cannot be reached: {unreachable[server]}"
        else:
            yield f"the MCP server {server!r} does not offer it"
