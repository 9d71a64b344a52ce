"""`longhouse migrate`, `seed` and `probe`: what is done once, before or beside serving."""

from collections.abc import Iterable, Mapping
from typing import Annotated, Final

import typer

from longhouse.app.builtin import TOOLS
from longhouse.app.publish import publish
from longhouse.app.store import open_store
from longhouse.cli.configured import as_served
from longhouse.cli.house import open_as_it_is
from longhouse.cli.running import AgentsFile, ConfigFile, given, group, run
from longhouse.config.effective import configure
from longhouse.errors import SetupError
from longhouse.models import probe as probing
from longhouse.models.http.client import open_endpoint
from longhouse.models.openai import OpenAIModel
from longhouse.models.probe import ProbeFinding
from longhouse.settings import Settings
from longhouse.store import migrate as migrations
from longhouse.store.catalog.catalog import Catalog
from longhouse.store.catalog.publish import Published
from longhouse.store.catalog.repository import T, VersionRepository
from longhouse.tools.isolation.pool import ProcessPool

UP_TO_DATE: Final = "the schema is up to date"
PENDING: Final = 3
"""The exit status of `migrate --check` with work to do; 1 is for what could not be looked at."""


def seed(config_file: ConfigFile = None, agents_file: AgentsFile = None) -> None:
    """Publish the tools and agents of config.yaml and agents.yaml. What is already published makes no new version."""
    run(Settings(**given(config_file=config_file, agents_file=agents_file)), publish_configured)


async def migrate(
    settings: Settings,
    check: Annotated[
        bool, typer.Option("--check", help="Change nothing; end with 3 if migrations are pending, with 0 if none is.")
    ] = False,
    plan: Annotated[bool, typer.Option("--plan", help="Change nothing; list what would run, and why.")] = False,
) -> None:
    """Migrate the database schema to the latest version."""
    looks = check or plan
    async with open_as_it_is(settings, create=not looks) as (db, postgres):
        if not looks:
            applied = await migrations.migrate(db, may_extend=postgres.vectors if postgres else True)
            typer.echo("\n".join(f"applied {name}" for name in applied) or UP_TO_DATE)
            return
        pending = await migrations.plan(db)
    if plan:
        for one in pending:
            typer.echo(f"{one.name}  {one.about}")
    typer.echo(f"{len(pending)} pending: run `longhouse migrate`" if pending else UP_TO_DATE)
    if check and pending:
        raise typer.Exit(PENDING)


async def publish_configured(settings: Settings) -> None:
    setup = as_served(settings)
    settings = setup.settings
    async with (
        open_store(settings) as (db, _),
        ProcessPool(most=settings.tool_processes, environment=settings.tool_environment).running() as processes,
    ):
        catalog = Catalog(db)
        agents = [one.name for one in setup.files.templates]
        before = await _active(catalog.tools, setup.files.tools), await _active(catalog.templates, agents)
        tools, templates = await publish(catalog, setup, TOOLS, processes)
        _print_published("tool ", tools, before[0], await _active(catalog.tools, before[0]))
        _print_published("", templates, before[1], await _active(catalog.templates, before[1]))


async def _active(repository: VersionRepository[T], names: Iterable[str]) -> dict[str, int | None]:
    return {name: await repository.active(name) for name in names}


def _print_published(
    what: str, published: Iterable[Published], before: Mapping[str, int | None], after: Mapping[str, int | None]
) -> None:
    for one in published:
        active = after[one.name]
        became = "new" if one.is_new else "unchanged" if active == before[one.name] else "active again"
        other = "" if active == one.version else f", version {active} is active" if active else ", none is active"
        typer.echo(f"{what}{one.name}  version {one.version}  {became}{other}")


async def probe(
    settings: Settings,
    model: Annotated[str | None, typer.Option(help="Another model than LONGHOUSE_LLM_MODEL.")] = None,
) -> None:
    """Find out what the model's endpoint supports, and what a template should say about it."""
    setup = configure(settings)
    settings, model = setup.settings, model or setup.settings.llm_model
    name, findings = await probed(settings, model)
    typer.echo(f"{name}, model {model!r}")
    typer.echo(probing.report(findings))


async def probed(settings: Settings, model: str) -> tuple[str, list[ProbeFinding]]:
    """The name of the model's endpoint, and what it supports."""
    if not settings.llm_base_url:
        raise SetupError("there is no endpoint to probe: set LONGHOUSE_LLM_BASE_URL, _API_KEY and _MODEL.")
    key = settings.llm_api_key.get_secret_value()
    opening = open_endpoint(settings.llm_base_url, key, proxy=settings.llm_proxy, hang=settings.llm_timeout)
    async with opening as endpoint:
        return endpoint.name, await probing.probe(OpenAIModel(endpoint), model)


cli = group({"migrate": migrate, "probe": probe})
cli.command()(seed)
