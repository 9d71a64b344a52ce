"""Connections to MCP servers over HTTP: made to the very address that was checked, and never to metadata of a cloud."""

import asyncio

import httpcore2
import httpx2
import pytest

from longhouse.egress import look_up
from longhouse.errors import SetupError
from longhouse.tools.mcp.config import read_server
from longhouse.tools.mcp.transport import Guarded, client_of

NOWHERE = "::a9fe:a9fe"
"""A metadata address in a form that no network carries: should a check be missing, nobody is met there."""


async def test_a_name_is_looked_up_once_and_what_was_checked_is_connected_to() -> None:
    met: list[str] = []

    async def lookup(host: str, port: int) -> list[str]:
        met.append(host)
        return ["127.0.0.9", "127.0.0.1"] if len(met) == 1 else ["127.0.0.1", "169.254.169.254"]

    async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"hello")
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(greet, "127.0.0.1", 0) as server:
        port, guarded = server.sockets[0].getsockname()[1], Guarded(lookup)
        stream = await guarded.connect_tcp("mcp.test", port, timeout=5)
        assert await stream.read(100, timeout=5) == b"hello", "one address that is silent is passed over"
        await stream.aclose()
        with pytest.raises(httpcore2.ConnectError, match=r"mcp\.test is a link-local or metadata address"):
            await guarded.connect_tcp("mcp.test", port)
    assert met == ["mcp.test", "mcp.test"]


async def test_the_client_of_a_server_goes_nowhere_that_is_not_allowed() -> None:
    assert await look_up("169.254.169.254", 80) == ["169.254.169.254"]
    async with client_of({"X-Key": "canary"}) as client:
        with pytest.raises(httpx2.ConnectError, match="which nothing here may reach"):
            await client.get("http://169.254.169.254/mcp")


@pytest.mark.parametrize("beside", ["no_proxy", "https"])
async def test_a_proxy_of_the_environment_takes_nothing_from_what_goes_beside_it(
    monkeypatch: pytest.MonkeyPatch, beside: str
) -> None:
    asked: list[bytes] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.append((await reader.readuntil(b"\r\n\r\n")).splitlines()[0])
        writer.write(b"HTTP/1.1 204 No Content\r\nConnection: close\r\n\r\n")
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as proxy:
        monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{proxy.sockets[0].getsockname()[1]}")
        monkeypatch.setenv("no_proxy", NOWHERE if beside == "no_proxy" else "")
        scheme = "http" if beside == "no_proxy" else "https"
        async with client_of() as client:
            assert (await client.get("http://mcp.test/mcp")).status_code == 204, "looked up by the proxy"
            with pytest.raises(httpx2.ConnectError, match="which nothing here may reach"):
                await client.get(f"{scheme}://[{NOWHERE}]/mcp", timeout=5)
    assert asked == [b"GET http://mcp.test/mcp HTTP/1.1"]


def test_a_server_among_metadata_is_a_mistake_of_its_file() -> None:
    with pytest.raises(SetupError, match=r"the MCP server 'tried' cannot be reached: .* is a link-local"):
        read_server("tried", {"url": "http://169.254.169.254/mcp"}, {})
    with pytest.raises(SetupError, match="not an address that can be called"):
        read_server("tried", {"url": "http://[::1/mcp"}, {})


def test_a_key_in_the_query_of_a_server_is_hidden_like_one_in_a_header() -> None:
    server = read_server("tried", {"url": "https://mcp.test/mcp?tavilyApiKey=plain-canary-1&page=unhidden"}, {})
    assert "canary" not in server.secrets.hide("GET https://mcp.test/mcp?tavilyApiKey=plain-canary-1 failed")
    assert server.secrets.hide("unhidden") == "unhidden"
