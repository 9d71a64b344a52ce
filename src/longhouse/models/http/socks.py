"""Asks a SOCKS5 proxy for a connection (RFC 1928; user and password as in RFC 1929). The proxy resolves the names."""

import asyncio
import ipaddress
import socket
from typing import Final

from yarl import URL

REFUSED: Final = {
    1: "it failed",
    2: "its rules do not allow it",
    3: "the network cannot be reached",
    4: "the host cannot be reached",
    5: "the connection was refused",
    6: "it took too long",
}
"""What the proxy answers, in words."""

_VERSION, _CONNECT, _NAME, _IPV4, _IPV6 = 5, 1, 3, 1, 4
_NO_KEY, _PASSWORD = 0, 2


async def ask(loop: asyncio.AbstractEventLoop, sock: socket.socket, proxy: URL, host: str, port: int) -> None:
    """Has the proxy connect to this host; an OSError says why it does not."""
    way = _PASSWORD if proxy.user else _NO_KEY
    await loop.sock_sendall(sock, bytes([_VERSION, 1, way]))
    version, chosen = await _read(loop, sock, 2)
    if version != _VERSION:
        raise OSError(None, "the proxy does not speak SOCKS5")
    if chosen != way:
        raise OSError(None, "the proxy wants another way to sign in")
    if way == _PASSWORD:
        await loop.sock_sendall(sock, b"\x01" + _counted(proxy.user or "") + _counted(proxy.password or ""))
        if (await _read(loop, sock, 2))[1]:
            raise OSError(None, "the proxy refused the user or the password")
    await loop.sock_sendall(sock, bytes([_VERSION, _CONNECT, 0]) + _place(host) + port.to_bytes(2, "big"))
    _, answer, _, kind = await _read(loop, sock, 4)
    if answer:
        raise OSError(None, f"the proxy did not connect: {REFUSED.get(answer, f'it answered {answer}')}")
    # The address that the proxy uses itself, which nobody needs.
    length = (await _read(loop, sock, 1))[0] if kind == _NAME else {_IPV4: 4, _IPV6: 16}.get(kind, 0)
    await _read(loop, sock, length + 2)


def _place(host: str) -> bytes:
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return bytes([_NAME]) + _counted(host)
    return bytes([_IPV4 if address.version == 4 else _IPV6]) + address.packed


def _counted(text: str) -> bytes:
    content = text.encode()
    if len(content) > 255:
        raise OSError(None, "a name, a user or a password is too long for the proxy")
    return bytes([len(content)]) + content


async def _read(loop: asyncio.AbstractEventLoop, sock: socket.socket, count: int) -> bytes:
    content = b""
    while len(content) < count:
        if not (piece := await loop.sock_recv(sock, count - len(content))):
            raise OSError(None, "the proxy closed the connection")
        content += piece
    return content
