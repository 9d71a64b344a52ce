"""The composition root: opens, wires and closes all resources of the application, in the order of `open_app`."""

import logging
import sys
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager

import msgspec
import structlog
from starlette.types import ASGIApp

from longhouse.agents.builtin import BUILT_IN
from longhouse.agents.template import Template
from longhouse.api.auth import Authenticator
from longhouse.app.api import open_api
from longhouse.app.builtin import TOOLS
from longhouse.app.copies import open_mirror
from longhouse.app.core import open_core
from longhouse.app.memory import open_memory
from longhouse.app.models import open_embedder, open_model
from longhouse.app.runtime import open_runtime
from longhouse.app.tools import open_tools
from longhouse.config.effective import configure
from longhouse.config.loader import LoadedFiles
from longhouse.runtime.bus.local import Bus
from longhouse.runtime.workers.instances import InstancePool
from longhouse.runtime.workers.resident_sessions import ResidentSessions
from longhouse.runtime.workers.worker import Worker
from longhouse.settings import Settings
from longhouse.store.catalog.catalog import Catalog
from longhouse.store.database import Database
from longhouse.store.postgres import Postgres
from longhouse.store.postgres.embedded import Embedded
from longhouse.tools.base import BaseTool

__all__ = ["TOOLS", "App", "open_app"]


class App(msgspec.Struct, frozen=True):
    """A running Longhouse: its parts, and the ASGI application in front of them."""

    db: Database
    bus: Bus
    worker: Worker
    pool: InstancePool
    catalog: Catalog
    authenticator: Authenticator
    asgi: ASGIApp
    postgres: Postgres | None
    """None with an external Postgres."""
    is_demo: bool
    """No model is configured: the built-in demo model answers."""
    resident: ResidentSessions
    files: LoadedFiles
    """What the files say, with the tools as they were published."""


@asynccontextmanager
async def open_app(
    settings: Settings,
    *,
    templates: Iterable[Template] = BUILT_IN,
    tools: Iterable[type[BaseTool]] = TOOLS,
    works: bool = True,
    embedded: Embedded | None = None,
) -> AsyncIterator[App]:
    """Opens everything; without `works`, sessions are left to the workers of other processes.

    `embedded`: the embedded Postgres, if the caller has opened it; it is the caller who closes it.
    """
    if not structlog.is_configured():  # a program that says nothing of logs reads warnings alone
        level = structlog.make_filtering_bound_logger(logging.WARNING)
        structlog.configure(wrapper_class=level, logger_factory=structlog.WriteLoggerFactory(sys.stderr))
    classes = tuple(tools)
    setup = configure(settings, templates=templates, tools=[cls.tool_name for cls in classes])
    async with (
        open_core(setup, works=works, embedded=embedded) as core,
        open_model(setup) as model_for,
        open_embedder(core.settings) as embedder,
        open_mirror(core.settings, core.db, core.bus) as prior,
        open_memory(core.settings, core.db, core.bus, embedder) as memory,
        open_tools(core, embedder, memory.documents, classes) as opened,
        open_runtime(core, opened, model_for=model_for, memory=memory, prior=prior) as runtime,
        open_api(core, opened, runtime, model_for=model_for, memory=memory, prior=prior) as api,
    ):
        yield App(
            db=core.db,
            bus=core.bus,
            worker=runtime.worker,
            pool=runtime.pool,
            catalog=core.catalog,
            authenticator=api.authenticator,
            asgi=api.asgi,
            postgres=core.postgres,
            is_demo=not core.settings.llm_base_url,
            resident=core.resident,
            files=setup.files,
        )
