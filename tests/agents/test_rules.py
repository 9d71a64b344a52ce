"""Limits end a turn in words: they close tools, and only then the turn."""

from datetime import timedelta
from typing import Any

import pytest
from msgspec.structs import replace

from longhouse.agents import rules
from longhouse.agents.template import DEFAULT_AVAILABILITY, Availability, Rules, Template
from longhouse.agents.tool import Tool
from longhouse.journal import events
from longhouse.journal.refusals import ENDED, UNTIMELY
from longhouse.journal.session import Session, Turn
from server_helpers import BEGAN, folded, open_tools, opened, prompted, returned, started, used

WORK = Tool(name="work", description="", schema={})
ASK = Tool(name="ask", description="", schema={}, asks=True)
FINISH = Tool(name="finish", description="", schema={}, finishes=True)
TOOLS = [WORK, ASK, FINISH]
TEMPLATE = Template(name="t")
STARTED_AT = BEGAN + timedelta(seconds=2)


def session_of(*new: events.Event, **limits: Any) -> Session:
    chosen = events.Limits(**{"max_iterations": 3, "max_clarifications": 1, "time_budget": 100, **limits})
    return folded(opened(), prompted("x"), started(2, limits=chosen), *new)


def turn(*new: events.Event, **limits: Any) -> Turn:
    session = session_of(*new, **limits)
    assert session.turn is not None
    return session.turn


def later(turn: Turn, seconds: float) -> Turn:
    """The turn after so many more seconds of work."""
    return replace(turn, worked_at=turn.worked_at + timedelta(seconds=seconds))


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
    assert open_tools(session_of(*steps(2)), TEMPLATE, TOOLS, STARTED_AT) == TOOLS
    assert rules.spent(turn(*steps(2))) is None


def test_at_max_iterations_only_finishing_tools_are_left() -> None:
    assert open_tools(session_of(*steps(3)), TEMPLATE, TOOLS, STARTED_AT) == [FINISH]
    assert rules.spent(turn(*steps(3))) == "its limit of 3 steps"


def test_a_turn_without_finishing_tools_is_left_with_words() -> None:
    assert open_tools(session_of(*steps(3)), TEMPLATE, [WORK, ASK], STARTED_AT) == []


def test_after_its_limit_an_agent_has_a_few_steps_to_finish() -> None:
    assert rules.overdue(turn(*steps(3 + rules.GRACE - 1))) is None
    end = rules.overdue(turn(*steps(3 + rules.GRACE)))
    assert end == ("limit_reached", "the agent did not finish within its limit of 3 steps")


@pytest.mark.parametrize(
    ("seconds", "is_spent", "is_overdue"),
    [(0, False, False), (99, False, False), (100, True, False), (200, True, True)],
)
def test_time_closes_tools_and_twice_the_time_ends_the_turn(seconds: float, is_spent: bool, is_overdue: bool) -> None:
    now = STARTED_AT + timedelta(seconds=seconds)
    assert (rules.spent(replace(turn(), worked_at=now)) == "its limit of 100 seconds") == is_spent
    assert (open_tools(session_of(), TEMPLATE, TOOLS, now) == [FINISH]) == is_spent
    end = ("limit_reached", "the agent did not finish within its limit of 100 seconds")
    assert (rules.overdue(replace(turn(), worked_at=now)) == end) == is_overdue


def test_waiting_for_a_person_costs_no_time() -> None:
    limits = events.Limits(max_iterations=5, max_clarifications=3, time_budget=100)
    asking = folded(
        opened(), prompted("x"), started(2, limits=limits),
        events.Replied(), used("1-action-0", call_kind="ask", question="?"),
    )  # fmt: skip
    answered_at = BEGAN + timedelta(days=1)
    answered = folded(returned("1-action-0"), session=asking, since=answered_at)
    assert answered.turn is not None
    assert rules.worked_seconds(answered.turn) == 2
    assert rules.spent(later(answered.turn, 97)) is None
    assert rules.spent(later(answered.turn, 98)) is not None


def test_what_passes_before_a_takeover_is_no_work_whatever_happens_meanwhile() -> None:
    """As in journals of earlier releases too."""
    running = folded(opened(), prompted("x"), started(2), events.Replied(), used("1-action-0"))
    written_to = folded(prompted("And?", trace="u"), session=running, since=BEGAN + timedelta(hours=8))
    resumed = events.Resumed(worker="b", previous="a")
    taken = folded(resumed, session=written_to, since=BEGAN + timedelta(hours=9))
    lost_twice = folded(resumed, returned("1-action-0"), session=taken, since=BEGAN + timedelta(hours=19))
    assert lost_twice.turn is not None
    assert rules.worked_seconds(lost_twice.turn) == 3
    put_back = folded(resumed, returned("1-action-0"), session=taken, since=BEGAN + timedelta(hours=2))
    assert put_back.turn is not None
    assert rules.worked_seconds(put_back.turn) == 3


def test_a_wait_over_which_clocks_disagree_is_no_work() -> None:
    limits = events.Limits(max_iterations=5, max_clarifications=3, time_budget=100)
    asked = folded(
        opened(), prompted("x"), started(2, limits=limits),
        events.Replied(), used("1-action-0", call_kind="ask", question="?"),
    )  # fmt: skip
    for since in (timedelta(hours=-1), timedelta(hours=1)):
        answered = folded(returned("1-action-0"), session=asked, since=BEGAN + since)
        assert answered.turn is not None
        assert rules.worked_seconds(answered.turn) == 2


@pytest.mark.parametrize(("worked", "counted"), [((10.0,), 10), ((0.0,), 0), ((60.0, 50.0), 100), ((30.0, 20.0), 50)])
def test_the_work_of_others_is_time_but_never_more_than_has_passed(worked: tuple[float, ...], counted: int) -> None:
    calls = [f"1-action-{nth}" for nth in range(len(worked))]
    limits = events.Limits(max_iterations=5, max_clarifications=3, time_budget=40)
    asking = folded(
        opened(), prompted("x"), started(2, limits=limits),
        events.Replied(), *(used(call, call_kind="agent") for call in calls), every=timedelta(0),
    )  # fmt: skip
    back = BEGAN + timedelta(seconds=100)
    outcomes = [
        returned(call, spent=events.Usage(total_tokens=7), seconds=one) for call, one in zip(calls, worked, strict=True)
    ]
    turn = folded(*outcomes, session=asking, since=back, every=timedelta(0)).turn
    assert turn is not None
    assert rules.worked_seconds(turn) == counted
    assert (rules.spent(turn) is not None) == (counted >= 40)
    # It has not had a step of its own since: it may say what has come of it.
    assert rules.overdue(later(turn, 79)) is None
    assert rules.overdue(later(turn, 80)) is not None


def test_tokens_of_others_close_the_tools_and_end_nothing() -> None:
    call = used("1-action-0", call_kind="agent")
    paid = returned("1-action-0", spent=events.Usage(total_tokens=900), calls=4)
    turn = session_of(events.Replied(), call, paid, token_budget=300).turn
    assert turn is not None
    assert (turn.calls, turn.usage.total_tokens) == (5, 900)
    assert rules.spent(turn) == "its limit of 300 tokens"
    assert rules.overdue(turn) is None


def test_after_enough_clarifications_no_more_are_offered() -> None:
    assert open_tools(session_of(*question(events.Output(content="Oslo"))), TEMPLATE, TOOLS, STARTED_AT) == [
        WORK,
        FINISH,
    ]
    assert open_tools(session_of(max_clarifications=0), TEMPLATE, TOOLS, STARTED_AT) == [WORK, FINISH]


def test_a_question_nobody_answered_is_not_counted() -> None:
    unanswered = question(events.Fault(code="abandoned", message="x"))
    assert open_tools(session_of(*unanswered), TEMPLATE, TOOLS, STARTED_AT) == TOOLS


def test_limits_belong_to_the_turn_and_not_to_the_session() -> None:
    limits = events.Limits(max_iterations=3, max_clarifications=1, time_budget=100)
    session = folded(opened(), prompted("x"), started(2, limits=limits), *steps(3), events.Finished(answer="a"))
    session = folded(prompted("y", trace="t2"), session=session)
    session = folded(started(session.head, trace="t2", limits=limits), session=session)
    assert session.turn is not None
    assert session.iteration == 3
    assert open_tools(session, TEMPLATE, TOOLS, session.turn.started_at) == TOOLS


def failing(times: int, arguments: str = "{}", *, tool: str = "work", code: str = "tool_failed") -> list[events.Event]:
    fault = events.Fault(code=code, message="no")
    return [
        event
        for number in range(1, times + 1)
        for event in (
            events.Replied(),
            used(f"{number}-action-0", tool=tool, arguments=arguments),
            events.Returned(call=f"{number}-action-0", outcome=fault),
        )
    ]


def test_the_same_failing_call_closes_its_tool_at_the_third_time_and_the_agent_is_told() -> None:
    patient = {"max_iterations": 10}
    assert open_tools(session_of(*failing(2), **patient), TEMPLATE, TOOLS, STARTED_AT) == TOOLS
    assert open_tools(session_of(*failing(3), **patient), TEMPLATE, TOOLS, STARTED_AT) == [ASK, FINISH]
    lost = failing(1, code=rules.WORKER_LOST)
    assert open_tools(session_of(*lost, **patient), TEMPLATE, TOOLS, STARTED_AT) == [ASK, FINISH], "at the first time"
    fault = events.Fault(code="tool_failed", message="no")
    assert rules.explained(session_of(*failing(1), **patient), "work", "{}", fault) == fault
    told_so = rules.explained(session_of(*failing(2), **patient), "work", "{}", fault)
    assert told_so.message.startswith("no. This call has failed 3 times: work is closed")
    assert rules.explained(session_of(*failing(2), **patient), "work", '{"other": 1}', fault) == fault


@pytest.mark.parametrize("code", sorted((UNTIMELY | ENDED) - {rules.NO_MORE_CALLS}))
def test_a_tool_that_was_not_called_or_that_a_person_stopped_stays_open(code: str) -> None:
    session = session_of(*failing(5, code=code), max_iterations=10)
    assert open_tools(session, TEMPLATE, TOOLS, STARTED_AT) == TOOLS
    fault = events.Fault(code=code, message="no")
    assert rules.explained(session_of(*failing(2), max_iterations=10), "work", "{}", fault) == fault


def test_a_turn_whose_request_has_no_calls_left_is_left_with_what_finishes() -> None:
    session = session_of(*failing(1, code=rules.NO_MORE_CALLS), max_iterations=10)
    assert open_tools(session, TEMPLATE, TOOLS, STARTED_AT) == [FINISH]


def test_what_finishes_is_never_closed_however_often_it_fails() -> None:
    session = session_of(*failing(5, tool="finish", code="bad_arguments"), max_iterations=10)
    assert open_tools(session, TEMPLATE, TOOLS, STARTED_AT) == TOOLS
    fault = events.Fault(code="bad_arguments", message="no")
    twice = session_of(*failing(2, tool="finish"), max_iterations=10)
    assert rules.explained(twice, "finish", "{}", fault, finishes=True) == fault


def test_a_rule_may_name_all_tools_of_a_server() -> None:
    price, stock = (Tool(name=f"shop.{name}", description="", schema={}) for name in ("price", "stock"))
    tools = [price, stock, WORK, FINISH]
    closes = Rules(availability=(Availability(when="iteration == 0", exclude=("shop.*",)),))
    keeps = Rules(availability=(Availability(when="iteration == 0", keep_only=("shop.*",)),))
    assert open_tools(session_of(), Template(name="t", rules=closes), tools, STARTED_AT) == [WORK, FINISH]
    assert open_tools(session_of(), Template(name="t", rules=keeps), tools, STARTED_AT) == [price, stock, FINISH]


def test_many_calls_in_one_reply_leave_a_turn_its_steps_to_finish() -> None:
    many = [event for n in range(60) for event in (used(f"1-action-{n}"), returned(f"1-action-{n}"))]
    session = session_of(events.Replied(), *many, tool_budget=2, max_iterations=10, time_budget=1000)
    assert session.turn is not None
    assert rules.spent(session.turn) == "its limit of 2 tool calls"
    assert rules.overdue(session.turn) is None
    assert open_tools(session, TEMPLATE, TOOLS, STARTED_AT) == [FINISH]


def test_searches_tools_and_tokens_have_budgets_too() -> None:
    search = Tool(name="websearchtool", description="", schema={})
    searched: list[events.Event] = [events.Replied(), used("1-action-0"), events.Returned(
        call="1-action-0", outcome=events.Output(content=""), adds={"searches_used": 2}
    )]  # fmt: skip
    assert open_tools(session_of(*searched, max_searches=3), TEMPLATE, [search, FINISH], STARTED_AT) == [
        search,
        FINISH,
    ]
    assert open_tools(session_of(*searched, max_searches=2), TEMPLATE, [search, FINISH], STARTED_AT) == [FINISH]
    assert rules.spent(turn(*steps(2), tool_budget=2)) == "its limit of 2 tool calls"
    costly = events.Replied(usage=events.Usage(total_tokens=500))
    assert rules.spent(turn(costly, token_budget=500)) == "its limit of 500 tokens"
    assert rules.spent(turn(costly, token_budget=501)) is None


def test_replies_that_cannot_be_read_end_the_turn_unless_one_can() -> None:
    unreadable = events.Replied(text="?", problem="it is not JSON")
    assert rules.overdue(turn(*[unreadable] * 2, max_iterations=9)) is None
    end = rules.overdue(turn(*[unreadable] * 3, max_iterations=9))
    assert end is not None
    assert end[0] == "unreadable_reply"
    assert rules.overdue(turn(unreadable, unreadable, *steps(1), unreadable, max_iterations=9)) is None


def test_own_rules_join_the_default_ones_once() -> None:
    own = Availability(when="stage == plan", exclude=("work",))
    assert Rules().effective == DEFAULT_AVAILABILITY
    assert Rules(availability=(own,)).effective == (*DEFAULT_AVAILABILITY, own)
    assert Rules(availability=(own, *DEFAULT_AVAILABILITY)).effective == (*DEFAULT_AVAILABILITY, own)
    assert Rules(availability=(own,), replace=True).effective == (own,)
    assert Rules(availability=(), replace=True).effective == ()
