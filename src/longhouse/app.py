"""The only composition root: opens every resource, wires it, and closes it again."""

from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Final

import structlog
from starlette.types import ASGIApp

from longhouse.agents.catalog import BUILT_IN, Catalog
from longhouse.agents.template import Template
from longhouse.agents.tool_calling import ToolCallingAgent
from longhouse.errors import SetupError
from longhouse.models.demo import scene
from longhouse.models.model import Model
from longhouse.models.openai import OpenAIModel, open_endpoint
from longhouse.models.scripted import ScriptedModel
from longhouse.runtime.bus import Bus
from longhouse.runtime.engine import Engine, Patience
from longhouse.runtime.instance import Pool
from longhouse.runtime.worker import Terms, Worker, new_id
from longhouse.settings import Settings
from longhouse.store import leases, migrate
from longhouse.store.database import Database, open_database
from longhouse.store.embedded import Postgres, open_postgres
from longhouse.tools.clock import ClockTool
from longhouse.tools.talk import ClarificationTool, FinalAnswerTool
from longhouse.tools.toolbox import BaseTool, Toolbox
from longhouse.web import server
from longhouse.web.metrics import Metrics

log = structlog.get_logger()

STRATEGIES: Final = {ToolCallingAgent.name: ToolCallingAgent()}
TOOLS: Final = (ClarificationTool, FinalAnswerTool, ClockTool)


@dataclass(frozen=True, slots=True)
class App:
    """A running Longhouse: its parts, and the ASGI application in front of them."""

    db: Database
    bus: Bus
    worker: Worker
    pool: Pool
    asgi: ASGIApp
    postgres: Postgres | None
    """None with a Postgres of somebody else."""


@asynccontextmanager
async def open_app(
    settings: Settings, *, templates: Iterable[Template] = BUILT_IN, tools: Iterable[type[BaseTool]] = TOOLS
) -> AsyncIterator[App]:
    async with open_store(settings) as (db, postgres), open_model(settings) as model_for:
        catalog = Catalog(_with_model(template, settings.llm_model) for template in templates)
        bus, toolbox = Bus(), Toolbox(tools)
        _check(catalog, toolbox)
        pool = Pool(STRATEGIES, toolbox, model_for)
        patience = Patience(attended=settings.patience, unattended=15 * settings.patience)
        engine = Engine(db, bus, catalog, toolbox, pool, worker=new_id(), patience=patience)
        terms = Terms(slots=settings.worker_slots, lease=settings.lease_seconds)
        worker = Worker(db, bus, engine, terms)
        numbers = Metrics(lambda: worker.busy, lambda: pool.instances)
        async with worker.working():
            asgi = server.build(db, bus, catalog, numbers)
            yield App(db=db, bus=bus, worker=worker, pool=pool, asgi=asgi, postgres=postgres)


@asynccontextmanager
async def open_store(settings: Settings) -> AsyncIterator[tuple[Database, Postgres | None]]:
    """Our own Postgres, brought up to date by us; or somebody else's, which only `longhouse migrate` changes."""
    if settings.database_url:
        async with open_database(settings.database_url.get_secret_value()) as db:
            await migrate.check(db)
            yield db, None
        return
    async with (
        open_postgres(settings.data_dir, binaries=settings.pg_bin) as postgres,
        open_database(postgres.dsn) as db,
    ):
        await migrate.migrate(db)
        if postgres.fresh:
            await leases.retire_all(db)
        yield db, postgres


@asynccontextmanager
async def open_model(settings: Settings) -> AsyncIterator[Callable[[Template], Model]]:
    """Who thinks for a template."""
    if not settings.llm_base_url:
        demo = ScriptedModel(scene, remember=False)
        yield lambda template: demo
        return
    key = settings.llm_api_key.get_secret_value()
    async with open_endpoint(settings.llm_base_url, key, hang=settings.llm_timeout) as endpoint:
        model = OpenAIModel(endpoint)
        yield lambda template: model


def _check(catalog: Catalog, toolbox: Toolbox) -> None:
    """Refuses templates that name what is not there, all of them at once."""
    wrong = []
    for template in catalog.templates():
        wrong += [f"{template.ref}: no tool {name!r}" for name in template.tools if not toolbox.find(name)]
        if template.base_agent_class not in STRATEGIES:
            wrong.append(f"{template.ref}: no agent class {template.base_agent_class!r}")
    if wrong:
        raise SetupError(f"Some templates name what is not there: {'; '.join(wrong)}.")


def _with_model(template: Template, model: str) -> Template:
    policy = template.llm_policy
    return replace(template, llm_policy=replace(policy, model=policy.model or model))
