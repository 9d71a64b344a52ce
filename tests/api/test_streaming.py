"""Pieces of a stream go out in their order, each by itself; the end goes with the last one."""

from collections.abc import AsyncGenerator

from starlette.types import Message

from longhouse.api.streaming import EventStream, Last


async def written(*pieces: bytes) -> list[tuple[bytes, bool]]:
    got: list[tuple[bytes, bool]] = []

    async def source() -> AsyncGenerator[bytes, None]:
        for piece in pieces:
            yield piece

    async def send(message: Message) -> None:
        got.append((message["body"], message["more_body"]))

    stream: EventStream[bytes] = EventStream(source())
    await stream._write(send, "")
    return got


async def test_the_end_goes_with_the_last_piece_or_by_itself() -> None:
    assert await written(b"accepted", b"text", Last(b"done")) == [
        (b"accepted", True),
        (b"text", True),
        (b"done", False),
    ]
    assert await written(b"accepted", b"broken off") == [(b"accepted", True), (b"broken off", True), (b"", False)]
    assert await written() == [(b"", False)]
