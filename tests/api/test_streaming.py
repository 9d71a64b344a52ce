"""Pieces of a stream go out in their order; those that nobody waits for go together with the next ones."""

import asyncio
from collections.abc import AsyncGenerator

from starlette.types import Message

from longhouse.api.streaming import EventStream, Unhurried


async def written(pieces: AsyncGenerator[bytes, None], client: "Client") -> list[tuple[bytes, bool]]:
    stream: EventStream[bytes] = EventStream(pieces)
    await stream._write(client.send, "")
    return client.got


class Client:
    """Takes what is written; the first of it only when a test says so."""

    def __init__(self) -> None:
        self.got: list[tuple[bytes, bool]] = []
        self.reads = asyncio.Event()
        self.reads.set()
        self.was_sent = asyncio.Event()

    async def send(self, message: Message) -> None:
        if not self.was_sent.is_set():
            self.was_sent.set()
            await self.reads.wait()
        self.got.append((message["body"], message["more_body"]))


async def test_what_nobody_waits_for_goes_with_the_next_piece_or_with_the_end() -> None:
    async def pieces() -> AsyncGenerator[bytes, None]:
        yield b"accepted "
        yield Unhurried(b"started ")
        yield Unhurried(b"called ")
        yield b"text "
        yield Unhurried(b"done")

    got = await written(pieces(), Client())
    assert got == [(b"accepted ", True), (b"started called text ", True), (b"done", False)]


async def test_it_is_written_after_a_moment_if_nothing_follows() -> None:
    client = Client()

    async def pieces() -> AsyncGenerator[bytes, None]:
        yield Unhurried(b"called ")
        await client.was_sent.wait()
        yield b"text"

    assert await written(pieces(), client) == [(b"called ", True), (b"text", True), (b"", False)]


async def test_a_client_that_reads_slowly_gets_everything_in_order() -> None:
    client = Client()
    client.reads.clear()

    async def pieces() -> AsyncGenerator[bytes, None]:
        yield Unhurried(b"called ")
        await client.was_sent.wait()
        yield Unhurried(b"returned ")
        asyncio.get_running_loop().call_later(0.05, client.reads.set)
        await asyncio.sleep(0.04)  # long enough for a second write that nobody waits for
        yield b"text"

    got = await written(pieces(), client)
    assert b"".join(body for body, _ in got) == b"called returned text"


async def test_a_client_that_leaves_leaves_nothing_behind() -> None:
    client = Client()
    client.reads.clear()

    async def pieces() -> AsyncGenerator[bytes, None]:
        yield Unhurried(b"called ")
        await client.was_sent.wait()
        await asyncio.Event().wait()

    writing = asyncio.create_task(written(pieces(), client))
    await client.was_sent.wait()
    writing.cancel()
    await asyncio.wait([writing])
    await asyncio.sleep(0)
    assert asyncio.all_tasks() == {asyncio.current_task()}
    assert client.got == []
