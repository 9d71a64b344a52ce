"""One real Postgres for all tests, a database for each; a Longhouse served over a real socket."""

import asyncio
import gc
import shutil
import subprocess
import sys
import tempfile
import threading
import uuid
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest.mock import patch
from urllib.parse import urlsplit

import asyncpg
import pytest
import pytest_asyncio
import structlog
from hypothesis import HealthCheck, settings
from redis.asyncio import Redis

import conformance
import forked_server
import forked_workers
import mcp_nursery
from browser_helpers import open_browser
from databases import TEMPLATE, Databases, dsn_of
from longhouse.integrations.redis.client import open_redis
from longhouse.memory.documents import sandbox
from longhouse.store import connections, migrate
from longhouse.store.database import Database, open_database
from longhouse.store.postgres import cluster, open_postgres
from redis_server import RedisServer, redis_server
from server_helpers import Serving, data_folder, in_memory

if TYPE_CHECKING:
    from playwright.async_api import Browser

# A connection of a pool is waited for a little longer than in production before another one is opened: four workers on
# two processors hold each other up, and to each new connection Postgres owes a process and all plans once more.
connections.PATIENCE = 0.1  # type: ignore[misc]

# Four workers on two processors hold each other up: how long an example takes says nothing of it.
settings.register_profile("tests", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("tests")

gc.disable()  # until everything is collected: imports leave no garbage

BRIEF = {"fsync": "off", "full_page_writes": "off", "autovacuum": "off", "max_wal_size": "256MB"}
"""How Postgres is set for databases that live for seconds, and that nobody needs after a power cut."""

LONG = (
    "tests/api/test_schemathesis.py", "tests/console/", "tests/store/test_state_machine.py",
    "tests/stories/test_kill.py", "tests/stories/test_mcp_kill.py", "tests/stories/test_project.py",
    "tests/test_docs.py",
)  # fmt: skip
"""Stories that take many seconds each."""

READER = sandbox.COMMAND
MANY = 500
"""Tests that are worth some seconds of preparation."""

# A traceback with the values of all variables takes seconds to write, in which the event loop stands still.
structlog.configure(
    processors=[
        structlog.processors.add_log_level,
        structlog.dev.ConsoleRenderer(colors=False, exception_formatter=structlog.dev.plain_traceback),
    ]
)


class SharedPostgres:
    """An embedded Postgres that lives as long as the test run, on a loop in a thread of its own."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="longhouse-tests-", dir=in_memory()))
        # Postgres may run under another account, which must be able to enter.
        self.folder.chmod(0o711)
        self.prepared = self.folder / "prepared"
        """A data folder that was migrated and left: whoever copies it need not make one."""
        self.dsn = ""
        self._ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()), daemon=True)

    def start(self) -> None:
        self._thread.start()
        assert self._ready.wait(60), "Postgres did not start"

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._over.set)
        self._thread.join(30)
        shutil.rmtree(self.folder, ignore_errors=True)

    async def _run(self) -> None:
        self._loop, self._over = asyncio.get_running_loop(), asyncio.Event()
        async with AsyncExitStack() as stack:
            with patch.dict(cluster.SETTINGS, BRIEF), structlog.testing.capture_logs():
                async with open_postgres(self.prepared) as postgres, open_database(postgres.dsn) as db:
                    await migrate.migrate(db, may_extend=postgres.vectors)
                copied(self.prepared, self.folder)
                postgres = await stack.enter_async_context(open_postgres(self.folder))
            connection = await asyncpg.connect(dsn_of(postgres.dsn, "postgres"))
            await connection.execute(f"CREATE DATABASE {TEMPLATE} TEMPLATE longhouse")
            await connection.close()
            self.dsn = postgres.dsn
            self._ready.set()
            await self._over.wait()


def copied(prepared: Path, folder: Path) -> None:
    """Copies the Postgres of a data folder that nobody uses, with its owner."""
    subprocess.run(["cp", "-a", prepared / "postgres", folder], check=True)


def pytest_configure(config: pytest.Config) -> None:
    if hasattr(config, "workerinput") or config.option.collectonly:
        return
    # Before there are threads. Coverage is measured by workers that are started; only Linux can wait for a grandchild.
    is_measured = bool(getattr(config.option, "cov_source", None))
    if config.option.dist != "no" and config.option.tx and not is_measured and sys.platform == "linux":
        config.collector = forked_workers.Collector(config)  # type: ignore[attr-defined]
        config.pluginmanager.register(config.collector)  # type: ignore[attr-defined]
    config.shared_postgres = SharedPostgres()  # type: ignore[attr-defined]
    config.shared_postgres.start()  # type: ignore[attr-defined]
    config.databases = Databases(config.shared_postgres.dsn)  # type: ignore[attr-defined]
    config.prepared = config.shared_postgres.prepared  # type: ignore[attr-defined]


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    node.workerinput["shared_dsn"] = node.config.databases.dsn
    node.workerinput["prepared"] = str(node.config.prepared)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The longest first: one that begins last is waited for by all workers."""
    items.sort(key=lambda item: not item.nodeid.startswith(LONG))


def pytest_collection_finish(session: pytest.Session) -> None:
    """What every worker would make when its first test needs it is made before they are forked, if there are many."""
    if forked_workers.collects(session.config) and len(session.items) > MANY:
        for module in (conformance, forked_server, mcp_nursery):
            module.share()
        sandbox.COMMAND = (*mcp_nursery.forked("-m"), sandbox.WORKER)  # type: ignore[misc]


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> None:
    if given := getattr(session.config, "workerinput", None):
        session.config.databases = Databases(given["shared_dsn"])  # type: ignore[attr-defined]
        session.config.prepared = Path(given["prepared"])  # type: ignore[attr-defined]
    # What was imported and collected stays: no need to look through it for garbage again and again.
    gc.freeze()
    gc.enable()
    gc.set_threshold(50_000, 20, 100)


def pytest_unconfigure(config: pytest.Config) -> None:
    if databases := getattr(config, "databases", None):
        databases.close()
    if postgres := getattr(config, "shared_postgres", None):
        postgres.stop()
    if collector := getattr(config, "collector", None):
        collector.close()


@asynccontextmanager
async def database(request: pytest.FixtureRequest, template: str = "template1") -> AsyncIterator[str]:
    """A database of one's own on the shared server."""
    databases: Databases = request.config.databases  # type: ignore[attr-defined]
    name = await databases.make(template)
    try:
        yield dsn_of(databases.dsn, name)
    finally:
        databases.leave(name)


@pytest.fixture(autouse=True)
def warehouse_key(monkeypatch: pytest.MonkeyPatch) -> None:
    """The secret that the examples of the Admin API name."""
    monkeypatch.setenv("LONGHOUSE_SECRET_WAREHOUSE", "key-of-the-warehouse")


@asynccontextmanager
async def plain_role(admin: str, *, owner: bool = True) -> AsyncIterator[str]:
    """An account of a Postgres that belongs to others: it owns this database, or not even that, and is nobody else."""
    role, connection = f"plain_{uuid.uuid4().hex}", await asyncpg.connect(admin)
    try:
        await connection.execute(f"CREATE ROLE {role} LOGIN")
        if owner:
            name = await connection.fetchval("SELECT current_database()")
            await connection.execute(f"ALTER DATABASE {name} OWNER TO {role}")
        yield admin.replace("longhouse@", f"{role}@")
    finally:
        await connection.execute(f"REASSIGN OWNED BY {role} TO CURRENT_USER; DROP OWNED BY {role}; DROP ROLE {role}")
        await connection.close()


@pytest.fixture
async def dsn(request: pytest.FixtureRequest) -> AsyncIterator[str]:
    """A fresh, migrated database."""
    async with database(request, TEMPLATE) as dsn:
        yield dsn


@pytest.fixture
def started_readers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Documents are read by processes that are started, not forked from one that has loaded what they need."""
    monkeypatch.setattr(sandbox, "COMMAND", READER)


@pytest.fixture
def new_connections(request: pytest.FixtureRequest, dsn: str) -> None:
    """For a test that changes what a connection to its database begins with: none was opened by an earlier one."""
    request.config.databases.backends.clear(urlsplit(dsn).path[1:])  # type: ignore[attr-defined]


@pytest.fixture
def folder(request: pytest.FixtureRequest) -> Iterator[Path]:
    """A data folder whose Postgres is made and migrated already: a first start takes two seconds of a processor."""
    with data_folder() as folder:
        copied(request.config.prepared, folder)  # type: ignore[attr-defined]
        yield folder


@pytest.fixture
async def db(dsn: str) -> AsyncIterator[Database]:
    async with open_database(dsn) as database:
        yield database


@pytest.fixture
def serving(dsn: str) -> Serving:
    """Starts Longhouses on this test's database: `async with serving(...) as house:`."""
    return Serving(dsn)


@pytest.fixture
async def server() -> AsyncIterator[RedisServer]:
    """A Redis of this test's own."""
    async with redis_server() as started:
        yield started


@pytest.fixture
async def redis(server: RedisServer) -> AsyncIterator[Redis]:
    async with open_redis(server.url) as client:
        yield client


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def browser() -> AsyncIterator["Browser"]:
    """One Chromium for all stories of the console; they run on the loop that it was opened on."""
    async with open_browser() as opened:
        yield opened
