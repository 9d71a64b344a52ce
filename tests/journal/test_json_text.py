"""A history is told on in calls that every server can read; what a model wrote instead is quoted, and kept."""

import json

import pytest

from longhouse.journal import conversation, events
from longhouse.journal.events import Fault
from longhouse.journal.json_text import DEEPEST, QUOTED, is_deep, object_of, with_valid_arguments
from longhouse.journal.messages import Assistant, Function, Message, ToolCall, ToolResult, User
from longhouse.journal.transcript import Step
from server_helpers import folded, opened, prompted, started, used

BROKEN = ['{"at": "Os', "[1]", "null", '"text"', "{'at': 'Oslo'}", '{"at": NaN}', '{"at": "\\ud800"}', '{"a":1} x']
DEEP = ['{"a": ' + "[" * levels + "]" * levels + "}" for levels in (DEEPEST, 900, 100_000)]


def called(*arguments: str) -> list[Message]:
    """One message with such calls, and their results."""
    calls = tuple(ToolCall(id=f"c{n}", function=Function(name="look", arguments=a)) for n, a in enumerate(arguments))
    return [
        Assistant(content="Hm.", tool_calls=calls),
        *(ToolResult(tool_call_id=one.id, content="Error: no") for one in calls),
    ]


@pytest.mark.parametrize("arguments", [*BROKEN, *DEEP, "{" + '"a":' + "9" * 5_000 + "}"])
def test_arguments_that_are_no_object_are_sent_as_an_empty_one_and_quoted_in_the_result(arguments: str) -> None:
    whole, broken = called('{"b": 1, "a": 2}'), called('{"b": 1, "a": 2}', arguments)
    message, first, second = with_valid_arguments(broken)
    assert isinstance(message, Assistant)
    assert [one.function.arguments for one in message.tool_calls] == ['{"b": 1, "a": 2}', "{}"]
    assert (message.content, first) == ("Hm.", whole[1])
    assert isinstance(second, ToolResult)
    assert second.content.startswith(f"Error: no\nThe arguments were written as: {arguments[:QUOTED]}")
    assert len(second.content) < QUOTED + 100


def test_arguments_that_were_left_empty_have_nothing_to_quote() -> None:
    message, result = with_valid_arguments(called(""))
    assert isinstance(message, Assistant)
    assert message.tool_calls[0].function.arguments == "{}"
    assert result == ToolResult(tool_call_id="c0", content="Error: no")


def test_sound_messages_stay_the_very_same() -> None:
    messages = [User(content="Hi"), *called("{}", ' {"a": [1]}\n'), Assistant(content="Done."), User(content="{")]
    assert list(with_valid_arguments(messages)) == messages


def test_a_quote_belongs_to_the_call_that_was_just_made() -> None:
    *_, last = with_valid_arguments([*called('{"at"'), *called("{}")])
    assert last == ToolResult(tool_call_id="c0", content="Error: no")


def test_a_value_is_deep_beyond_its_last_level() -> None:
    levels = [json.loads("[" * n + "]" * n) for n in (1, DEEPEST, DEEPEST + 1)]
    assert [is_deep(value) for value in (1, "[[", [], *levels)] == [False, False, False, False, False, True]
    wide = json.dumps({"a": [[1]] * 1_000})
    assert object_of(wide) == json.loads(wide)


def test_what_other_programs_are_told_is_sound_and_the_journal_keeps_the_models_words() -> None:
    fault = events.Returned(call="1-action-0", outcome=Fault(code="bad_arguments", message="not JSON"))
    work = (events.Replied(), used("1-action-0", arguments='{"at": "Os'), fault)
    session = folded(opened(), prompted("Look"), started(2), *work)
    _, asked, result = conversation.messages_of(session)
    assert asked["tool_calls"][0]["function"]["arguments"] == "{}"
    assert result["content"] == 'Error: not JSON\nThe arguments were written as: {"at": "Os'
    step = session.transcript[-1]
    assert isinstance(step, Step)
    assert step.uses[0].arguments == '{"at": "Os'


@pytest.mark.parametrize("thought", ["[" * 20_000, *DEEP, "plain words", "null"])
def test_a_thought_that_is_no_value_stays_words(thought: str) -> None:
    session = folded(opened(), prompted("Think"), started(2), events.Replied(thought=thought))
    assert session.context["current_step_reasoning"] == thought


def test_a_structured_thought_is_a_value() -> None:
    session = folded(opened(), prompted("Think"), started(2), events.Replied(thought='{"enough_data": true}'))
    assert session.context["current_step_reasoning"] == {"enough_data": True}
