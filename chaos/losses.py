"""How soon is everybody done after servers were killed in a row? `python -m chaos --losses`.

Each round: sessions wait for a model that takes three seconds, and all servers are killed as soon as each session has
asked it; again and again, then they are let be. What counts is the time until all are done, from when one serves then.
"""

import asyncio
import multiprocessing
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import aiohttp

from chaos import losing_server
from chaos.house import free_port
from longhouse.agents.strategies.protocol import Body
from longhouse.journal.messages import ToolResult, User, text_of
from longhouse.models.scripted import Say, call, calls, say
from longhouse.models.scripted_server import serve as serve_model
from longhouse.store import migrate
from longhouse.store.database import Database, open_database
from longhouse.store.postgres import open_postgres

WORK: Final = 3.0
"""Seconds that the model takes for a reply."""
PAUSES: Final = 4
"""Between the five events in which a short reply is streamed."""
WITHIN: Final = 1.5
"""Times the work, which is what the same takes where nobody is killed, that a round may take."""
PATIENCE: Final = 300.0
CHATS, SUBAGENTS = 20, 10
DEADLY: Final = "deadly"
OK: Final = 200
_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(["chaos.losing_server"])
DONE: Final = """
    SELECT count(*) = :number FROM sessions
    WHERE NOT due AND wake_at IS NULL AND state IN ('COMPLETED', 'WAITING_FOR_APPROVAL')
"""


@dataclass(frozen=True)
class _Server:
    process: Any
    url: str


@dataclass(frozen=True)
class Round:
    name: str
    kills: int
    chats: int = CHATS
    subagents: int = 0
    servers: int = 1
    is_deadly: bool = False
    """One session more takes its process down each time it is tried."""

    @property
    def sessions(self) -> int:
        return self.chats + (1 + self.subagents if self.subagents else 0) + self.is_deadly


ROUNDS: Final = (
    *(Round(f"{CHATS} chats", kills) for kills in (0, 1, 2, 3, 5)),
    *(Round(f"1 turn with {SUBAGENTS} sub-agents", kills, chats=0, subagents=SUBAGENTS) for kills in (0, 2, 3, 5)),
    *(Round(f"{CHATS} chats, two processes", kills, servers=2) for kills in (0, 2, 3, 5)),
    Round(f"{CHATS} chats and one that kills", 0, is_deadly=True),
)


class _Model:
    def __init__(self) -> None:
        self.asked: set[str] = set()

    def reply(self, body: Body) -> Say:
        task = next(text_of(one.content) for one in body.messages if isinstance(one, User))
        results = [one for one in body.messages if isinstance(one, ToolResult)]
        if task == "boss" and not results:
            numbers = range(SUBAGENTS)
            return calls(*(call("agent_clerk", task=f"part {number}", label=f"clerk{number}") for number in numbers))
        if task == DEADLY:
            return call("deadlytool")
        if task == "boss":
            return call("finalanswertool", answer="Done.")
        self.asked.add(task)
        return say("Done.", delay=WORK / PAUSES)


async def main() -> int:
    """Prints a table; 1 if a round took longer than it may."""
    print(f"| sessions | kills in a row | seconds until all are done (work: {WORK:g} s) |")
    print("|---|---|---|", flush=True)
    is_late, work = False, WORK
    for one in ROUNDS:
        with tempfile.TemporaryDirectory(prefix="longhouse-losses-") as name:
            folder = Path(name)
            folder.chmod(0o711)
            seconds, lives = await _round(one, folder)
        print(f"| {one.name} | {lives} | {seconds:.1f} |", flush=True)
        work = seconds if not lives else work
        is_late = is_late or seconds > WITHIN * work
    return int(is_late)


async def _round(one: Round, folder: Path) -> tuple[float, int]:
    """The seconds, and how often the servers were lost."""
    model = _Model()
    async with (
        open_postgres(folder) as postgres,
        open_database(postgres.dsn) as db,
        serve_model(model.reply, remember=False) as scripted,
    ):
        await migrate.migrate(db, may_extend=postgres.vectors)
        settings = {"LONGHOUSE_DATABASE_URL": postgres.dsn, "LONGHOUSE_LLM_BASE_URL": scripted.url}
        settings |= {"LONGHOUSE_LOG_LEVEL": "error", "LONGHOUSE_RATE_LIMIT": "100000"}
        waiting = {f"task {number}" for number in range(one.chats)} | {f"part {n}" for n in range(one.subagents)}
        tasks = [*(f"task {number}" for number in range(one.chats)), *(["boss"] if one.subagents else [])]
        lost = 0
        while True:
            model.asked.clear()
            servers = [await _served(settings)]
            began = time.monotonic()
            servers += [await _served(settings) for _ in range(one.servers - 1)]
            saying = [asyncio.create_task(_said(servers[0].url, task)) for task in tasks if not lost]
            is_over = lost == one.kills and not one.is_deadly
            try:
                if not is_over and not (one.is_deadly and lost):
                    await _until(lambda: model.asked == waiting)
                if one.is_deadly:
                    saying += [asyncio.create_task(_said(servers[0].url, DEADLY)) for _ in range(not lost)]
                    is_over = await _is_survived(servers[0], db, one.sessions)
                elif is_over:
                    await _until_done(db, one.sessions)
                seconds = time.monotonic() - began
            finally:
                for server in servers:
                    server.process.kill()
                    server.process.join()
                await asyncio.gather(*saying, return_exceptions=True)
            if is_over:
                return seconds, lost
            lost += 1


async def _served(settings: dict[str, str]) -> _Server:
    port = free_port()
    process = _CONTEXT.Process(target=losing_server.run, args=(settings, port), daemon=True)
    process.start()
    server = _Server(process, f"http://127.0.0.1:{port}")
    async with aiohttp.ClientSession(server.url) as http, asyncio.timeout(PATIENCE):
        while True:
            with suppress(aiohttp.ClientError):
                async with http.get("/ready") as response:
                    if response.status == OK:
                        return server
            await asyncio.sleep(0.02)


async def _said(url: str, task: str) -> Any:
    body = {"model": "boss" if task == "boss" else "clerk", "messages": [{"role": "user", "content": task}]}
    async with aiohttp.ClientSession(url) as http, http.post("/v1/chat/completions", json=body) as response:
        return await response.json()


async def _until(is_so: Any) -> None:
    async with asyncio.timeout(PATIENCE):
        while not is_so():
            await asyncio.sleep(0.01)


async def _until_done(db: Database, number: int) -> None:
    async with asyncio.timeout(PATIENCE):
        while not await db.value(DONE, number=number):
            await asyncio.sleep(0.02)


async def _is_survived(server: _Server, db: Database, number: int) -> bool:
    """Waits until all are done; False if the server was taken down first."""
    async with asyncio.timeout(PATIENCE):
        while not await db.value(DONE, number=number):
            if not server.process.is_alive():
                return False
            await asyncio.sleep(0.02)
    return True
