"""The lines between a Longhouse and its Postgres, which can go silent or be slow."""

import asyncio
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from urllib.parse import parse_qs, quote, urlsplit

NAME = ".s.PGSQL.5432"


class Held:
    """The first message with these words; it waits until it may pass."""

    def __init__(self, words: bytes) -> None:
        self.words = words
        self.came, self.may_pass = asyncio.Event(), asyncio.Event()


class Lines:
    def __init__(self, socket: str) -> None:
        self._socket = socket
        self._silent: set[asyncio.StreamWriter] = set()
        self._open: set[asyncio.StreamWriter] = set()
        self._held: Held | None = None
        self._served: set[asyncio.Task[None]] = set()
        self._closed = asyncio.Event()
        self._flows = asyncio.Event()
        self._flows.set()

    def fall_silent(self) -> None:
        """On every line of now nothing is heard any more, neither words nor an end; new ones work."""
        self._silent |= self._open

    def freeze(self) -> None:
        """Nothing is heard on any line, new ones among them, as if Postgres itself stood still."""
        self._flows.clear()

    def thaw(self) -> None:
        """All that was said meanwhile arrives."""
        self._flows.set()

    def hold(self, words: bytes) -> Held:
        self._held = Held(words)
        return self._held

    async def close(self) -> None:
        """Ends when every line is closed."""
        self._closed.set()
        for task in self._served:
            task.cancel()
        await asyncio.gather(*self._served, return_exceptions=True)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._served.add(task)
        try:
            await self._connect(reader, writer)
        finally:
            self._served.discard(task)
            await _close(writer)

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        inner_reader, inner_writer = await asyncio.open_unix_connection(self._socket)
        self._open.add(writer)
        copying = [
            asyncio.create_task(self._copy(reader, inner_writer, writer)),
            asyncio.create_task(self._copy(inner_reader, writer, writer)),
        ]
        try:
            await asyncio.wait(copying, return_when=asyncio.FIRST_COMPLETED)
            if writer in self._silent:
                await self._closed.wait()
        finally:
            # First what waits for nothing: `close` may cancel this task right here.
            self._open.discard(writer)
            inner_writer.close()
            for task in copying:
                task.cancel()
            await asyncio.gather(*copying, return_exceptions=True)
            await _close(inner_writer)

    async def _copy(self, reader: asyncio.StreamReader, to: asyncio.StreamWriter, line: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while data := await reader.read(2**16):
                if line in self._silent:
                    return
                held = self._held
                if held and held.words in data:
                    self._held = None
                    held.came.set()
                    await held.may_pass.wait()
                await self._flows.wait()
                to.write(data)


async def _close(writer: asyncio.StreamWriter) -> None:
    writer.close()
    with suppress(OSError):
        await writer.wait_closed()


@asynccontextmanager
async def lines(dsn: str) -> AsyncIterator[tuple[str, Lines]]:
    """The same database over lines of this kind."""
    address = urlsplit(dsn)
    [socket] = parse_qs(address.query)["host"]
    between = Lines(f"{socket}/{NAME}")
    with tempfile.TemporaryDirectory(prefix="longhouse-lines-") as folder:
        server = await asyncio.start_unix_server(between.serve, f"{folder}/{NAME}")
        async with server:
            query = address.query.replace(quote(socket, safe=""), folder).replace(quote(socket), folder)
            try:
                yield address._replace(query=query).geturl(), between
            finally:
                await between.close()
