"""Egress rules: which addresses tools, models and search may connect to. They are checked where sockets are created.

Link-local addresses and cloud metadata addresses are always forbidden. Apart from these, tools reach public addresses
and those that the operator allows; what the operator configures, such as a model, may be at any address.
"""

import asyncio
import errno
import ipaddress
import re
import socket
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from functools import lru_cache
from typing import Any, Final

import msgspec
from yarl import URL

from longhouse.errors import SetupError

HTTP: Final = ("http", "https")
GRPC: Final = ("grpc", "grpcs")
"""gRPC, and gRPC over TLS."""
SOCKS: Final = ("socks5", "socks5h")
"""Both are the same here: names are resolved by the proxy."""
TOOLS: Final = (*HTTP, *GRPC)
"""Schemes of the endpoints of remote tools."""
PROXIES: Final = (*HTTP, *SOCKS)
LONGEST_URL: Final = 2_000
SOCKS_PORT: Final = 1080
"""The port of a SOCKS proxy that names none."""

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network
Lookup = Callable[[str, int], Awaitable[Sequence[str]]]
"""Resolves a name to addresses."""

_HOST: Final = re.compile(r"[a-z0-9_](?:[a-z0-9_-]*[a-z0-9_])?(?:\.[a-z0-9_](?:[a-z0-9_-]*[a-z0-9_])?)*\.?")
_AUTHORITY: Final = re.compile(r"[a-z0-9]+://([^/?#]*)", re.IGNORECASE)
_NUMBER: Final = re.compile(r"[0-9]+|0x[0-9a-f]*")
_ENTRY: Final = re.compile(r"(?:\[(?P<v6>[^\]]+)\]|(?P<host>[^:\[\]]+))(?::(?P<port>[0-9]{1,5}))?")

_LOOPBACK: Final = ipaddress.IPv4Address("127.0.0.1")
_GLOBAL_V6: Final = ipaddress.IPv6Network("2000::/3")
_NOT_PUBLIC: Final = tuple(
    ipaddress.ip_network(text)
    # Transition networks that embed an IPv4 address (Teredo, 6to4), protocol assignments, documentation.
    for text in ("2001::/23", "2001:db8::/32", "2002::/16", "3fff::/20", "192.88.99.0/24")
)
_FORBIDDEN: Final = tuple(
    ipaddress.ip_network(text)
    # Link-local, where most clouds serve metadata; then AWS, Google, Scaleway, Alibaba, Azure, Oracle.
    for text in ("169.254.0.0/16", "fe80::/10", "fd00:ec2::/32", "fd20:ce::/32", "fd00:42::42", "100.100.100.200",
                 "168.63.129.16", "192.0.0.192")
)  # fmt: skip
_METADATA: Final = frozenset(
    {"metadata", "metadata.google.internal", "metadata.goog", "instance-data", "instance-data.ec2.internal"}
)
"""Names of metadata servers, for calls through a proxy: this process does not see how a proxy resolves a name."""
_PRIVATE_NAMES: Final = (".localhost", ".local", ".internal", ".home.arpa")
_WITH_V4: Final = tuple(ipaddress.IPv6Network(text) for text in ("::/96", "::ffff:0:0/96", "64:ff9b::/96"))
"""Networks whose last 32 bits are an IPv4 address."""


class EgressRefused(OSError):  # noqa: N818 - it says what happened
    """The egress rules forbid this address."""

    def __init__(self, words: str) -> None:
        super().__init__(errno.EACCES, words)


class _Allowed(msgspec.Struct, frozen=True):
    """One entry of the operator's allow list: a name or a network, at one port or at all ports."""

    place: str | Network
    port: int | None

    def covers(self, place: str | Address, port: int) -> bool:
        if self.port not in (None, port):
            return False
        if isinstance(place, str) or isinstance(self.place, str):
            return self.place == place
        return place in self.place


class Egress:
    """The rules: public addresses, and what `allow` names as `host:port`, `address`, `network` or `network:port`.

    With `anywhere`, all addresses except the forbidden ones: for services that the operator configures.
    """

    def __init__(self, allow: Sequence[str] = (), *, anywhere: bool = False) -> None:
        self._allowed = tuple(_entry(text.strip()) for text in allow if text.strip())
        self._anywhere = anywhere

    def allowing(self, urls: Iterable[str]) -> "Egress":
        """The same rules, plus the hosts and ports of these URLs, which the operator configured."""
        more = Egress(anywhere=self._anywhere)
        more._allowed = self._allowed
        for url in urls:
            with suppress(ValueError):  # whoever calls it learns what is wrong with it
                host, port = plain_host(URL(url).raw_host), URL(url).port or SOCKS_PORT
                address = _address_of(host)
                more._allowed += (_Allowed(ipaddress.ip_network(address) if address else host, port),)
        return more

    def problem(self, url: str, schemes: Sequence[str] = HTTP) -> str | None:
        """Why this URL cannot be called. No name is resolved, so the resolver may still refuse it later."""
        try:
            return self.refusal_of(parse(url, schemes))
        except ValueError as error:
            return str(error)

    def refusal_of(self, url: URL) -> str | None:
        return self.refusal(url.raw_host or "", _port(url))

    def refusal(self, host: str, port: int) -> str | None:
        """Why this host may not be reached, where that is known without a DNS lookup."""
        try:
            address = _address_of(host)
        except ValueError as error:
            return str(error)
        host = plain_host(host)
        if host == "localhost" or host.endswith(".localhost"):
            address = _LOOPBACK
        if host in _METADATA or (address is not None and is_forbidden(address)):
            return _never_allowed(host)
        if address is None or self.allows_name(host, port) or self.allows(address, port):
            return None
        return _not_allowed(host)

    def refusal_behind_proxy(self, url: URL) -> str | None:
        """The refusal where a proxy resolves names: names that the operator has not allowed are refused too, because
        this process does not see their addresses."""
        if refused := self.refusal_of(url):
            return refused
        host, port = plain_host(url.raw_host), url.port or 0
        if self._anywhere or _address_of(host) is not None or self.allows_name(host, port):
            return None
        return f"{host} would be resolved by the proxy, unchecked; name {host}:{port} in LONGHOUSE_ALLOW_EGRESS"

    def allows(self, address: Address, port: int) -> bool:
        if is_forbidden(address):
            return False
        return self._anywhere or is_public(address) or any(one.covers(address, port) for one in self._allowed)

    def allows_name(self, host: str, port: int) -> bool:
        """Whether the operator named this host: then its addresses are not restricted."""
        return any(one.covers(plain_host(host), port) for one in self._allowed)

    async def resolved(self, host: str, port: int, lookup: Lookup) -> list[Address]:
        """The addresses of a host, all of them allowed; EgressRefused if one is not, OSError if there is none."""
        if refused := self.refusal(host, port):
            raise EgressRefused(refused)
        found = [ipaddress.ip_address(text) for text in await lookup(host, port)]
        if not found:
            raise OSError(f"{host} has no address")
        if any(is_forbidden(address) for address in found):
            raise EgressRefused(_never_allowed(host))
        # One address that is not allowed refuses the whole name: which address will be taken is unknown.
        if not self.allows_name(host, port) and not all(self.allows(address, port) for address in found):
            raise EgressRefused(_not_allowed(host))
        return found


ANYWHERE: Final = Egress(anywhere=True)
"""For services that the operator configures: a model on this machine, a search service in the local network."""


def _port(url: URL) -> int:
    return url.port or (SOCKS_PORT if url.scheme in SOCKS else 0)


def parse(url: str, schemes: Sequence[str] = HTTP) -> URL:
    """Parses the URL of a tool, both to check it and to call it. ValueError says what is wrong with it."""
    if len(url) > LONGEST_URL:
        raise ValueError(f"the address has more than {LONGEST_URL} characters")
    if not url.isascii() or not url.isprintable() or any(c in url for c in ' \\"<>^`{|}'):
        raise ValueError("the address contains characters that are not allowed there; percent-encode them")
    try:
        parsed = URL(url)
        host, port = parsed.raw_host, _port(parsed)
    except ValueError:
        raise ValueError("this is not an address") from None
    if parsed.scheme not in schemes or not host:
        *first, last = (f"{scheme}://" for scheme in schemes)
        raise ValueError(f"the address begins with {', '.join(first)} or {last} and a host")
    written = _AUTHORITY.match(url)
    if not written or "@" in written[1]:  # the parser would drop an empty user name
        raise ValueError("the address contains a user or a password; name a secret instead")
    if "[" in written[1] and ":" not in host:
        raise ValueError("the host of the address is not an IPv6 address")
    if parsed.raw_fragment:
        raise ValueError("the address has a fragment, which is never sent")
    if parsed.scheme in GRPC and (not port or parsed.raw_path_qs not in ("", "/")):
        raise ValueError("the address of a gRPC server is grpc://host:port or grpcs://host:port, without a path")
    if not port:
        raise ValueError("the address has no port that can be reached")
    _address_of(host)
    return parsed


def is_public(address: Address) -> bool:
    """Whether the address is on the internet. Addresses that embed another address are not."""
    if address.is_multicast or not address.is_global:
        return False
    if isinstance(address, ipaddress.IPv6Address) and address not in _GLOBAL_V6:
        return False
    return not any(address in network for network in _NOT_PUBLIC)


def is_public_host(host: str) -> bool:
    """Whether the host is a public name or address, as far as that is known without a DNS lookup."""
    try:
        address = _address_of(host)
    except ValueError:
        return False
    if address:
        return is_public(address) and not is_forbidden(address)
    host = plain_host(host)
    return "." in host and host not in _METADATA and not f".{host}".endswith(_PRIVATE_NAMES)


def is_forbidden(address: Address) -> bool:
    """Whether nothing here may reach the address, or the IPv4 address that an IPv6 address embeds."""
    embedded = getattr(address, "sixtofour", None)
    if any(address in network for network in _WITH_V4):
        embedded = ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
    return any(one in network for one in (address, embedded) if one for network in _FORBIDDEN)


def _not_allowed(host: str) -> str:
    remedy = "LONGHOUSE_ALLOW_EGRESS=host:port of the server allows it"
    return f"{host} is not a public address, and reaching it is not allowed here; {remedy}"


def _never_allowed(host: str) -> str:
    return f"{host} is a link-local or metadata address, which nothing here may reach"


class EgressResolver:
    """Resolver and socket factory of a client: an address that is not allowed gets no socket.

    The client connects to the addresses that were checked: the name is not resolved a second time.
    """

    def __init__(self, egress: Egress, lookup: Lookup) -> None:
        self._egress = egress
        self._lookup = lookup
        self._named: set[tuple[str, int]] = set()

    async def resolve(self, host: str, port: int) -> list[str]:
        found = [str(address) for address in await self._egress.resolved(host, port, self._lookup)]
        if self._egress.allows_name(host, port):
            self._named |= {(address, port) for address in found}
        return found

    def socket(self, info: tuple[Any, ...]) -> socket.socket:
        """The last check, of the address itself: a client does not resolve a host that is already an address."""
        family, kind, proto, _, (host, port, *_) = info
        is_allowed = (host, port) in self._named
        with suppress(ValueError):  # an unusual notation such as 127.1, which only some resolvers accept
            is_allowed = is_allowed or self._egress.allows(ipaddress.ip_address(host), port)
        if not is_allowed:
            raise EgressRefused(_not_allowed(host))
        return socket.socket(family=family, type=kind, proto=proto)


async def look_up(host: str, port: int) -> list[str]:
    """Resolves a name with the resolver of this machine."""
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(sockaddr[0]) for *_, sockaddr in found))


@lru_cache(maxsize=1024)
def _address_of(host: str) -> Address | None:
    """The IP address in its usual notation; None for a name. ValueError where the host is neither."""
    with suppress(ValueError):
        address = ipaddress.ip_address(host)
        if address.version == 4 or not address.scope_id:
            return address
    if ":" in host:
        raise ValueError("the host of the address is not an IPv6 address")
    if not _HOST.fullmatch(host.lower()) or len(host) > 253:
        raise ValueError("the host of the address is not a name or an IP address")
    if _NUMBER.fullmatch(plain_host(host).rpartition(".")[2]):
        raise ValueError("the host of the address is a number in an unusual form; write an IP address as 192.0.2.1")
    return None


def plain_host(host: str | None) -> str:
    """A normalised host name for comparisons: lower case, without the final dot."""
    return (host or "").lower().removesuffix(".")


def is_loopback(host: str) -> bool:
    """Whether this is an address of this machine alone, or the name of one."""
    try:
        address = _address_of(host)
    except ValueError:
        return False
    return host == "localhost" if address is None else address.is_loopback


def _entry(text: str) -> _Allowed:
    with suppress(ValueError):
        return _Allowed(ipaddress.ip_network(text), None)
    found = _ENTRY.fullmatch(text)
    if found and 0 < int(found["port"] or 0) < 65536:
        port, host = int(found["port"]), plain_host(found["host"])
        with suppress(ValueError):
            return _Allowed(ipaddress.ip_network(found["v6"] or found["host"]), port)
        if _HOST.fullmatch(host) and not _NUMBER.fullmatch(host.rpartition(".")[2]):
            return _Allowed(host, port)
    raise SetupError(
        f"{text!r} is not an address that can be allowed: write host:port, an IP address, or a network "
        "such as 10.0.0.0/8, each with :port if you like ([fd00::/8]:443)."
    )
