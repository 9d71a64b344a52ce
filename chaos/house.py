"""The house under test: a Postgres, gateways, workers, the ledger and the model; what dies is started again."""

import asyncio
import os
import random
import re
import shutil
import signal
import socket
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import aiohttp
from bench.house import printing
from bench.nats_server import NatsServer, nats_server

from chaos import ledger
from chaos.history import History, Loss
from chaos.kill_points import BY_NAME, KILLED_AT, POINTS, Role
from chaos.launch import Launch, Launched
from chaos.model import HELPER, Model
from chaos.mutants import Mutant
from longhouse.models.scripted_server import serve as serve_model
from longhouse.store import migrate
from longhouse.store.database import Database, open_database
from longhouse.store.postgres import Postgres, open_postgres

START_WITHIN: Final = 60.0
SECRETS: Final = {
    "LONGHOUSE_LLM_API_KEY": "sk-canary-of-the-model-1f8e",
    "LONGHOUSE_SECRET_LEDGER": "canary-of-ledger-77c2",
}
"""Canaries: they must be in no log, no table and no stream."""
MEMBERS: Final[tuple[tuple[str, Role], ...]] = (
    ("gateway-1", "gateway"),
    ("gateway-2", "gateway"),
    ("worker-1", "worker"),
    ("worker-2", "worker"),
    ("worker-3", "worker"),
)
READY: Final = re.compile(r"worker ready: |serves on http://")
WORKER, BOSS = "chaos_worker", "chaos_boss"
TIME_BUDGET: Final = 10.0
"""Seconds of work of a turn: several times what one takes."""


@dataclass
class Member:
    """A gateway or a worker, over all its lives."""

    name: str
    role: Role
    port: int
    lives: int = 0
    process: Launched | None = None
    point: str = ""
    killed: str = ""
    """By which fault it is about to die."""
    is_ready: asyncio.Event = field(default_factory=asyncio.Event)
    is_frozen: bool = False
    left_at: float = 0.0
    """When it was told to leave; 0: it was not."""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"


class PostgresServer:
    """A Postgres of its own, which can be killed and started again."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.dsn = ""
        self.up = asyncio.Event()
        self._stack = AsyncExitStack()
        self._server: Postgres | None = None

    async def start(self) -> None:
        self._server = await self._stack.enter_async_context(open_postgres(self.folder))
        self.dsn = self._server.dsn
        self.up.set()

    async def kill(self) -> None:
        """SIGKILL for the postmaster; its children follow."""
        assert self._server is not None
        self.up.clear()
        pid = int((self.folder / "postgres" / "postmaster.pid").read_text().split()[0])
        os.kill(pid, signal.SIGKILL)
        await self._server.gone.wait()
        await self.stop()

    async def stop(self) -> None:
        await self._stack.aclose()


class House:
    def __init__(
        self, folder: Path, history: History, *, seed: int, lease: float, mutant: Mutant | None = None
    ) -> None:
        self.folder = folder
        self.lease = lease
        self.history = history
        self.mutant = mutant
        self.postgres = PostgresServer(folder / "data")
        self.nats: NatsServer | None = None
        self.model = Model()
        self.members = [Member(name, role, free_port()) for name, role in MEMBERS]
        self.ledger_file = folder / "ledger.sqlite"
        self.environment: dict[str, str] = {}
        self._random = random.Random(f"{seed} points")
        self._arms = mutant is None
        self._is_closing = False
        self.may_run = asyncio.Event()
        """Cleared: nobody is started, as after a power cut."""
        self.may_run.set()
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def gateways(self) -> list[Member]:
        return [one for one in self.members if one.role == "gateway"]

    @property
    def workers(self) -> list[Member]:
        return [one for one in self.members if one.role == "worker"]

    def url(self, chooser: random.Random) -> str:
        """A gateway that is there, if one is."""
        ready = [one for one in self.gateways if one.is_ready.is_set()]
        return chooser.choice(ready or self.gateways).url

    async def start(self) -> None:
        for member in self.members:
            self._tasks.append(asyncio.create_task(self._keep(member)))
        await self.all_ready()

    async def all_ready(self) -> None:
        async with asyncio.timeout(START_WITHIN):
            for member in self.members:
                await member.is_ready.wait()

    def disarm(self) -> None:
        """From now on nobody is started with a kill point."""
        self._arms = False

    async def restart_armed(self) -> None:
        """Ends the lives of those that still carry a kill point, so that the checks meet no fault."""
        for member in self.members:
            if member.point and member.process:
                self.kill(member, "disarmed")
                await member.process.ended.wait()
        await asyncio.sleep(0.1)
        await self.all_ready()

    def kill(self, member: Member, why: str) -> None:
        member.killed = why
        assert member.process is not None
        self._mark_lost(member, why, time.time())
        member.process.send(signal.SIGKILL)

    def dismiss(self, member: Member) -> None:
        """SIGTERM: it brings its steps to their next record and leaves, and nothing of it counts as lost."""
        assert member.process is not None
        member.left_at = time.time()
        member.is_ready.clear()
        self.history.log("leaves", member=member.name, pid=member.process.pid)
        member.process.send(signal.SIGTERM)

    def _mark_lost(self, member: Member, why: str, at: float) -> None:
        assert member.process is not None
        self.history.losses.append(Loss(pid=member.process.pid, kind="killed", at=at))
        self.history.log("killed", member=member.name, why=why, pid=member.process.pid)

    async def stop(self) -> None:
        self._is_closing = True
        for member in self.members:
            if member.process:
                member.process.send(signal.SIGCONT)
                member.process.send(signal.SIGKILL)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for member in self.members:
            if member.process:
                await member.process.ended.wait()

    async def _keep(self, member: Member) -> None:
        """Starts the process again whenever it has ended."""
        while not self._is_closing:
            await self.postgres.up.wait()
            await self.may_run.wait()
            member.lives += 1
            member.point, nth = self._next_point(member.role)
            log = self.folder / "logs" / f"{member.name}.{member.lives}.log"
            member.killed, member.is_frozen, member.left_at = "", False, 0.0
            member.process = Launched(
                Launch(
                    command=_command(member),
                    environment=self.environment,
                    folder=self.folder,
                    log=log,
                    point=member.point,
                    nth=nth,
                    mutant=self.mutant.name if self.mutant else "",
                )
            )
            await self._until_ready(member, log)
            await member.process.ended.wait()
            member.is_ready.clear()
            self._note_end(member, log)

    def _next_point(self, role: Role) -> tuple[str, int]:
        """The point that was reached least; one life in four is without any."""
        if not self._arms or self._random.random() < 0.25:
            return "", 1
        reached = self.history.points
        least = min(reached[one.name] for one in POINTS if one.role == role)
        name = self._random.choice([one.name for one in POINTS if one.role == role and reached[one.name] == least])
        return name, self._random.randint(1, 8 if least else 4)

    async def _until_ready(self, member: Member, log: Path) -> None:
        process = member.process
        assert process is not None
        while not process.ended.is_set():
            if log.exists() and READY.search(log.read_text(errors="replace")):
                member.is_ready.set()
                self.history.log("started", member=member.name, pid=process.pid, point=member.point)
                return
            await asyncio.sleep(0.02)

    def _note_end(self, member: Member, log: Path) -> None:
        assert member.process is not None
        if member.killed or self._is_closing:
            return
        # The last line is written right before the end; whoever takes over may do so before we hear of it.
        died_at = log.stat().st_mtime
        last = log.read_text(errors="replace").splitlines()[-1:]
        if last and last[0].startswith(KILLED_AT):
            name = last[0].removeprefix(KILLED_AT)
            assert name in BY_NAME
            self.history.points[name] += 1
            self.history.kills["kill point"] += 1
            self._mark_lost(member, f"point {name}", died_at)
            return
        if member.left_at and member.process.code == 0:
            # What it held while Postgres was away it could not give back: others take that over as from a lost one.
            if not self.postgres.up.is_set() or any(ended >= member.left_at for _, ended in self.history.troubles):
                self._mark_lost(member, "left while Postgres was in trouble", member.left_at)
            return
        self._mark_lost(member, "ended by itself", died_at)
        if not self.postgres.up.is_set() or any("Postgres" in line for line in last):
            return  # it was started while Postgres was away, and said so
        self.history.defects.append(f"{member.name} ended by itself with {member.process.code}: see {log.name}")


def _command(member: Member) -> tuple[str, ...]:
    return ("work",) if member.role == "worker" else ("serve", "--no-worker", "--port", str(member.port))


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@asynccontextmanager
async def open_house(house: House, *, nats: bool) -> AsyncIterator[Database]:
    """Everything runs, and the agents are published; the database as the checks read it."""
    (house.folder / "logs").mkdir()
    async with AsyncExitStack() as stack:
        stack.push_async_callback(house.postgres.stop)
        await house.postgres.start()
        db = await stack.enter_async_context(open_database(house.postgres.dsn, pool_size=4))
        await migrate.migrate(db)
        for sql in house.mutant.sql if house.mutant else ():
            await db.run(sql)
        model = await stack.enter_async_context(serve_model(house.model.reply, remember=False))
        ledger_command = (sys.executable, "-m", "chaos.ledger", str(house.ledger_file))
        _, port = await stack.enter_async_context(printing(*ledger_command))
        if nats:
            house.nats = await stack.enter_async_context(nats_server())
        house.environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("LONGHOUSE_")},
            "LONGHOUSE_DATABASE_URL": house.postgres.dsn,
            "LONGHOUSE_LLM_BASE_URL": model.url,
            "LONGHOUSE_LEASE_SECONDS": str(house.lease),
            "LONGHOUSE_ALLOW_EGRESS": f"127.0.0.1:{port}",
            "LONGHOUSE_LOG_LEVEL": "info",
            "LONGHOUSE_RATE_LIMIT": "1000000",
            "LONGHOUSE_MAX_CONCURRENT": "10000",
            "LONGHOUSE_SESSIONS_PER_HOUR": "1000000",
            **dict.fromkeys(("LONGHOUSE_CONFIG_FILE", "LONGHOUSE_AGENTS_FILE", "LONGHOUSE_LOGGING_CONFIG"), ""),
            **SECRETS,
            **({"LONGHOUSE_NATS_URL": house.nats.url} if house.nats else {}),
        }
        stack.push_async_callback(house.stop)
        await house.start()
        await _publish(house.gateways[0].url, f"http://127.0.0.1:{port}")
        yield db


async def _publish(url: str, endpoint: str) -> None:
    async with aiohttp.ClientSession(url) as http:
        for effect in ledger.EFFECTS:
            await _sent(http, "/admin/tools", _tool(effect, f"{endpoint}/{effect}"))
        tools = [f"ledger_{effect}" for effect in ledger.EFFECTS]
        for name, also in ((HELPER, tools), (WORKER, tools), (BOSS, [f"agent.{HELPER}"])):
            policy = {"allowlist": ["clarificationtool", "finalanswertool", *also], "selection_strategy": "static"}
            limits = {"time_budget": TIME_BUDGET}
            await _sent(http, "/admin/templates", {"name": name, "tool_policy": policy, "execution_policy": limits})


def _tool(effect: str, endpoint: str) -> dict[str, Any]:
    note = {"type": "object", "properties": {"note": {"type": "string"}}, "required": ["note"]}
    return {
        "name": f"ledger_{effect}",
        "description_short": f"Writes a note into the ledger, as a tool that is {effect}.",
        "input_schema": note,
        "runtime_binding": {"remote_endpoint": endpoint, "api_key_ref": "ledger"},
        "effect": effect,
        "timeout": 20,
    }


async def _sent(http: aiohttp.ClientSession, path: str, body: dict[str, Any]) -> None:
    async with http.post(path, json=body) as response:
        assert response.status == 201, await response.text()


@asynccontextmanager
async def run_folder(kept: Path | None) -> AsyncIterator[Path]:
    """A folder that the account of Postgres may enter; removed afterwards unless it was named."""
    folder = kept or Path(tempfile.mkdtemp(prefix="longhouse-chaos-"))
    folder.mkdir(parents=True, exist_ok=True)
    folder.chmod(0o711)
    try:
        yield folder.absolute()
    finally:
        if kept is None:
            shutil.rmtree(folder, ignore_errors=True)
