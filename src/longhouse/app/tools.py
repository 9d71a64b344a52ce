"""Opens the tools that this process can run, the search for them, and the processes that some of them run in."""

import os
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial

from msgspec.structs import replace
from yarl import URL

from longhouse.agents.tool_descriptor import ToolDescriptor
from longhouse.app.core import Core
from longhouse.app.publish import publish
from longhouse.config.effective import Configured
from longhouse.egress import GRPC
from longhouse.memory.documents.library import DocumentLibrary
from longhouse.models.http.pool import HttpPool
from longhouse.models.protocol import Embedder
from longhouse.redaction import redaction_of
from longhouse.search.finder import Finder
from longhouse.search.indexer import Indexer
from longhouse.search.selection import ToolSearchService
from longhouse.settings import secrets_of
from longhouse.store.database import Database
from longhouse.store.memory.memory_files import Memories
from longhouse.tools.base import BaseTool
from longhouse.tools.bindings import isolated, python
from longhouse.tools.bindings.agent import agent_binding
from longhouse.tools.bindings.base import Binding
from longhouse.tools.bindings.grpc import GrpcBinding
from longhouse.tools.bindings.http import RemoteBinding, open_remote
from longhouse.tools.bindings.remote import EndpointOptions, SecretFor
from longhouse.tools.builtin.tavily import BASE_URL, WebSearch, open_search
from longhouse.tools.config import ExecutionConfig, SearchConfig, ToolConfig
from longhouse.tools.context import Services
from longhouse.tools.grpc.channels import Channels, open_channels
from longhouse.tools.isolation.pool import ProcessPool
from longhouse.tools.mcp.client import open_mcp
from longhouse.tools.offering import Offering
from longhouse.tools.toolbox import Toolbox


@dataclass(frozen=True, slots=True)
class ToolParts:
    toolbox: Toolbox
    offering: Offering
    finder: Finder
    processes: ProcessPool


@asynccontextmanager
async def open_tools(
    core: Core, embedder: Embedder | None, documents: DocumentLibrary, classes: Sequence[type[BaseTool]]
) -> AsyncIterator[ToolParts]:
    """Opens the tools, and publishes them and the templates."""
    setup, settings, catalog = core.setup, core.settings, core.catalog
    config = _common_config(setup)
    configs = setup.of_agents(config)
    common_search = config.search if settings.tavily_api_key.get_secret_value() or settings.tavily_base_url else None
    async with (
        open_finder(core.db, embedder) as finder,
        ProcessPool(most=settings.tool_processes, environment=settings.tool_environment).running() as processes,
        open_searches(common_search, configs) as searches,
        open_remote(setup.egress) as http,
        open_channels(setup.egress) as channels,
    ):
        tool_search = ToolSearchService(catalog, finder)
        services = Services(memory=Memories(core.db), find_tools=tool_search.find, documents=documents)
        given = [os.environ.get(name, "") for name in settings.tool_environment]
        toolbox = Toolbox(
            classes,
            config=config,
            configs=configs,
            services=replace(services, search=searches[None]),
            own_services={name: replace(services, search=searches[name]) for name in configs},
            catalog=catalog,
            binder=partial(bind, http, channels, setup.secrets.find, settings.tool_packages, processes),
            activity=core.activity,
            hide=redaction_of([*secrets_of(settings), *given]).hide,
        )
        await publish(catalog, setup, toolbox.classes, processes)
        async with open_mcp(setup.servers, toolbox):
            search = replace(tool_search, resolve=toolbox.resolve)
            offering = Offering(catalog, toolbox, search, settings.tool_packages)
            yield ToolParts(toolbox, offering, finder, processes)


async def bind(  # noqa: PLR0917 - the caller gives all but the last once
    pool: HttpPool,
    channels: Channels,
    secret_for: SecretFor,
    packages: Sequence[str],
    processes: ProcessPool,
    descriptor: ToolDescriptor,
) -> Binding | None:
    """Binds a catalog descriptor to a class, a remote endpoint or an agent. Classes are imported at first use."""
    way = descriptor.runtime_binding
    if way.agent:
        return agent_binding(descriptor.tool)
    if way.remote_endpoint:
        url, options = way.remote_endpoint, EndpointOptions(api_key_ref=way.api_key_ref, secret_for=secret_for)
        if URL(url).scheme in GRPC:
            return GrpcBinding(descriptor.tool, url, channels, **options)
        return RemoteBinding(descriptor.tool, url, pool, **options)
    if not way.python_entrypoint:
        return None
    if python.isolation_of(descriptor) == "process":
        return await isolated.bound(descriptor, packages, processes)
    return python.bound(descriptor, packages)


def _common_config(setup: Configured) -> ToolConfig:
    """The configuration of tools for all agents that have none of their own."""
    settings = setup.settings
    key, url = settings.tavily_api_key.get_secret_value(), settings.tavily_base_url
    reports = str(settings.reports_dir) if settings.reports_dir else None
    return setup.common(
        ToolConfig(
            search=SearchConfig(tavily_api_key=key, tavily_api_base_url=url or BASE_URL),
            execution=ExecutionConfig(reports_dir=reports),
        )
    )


@asynccontextmanager
async def open_finder(db: Database, embedder: Embedder | None) -> AsyncIterator[Finder]:
    """Opens the search for tools and agents, and keeps its index up to date."""
    async with Indexer(db, embedder).working() as indexer:
        yield Finder(db, embedder, indexer.ready, indexer.reached)


@asynccontextmanager
async def open_searches(
    common: SearchConfig | None, configs: Mapping[str, ToolConfig]
) -> AsyncIterator[Mapping[str | None, WebSearch | None]]:
    """Opens the web searches: that of all agents under None, and under its name that of each agent in the files."""
    configured: dict[str | None, SearchConfig | None] = {None: common}
    configured |= {name: one.search for name, one in configs.items()}
    opened: dict[tuple[str, str], WebSearch] = {}
    found: dict[str | None, WebSearch | None] = {}
    async with AsyncExitStack() as stack:
        for name, one in configured.items():
            is_own = one and (common or one.tavily_api_key or one.tavily_api_base_url != BASE_URL)
            endpoint = (one.tavily_api_base_url, one.tavily_api_key) if one and is_own else None
            if endpoint and endpoint not in opened:
                opened[endpoint] = await stack.enter_async_context(open_search(*endpoint))
            found[name] = opened[endpoint] if endpoint else None
        yield found
