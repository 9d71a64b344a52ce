"""The one HTTP client where its callers do not differ: packed answers, deadlines, and what its errors hold."""

import asyncio
import gzip
import re
import zlib

import pytest
from scripted_peers import KEY, STOP, Writer, added_up, answer, chunk, deltas_of, error_for, peer_that, reply_to, sends

from longhouse.errors import ProviderError
from longhouse.models.http.client import Endpoint, StatusFailure, open_endpoint
from longhouse.models.http.failure import HttpFailure
from longhouse.models.openai import OpenAIModel

SAID = chunk(content="Well, ") + chunk(content="hello.") + STOP


def packed(body: bytes, packing: str) -> bytes:
    return answer(body, headers=[f"Content-Encoding: {packing}"])


@pytest.mark.parametrize(("packing", "wbits"), [("gzip", 31), ("x-gzip", 31), ("deflate", 15), ("GZIP", 31)])
async def test_a_stream_that_is_packed_unasked_is_read_wherever_it_is_cut(packing: str, wbits: int) -> None:
    packer = zlib.compressobj(9, wbits=wbits)
    whole = packed(packer.compress(SAID) + packer.flush(), packing)
    reply = await reply_to(whole[:-50], whole[-50:-40], whole[-40:])
    assert (reply.text, reply.finish) == ("Well, hello.", "stop")


@pytest.mark.parametrize(
    ("body", "packing", "told"),
    [(b"not packed", "gzip", "cannot be unpacked"), (SAID, "br", "is packed in a way that was not asked for")],
)
async def test_what_cannot_be_unpacked_is_told_with_who_sent_it(body: bytes, packing: str, told: str) -> None:
    error = await error_for(sends(packed(body, packing)))
    assert re.fullmatch(rf"127\.0\.0\.1:\d+ sent an answer that {told}", str(error))
    assert error.public_message == f"the model sent an answer that {told}"
    assert error.retryable


async def test_a_packed_stream_counts_as_what_it_is_unpacked() -> None:
    bomb = packed(gzip.compress(b": nothing\n\n" * 1_000_000), "gzip")
    assert len(bomb) < 50_000
    async with peer_that(sends(bomb)) as peer, open_endpoint(peer.url, KEY) as endpoint:
        with pytest.raises(ProviderError, match="sent more than 100000 bytes") as caught:
            await deltas_of(OpenAIModel(endpoint, most_bytes=100_000))
    assert not caught.value.retryable


async def failure_of(endpoint: Endpoint) -> HttpFailure:
    with pytest.raises(HttpFailure) as caught:
        async with endpoint.post(b"{}", most_bytes=1000) as said:
            await said.body()
    return caught.value


async def test_an_answer_in_drops_ends_with_the_deadline() -> None:
    async def drops(writer: Writer) -> None:
        writer.write(answer(b"", kind="application/json"))
        while True:
            await asyncio.sleep(0.02)
            writer.write(b" ")
            await writer.drain()

    async with peer_that(drops) as peer, open_endpoint(peer.url, within=0.3) as endpoint:
        failure = await failure_of(endpoint)
        await asyncio.wait_for(peer.left.wait(), 20)
    assert failure.sentence("it") == "it did not answer within 0.3 seconds"


async def test_an_endpoint_and_its_failures_show_no_key_however_it_is_written() -> None:
    key = 'canary/"hush"+key'
    said = b'{"error": "canary%2F%22hush%22%2Bkey, canary/\\"hush\\"+key or canary/"hush"+key is wrong"}'
    refuse = sends(answer(said, kind="application/json", status="401 No"))
    async with peer_that(refuse) as peer, open_endpoint(peer.url, key) as endpoint:
        failure = await failure_of(endpoint)
        assert key not in repr(endpoint)
    assert isinstance(failure, StatusFailure)
    assert failure.sentence("it") == 'it answered 401: {"error": "[secret], [secret] or [secret] is wrong"}'
    assert not failure.retryable


async def test_a_connection_that_fails_is_told_without_its_address() -> None:
    async with peer_that(sends()) as gone:
        pass
    async with open_endpoint(gone.url) as endpoint:
        failure = await failure_of(endpoint)
    assert failure.sentence("it") == "it could not be reached: Connection refused"
    assert (failure.kind, failure.retryable) == ("ConnectionRefusedError", True)
    assert "closed" in (await failure_of(endpoint)).sentence("it")


async def test_a_path_beneath_keeps_query_and_key() -> None:
    async with peer_that(sends(answer(SAID))) as peer, open_endpoint(f"{peer.url}?api-version=7", KEY) as endpoint:
        assert added_up(await deltas_of(OpenAIModel(endpoint))).finish == "stop"
        assert endpoint.at("embeddings").url.path_qs == "/v1/embeddings?api-version=7"
    assert "Accept: text/event-stream, application/json\r\nAccept-Encoding: identity\r\n" in peer.heads[0]
