"""Attacks below HTTP: lengths that lie, requests inside requests, bytes that are no text, headers that are not ours."""

import asyncio

import aiohttp
import msgspec
import structlog
from attack_helpers import CHAT, answers, ask, chat, leaves_no_trace, raw, refusal

from longhouse.api.wire import MAX_BODY
from server_helpers import Serving

HONEST = msgspec.json.encode(chat())
POST = b"POST %b HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n" % CHAT.encode()
SECOND = POST + b"Content-Length: %d\r\nConnection: close\r\n\r\n" % len(HONEST) + HONEST
"""A request that would open a session, if it were ever run."""

CHUNKED = b"Transfer-Encoding: chunked\r\n"
LIES = {
    "both lengths, chunked last": b"Content-Length: 4\r\n" + CHUNKED + b"\r\n0\r\n\r\n" + SECOND,
    "both lengths, chunked first": CHUNKED + b"Content-Length: 6\r\n\r\n0\r\n\r\nG" + SECOND,
    "two lengths": b"Content-Length: 2\r\nContent-Length: %d\r\n\r\n{}" % len(HONEST) + SECOND,
    "two lengths in one": b"Content-Length: 2, %d\r\n\r\n{}" % len(HONEST) + SECOND,
    "a negative length": b"Content-Length: -1\r\n\r\n" + SECOND,
    "a length with a sign": b"Content-Length: +2\r\n\r\n{}" + SECOND,
    "a length in hex": b"Content-Length: 0x2\r\n\r\n{}" + SECOND,
    "an endless length": b"Content-Length: " + b"9" * 40 + b"\r\n\r\n" + SECOND,
    "an unknown encoding": b"Transfer-Encoding: xchunked\r\n\r\n" + SECOND,
    "chunked and then something": b"Transfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n" + SECOND,
    "two encodings": CHUNKED + b"Transfer-Encoding: identity\r\n\r\n0\r\n\r\n" + SECOND,
    "a space before the colon": b"Transfer-Encoding : chunked\r\n\r\n0\r\n\r\n" + SECOND,
    "a tab before the value's end": b"Transfer-Encoding: \x0bchunked\r\n\r\n0\r\n\r\n" + SECOND,
    "a chunk that is no number": CHUNKED + b"\r\nzz\r\n{}\r\n0\r\n\r\n" + SECOND,
    "a chunk that is too long": CHUNKED + b"\r\nffffffffffffffffff\r\n{}\r\n0\r\n\r\n" + SECOND,
    "a line feed in a chunk's extension": CHUNKED + b"\r\n2;a=b\nX\r\n{}\r\n0\r\n\r\n" + SECOND,
    "a folded header": b"Content-Length: 2\r\nA: b\r\n Transfer-Encoding: chunked\r\n\r\n{}" + SECOND,
    "a bare line feed": b"A: b\nContent-Length: 2\r\n\r\n{}" + SECOND,
    "a NUL in a header": b"A: b\x00c\r\nContent-Length: 2\r\n\r\n{}" + SECOND,
}


async def test_a_request_that_lies_about_its_end_hides_no_other(serving: Serving) -> None:
    async with serving(ask) as house, leaves_no_trace(house):
        for name, lie in LIES.items():
            received = await raw(house.url, POST + lie)
            assert answers(received) == [400], name
            assert b"Traceback" not in received


async def test_a_body_longer_than_its_length_is_cut_there(serving: Serving) -> None:
    async with serving(ask) as house, leaves_no_trace(house):
        received = await raw(house.url, POST + b"Content-Length: 10\r\n\r\n" + HONEST)
        assert set(answers(received)) == {400}


async def test_a_body_shorter_than_its_length_is_never_run(serving: Serving) -> None:
    async with serving(ask) as house, leaves_no_trace(house):
        with structlog.testing.capture_logs() as logs:
            for head in (b"Content-Length: %d\r\n\r\n" % (len(HONEST) + 1), CHUNKED + b"\r\n%x\r\n" % len(HONEST)):
                assert 200 not in answers(await raw(house.url, POST + head + HONEST, hang_up=True))
            await _logged(logs, "request", 2)
        assert [line["event"] for line in logs if line["log_level"] == "error"] == []


async def test_a_client_that_never_ends_its_body_holds_up_nobody(serving: Serving) -> None:
    async with serving(ask) as house, leaves_no_trace(house):
        host, port = house.url.removeprefix("http://").split(":")
        _, writer = await asyncio.open_connection(host, int(port))
        writer.write(POST + b"Content-Length: 500\r\n\r\n" + HONEST)
        await writer.drain()
        async with house.http.get("/health") as response:
            assert response.status == 200
        writer.close()


async def test_a_body_over_the_limit_is_refused_with_and_without_its_length(serving: Serving) -> None:
    async with serving(ask) as house, leaves_no_trace(house):
        headers = {"content-type": "application/json"}
        long = b" " * (MAX_BODY + 1 - len(HONEST)) + HONEST

        async def pieces() -> object:
            for start in range(0, len(long), 2**16):
                yield long[start : start + 2**16]

        async with house.http.post(CHAT, data=pieces(), headers=headers) as response:
            found = await refusal(response)
            assert (found.status, found.error["code"]) == (413, "request_too_large")
        announced = POST + b"Content-Length: %d\r\nConnection: close\r\n\r\n" % 10**15
        received = await raw(house.url, announced)
        assert answers(received) == [413]
        assert b"x-request-id: req_" in received
        for path in ("/v1/sessions/x/clarification", "/v1/sessions/x/cancel", "/agents/x/provide_clarification"):
            async with house.http.post(path, data=pieces(), headers=headers) as response:
                assert (await refusal(response)).status == 413, path


async def test_after_a_refused_body_the_connection_is_still_in_step(serving: Serving) -> None:
    async with serving(ask) as house, leaves_no_trace(house):
        long = POST + b"Content-Length: %d\r\n\r\n" % (MAX_BODY + 1) + b"x" * (MAX_BODY + 1)
        next_one = b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
        assert answers(await raw(house.url, long + next_one)) == [413, 200]


async def test_what_is_no_http_request_is_closed(serving: Serving) -> None:
    heads = [
        b"GET /v1/sessions/\xff HTTP/1.1\r\n",
        b"CONNECT example.com:443 HTTP/1.1\r\n",
        b"GET /" + b"a" * 100_000 + b" HTTP/1.1\r\n",
        b"HACK /health HTTP/1.1\r\n",
        b"GET /health HTTP/9.9\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00",
    ]
    async with serving(ask) as house, leaves_no_trace(house):
        for head in heads:
            received = await raw(house.url, head + b"Host: localhost\r\nConnection: close\r\n\r\n")
            assert answers(received) == [414 if len(head) > 100_000 else 400], head[:100]


async def test_bytes_that_are_no_text_are_refused_in_paths_and_headers(serving: Serving) -> None:
    async with serving(ask) as house, leaves_no_trace(house):
        paths = [
            "/v1/sessions/%ff", "/v1/sessions/%00", "/v1/sessions/%00/messages", "/v1/sessions/a%00/events",
            "/agents/%00/state", "/v1/models/%00", "/v1/models/%00_9f3c2f8e-0000-4000-8000-000000000000", "/health%00",
            "/v1/sessions?template=%00", "/v1/sessions?%00=1", "/v1/sessions?state=%ed%a0%80", "/v1/sessions/%ed%a0%80",
            "/v1/sessions/%2e%2e%2fmodels", "//v1//models", "/v1/x/../models", "/v1/%2e%2e/v1/models",
            "/%2e%2e/etc/passwd",
        ]  # fmt: skip
        for path in paths:
            received = await raw(
                house.url, f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode()
            )
            assert answers(received)[0] in (400, 404), path
            assert b'{"error":{' in received
        for path in ("/v1/sessions/%00/cancel", "/v1/sessions/%00/clarification", "/agents/%00/provide_clarification"):
            body = b'{"answer": "x"}' if path.endswith("/clarification") else b'{"clarifications": "x"}'
            body = b"" if path.endswith("cancel") else body
            head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            head += f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
            assert answers(await raw(house.url, head.encode() + body)) == [404], path
        for name in (b"X-Conversation-Id", b"X-OpenWebUI-Chat-Id", b"Idempotency-Key"):
            odd = POST + b"%b: \xff\xfe\r\nContent-Length: %d\r\nConnection: close\r\n\r\n" % (name, len(HONEST))
            received = await raw(house.url, odd + HONEST)
            assert answers(received) == [400], name
            assert name in received.partition(b'"param":')[2]


async def test_white_space_around_a_value_is_no_part_of_it(serving: Serving) -> None:
    async with serving(ask) as house:
        head = POST + b"Content-Length: %d\r\nConnection: close\r\nX-Conversation-Id: a \r\n" % len(HONEST)
        told = set()
        for key in (b"k1", b"k1 ", b"\tk1 \t ", b"   k1"):
            received = await raw(house.url, head + b"Idempotency-Key:%b\r\n\r\n" % key + HONEST)
            assert answers(received) == [200], key
            told.add(msgspec.json.decode(received.partition(b"\r\n\r\n")[2])["model"])
        assert len(told) == 1, "it is one key, of one turn"
        assert len(await house.journal(told.pop())) == 5


async def test_no_value_becomes_a_header(serving: Serving) -> None:
    evil = "x\r\nX-Evil: 1\r\n\r\nHTTP/1.1 200 OK\r\n"
    async with serving(ask) as house:
        for fields in ({}, {"stream": True}):
            good = chat(messages=[{"role": "user", "content": evil}], user=evil, metadata={"k": evil}, **fields)
            async with house.http.post(CHAT, json=good) as response:
                assert response.status == 200
                _has_only_our_headers(response)
                await response.read()
        async with leaves_no_trace(house):
            for bad in (chat(model=evil), chat(metadata={"conversation_id": evil}), chat(metadata={evil: 7})):
                async with house.http.post(CHAT, json=bad) as response:
                    _has_only_our_headers(response)
                    await refusal(response)
            for path in (
                "/v1/sessions/a%0d%0aX-Evil:%201",
                "/v1/models/a%0d%0aX-Evil:%201",
                "/v1/sessions?a%0d%0aX-Evil=1",
            ):
                received = await raw(
                    house.url, f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode()
                )
                assert answers(received)[0] in (400, 404)
                assert b"x-evil" not in received.partition(b"\r\n\r\n")[0].lower()


async def test_the_host_that_a_client_names_is_sent_nowhere(serving: Serving) -> None:
    async with serving(ask) as house, leaves_no_trace(house):
        for path in ("/v1/sessions/", "/agents/", "/v1/models/", "/health/", "/docs/", "//evil.example/"):
            for host, status in (("evil.example", 421), ("localhost", 404)):
                head = f"Host: {host}\r\nX-Forwarded-Host: evil.example\r\nX-Forwarded-Prefix: //evil.example\r\n"
                received = await raw(house.url, f"GET {path} HTTP/1.1\r\n{head}Connection: close\r\n\r\n".encode())
                assert answers(received) == [status], path
                assert b"evil.example" not in received
                assert b"location:" not in received.lower()


def _has_only_our_headers(response: aiohttp.ClientResponse) -> None:
    ours = {
        "date", "server", "content-length", "content-type", "transfer-encoding", "cache-control", "x-accel-buffering",
        "x-request-id", "openai-processing-ms", "openai-version", "x-content-type-options", "x-agent-id",
        "x-agent-model",
    }  # fmt: skip
    assert {name.lower() for name in response.headers} <= ours


async def _logged(logs: list[structlog.typing.EventDict], event: str, times: int) -> None:
    async with asyncio.timeout(10):
        while sum(line["event"] == event for line in logs) < times:
            await asyncio.sleep(0.01)


async def test_a_name_of_elsewhere_that_was_bound_to_us_is_misdirected(serving: Serving) -> None:
    async with serving() as house:
        for host in (
            "evil.example",
            "evil.example:8400",
            "127.0.0.1.evil.example",
            "localhost.evil.example",
            "a@127.0.0.1",
        ):
            async with house.http.get("/v1/sessions", headers={"Host": host}) as response:
                assert response.status == 421, host
                assert (await response.json())["error"]["type"] == "invalid_request_error"
        for host in ("localhost:8400", "127.0.0.1", "[::1]:8400"):
            async with house.http.get("/v1/sessions", headers={"Host": host}) as response:
                assert response.status == 200, host


async def test_the_docs_load_nothing_from_elsewhere(serving: Serving) -> None:
    async with serving() as house:
        async with house.http.get("/docs") as response:
            page = await response.text()
        assert "http://" not in page
        assert "https://" not in page
        async with house.http.get("/docs/static/swagger-ui-bundle.js") as response:
            assert response.status == 200
