"""Limits end a turn in words: they close tools, and only then the turn."""

from datetime import timedelta

import pytest

from longhouse.agents import rules
from longhouse.agents.tool import Tool
from longhouse.journal import events
from longhouse.journal.session import Turn
from support import BEGAN, opened, prompted, returned, started, told, used

WORK = Tool(name="work", description="", schema={})
ASK = Tool(name="ask", description="", schema={}, asks=True)
FINISH = Tool(name="finish", description="", schema={}, finishes=True)
TOOLS = [WORK, ASK, FINISH]
STARTED_AT = BEGAN + timedelta(seconds=2)


def turn(*new: events.Event, max_iterations: int = 3, max_clarifications: int = 1, time_budget: float = 100) -> Turn:
    limits = events.Limits(
        max_iterations=max_iterations, max_clarifications=max_clarifications, time_budget=time_budget
    )
    session = told(opened(), prompted("x"), started(2, limits=limits), *new)
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
    assert rules.open_tools(turn(*steps(2)), TOOLS, STARTED_AT) == TOOLS
    assert rules.spent(turn(*steps(2)), STARTED_AT) is None


def test_at_max_iterations_only_finishing_tools_are_left() -> None:
    assert rules.open_tools(turn(*steps(3)), TOOLS, STARTED_AT) == [FINISH]
    assert rules.spent(turn(*steps(3)), STARTED_AT) == "its limit of 3 steps"


def test_a_turn_without_finishing_tools_is_left_with_words() -> None:
    assert rules.open_tools(turn(*steps(3)), [WORK, ASK], STARTED_AT) == []


def test_after_its_limit_an_agent_has_a_few_steps_to_finish() -> None:
    assert rules.overdue(turn(*steps(3 + rules.GRACE - 1)), STARTED_AT) is None
    reason = rules.overdue(turn(*steps(3 + rules.GRACE)), STARTED_AT)
    assert reason == "the agent did not finish within its limit of 3 steps"


@pytest.mark.parametrize(
    ("seconds", "is_spent", "is_overdue"),
    [(0, False, False), (99, False, False), (100, True, False), (200, True, True)],
)
def test_time_closes_tools_and_twice_the_time_ends_the_turn(seconds: float, is_spent: bool, is_overdue: bool) -> None:
    now = STARTED_AT + timedelta(seconds=seconds)
    assert (rules.spent(turn(), now) == "its limit of 100 seconds") == is_spent
    assert (rules.open_tools(turn(), TOOLS, now) == [FINISH]) == is_spent
    assert (rules.overdue(turn(), now) == "the agent did not finish within its limit of 100 seconds") == is_overdue


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
    assert rules.open_tools(turn(*question(events.Output(content="Oslo"))), TOOLS, STARTED_AT) == [WORK, FINISH]
    assert rules.open_tools(turn(max_clarifications=0), TOOLS, STARTED_AT) == [WORK, FINISH]


def test_a_question_nobody_answered_is_not_counted() -> None:
    unanswered = question(events.Fault(code="abandoned", message="x"))
    assert rules.open_tools(turn(*unanswered), TOOLS, STARTED_AT) == TOOLS


def test_limits_belong_to_the_turn_and_not_to_the_session() -> None:
    limits = events.Limits(max_iterations=3, max_clarifications=1, time_budget=100)
    session = told(opened(), prompted("x"), started(2, limits=limits), *steps(3), events.Finished(answer="a"))
    session = told(prompted("y", trace="t2"), session=session)
    session = told(started(session.head, trace="t2", limits=limits), session=session)
    assert session.turn is not None
    assert session.iteration == 3
    assert rules.open_tools(session.turn, TOOLS, session.turn.started_at) == TOOLS
