"""Histories from elsewhere: read with patience, cut without splitting a call from its result."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from longhouse.journal import imported
from longhouse.journal.messages import Assistant, Function, ToolCall, ToolResult, User


def called(*ids: str, content: str = "") -> dict[str, Any]:
    calls = [{"id": one, "type": "function", "function": {"name": "look", "arguments": "{}"}} for one in ids]
    return {"role": "assistant", "content": content, "tool_calls": calls}


def result(call: str) -> dict[str, Any]:
    return {"role": "tool", "content": "seen", "tool_call_id": call, "name": "look"}


USER = {"role": "user", "content": "Hi"}
HELLO = {"role": "assistant", "content": "Hello"}


def test_a_cut_takes_results_with_their_call() -> None:
    messages = [USER, called("a", "b"), result("a"), result("b"), HELLO]
    assert imported.last(messages, 5) == messages
    assert imported.last(messages, 4) == messages[1:]
    assert imported.last(messages, 3) == imported.last(messages, 1) == [HELLO]
    assert imported.last(messages, 0) == []


def test_what_has_no_partner_is_left_out() -> None:
    messages = [result("x"), USER, called("a", "b", content="Looking."), result("a"), USER, called("c"), result("c")]
    looking = {"role": "assistant", "content": "Looking."}
    assert imported.paired(messages) == [USER, looking, USER, called("c"), result("c")]
    assert imported.paired([USER, called("a")]) == [USER]


@pytest.mark.parametrize(
    "bad",
    [
        None,
        7,
        "words",
        {},
        {"role": "king", "content": "x"},
        {"role": "system", "content": "Obey."},
        {"role": "user", "content": 7},
        {"role": "user"},
        {"role": "assistant", "content": None},
        {"role": "tool", "content": "x"},
        {"role": "assistant", "content": "x", "tool_calls": "no"},
        {"role": "assistant", "content": "x", "tool_calls": [{"id": "a"}]},
        {"role": "assistant", "content": "x", "tool_calls": [{"id": 1, "function": {"name": "f", "arguments": "{}"}}]},
    ],
)
def test_an_entry_that_is_no_message_is_dropped_and_the_others_stay(bad: object) -> None:
    assert imported.read([USER, bad, HELLO]) == [USER, HELLO]


def test_anything_but_a_list_is_no_history() -> None:
    assert imported.read({"role": "user"}) == imported.read("[]") == imported.read(None) == []


def test_parts_are_read_as_words_and_unstorable_characters_are_made_visible() -> None:
    parts = [{"type": "text", "text": "a\x00"}, {"type": "image_url", "image_url": {}}, {"type": "text", "text": "b"}]
    assert imported.read([{"role": "user", "content": parts}]) == [{"role": "user", "content": "a\ufffd\nb"}]


def test_a_history_becomes_messages_that_a_model_can_be_sent() -> None:
    call = ToolCall(id="a", function=Function(name="look", arguments="{}"))
    assert imported.as_messages([USER, called("a"), result("a"), HELLO]) == (
        User(content="Hi"),
        Assistant(tool_calls=(call,)),
        ToolResult(tool_call_id="a", content="seen"),
        Assistant(content="Hello"),
    )


def test_calls_of_several_turns_are_told_apart_from_each_other_and_from_ours() -> None:
    turn = [USER, called("1-action-0", "b"), result("b"), result("1-action-0"), HELLO]
    messages = imported.as_messages([*turn, called("told-1"), result("told-1"), *turn])
    made = [call.id for one in messages if isinstance(one, Assistant) for call in one.tool_calls]
    assert len(set(made)) == 5
    assert made[1] == "b", "what nobody takes for another stays as it is"
    assert not {"1-action-0"} & {*made}
    answered = [one.tool_call_id for one in messages if isinstance(one, ToolResult)]
    assert answered == [made[1], made[0], made[2], made[4], made[3]]


ENTRIES = st.one_of(
    st.just(USER),
    st.lists(st.sampled_from("abc"), min_size=1, max_size=3, unique=True).map(lambda ids: called(*ids)),
    st.sampled_from("abc").map(result),
)


@settings(deadline=None)
@given(st.lists(ENTRIES, max_size=20), st.integers(0, 12))
def test_whatever_is_cut_calls_and_results_stay_together(messages: list[dict[str, Any]], limit: int) -> None:
    kept = imported.paired(imported.last(messages, limit))
    assert len(kept) <= limit
    open_calls: set[str] = set()
    for message in kept:
        if message["role"] == "tool":
            open_calls.remove(message["tool_call_id"])
        else:
            assert not open_calls
            open_calls = {call["id"] for call in message.get("tool_calls", ())}
    assert not open_calls
