"""Two versions of a descriptor, compared place by place."""

from hypothesis import given
from hypothesis import strategies as st

from longhouse.catalog.diff import Difference, differences

JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=12,
)
OBJECTS = st.dictionaries(st.text(max_size=3), JSON, max_size=4)


def test_nested_fields_are_named_by_their_path() -> None:
    before = {"a": {"b": 1, "c": [1, 2], "same": 0}, "gone": 1}
    after = {"a": {"b": 2, "c": [1, 2, 3], "same": 0}, "new": {"x": 1}}
    assert differences(before, after) == [
        Difference("a.b", 1, 2),
        Difference("a.c", [1, 2], [1, 2, 3]),
        Difference("new", None, {"x": 1}),
        Difference("gone", 1, None),
    ]


def test_lists_of_objects_are_compared_one_by_one() -> None:
    before = {"rules": [{"when": "a", "exclude": ["x"]}, {"when": "b"}]}
    after = {"rules": [{"when": "a", "exclude": ["y"]}, {"when": "c"}]}
    assert [one.path for one in differences(before, after)] == ["rules[0].exclude", "rules[1].when"]


def test_true_is_not_one_and_odd_names_are_quoted() -> None:
    assert differences({"a.b": 1}, {"a.b": True}) == [Difference('["a.b"]', 1, True)]
    assert differences({"p": {"a b": "1"}}, {"p": {"a b": 1}}) == [Difference('p["a b"]', "1", 1)]


@given(OBJECTS)
def test_nothing_differs_from_itself(value: dict[str, object]) -> None:
    assert differences(value, value) == []


@given(OBJECTS, OBJECTS)
def test_the_other_way_round_the_same_places_differ(one: dict[str, object], other: dict[str, object]) -> None:
    there, back = differences(one, other), differences(other, one)
    assert {(d.path, repr(d.before), repr(d.after)) for d in there} == {
        (d.path, repr(d.after), repr(d.before)) for d in back
    }
