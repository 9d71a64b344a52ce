"""Opens what serves requests: keys and their limits, metrics, and the HTTP application."""

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from typing import Final

import msgspec
from starlette.types import ASGIApp

from longhouse import background, prices
from longhouse.api import server
from longhouse.api.admin.models import ConfiguredModel
from longhouse.api.auth import Authenticator
from longhouse.api.mcp.endpoint import McpEndpoint
from longhouse.api.rate_limits import KeyLimits
from longhouse.api.watching.metrics import Metrics
from longhouse.api.watching.usage import Prices
from longhouse.app.core import Core
from longhouse.app.publish import validator_of
from longhouse.app.runtime import Runtime
from longhouse.app.tools import ToolParts
from longhouse.config.effective import Configured
from longhouse.memory.parts import MemoryParts
from longhouse.runtime.steps.delegation import PriorOf
from longhouse.runtime.workers.instances import ModelFor
from longhouse.runtime.workers.watchdog import Watchdog
from longhouse.settings import Settings
from longhouse.store.database import Database
from longhouse.store.lists import fleet, statistics

SIZE_EVERY: Final = 1800.0
"""Seconds; a record for each hour is made even if one attempt fails."""


class Api(msgspec.Struct, frozen=True):
    authenticator: Authenticator
    asgi: ASGIApp


@asynccontextmanager
async def open_api(
    core: Core, tools: ToolParts, runtime: Runtime, *, model_for: ModelFor, memory: MemoryParts, prior: PriorOf | None
) -> AsyncIterator[Api]:
    """Opens the HTTP application, and what watches this process and its database for those who ask how they are."""
    setup, settings, watchdog = core.setup, core.settings, Watchdog()
    async with (
        open_authenticator(settings, core.db) as authenticator,
        McpEndpoint(settings.mcp_hosts).running() as mcp,
    ):
        parts = server.Parts(
            db=core.db,
            bus=core.bus,
            catalog=core.catalog,
            metrics=_metrics(core, tools, runtime, memory, watchdog),
            authenticator=authenticator,
            toolbox=tools.toolbox,
            validator=validator_of(setup, core.catalog, tools.processes),
            finder=tools.finder,
            default_template=settings.default_template,
            prior=prior,
            memory=memory,
            model_for=model_for,
            offering=tools.offering,
            model=configured_model(setup),
            is_mirrored=settings.redis_url is not None,
            retain_days=settings.retain_days,
            prices=prices_of(settings),
            root_path=settings.root_path,
            cors_origins=settings.cors_origins,
            mcp=mcp,
            egress=setup.webhook_egress,
            max_schedules=settings.max_schedules,
            declined=runtime.worker.declined,
            activity=core.activity,
            resident=core.resident,
        )
        sample = partial(core.db.run, statistics.SAMPLE_SIZE)
        # It waits for the sweep of the worker, which tells when something is due: where none works, nothing fires.
        firing = partial(parts.scheduler.serve, runtime.worker.schedules_due)
        async with (
            watchdog.watching(),
            background.running("database_size", sample, every=SIZE_EVERY, after=0.45),
            background.running("schedules", firing),
        ):
            yield Api(authenticator, server.build(parts))


def _metrics(core: Core, tools: ToolParts, runtime: Runtime, memory: MemoryParts, watchdog: Watchdog) -> Metrics:
    """The metrics of this process; their values are read at each scrape."""
    db, toolbox, processes, engine = core.db, tools.toolbox, tools.processes, runtime.engine
    return Metrics(
        lambda: runtime.worker.busy,
        lambda: runtime.pool.instances,
        lambda: engine.recorder.refused,
        lambda: (watchdog.times, watchdog.seconds),
        lambda: toolbox.left_behind,
        processes=lambda: (processes.size, processes.ended),
        from_memory=lambda: engine.tool_runner.from_memory,
        memory=memory,
        bus=core.bus,
        fleet=lambda: fleet.counts(db),
        takeovers=lambda: engine.takeovers,
        webhooks=runtime.sent_to_webhooks,
        database_retries=lambda: db.retries,
        connections=lambda: (db.pool.size, db.pool.idle),
        lag=lambda: watchdog.lag,
        activity=core.activity,
        spans=core.traces.spans if core.traces else None,
    )


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
