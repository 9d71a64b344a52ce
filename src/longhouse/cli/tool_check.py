"""`longhouse tools describe` and `longhouse tools check`: the descriptor of a tool class, and tools that cannot run."""

from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Annotated, Final

import msgspec
import typer

from longhouse.agents.builtin import BUILT_IN
from longhouse.agents.tool_descriptor import RuntimeBinding, ToolDescriptor
from longhouse.app import TOOLS, open_checkup, open_store, tool_packages
from longhouse.config.effective import configure
from longhouse.errors import SetupError
from longhouse.settings import Settings
from longhouse.store.catalog.catalog import Catalog
from longhouse.store.catalog.repository import ADAPTERS
from longhouse.tools.bindings import python
from longhouse.tools.mcp.client import open_mcp
from longhouse.tools.toolbox import Toolbox

PAGE: Final = 500


async def describe(
    settings: Settings, place: Annotated[str, typer.Argument(help="A class, as package.module:ClassName.")]
) -> None:
    """Print the complete descriptor of a class, ready to publish."""
    own = python.load(place, tool_packages(settings)).descriptor()
    whole = replace(own, runtime_binding=RuntimeBinding(python_entrypoint=place))
    told = ADAPTERS["tool"].dump_python(whole, mode="json", exclude={"version"}, exclude_none=True)
    typer.echo(msgspec.json.format(msgspec.json.encode(told)).decode())


async def check_all(settings: Settings) -> None:
    """Check whether every active tool can be used here; exit code 1 if one cannot."""
    setup = configure(settings, templates=BUILT_IN, tools=[cls.tool_name for cls in TOOLS])
    served, wrong, tools = Toolbox([]), 0, 0
    async with open_store(setup.settings, begin=False) as (db, _), open_mcp(setup.servers, served) as away:
        catalog = Catalog(db)
        checkup = open_checkup(setup, catalog, served, away)
        async for tool in _active(catalog):
            found = [says async for says in checkup.problems(tool)]
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
