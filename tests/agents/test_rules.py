"""Limits end a turn in words: they close tools, and only then the turn."""

from datetime import timedelta
from typing import Any

import pytest

from longhouse.agents import rules
from longhouse.agents.template import Template
from longhouse.agents.tool import Tool
from longhouse.journal import events
from longhouse.journal.session import Session, Turn
from support import BEGAN, opened, prompted, returned, started, told, used

WORK = Tool(name="work", description="", schema={})
ASK = Tool(name="ask", description="", schema={}, asks=True)
FINISH = Tool(name="finish", description="", schema={}, finishes=True)
TOOLS = [WORK, ASK, FINISH]
TEMPLATE = Template(name="t")
STARTED_AT = BEGAN + timedelta(seconds=2)


def session_of(*new: events.Event, **limits: Any) -> Session:
    chosen = events.Limits(**{"max_iterations": 3, "max_clarifications": 1, "time_budget": 100, **limits})
    return told(opened(), prompted("x"), started(2, limits=chosen), *new)


def turn(*new: events.Event, **limits: Any) -> Turn:
    session = session_of(*new, **limits)
    assert session.turn is not None
    return session.turn


def step(number: int) -> list[events.Event]:
    return [events.Replied(), used(f"{number}-action-0"), returned(f"{number}-action-0")]


def steps(count: int) -> list[events.Event]:
    return [event for number in range(1, count + 1) for event in step(number)]


def question(answer: events.Outcome) -> list[events.Event]:
    return [
        events.Replied(),
        used("1-action-0", call_kind="ask", question="?"),
        events.Returned(call="1-action-0", outcome=answer),
    ]


def test_within_its_limits_a_turn_has_all_its_tools_in_their_order() -> None:
    assert rules.open_tools(session_of(*steps(2)), TEMPLATE, TOOLS, STARTED_AT) == TOOLS
    assert rules.spent(turn(*steps(2)), STARTED_AT) is None


def test_at_max_iterations_only_finishing_tools_are_left() -> None:
    assert rules.open_tools(session_of(*steps(3)), TEMPLATE, TOOLS, STARTED_AT) == [FINISH]
    assert rules.spent(turn(*steps(3)), STARTED_AT) == "its limit of 3 steps"


def test_a_turn_without_finishing_tools_is_left_with_words() -> None:
    assert rules.open_tools(session_of(*steps(3)), TEMPLATE, [WORK, ASK], STARTED_AT) == []


def test_after_its_limit_an_agent_has_a_few_steps_to_finish() -> None:
    assert rules.overdue(turn(*steps(3 + rules.GRACE - 1)), STARTED_AT) is None
    end = rules.overdue(turn(*steps(3 + rules.GRACE)), STARTED_AT)
    assert end == ("limit_reached", "the agent did not finish within its limit of 3 steps")


@pytest.mark.parametrize(
    ("seconds", "is_spent", "is_overdue"),
    [(0, False, False), (99, False, False), (100, True, False), (200, True, True)],
)
def test_time_closes_tools_and_twice_the_time_ends_the_turn(seconds: float, is_spent: bool, is_overdue: bool) -> None:
    now = STARTED_AT + timedelta(seconds=seconds)
    assert (rules.spent(turn(), now) == "its limit of 100 seconds") == is_spent
    assert (rules.open_tools(session_of(), TEMPLATE, TOOLS, now) == [FINISH]) == is_spent
    end = ("limit_reached", "the agent did not finish within its limit of 100 seconds")
    assert (rules.overdue(turn(), now) == end) == is_overdue


def test_waiting_for_a_person_costs_no_time() -> None:
    limits = events.Limits(max_iterations=5, max_clarifications=3, time_budget=100)
    asking = told(
        opened(), prompted("x"), started(2, limits=limits),
        events.Replied(), used("1-action-0", call_kind="ask", question="?"),
    )  # fmt: skip
    answered_at = BEGAN + timedelta(days=1)
    answered = told(returned("1-action-0"), session=asking, since=answered_at)
    assert answered.turn is not None
    assert rules.worked(answered.turn, answered_at) == 2
    assert rules.spent(answered.turn, answered_at + timedelta(seconds=97)) is None
    assert rules.spent(answered.turn, answered_at + timedelta(seconds=98)) is not None


def test_after_enough_clarifications_no_more_are_offered() -> None:
    assert rules.open_tools(session_of(*question(events.Output(content="Oslo"))), TEMPLATE, TOOLS, STARTED_AT) == [
        WORK,
        FINISH,
    ]
    assert rules.open_tools(session_of(max_clarifications=0), TEMPLATE, TOOLS, STARTED_AT) == [WORK, FINISH]


def test_a_question_nobody_answered_is_not_counted() -> None:
    unanswered = question(events.Fault(code="abandoned", message="x"))
    assert rules.open_tools(session_of(*unanswered), TEMPLATE, TOOLS, STARTED_AT) == TOOLS


def test_limits_belong_to_the_turn_and_not_to_the_session() -> None:
    limits = events.Limits(max_iterations=3, max_clarifications=1, time_budget=100)
    session = told(opened(), prompted("x"), started(2, limits=limits), *steps(3), events.Finished(answer="a"))
    session = told(prompted("y", trace="t2"), session=session)
    session = told(started(session.head, trace="t2", limits=limits), session=session)
    assert session.turn is not None
    assert session.iteration == 3
    assert rules.open_tools(session, TEMPLATE, TOOLS, session.turn.started_at) == TOOLS


def failing(times: int, arguments: str = "{}") -> list[events.Event]:
    fault = events.Fault(code="tool_failed", message="no")
    return [
        event
        for number in range(1, times + 1)
        for event in (
            events.Replied(),
            used(f"{number}-action-0", tool="work", arguments=arguments),
            events.Returned(call=f"{number}-action-0", outcome=fault),
        )
    ]


def test_the_same_failing_call_closes_its_tool_at_the_third_time_and_the_agent_is_told() -> None:
    patient = {"max_iterations": 10}
    assert rules.open_tools(session_of(*failing(2), **patient), TEMPLATE, TOOLS, STARTED_AT) == TOOLS
    assert rules.open_tools(session_of(*failing(3), **patient), TEMPLATE, TOOLS, STARTED_AT) == [ASK, FINISH]
    fault = events.Fault(code="tool_failed", message="no")
    assert rules.told(session_of(*failing(1), **patient), "work", "{}", fault) == fault
    told_so = rules.told(session_of(*failing(2), **patient), "work", "{}", fault)
    assert told_so.message.startswith("no. This call has failed 3 times: work is closed")
    assert rules.told(session_of(*failing(2), **patient), "work", '{"other": 1}', fault) == fault


def test_searches_tools_and_tokens_have_budgets_too() -> None:
    search = Tool(name="websearchtool", description="", schema={})
    searched = [events.Replied(), used("1-action-0"), events.Returned(
        call="1-action-0", outcome=events.Output(content=""), adds={"searches_used": 2}
    )]  # fmt: skip
    assert rules.open_tools(session_of(*searched, max_searches=3), TEMPLATE, [search, FINISH], STARTED_AT) == [
        search,
        FINISH,
    ]
    assert rules.open_tools(session_of(*searched, max_searches=2), TEMPLATE, [search, FINISH], STARTED_AT) == [FINISH]
    assert rules.spent(turn(*steps(2), tool_budget=2), STARTED_AT) == "its limit of 2 tool calls"
    costly = events.Replied(usage=events.Usage(total_tokens=500))
    assert rules.spent(turn(costly, token_budget=500), STARTED_AT) == "its limit of 500 tokens"
    assert rules.spent(turn(costly, token_budget=501), STARTED_AT) is None


def test_replies_that_cannot_be_read_end_the_turn_unless_one_can() -> None:
    unreadable = events.Replied(text="?", problem="it is not JSON")
    assert rules.overdue(turn(*[unreadable] * 2, max_iterations=9), STARTED_AT) is None
    end = rules.overdue(turn(*[unreadable] * 3, max_iterations=9), STARTED_AT)
    assert end is not None
    assert end[0] == "unreadable_reply"
    assert rules.overdue(turn(unreadable, unreadable, *steps(1), unreadable, max_iterations=9), STARTED_AT) is None
