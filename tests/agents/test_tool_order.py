"""The few tools of a step: static, by step, and the set that stays."""

import random
from datetime import UTC, datetime

from hypothesis import given
from hypothesis import strategies as st

from longhouse.agents.requests import tool_order
from longhouse.agents.requests.tool_order import BATCH, Candidates, first_few, next_step
from longhouse.journal.events import Limits, Prompted, Selection
from longhouse.journal.session import Session, Turn
from server_helpers import turn_of

FINAL = ["final"]


def names(*numbers: int) -> list[str]:
    return [f"t{number}" for number in numbers]


def sticky(offered: list[str], required: list[str], ranked: list[str], used: list[str], cap: int) -> list[str]:
    """Of an agent that names no other tools than the required ones."""
    return tool_order.sticky(offered, Candidates(required, [], ranked, []), used, cap)


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
    after = sticky(full, FINAL, names(9, 7, 6, 11, 12, 13), ["t2", "t1"], 8)
    assert set(full) - set(after) == {"t3", "t4", "t5", "t1"}  # never used ones first, then what was used longest ago
    assert after == ["final", "t2", "t6", "t7", "t9", "t11", "t12", "t13"]


def test_nobody_leaves_for_whom_nobody_comes() -> None:
    full = ["final", *names(1, 2, 3, 4, 5, 6, 7)]
    assert sticky(full, FINAL, names(9, 7, 6), ["t2", "t1"], 8) == ["final", *names(1, 2, 4, 5, 6, 7, 9)]


def test_what_is_named_comes_before_what_comes_by_the_dozen_and_the_best_of_each_first() -> None:
    found = Candidates(FINAL, ["a", "b", "c"], ["s.2", "c", "s.1"], ["s.3"])
    assert found.in_order == ["c", "a", "b", "s.2", "s.1", "s.3"]


def test_where_all_that_is_named_has_its_place_the_rest_compete_for_what_is_left() -> None:
    found = Candidates(FINAL, ["a", "b"], ["s.2", "b", "s.1"], ["s.3"])
    first = tool_order.sticky([], found, [], 4)
    assert first == ["final", "a", "b", "s.2"]
    assert tool_order.sticky([], found, [], 6) == ["final", "a", "b", "s.2", "s.1", "s.3"]
    later = Candidates(FINAL, ["a", "b"], ["s.1", "s.2"], ["s.3"])
    assert tool_order.sticky(first, later, [], 4) == ["final", "a", "b", "s.1"], "only who has no sure place leaves"


def test_where_not_all_that_is_named_has_a_place_the_best_of_it_has_and_nobody_else() -> None:
    found = Candidates(FINAL, ["a", "b", "c", "d"], ["s.2", "d"], ["s.3"])
    assert tool_order.sticky([], found, [], 4) == ["final", "d", "a", "b"]
    assert tool_order.sticky(["final", "s.2", "s.3", "c"], found, ["s.2"], 4) == ["final", "c", "d", "a"]


def test_without_a_word_on_any_of_them_what_is_offered_stays() -> None:
    found = Candidates(FINAL, ["a", "b", "c", "d"], [], [])
    assert tool_order.sticky(["final", "d", "c", "b"], found, [], 4) == ["final", "d", "c", "b"]


def test_how_a_set_was_chosen_is_told_in_a_bounded_size() -> None:
    few = tool_order.selection(["a", "b"], ["b", "a", "c", "d"], {"a": 0.123456, "d": 0.5, "x": 1.0}, "Алия", "plan")
    assert few == Selection(query="Алия", stage="plan", scores={"a": 0.1235, "d": 0.5}, left_out=("c", "d"))
    many = names(*range(100))
    much = tool_order.selection([], many, dict.fromkeys(many, 1.0), "word " * 5000)
    assert (len(much.left_out), len(much.scores), much.more) == (20, 20, 80)
    assert len(much.query) < 1100
    assert much.query.startswith("word ")
    assert much.query.endswith(" word ")


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
        assert set(ranked[: tool_order.NEEDED]) <= set(offered) or cap <= tool_order.NEEDED
        stayed = [name for name in before if name in offered]
        assert offered[: len(stayed)] == stayed
        left = len(before) - len(stayed)
        assert left == 0 or left >= min(BATCH, len(before) - 1 - tool_order.NEEDED)


@given(st.integers(0, 2**32), st.integers(2, 12), st.integers(0, 14))
def test_over_many_steps_what_is_named_is_offered_and_what_was_offered_comes_first(
    seed: int, cap: int, count: int
) -> None:
    chance = random.Random(seed)
    own, every = [f"own{n}" for n in range(count)], names(*range(30))
    offered: list[str] = []
    for _ in range(20):
        ranked = chance.sample([*own, *every], chance.randint(0, 20))
        found = Candidates(FINAL, own, ranked, [name for name in every if name not in ranked])
        before, offered = offered, tool_order.sticky(offered, found, chance.sample(every, 2), cap)
        assert len(offered) == len(set(offered)) == cap, "no place stays empty while anybody waits"
        assert set(offered) <= {"final", *own} or {"final", *own} <= set(offered)
        stayed = [name for name in before if name in offered]
        assert offered[: len(stayed)] == stayed


def test_the_query_is_the_next_step_and_the_task() -> None:
    session = session_with({"current_step_reasoning": {"remaining_steps": ["book a hotel", "write"]}})
    assert tool_order.query_of(session, turn_of(session)) == "book a hotel\nplan my trip"
    assert next_step({"remaining_steps": "not a list"}) == next_step(None) == next_step({"remaining_steps": [3]}) == ""


def test_versions_hold_for_the_turn_that_was_offered_them() -> None:
    assert tool_order.pins(session_with({}, pins={"a": 2, "b": 7})) == {"a": 2, "b": 7}
    assert tool_order.pins(session_with({})) == {}


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
        worked_at=datetime.now(UTC),
        prompted=Prompted(trace="t", content=("plan my trip",)),
        pins=pins or {},
    )
    return Session(id="s_1", agent="a", owner="o", conversation="c", turn=turn, context=dict(context))
