"""Opens what advances sessions: the engine, its worker, and the upkeep of instances and of erased sessions."""

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager

import msgspec
from msgspec.structs import replace

from longhouse.app.copies import cleanup_of
from longhouse.app.core import Core
from longhouse.app.tools import ToolParts
from longhouse.integrations.agent_log import LogFolder
from longhouse.integrations.webhooks.delivering import DeliveryOptions, open_webhooks
from longhouse.memory.parts import MemoryParts
from longhouse.runtime.cleanup.eraser import Eraser
from longhouse.runtime.cleanup.retention import Retention
from longhouse.runtime.engine import Engine
from longhouse.runtime.inbox import Inbox
from longhouse.runtime.steps.delegation import PriorOf
from longhouse.runtime.steps.retry_limits import RetryLimits
from longhouse.runtime.workers.instance_registry import InstanceRegistry
from longhouse.runtime.workers.instances import InstancePool, ModelFor
from longhouse.runtime.workers.worker import Worker, WorkerOptions
from longhouse.settings import Settings


class Runtime(msgspec.Struct, frozen=True):
    engine: Engine
    worker: Worker
    pool: InstancePool
    sent_to_webhooks: Callable[[], Mapping[str, int]] = dict
    """Attempts of this process, by outcome."""


@asynccontextmanager
async def open_runtime(
    core: Core, tools: ToolParts, *, model_for: ModelFor, memory: MemoryParts, prior: PriorOf | None
) -> AsyncIterator[Runtime]:
    """Starts the worker and the upkeep, unless this process leaves sessions to others."""
    settings, pool = core.settings, InstancePool(model_for, core.settings.tool_packages)
    engine = _engine(core, pool, tools, memory, prior)
    options = WorkerOptions(settings.worker_slots, settings.lease_seconds, settings.max_running)
    logs = LogFolder(core.db, core.catalog, settings.agent_log_dir, core.setup.folders("logs_dir"))
    worker = Worker(core.db, core.bus, engine, options, keep_log=logs.keep)
    runtime = Runtime(engine, worker, pool)
    if not core.works:
        yield runtime
        return
    inbox = Inbox(core.db, core.bus)
    async with (
        cleanup_of(core.setup, core.db).running(),
        InstanceRegistry(core.db, pool, worker.id).kept(),
        worker.working(),
        Eraser(inbox).running(),
        Retention(inbox, settings.retain_days).running(),
        open_webhooks(core.db, worker.id, core.setup.webhook_egress, delivery_options(settings)) as webhooks,
    ):
        core.bus.on_append.append(webhooks.nudge)
        yield replace(runtime, sent_to_webhooks=webhooks.outcomes)


def delivery_options(settings: Settings) -> DeliveryOptions:
    return DeliveryOptions(
        retry_delays=[float(one) for one in settings.webhook_retry_delays],
        timeout=settings.webhook_timeout,
        pause_after=settings.webhook_pause_days * 86_400,
        log_days=settings.webhook_log_days,
    )


def _engine(core: Core, pool: InstancePool, tools: ToolParts, memory: MemoryParts, prior: PriorOf | None) -> Engine:
    patience = core.settings.patience
    return Engine(
        core.db,
        core.bus,
        core.catalog,
        tools.toolbox,
        tools.offering,
        pool,
        worker=core.name,
        retry_limits=RetryLimits(attended=patience, unattended=15 * patience),
        prior=prior,
        memory=memory.sessions,
        collects=memory.ledger.enabled,
        external=memory.ledger.external_for,
        activity=core.activity,
        tracing=core.traces.tracing if core.traces else None,
        resident=core.resident,
    )
