"""A connection to Postgres that can be cut at the worst moment: after a statement was committed, before its reply."""

import asyncio
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from urllib.parse import parse_qs, quote, urlsplit

from longhouse.store.database import Database, open_database

NAME = ".s.PGSQL.5432"
BIND = b"B"
"""The type of the message that begins the execution of a prepared statement."""
COMMIT = b"Q\x00\x00\x00\x0cCOMMIT;"
"""The message that ends a transaction."""


class Line:
    """A proxy in front of Postgres."""

    def __init__(self, socket: str) -> None:
        self._socket = socket
        self._armed = 0
        self._at = BIND
        self.cuts = 0
        self._served: set[asyncio.Task[None]] = set()

    async def close(self) -> None:
        """Ends when every connection is closed: one that is left would be a warning in whichever test runs later."""
        for task in self._served:
            task.cancel()
        await asyncio.gather(*self._served, return_exceptions=True)

    def lose_reply(self, times: int = 1, *, at: bytes = BIND) -> None:
        """The next messages that begin so are carried out, but nobody hears of it."""
        self._armed, self._at = times, at

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._served.add(task)
        try:
            await self._connect(reader, writer)
        finally:
            self._served.discard(task)
            writer.close()

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        inner_reader, inner_writer = await asyncio.open_unix_connection(self._socket)
        answers = asyncio.create_task(self._copy(inner_reader, writer))
        try:
            while data := await reader.read(2**16):
                if self._armed and data.startswith(self._at):
                    self._armed -= 1
                    answers.cancel()
                    await asyncio.gather(answers, return_exceptions=True)
                    inner_writer.write(data)
                    # Postgres speaks when the statement has been committed.
                    await inner_reader.read(1)
                    self.cuts += 1
                    return
                inner_writer.write(data)
        finally:
            inner_writer.close()  # first what waits for nothing: `close` may cancel this task right here
            answers.cancel()
            await asyncio.gather(answers, return_exceptions=True)

    async def _copy(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while data := await reader.read(2**16):
                writer.write(data)
        writer.close()


@asynccontextmanager
async def unsteady(dsn: str) -> AsyncIterator[tuple[Database, Line]]:
    """The database behind `dsn` over such a line, on a single connection."""
    address = urlsplit(dsn)
    [socket] = parse_qs(address.query)["host"]
    line = Line(f"{socket}/{NAME}")
    with tempfile.TemporaryDirectory(prefix="longhouse-line-") as folder:
        server = await asyncio.start_unix_server(line.serve, f"{folder}/{NAME}")
        async with server:
            query = address.query.replace(quote(socket, safe=""), folder).replace(quote(socket), folder)
            try:
                async with open_database(address._replace(query=query).geturl(), pool_size=1) as db:
                    yield db, line
            finally:
                await line.close()
                await asyncio.sleep(0)  # in which the loop closes what is to be closed
