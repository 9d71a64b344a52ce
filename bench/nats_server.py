"""A real NATS server for tests, benchmarks and chaos, on a port of its own; it can be killed and started again."""

import asyncio
import socket
import sysconfig
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

PROGRAM = Path(sysconfig.get_path("scripts")) / "nats-server"


class NatsServer:
    def __init__(self, *options: str) -> None:
        self.options = options
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self._port: int = probe.getsockname()[1]
        self.url = f"nats://127.0.0.1:{self._port}"
        self._process: asyncio.subprocess.Process | None = None

    async def start(self) -> None:
        """Ready when this returns."""
        self._process = await asyncio.create_subprocess_exec(
            *(str(PROGRAM), "--addr", "127.0.0.1", "--port", str(self._port), *self.options),
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL,
        )
        async with asyncio.timeout(20):
            while True:
                try:
                    _, writer = await asyncio.open_connection("127.0.0.1", self._port)
                except OSError:
                    await asyncio.sleep(0.01)
                    continue
                writer.close()
                return

    async def kill(self) -> None:
        assert self._process is not None
        if self._process.returncode is None:
            self._process.kill()
        async with asyncio.timeout(10):
            await self._process.wait()


@asynccontextmanager
async def nats_server() -> AsyncIterator[NatsServer]:
    server = NatsServer()
    await server.start()
    try:
        yield server
    finally:
        await server.kill()
