"""Our client on real sockets: what it sends, when it gives up, and how it treats its connections."""

import asyncio
import socket
from contextlib import aclosing

import pytest
from scripted_peers import (
    ASKED,
    DONE,
    KEY,
    STOP,
    Peer,
    Writer,
    added_up,
    answer,
    chunk,
    deltas_of,
    error_for,
    heard,
    peer_that,
    sends,
)

from longhouse.agents.strategies.protocol import Body
from longhouse.errors import ProviderError, SetupError
from longhouse.journal.messages import User
from longhouse.models.http.client import open_endpoint
from longhouse.models.openai import OpenAIModel

# --- what is asked


async def test_a_request_streams_and_asks_for_usage_and_carries_the_key() -> None:
    async with peer_that(sends(answer(STOP))) as peer:
        await heard(peer)
    assert peer.bodies == [
        {
            "model": "m",
            "messages": [{"role": "user", "content": "Hello?"}],
            "stream": True,
            "stream_options": {"include_usage": True},
        }
    ]
    assert peer.heads[0].startswith("POST /v1/chat/completions HTTP/1.1\r\n")
    assert f"Authorization: Bearer {KEY}\r\n" in peer.heads[0]


async def test_no_key_sends_no_authorization_and_userinfo_becomes_basic() -> None:
    async with peer_that(sends(answer(STOP))) as peer:
        async with open_endpoint(peer.url) as endpoint:
            await deltas_of(OpenAIModel(endpoint))
        async with open_endpoint(peer.url.replace("//", "//ann:pass@")) as endpoint:
            await deltas_of(OpenAIModel(endpoint))
    assert "Authorization" not in peer.heads[0]
    assert "Authorization: Basic YW5uOnBhc3M=" in peer.heads[1]


async def test_the_query_of_a_base_url_is_kept() -> None:
    async with peer_that(sends(answer(STOP))) as peer, open_endpoint(peer.url + "/?api-version=7") as endpoint:
        await deltas_of(OpenAIModel(endpoint))
    assert peer.heads[0].startswith("POST /v1/chat/completions?api-version=7 HTTP/1.1\r\n")


async def test_a_request_of_megabytes_is_sent_without_a_murmur() -> None:
    async with peer_that(sends(answer(STOP))) as peer, open_endpoint(peer.url) as endpoint:
        body = Body(model="m", messages=[User(content="x" * 3_000_000)])
        assert [delta.finish async for delta in OpenAIModel(endpoint).stream(body)] == ["stop"]


@pytest.mark.parametrize("base_url", ["", "api.openai.com/v1", "ftp://host/v1", "http://", "http://[::1"])
async def test_an_address_that_is_none_is_refused_at_the_start(base_url: str) -> None:
    with pytest.raises(SetupError, match="base URL"):
        async with open_endpoint(base_url):
            pass


async def test_an_operator_is_told_why_an_address_of_his_cannot_be_used() -> None:
    with pytest.raises(SetupError, match=r"base URL cannot be used: .* number in an unusual form"):
        async with open_endpoint("http://127.1:8000/v1"):
            pass


async def test_a_key_that_would_inject_a_header_is_refused_at_the_start() -> None:
    with pytest.raises(SetupError) as caught:
        async with open_endpoint("http://127.0.0.1:1", "key\r\nX-Evil: 1"):
            pass
    assert "Evil" not in str(caught.value)


async def test_text_that_json_cannot_carry_is_said_to_be_so() -> None:
    async with open_endpoint("http://127.0.0.1:1") as endpoint:
        with pytest.raises(ProviderError, match="JSON cannot encode") as caught:
            async for _ in OpenAIModel(endpoint).stream(Body(model="m", messages=[User(content="\ud800")])):
                pass
    assert not caught.value.retryable


async def test_a_closed_endpoint_is_a_provider_error() -> None:
    async with open_endpoint("http://127.0.0.1:1") as endpoint:
        model = OpenAIModel(endpoint)
    with pytest.raises(ProviderError, match="closed"):
        await deltas_of(model)


# --- what goes wrong on the way


@pytest.mark.parametrize(
    "stream",
    [
        b"",
        chunk(content="Well, "),
        chunk(content="Well, ") + b'data: {"choices":[{"delta":{"conte',
        chunk(content="Well, ") + b'data: {"choices":[{"delta":{"conte\n',
        b": keep-alive\n\n",
    ],
)
async def test_a_stream_that_ends_without_an_end_was_dropped(stream: bytes) -> None:
    error = await error_for(sends(answer(stream)))
    assert error.retryable
    assert "broke off its answer" in str(error)


async def test_a_connection_cut_under_the_answer() -> None:
    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nContent-Length: 9999\r\n\r\n"
    error = await error_for(sends(head + chunk(content="Well, ")))
    assert error.retryable
    assert "broke off its answer" in str(error)


async def test_a_connection_closed_before_the_answer() -> None:
    error = await error_for(sends())
    assert error.retryable
    assert "closed the connection without an answer" in str(error)


async def test_an_answer_that_is_not_http() -> None:
    assert (await error_for(sends(b"SSH-2.0-OpenSSH_9.6\r\n\r\n"))).retryable


async def test_broken_chunked_encoding() -> None:
    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n"
    assert (await error_for(sends(head))).retryable


async def test_nobody_listens() -> None:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        with pytest.raises(ProviderError, match="could not be reached: ") as caught:
            await heard(Peer(url=f"http://127.0.0.1:{held.getsockname()[1]}/v1"))
    assert caught.value.retryable


async def test_an_unknown_host_and_a_dead_proxy_can_be_retried() -> None:
    with pytest.raises(ProviderError, match=r"nowhere\.invalid could not be reached") as caught:
        await heard(Peer(url="http://nowhere.invalid/v1"))
    assert caught.value.retryable
    with pytest.raises(ProviderError, match="through the proxy") as caught:
        await heard(Peer(url="http://nowhere.invalid/v1"), proxy="http://ann:pass@127.0.0.1:1")
    assert caught.value.retryable


async def test_requests_go_through_the_proxy() -> None:
    async with peer_that(sends(answer(STOP))) as proxy:
        deltas = await heard(Peer(url="http://nowhere.invalid/v1"), proxy=proxy.url.replace("//", "//ann:pass@"))
    assert deltas[-1].finish == "stop"
    assert proxy.heads[0].startswith("POST http://nowhere.invalid/v1/chat/completions ")
    assert "Proxy-Authorization: Basic YW5uOnBhc3M=" in proxy.heads[0]


async def test_a_proxy_on_the_way_to_tls_never_sees_the_key() -> None:
    async with peer_that(sends(answer(b"", status="502 No"))) as proxy:
        for address in (proxy.url, proxy.url.replace("//", "//ann:pass@")):
            with pytest.raises(ProviderError, match="through the proxy"):
                await heard(Peer(url="https://nowhere.invalid/v1"), proxy=address)
    assert all(head.startswith("CONNECT nowhere.invalid:443 ") for head in proxy.heads)
    assert not any(KEY in head for head in proxy.heads)
    assert "Proxy-Authorization" not in proxy.heads[0]
    assert "Proxy-Authorization: Basic YW5uOnBhc3M=" in proxy.heads[1]


async def test_a_host_that_does_not_let_us_in() -> None:
    with socket.create_server(("127.0.0.1", 0), backlog=0) as full:
        address = full.getsockname()
        waiting = [socket.create_connection(address)]
        for _ in range(4):
            waiting.append(socket.socket())
            waiting[-1].setblocking(False)
            waiting[-1].connect_ex(address)
        with pytest.raises(ProviderError, match=r"within 0\.2 s") as caught:
            await heard(Peer(url=f"http://127.0.0.1:{address[1]}/v1"), connect=0.2)
        for each in waiting:
            each.close()
    assert caught.value.retryable


@pytest.mark.parametrize("said", [b"", answer(b""), answer(chunk(content="Well, "))])
async def test_a_peer_that_falls_silent_is_given_up(said: bytes) -> None:
    async def play(writer: Writer) -> None:
        writer.write(said)
        await asyncio.sleep(600)

    async with asyncio.timeout(30):
        error = await error_for(play, hang=0.2)
    assert error.retryable
    assert "sent nothing for 0.2 s" in str(error)


async def test_signs_of_life_keep_an_answer_going() -> None:
    parts = [b": keep-alive\n\n"] * 8
    async with peer_that(sends(answer(b""), *parts, STOP, gap=0.15)) as peer:
        assert added_up(await heard(peer, hang=1.0)).finish == "stop"


@pytest.mark.parametrize("kind", ["text/event-stream", "application/json"])
async def test_an_endless_answer_ends(kind: str) -> None:
    async def play(writer: Writer) -> None:
        writer.write(answer(b"", kind=kind))
        while True:
            writer.write(b"data: x" * 10_000)
            await writer.drain()

    async with peer_that(play) as peer, open_endpoint(peer.url, KEY) as endpoint:
        with pytest.raises(ProviderError, match="more than 1000000 bytes") as caught:
            await deltas_of(OpenAIModel(endpoint, most_bytes=1_000_000))
        await asyncio.wait_for(peer.left.wait(), 20)
    assert not caught.value.retryable


# --- connections


async def forever(writer: Writer) -> None:
    writer.write(answer(chunk(content="Well, ")))
    while True:
        await asyncio.sleep(0.01)
        writer.write(b": still there\n\n")
        await writer.drain()


async def test_a_consumer_that_stops_hangs_up_at_once() -> None:
    async with peer_that(forever) as peer, open_endpoint(peer.url) as endpoint:
        async with aclosing(OpenAIModel(endpoint).stream(ASKED)) as stream:
            assert (await anext(stream)).text == "Well, "
        await asyncio.wait_for(peer.left.wait(), 20)


async def test_a_cancelled_task_hangs_up_at_once() -> None:
    async with peer_that(forever) as peer, open_endpoint(peer.url) as endpoint:
        task = asyncio.create_task(deltas_of(OpenAIModel(endpoint)))
        async with asyncio.timeout(20):
            while not peer.connections:
                await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await asyncio.wait_for(peer.left.wait(), 20)


async def test_a_connection_is_used_again() -> None:
    said = chunk(content="ok") + STOP + DONE
    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
    play = sends(head + b"%x\r\n%b\r\n" % (len(said), said), b"0\r\n\r\n", gap=0.02)
    async with peer_that(play, requests=3) as peer, open_endpoint(peer.url) as endpoint:
        for _ in range(3):
            assert added_up(await deltas_of(OpenAIModel(endpoint))).text == "ok"
    assert peer.connections == 1


async def test_a_peer_that_goes_on_after_done_is_not_listened_to() -> None:
    async def play(writer: Writer) -> None:
        writer.write(answer(chunk(content="ok") + STOP + DONE + chunk(content="more")))
        await forever(writer)

    async with peer_that(play) as peer:
        async with asyncio.timeout(20):
            assert added_up(await heard(peer)).text == "ok"
        await asyncio.wait_for(peer.left.wait(), 20)


async def test_a_hundred_answers_at_once() -> None:
    async with peer_that(sends(answer(chunk(content="ok")), STOP)) as peer, open_endpoint(peer.url) as endpoint:
        model = OpenAIModel(endpoint)
        everyone = await asyncio.gather(*(deltas_of(model) for _ in range(100)))
    assert [added_up(deltas).text for deltas in everyone] == ["ok"] * 100
