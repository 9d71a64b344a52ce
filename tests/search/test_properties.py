"""A schema is read in words, however it is written."""

from typing import Any

import pytest
from pydantic import BaseModel

from longhouse.search.document import MOST_PROPERTIES, parameters

PASSPORT = {"type": "object", "properties": {"visa": {"type": "string", "description": "Of the traveller"}}}


@pytest.mark.parametrize(
    "schema",
    [
        {"properties": {"passport": PASSPORT}},
        {"properties": {"passport": {"$ref": "#/$defs/Passport"}}, "$defs": {"Passport": PASSPORT}},
        {"properties": {"passport": {"$ref": "#/definitions/Passport"}}, "definitions": {"Passport": PASSPORT}},
        {"properties": {"passport": {"anyOf": [PASSPORT, {"type": "null"}]}}},
        {"properties": {"passport": {"type": "array", "items": {"oneOf": [PASSPORT]}}}},
        {"allOf": [{"properties": {"passport": PASSPORT}}]},
    ],
)
def test_names_and_descriptions_are_found_wherever_they_are(schema: dict[str, Any]) -> None:
    read = parameters(schema)
    assert [name for name, _ in read if name] == ["passport", "visa"]
    assert "Of the traveller" in {said for _, said in read}


def test_the_schema_of_a_pydantic_model_is_read() -> None:
    class Room(BaseModel):
        thermostat: int

    class House(BaseModel):
        living_room: Room | None = None
        others: list[Room] = []

    assert {"living_room", "others", "thermostat"} <= {name for name, _ in parameters(House.model_json_schema())}


def test_what_may_be_chosen_is_read_too() -> None:
    assert parameters({"properties": {"instrument": {"enum": ["saxophone", "flute", 7]}}}) == [
        ("instrument", "saxophone flute")
    ]


def test_a_schema_that_refers_to_itself_comes_to_an_end() -> None:
    tree = {"properties": {f"child{n}": {"$ref": "#/$defs/Tree"} for n in range(50)}}
    assert len(parameters({"$ref": "#/$defs/Tree", "$defs": {"Tree": tree}})) == 50
    wide: dict[str, Any] = {
        "properties": {f"p{n}": {"properties": {f"q{m}": {} for m in range(50)}} for n in range(50)}
    }
    assert len(parameters(wide)) == MOST_PROPERTIES


@pytest.mark.parametrize(
    "schema", [{}, {"properties": 1}, {"properties": {"a": 1}}, {"$ref": "#/nowhere"}, {"$ref": 1}, {"anyOf": {"a": 1}}]
)
def test_odd_schemas_say_little(schema: dict[str, Any]) -> None:
    assert [said for _, said in parameters(schema) if said] == []
