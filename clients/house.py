"""The server that the clients talk to: a process that is killed and started again at the same address."""

import asyncio
import os
import signal
import socket
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import aiohttp

from clients.model import Model
from longhouse.models.scripted_server import serve as serve_model
from longhouse.store import migrate
from longhouse.store.database import open_database
from longhouse.store.postgres import open_postgres

ADMIN_KEY: Final = "a-key-of-the-clients-run-4711"
STARTS_WITHIN: Final = 120.0


@dataclass
class House:
    port: int
    environment: dict[str, str]
    model: Model
    log: Path
    process: asyncio.subprocess.Process | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def start(self) -> None:
        command = (sys.executable, "-m", "longhouse", "serve", "--port", str(self.port))
        with self.log.open("ab") as log:
            self.process = await asyncio.create_subprocess_exec(*command, env=self.environment, stdout=log, stderr=log)
        async with aiohttp.ClientSession() as http, asyncio.timeout(STARTS_WITHIN):
            while not await _is_ready(http, self.url):
                if self.process.returncode is not None:
                    raise SystemExit(f"the server did not start:\n{self.log.read_text('utf-8')}")
                await asyncio.sleep(0.1)

    async def kill(self) -> None:
        assert self.process is not None
        if self.process.returncode is None:
            self.process.send_signal(signal.SIGKILL)
        await self.process.wait()

    async def new_key(self) -> str:
        """A key of a user: the clients have no more rights than any other."""
        body: dict[str, Any] = {"name": "clients", "owner": "clients", "role": "user"}
        headers = {"authorization": f"Bearer {ADMIN_KEY}"}
        async with (
            aiohttp.ClientSession(self.url) as http,
            http.post("/admin/keys", json=body, headers=headers) as made,
        ):
            made.raise_for_status()
            return str((await made.json())["key"])


async def _is_ready(http: aiohttp.ClientSession, url: str) -> bool:
    try:
        async with http.get(f"{url}/ready") as response:
            return response.status == 200
    except aiohttp.ClientConnectionError:
        return False


@asynccontextmanager
async def open_house() -> AsyncIterator[House]:
    """A server with a Postgres and a model of its own."""
    model = Model()
    with tempfile.TemporaryDirectory(prefix="longhouse-clients-") as name:
        folder = Path(name)
        folder.chmod(0o711)  # Postgres may run under another account, which must enter
        async with open_postgres(folder / "data") as postgres, serve_model(model, remember=False) as served:
            async with open_database(postgres.dsn) as db:
                await migrate.migrate(db, may_extend=postgres.vectors)
            settings = {
                "ADMIN_KEY": ADMIN_KEY,
                "DATABASE_URL": postgres.dsn,
                "LLM_BASE_URL": served.url,
                "LLM_API_KEY": "none",
                **dict.fromkeys(("CONFIG_FILE", "AGENTS_FILE", "LOGGING_CONFIG"), ""),
            }
            environment = {**os.environ, **{f"LONGHOUSE_{key}": value for key, value in settings.items()}}
            house = House(_free_port(), environment, model, folder / "log")
            await house.start()
            try:
                yield house
            finally:
                await house.kill()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
