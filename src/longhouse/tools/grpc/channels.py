"""Connections to gRPC servers of tools: a channel for each server, kept for a while, a bounded number in all.

A channel connects only to addresses that the egress rules allow: names are resolved and checked here, and gRPC is given
the addresses. It knows no proxies of the environment, retries nothing and takes no compressed answers. gRPC itself, a
library of 18 MB in memory, is loaded when the first call is made.
"""

import asyncio
import importlib
import os
import ssl
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Final

from yarl import URL

from longhouse.egress import Address, Egress, EgressRefused, Lookup, look_up, plain_host
from longhouse.tools.bindings.remote import MOST_BYTES

CONNECT: Final = 10.0
"""Seconds for the DNS lookup and the connect."""
IDLE: Final = 30.0
"""Seconds that a channel without calls is kept."""
LONGEST: Final = 300.0
"""Seconds after which a channel takes no new calls, so that a name that has moved is followed."""
MOST: Final = 64
"""Channels at once."""

_TOO_LARGE: Final = "Received message larger than max"


class Unreachable(Exception):  # noqa: N818 - callers turn it into an error of theirs
    """There is no connection: nothing was sent."""


class GrpcFailure(Exception):  # noqa: N818 - callers turn it into an error of theirs
    """A call that ended without a message. The server may have sent its status, or this end have made it."""

    def __init__(self, status: str, details: str) -> None:
        super().__init__(status)
        self.status = status
        """Its name, such as UNAVAILABLE."""
        self.details = details

    @property
    def is_too_large(self) -> bool:
        """The answer was larger than the channel takes."""
        return self.status == "RESOURCE_EXHAUSTED" and _TOO_LARGE in self.details


@dataclass(slots=True, eq=False)
class _Channel:
    url: URL
    grpc: Any
    opened: float
    calls: int = 0
    idle: asyncio.TimerHandle | None = None
    is_retired: bool = False
    """It takes no new calls, and is closed after the last."""
    is_closed: bool = False

    def is_ready(self, now: float) -> bool:
        state = self.grpc.get_state()
        return now < self.opened + LONGEST and state.name == "READY"


@dataclass(slots=True)
class Channels:
    """The channels of this process."""

    egress: Egress
    lookup: Lookup = look_up
    most_bytes: int = MOST_BYTES
    idle: float = IDLE
    most: int = MOST
    roots: bytes | None = None
    """Certificates that are trusted; None: those of this machine."""
    _open: dict[URL, _Channel] = field(default_factory=dict)
    _opening: dict[URL, asyncio.Task[None]] = field(default_factory=dict)
    _closing: set[asyncio.Task[None]] = field(default_factory=set)
    _free: asyncio.Semaphore = field(init=False)
    _waiting: int = 0
    """How many connections wait for another to be closed."""

    def __post_init__(self) -> None:
        self._free = asyncio.Semaphore(self.most)

    async def call(
        self, url: URL, method: str, message: bytes, *, metadata: Mapping[str, str], until: float, sent: asyncio.Event
    ) -> bytes:
        """Makes one call, without retries. `until`: when the loop's clock has this time, nobody waits any more;
        `sent` is set before anything is sent. A cancellation reaches the server."""
        channel = await self._ready(url)
        channel.calls += 1
        grpc, left = _grpc(), until - asyncio.get_running_loop().time()
        try:
            if left <= 0:
                raise Unreachable("its connection took too long")
            sent.set()
            answer: bytes | None = await channel.grpc.unary_unary(method)(
                message, timeout=left, metadata=tuple(metadata.items()), wait_for_ready=False
            )
            if answer is None:
                raise GrpcFailure("OK", "there is no message")
            return answer
        except grpc.RpcError as error:
            raise GrpcFailure(error.code().name, error.details() or "") from None
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            raise GrpcFailure("CANCELLED", "the connection was closed here") from None
        finally:
            channel.calls -= 1
            self._rest(channel)

    async def close(self) -> None:
        for task in self._opening.values():
            task.cancel()
        await asyncio.gather(*self._opening.values(), return_exceptions=True)
        for channel in list(self._open.values()):
            self._retire(channel)
            self._close(channel)
        await asyncio.gather(*self._closing)

    async def _ready(self, url: URL) -> _Channel:
        """A channel that is connected; calls to one server that come together share it."""
        loop = asyncio.get_running_loop()
        for _ in range(2):
            found = self._open.get(url)
            if found and found.is_ready(loop.time()):
                if found.idle:
                    found.idle.cancel()
                return found
            if found:
                self._retire(found)
            if not (opening := self._opening.get(url)):
                opening = self._opening[url] = asyncio.create_task(self._connect(url))
                opening.add_done_callback(lambda task: self._opened(url, task))
            await asyncio.shield(opening)
        raise Unreachable("its connection was lost at once")

    def _opened(self, url: URL, task: asyncio.Task[None]) -> None:
        del self._opening[url]
        if not task.cancelled():
            task.exception()  # waiting calls get it; perhaps none is left

    async def _connect(self, url: URL) -> None:
        try:
            async with asyncio.timeout(CONNECT):
                found = await self.egress.resolved(url.raw_host or "", url.port or 0, self.lookup)
        except TimeoutError:
            raise Unreachable(f"its name was not found within {CONNECT:g} seconds") from None
        except EgressRefused as refused:
            raise Unreachable(str(refused.strerror)) from None
        except OSError as error:
            raise Unreachable(type(error).__name__) from None
        grpc = await asyncio.to_thread(_grpc)
        await self._place()
        try:
            channel = await self._connected(grpc, url, found)
        except BaseException:
            self._free.release()
            raise
        one = _Channel(url, channel, asyncio.get_running_loop().time())
        self._keep(one)

    async def _connected(self, grpc: Any, url: URL, found: list[Address]) -> Any:
        """A channel to the first addresses that answer, of all those of one family."""
        targets = _targets(found, url.port or 0)
        for target in targets:
            channel = self._made(grpc, url, target)
            is_ready = False
            try:
                with suppress(TimeoutError):
                    async with asyncio.timeout(CONNECT / len(targets)):
                        is_ready = await _is_connected(channel)
            finally:
                if not is_ready:
                    await channel.close()
            if is_ready:
                return channel
        why = " or no certificate that we trust" if url.scheme == "grpcs" else ""
        raise Unreachable(f"there is no gRPC connection{why}")

    def _made(self, grpc: Any, url: URL, target: str) -> Any:
        options: dict[str, str | int] = {
            "grpc.default_authority": url.host_port_subcomponent or "",
            "grpc.primary_user_agent": "longhouse",
            "grpc.max_receive_message_length": self.most_bytes,
            "grpc.max_send_message_length": -1,
            "grpc.enable_retries": 0,
            "grpc.enable_http_proxy": 0,
            "grpc.service_config_disable_resolution": 1,
            "grpc.use_local_subchannel_pool": 1,
            "grpc.compression_enabled_algorithms_bitset": 1,
        }
        if url.scheme == "grpc":
            return grpc.aio.insecure_channel(target, options=tuple(options.items()))
        options["grpc.ssl_target_name_override"] = plain_host(url.raw_host)
        credentials = grpc.ssl_channel_credentials(self.roots or _roots())
        return grpc.aio.secure_channel(target, credentials, options=tuple(options.items()))

    async def _place(self) -> None:
        """Waits for room for one more channel; the one that was idle for the longest time makes room."""
        if self._free.locked():
            idle = [one for one in self._open.values() if not one.calls]
            if idle:
                self._retire(idle[0])
        self._waiting += 1
        try:
            await self._free.acquire()
        finally:
            self._waiting -= 1

    def _rest(self, channel: _Channel) -> None:
        """Keeps a channel without calls for a while, unless its place is wanted."""
        if channel.calls:
            return
        if channel.is_retired:
            self._close(channel)
            return
        if self._waiting:
            self._retire(channel)
            return
        self._keep(channel)

    def _keep(self, channel: _Channel) -> None:
        self._open.pop(channel.url, None)
        self._open[channel.url] = channel  # the last to rest is the last to make room
        channel.idle = asyncio.get_running_loop().call_later(self.idle, self._retire, channel)

    def _retire(self, channel: _Channel) -> None:
        """It takes no new calls; it is closed now, or after its last call."""
        channel.is_retired = True
        if self._open.get(channel.url) is channel:
            del self._open[channel.url]
        if not channel.calls:
            self._close(channel)

    def _close(self, channel: _Channel) -> None:
        if channel.is_closed:
            return
        channel.is_closed = True
        if channel.idle:
            channel.idle.cancel()
        task = asyncio.create_task(self._closed(channel))
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)

    async def _closed(self, channel: _Channel) -> None:
        try:
            await channel.grpc.close()
        finally:
            self._free.release()


@asynccontextmanager
async def open_channels(egress: Egress, *, lookup: Lookup = look_up, **options: Any) -> AsyncIterator[Channels]:
    """The channels to all gRPC servers of tools; each connects only where the egress rules allow it."""
    channels = Channels(egress, lookup, **options)
    try:
        yield channels
    finally:
        await channels.close()


def _targets(found: list[Address], port: int) -> list[str]:
    """The addresses as gRPC takes them, those of one family together, the family of the first one first."""
    v4 = ",".join(f"{one}:{port}" for one in found if one.version == 4)
    v6 = ",".join(f"[{one}]:{port}" for one in found if one.version == 6)
    both = [text for text in (v4 and f"ipv4:{v4}", v6 and f"ipv6:{v6}") if text]
    return both if found[0].version == 4 else both[::-1]


async def _is_connected(channel: Any) -> bool:
    """Waits until the channel is connected, or has tried all its addresses in vain."""
    state = channel.get_state(try_to_connect=True)
    while state.name in ("IDLE", "CONNECTING"):
        await channel.wait_for_state_change(state)
        state = channel.get_state(try_to_connect=True)
    return bool(state.name == "READY")


@cache
def _grpc() -> Any:
    """gRPC with its asyncio part. It writes its own complaints to standard error, unless it is told to be quiet."""
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    importlib.import_module("grpc.aio")
    return importlib.import_module("grpc")


@cache
def _roots() -> bytes | None:
    """The certificates that this machine trusts, as for HTTP; None, where it has no list: those that gRPC brings."""
    trusted = ssl.create_default_context().get_ca_certs(binary_form=True)
    return "".join(map(ssl.DER_cert_to_PEM_cert, trusted)).encode() or None
