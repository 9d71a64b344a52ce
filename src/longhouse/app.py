"""The composition root: opens, wires and closes all resources of the application."""

import asyncio
import importlib
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Final

import structlog
from starlette.types import ASGIApp

from longhouse import background, prices
from longhouse.activity import Activity
from longhouse.agents.builtin import BUILT_IN
from longhouse.agents.naming import AGENT_PREFIX
from longhouse.agents.strategies.base import AgentRegistry
from longhouse.agents.strategies.hybrid import SGRToolCallingAgent
from longhouse.agents.strategies.structured import SGRAgent
from longhouse.agents.strategies.tool_calling import ToolCallingAgent
from longhouse.agents.template import Template
from longhouse.api import server
from longhouse.api.admin.models import ConfiguredModel
from longhouse.api.auth import LOCAL, Authenticator
from longhouse.api.mcp.endpoint import McpEndpoint
from longhouse.api.metrics import Metrics
from longhouse.api.rate_limits import KeyLimits
from longhouse.api.usage import Prices
from longhouse.background import Step
from longhouse.catalog import file_tools
from longhouse.catalog.sources import publish_classes, publish_files
from longhouse.catalog.validation import CatalogValidator
from longhouse.config.effective import Configured, configure
from longhouse.config.loader import LoadedFiles
from longhouse.errors import SetupError
from longhouse.integrations.agent_log import LogFolder
from longhouse.integrations.otlp import TraceProjector, open_collector
from longhouse.memory.documents.library import DocumentLibrary
from longhouse.memory.ledger import Ledger
from longhouse.memory.ledger_projection import LedgerProjector
from longhouse.memory.outside import OutsideInteractions
from longhouse.memory.parts import MemoryParts
from longhouse.memory.recall import Recall, ShownFiles
from longhouse.memory.session_memory import SessionMemory
from longhouse.models import embedding_table
from longhouse.models.demo import scene
from longhouse.models.embeddings import WITHIN, EndpointEmbedder
from longhouse.models.endpoints import open_endpoints
from longhouse.models.http_client import open_endpoint
from longhouse.models.openai import OpenAIModel
from longhouse.models.protocol import Embedder, Model
from longhouse.models.scripted import ScriptedModel
from longhouse.runtime.bus.doorbell import Doorbell
from longhouse.runtime.bus.local import Bus
from longhouse.runtime.delegation import PriorOf
from longhouse.runtime.engine import Engine, RetryLimits
from longhouse.runtime.eraser import Eraser
from longhouse.runtime.file_cleanup import FileCleanup
from longhouse.runtime.followers import LOOK_EVERY, Followers
from longhouse.runtime.inbox import Inbox
from longhouse.runtime.instance_registry import InstanceRegistry
from longhouse.runtime.instances import ModelFor, Pool
from longhouse.runtime.retention import Retention
from longhouse.runtime.turn_ends import turn_teller
from longhouse.runtime.watchdog import Watchdog
from longhouse.runtime.worker import Worker, WorkerOptions, new_id
from longhouse.search.finder import Finder
from longhouse.search.indexer import Indexer
from longhouse.search.passages import PassageIndex
from longhouse.search.selection import ToolSearchService
from longhouse.settings import Settings
from longhouse.store import fleet, leases, migrate, statistics
from longhouse.store.catalog.catalog import Catalog
from longhouse.store.catalog.publish import Published
from longhouse.store.database import Database, open_database
from longhouse.store.memory_files import Memories
from longhouse.store.postgres import Postgres, open_postgres
from longhouse.tools.base import BaseTool
from longhouse.tools.bindings import isolated, python
from longhouse.tools.bindings.agent import CollectTool
from longhouse.tools.bindings.http import open_remote
from longhouse.tools.bindings.registry import binder_of
from longhouse.tools.builtin.clock import ClockTool
from longhouse.tools.builtin.dialogue import ClarificationTool, FinalAnswerTool
from longhouse.tools.builtin.documents import DOCUMENT_TOOLS
from longhouse.tools.builtin.find_tools import FindToolsTool
from longhouse.tools.builtin.letter import LetterTool
from longhouse.tools.builtin.memory_files import MEMORY_TOOLS
from longhouse.tools.builtin.planning import AdaptPlanTool, GeneratePlanTool, ReasoningTool
from longhouse.tools.builtin.report import CreateReportTool
from longhouse.tools.builtin.research import ExtractPageContentTool, WebSearchTool
from longhouse.tools.builtin.tavily import BASE_URL, WebSearch, open_search
from longhouse.tools.config import ExecutionConfig, SearchConfig, ToolConfig
from longhouse.tools.context import Services
from longhouse.tools.isolation.pool import ProcessPool
from longhouse.tools.mcp.client import belongs, open_mcp
from longhouse.tools.offering import Offering, required_tools_problem
from longhouse.tools.toolbox import Toolbox
from longhouse.tracing import Tracing
from longhouse.validation_messages import did_you_mean, path_text

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
    LetterTool,
    CollectTool,
    FindToolsTool,
    *MEMORY_TOOLS,
    *DOCUMENT_TOOLS,
)
SIZE_EVERY: Final = 1800.0
"""Seconds; a record for each hour is made even if one attempt fails."""


@dataclass(frozen=True, slots=True)
class App:
    """A running Longhouse: its parts, and the ASGI application in front of them."""

    db: Database
    bus: Bus
    worker: Worker
    pool: Pool
    catalog: Catalog
    authenticator: Authenticator
    asgi: ASGIApp
    postgres: Postgres | None
    """None with an external Postgres."""
    is_demo: bool
    """No model is configured: the built-in demo model answers."""
    files: LoadedFiles
    """What the files say, with the tools as they were published."""


@asynccontextmanager
async def open_app(
    settings: Settings,
    *,
    templates: Iterable[Template] = BUILT_IN,
    tools: Iterable[type[BaseTool]] = TOOLS,
    works: bool = True,
) -> AsyncIterator[App]:
    """Opens everything; without `works`, sessions are left to the workers of other processes."""
    classes = tuple(tools)
    setup = configure(settings, templates=templates, tools=[cls.tool_name for cls in classes])
    settings, bus, watchdog, name = setup.settings, Bus(), Watchdog(), new_id()
    activity = Activity(settings.metrics_owners)
    bus.on_turn_end.append(turn_teller(activity))
    async with (
        open_store(settings) as (db, postgres),
        open_traces(settings, db, bus) as traces,
        open_relay(settings, db, bus, name, works=works),
        open_model(setup) as model_for,
        open_embedder(settings) as embedder,
        open_finder(db, embedder) as finder,
        open_mirror(settings, db, bus) as prior,
        open_memory(settings, db, bus, embedder) as memory,
        ProcessPool(most=settings.tool_processes, environment=settings.tool_environment).running() as processes,
    ):
        catalog, pool = Catalog(db, model=settings.llm_model), Pool(model_for, settings.tool_packages)
        async with (
            open_tools(setup, catalog, finder, memory.documents, classes, processes=processes, activity=activity) as (
                toolbox,
                offering,
            ),
            open_engine(
                setup,
                name=name,
                works=works,
                bus=bus,
                catalog=catalog,
                toolbox=toolbox,
                offering=offering,
                pool=pool,
                prior=prior,
                memory=memory,
                activity=activity,
                tracing=traces.tracing if traces else None,
            ) as (engine, worker),
            open_authenticator(settings, db) as authenticator,
            McpEndpoint(settings.mcp_hosts).running() as mcp,
        ):
            numbers = Metrics(
                lambda: worker.busy,
                lambda: pool.instances,
                lambda: engine.recorder.refused,
                lambda: (watchdog.times, watchdog.seconds),
                lambda: toolbox.left_behind,
                processes=lambda: (processes.size, processes.ended),
                from_memory=lambda: engine.tool_runner.from_memory,
                memory=memory,
                bus=bus,
                fleet=lambda: fleet.counts(db),
                takeovers=lambda: engine.takeovers,
                database_retries=lambda: db.retries,
                connections=lambda: (db.pool.get_size(), db.pool.get_idle_size()),
                lag=lambda: watchdog.lag,
                activity=activity,
                spans=traces.spans if traces else None,
            )
            asgi = server.build(
                db,
                bus,
                catalog,
                numbers,
                authenticator=authenticator,
                toolbox=toolbox,
                validator=validator_of(setup, catalog, processes),
                finder=finder,
                default_template=settings.default_template,
                prior=prior,
                memory=memory,
                model_for=model_for,
                model=configured_model(setup),
                is_mirrored=settings.redis_url is not None,
                retain_days=settings.retain_days,
                prices=prices_of(settings),
                root_path=settings.root_path,
                mcp=mcp,
            )
            app = App(
                db=db, bus=bus, worker=worker, pool=pool, catalog=catalog, authenticator=authenticator, asgi=asgi,
                postgres=postgres, is_demo=not settings.llm_base_url, files=setup.files,
            )  # fmt: skip
            async with watchdog.watching(), background.running("database_size", sample_size(db), every=SIZE_EVERY):
                yield app


def sample_size(db: Database) -> Step:
    """A step that records the size of the database, once an hour."""

    async def sample() -> None:
        await db.run(statistics.SAMPLE_SIZE)

    return sample


@asynccontextmanager
async def open_store(settings: Settings, *, create: bool = True) -> AsyncIterator[tuple[Database, Postgres | None]]:
    """Opens the embedded Postgres and migrates it; or an external one, which only `longhouse migrate` migrates.

    Without `create`, an embedded Postgres must exist: a command in the wrong folder fails instead of creating one.
    """
    if settings.database_url:
        dsn = settings.database_url.get_secret_value()
        async with open_database(dsn, schema=settings.database_schema) as db:
            await migrate.check(db)
            yield db, None
        return
    if not create and not settings.data_dir.is_dir():
        raise SetupError(
            f"there is no Longhouse in {settings.data_dir.absolute()}: change to the folder where it was started, or"
            " set LONGHOUSE_DATA_DIR or LONGHOUSE_DATABASE_URL."
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
async def open_relay(settings: Settings, db: Database, bus: Bus, name: str, *, works: bool) -> AsyncIterator[None]:
    """Connects the bus to those of other processes: through NATS, or else through Postgres."""
    async with background.running("followers", Followers(db, bus).look, every=LOOK_EVERY):
        if settings.nats_url is None:
            doorbell = bus.relay = Doorbell(db, bus, name)
            async with doorbell.connected():
                yield
            return
        # Only those who use NATS pay for the import of its client.
        module = await asyncio.to_thread(importlib.import_module, "longhouse.runtime.bus.nats")
        relay = bus.relay = module.NatsRelay(db, bus, name, await leases.house(db), works=works)
        async with relay.connected(settings.nats_url.get_secret_value().split(",")):
            yield


@asynccontextmanager
async def open_traces(settings: Settings, db: Database, bus: Bus) -> AsyncIterator[TraceProjector | None]:
    """Sends the traces of turns to a collector, where one is set."""
    if not settings.otlp_endpoint:
        yield None
        return
    tracing, headers = Tracing(settings.trace_share), settings.otlp_headers.get_secret_value()
    async with (
        open_collector(settings.otlp_endpoint, headers) as collector,
        TraceProjector(db, collector, tracing, service=settings.service_name).running() as traces,
    ):
        bus.on_append.append(traces.nudge)
        yield traces


@asynccontextmanager
async def open_model(setup: Configured) -> AsyncIterator[ModelFor]:
    """Opens the model clients of templates; the demo model answers where none is configured."""
    settings = setup.settings
    async with AsyncExitStack() as stack:
        model: Model = ScriptedModel(scene, remember=False)
        if settings.llm_base_url:
            key, hang = settings.llm_api_key.get_secret_value(), settings.llm_timeout
            endpoint = open_endpoint(settings.llm_base_url, key, proxy=settings.llm_proxy, hang=hang)
            model = OpenAIModel(await stack.enter_async_context(endpoint))
        endpoints = open_endpoints(model, setup.secrets.find, egress=setup.model_egress, hang=settings.llm_timeout)
        yield await stack.enter_async_context(endpoints)


@asynccontextmanager
async def open_finder(db: Database, embedder: Embedder | None) -> AsyncIterator[Finder]:
    """Opens the search, and keeps its index up to date."""
    async with Indexer(db, embedder).working() as indexer:
        yield Finder(db, embedder, indexer.ready)


def library_of(settings: Settings, index: PassageIndex) -> DocumentLibrary:
    limits = {"max_bytes": settings.documents_max_bytes, "max_documents": settings.documents_max_count}
    return DocumentLibrary(index.db, index, **limits)


@asynccontextmanager
async def open_library(settings: Settings) -> AsyncIterator[DocumentLibrary]:
    """Opens the documents alone, for the command line."""
    async with open_store(settings, create=False) as (db, _), open_embedder(settings) as embedder:
        yield library_of(settings, PassageIndex(db, embedder))


@asynccontextmanager
async def open_embedder(settings: Settings) -> AsyncIterator[Embedder | None]:
    """Opens the embedder: the endpoint of the settings, or a static table, the built-in one by default."""
    if not settings.embeddings_base_url:
        yield embedding_table.EmbeddedEmbedder(settings.embeddings_table)
        return
    key = settings.embeddings_api_key.get_secret_value()
    async with open_endpoint(settings.embeddings_base_url, key, within=WITHIN) as endpoint:
        yield EndpointEmbedder(endpoint, settings.embeddings_model)


@asynccontextmanager
async def open_mirror(settings: Settings, db: Database, bus: Bus) -> AsyncIterator[PriorOf | None]:
    """Opens the projections to Redis and session logs; yields the loader of earlier history for new conversations."""
    if not settings.redis_url and not settings.session_log_dir:
        yield None
        return
    # The Redis client takes half a second to import: only those who use it should pay for that.
    memory = await asyncio.to_thread(importlib.import_module, "longhouse.integrations.running")
    url = settings.redis_url.get_secret_value() if settings.redis_url else None
    where = {"redis_url": url, "log_dir": settings.session_log_dir, "language": settings.log_language}
    async with memory.running(db, bus.on_append.append, **where) as mirror:
        yield mirror.prior if mirror else None


@asynccontextmanager
async def open_memory(
    settings: Settings, db: Database, bus: Bus, embedder: Embedder | None
) -> AsyncIterator[MemoryParts]:
    """Opens what agents remember with, and keeps its index and its ledger up to date."""
    async with PassageIndex(db, embedder).working() as index, open_ledger(settings, index, bus) as ledger:
        yield MemoryParts(library_of(settings, index), ledger, memory_of(settings, ledger))


def memory_of(settings: Settings, ledger: Ledger) -> SessionMemory:
    """What sessions remember, and how it is shown."""
    language, memories = settings.memory_language, Memories(ledger.db)
    outside = OutsideInteractions(ledger, language=language)
    recall = Recall(ledger.index, memories, language=language, fresh=ledger.catch_up)
    return SessionMemory(
        enabled=settings.memory_enabled,
        max_chunks=settings.memory_max_chunks,
        min_relevance=settings.memory_min_relevance,
        language=language,
        sources=(outside, ShownFiles(memories, language=language), recall),
        recalled=recall.items,
        interactions=outside.items,
    )


@asynccontextmanager
async def open_ledger(settings: Settings, index: PassageIndex, bus: Bus) -> AsyncIterator[Ledger]:
    """Opens the ledger of interactions, which follows the journals unless it is switched off."""
    projector, enabled = LedgerProjector(index.db, index), settings.conversation_memory_enabled
    async with projector.running() if enabled else nullcontext():
        if enabled:
            bus.on_append.append(projector.nudge)
        yield Ledger(index.db, projector, enabled=enabled)


@asynccontextmanager
async def open_tools(
    setup: Configured,
    catalog: Catalog,
    finder: Finder,
    documents: DocumentLibrary,
    classes: Sequence[type[BaseTool]],
    *,
    processes: ProcessPool,
    activity: Activity,
) -> AsyncIterator[tuple[Toolbox, Offering]]:
    """Opens the tools that this process can run, and publishes them and the templates."""
    settings, search = setup.settings, ToolSearchService(catalog, finder)
    key, url = settings.tavily_api_key.get_secret_value(), settings.tavily_base_url
    config = setup.common(
        ToolConfig(
            search=SearchConfig(tavily_api_key=key, tavily_api_base_url=url or BASE_URL),
            execution=ExecutionConfig(reports_dir=str(settings.reports_dir) if settings.reports_dir else None),
        )
    )
    configs = setup.of_agents(config)
    async with (
        open_searches(config.search if key or url else None, configs) as searches,
        open_remote(setup.egress) as http,
    ):
        services = Services(memory=Memories(catalog.db), find_tools=search.find, documents=documents)
        toolbox = Toolbox(
            classes,
            config=config,
            configs=configs,
            services=replace(services, search=searches[None]),
            own_services={name: replace(services, search=searches[name]) for name in configs},
            catalog=catalog,
            binder=binder_of(http, setup.secrets.find, settings.tool_packages, processes),
            activity=activity,
        )
        await publish(catalog, setup, toolbox.classes, processes)
        async with open_mcp(setup.servers, toolbox):
            yield toolbox, Offering(catalog, toolbox, replace(search, resolve=toolbox.resolve))


@asynccontextmanager
async def open_searches(
    common: SearchConfig | None, configs: Mapping[str, ToolConfig]
) -> AsyncIterator[Mapping[str | None, WebSearch | None]]:
    """Opens the search services: that of all agents under None, and under its name that of each agent in the files."""
    places: dict[str | None, SearchConfig | None] = {None: common}
    places |= {name: one.search for name, one in configs.items()}
    opened: dict[tuple[str, str], WebSearch] = {}
    found: dict[str | None, WebSearch | None] = {}
    async with AsyncExitStack() as stack:
        for name, one in places.items():
            is_own = one and (common or one.tavily_api_key or one.tavily_api_base_url != BASE_URL)
            place = (one.tavily_api_base_url, one.tavily_api_key) if one and is_own else None
            if place and place not in opened:
                opened[place] = await stack.enter_async_context(open_search(*place))
            found[name] = opened[place] if place else None
        yield found


@asynccontextmanager
async def open_engine(
    setup: Configured,
    *,
    name: str,
    works: bool,
    bus: Bus,
    catalog: Catalog,
    toolbox: Toolbox,
    offering: Offering,
    pool: Pool,
    prior: PriorOf | None,
    memory: MemoryParts,
    activity: Activity,
    tracing: Tracing | None,
) -> AsyncIterator[tuple[Engine, Worker]]:
    """Starts the worker, and the upkeep of its instances and files."""
    db, settings = catalog.db, setup.settings
    logs = setup.folders("logs_dir")
    retry_limits = RetryLimits(attended=settings.patience, unattended=15 * settings.patience)
    engine = Engine(
        db, bus, catalog, toolbox, offering, pool, worker=name, retry_limits=retry_limits, prior=prior,
        memory=memory.sessions, collects=memory.ledger.enabled, external=memory.ledger.external_for,
        activity=activity, tracing=tracing,
    )  # fmt: skip
    options = WorkerOptions(settings.worker_slots, settings.lease_seconds, settings.max_running)
    worker = Worker(db, bus, engine, options, keep_log=LogFolder(db, catalog, settings.agent_log_dir, logs).keep)
    if not works:
        yield engine, worker
        return
    inbox = Inbox(db, bus)
    async with (
        cleanup_of(setup, db).running(),
        InstanceRegistry(db, pool, worker.id).kept(),
        worker.working(),
        Eraser(inbox).running(),
        Retention(inbox, settings.retain_days).running(),
    ):
        yield engine, worker


def cleanup_of(setup: Configured, db: Database) -> FileCleanup:
    """What removes the files of erased sessions from the folders of this machine."""
    settings, logs, reports = setup.settings, setup.folders("logs_dir"), setup.folders("reports_dir")
    return FileCleanup(db, _paths(settings.agent_log_dir, logs), _paths(settings.reports_dir, reports))


async def remove_copies(setup: Configured, db: Database) -> str:
    """Removes what this machine's folders and Redis have of erased sessions, for a command; why it could not."""
    settings = setup.settings
    await cleanup_of(setup, db).remove_erased()
    if not settings.redis_url and not settings.session_log_dir:
        return ""
    integrations = await asyncio.to_thread(importlib.import_module, "longhouse.integrations.running")
    url = settings.redis_url.get_secret_value() if settings.redis_url else None
    trouble: str = await integrations.remove_erased(db, redis_url=url, log_dir=settings.session_log_dir)
    return trouble


def _paths(default: Path | None, others: Mapping[str, Path]) -> tuple[Path, ...]:
    return tuple(dict.fromkeys(path for path in (default, *others.values()) if path))


def open_authenticator(settings: Settings, db: Database) -> AbstractAsyncContextManager[Authenticator]:
    limits = KeyLimits(
        rate_limit=settings.rate_limit,
        max_concurrent=settings.max_concurrent,
        sessions_per_hour=settings.sessions_per_hour,
        max_running=settings.max_running,
    )
    return Authenticator(db, admin_key=settings.admin_key.get_secret_value().strip(), limits=limits).running()


def prices_of(settings: Settings) -> Prices:
    return Prices(prices.parse(settings.prices), settings.currency)


def configured_model(setup: Configured) -> ConfiguredModel:
    settings = setup.settings
    return ConfiguredModel(
        settings.llm_model, is_demo=not settings.llm_base_url, egress=setup.model_egress, hang=settings.llm_timeout
    )


def validator_of(setup: Configured, catalog: Catalog, processes: ProcessPool | None = None) -> CatalogValidator:
    """The validator of what may be published in this installation."""
    return CatalogValidator(
        catalog,
        egress=setup.egress,
        models=setup.model_egress,
        packages=setup.settings.tool_packages,
        secrets=setup.secrets,
        known=partial(isolated.known, processes=processes) if processes else python.described,
    )


async def publish(
    catalog: Catalog, setup: Configured, classes: Sequence[type[BaseTool]], processes: ProcessPool
) -> tuple[list[Published], list[Published]]:
    """Publishes the tools and templates of this process to the catalog: of the files everything, or nothing if one of
    them is invalid."""
    files, packages = setup.files, setup.settings.tool_packages
    await publish_classes(catalog, classes)
    given = tuple(files.tools.values())
    tools, problems = await file_tools.completed(catalog, given, packages, processes)
    for one in problems:
        files.add_tool_problem(given[one.nth].name, one.where, one.message)
    for one in await validator_of(setup, catalog, processes).tool_problems(tools):
        if one.is_warning:
            log.warning("tool_warning", message=one.message, tool=tools[one.nth].name, field=path_text(one.where))
        else:
            files.add_tool_problem(tools[one.nth].name, one.where, one.message)
    await _check(setup, catalog)
    files.tools |= {one.name: one for one in tools}
    return await publish_files(catalog, tools, files.templates, touched=files.touched)


async def _check(setup: Configured, catalog: Catalog) -> None:
    """Refuses templates that name unknown tools or agent classes; one error lists all of them.

    Tools of MCP servers may come and go, and tools that an operator has deactivated count as known.
    """
    files, wrong = setup.files, []
    named = {(one.name, tool) for one in files.templates for tool in one.tool_policy.named} | files.tool_places.keys()
    tools = {tool for _, tool in named}
    agents = {f"{AGENT_PREFIX}{name}" for name in {*files.own, *(template.name for template in files.templates)}}
    active = await catalog.active_tools(tools, LOCAL.owner)
    inactive = await catalog.switched_off(tools - active.keys() - files.tool_names, LOCAL.owner)
    known = {*active, *agents, *files.tool_names}
    every = {*known, *await catalog.tools.names(owner=LOCAL.owner)} if tools - known else known
    for name, tool in sorted(named):
        if tool in inactive:
            message = "A template names a tool that is switched off."
            log.warning("template_tool_inactive", message=message, template=name, tool=tool)
        elif tool in known or belongs(tool, setup.servers):
            continue
        elif not files.add_tool_mistake(name, tool, f"there is no tool {tool!r}{did_you_mean(tool, every, 0.7)}"):
            wrong.append(f"{name}@1: no tool {tool!r}")
    for name, one in files.tools.items():
        if one.runtime_binding.mcp and not belongs(name, setup.servers):
            files.add_tool_problem(name, (), "no MCP server of this name is configured: its tools are <server>.<tool>")
    for template in files.templates:
        llm = template.llm_policy
        problem = setup.secrets.problem(llm.api_key_ref, llm.base_url) if llm.api_key_ref and llm.base_url else None
        if problem:
            # Only a warning: other agents work without this secret, and another process may have it.
            message = "An agent has no key for its model."
            log.warning("model_key_missing", message=message, template=template.name, reason=problem)
        wrong += [f"{template.ref}: {field} has no {what}" for field, what in template.prompt_pack.gaps.items()]
        if AgentRegistry.get(template.base_agent_class) is None:
            wrong.append(f"{template.ref}: no agent class {template.base_agent_class!r}")
        elif problem := await required_tools_problem(catalog, template, LOCAL.owner):
            last = template.tool_policy.required[-1:]
            if not any(files.add_tool_mistake(template.name, tool, problem) for tool in last):
                wrong.append(f"{template.ref}: {problem}")
    files.mistakes.refuse()
    if wrong:
        raise SetupError(f"Some templates cannot work as they are: {'; '.join(wrong)}.")
