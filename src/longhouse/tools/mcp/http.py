"""HTTP client for MCP servers: it connects only to the IP address that the egress check allowed."""

from collections.abc import Iterable
from typing import Any

import httpcore2
import httpx2
from httpcore2 import AsyncNetworkBackend, AsyncNetworkStream
from mcp.shared._httpx_utils import create_mcp_http_client

from longhouse.egress import ANYWHERE, EgressResolver, Lookup, look_up


def client_of(headers: dict[str, str] | None = None) -> httpx2.AsyncClient:
    """The library's client, with egress checks. It follows redirects only within the server's origin."""
    client = create_mcp_http_client(headers)
    # Proxies from the environment are mounted separately and resolve names themselves.
    client._transport = _transport()
    return client


def _transport() -> httpx2.AsyncHTTPTransport:
    transport, guarded = httpx2.AsyncHTTPTransport(), Guarded(look_up)
    transport._pool = httpcore2.AsyncConnectionPool(
        ssl_context=httpx2.create_ssl_context(), max_connections=100, keepalive_expiry=5.0, network_backend=guarded
    )
    return transport


class Guarded(AsyncNetworkBackend):
    """Resolves names itself and connects only to allowed addresses."""

    def __init__(self, lookup: Lookup) -> None:
        self._inner = httpcore2.AnyIOBackend()
        self._gate = EgressResolver(ANYWHERE, lookup)

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> AsyncNetworkStream:
        try:
            found = await self._gate.resolve(host, port)
        except OSError as error:
            raise httpcore2.ConnectError(str(error.strerror or error)) from error
        for nth, one in enumerate(found, 1):
            try:
                return await self._inner.connect_tcp(one["host"], port, timeout, local_address, socket_options)
            except (httpcore2.ConnectError, httpcore2.ConnectTimeout):
                if nth == len(found):
                    raise
        raise httpcore2.ConnectError(f"{host} has no address")

    async def sleep(self, seconds: float) -> None:
        await self._inner.sleep(seconds)
