"""`longhouse seed`: publishes the agents of config.yaml and agents.yaml, and exits."""

from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Annotated, Any

import typer

from longhouse.agents.builtin import BUILT_IN
from longhouse.app import TOOLS, open_store, publish
from longhouse.config.effective import configure
from longhouse.settings import Settings
from longhouse.store.catalog.catalog import Catalog

Run = Callable[[Settings, Callable[[], Coroutine[Any, Any, None]]], None]

ConfigFile = Annotated[Path | None, typer.Option(help="What all agents share; config.yaml unless said otherwise.")]
AgentsFile = Annotated[Path | None, typer.Option(help="The agents; agents.yaml unless said otherwise.")]


def command(run: Run) -> Callable[..., None]:
    def seed(config_file: ConfigFile = None, agents_file: AgentsFile = None) -> None:
        """Publish the agents of config.yaml and agents.yaml. Content that is already published makes no new version."""
        settings = Settings(**named(config_file=config_file, agents_file=agents_file))
        run(settings, lambda: sow(settings))

    return seed


def named(**given: Any) -> dict[str, Any]:
    """The settings that were given on the command line."""
    return {name: value for name, value in given.items() if value is not None}


async def sow(settings: Settings) -> None:
    setup = configure(settings, templates=BUILT_IN, tools=[cls.tool_name for cls in TOOLS])
    async with open_store(setup.settings) as (db, _):
        catalog = Catalog(db)
        before = {one.name: await catalog.templates.active(one.name) for one in setup.files.templates}
        for one in await publish(catalog, setup, TOOLS):
            active = await catalog.templates.active(one.name)
            became = "new" if one.is_new else "unchanged" if active == before[one.name] else "active again"
            other = "" if active == one.version else f", version {active} is active" if active else ", none is active"
            typer.echo(f"{one.name}  version {one.version}  {became}{other}")
