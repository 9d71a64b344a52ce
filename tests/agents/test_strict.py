"""Whatever a tool's schema looks like: its strict form asks for all arguments, and they come back as it means them."""

import json
from typing import Any

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel
from test_structured import offences

from longhouse.agents.schema.strict import JSON_STRING, restored, strict
from longhouse.agents.strategies.protocol import Body, Reply, Request
from longhouse.agents.strategies.structured import DISCRIMINATOR, SGRAgent
from longhouse.agents.tool import Tool

NULL = {"type": "null"}
TEXT, WHOLE = {"type": "string"}, {"type": "integer"}


def arguments(*required: str, **properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(required)}


def asked(schema: dict[str, Any]) -> dict[str, Any]:
    """The properties of the strict form, which is checked to be one."""
    form = strict(schema)
    assert offences(form) == []
    jsonschema.Draft202012Validator.check_schema(form)
    return dict(form["properties"])


def test_alternatives_that_only_say_what_is_required_take_no_argument_away() -> None:
    schema = {**arguments(id=TEXT, name=TEXT), "anyOf": [{"required": ["id"]}, {"required": ["name"]}]}
    assert asked(schema) == {"id": {"anyOf": [TEXT, NULL]}, "name": {"anyOf": [TEXT, NULL]}}
    assert restored({"id": None, "name": "Ann"}, schema) == {"name": "Ann"}


def test_alternatives_with_properties_of_their_own_are_all_asked_for() -> None:
    by_id = {"properties": {"kind": {"const": "id"}, "id": WHOLE}, "required": ["kind", "id"]}
    by_name = {"properties": {"kind": {"const": "name"}, "name": TEXT}, "required": ["kind", "name"]}
    schema = {**arguments("note", note=TEXT), "oneOf": [by_id, by_name]}
    form = asked(schema)
    assert list(form) == ["note", "kind", "id", "name"]
    assert form["kind"] == {"anyOf": [{"const": "id", "type": "string"}, {"const": "name", "type": "string"}]}
    assert form["id"] == {"anyOf": [WHOLE, NULL]}
    said = {"note": "n", "kind": "name", "id": None, "name": "Ann"}
    assert restored(said, schema) == {"note": "n", "kind": "name", "name": "Ann"}


def test_all_of_several_schemas_is_asked_for_together() -> None:
    schema = {
        "type": "object",
        "$defs": {"Page": arguments("limit", limit=WHOLE)},
        "allOf": [{"$ref": "#/$defs/Page"}, arguments(after=TEXT)],
        "properties": {"query": TEXT},
        "required": ["query"],
    }
    form = asked(schema)
    assert form == {"limit": WHOLE, "query": TEXT, "after": {"anyOf": [TEXT, NULL]}}


@pytest.mark.parametrize("ref", ["#/definitions/P", "#/$defs/P", "#/properties/there", "#/definitions/a~1b%20c"])
def test_a_reference_leads_to_any_place_of_its_document(ref: str) -> None:
    point = arguments("x", x=WHOLE)
    schema = {
        **arguments("at", at={"$ref": ref, "description": "Where"}, there=point),
        "definitions": {"P": point, "a/b c": point},
        "$defs": {"P": point},
    }
    at = asked(schema)["at"]
    assert at["properties"] == {"x": WHOLE}
    assert at["description"] == "Where"


@pytest.mark.parametrize("ref", ["#/$defs/Nowhere", "#/type", "https://example.org/schema", "#/$defs/P/enum/9"])
def test_a_reference_to_nowhere_is_a_text(ref: str) -> None:
    assert asked({**arguments("a", a={"$ref": ref}), "$defs": {"P": {"enum": ["x"]}}})["a"] == TEXT


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object", "additionalProperties": TEXT, "description": "Conditions"},
        {"type": "object", "description": "Conditions"},
        {"type": "object", "properties": {}, "additionalProperties": {}, "description": "Conditions"},
        {
            "type": "object",
            "patternProperties": {"^x": TEXT},
            "additionalProperties": False,
            "description": "Conditions",
        },
    ],
)
def test_an_object_with_names_of_its_own_choice_is_spelled_in_a_string_and_read_again(
    schema: dict[str, Any],
) -> None:
    schema = arguments("filter", filter=schema)
    assert asked(schema)["filter"] == {"type": "string", "description": f"Conditions ({JSON_STRING})"}
    assert restored({"filter": '{"b": "1", "a": null}'}, schema) == {"filter": {"b": "1", "a": None}}
    assert restored({"filter": {"b": "1"}}, schema) == {"filter": {"b": "1"}}, "as a model without strict mode says it"
    for wrong in ("no JSON", "5", "[" * 50_000):
        assert restored({"filter": wrong}, schema) == {"filter": wrong}


def test_an_object_without_properties_stays_empty_and_a_text_beside_an_open_object_stays_a_text() -> None:
    closed = {"type": "object", "properties": {}, "required": [], "additionalProperties": False}
    either = {"anyOf": [TEXT, {"type": "object"}]}
    schema = arguments("none", "either", none={"type": "object", "properties": {}}, either=either)
    assert asked(schema)["none"] == closed
    assert restored({"none": {}, "either": '{"a": 1}'}, schema) == {"none": {}, "either": '{"a": 1}'}


def test_a_tuple_is_a_list_of_what_may_be_in_it() -> None:
    number = {"type": "number"}
    assert asked(arguments("pair", pair={"type": "array", "prefixItems": [number, number]}))["pair"] == {
        "type": "array",
        "items": number,
    }
    mixed = {"prefixItems": [TEXT, arguments("x", x=WHOLE, y=WHOLE)], "items": False}
    schema = arguments("pair", pair=mixed)
    assert asked(schema)["pair"]["items"]["anyOf"][0] == TEXT
    assert restored({"pair": ["a", {"x": 1, "y": None}]}, schema) == {"pair": ["a", {"x": 1}]}


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        ({"type": "integer", "minimum": 1, "maximum": 20}, "Between 1 and 20"),
        ({"type": "integer", "minimum": 0}, "At least 0"),
        ({"type": "number", "maximum": 0.5}, "At most 0.5"),
        ({"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1}, "More than 0, less than 1"),
        ({"type": "integer", "multipleOf": 5, "minimum": 1000000}, "At least 1000000, a multiple of 5"),
        ({"type": "string", "minLength": 1}, "At least 1 character"),
        ({"type": "string", "maxLength": 5, "minLength": 0}, "At most 5 characters"),
        ({"type": "string", "minLength": 5, "maxLength": 5}, "Exactly 5 characters"),
        ({"type": "string", "pattern": "^[а-я]+$", "format": "email"}, "Matching ^[а-я]+$, in the format email"),
        ({"type": "array", "items": TEXT, "minItems": 1, "maxItems": 3}, "1 to 3 items"),
        ({"type": "array", "items": TEXT, "uniqueItems": True}, "No item twice"),
    ],
)
def test_bounds_that_the_strict_form_cannot_express_are_said_in_words(schema: dict[str, Any], words: str) -> None:
    assert asked(arguments("a", a=schema))["a"]["description"] == words
    described = asked(arguments("a", a={**schema, "description": "某物"}))["a"]
    assert described["description"] == f"某物 ({words[0].lower()}{words[1:]})"
    optional = asked(arguments(a={**schema, "description": "某物"}))["a"]
    assert (optional["description"], optional["anyOf"][-1]) == (described["description"], NULL)


def test_bounds_are_said_wherever_a_value_may_stand() -> None:
    bounded = {"type": "integer", "minimum": 1}
    either = {"anyOf": [bounded, NULL], "description": "How many"}
    form = asked({
        **arguments("list", "ref", "only", either=either, list={"type": "array", "items": bounded},
                    ref={"$ref": "#/$defs/N", "description": "Where"}, only={"anyOf": [bounded], "description": "One"}),
        "$defs": {"N": {**bounded, "description": "A number"}},
    })  # fmt: skip
    assert form["either"] == {"anyOf": [{**WHOLE, "description": "At least 1"}, NULL], "description": "How many"}
    assert form["list"]["items"] == {**WHOLE, "description": "At least 1"}
    assert form["ref"] == {**WHOLE, "description": "Where (at least 1)"}
    assert form["only"] == {**WHOLE, "description": "One (at least 1)"}


@pytest.mark.parametrize(
    "schema",
    [{"type": "integer", "minimum": "x", "maximum": True}, {"type": "string", "pattern": "x" * 201, "format": 7},
     {"type": "string", "enum": ["a"], "minLength": 1}, {"const": 3, "minimum": 1}],
)  # fmt: skip
def test_what_says_nothing_is_not_said(schema: dict[str, Any]) -> None:
    assert "description" not in strict(arguments("a", a=schema))["properties"]["a"]


class Stop(BaseModel):
    city: str
    note: str = ""
    tags: dict[str, int] = {}


class Train(BaseModel):
    number: int
    seat: str | None = None


class Bus(BaseModel):
    line: str
    seat: str | None = None


class Trip(BaseModel):
    stops: list[Stop]
    by: Train | Bus | None = None


def test_nulls_are_left_out_again_at_any_depth() -> None:
    said = {
        "stops": [{"city": "Oslo", "note": None, "tags": None}, {"city": "Bergen", "note": "", "tags": '{"rain": 9}'}],
        "by": {"line": "7", "seat": None},
    }
    jsonschema.validate(said, strict(Trip.model_json_schema()))
    meant = restored(said, Trip.model_json_schema())
    assert meant == {
        "stops": [{"city": "Oslo"}, {"city": "Bergen", "note": "", "tags": {"rain": 9}}],
        "by": {"line": "7"},
    }
    assert Trip.model_validate(meant).by == Bus(line="7")


class Tree(BaseModel):
    name: str
    left: "Tree | None" = None
    right: "Tree | None" = None
    others: list["Tree"] = []


def test_a_schema_inside_of_itself_is_json_string_from_there_on() -> None:
    schema = Tree.model_json_schema()
    form = strict({"type": "object", **schema})
    assert offences(form) == []
    assert len(json.dumps(form)) < 3_000
    said = {"name": "a", "left": '{"name": "b", "left": {"name": "c"}}', "right": None, "others": ['{"name": "d"}']}
    meant = Tree.model_validate(restored(said, {"type": "object", **schema}))
    assert meant.left == Tree(name="b", left=Tree(name="c"))
    assert meant.others == [Tree(name="d")]


def test_values_that_are_listed_have_their_type_said() -> None:
    form = asked(arguments("a", "b", a={"enum": ["x", 1, None]}, b={"type": ["string", "null"], "enum": ["x", None]}))
    assert form["a"]["anyOf"] == [{"type": "string", "enum": ["x"]}, {"type": "integer", "enum": [1]}, NULL]
    assert form["b"] == {"anyOf": [{"type": "string", "enum": ["x"]}, NULL]}


def test_an_object_that_may_be_null_keeps_its_properties() -> None:
    point = {**arguments("x", x=WHOLE), "type": ["object", "null"]}
    assert asked(arguments("at", at=point))["at"]["anyOf"][1] == NULL
    assert restored({"at": None}, arguments("at", at=point)) == {"at": None}


plain = st.sampled_from(
    [(TEXT, "a"), (TEXT, '{"b": 1}'), (WHOLE, 7), ({"type": "boolean"}, False), ({"enum": ["x"]}, "x")]
)


def listed(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.builds(lambda one, n: ({"type": "array", "items": one[0]}, [one[1]] * n), inner, st.integers(0, 2))


def named(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """An object of which some properties are optional, and some of those are not given."""
    fields = st.dictionaries(
        st.sampled_from("abcd"), st.tuples(inner, st.sampled_from(["required", "given", "left out"])), min_size=1
    )

    def build(fields: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        must = [name for name, (_, how) in fields.items() if how == "required"]
        given = {name: one[1] for name, (one, how) in fields.items() if how != "left out"}
        return arguments(*must, **{name: one[0] for name, (one, _) in fields.items()}), given

    return fields.map(build)


def free(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return inner.map(lambda one: ({"type": "object", "additionalProperties": one[0]}, {"any": one[1]}))


def maybe(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return inner.map(lambda one: ({"anyOf": [one[0], NULL]}, one[1]))


pairs = st.recursive(
    plain, lambda inner: st.one_of(listed(inner), named(inner), free(inner), maybe(inner)), max_leaves=8
)


def spoken(value: Any, schema: dict[str, Any]) -> Any:
    """A value as a model says it in the strict form of its schema."""
    while "anyOf" in schema:
        schema = schema["anyOf"][0]
    if isinstance(value, list):
        return [spoken(item, schema["items"]) for item in value]
    if not isinstance(value, dict):
        return value
    if "properties" not in schema:
        return json.dumps(value)
    return {name: spoken(value[name], inner) if name in value else None for name, inner in schema["properties"].items()}


@settings(max_examples=75, deadline=None)
@given(named(pairs))
def test_whatever_fits_a_schema_can_be_said_in_its_strict_form_and_comes_back(pair: Any) -> None:
    schema, value = pair
    form, said = strict(schema), spoken(value, schema)
    assert offences(form) == []
    jsonschema.validate(said, form)
    assert restored(said, schema) == value


def test_the_choice_of_a_tool_is_read_under_its_name_on_the_wire_too() -> None:
    agent = Tool(
        name="agent.analytic", description="Ask.", schema=arguments("task", "how", task=TEXT, how={"type": "object"})
    )
    request = Request(Body(model="", messages=[]), {"agent_analytic": "agent.analytic"}, "structure", offered=(agent,))
    for name in ("agent.analytic", "agent_analytic"):
        said = {"function": {DISCRIMINATOR: name, "task": "x", "how": '{"fast": true}'}}
        [intent] = SGRAgent().interpret(request, Reply(text=json.dumps(said))).intents
        assert (intent.tool, json.loads(intent.arguments)) == (agent.name, {"task": "x", "how": {"fast": True}})
