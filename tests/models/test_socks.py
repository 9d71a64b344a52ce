"""Calls of models go through a SOCKS5 proxy, which is told names and not addresses."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import pytest

from longhouse.errors import SetupError
from longhouse.models.http.client import open_endpoint
from longhouse.models.http.failure import HttpFailure
from longhouse.models.scripted import say
from longhouse.models.scripted_server import serve as serve_model
from server_helpers import Serving, content


@dataclass
class SocksProxy:
    """A proxy that leads everybody to one port of this machine."""

    target: int
    password: bytes = b""
    answer: int = 0
    port: int = 0
    asked: list[tuple[str, int]] = field(default_factory=list)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        version, count = await reader.readexactly(2)
        offered = await reader.readexactly(count)
        assert version == 5
        way = 2 if self.password else 0
        writer.write(bytes([5, way if way in offered else 255]))
        if way == 2 and way in offered:
            user = await reader.readexactly((await reader.readexactly(2))[1])
            password = await reader.readexactly((await reader.readexactly(1))[0])
            writer.write(bytes([1, 0 if (user, password) == (b"me", self.password) else 1]))
        await reader.readexactly(3)
        kind = (await reader.readexactly(1))[0]
        length = (await reader.readexactly(1))[0] if kind == 3 else 4
        host = await reader.readexactly(length)
        port = int.from_bytes(await reader.readexactly(2))
        self.asked.append((host.decode() if kind == 3 else ".".join(map(str, host)), port))
        writer.write(bytes([5, self.answer, 0, 1, 0, 0, 0, 0, 0, 0]))
        if self.answer == 0:
            there, back = await asyncio.open_connection("127.0.0.1", self.target)
            await asyncio.gather(_copied(reader, back), _copied(there, writer), return_exceptions=True)
        writer.close()


async def _copied(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while piece := await reader.read(65_536):
        writer.write(piece)
    writer.close()


@asynccontextmanager
async def proxied(proxy: SocksProxy) -> AsyncIterator[str]:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        served.append(asyncio.current_task())
        try:
            await proxy.serve(reader, writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()

    served: list[asyncio.Task[None] | None] = []
    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    proxy.port = server.sockets[0].getsockname()[1]
    try:
        yield f"127.0.0.1:{proxy.port}"
    finally:
        server.close()
        await asyncio.gather(*filter(None, served))


async def test_a_model_is_reached_through_a_socks_proxy(serving: Serving) -> None:
    async with serve_model([say("From afar.")] * 2) as model:
        port = int(model.url.rpartition(":")[2].partition("/")[0])
        for password, user in ((b"", ""), (b"se/cret", "me:se%2Fcret@")):
            proxy = SocksProxy(port, password)
            async with proxied(proxy) as place:
                url, socks = "http://model.invalid:81/v1", f"socks5://{user}{place}"
                async with serving(llm_base_url=url, llm_proxy=socks) as house:
                    assert content(await house.say("Hello")) == "From afar."
            assert proxy.asked == [("model.invalid", 81)]


@pytest.mark.parametrize(
    ("user", "password", "answer", "says"),
    [
        ("", b"secret", 0, "the proxy wants another way to sign in"),
        ("me:wrong@", b"secret", 0, "the proxy refused the user or the password"),
        ("", b"", 5, "the proxy did not connect: the connection was refused"),
    ],
)
async def test_what_a_proxy_refuses_is_told(user: str, password: bytes, answer: int, says: str) -> None:
    async with (
        proxied(SocksProxy(9, password, answer)) as place,
        open_endpoint("http://10.1.2.3/v1", proxy=f"socks5h://{user}{place}") as endpoint,
    ):
        with pytest.raises(HttpFailure) as refused:
            async with endpoint.post(b"{}", most_bytes=10):
                pass
    assert says in refused.value.sentence("It")
    assert "wrong" not in refused.value.sentence("It")


async def test_another_kind_of_proxy_is_refused() -> None:
    with pytest.raises(SetupError, match="the model's proxy is not an address that starts with http:// or https:// or"):
        async with open_endpoint("http://127.0.0.1/v1", proxy="socks4://127.0.0.1:1"):
            pass
