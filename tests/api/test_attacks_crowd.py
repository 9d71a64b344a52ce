"""Attacks by many, by slow and by endless requests: half of them, or too much of them, and nobody else is held up."""

import asyncio
import resource
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, contextmanager, suppress
from typing import Any

import aiohttp
import msgspec
import psutil
from attack_helpers import CHAT, answers, ask, chat, leaves_no_trace, raw
from key_helpers import ADMIN, keyed
from msgspec.structs import replace

from longhouse.api.http_protocol import Bounds
from longhouse.models.scripted import call
from longhouse.models.scripted_server import serve as serve_model
from server_helpers import House, Process, Serving, content, launched, sse

HEALTH = b"GET /health HTTP/1.1\r\nHost: localhost\r\n"
CLOSE = b"Connection: close\r\n\r\n"
HONEST = msgspec.json.encode(chat())
POST = b"POST %b HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n" % CHAT.encode()
QUICK = Bounds(head_within=2.0, idle=6.0, pause_within=2.0, request_within=4.0, linger=0.3, check_every=0.05)
"""The usual bounds, in a hurry."""


def address_of(url: str) -> tuple[str, int]:
    host, _, port = url.removeprefix("http://").partition(":")
    return host, int(port)


# Heads


HEADS = {
    431: {
        "a key of 60 kB": b"Authorization: Bearer " + b"x" * 60_000 + b"\r\n",
        "a header of 17 kB": b"X: " + b"x" * 17_000 + b"\r\n",
        "a name of 17 kB": b"x" * 17_000 + b": x\r\n",
        "many long headers": b"".join(b"X-%d: " % n + b"x" * 7_900 + b"\r\n" for n in range(5)),
        "101 headers": b"".join(b"X-%d: x\r\n" % n for n in range(101)),
    },
    200: {
        "a header of 15 kB": b"Cookie: " + b"x" * 15_000 + b"\r\n",
        "95 headers": b"".join(b"X-%d: x\r\n" % n for n in range(95)),
    },
}


async def test_a_head_is_bounded_in_all_its_parts(serving: Serving) -> None:
    async with serving(ask) as house, leaves_no_trace(house):
        for status, heads in HEADS.items():
            for name, head in heads.items():
                received = await raw(house.url, HEALTH + head + CLOSE)
                assert answers(received) == [status], name
                if status == 431:
                    assert b'"error":{"message":"' in received
                    assert b"x-request-id: req_" in received.lower()
        received = await raw(house.url, b"GET /health?" + b"x" * 20_000 + b" HTTP/1.1\r\nHost: localhost\r\n" + CLOSE)
        assert answers(received) == [414]


ENDLESS = {
    "one header": (b"X: ", b"x" * 2**16),
    "one name": (b"", b"x" * 2**16),
    "many headers": (b"", b"X: y\r\n" * 10_000),
    "a path": (None, b"x" * 2**16),
    "empty lines": (None, b"\r\n" * 2**15),
    "a trailer": (b"Transfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\nX: ", b"x" * 2**16),
    "an extension": (b"Transfer-Encoding: chunked\r\n\r\n2;", b"x" * 2**16),
}


async def test_300_mb_of_headers_cost_nothing(serving: Serving) -> None:
    async def flood(url: str, begin: bytes, more: bytes) -> int:
        """Sends for as long as it is heard; returns how much that was."""
        sent = 0
        _, writer = await asyncio.open_connection(*address_of(url))
        try:
            async with asyncio.timeout(60):
                writer.write(begin)
                while sent < 300 * 2**20:
                    writer.write(more)
                    await writer.drain()
                    sent += len(more)
        except OSError:
            pass
        finally:
            writer.transport.abort()
        return sent

    async with serving(ask) as house, leaves_no_trace(house):
        before = psutil.Process().memory_info().rss
        for name, (head, more) in ENDLESS.items():
            begin = {"a path": b"GET /", "empty lines": b""}.get(name, POST + (head or b""))
            sent = await asyncio.gather(*(flood(house.url, begin, more) for _ in range(5)))
            # Beside what is read there is what the kernel holds for either side.
            assert max(sent) < 32 * 2**20, f"{name}: whoever sends this is not listened to"
        assert psutil.Process().memory_info().rss - before < 48 * 2**20


async def test_requests_sent_ahead_are_bounded_too(serving: Serving) -> None:
    async with serving(ask) as house, leaves_no_trace(house):
        received = await raw(house.url, (HEALTH + b"\r\n") * 5_000)
        assert len(answers(received)) < 50
        assert set(answers(received)) <= {200}


async def test_a_trailer_is_no_header(serving: Serving) -> None:
    async with keyed(serving, ask) as house:
        size = b"%x\r\n%b\r\n0\r\n" % (len(HONEST), HONEST)
        head = POST + b"Connection: close\r\nTransfer-Encoding: chunked\r\n"
        key = b"Authorization: Bearer %b\r\n" % ADMIN.encode()
        assert answers(await raw(house.url, head + b"\r\n" + size + key + b"\r\n")) == [401]
        assert answers(await raw(house.url, head + key + b"\r\n" + size + b"X: y\r\n\r\n")) == [200]


# Time


async def closed(reader: asyncio.StreamReader, within: float = 20.0) -> bytes:
    """All that comes until the server closes, which it must do by itself."""
    received = b""
    async with asyncio.timeout(within):
        with suppress(ConnectionError):  # a reset: what came before it was received all the same
            while some := await reader.read(65_536):
                received += some
    return received


HALVES = {
    "half a line": b"GET /hea",
    "half a head": HEALTH + b"X: ",
    "half a body": POST + b"Content-Length: 500\r\n\r\n" + HONEST,
    "half a chunk": POST + b"Transfer-Encoding: chunked\r\n\r\nff\r\n{",
    "half a body of whom nobody knows": POST + b"Authorization: Bearer x\r\nContent-Length: 500\r\n\r\n{",
}


async def test_half_a_request_is_waited_for_no_longer_than_its_time(serving: Serving) -> None:
    async with serving(ask, bounds=QUICK) as house, leaves_no_trace(house):

        async def sends(half: bytes) -> bytes:
            reader, writer = await asyncio.open_connection(*address_of(house.url))
            writer.write(half)
            received = await closed(reader)
            writer.close()
            return received

        silent, *told = await asyncio.gather(sends(b""), *map(sends, HALVES.values()))
        assert silent == b"", "who says nothing is told nothing"
        for name, received in zip(HALVES, told, strict=True):
            assert answers(received) == [408], name
            assert b'"code":"request_timeout"' in received


async def test_who_trickles_is_not_waited_for_either(serving: Serving) -> None:
    async def trickle(url: str, begin: bytes, more: bytes) -> bytes:
        reader, writer = await asyncio.open_connection(*address_of(url))
        writer.write(begin)
        reading = asyncio.create_task(closed(reader, 40.0))
        while not reading.done():
            writer.write(more)
            await asyncio.sleep(0.1)
        writer.close()
        return await reading

    async with serving(ask, bounds=QUICK) as house, leaves_no_trace(house):
        slow = {
            "a header a moment": (HEALTH, b"X: y\r\n", [408]),
            "a byte a moment": (HEALTH + b"X: ", b"y", [408]),
            "a body by the byte": (POST + b"Content-Length: 5000\r\n\r\n", b"y", [408]),
            "empty lines for ever": (HEALTH + b"\r\n", b"\r\n", [200]),
            "a body that was refused": (b"POST /v1/nothing HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5000\r\n\r\n",
                                        b"y", [404]),
        }  # fmt: skip
        received = await asyncio.gather(*(trickle(house.url, begin, more) for begin, more, _ in slow.values()))
        for (name, (_, _, expected)), one in zip(slow.items(), received, strict=True):
            assert answers(one)[: len(expected)] == expected, name


async def test_patient_clients_are_served(serving: Serving) -> None:
    """Pauses within the bounds, bodies that are asked for, several requests at once, streams that nobody reads."""
    async with serving(ask, bounds=replace(QUICK, idle=60.0)) as house:
        reader, writer = await asyncio.open_connection(*address_of(house.url))
        length = b"Content-Length: %d\r\n" % len(HONEST)
        for part in (POST[:20], POST[20:] + length, b"\r\n" + HONEST[:5], HONEST[5:9], HONEST[9:]):
            writer.write(part)
            await asyncio.sleep(0.1)
        assert await reader.readline() == b"HTTP/1.1 200 OK\r\n"
        writer.close()

        reader, writer = await asyncio.open_connection(*address_of(house.url))
        writer.write(POST + length + b"Expect: 100-continue\r\nConnection: close\r\n\r\n")
        assert await reader.readline() == b"HTTP/1.1 100 Continue\r\n"
        writer.write(HONEST)
        assert answers(await closed(reader)) == [200]
        writer.close()

        several = (HEALTH + b"\r\n") * 5 + POST + length + b"\r\n" + HONEST + HEALTH + CLOSE
        assert answers(await raw(house.url, several)) == [200] * 7
        upgrade = HEALTH + b"Connection: Upgrade, close\r\nUpgrade: websocket\r\n\r\n"
        assert answers(await raw(house.url, upgrade, hang_up=True)) == [200]

        kept, writer = await asyncio.open_connection(*address_of(house.url))
        writer.write(HEALTH + b"\r\n")
        assert await kept.readline() == b"HTTP/1.1 200 OK\r\n"
        session_id = (await house.say("Hello"))["model"]
        async with house.http.get(f"/v1/sessions/{session_id}/events?until=never") as response:
            events = sse(response)
            seen = [await anext(events) for _ in range(3)]
            await asyncio.sleep(1.5 * QUICK.pause_within)
            assert content(await house.say("Oslo", model=session_id)) == "Which city?"
            assert [await anext(events) for _ in range(3)], "an open stream is no request that is waited for"
        assert [event.event for event in seen] == ["Opened", "Prompted", "Started"]
        writer.write(HEALTH + CLOSE)
        assert answers(await closed(kept)) == [200], "a connection is kept longer than a first request is awaited"
        writer.close()


# Numbers


@contextmanager
def many_files() -> Iterator[None]:
    """This process may hold both ends of many connections."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def crowd(stack: ExitStack, url: str, number: int, *halves: bytes) -> list[socket.socket]:
    """So many connections with half a request on each."""
    halves = halves or (b"", *HALVES.values())
    there = []
    for nth in range(number):
        one = stack.enter_context(socket.create_connection(address_of(url), timeout=20))
        one.sendall(halves[nth % len(halves)])
        there.append(one)
    return there


@asynccontextmanager
async def cramped(files: int, **environment: str) -> AsyncIterator[Process]:
    """A Longhouse that may open so many files."""
    async with launched("longhouse", "serve", "--port", "0", files=files, **environment) as house:
        yield house


async def test_1200_half_open_connections_under_1024_files_stop_nobody(dsn: str) -> None:
    script = [call("clocktool"), call("finalanswertool", answer="Noon.")] * 4
    with many_files(), ExitStack() as stack:
        async with serve_model(script) as model, cramped(1024, database_url=dsn, llm_base_url=model.url) as house:

            async def all_is_well() -> None:
                # Each on a connection of its own, as strangers would come.
                async with asyncio.timeout(20), aiohttp.ClientSession(house.url) as http:
                    async with http.get("/health") as response:
                        assert response.status == 200
                    async with http.post(CHAT, json=chat()) as response:
                        assert content(await response.json()) == "Noon."

            async with aiohttp.ClientSession(house.url) as http, http.get("/v1/sessions") as response:
                assert response.status == 200
            await all_is_well()
            await asyncio.to_thread(crowd, stack, house.url, 1200)
            await all_is_well()
            assert psutil.Process(house.process.pid).num_fds() < 900, "the workers keep some for themselves"
            stack.close()
            # Without keys everybody is known as soon as a head is there, and nobody has a whole request.
            await asyncio.to_thread(crowd, stack, house.url, 1200, HALVES["half a body"])
            await all_is_well()
            stack.close()
            await all_is_well()
            assert not [line for line in house.said if "Traceback" in line or "Too many open files" in line]


async def test_who_is_inside_stays_when_a_crowd_comes(serving: Serving) -> None:
    few = Bounds(connections=40, waiting=20, grace=0.0)
    async with serving(ask, bounds=few) as house, AsyncExitStack() as stack:
        session_id = (await house.say("Hello"))["model"]
        stream = await stack.enter_async_context(house.http.get(f"/v1/sessions/{session_id}/events?until=never"))
        events = sse(stream)
        uploading, writer = await asyncio.open_connection(*address_of(house.url))
        writer.write(POST + b"Content-Length: %d\r\nConnection: close\r\n\r\n" % len(HONEST) + HONEST[:10])
        await _reached(house)
        with ExitStack() as crowded:
            halves = await asyncio.to_thread(crowd, crowded, house.url, 100)
            async with aiohttp.ClientSession(house.url) as http, http.get("/health") as response:
                assert response.status == 200
            writer.write(HONEST[10:])
            assert answers(await closed(uploading)) == [200], "a body from somebody we know is waited for"
            assert [await anext(events) for _ in range(3)], "and so is nobody who listens"
            await asyncio.to_thread(_hung_up, halves[0])
        writer.close()


async def test_where_everybody_is_busy_the_next_one_is_told_so(serving: Serving) -> None:
    async with serving(ask, bounds=Bounds(connections=3)) as house, AsyncExitStack() as stack:
        http = await stack.enter_async_context(aiohttp.ClientSession(house.url))
        async with http.post(CHAT, json=chat()) as response:
            session_id = (await response.json())["model"]
        for _ in range(3):
            await stack.enter_async_context(http.get(f"/v1/sessions/{session_id}/events?until=never"))
        received = await raw(house.url, HEALTH + CLOSE)
        assert answers(received) == [503]
        assert b"retry-after: 1\r\n" in received


async def _reached(house: House) -> None:
    """Waits until the head of a request from somebody known is here."""
    async with asyncio.timeout(10):
        while not any(one.is_authenticated for one in house.connections.waiting):
            await asyncio.sleep(0.01)


def _hung_up(one: socket.socket) -> Any:
    one.settimeout(10)
    try:
        while one.recv(2**16):
            pass
    except ConnectionError:
        pass
