"""The few tools of a step: static, by step, and the set that stays."""

import random
from datetime import UTC, datetime

from hypothesis import given
from hypothesis import strategies as st

from longhouse.agents import offering
from longhouse.agents.offering import BATCH, first_few, next_step, sticky
from longhouse.journal.events import Limits
from longhouse.journal.session import Session, Turn

FINAL = ["final"]


def names(*numbers: int) -> list[str]:
    return [f"t{number}" for number in numbers]


def test_required_tools_come_first_and_nothing_passes_the_cap() -> None:
    assert first_few(FINAL, names(1, 2, 3), 3) == ["final", "t1", "t2"]
    assert first_few(["a", "b", "c"], names(1), 2) == ["a", "b"]


def test_an_empty_set_is_filled_from_the_best() -> None:
    assert sticky([], FINAL, names(1, 2, 3, 4), [], 3) == ["final", "t1", "t2"]


def test_a_set_with_room_grows_at_its_end() -> None:
    assert sticky(["final", "t1"], FINAL, names(2, 1), [], 4) == ["final", "t1", "t2"]


def test_a_full_set_stays_as_it_is_while_the_best_are_in_it() -> None:
    full = ["final", *names(1, 2, 3, 4, 5)]
    assert sticky(full, FINAL, names(5, 3, 1, 9, 8), [], 6) == full


def test_when_something_better_is_needed_the_longest_unused_leave_together() -> None:
    full = ["final", *names(1, 2, 3, 4, 5, 6, 7)]
    after = sticky(full, FINAL, names(9, 7, 6), ["t2", "t1"], 8)
    assert "t9" in after
    assert set(full) - set(after) == {"t3", "t4", "t5", "t1"}  # never used ones first, then what was used longest ago
    assert after == ["final", "t2", "t6", "t7", "t9"]


def test_required_tools_never_leave() -> None:
    full = ["final", *names(1, 2, 3)]
    assert "final" in sticky(full, FINAL, names(7, 8, 9), [], 4)


def test_a_tool_that_became_required_finds_room() -> None:
    after = sticky(names(1, 2, 3), ["found"], names(1, 2, 3), ["t1"], 3)
    assert "found" in after
    assert "t1" in after
    assert len(after) == 3


def test_a_set_above_a_lowered_cap_shrinks_to_it_and_keeps_what_is_required() -> None:
    after = sticky([*names(1, 2, 3, 4, 5, 6, 7), "final"], FINAL, names(1, 2, 3), ["t6"], 4)
    assert "final" in after
    assert {"t1", "t2", "t3"} <= set(after)
    assert len(after) == 4


@given(st.integers(0, 2**32), st.integers(1, 12))
def test_over_many_steps_the_set_is_bounded_whole_and_changes_in_batches(seed: int, cap: int) -> None:
    chance = random.Random(seed)
    offered: list[str] = []
    for _ in range(30):
        ranked = chance.sample(names(*range(40)), 20)
        before, offered = offered, sticky(offered, FINAL, ranked, chance.sample(ranked, 3), cap)
        assert len(offered) == len(set(offered)) <= cap
        assert "final" in offered
        assert set(ranked[: offering.NEEDED]) <= set(offered) or cap <= offering.NEEDED
        stayed = [name for name in before if name in offered]
        assert offered[: len(stayed)] == stayed
        left = len(before) - len(stayed)
        assert left == 0 or left >= min(BATCH, len(before) - 1 - offering.NEEDED)


def test_the_query_is_the_next_step_the_task_and_the_stage() -> None:
    session = session_with({"current_step_reasoning": {"remaining_steps": ["book a hotel", "write"]}})
    assert offering.query_of(session, "research") == "book a hotel\nplan my trip\nresearch"
    assert next_step({"remaining_steps": "not a list"}) == next_step(None) == next_step({"remaining_steps": [3]}) == ""


def test_versions_hold_for_the_turn_that_was_offered_them() -> None:
    assert offering.pins(session_with({}, pins={"a": 2, "b": 7})) == {"a": 2, "b": 7}
    assert offering.pins(session_with({})) == {}


def session_with(context: dict[str, object], pins: dict[str, int] | None = None) -> Session:
    limits = Limits(max_iterations=5, max_clarifications=1, time_budget=60)
    turn = Turn(
        trace="t",
        prompt=1,
        version=1,
        instance="i",
        limits=limits,
        date="",
        started_at=datetime.now(UTC),
        task="plan my trip",
        pins=pins or {},
    )
    return Session(id="s_1", agent="a", owner="o", conversation="c", turn=turn, context=dict(context))
