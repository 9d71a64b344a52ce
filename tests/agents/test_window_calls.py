"""Calls in a window: long arguments are left out like results, broken ones are told in a form that all can read."""

import json
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_window_budget import begun, composed, is_stub, results

from longhouse.agents.requests import tokens, window
from longhouse.agents.template import MemoryPolicy, Template
from longhouse.journal import events
from longhouse.journal.messages import Assistant, Function, Message, ToolCall, ToolResult, User
from longhouse.journal.session import Session
from server_helpers import folded, opened, prompted, returned, started, turn_of, used


def wrote(session: Session, *arguments: Any, tool: str = "createfiletool", result: str = "ok") -> Session:
    """One more reply with such calls, all of them returned."""
    ids = [f"{session.iteration + 1}-action-{n}" for n in range(len(arguments))]
    written = [given if isinstance(given, str) else json.dumps(given) for given in arguments]
    uses = [used(id_, tool=tool, arguments=given) for id_, given in zip(ids, written, strict=True)]
    return folded(events.Replied(), *uses, *(returned(id_, result) for id_ in ids), session=session)


def sent(messages: Sequence[Message]) -> list[Any]:
    """The arguments of all calls, which every server can read."""
    calls = (call for message in messages if isinstance(message, Assistant) for call in message.tool_calls)
    return [json.loads(call.function.arguments) for call in calls]


def test_long_arguments_of_old_steps_are_left_out_and_short_ones_beside_them_stay() -> None:
    session = begun()
    for nth in range(4):
        session = wrote(session, {"path": f"{nth}.md", "content": "слово " * 300, "tags": ["a"]})
    shown = sent(composed(session))
    stub = "[left out: 1802 characters]"
    assert shown[:2] == [{"path": f"{nth}.md", "content": stub, "tags": ["a"]} for nth in range(2)]
    assert shown[3]["content"] == "слово " * 300, "what was just written is not left out"


def test_many_arguments_are_left_out_together() -> None:
    session = wrote(begun(), {f"name {nth}": "x" * 90 for nth in range(100)})
    assert sent(composed(wrote(session, {})))[0] == {"arguments": "[left out: 10490 characters]"}


def test_the_answers_of_earlier_turns_stay() -> None:
    answer = {"answer": "a" * 3_000, "status": "completed"}
    session = wrote(begun(), answer, tool="finalanswertool", result="a" * 3_000)
    session = folded(events.Finished(answer="a" * 3_000), session=session)
    session = begun("Next", session=session, trace="t2")
    session = wrote(wrote(session, {"content": "c" * 6_000}), {})
    shown = composed(session)
    assert sent(shown)[0] == answer
    assert is_stub(results(shown)[0])
    assert sent(shown)[1] == {"content": "[left out: 6002 characters]"}


def test_a_long_turn_stays_within_its_budget() -> None:
    session, sizes = begun(), []
    for nth in range(30):
        session = wrote(session, {"at": str(nth), "text": "word " * 400})
        sizes.append(tokens.total(composed(session, 4_000)))
    assert max(sizes) <= 4_000


given_arguments = st.lists(
    st.fixed_dictionaries({"at": st.text(max_size=20), "text": st.integers(0, 4_000).map(lambda n: "ж" * n)}),
    max_size=2,
)
lives = st.lists(st.tuples(given_arguments, st.integers(0, 3_000)), min_size=1, max_size=12)


@settings(max_examples=60, deadline=None)
@given(lives, st.integers(200, 6_000))
def test_calls_keep_their_places_and_what_was_left_out_stays_out(life: list[Any], budget: int) -> None:
    session, before = begun(), list[Message]()
    for arguments, size in life:
        session = wrote(session, *arguments, result="r" * size)
        shown, whole = composed(session, budget), [*window.history(session, Template(name="t"))]
        assert shown == composed(session, budget)
        assert [type(one) for one in shown[1:]] == [type(one) for one in whole]
        assert [one["at"] for one in sent(shown)] == [one["at"] for one in sent(whole)]
        assert sent(shown)[len(sent(shown)) - len(arguments) :] == arguments
        grown = [*before, *shown[len(before) :]]
        assert shown == grown or tokens.total(grown) > budget
        assert _cuts(shown)[: len(_cuts(before))] == [here or there for here, there in _both(before, shown)]
        before = shown
        again = msgspec.json.decode(msgspec.json.encode(session), type=Session)
        assert composed(again, budget) == shown


def _cuts(messages: list[Message]) -> list[bool]:
    """Message by message: is something left out of it?"""
    return [b"left out: " in msgspec.json.encode(message) for message in messages]


def _both(before: list[Message], after: list[Message]) -> list[tuple[bool, bool]]:
    return list(zip(_cuts(before), _cuts(after), strict=False))


@pytest.mark.parametrize("side", ["root", "sub"])
@pytest.mark.parametrize("present", [True, False])
def test_a_call_that_no_server_can_read_is_quoted_in_its_result(side: Any, present: bool) -> None:
    session = folded(events.Opened(agent="a", version=1, owner="local", conversation="c", side=side))
    session = wrote(begun(session=session), {"at": "Oslo"}, '{"at": "Os', result="Error: no")
    if not present:
        session = begun("Next", session=folded(events.Finished(answer="."), session=session), trace="t2")
    shown = window.compose(session, turn_of(session), Template(name="t"), [], {})
    assert sent(shown) == [{"at": "Oslo"}, {}]
    assert results(shown) == ["Error: no", 'Error: no\nThe arguments were written as: {"at": "Os']
    assert [*window.history(session, Template(name="t"))] == shown[1:] or side == "sub"


@pytest.mark.parametrize("policy", [MemoryPolicy(), MemoryPolicy(context_window=9)])
def test_broken_calls_that_a_client_brought_along_are_mended_too(policy: MemoryPolicy) -> None:
    call = ToolCall(id="x", function=Function(name="look", arguments="{'at'"))
    prior = (User(content="Hi"), Assistant(tool_calls=(call,)), ToolResult(tool_call_id="x", content="no"))
    session = folded(opened(), prompted("Go", prior=prior), started(2))
    shown = window.compose(session, turn_of(session), Template(name="t", memory_policy=policy), [], {})
    assert sent(shown) == [{}]
    assert results(shown) == ["no\nThe arguments were written as: {'at'"]
