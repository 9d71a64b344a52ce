"""Opens the connections of the HTTP client: resolves and checks addresses, asks proxies, verifies certificates."""

import asyncio
import base64
import socket
import ssl
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from ipaddress import ip_address
from typing import Any, Final

import aiohappyeyeballs
from yarl import URL

from longhouse.egress import SOCKS, Egress, EgressRefused, EgressResolver, Lookup
from longhouse.models.http import socks
from longhouse.models.http.connection import KEEP_ALIVE, Connection
from longhouse.models.http.failure import HttpFailure, unreachable

_NEXT_ADDRESS: Final = 0.25
"""Seconds after which the next address of a name is tried beside the first (RFC 8305)."""
_AddressInfo = tuple[int, int, int, str, tuple[Any, ...]]


class Dialer:
    """Opens connections where the egress rules allow them; to a proxy, the proxy's own address is checked."""

    def __init__(self, egress: Egress, lookup: Lookup, proxy: URL | None, *, within: float, keep: bool) -> None:
        self._gate = EgressResolver(egress, lookup)
        self._socks = proxy if proxy and proxy.scheme in SOCKS else None
        self.proxy = proxy if proxy and not self._socks else None
        """An HTTP proxy."""
        self._within = within
        self._found: dict[tuple[str, int], tuple[float, list[_AddressInfo]]] | None = {} if keep else None
        self._finding = asyncio.Lock()

    async def dial(self, origin: URL, make: Callable[[], Connection]) -> Connection:
        """A connection to this origin; every failure is an HttpFailure."""
        try:
            async with asyncio.timeout(self._within):
                if self.proxy:
                    return await self._by_proxy(self.proxy, origin, make)
                return await self._connected(origin, await self._addresses(self._socks or origin), make)
        except OSError as error:
            raise unreachable(error, self._within) from None
        except UnicodeError:  # a name that no name server and no certificate can have
            raise HttpFailure("could not be reached", "no such name", kind="UnicodeError", retryable=False) from None

    async def _by_proxy(self, proxy: URL, origin: URL, make: Callable[[], Connection]) -> Connection:
        addresses = await self._addresses(proxy)
        try:
            connection = await self._connected(proxy, addresses, make)
        except (EgressRefused, ssl.CertificateError):
            raise
        except OSError as error:
            raise _no_proxy(type(error).__name__) from None
        if origin.scheme == "http":
            return connection
        try:
            await _tunnel(connection, proxy, origin)
        except BaseException:
            connection.close()
            raise
        return await _secured(connection, origin, make())

    async def _connected(self, to: URL, addresses: list[_AddressInfo], make: Callable[[], Connection]) -> Connection:
        loop = asyncio.get_running_loop()
        sock = await aiohappyeyeballs.start_connection(
            addresses, loop=loop, socket_factory=self._gate.socket, happy_eyeballs_delay=_NEXT_ADDRESS
        )
        try:
            if self._socks:
                await socks.ask(loop, sock, self._socks, to.raw_host or "", to.port or 0)
            _, connection = await loop.create_connection(make, sock=sock)
        except BaseException:
            sock.close()
            raise
        return await _secured(connection, to, make()) if to.scheme == "https" else connection

    async def _addresses(self, url: URL) -> list[_AddressInfo]:
        host, port = url.raw_host or "", url.port or 0
        with suppress(ValueError):  # an address needs no lookup; the socket checks it
            return [_info(str(ip_address(host)), port)]
        if self._found is None:
            return await self._resolved(host, port)
        async with self._finding:  # many at once ask the name server once
            now = asyncio.get_running_loop().time()
            until, found = self._found.get((host, port), (now, []))
            if now >= until:
                until, found = now + KEEP_ALIVE, await self._resolved(host, port)
            # The next connection begins with the next address.
            self._found[host, port] = until, found[1:] + found[:1]
        return found

    async def _resolved(self, host: str, port: int) -> list[_AddressInfo]:
        return [_info(address, port) for address in await self._gate.resolve(host, port)]


def basic(url: URL) -> str:
    """The user and the password of a URL as a header carries them."""
    return "Basic " + base64.b64encode(f"{url.user or ''}:{url.password or ''}".encode()).decode()


async def _tunnel(connection: Connection, proxy: URL, origin: URL) -> None:
    """Has the proxy connect to the origin. It is told nothing else: the request goes through TLS."""
    to = f"{origin.host_subcomponent}:{origin.port}"
    lines = [f"CONNECT {to} HTTP/1.1", f"Host: {to}", "User-Agent: longhouse"]
    if proxy.user:
        lines.append(f"Proxy-Authorization: {basic(proxy)}")
    response = connection.send("\r\n".join([*lines, "", ""]).encode())
    try:
        await response.started()
    except HttpFailure as failure:
        raise _no_proxy(failure.kind) from None
    if not 200 <= response.status < 300 or response.pieces:
        raise _no_proxy("ClientHttpProxyError")


async def _secured(plain: Connection, to: URL, connection: Connection) -> Connection:
    """TLS over an open connection, which is closed at once where that fails or is cancelled."""
    # The certificate must carry this name.
    loop, name, secured = asyncio.get_running_loop(), (to.raw_host or "").rstrip("."), None
    plain.leave()
    try:
        if plain.is_open:
            secured = await loop.start_tls(plain.transport, connection, tls_context(), server_hostname=name)
        if secured is None or secured.is_closing():
            raise ConnectionResetError(None, "the connection was closed")
    except BaseException:
        plain.close()
        raise
    connection.connection_made(secured)
    return connection


def _no_proxy(kind: str) -> HttpFailure:
    return HttpFailure("could not be reached through the proxy", kind=kind)


def _info(host: str, port: int) -> _AddressInfo:
    if ":" in host:
        return socket.AF_INET6, socket.SOCK_STREAM, socket.IPPROTO_TCP, "", (host, port, 0, 0)
    return socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP, "", (host, port)


@cache
def tls_context() -> ssl.SSLContext:
    """Verifies certificates and the names in them. SSL_CERT_FILE names other authorities than those of the system."""
    context = ssl.create_default_context()
    context.set_alpn_protocols(["http/1.1"])
    return context
