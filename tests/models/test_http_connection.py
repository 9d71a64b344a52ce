"""The HTTP client against servers that are odd, slow or hostile, on both event loops."""

import asyncio
import itertools
import ssl
import struct
import tempfile
from asyncio import StreamReader, StreamWriter
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from socket import SO_LINGER, SO_RCVBUF, SOL_SOCKET
from typing import Any

import pytest
import uvloop
from yarl import URL

from certificates import certificate
from longhouse.egress import ANYWHERE
from longhouse.models.http import connection as http_connection
from longhouse.models.http import dialing as http_dialing
from longhouse.models.http.client import Endpoint, StatusFailure, open_endpoint, open_pool
from longhouse.models.http.connection import MOST_HEAD, Timeouts
from longhouse.models.http.failure import HttpFailure
from longhouse.redaction import redaction_of

OK = b"HTTP/1.1 200 OK\r\n"
WHOLE = OK + b"Content-Length: 5\r\n\r\nhello"
KEY = "sk-very-secret"


Play = Callable[["Server", StreamReader, StreamWriter], Awaitable[None]]


@dataclass
class Server:
    """Plays once for each connection."""

    play: Play
    port: int = 0
    connections: int = 0
    heads: list[bytes] = field(default_factory=list)
    bodies: list[bytes] = field(default_factory=list)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    async def request(self, reader: StreamReader) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        self.heads.append(head)
        if b"Content-Length: " in head:
            length = int(head.partition(b"Content-Length: ")[2].partition(b"\r")[0])
            self.bodies.append(await reader.readexactly(length))


@asynccontextmanager
async def served(play: Play, tls: ssl.SSLContext | None = None) -> AsyncIterator[Server]:
    server, tasks = Server(play), []

    async def meet(reader: StreamReader, writer: StreamWriter) -> None:
        tasks.append(asyncio.current_task())
        server.connections += 1
        try:
            await play(server, reader, writer)
            await writer.drain()
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()
            with suppress(OSError):
                await writer.wait_closed()

    listening = await asyncio.start_server(meet, "127.0.0.1", 0, ssl=tls)
    server.port = listening.sockets[0].getsockname()[1]
    try:
        yield server
    finally:
        listening.close()
        for task in filter(None, tasks):
            task.cancel()
        await asyncio.gather(*filter(None, tasks), return_exceptions=True)


def answering(*answers: bytes, in_drops: bool = False) -> Play:
    """These answers in turn, to one request each; the connection ends after them."""

    async def play(server: Server, reader: StreamReader, writer: StreamWriter) -> None:
        for answer in answers:
            await server.request(reader)
            for piece in [answer[n : n + 1] for n in range(len(answer))] if in_drops else [answer]:
                writer.write(piece)
                await writer.drain()
                if in_drops:
                    await asyncio.sleep(0)

    return play


async def posted(endpoint: Endpoint, *body: bytes, most_bytes: int = 2**26) -> bytes:
    async with endpoint.post(*body or (b"{}",), most_bytes=most_bytes) as response:
        return await response.body()


async def failure_of(endpoint: Endpoint, body: bytes = b"{}") -> HttpFailure:
    with pytest.raises(HttpFailure) as caught:
        await posted(endpoint, body)
    assert caught.value.__cause__ is None
    return caught.value


async def _closed(endpoint: Endpoint) -> None:
    while any(one.is_open for one in endpoint.pool._open):
        await asyncio.sleep(0.01)


CHUNKED = b"Transfer-Encoding: chunked\r\n\r\n"
INTERIM = b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nContent-Length: 99\r\nLink: </style.css>\r\n\r\n"
READABLE = {
    "length": WHOLE,
    "until the end": OK + b"Connection: close\r\n\r\nhello",
    "of HTTP 1.0": b"HTTP/1.0 200 OK\r\n\r\nhello",
    "chunked": OK + CHUNKED + b'2;a="b"\r\nhe\r\n3 \r\nllo\r\n0\r\nX-Trailer: 1\r\n\r\n',
    "interim": INTERIM + WHOLE,
    "interim with a body": b"HTTP/1.1 199 X\r\nContent-Length: 3\r\n\r\nabc" + WHOLE,
    "bare line feeds": WHOLE.replace(b"\r\n", b"\n"),
    "no reason": WHOLE.replace(b" OK", b""),
    "odd headers": OK + b"X: \x01\xff\r\nX-Empty:\r\nX: again\r\ncontent-LENGTH: 5\r\n\r\nhello",
}


async def test_a_response_is_the_same_however_it_is_sent_and_cut() -> None:
    for in_drops, (how, answer) in itertools.product((False, True), READABLE.items()):
        async with (
            served(answering(answer, in_drops=in_drops)) as server,
            open_endpoint(server.url) as endpoint,
            endpoint.post(b"{}", most_bytes=5) as response,
        ):
            assert (response.status, await response.body(), await response.body()) == (200, b"hello", b""), how
            assert response.headers.get("x", "\x01\ufffd") == "\x01\ufffd", "the first of its name"
            assert "x-trailer" not in response.headers
        assert server.bodies == [b"{}"]


NO_HTTP = "it did not complete the request: ClientResponseError"
CUT = "it broke off its answer"
BROKEN = {
    "no http": (b"SSH-2.0-OpenSSH_9.6\r\n\r\n", NO_HTTP),
    "two lengths": (OK + b"Content-Length: 5\r\nContent-Length: 6\r\n\r\nhello!", NO_HTTP),
    "length and chunks": (OK + b"Content-Length: 5\r\n" + CHUNKED + b"0\r\n\r\n", NO_HTTP),
    "another protocol": (b"HTTP/1.1 101 OK\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\n", NO_HTTP),
    "a long head": (OK + b"X: " + b"x" * 400_000, NO_HTTP),
    "many headers": (OK + b"X: x\r\n" * 100_000, NO_HTTP),
    "many interim heads": (INTERIM * 10_000, NO_HTTP),
    "an interim with an endless body": (b"HTTP/1.1 199 X\r\nContent-Length: 9999999\r\n\r\n" + bytes(600_000), NO_HTTP),
    "no chunk": (OK + CHUNKED + b"zz\r\n", CUT),
    "a long extension": (OK + CHUNKED + b"5;" + b"x" * 400_000, CUT),
    "many trailers": (OK + CHUNKED + b"5\r\nhello\r\n0\r\n" + b"X: x\r\n" * 100_000, CUT),
    "half a body": (OK + b"Content-Length: 6\r\n\r\nhello", CUT),
    "half a chunk": (OK + CHUNKED + b"6\r\nhello", CUT),
    "half a chunk, two encodings": (OK + b"Transfer-Encoding: gzip\r\n" + CHUNKED + b"6\r\nhello", CUT),
    "half a chunk, spaces": (OK + CHUNKED.replace(b"chunked", b"Chunked  ") + b"6\r\nhello", CUT),
    "half a chunk, a space before the colon": (OK + CHUNKED.replace(b":", b" :") + b"6\r\nhello", CUT),
    "half a body, a space before the colon": (OK + b"Content-Length : 6\r\n\r\nhello", CUT),
    "half a head": (OK + b"Content-Le", "it closed the connection without an answer"),
    "an interim alone": (INTERIM, "it closed the connection without an answer"),
    "nothing": (b"", "it closed the connection without an answer"),
}


async def test_a_broken_response_is_a_failure_that_may_be_retried() -> None:
    for how, (answer, sentence) in BROKEN.items():
        async with served(answering(answer)) as server, open_endpoint(server.url) as endpoint, asyncio.timeout(20):
            failure = await failure_of(endpoint)
            assert (failure.sentence("it"), failure.retryable, bool(failure.kind)) == (sentence, True, True), how
        assert server.connections == 1, "a POST is not repeated by itself"


async def test_an_endless_head_ends_at_its_bound() -> None:
    sent = 0

    async def play(server: Server, reader: StreamReader, writer: StreamWriter) -> None:
        nonlocal sent
        await server.request(reader)
        writer.write(OK)
        while True:
            writer.write(b"X: x\r\n" * 100)
            await writer.drain()
            await asyncio.sleep(0)
            sent += 600

    async with served(play) as server, open_endpoint(server.url) as endpoint:
        assert (await failure_of(endpoint)).sentence("it") == NO_HTTP
    assert MOST_HEAD <= sent < 100 * MOST_HEAD


async def test_a_connection_is_kept_only_if_nothing_is_left_on_it() -> None:
    """Whatever follows the first response on its connection, the second request gets a response of its own."""
    other = OK + b"Content-Length: 5\r\n\r\nother"
    clean = {"": 1, "\r\n": 1}
    for more in ("", "\r\n", "garbage", other.decode(), other.decode()[:30], "HTTP/1.1 100 Continue\r\n\r\n"):
        play = answering(WHOLE + more.encode(), WHOLE, WHOLE)
        async with served(play) as server, open_endpoint(server.url) as endpoint:
            assert [await posted(endpoint) for _ in range(3)] == [b"hello"] * 3
            assert server.connections == clean.get(more, 3), more
    for header in (b"Connection: close\r\n", b""):
        first = WHOLE.replace(b"Content", header + b"Content") if header else WHOLE.replace(b"1.1", b"1.0")
        async with served(answering(first, WHOLE)) as server, open_endpoint(server.url) as endpoint:
            assert [await posted(endpoint) for _ in range(2)] == [b"hello"] * 2
            assert server.connections == 2
            async with endpoint.post(b"{}", most_bytes=5):
                pass  # the body was not read, but it is there
            assert await posted(endpoint) == b"hello"


async def test_an_idle_connection_on_which_something_happens_is_not_used_again() -> None:
    happened = asyncio.Event()

    async def speaks(server: Server, reader: StreamReader, writer: StreamWriter) -> None:
        await server.request(reader)
        writer.write(WHOLE)
        await happened.wait()
        writer.write(WHOLE.replace(b"hello", b"other"))
        with suppress(asyncio.IncompleteReadError):
            await server.request(reader)

    async def leaves(server: Server, reader: StreamReader, writer: StreamWriter) -> None:
        await server.request(reader)
        writer.write(WHOLE)
        await happened.wait()

    for play in (speaks, leaves):
        happened.clear()
        async with served(play) as server, open_endpoint(server.url) as endpoint:
            assert await posted(endpoint) == b"hello"
            happened.set()
            await asyncio.wait_for(_closed(endpoint), 20)
            assert not any(endpoint.pool._idle.values())
            assert await posted(endpoint) == b"hello"
            [kept] = endpoint.pool._open
            kept.close()  # its end is told in the next turn of the event loop
            assert await posted(endpoint) == b"hello"
            assert server.connections == 3


async def test_an_idle_connection_is_closed_after_a_while() -> None:
    left = asyncio.Event()

    async def play(server: Server, reader: StreamReader, writer: StreamWriter) -> None:
        await server.request(reader)
        writer.write(WHOLE)
        await reader.read()
        left.set()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(http_connection, "KEEP_ALIVE", 0.05)
        async with served(play) as server, open_endpoint(server.url, hang=600) as endpoint:
            assert await posted(endpoint) == b"hello"
            await asyncio.wait_for(left.wait(), 20)


async def test_a_kept_connection_that_was_closed_under_a_request_is_told_and_not_tried_again() -> None:
    """Whether the server has acted before it closed is not known here."""
    async with served(answering(WHOLE, b"")) as server, open_endpoint(server.url) as endpoint:
        assert await posted(endpoint) == b"hello"
        failure = await failure_of(endpoint)
        assert failure.sentence("it") == "it closed the connection without an answer"
        assert (len(server.bodies), server.connections) == (2, 1)


async def test_a_reset_is_told_before_and_within_a_response() -> None:
    for answer, sentence in ((b"", "it closed the connection without an answer"), (OK + b"\r\nhel", CUT)):

        async def play(server: Server, reader: StreamReader, writer: StreamWriter, answer: bytes = answer) -> None:
            await server.request(reader)
            writer.write(answer)
            await writer.drain()
            await asyncio.sleep(0.1)
            writer.get_extra_info("socket").setsockopt(SOL_SOCKET, SO_LINGER, struct.pack("ii", 1, 0))

        async with served(play) as server, open_endpoint(server.url) as endpoint:
            failure = await failure_of(endpoint)
        assert (failure.sentence("it"), failure.kind) == (sentence, "ClientOSError")


async def test_a_large_request_reaches_a_slow_reader_and_a_silent_one_is_given_up() -> None:
    large = bytes(16_000_000)

    async def slow(server: Server, reader: StreamReader, writer: StreamWriter) -> None:
        writer.get_extra_info("socket").setsockopt(SOL_SOCKET, SO_RCVBUF, 65_536)
        await reader.readuntil(b"\r\n\r\n")
        got = 0
        while got < len(large):
            got += len(await reader.read(200_000))
            await asyncio.sleep(0.01)
        writer.write(WHOLE)

    async def reads_nothing(server: Server, reader: StreamReader, writer: StreamWriter) -> None:
        await asyncio.sleep(600)

    async def refuses(server: Server, reader: StreamReader, writer: StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 413 Too Large\r\nContent-Length: 3\r\n\r\nno!")
        await asyncio.sleep(600)

    async with served(slow) as server, open_endpoint(server.url, hang=1.0) as endpoint:
        assert await posted(endpoint, large) == b"hello", "longer than a second in all"
    async with served(reads_nothing) as server, open_endpoint(server.url, hang=0.1) as endpoint:
        assert (await failure_of(endpoint, large)).sentence("it") == "it sent nothing for 0.1 s"
    async with served(refuses) as server, open_endpoint(server.url) as endpoint:
        for _ in range(2):  # answered before it was sent whole: the rest of it would be taken for the next request
            failure = await failure_of(endpoint, large)
            assert isinstance(failure, StatusFailure)
            assert (failure.status, failure.reason, failure.error_body) == (413, "Too Large", b"no!")
        assert server.connections == 2


async def test_what_is_not_read_is_not_received_and_does_not_count_as_silence() -> None:
    size, sent, is_over = 40_000_000, 0, asyncio.Event()

    async def play(server: Server, reader: StreamReader, writer: StreamWriter) -> None:
        nonlocal sent
        await server.request(reader)
        writer.write(OK + b"Content-Length: %d\r\n\r\n" % size)
        while sent < size:
            writer.write(bytes(100_000))
            await writer.drain()
            sent += 100_000
        is_over.set()

    async with served(play) as server, open_endpoint(server.url, hang=0.2) as endpoint:
        async with endpoint.post(b"{}", most_bytes=size) as response:
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(is_over.wait(), 0.7)
            assert sent < size / 2
            assert len(await response.body()) == size
        assert await asyncio.wait_for(is_over.wait(), 20)


async def test_what_follows_a_whole_response_is_not_received_without_end() -> None:
    for more in (b"garbage", OK + b"X: x\r\nContent-Length: 0\r\n\r\n"):
        is_refused = asyncio.Event()

        async def play(
            server: Server,
            reader: StreamReader,
            writer: StreamWriter,
            more: bytes = more,
            is_refused: asyncio.Event = is_refused,
        ) -> None:
            await server.request(reader)
            writer.write(WHOLE)
            try:
                while True:
                    writer.write(more * 1000)
                    await writer.drain()
                    await asyncio.sleep(0)
            except OSError:
                is_refused.set()

        async with (
            asyncio.timeout(20),
            served(play) as server,
            open_endpoint(server.url) as endpoint,
            endpoint.post(b"{}", most_bytes=5) as response,
        ):
            await is_refused.wait()
            assert await response.body() == b"hello"


async def test_half_a_body_is_never_taken_for_a_whole_one_even_if_nobody_was_reading() -> None:
    async def play(server: Server, reader: StreamReader, writer: StreamWriter) -> None:
        await server.request(reader)
        writer.write(OK + b"\r\nhel")  # ends with the connection, and it is we who end that
        await asyncio.sleep(600)

    async with served(play) as server:
        async with open_endpoint(server.url, hang=0.1) as endpoint, endpoint.post(b"{}", most_bytes=9) as response:
            await asyncio.wait_for(_closed(endpoint), 20)
            assert await response.read() == b"hel"
            with pytest.raises(HttpFailure, match=r"sent nothing for 0\.1 s"):
                await response.read()
        async with open_endpoint(server.url) as endpoint:
            exchange = endpoint.post(b"{}", most_bytes=9)
            response = await exchange.__aenter__()
        with pytest.raises(HttpFailure, match="broke off its answer"):
            await response.body()
        await exchange.__aexit__()


async def test_a_server_that_answers_after_its_time_is_not_waited_for() -> None:
    async def play(server: Server, reader: StreamReader, writer: StreamWriter) -> None:
        await server.request(reader)
        await asyncio.sleep(0.9)
        writer.write(WHOLE)

    async with served(play) as server, open_endpoint(server.url, hang=0.5) as endpoint:
        assert (await failure_of(endpoint)).sentence("it") == "it sent nothing for 0.5 s"


async def test_a_limit_of_connections_and_the_time_for_everything() -> None:
    at_once = most = 0

    async def play(server: Server, reader: StreamReader, writer: StreamWriter) -> None:
        nonlocal at_once, most
        with suppress(asyncio.IncompleteReadError):
            while True:
                await server.request(reader)
                at_once += 1
                most = max(most, at_once)
                await asyncio.sleep(0.02)
                at_once -= 1
                writer.write(WHOLE)

    async with served(play) as server:
        async with open_endpoint(server.url, limit=2) as endpoint:
            await asyncio.gather(*(posted(endpoint) for _ in range(9)))
            assert (most, server.connections) == (2, 2)
            cancelled = [asyncio.create_task(posted(endpoint)) for _ in range(9)]
            await asyncio.sleep(0.01)
            for task in cancelled:
                task.cancel()
            await asyncio.gather(*cancelled, return_exceptions=True)
            assert await posted(endpoint) == b"hello", "whoever gives up gives its place back"
        async with open_endpoint(server.url, limit=1, within=1.5) as endpoint:
            async with endpoint.post(b"{}", most_bytes=5):
                failure = await failure_of(endpoint)
            assert failure.sentence("it") == "it did not answer within 1.5 seconds"
            held = asyncio.create_task(posted(endpoint))
            await asyncio.sleep(0)
        with pytest.raises(HttpFailure, match="closed"):
            await held
    async with open_endpoint(server.url, limit=1) as endpoint, asyncio.timeout(20):
        for _ in range(2):
            assert (await failure_of(endpoint)).what == "could not be reached"


async def test_a_connection_that_comes_after_the_end_of_the_pool_is_not_used() -> None:
    is_found = asyncio.Event()

    async def lookup(host: str, port: int) -> list[str]:
        await is_found.wait()
        return ["127.0.0.1"]

    async with served(answering(WHOLE)) as server:
        async with open_pool(ANYWHERE, Timeouts(), lookup=lookup) as pool:
            url = URL(f"http://model.test:{server.port}/")
            late = asyncio.create_task(failure_of(Endpoint(pool=pool, url=url, headers={}, redaction=redaction_of([]))))
            await asyncio.sleep(0)
        is_found.set()
        assert (await late).what == "cannot be called: the connections to it are closed"
        assert server.bodies == []


async def test_a_name_that_no_host_can_have_is_a_failure_as_any_other() -> None:
    for scheme in ("http", "https"):
        async with open_endpoint(f"{scheme}://{'a' * 64}.test/v1") as endpoint:
            failure = await failure_of(endpoint)
        assert (failure.sentence("it"), failure.retryable) == ("it could not be reached: no such name", False)
        async with open_endpoint(f"{scheme}://xn--a.test/v1") as endpoint:  # encodes nothing
            assert endpoint.name == "xn--a.test"


async def test_a_server_and_a_proxy_that_quote_what_they_were_sent_reveal_no_password() -> None:
    async def play(server: Server, reader: StreamReader, writer: StreamWriter) -> None:
        await server.request(reader)
        said = server.heads[-1] + b" pass-of-ann pass-of-proxy"
        writer.write(b"HTTP/1.1 407 No\r\nContent-Length: %d\r\n\r\n%b" % (len(said), said))

    async with served(play) as server:
        url, proxy = (f"http://{who}@127.0.0.1:{server.port}" for who in ("ann:pass-of-ann", "bob:pass-of-proxy"))
        async with open_endpoint(url, proxy=proxy) as endpoint:
            said = (await failure_of(endpoint)).sentence("it")
        assert b"Proxy-Authorization: Basic Ym9iOnBhc3Mtb2YtcHJveHk=\r\n" in server.heads[0]
        assert b"\nAuthorization: Basic YW5uOnBhc3Mtb2YtYW5u\r\n" in server.heads[0]
        assert said.count("Basic [secret]") == 2
        assert "pass-of" not in said


async def test_a_line_break_makes_no_header() -> None:
    async with open_pool(ANYWHERE, Timeouts()) as pool:
        for name, value in (("X", "a\r\nEvil: 1"), ("X\nEvil", "1"), ("X", "a\0")):
            with pytest.raises(ValueError, match="line break"):
                Endpoint(pool=pool, url=URL("http://127.0.0.1:9"), headers={name: value}, redaction=redaction_of([]))


# --- TLS and proxies


async def _tunnel(server: Server, reader: StreamReader, writer: StreamWriter) -> None:
    """A proxy that leads every tunnel to the port that is asked for, on this machine."""
    head = await reader.readuntil(b"\r\n\r\n")
    server.heads.append(head)
    port = int(head.split()[1].rpartition(b":")[2])
    there, back = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"HTTP/1.1 200 Connected\r\n\r\n")

    async def copied(source: StreamReader, target: StreamWriter) -> None:
        while piece := await source.read(65_536):
            target.write(piece)
        target.close()

    await asyncio.gather(copied(reader, back), copied(there, writer))


def context_of(folder: Path) -> ssl.SSLContext:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(folder / "cert.pem", folder / "key.pem")
    return context


async def test_tls_is_verified_directly_and_through_proxies() -> None:
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        try:
            await _verified(Path(folder), patch)
        finally:
            http_dialing.tls_context.cache_clear()


async def _verified(folder: Path, patch: pytest.MonkeyPatch) -> None:
    certificate(folder, "localhost")
    names: list[str | None] = []
    context = context_of(folder)
    context.sni_callback = lambda connection, name, _: names.append(name)
    play = answering(WHOLE, WHOLE)

    async def asked(url: str, pause: float = 0, **options: Any) -> list[bytes]:
        async with open_endpoint(url, KEY, **options) as endpoint:
            first = await posted(endpoint)
            await asyncio.sleep(pause)
            return [first, await posted(endpoint)]

    async with (
        served(play, context) as server,
        served(_tunnel) as proxy,
        served(_tunnel, context_of(folder)) as tls_proxy,
    ):
        direct, behind = (f"https://{name}:{server.port}/v1" for name in ("localhost", "localhost."))
        proxies = [f"http://ann:pass@127.0.0.1:{proxy.port}", f"https://ann:pass@localhost:{tls_proxy.port}"]
        http_dialing.tls_context.cache_clear()
        for way in (None, *proxies):
            with pytest.raises(HttpFailure, match="has no certificate that we trust") as caught:
                await asked(behind if way else direct, proxy=way)
            assert (caught.value.kind, caught.value.retryable) == ("SSLCertVerificationError", False)
        assert server.heads == []
        patch.setenv("SSL_CERT_FILE", str(folder / "cert.pem"))
        http_dialing.tls_context.cache_clear()
        with pytest.raises(HttpFailure, match="has no certificate that we trust"):
            await asked(f"https://127.0.0.1:{server.port}/v1")  # it is of another name
        before = server.connections
        for way in (None, *proxies):
            assert await asked(behind if way else direct, proxy=way) == [b"hello"] * 2
        # Nobody waits for the proxy's own answer any more.
        assert await asked(behind, proxy=proxies[0], hang=0.5, pause=0.6) == [b"hello"] * 2
        assert server.connections == before + 4
        # A body in pieces, as that of a long history, is one body.
        pieces = (b"{", "да".encode() * 300_000, b"", bytes(100_000), b"}")
        async with open_endpoint(direct, KEY) as endpoint:
            assert await posted(endpoint, *pieces) == b"hello"
        assert server.bodies[-1] == b"".join(pieces)
        with pytest.raises(HttpFailure, match="could not be reached"):
            await asked(f"https://localhost:{proxy.port}/v1", connect=0.3)  # does not speak TLS
        # Whenever a handshake is given up, nothing of it stays that would disturb the next ones.
        for turns in range(60):
            async with open_endpoint(direct, KEY) as endpoint:
                given_up = asyncio.create_task(posted(endpoint))
                for _ in range(turns):
                    await asyncio.sleep(0)
                given_up.cancel()
                await asyncio.gather(given_up, return_exceptions=True)
                assert await asyncio.gather(*(posted(endpoint) for _ in range(3))) == [b"hello"] * 3
    assert "localhost" in names
    assert all(f"Authorization: Bearer {KEY}\r\n".encode() in head for head in server.heads)
    assert all(b"Proxy" not in head for head in server.heads)
    tunnels = [head for head in proxy.heads + tls_proxy.heads if head.startswith(b"CONNECT localhost")]
    assert len(tunnels) == 4
    assert all(b"Proxy-Authorization: Basic YW5uOnBhc3M=" in head and KEY.encode() not in head for head in tunnels)


async def test_a_proxy_that_makes_no_tunnel_is_told() -> None:
    for answer in (b"HTTP/1.1 407 No\r\n\r\n", b"", b"no http\r\n\r\n", OK + b"\r\nmore"):
        async with served(answering(answer)) as proxy:
            way = f"http://127.0.0.1:{proxy.port}"
            async with open_endpoint("https://nowhere.invalid/v1", KEY, proxy=way) as endpoint:
                failure = await failure_of(endpoint)
        assert (failure.sentence("it"), failure.retryable) == ("it could not be reached through the proxy", True)
        assert not any(KEY.encode() in head for head in proxy.heads)


async def test_a_name_is_looked_up_once_in_a_while_and_each_of_its_addresses_is_tried() -> None:
    asked: list[str] = []

    async def lookup(host: str, port: int) -> list[str]:
        asked.append(host)
        await asyncio.sleep(0.01)
        return ["127.0.0.2", "127.0.0.1", "::1"]

    async with (
        served(answering(WHOLE)) as server,
        open_pool(ANYWHERE, Timeouts(), lookup=lookup, keep=True) as pool,
    ):
        url = URL(f"http://model.test:{server.port}/v1")
        endpoint = Endpoint(pool=pool, url=url, headers={}, redaction=redaction_of([]))
        assert await asyncio.gather(*(posted(endpoint) for _ in range(5))) == [b"hello"] * 5
        for host in ("127.0.0.1", "localhost"):
            endpoint = Endpoint(pool=pool, url=url.with_host(host), headers={}, redaction=redaction_of([]))
            assert await posted(endpoint) == b"hello"
    assert asked == ["model.test", "localhost"], "an address is not looked up"


async def test_a_response_after_the_block_gives_nothing_of_the_next_one() -> None:
    play = answering(WHOLE, WHOLE.replace(b"hello", b"other"))
    async with served(play) as server, open_endpoint(server.url) as endpoint:
        async with endpoint.post(b"{}", most_bytes=5) as first:
            pass
        assert await posted(endpoint) == b"other"
        assert await first.body() == b"hello"
    assert server.connections == 1


STORIES = [story for name, story in sorted(globals().items()) if name.startswith("test_")]


@pytest.mark.parametrize("story", STORIES, ids=lambda story: story.__name__)
def test_it_is_the_same_on_the_event_loop_of_the_server(story: Callable[[], Coroutine[Any, Any, None]]) -> None:
    uvloop.run(story())
