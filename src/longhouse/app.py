"""The composition root: opens, wires and closes all resources of the application."""

import asyncio
import importlib
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import structlog
from starlette.types import ASGIApp

from longhouse.agents.builtin import BUILT_IN
from longhouse.agents.delegation import PREFIX
from longhouse.agents.strategies.base import AgentRegistry
from longhouse.agents.strategies.hybrid import SGRToolCallingAgent
from longhouse.agents.strategies.structured import SGRAgent
from longhouse.agents.strategies.tool_calling import ToolCallingAgent
from longhouse.agents.template import Template
from longhouse.api import server
from longhouse.api.auth import LOCAL, Authenticator, open_door
from longhouse.api.metrics import Metrics
from longhouse.api.rate_limits import KeyLimits
from longhouse.catalog.sources import publish_classes, publish_templates
from longhouse.catalog.validation import CatalogValidator
from longhouse.config.effective import Configured, configure
from longhouse.config.loader import LoadedFiles
from longhouse.egress import Egress
from longhouse.errors import SetupError
from longhouse.integrations.agent_log_files import LogFolder
from longhouse.models import embedding_table
from longhouse.models.demo import scene
from longhouse.models.embeddings import open_embeddings
from longhouse.models.endpoints import open_endpoints
from longhouse.models.http_client import open_endpoint
from longhouse.models.openai import OpenAIModel
from longhouse.models.protocol import Embedder, Model
from longhouse.models.scripted import ScriptedModel
from longhouse.runtime.bus import Bus
from longhouse.runtime.delegation import PriorOf
from longhouse.runtime.engine import Engine, Patience
from longhouse.runtime.file_cleanup import FileCleanup
from longhouse.runtime.instance_registry import InstanceRegistry
from longhouse.runtime.instances import ModelFor, Pool
from longhouse.runtime.watchdog import Watchdog
from longhouse.runtime.worker import Worker, WorkerOptions, new_id
from longhouse.search.indexer import Indexer
from longhouse.search.selection import Finder, ToolSearchService
from longhouse.secrets import Secrets
from longhouse.settings import Settings
from longhouse.store import leases, migrate
from longhouse.store.catalog.catalog import Catalog
from longhouse.store.catalog.publish import Published
from longhouse.store.database import Database, open_database
from longhouse.store.memory_files import Memories
from longhouse.store.postgres import Postgres, open_postgres
from longhouse.tools.base import BaseTool
from longhouse.tools.bindings.agent import CollectTool
from longhouse.tools.bindings.http import open_remote
from longhouse.tools.bindings.registry import binder_of
from longhouse.tools.builtin.clock import ClockTool
from longhouse.tools.builtin.dialogue import ClarificationTool, FinalAnswerTool
from longhouse.tools.builtin.find_tools import FindToolsTool
from longhouse.tools.builtin.memory_files import MEMORY_TOOLS
from longhouse.tools.builtin.planning import AdaptPlanTool, GeneratePlanTool, ReasoningTool
from longhouse.tools.builtin.report import CreateReportTool
from longhouse.tools.builtin.research import ExtractPageContentTool, WebSearchTool
from longhouse.tools.builtin.tavily import BASE_URL, open_search
from longhouse.tools.config import ExecutionConfig, SearchConfig, ToolConfig
from longhouse.tools.context import Services
from longhouse.tools.mcp.client import Away, belongs, open_mcp
from longhouse.tools.mcp.config import McpServer
from longhouse.tools.offering import Offering, crowding
from longhouse.tools.self_check import Checkup
from longhouse.tools.toolbox import Toolbox

log = structlog.get_logger()

AGENTS: Final = (SGRAgent, ToolCallingAgent, SGRToolCallingAgent)
"""The built-in strategies; others that are defined before an app opens are registered too."""
TOOLS: Final = (
    ReasoningTool,
    ClarificationTool,
    FinalAnswerTool,
    GeneratePlanTool,
    AdaptPlanTool,
    WebSearchTool,
    ExtractPageContentTool,
    CreateReportTool,
    ClockTool,
    CollectTool,
    FindToolsTool,
    *MEMORY_TOOLS,
)


@dataclass(frozen=True, slots=True)
class App:
    """A running Longhouse: its parts, and the ASGI application in front of them."""

    db: Database
    bus: Bus
    worker: Worker
    pool: Pool
    catalog: Catalog
    door: Authenticator
    asgi: ASGIApp
    postgres: Postgres | None
    """None with an external Postgres."""
    is_demo: bool
    """No model is configured: the built-in demo model answers."""


@asynccontextmanager
async def open_app(
    settings: Settings, *, templates: Iterable[Template] = BUILT_IN, tools: Iterable[type[BaseTool]] = TOOLS
) -> AsyncIterator[App]:
    tools = tuple(tools)
    setup = configure(settings, templates=templates, tools=[cls.tool_name for cls in tools])
    settings, servers, secrets = setup.settings, setup.servers, setup.secrets
    bus = Bus()
    async with (
        open_store(settings) as (db, postgres),
        open_model(settings, secrets, named_egress(setup)) as model_for,
        open_services(settings, db) as lent,
        open_remote(Egress(parts_of(settings.allow_egress))) as outside,
        open_embedder(settings) as embedder,
        Indexer(db, embedder).working() as indexer,
        open_memory(settings, db, bus) as prior,
    ):
        catalog = Catalog(db, model=settings.llm_model)
        binder = binder_of(outside, secrets.find, parts_of(settings.tool_packages))
        config = setup.common(tool_config(settings))
        configs = setup.of_agents(config)
        finder = Finder(db, embedder, indexer.ready)
        search = ToolSearchService(catalog, finder)
        services = replace(lent, find_tools=search.find)
        toolbox = Toolbox(tools, config=config, configs=configs, services=services, catalog=catalog, binder=binder)
        await publish(catalog, setup, toolbox.classes)
        pool, offering = Pool(model_for), Offering(catalog, toolbox, replace(search, resolve=toolbox.resolve))
        patience = Patience(attended=settings.patience, unattended=15 * settings.patience)
        engine = Engine(db, bus, catalog, toolbox, offering, pool, worker=new_id(), patience=patience, prior=prior)
        options = WorkerOptions(slots=settings.worker_slots, lease=settings.lease_seconds)
        folders = setup.log_folders
        keep = LogFolder(db, catalog, settings.logs_dir, folders).keep if settings.logs_dir or folders else None
        worker = Worker(db, bus, engine, options, keep_log=keep)
        watchdog = Watchdog()
        numbers = Metrics(
            lambda: worker.busy,
            lambda: pool.instances,
            lambda: engine.recorder.refused,
            lambda: (watchdog.times, watchdog.seconds),
            lambda: toolbox.left_behind,
        )
        registry = InstanceRegistry(db, pool, worker.id)
        cleanup = file_cleanup_of(setup, db, [config, *configs.values()])
        async with (
            cleanup.running(),
            open_mcp(servers, toolbox),
            registry.kept(),
            worker.working(),
            open_authenticator(settings, db) as door,
        ):
            asgi = server.build(
                db,
                bus,
                catalog,
                numbers,
                door=door,
                toolbox=toolbox,
                admission=validator_of(setup, catalog),
                finder=finder,
                default_template=settings.default_template,
                prior=prior,
            )
            app = App(
                db=db, bus=bus, worker=worker, pool=pool, catalog=catalog, door=door, asgi=asgi, postgres=postgres,
                is_demo=not settings.llm_base_url,
            )  # fmt: skip
            async with watchdog.watching():
                yield app


@asynccontextmanager
async def open_store(settings: Settings, *, begin: bool = True) -> AsyncIterator[tuple[Database, Postgres | None]]:
    """Opens the embedded Postgres and migrates it; or an external one, which only `longhouse migrate` migrates.

    Without `begin`, an embedded Postgres must exist: a command in the wrong folder fails instead of creating one.
    """
    if settings.database_url:
        dsn = settings.database_url.get_secret_value()
        async with open_database(dsn, schema=settings.database_schema) as db:
            await migrate.check(db)
            yield db, None
        return
    if not begin and not settings.data_dir.is_dir():
        raise SetupError(
            f"there is no Longhouse in {settings.data_dir.absolute()}: come to the folder where it was started, or set"
            " LONGHOUSE_DATA_DIR or LONGHOUSE_DATABASE_URL."
        )
    async with (
        open_postgres(settings.data_dir, binaries=settings.pg_bin) as postgres,
        open_database(postgres.dsn, schema=settings.database_schema) as db,
    ):
        await migrate.migrate(db, may_extend=postgres.vectors)
        if postgres.fresh:
            await leases.retire_all(db)
        yield db, postgres


@asynccontextmanager
async def open_model(settings: Settings, secrets: Secrets, egress: Egress) -> AsyncIterator[ModelFor]:
    """Opens the model clients of templates; `egress`: the hosts that templates may send requests to."""
    async with AsyncExitStack() as stack:
        default: Model = ScriptedModel(scene, remember=False)
        if settings.llm_base_url:
            key, hang = settings.llm_api_key.get_secret_value(), settings.llm_timeout
            opening = open_endpoint(settings.llm_base_url, key, proxy=settings.llm_proxy, hang=hang)
            default = OpenAIModel(await stack.enter_async_context(opening))
        opened = open_endpoints(default, secrets.find, egress=egress, hang=settings.llm_timeout)
        endpoints = await stack.enter_async_context(opened)
        yield endpoints.model_for


@asynccontextmanager
async def open_embedder(settings: Settings) -> AsyncIterator[Embedder | None]:
    """Opens the embedder: the endpoint of the settings, or a static table, the built-in one by default."""
    if not settings.embeddings_base_url:
        yield embedding_table.lazy(settings.embeddings_table)
        return
    key = settings.embeddings_api_key.get_secret_value()
    async with open_embeddings(settings.embeddings_base_url, key, settings.embeddings_model) as embedder:
        yield embedder


@asynccontextmanager
async def open_memory(settings: Settings, db: Database, bus: Bus) -> AsyncIterator[PriorOf | None]:
    """Opens the projections to Redis and session logs; yields the loader of earlier history for new conversations."""
    if not settings.redis_url and not settings.log_dir:
        yield None
        return
    # The Redis client takes half a second to import: only those who use it should pay for that.
    memory = await asyncio.to_thread(importlib.import_module, "longhouse.integrations.running")
    url = settings.redis_url.get_secret_value() if settings.redis_url else None
    kept = {"redis_url": url, "log_dir": settings.log_dir, "language": settings.log_language}
    async with memory.running(db, bus.on_append.append, **kept) as mirror:
        yield mirror.prior if mirror else None


@asynccontextmanager
async def open_services(settings: Settings, db: Database) -> AsyncIterator[Services]:
    """Opens the services that tools use; they are called only when a tool needs them."""
    memory, key = Memories(db), settings.tavily_api_key.get_secret_value()
    if not key and not settings.tavily_base_url:
        yield Services(memory=memory)
        return
    async with open_search(settings.tavily_base_url or BASE_URL, key) as search:
        yield Services(search=search, memory=memory)


def file_cleanup_of(setup: Configured, db: Database, configs: Sequence[ToolConfig]) -> FileCleanup:
    """Opens the cleanup of files that deleted sessions left on this machine."""
    logs = dict.fromkeys([setup.settings.logs_dir, *setup.log_folders.values()])
    reports = dict.fromkeys(one.execution.reports_dir for one in configs)
    return FileCleanup(db, tuple(path for path in logs if path), tuple(Path(path) for path in reports if path))


def open_authenticator(settings: Settings, db: Database) -> AbstractAsyncContextManager[Authenticator]:
    limits = KeyLimits(
        rate_limit=settings.rate_limit,
        max_concurrent=settings.max_concurrent,
        sessions_per_hour=settings.sessions_per_hour,
    )
    return open_door(db, admin_key=settings.admin_key.get_secret_value().strip(), limits=limits)


def validator_of(setup: Configured, catalog: Catalog) -> CatalogValidator:
    """Opens the validator of what may be published in this installation."""
    settings = setup.settings
    return CatalogValidator(
        catalog,
        egress=Egress(parts_of(settings.allow_egress)),
        models=named_egress(setup),
        packages=parts_of(settings.tool_packages),
        secrets=setup.secrets,
    )


def named_egress(setup: Configured) -> Egress:
    """Egress rules of templates: the same as for tools, plus the models that the operator configured."""
    return Egress(parts_of(setup.settings.allow_egress)).also(setup.addresses)


def open_checkup(setup: Configured, catalog: Catalog, served: Toolbox, away: Away) -> Checkup:
    """Opens the check of tools in this installation; `served`: tools of MCP servers, `away`: unreachable servers."""
    egress = Egress(parts_of(setup.settings.allow_egress))
    packages = tool_packages(setup.settings)
    return Checkup(catalog, packages, egress, setup.secrets.problem, setup.servers, served, away)


def tool_packages(settings: Settings) -> list[str]:
    """The packages that tool classes may be imported from."""
    return parts_of(settings.tool_packages)


def tool_config(settings: Settings) -> ToolConfig:
    key, url = settings.tavily_api_key.get_secret_value(), settings.tavily_base_url or BASE_URL
    reports = str(settings.reports_dir) if settings.reports_dir else None
    return ToolConfig(
        search=SearchConfig(tavily_api_key=key, tavily_api_base_url=url),
        execution=ExecutionConfig(reports_dir=reports),
    )


def parts_of(text: str) -> list[str]:
    """The items of a comma-separated setting."""
    return [part.strip() for part in text.split(",") if part.strip()]


async def publish(catalog: Catalog, setup: Configured, classes: Sequence[type[BaseTool]]) -> list[Published]:
    """Publishes the tools and templates of this process to the catalog; no template if one of them is invalid."""
    await publish_classes(catalog, classes)
    await _check(setup.given, catalog, setup.servers, setup.secrets)
    published = await publish_templates(catalog, setup.given.templates, touched=setup.given.touched)
    await _tell_switched_off(setup.given.templates, catalog)
    return published


async def _check(given: LoadedFiles, catalog: Catalog, servers: Sequence[McpServer], secrets: Secrets) -> None:
    """Refuses templates that name unknown tools or agent classes; one error lists all of them.

    Tools of MCP servers may come and go, and tools that an operator has deactivated count as known.
    """
    templates, wrong = given.templates, []
    named = {(template.name, tool) for template in templates for tool in template.tool_policy.named}
    asked = {tool for _, tool in named | given.tool_spots.keys()}
    agents = {f"{PREFIX}{name}" for name in {*given.own, *(template.name for template in templates)}}
    active = await catalog.active_tools(asked, LOCAL.owner)
    known = {*active, *agents, *await catalog.switched_off(asked - active.keys(), LOCAL.owner)}
    for name, tool in sorted(named | given.tool_spots.keys()):
        what = f"there is no tool {tool!r}"
        if tool not in known and not belongs(tool, servers) and not given.complain(name, tool, what):
            wrong.append(f"{name}@1: no tool {tool!r}")
    for template in templates:
        _warn_of_secret(template, secrets)
        wrong += [f"{template.ref}: {field} has no {what}" for field, what in template.prompt_pack.gaps.items()]
        if AgentRegistry.get(template.base_agent_class) is None:
            wrong.append(f"{template.ref}: no agent class {template.base_agent_class!r}")
        elif says := await crowding(catalog, template, LOCAL.owner):
            last = template.tool_policy.required[-1:]
            if not any(given.complain(template.name, tool, says) for tool in last):
                wrong.append(f"{template.ref}: {says}")
    given.mistakes.refuse()
    if wrong:
        raise SetupError(f"Some templates cannot work as they are: {'; '.join(wrong)}.")


def _warn_of_secret(template: Template, secrets: Secrets) -> None:
    """Warns only: other agents work without this secret, and another process may have it."""
    policy = template.llm_policy
    if policy.base_url and policy.api_key_ref and (problem := secrets.problem(policy.api_key_ref, policy.base_url)):
        log.warning(
            "model_key_missing", message="An agent has no key for its model.", template=template.name, reason=problem
        )


async def _tell_switched_off(templates: Sequence[Template], catalog: Catalog) -> None:
    """Logs each deactivated tool that a template names: the agent works without it."""
    off = await catalog.switched_off({tool for one in templates for tool in one.tool_policy.named}, LOCAL.owner)
    for template in templates:
        for tool in template.tool_policy.named:
            if tool in off:
                log.warning(
                    "template_tool_inactive",
                    message="A template names a tool that is switched off.",
                    template=template.name,
                    tool=tool,
                )
