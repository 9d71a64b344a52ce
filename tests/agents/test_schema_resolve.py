"""A `$ref` leads to a place in its own document, to the same one for everybody who follows it."""

from typing import Any
from urllib.parse import quote

import pytest

from longhouse.agents.schema.resolve import BadReference, inlined, target, walk
from longhouse.agents.schema.strict import strict
from longhouse.search.document import parameters
from longhouse.tools.arguments import checker, schema_problem

CITY = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}
ROOT: dict[str, Any] = {
    "type": "object",
    "$defs": {"City": CITY, "a/b c~": CITY, "": CITY, "Город": CITY, "Any": True},
    "anyOf": [{"type": "object"}, CITY],
}


@pytest.mark.parametrize(
    "ref",
    ["#/$defs/City", "#/$defs/a~1b%20c~0", "#/$defs/", "#/anyOf/1", "#/$defs/Город", f"#/$defs/{quote('Город')}"],
)
def test_a_pointer_leads_everybody_to_the_same_place(ref: str) -> None:
    assert target(ROOT, ref) is CITY
    schema = {**ROOT, "properties": {"to": {"$ref": ref}}, "required": ["to"]}
    assert ("name", "") in parameters(schema)
    assert strict(schema)["properties"]["to"]["properties"] == {"name": {"type": "string"}}
    assert schema_problem(schema) is None
    assert checker(schema)({"to": {}}) == "to: 'name' is a required property"


def test_a_pointer_may_lead_to_the_whole_or_to_true() -> None:
    assert target(ROOT, "#") is ROOT
    assert target(ROOT, "#/$defs/Any") is True
    assert inlined({"$ref": "#/$defs/Any", "title": "T"}, ROOT, set()) == {"title": "T"}


@pytest.mark.parametrize(
    ("ref", "told"),
    [
        ("http://127.0.0.1:1/x.json", "points outside"),
        ("file:///etc/passwd", "points outside"),
        ("City", "points outside"),
        ("#City", "points outside"),
        ("#City/$defs", "points outside"),
        ("", "points outside"),
        (7, "points outside"),
        (["#"], "points outside"),
        ("#/$defs/Oslo", "points to nothing"),
        ("#/anyOf/2", "points to nothing"),
        ("#/anyOf/-1", "points to nothing"),
        ("#/anyOf/0000000001", "points to nothing"),
        ("#/anyOf/" + "9" * 10_000, "points to nothing"),
        ("#/type/0", "points to nothing"),
        ("#" + "/" * 100_000, "points to nothing"),
        ("#/type", "points to what is no schema"),
        ("#/anyOf", "points to what is no schema"),
    ],
)
def test_any_other_reference_is_not_followed(ref: Any, told: str) -> None:
    with pytest.raises(BadReference, match=told) as refused:
        target(ROOT, ref)
    assert len(str(refused.value)) < 300
    schema = {**ROOT, "properties": {"to": {"$ref": ref}}}
    assert inlined({"$ref": ref, "title": "T"}, ROOT, set()) == {"title": "T"}
    assert [name for name, _ in parameters(schema)] == ["to", "name"]
    assert strict(schema)["properties"]["to"] == {"anyOf": [{"type": "string"}, {"type": "null"}]}


def test_a_chain_of_references_is_followed_and_the_nearest_keyword_holds() -> None:
    root = {"$defs": {"a": {"$ref": "#/$defs/b", "title": "A"}, "b": {"title": "B", "description": "b"}}}
    followed = set[str]()
    assert inlined({"$ref": "#/$defs/a"}, root, followed) == {"title": "A", "description": "b"}
    assert followed == {"#/$defs/a", "#/$defs/b"}
    assert inlined({"$ref": "#/$defs/b"}, root, followed) is None


def test_a_chain_that_leads_back_has_no_end() -> None:
    root = {"$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}}
    assert inlined({"$ref": "#/$defs/a"}, root, set()) is None
    long = {"$defs": {str(n): {"$ref": f"#/$defs/{n + 1}"} for n in range(5_000)}}
    assert inlined({"$ref": "#/$defs/0"}, long, set()) is None, "it is as good as endless"
    assert inlined({"$ref": f"#/$defs/{5_000 - 20}"}, long, set()) == {}


def test_what_was_read_with_its_whole_is_not_read_again() -> None:
    """20 kB with a thousand references to the whole took half a second of the event loop."""
    inner = {"type": "object", "properties": {"a": {"type": "object"}}}
    root = {
        "properties": {f"p{n}": {"$ref": "#"} for n in range(1_000)},
        "anyOf": [{"$ref": "#/$defs/City"}, {"$ref": "#/x-own/one"}, {"$ref": "#/x-own/one/properties/a"}],
        "$defs": {"City": CITY},
        "x-own": {"one": inner},
    }
    read: list[Any] = []
    seen = list(walk(root, read.append))
    assert len(read) <= 3, "the whole, and what lies where nobody expects a schema"
    assert [read[0], inner in read, CITY in read] == [root, True, False]
    assert [CITY in seen, inner in seen, len(seen)] == [True, True, 1_008]
