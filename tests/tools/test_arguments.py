"""Schemas that may be published, and arguments that fit them; in bounded time, and without asking anybody."""

import asyncio
import json
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from longhouse.agents.schema.strict import restored, strict
from longhouse.journal.events import Fault
from longhouse.tools import patterns
from longhouse.tools.arguments import (
    DIALECT,
    MAX_DEPTH,
    MAX_NODES,
    MAX_SCHEMA,
    BadSchema,
    apart,
    checker,
    read,
    schema_problem,
)
from longhouse.tools.schema_checker import MAX_EFFORT, QUICK, SchemaChecker, TooMuchWork

CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}


def of(**words: Any) -> dict[str, Any]:
    return {"type": "object", **words}


def where(schema: Any) -> dict[str, Any]:
    """A schema with one property, `a`."""
    return of(properties={"a": schema})


def nested(levels: int) -> dict[str, Any]:
    """A schema of so many objects within each other."""
    schema: Any = True
    for _ in range(levels - 1):
        schema = {"not": schema}
    return of(**{"not": schema})


def doubling(times: int) -> dict[str, Any]:
    """Short to write down; written out it has two to the power of `times` parts."""
    defs = {f"d{n}": {"allOf": [{"$ref": f"#/$defs/d{n + 1}"}] * 2} for n in range(times)}
    return {"type": "object", "$ref": "#/$defs/d0", "$defs": defs | {f"d{times}": {"minProperties": 0}}}


def fits(schema: dict[str, Any], arguments: Any) -> str | None:
    try:
        return checker(schema)(arguments)
    except BadSchema as error:
        return str(error)


@pytest.mark.parametrize(
    "schema",
    [
        of(),
        CITY,
        of(**{"$schema": DIALECT}),
        where(True),
        where({"type": ["string", "null"], "enum": ["x", None], "default": {"$ref": "http://data.is/no-schema"}}),
        where({"const": {"$id": "data", "pattern": "("}}),
        where({"pattern": "^(?!)x|y$"}),
        of(properties={"$ref": {"type": "string"}, "$id": {}, "pattern": {"pattern": "^a$"}}),
        where({"$ref": "#/$defs/b"}) | {"$defs": {"b": {"type": "string"}}},
        where({"$ref": "#/definitions/b~1c%20d"}) | {"definitions": {"b/c d": {"type": "string"}}},
        where({"$ref": "#/properties/b/anyOf/1"}) | {"anyOf": [{}]} | of(properties={"b": {"anyOf": [{}, {}]}}),
        where({"allOf": [{"$ref": "#/$defs/b"}, {"$ref": "#/$defs/b"}]}) | {"$defs": {"b": {}}},
        where({"type": "string", "pattern": "^[a-z0-9]+(?:-[a-z0-9]+)*$", "format": "slug", "x-ours": 1}),
        of(patternProperties={"^x-": {}}, additionalProperties=False, minProperties=1),
        where({"type": "array", "prefixItems": [{}], "items": False, "uniqueItems": True, "minItems": 1}),
        where({"type": "number", "minimum": 0.5, "exclusiveMaximum": 10, "multipleOf": 0.1}),
        of(dependentRequired={"a": ["b"]}, dependentSchemas={"a": {}}, **{"if": {}, "then": {}, "else": {}}),
        nested(MAX_DEPTH),
        where({"$ref": "#"}),
        where({"type": "array", "items": {"$ref": "#/properties/a"}}),
    ],
)
def test_an_honest_schema_may_be_published(schema: dict[str, Any]) -> None:
    assert schema_problem(schema) is None


@pytest.mark.parametrize(
    ("schema", "told"),
    [
        (None, "must describe an object"),
        ([], "must describe an object"),
        ({}, "must describe an object"),
        ({"type": "array"}, "must describe an object"),
        ({"type": ["object"]}, "must describe an object"),
        (where({"type": "banana"}), "`$.properties[...].type`"),
        (where({"minimum": "1"}), "`$.properties[...].minimum`"),
        (of(properties=[]), "`$.properties`"),
        (of(required=["a", "a"]), "twice"),
        (of(anyOf=[]), "`$.anyOf`"),
        (where({"multipleOf": 0}), "`$.properties[...].multipleOf`"),
        (where({"$ref": "http://127.0.0.1:1/x.json"}), "points outside of the schema"),
        (where({"$ref": "file:///etc/passwd"}), "points outside of the schema"),
        (where({"$ref": "other.json#/a"}), "points outside of the schema"),
        (where({"$ref": "//host/x"}), "points outside of the schema"),
        (where({"$ref": "#anchor"}), "points outside of the schema"),
        (where({"$ref": DIALECT}), "points outside of the schema"),
        (where({"$ref": "#/$defs/missing"}), "points to nothing"),
        (where({"$ref": "#/required/5"}) | {"required": ["a"]}, "points to nothing"),
        (where({"$ref": "#/required/0"}) | {"required": ["a"]}, "points to what is no schema"),
        (where({"$ref": "#/x/bad"}) | {"x": {"bad": {"type": 5}}}, "is not valid"),
        (where({"$ref": "#/properties/a"}), "refers to itself"),
        (of(**{"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}}), "itself"),
        (of(**{"$id": "https://example.com/x"}), "holds $id"),
        (where({"$dynamicRef": "#a"}), "holds $dynamicRef"),
        (of(**{"$schema": "http://json-schema.org/draft-07/schema#"}), "$schema is not understood"),
        (where({"pattern": "(a+)+$"}), "may take forever"),
        (of(patternProperties={"^(b+)+$": {}}), "may take forever"),
        (where({"pattern": "("}), "not valid"),
        (where({"pattern": "a" * 501}), "more than 500"),
        (of(patternProperties={f"{n:03}" + "a" * 400: {} for n in range(50)}), "patterns of the schema"),
        (of(description="x" * MAX_SCHEMA), f"more than {MAX_SCHEMA} bytes"),
        (of(description="x" * 10_000_000), f"more than {MAX_SCHEMA} bytes"),
        (of(anyOf=[{}] * MAX_NODES), f"more than {MAX_NODES} objects"),
        (nested(MAX_DEPTH + 1), "nested deeper"),
        (nested(20_000), "nested deeper"),
        (doubling(20), "too much to check"),
        (doubling(200), "too much to check"),
        (of(allOf=[{"$ref": "#"}, {}]), "without end"),
        (of(description="\ud800"), "not plain JSON"),
        (of(default=object()), "not plain JSON"),
    ],
)
def test_a_schema_that_is_not_safe_is_refused_in_words(schema: Any, told: str) -> None:
    problem = schema_problem(schema)
    assert problem
    assert told in problem
    assert len(problem) <= 600


VALUES: st.SearchStrategy[Any] = st.sampled_from(
    [True, {}, {"type": "string"}, [], [{}], ["a"], ["a", "a"], "a", "object", 1, 0, -1, 1.5, None]
)
WORDS = st.sampled_from(
    ["type", "properties", "required", "items", "anyOf", "prefixItems", "not", "minimum", "multipleOf", "maxLength",
     "uniqueItems", "pattern", "format", "$defs", "dependentRequired", "dependentSchemas", "additionalProperties",
     "enum", "title", "$comment", "contentEncoding"]
)  # fmt: skip


@settings(max_examples=75, deadline=None)
@given(st.dictionaries(WORDS, VALUES, max_size=3))
def test_our_idea_of_a_valid_schema_is_that_of_the_draft(schema: dict[str, Any]) -> None:
    wrapped = where(schema)
    try:
        jsonschema.Draft202012Validator.check_schema(wrapped)
    except jsonschema.SchemaError:
        assert schema_problem(wrapped)
    else:
        assert schema_problem(wrapped) is None


@pytest.mark.parametrize(
    "pattern",
    ["(a+)+$", "(a*)*", "(a+a)+", "(.*,)*", r"(\w+\s?)*", "([a-zA-Z]+)*", "((a{2})+)+", "(x+x+)+y", "(,?a+)+",
     "(a|b*)+", r"^(([a-z])+.)+[A-Z]([a-z])+$", "(?:(?:a+))+", "(?<name>a+){2,}", "(a{1,99})*", r"(\b\w+)+"],
)  # fmt: skip
def test_a_pattern_that_repeats_what_repeats_may_take_forever(pattern: str) -> None:
    assert "forever" in str(patterns.problem(pattern))


@pytest.mark.parametrize(
    "pattern",
    ["", "^[a-z0-9]+(?:-[a-z0-9]+)*$", "^([a-z]+-)*[a-z]+$", '("[^"]*",?)*', r"(\d+(\.\d+)?\s)+", "(a|b)+", "(ab?)*",
     r"^([0-9]{1,3}\.){3}[0-9]{1,3}$", r"^\S+@\S+\.\S+$", "^(?!x).*$", "(?<year>[0-9]{4})-", "[]a]+", "[[a]+", "x{,3}"],
)  # fmt: skip
def test_a_pattern_whose_rounds_can_be_told_apart_is_taken(pattern: str) -> None:
    assert patterns.problem(pattern) is None


@pytest.mark.parametrize("pattern", ["(", "[a", "a**", r"\p{L}", "(?i)a", "(?P=x)", "(" * 400, "a{9999999999999}"])
def test_a_pattern_that_is_none_is_refused(pattern: str) -> None:
    assert "not valid" in str(patterns.problem(pattern))


@settings(max_examples=75, deadline=None)
@given(st.text(alphabet="ab()[]*+?{}1,|\\^.-<:!", max_size=14))
def test_any_text_is_judged(pattern: str) -> None:
    assert patterns.problem(pattern) is None or isinstance(patterns.problem(pattern), str)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ("{", "they are not JSON"),
        ("[1]", "they must be a JSON object"),
        ("null", "they must be a JSON object"),
        ('{"city": NaN}', "they are not JSON"),
        ("[" * 100_000, "they are not JSON"),
        ("{}", "'city' is a required property"),
        ('{"city": 7}', "city: 7 is not of type 'string'"),
    ],
)
def test_arguments_that_do_not_fit_are_told_to_the_model(arguments: str, told: str) -> None:
    fault = read("weather", arguments, checker(CITY))
    assert isinstance(fault, Fault)
    assert fault.code == "bad_arguments"
    assert fault.message.startswith("the arguments of weather do not fit: ")
    assert told in fault.message


def test_arguments_that_fit_are_read() -> None:
    assert read("weather", '{"city": "Oslo", "extra": 1}', checker(CITY)) == {"city": "Oslo", "extra": 1}
    assert read("weather", "", checker(of())) == {}
    assert isinstance(
        read("weather", '{"city": "x", "extra": 1}', checker({**CITY, "additionalProperties": False})), Fault
    )


def test_many_problems_are_told_in_bounded_words() -> None:
    schema = of(properties={str(n): {"type": "string"} for n in range(100)})
    fault = read("t", json.dumps({str(n): list(range(1000)) for n in range(100)}), checker(schema))
    assert isinstance(fault, Fault)
    assert fault.message.count("is not of type") <= 5
    assert len(fault.message) <= 2000


PLAIN: st.SearchStrategy[Any] = st.sampled_from([None, True, False, 0, 1, 1.0, 2.5, -3, "", "a", "ab", [], {}])
JSON: st.SearchStrategy[Any] = st.recursive(
    PLAIN, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abc"), inner, max_size=3)
)
NUMBERS = st.sampled_from([0, 1, 2, 1.5])
NAMES = st.lists(st.sampled_from("abc"), unique=True, max_size=2)
TYPES = st.sampled_from(["object", "array", "string", "number", "integer", "boolean", "null"])


def subschemas(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    several, named = st.lists(inner, min_size=1, max_size=3), st.dictionaries(st.sampled_from("abc"), inner, max_size=2)
    whole = st.integers(0, 2)
    words: dict[str, st.SearchStrategy[Any]] = {
        **dict.fromkeys(("allOf", "anyOf", "oneOf", "prefixItems"), several),
        **dict.fromkeys(("not", "if", "then", "else", "items", "contains", "additionalProperties"), inner),
        **dict.fromkeys(("properties", "dependentSchemas"), named),
        **dict.fromkeys(("minItems", "maxItems", "minLength", "maxLength", "minProperties", "maxProperties"), whole),
        **dict.fromkeys(("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"), NUMBERS),
        "propertyNames": st.sampled_from([{"maxLength": 0}, {"enum": ["a"]}, True]),
        "multipleOf": st.sampled_from([1, 2, 0.5]),
        "type": TYPES | st.lists(TYPES, min_size=1, max_size=2, unique=True),
        "enum": st.lists(JSON, min_size=1, max_size=3),
        "const": JSON,
        "required": NAMES,
        "dependentRequired": st.dictionaries(st.sampled_from("abc"), NAMES, max_size=2),
        "uniqueItems": st.booleans(),
    }
    chosen = st.lists(st.sampled_from(sorted(words)), max_size=3, unique=True)
    return chosen.flatmap(lambda some: st.fixed_dictionaries({word: words[word] for word in some}))


SCHEMAS: st.SearchStrategy[Any] = st.recursive(st.booleans(), subschemas, max_leaves=6)


@settings(max_examples=75, deadline=None)
@given(SCHEMAS, JSON)
def test_our_verdict_is_that_of_the_library(schema: Any, value: Any) -> None:
    wrapped = where(schema)
    assert (fits(wrapped, {"a": value}) is None) is jsonschema.Draft202012Validator(wrapped).is_valid({"a": value})


TEXT = "a" * 60 + "!"


@pytest.mark.parametrize("draft", [{}, {"$schema": DIALECT}, {"$schema": "http://json-schema.org/draft-07/schema#"}])
def test_no_pattern_is_ever_run_on_arguments(draft: dict[str, str]) -> None:
    """Not even below a schema that names its draft."""
    schema = of(properties={"a": {"pattern": "^(a+)+$", **draft}}, patternProperties={"^(b+)+$": {}})
    assert fits(schema | {"additionalProperties": False}, {"a": TEXT, "b" * 60 + "!": 1}) is None
    within = where({**draft, "patternProperties": {"^(a+)+$": {}}, "unevaluatedProperties": False})
    assert fits(within, {"a": {TEXT: 1}}) is None


def counted(work: Callable[[], Any], most: int = 3_000_000) -> int:
    """How many functions it calls and returns from."""
    calls = 0

    def count(frame: Any, event: str, given: Any) -> None:
        nonlocal calls
        calls += 1
        assert calls < most, "this has no end"

    sys.setprofile(count)
    try:
        work()
    finally:
        sys.setprofile(None)
    return calls


MANY_NAMES = [f"n{n}" for n in range(8_000)]


@pytest.mark.parametrize(
    ("items", "value"),
    [
        ({"anyOf": [{"required": MANY_NAMES}, True]}, [{}] * 200),
        ({"required": MANY_NAMES}, [dict.fromkeys(MANY_NAMES, 1)] * 100),
        ({"enum": list(range(10_999))}, list(range(-1_000, 0))),
        ({"enum": [{"a": n} for n in range(5_000)]}, [{"a": -n} for n in range(1_000)]),
        ({"const": {"a": MANY_NAMES}}, [{"a": MANY_NAMES}] * 100),
        ({"anyOf": [{"const": n} for n in range(5_000)]}, [-1] * 1_000),
        ({"dependentRequired": {"a": MANY_NAMES}}, [{"a": 1, **dict.fromkeys(MANY_NAMES)}] * 100),
        ({"dependentRequired": {name: [] for name in MANY_NAMES}}, [{"a": 1}] * 20_000),
        ({"properties": dict.fromkeys(MANY_NAMES, True)}, [{"a": 1}] * 20_000),
        ({"properties": dict.fromkeys(MANY_NAMES, True)}, [dict.fromkeys(MANY_NAMES)] * 200),
        (dict.fromkeys(MANY_NAMES, 1), [1] * 20_000),
        ({"anyOf": [{"uniqueItems": True, "maxItems": 1}] * 2_000}, [list(range(10_000))]),
        ({"anyOf": [{"contains": False}] * 2_000}, [list(range(10_000))]),
        ({"anyOf": [{"type": "string"}] * 4_000}, [list(range(100_000))] * 5),
        ({"anyOf": [{"enum": [str(n)]} for n in range(3_000)]}, ["x" * 900_000] * 5),
        ({"anyOf": [{"propertyNames": True, "maxProperties": 0}] * 2_000}, [{str(n): 1 for n in range(10_000)}]),
        ({"additionalProperties": {"not": {"not": {"not": False}}}}, [{str(n): 1 for n in range(100_000)}]),
        ({"multipleOf": 0.1, "minimum": 0.1}, [10**3_000] * 1_000),
        ({"unevaluatedItems": False, "prefixItems": [True] * 900}, [list(range(10_000))] * 100),
        ({"dependencies": {"a": {"type": ["null"] * 8_900 + ["integer"]}}}, [{"a": 1}] * 800),
    ],
)
def test_what_a_check_costs_is_bounded_whatever_a_stranger_writes(items: Any, value: list[Any]) -> None:
    """Each took seconds to minutes where keywords were counted, and not what they cost."""
    found = SchemaChecker(where({"items": items}))
    with suppress(TooMuchWork):
        counted(lambda: found.problem({"a": value}, effort=QUICK), most=30 * QUICK)


def test_a_chain_of_references_is_followed_once_and_copied_never() -> None:
    """It took 19 seconds: each of its links was written out to the end."""
    chain: dict[str, Any] = {str(n): {"$ref": f"#/$defs/{n + 1}", f"x{n}": 1} for n in range(480)}
    schema = of(**{"$ref": "#/$defs/0"}) | {"$defs": chain | {"480": {}}}
    assert counted(lambda: schema_problem(schema)) < 200_000
    refs = {f"p{n}": {"$ref": "#/$defs/0"} for n in range(390)}
    schema = of(properties=refs) | {"$defs": chain | {"480": {}}}
    assert counted(lambda: strict(schema)) < 2_000_000


def test_arguments_are_converted_back_within_bounds_and_long_lists_of_objects_whole() -> None:
    """With 900 alternatives for each item of a list, 9 kB of arguments took 28 seconds of the event loop."""
    union = {"anyOf": [of(properties={"p": {"type": "string"}})] * 30}
    schema = where({"type": "array", "items": {"$ref": "#/$defs/t"}})
    schema |= {"$defs": {"u": union, "t": {"anyOf": [{"$ref": "#/$defs/u"}] * 30}}}
    many: list[list[Any]] = [[1], ["x"], [{"z": 1}], [[[]]]]
    for items in many:
        sent = {"a": items * 3_000}
        restored({}, schema)  # how deep it is written out is found out once
        assert counted(partial(restored, sent, schema)) < 2_000_000
    item = of(properties={"n": {"type": "integer"}, "text": {"type": "string"}}, required=["n"])
    wide = {"type": "object", "properties": dict.fromkeys(MANY_NAMES, True)}
    needs = of(properties={"x": {"type": "string"}}, required=["x", *MANY_NAMES])
    either = {"anyOf": [of(properties={"p": {"enum": [*MANY_NAMES, n]}}) for n in range(2)]}
    row = {"type": "array", "prefixItems": [{"type": "string"}] * 2_000}
    wide_ones: list[tuple[Any, Any]] = [(wide, {"n1": 1}), (needs, {"z": None}), (either, {"p": "?"}), (row, ["x"])]
    for part, value in wide_ones:
        schema = where({"type": "array", "items": part})
        restored({}, schema)
        assert counted(partial(restored, {"a": [value] * 4_000}, schema)) < 900_000
    listed = [{"n": n, "text": None} for n in range(40_000)]
    assert restored({"a": listed}, where({"type": "array", "items": item})) == {"a": [{"n": n} for n in range(40_000)]}


def test_what_is_long_to_write_is_counted_and_shown_in_part() -> None:
    """Long whole numbers are written in quadratic time, and the names of an object were sorted to be shown."""
    found = SchemaChecker(where({"uniqueItems": True}))
    with pytest.raises(TooMuchWork):
        found.problem({"a": [10**4_200 + n for n in range(100)]}, effort=QUICK)
    names = {**{f"b{n}": 0 for n in range(40)}, "a": 0}
    said = str(SchemaChecker(where({"type": "string"})).problem({"a": names}))
    assert ("'b0'" in said, "'a'" in said) == (True, False), said


def test_the_effort_is_that_of_what_is_looked_at() -> None:
    """A short list is looked at as far as it is needed, a long one to its end."""
    schema = where({"items": {"anyOf": [{"required": MANY_NAMES}, {"enum": MANY_NAMES}]}})
    found = SchemaChecker(schema)
    assert "not valid under any" in str(found.problem({"a": [{}] * 10}, effort=len(MANY_NAMES) + 300))
    assert "not valid under any" in str(found.problem({"a": [{}] * 10}, effort=300)), "the choices are known by now"
    with pytest.raises(TooMuchWork):
        found.problem({"a": [dict.fromkeys(MANY_NAMES[:-1])]}, effort=len(MANY_NAMES) // 2)


async def test_a_long_check_leaves_the_event_loop_to_others() -> None:
    check = checker(where({"items": {"type": "integer"}}))
    turns, ended = 0, asyncio.Event()

    async def others() -> None:
        nonlocal turns
        while not ended.is_set():
            turns += 1
            await asyncio.sleep(0)

    beside = asyncio.create_task(others())
    assert await apart(partial(check, {"a": [1] * 50_000})) is None
    ended.set()
    await beside
    assert turns > 10
    assert "too much" in str(await apart(partial(check, {"a": [1] * MAX_EFFORT})))
    assert await apart(partial(check, {"a": [1]})) is None


def test_long_names_cost_what_they_are() -> None:
    found = SchemaChecker(where({"anyOf": [{"const": {"n": n}} for n in range(300)]}))
    with pytest.raises(TooMuchWork):
        found.problem({"a": {"x" * 1_000_000: 1}}, effort=QUICK)


def test_a_check_that_grows_without_bound_is_given_up() -> None:
    assert "too much to check" in str(fits(doubling(40), {}))
    assert "too much to check" in str(fits(where({"items": {"type": "integer"}}), {"a": [1] * (MAX_EFFORT)}))
    assert fits(where({"items": {"type": "integer"}}), {"a": [1] * 1000}) is None


def test_each_check_has_an_effort_of_its_own() -> None:
    check = checker(where({"items": {"type": "integer"}}))
    for _ in range(3):
        assert check({"a": [1] * (MAX_EFFORT // 3)}) is None


def test_a_long_list_of_objects_is_searched_for_doubles_in_one_go() -> None:
    schema = where({"type": "array", "uniqueItems": True})
    many = [{"n": n, "m": [n]} for n in range(50_000)]
    assert fits(schema, {"a": many}) is None
    assert "twice" in str(fits(schema, {"a": [*many, {"m": [7], "n": 7}]}))


@pytest.mark.parametrize(
    ("schema", "told"),
    [
        (where({"$ref": "http://127.0.0.1:1/x.json"}), "points outside of the schema"),
        (of(**{"$ref": "#"}), "refers to itself without end"),
        (of(anyOf=[{}] * 2 * MAX_NODES), "objects and lists"),
        (of(**{"$id": "http://a/" + "../b/" * 6_000}), "name longer than"),
        (where({"$ref": "../" * 6_000}), "name longer than"),
        (of(properties={"x" * 6_000: {"properties": dict.fromkeys(MANY_NAMES, True)}}), "name longer than"),
        (of(dependencies={"a": {"type": ["null", "null"]}}), "twice"),
        (of(dependencies={"a": 7}), "`$.dependencies[...]`"),
    ],
)
def test_a_schema_of_a_stranger_ends_in_words(schema: dict[str, Any], told: str) -> None:
    assert told in str(fits(schema, {"a": 1}))


def test_a_schema_that_is_none_cannot_check_anything() -> None:
    with pytest.raises(BadSchema):
        checker(where({"type": "banana"}))
