"""The tools of the first day: asking, answering, telling the time."""

from datetime import datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from longhouse.journal import events
from longhouse.journal.events import Fault, Output
from longhouse.tools.builtin.clock import ClockTool
from longhouse.tools.builtin.dialogue import ClarificationTool, FinalAnswerTool
from longhouse.tools.toolbox import Result, Toolbox
from server_helpers import folded, opened, prompted, started, turn_of, used

TOOLBOX = Toolbox([ClarificationTool, FinalAnswerTool, ClockTool])


async def perform(tool: str, arguments: str) -> Result:
    call = used("1-action-0", tool=tool, arguments=arguments)
    session = folded(opened(), prompted("x"), started(2), events.Replied(), call)
    return await TOOLBOX.perform(session.due_calls[0], session, turn_of(session))


def schema_of(tool: str) -> dict[str, Any]:
    found = TOOLBOX.find(tool)
    assert found is not None
    return found.schema


async def test_questions_are_returned_one_per_line() -> None:
    result = await perform("clarificationtool", '{"questions": ["Which city?", "When?"]}')
    assert result == Result(Output(content="Which city?\nWhen?"))


def test_a_clarification_thinks_before_it_asks_and_needs_a_question() -> None:
    assert list(schema_of("clarificationtool")["properties"]) == [
        "reasoning", "unclear_terms", "assumptions", "questions",
    ]  # fmt: skip
    assert schema_of("clarificationtool")["required"] == ["questions"]
    tool = TOOLBOX.find("clarificationtool")
    assert tool is not None
    assert (tool.asks, tool.inline, tool.finishes) == (True, True, False)


async def test_no_question_is_no_clarification() -> None:
    fault = await TOOLBOX.check(ClarificationTool.described(), '{"questions": []}')
    assert fault is not None
    assert fault.code == "bad_arguments"


@pytest.mark.parametrize(
    ("arguments", "state"),
    [
        ('{"answer": "Rain."}', "COMPLETED"),
        ('{"answer": "Rain.", "status": "failed"}', "FAILED"),
        ('{"answer": "Rain.", "status": " FAILURE"}', "FAILED"),
        ('{"answer": "Rain.", "status": "success"}', "COMPLETED"),
        ('{"answer": "Rain.", "status": null, "reasoning": null, "completed_steps": null}', "COMPLETED"),
        ('{"answer": "Rain.", "status": ["x"], "reasoning": {"a": 1}, "completed_steps": "looked"}', "COMPLETED"),
    ],
)
async def test_the_final_answer_is_the_result_and_its_status_the_state(arguments: str, state: str) -> None:
    result = await perform("finalanswertool", arguments)
    assert result == Result(Output(content="Rain."), {"state": state, "execution_result": "Rain."})


def test_the_steps_beside_an_answer_are_read_as_well_as_they_can_be() -> None:
    for given, read in (("looked", ["looked"]), (["looked", 1, None], ["looked"]), ({"a": "b"}, []), (7, [])):
        assert FinalAnswerTool.model_validate({"answer": "x", "completed_steps": given}).completed_steps == read


async def test_the_final_answer_is_offered_to_the_end_and_has_its_names() -> None:
    tool = TOOLBOX.find("finalanswertool")
    assert tool is not None
    assert (tool.finishes, tool.inline, tool.asks) == (True, True, False)
    assert list(tool.schema["properties"]) == ["reasoning", "completed_steps", "answer", "status"]
    assert tool.schema["properties"]["status"]["enum"] == ["completed", "failed"]
    for arguments in ('{"answer": 5}', "{}", '{"answer": "x"'):
        fault = await TOOLBOX.check(tool, arguments)
        assert fault is not None, arguments


@pytest.mark.parametrize("zone", ["UTC", "Europe/Oslo", "Asia/Tokyo"])
async def test_the_clock_tells_the_time_of_a_zone(zone: str) -> None:
    result = await perform("clocktool", f'{{"timezone": "{zone}"}}')
    assert isinstance(result.outcome, Output)
    told_time = datetime.fromisoformat(result.outcome.content)
    now = datetime.now(ZoneInfo(zone))
    assert told_time.utcoffset() == now.utcoffset()
    assert abs(now - told_time) < timedelta(minutes=1)


@pytest.mark.parametrize("zone", ["Atlantis", "../../etc/passwd", "/etc/passwd", "", "UTC\\u0000"])
async def test_a_zone_that_is_none_is_explained(zone: str) -> None:
    result = await perform("clocktool", f'{{"timezone": "{zone}"}}')
    assert isinstance(result.outcome, Fault)
    assert "is not a time zone; try one such as Europe/Oslo" in result.outcome.message
