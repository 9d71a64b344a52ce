"""What well and badly behaved servers stream, and the reply that it adds up to."""

import itertools

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scripted_peers import (
    DONE,
    STOP,
    Reply,
    added_up,
    answer,
    call_chunk,
    chunk,
    error_for,
    event,
    fragment,
    heard,
    peer_that,
    reply_to,
    sends,
)

from longhouse.journal.events import Usage
from longhouse.models.sse import StreamReader, StreamRefused, UnreadableEvent

# --- what is heard


async def test_each_network_read_becomes_one_delta() -> None:
    first = answer(chunk(role="assistant", content="") + chunk(content="One, ") + chunk(content="two, "))
    async with peer_that(sends(first, chunk(content="three"), STOP + DONE, gap=0.05)) as peer:
        deltas = await heard(peer)
    assert [delta.text for delta in deltas] == ["One, two, ", "three", ""]
    assert [delta.finish for delta in deltas] == [None, None, "stop"]
    assert {delta.model for delta in deltas} == {"m-1"}


async def test_crlf_comments_ids_names_and_multi_line_data() -> None:
    stream = (
        b": hello\r\n\r\n"
        b'retry: 10\r\nid: 7\r\nevent: message\r\ndata: {"choices": [{"index": 0,\r\n'
        b'data:  "delta": {"content": "Hi"}}]}\r\n: inside\r\n\r\n\r\n'
        b'data:{"choices":[{"delta":{},"finish_reason":"stop"}]}\r\n\r\ndata:[DONE]\r\n\r\n'
    )
    reply = await reply_to(answer(stream))
    assert (reply.text, reply.finish) == ("Hi", "stop")


async def test_a_stream_arrives_byte_by_byte() -> None:
    stream = chunk(content="Grüße, 世界 🌍") + chunk(reasoning_content="ő") + STOP + DONE
    async with peer_that(sends(answer(b""), *(bytes([byte]) for byte in stream), gap=0.001)) as peer:
        reply = added_up(await heard(peer))
    assert (reply.text, reply.reasoning, reply.finish) == ("Grüße, 世界 🌍", "ő", "stop")


async def test_both_spellings_of_reasoning() -> None:
    reply = await reply_to(answer(chunk(reasoning_content="First. ") + chunk(reasoning="Then.") + STOP))
    assert (reply.reasoning, reply.text) == ("First. Then.", "")


async def test_usage_comes_in_a_chunk_without_choices() -> None:
    usage = {
        "prompt_tokens": 20,
        "completion_tokens": 5,
        "total_tokens": 25,
        "prompt_tokens_details": {"cached_tokens": 16, "audio_tokens": None},
    }
    reply = await reply_to(answer(STOP + event({"choices": [], "usage": usage}) + DONE))
    assert reply.usage == Usage(prompt_tokens=20, completion_tokens=5, total_tokens=25, cached_tokens=16)


async def test_an_answer_of_no_known_shape_still_says_what_it_cost() -> None:
    piece = {"content": {"parts": ["Hello"]}}
    usage = {"prompt_tokens": 20, "completion_tokens": 5, "total_tokens": 25}
    whole = msgspec.json.encode({"choices": [{"message": piece}], "usage": usage})
    streamed = event({"choices": [{"delta": piece}], "usage": usage})
    for answered in (answer(whole, kind="application/json"), answer(streamed)):
        error = await error_for(sends(answered))
        assert (error.retryable, error.usage.total_tokens) == (True, 25)


async def test_numbers_and_names_that_no_column_holds_are_bounded() -> None:
    """A negative number would fill a budget up, and one of thirty digits would keep the turn from being written."""
    usage = {"prompt_tokens": -5, "completion_tokens": 10**30, "total_tokens": -(10**30)}
    details = {"prompt_tokens_details": {"cached_tokens": -1}}
    last = event({"choices": None, "usage": usage | details, "model": "m" * 10_000})
    reply = await reply_to(answer(STOP + last + DONE))
    assert reply.usage == Usage(prompt_tokens=0, completion_tokens=10**12, total_tokens=10**12)
    assert reply.model == "m" * 200


async def test_usage_with_nulls_and_without_a_total() -> None:
    usage = {"prompt_tokens": 3, "completion_tokens": 4, "total_tokens": None, "prompt_tokens_details": None}
    reply = await reply_to(answer(STOP + event({"choices": None, "usage": usage}) + DONE))
    assert reply.usage == Usage(prompt_tokens=3, completion_tokens=4, total_tokens=7)


async def test_chunks_without_choices_and_null_fields_are_passed_over() -> None:
    odd = event({"object": "ping"}) + event({"choices": [{}]}) + event({"choices": [{"delta": None}]})
    nulls = chunk(content=None, reasoning_content=None, tool_calls=None, role="assistant")
    reply = await reply_to(answer(odd + nulls + chunk("", content="ok") + STOP))
    assert (reply.text, reply.finish) == ("ok", "stop")


async def test_a_refusal_is_told_apart_from_text() -> None:
    reply = await reply_to(answer(chunk(refusal="I would rather not.") + STOP))
    assert (reply.refusal, reply.text) == ("I would rather not.", "")


async def test_half_a_surrogate_pair_and_broken_characters_pass_through() -> None:
    broken = rb'data: {"choices":[{"delta":{"content":"a\ud83d"}}]}' + b"\n\n"
    invalid = b'data: {"choices":[{"delta":{"content":"\xff"}}]}\n\n'
    reply = await reply_to(answer(broken + invalid + STOP))
    assert reply.text == "a\ud83d\ufffd"


async def test_a_missing_done_is_forgiven_after_a_finish_reason() -> None:
    assert (await reply_to(answer(chunk(content="ok") + STOP))).finish == "stop"


async def test_a_missing_finish_reason_is_forgiven_before_done() -> None:
    reply = await reply_to(answer(chunk(content="ok") + DONE))
    assert (reply.text, reply.finish) == ("ok", None)


async def test_a_last_event_without_its_empty_line_counts() -> None:
    assert (await reply_to(answer(chunk(content="ok") + STOP.rstrip()))).finish == "stop"


async def test_a_connection_that_dies_after_the_finish_costs_nothing() -> None:
    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
    said = chunk(content="ok") + STOP
    reply = await reply_to(head + b"%x\r\n%b\r\n" % (len(said), said))
    assert (reply.text, reply.finish) == ("ok", "stop")


async def test_an_endpoint_that_does_not_stream_answers_in_one_delta() -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": '{"b":1,"a":2}'}}
    message = {
        "role": "assistant",
        "content": "Hm.",
        "reasoning": "Let me see.",
        "tool_calls": [call, call | {"id": "c2"}],
    }
    whole = {
        "id": "x",
        "model": "m-2",
        "choices": [{"index": 0, "message": message, "finish_reason": "tool_calls", "logprobs": None}],
        "usage": {"prompt_tokens": 1, "completion_tokens": 2, "total_tokens": 3},
    }
    async with peer_that(sends(answer(msgspec.json.encode(whole), kind="application/json; charset=utf-8"))) as peer:
        deltas = await heard(peer)
    assert len(deltas) == 1
    assert added_up(deltas) == Reply(
        text="Hm.",
        reasoning="Let me see.",
        calls={0: ("c1", "weather", '{"b":1,"a":2}'), 1: ("c2", "weather", '{"b":1,"a":2}')},
        usage=Usage(prompt_tokens=1, completion_tokens=2, total_tokens=3),
        finish="tool_calls",
        model="m-2",
    )


# --- tool calls

ONE = ("a", "first", '{"x":1}')
TWO = ("b", "second", '{"y":2}')


@pytest.mark.parametrize(
    "stream",
    [
        pytest.param(
            call_chunk(fragment(0, "a", "first", ""))
            + call_chunk(fragment(0, None, None, '{"x"'))
            + call_chunk(fragment(0, None, None, ":1}"))
            + call_chunk(fragment(1, "b", "second", ""))
            + call_chunk(fragment(1, None, None, '{"y":2}')),
            id="by the book",
        ),
        pytest.param(
            call_chunk(fragment(0, "a", "first", ""), fragment(1, "b", "second", ""))
            + call_chunk(fragment(1, None, None, '{"y"'), fragment(0, None, None, '{"x"'))
            + call_chunk(fragment(0, None, None, ":1}"), fragment(1, None, None, ":2}")),
            id="interleaved",
        ),
        pytest.param(
            call_chunk(fragment(0, "a", "first", '{"x"'))
            + call_chunk(fragment(0, "a", "first", ":1}"))
            + call_chunk(fragment(1, "b", "second", '{"y"'))
            + call_chunk(fragment(1, "b", "second", ":2}")),
            id="id and name repeated",
        ),
        pytest.param(
            call_chunk(fragment(None, "a", "first", '{"x"'))
            + call_chunk(fragment(None, None, None, ":1}"))
            + call_chunk(fragment(None, "b", "second", '{"y"'))
            + call_chunk(fragment(None, "b", None, ":2}")),
            id="no index",
        ),
        pytest.param(
            call_chunk(fragment(None, "a", "first", {"x": 1}), fragment(None, "b", "second", {"y": 2})),
            id="no index, whole calls, arguments as objects",
        ),
        pytest.param(
            call_chunk(fragment(0, "a", "first", '{"x":1}')) + call_chunk(fragment(0, "b", "second", '{"y":2}')),
            id="one index for all",
        ),
        pytest.param(
            call_chunk(fragment(1, "a", "first", '{"x"'))
            + call_chunk(fragment(1, "z9", None, ":1}"))
            + call_chunk(fragment(2, "b", "second", '{"y":2}')),
            id="counted from one, a new id in each fragment",
        ),
    ],
)
async def test_tool_calls_are_put_together_whoever_sends_them(stream: bytes) -> None:
    reply = await reply_to(answer(stream + chunk("tool_calls") + DONE))
    assert reply.calls == {0: ONE, 1: TWO}
    assert reply.finish == "tool_calls"
    reading = StreamReader()
    one_by_one = [reading.feed(event + b"\n\n") for event in stream.split(b"\n\n")]
    assert added_up(delta for delta in one_by_one if delta).calls == {0: ONE, 1: TWO}


async def test_calls_without_any_id_are_told_apart_by_name() -> None:
    stream = (
        call_chunk(fragment(None, None, "first", '{"x"'))
        + call_chunk(fragment(None, None, "first", ":1}"))
        + call_chunk(fragment(None, None, "second", '{"y":2}'))
    )
    reply = await reply_to(answer(stream + STOP))
    assert reply.calls == {0: ("", *ONE[1:]), 1: ("", *TWO[1:])}


async def test_fragments_of_one_read_are_merged_and_keep_their_order() -> None:
    stream = call_chunk(fragment(0, "a", "first", "")) + call_chunk(fragment(0, None, None, '{"z":0,"a"'))
    async with peer_that(sends(answer(stream + call_chunk(fragment(0, None, None, ":1}")) + STOP))) as peer:
        (delta,) = await heard(peer)
    assert [msgspec.structs.astuple(call) for call in delta.calls] == [(0, "a", "first", '{"z":0,"a":1}', None)]


# --- splitting


LONG = (
    b": keep-alive\r\n\r\n"
    + chunk(role="assistant", content="")
    + chunk(reasoning_content="Überlegung…")
    + chunk(content="Grüße ").replace(b"\n", b"\r\n")
    + chunk(content="世界 🌍")
    + b'event: x\ndata: {"choices":[{"delta":\ndata: {"content": "!"}}]}\n\n'
    + call_chunk(fragment(0, "a", "first", ""))
    + call_chunk(fragment(0, None, None, '{"x"'))
    + call_chunk(fragment(0, None, None, ":1}"), fragment(1, "b", "second", '{"y":2}'))
    + chunk("tool_calls")
    + event({"choices": [], "usage": {"prompt_tokens": 9, "completion_tokens": 9, "total_tokens": 18}})
    + DONE
)
LONG_REPLY = Reply(
    text="Grüße 世界 🌍!",
    reasoning="Überlegung…",
    calls={0: ONE, 1: TWO},
    usage=Usage(prompt_tokens=9, completion_tokens=9, total_tokens=18),
    finish="tool_calls",
    model="m-1",
)


@given(st.sets(st.integers(1, len(LONG) - 1)))
def test_any_split_into_reads_adds_up_to_the_same_reply(cuts: set[int]) -> None:
    reading = StreamReader()
    edges = [0, *sorted(cuts), len(LONG)]
    reads = [LONG[start:end] for start, end in itertools.pairwise(edges)]
    deltas = [delta for read in reads if (delta := reading.feed(read))]
    assert added_up(deltas) == LONG_REPLY
    assert reading.done


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.sampled_from(["choices", "delta", "content", "error"]), inner),
    max_leaves=10,
)


@given(
    st.lists(st.binary() | anything.map(lambda value: b"data: " + msgspec.json.encode(value, enc_hook=str) + b"\n\n"))
)
def test_nonsense_is_called_nonsense_and_nothing_worse(reads: list[bytes]) -> None:
    reading = StreamReader()
    try:
        for read in reads:
            reading.feed(read)
        reading.end()
    except (UnreadableEvent, StreamRefused):
        pass
