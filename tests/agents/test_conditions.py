"""Conditions are data: what they may say is small, and what cannot be understood is refused when it is published."""

from datetime import datetime, timedelta
from typing import Any

import pytest
from msgspec.structs import replace
from pydantic import TypeAdapter, ValidationError

from longhouse.agents import conditions, rules
from longhouse.agents.template import Availability, ExecutionPolicy, Rules, StageRule, Template
from longhouse.agents.tool import Tool
from longhouse.journal import events
from longhouse.journal.session import Session
from server_helpers import BEGAN, folded, open_tools, opened, prompted, returned, started, used

NOW = BEGAN + timedelta(seconds=10)
FACTS: dict[str, Any] = {
    "iteration": 3,
    "searches_used": 2,
    "clarifications_used": 0,
    "calls": 5,
    "tokens": 900,
    "seconds": 12.5,
    "sources_found": 4,
    "plan_made": True,
    "enough_data": False,
    "stage": "research",
    "max_iterations": 3,
    "max_searches": 4,
    "max_clarifications": 3,
    "time_budget": 12.5,
    "tool_budget": None,
    "token_budget": 1000,
}


def holds(text: str) -> bool:
    return conditions.holds(text, FACTS)


@pytest.mark.parametrize(
    ("text", "is_so"),
    [
        ("iteration >= max_iterations", True),
        ("iteration > max_iterations", False),
        ("searches_used < max_searches", True),
        ("searches_used <= 2", True),
        ("searches_used == 3", False),
        ("searches_used != 3", True),
        ("seconds >= time_budget", True),
        ("seconds > 12.49", True),
        ("plan_made", True),
        ("not plan_made", False),
        ("not enough_data", True),
        ("clarifications_used", False),
        ("stage == research", True),
        ("stage != research", False),
        ("not stage == plan", True),
        ("plan_made and enough_data", False),
        ("plan_made and not enough_data and calls > 4", True),
        ("enough_data or sources_found >= 4", True),
        ("enough_data and plan_made or calls == 5", True),
        ("calls == 6 or plan_made and enough_data", False),
        ("  iteration>=3   or   enough_data ", True),
    ],
)
def test_a_condition_holds_or_it_does_not(text: str, is_so: bool) -> None:
    assert holds(text) is is_so


def test_a_limit_that_is_not_set_is_never_reached() -> None:
    assert not holds("calls >= tool_budget")
    assert not holds("calls < tool_budget")
    assert holds("not calls >= tool_budget")


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "'' is not known"),
        ("weather", "'weather' is not known; a condition asks about iteration"),
        ("iteration > many", "'many' is neither a number nor a limit"),
        ("iteration > -1", "is not known"),
        ("max_iterations > iteration", "'max_iterations' is not known"),
        ("iteration >= max_iterations or", "is not known"),
        ("not not plan_made", "is not known"),
        ("(plan_made)", "is not known"),
        ("iteration = 3", "is not known"),
        ("__import__('os')", "is not known"),
        ("iteration > 1e9", "neither a number nor a limit"),
        ("stage > plan", "a stage is compared with == or !="),
        ("stage < max_iterations", "a stage is compared with == or !="),
        ("iteration > 1 and " * 40 + "plan_made", "at most 500 characters"),
    ],
)
def test_what_cannot_be_understood_is_refused_in_words(text: str, complaint: str) -> None:
    with pytest.raises(ValueError, match=r"condition|known|number|stage") as refused:
        conditions.parse(text)
    assert complaint in str(refused.value)
    with pytest.raises(ValidationError, match=r"stop_conditions\.0"):
        TypeAdapter(ExecutionPolicy).validate_python({"stop_conditions": [text]})


def test_a_stage_with_the_name_of_a_limit_is_only_a_name() -> None:
    assert not conditions.holds("stage == max_iterations", FACTS)
    assert conditions.holds("stage == max_iterations", {**FACTS, "stage": "max_iterations"})


def test_stages_may_have_names_in_any_language() -> None:
    assert conditions.holds("stage == поиск", {**FACTS, "stage": "поиск"})


def session_of(*new: events.Event) -> Session:
    return folded(opened(), prompted("x"), started(2), *new)


def facts_of(session: Session, template: Template, now: datetime) -> conditions.Facts:
    assert session.turn is not None
    return rules.TurnFacts(session, replace(session.turn, worked_at=now), template)


def test_every_fact_and_every_limit_is_there_at_every_step() -> None:
    facts = facts_of(session_of(), Template(name="t"), NOW)
    for name in (*conditions.FACTS, *conditions.LIMITS):
        assert facts[name] is None or isinstance(facts[name], int | float | str)
    for fact in conditions.FACTS:
        conditions.holds(fact, facts)


def test_facts_count_what_happened() -> None:
    plan: list[events.Event] = [events.Replied(), used("1-action-0", tool="generateplantool"), returned("1-action-0")]
    found: list[events.Event] = [
        events.Replied(usage=events.Usage(total_tokens=70)),
        used("2-action-0"),
        returned("2-action-0", adds={"searches_used": 1, "sources": {"http://a": {"url": "http://a"}}}),
    ]
    facts = facts_of(session_of(*plan, *found), Template(name="t"), NOW)
    assert (facts["iteration"], facts["calls"], facts["tokens"], facts["searches_used"]) == (2, 2, 70, 1)
    assert (facts["plan_made"], facts["sources_found"], facts["enough_data"]) == (True, 1, False)
    assert (facts["seconds"], facts["stage"]) == (8.0, "research")


def test_the_first_stage_that_holds_is_the_stage_and_time_counts_too() -> None:
    stages = (StageRule(stage="hurry", when="seconds >= 5"), StageRule(stage="first", when="calls == 0"))
    template = Template(name="t", rules=Rules(stages=stages))
    early = BEGAN + timedelta(seconds=3)
    assert facts_of(session_of(), template, early)["stage"] == "first"
    assert facts_of(session_of(), template, NOW)["stage"] == "hurry"
    step: list[events.Event] = [events.Replied(), used("1-action-0"), returned("1-action-0")]
    assert facts_of(session_of(*step), template, early)["stage"] == "plan", "none holds: that of the work itself"


def test_a_rule_closes_tools_by_stage_but_never_those_that_finish() -> None:
    work, finish = (Tool(name=name, description="", schema={}, finishes=name == "end") for name in ("work", "end"))
    for rule in (
        Availability(when="stage == plan", exclude=("work", "end")),
        Availability(when="stage == plan", keep_only=()),
    ):
        template = Template(name="t", rules=Rules(availability=(rule,)))
        assert open_tools(session_of(), template, [work, finish], NOW) == [finish]
        other = Template(
            name="t", rules=Rules(availability=(Availability(when="stage == research", exclude=("work",)),))
        )
        assert open_tools(session_of(), other, [work, finish], NOW) == [work, finish]


def test_of_conditions_that_are_only_tried_out_no_more_are_kept_than_of_others() -> None:
    for n in range(5_000):
        assert conditions.holds(f"iteration < {n} or iteration >= 0", FACTS)
    assert conditions.parse.cache_info().currsize < 5_000
