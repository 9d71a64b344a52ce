"""The ledger: three tools behind one HTTP server, in a process and with a database of their own.

Every call is written down, fsynced, before it is answered: what is not in here did not happen.
"""

import argparse
import asyncio
import hashlib
import signal
import sqlite3
import zlib
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import msgspec
from aiohttp import web

EFFECTS: Final = ("read", "idempotent", "once")
"""Each is a tool: `ledger_read`, `ledger_idempotent`, `ledger_once`."""
SLOWEST: Final = 0.25
"""Seconds between the effect and its answer, at most: in between, workers are killed."""
TABLE: Final = "CREATE TABLE calls (key TEXT, effect TEXT, arguments TEXT, at REAL)"


@dataclass(frozen=True)
class Effect:
    """One call that reached the ledger."""

    key: str
    effect: str
    arguments: str
    """A digest of them."""
    at: float


def read(file: Path) -> list[Effect]:
    with sqlite3.connect(file) as book:
        return [Effect(*row) for row in book.execute("SELECT key, effect, arguments, at FROM calls ORDER BY at")]


class _Ledger:
    def __init__(self, file: Path) -> None:
        self._book = sqlite3.connect(file, isolation_level=None)
        self._book.execute("PRAGMA synchronous = FULL")
        self._book.execute(TABLE)

    async def call(self, request: web.BaseRequest) -> web.StreamResponse:
        body, key = await request.content.read(), request.headers["Idempotency-Key"]
        row = (key, request.path.strip("/"), hashlib.sha256(body).hexdigest(), datetime.now(UTC).timestamp())
        self._book.execute("INSERT INTO calls VALUES (?, ?, ?, ?)", row)
        await asyncio.sleep(SLOWEST * (zlib.crc32(key.encode()) % 100) / 100)
        # The secret comes back, as from a careless service: it must not be seen behind the worker.
        answer = {"written": key, "you": request.headers.get("Authorization", "")}
        return web.Response(body=msgspec.json.encode(answer), content_type="application/json")


async def main(file: Path) -> None:
    ended = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, ended.set)
    runner = web.ServerRunner(web.Server(_Ledger(file).call, access_log=None), shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    print(runner.addresses[0][1], flush=True)
    await ended.wait()
    await runner.cleanup()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m chaos.ledger", description=__doc__)
    parser.add_argument("file", type=Path)
    asyncio.run(main(parser.parse_args().file))
