"""Pieces of a stream go out in their order, each by itself; the end goes with the last one."""

from collections.abc import AsyncGenerator

from starlette.types import Message

from longhouse.api.http.streaming import EventStream, Last, bare_error
from longhouse.api.inflight import InflightRequest

START = ("http.response.start", None, None)


async def written(*pieces: bytes | Exception) -> list[tuple[str, bytes | None, bool | None]]:
    """What is sent; what the layers around a route do not see has a star."""
    got: list[tuple[str, bytes | None, bool | None]] = []

    async def source() -> AsyncGenerator[bytes, None]:
        for piece in pieces:
            if isinstance(piece, Exception):
                raise piece
            yield piece

    def note(message: Message, mark: str = "") -> None:
        got.append((message["type"] + mark, message.get("body"), message.get("more_body")))

    async def send(message: Message) -> None:
        note(message)

    async def send_around(message: Message) -> None:
        note(message, "*")

    stream: EventStream[bytes] = EventStream(source(), error=bare_error)
    await stream._write(send, InflightRequest(None, send_around))
    return got


async def test_the_end_goes_with_the_last_piece_or_by_itself() -> None:
    """The layers around a route see the first and the last message: they tell by them where the response is."""
    body, around = "http.response.body", "http.response.body*"
    first = (around, b"accepted", True)
    assert await written(b"accepted", b"text", Last(b"done")) == [
        START, first, (around, b"text", True), (body, b"done", False)
    ]  # fmt: skip
    assert await written(b"accepted", b"broken off") == [
        START, first, (around, b"broken off", True), (body, b"", False)
    ]  # fmt: skip
    assert await written() == [START, (body, b"", False)]
    told = await written(b"accepted", ValueError("a defect"))
    assert told[:2] == [START, first]
    [(kind, error, goes_on)] = told[2:]
    assert (kind, goes_on) == (body, False)
    assert error is not None
    assert error.startswith(b'data: {"error":')
    assert b"a defect" not in error
