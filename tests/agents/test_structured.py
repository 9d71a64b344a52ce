"""The schema of a structured step stays within the strict subset, whatever the tools look like."""

from dataclasses import replace
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, Field

from longhouse.agents.json_repair import read_object
from longhouse.agents.schema.strict import restored, strict
from longhouse.agents.strategies.structured import NextStepToolsBuilder
from longhouse.agents.tool_descriptor import DEFAULTS
from longhouse.app import TOOLS

KEYWORDS = frozenset(
    {"type", "properties", "required", "additionalProperties", "items", "anyOf", "enum", "const", "description"}
)


def offences(schema: Any, where: str = "$") -> list[str]:
    """Where a schema leaves the strict subset."""
    if isinstance(schema, list):
        return [found for index, item in enumerate(schema) for found in offences(item, f"{where}[{index}]")]
    if not isinstance(schema, dict):
        return []
    found = [f"{where}: {key}" for key in schema if key not in KEYWORDS]
    if schema.get("type") == "object":
        properties = schema.get("properties", {})
        if schema.get("additionalProperties") is not False:
            found.append(f"{where}: open object")
        if schema.get("required") != list(properties):
            found.append(f"{where}: not all required")
        for name, inner in properties.items():
            found += offences(inner, f"{where}.{name}")
    return found + offences(schema.get("anyOf", []), f"{where}|") + offences(schema.get("items"), f"{where}[]")


def test_all_our_tools_fit_the_strict_subset_in_one_union() -> None:
    tools = [cls.described() for cls in TOOLS]
    schema = NextStepToolsBuilder.build_NextStepTools(tools)
    assert offences(schema) == []
    branches = schema["properties"]["function"]["anyOf"]
    names = [branch["properties"]["tool_name_discriminator"]["const"] for branch in branches]
    assert names == [tool.name for tool in tools]
    assert next(iter(branches[0]["properties"])) == "tool_name_discriminator", "the choice comes before its arguments"
    assert list(schema["properties"])[-1] == "function", "the reasoning comes before the choice"


class Inner(BaseModel):
    kind: Literal["a", "b"]
    weight: float = Field(default=1.0, ge=0, le=10)
    children: list["Inner"] = []


class Strange(BaseModel):
    """A schema with everything that strict modes refuse."""

    inner: Inner
    either: int | str | None = None
    free: dict[str, Any] = {}
    pattern: str = Field(default="x", pattern="^x+$", min_length=1)


def test_references_recursion_defaults_and_patterns_are_brought_into_the_subset() -> None:
    schema = strict(Strange.model_json_schema())
    assert offences(schema) == []
    told = {"description": "At least 1 character, matching ^x+$"}
    assert schema["properties"]["pattern"] == {"anyOf": [{"type": "string"}, {"type": "null"}], **told}
    assert {"type": "null"} in schema["properties"]["either"]["anyOf"]


def test_a_null_that_only_the_strict_form_allowed_is_left_out_again() -> None:
    schema = {"type": "object", "properties": {"a": {}, "b": {}}, "required": ["a"]}
    assert restored({"a": None, "b": None}, schema) == {"a": None}
    assert restored({"b": 1, "a": 2}, schema) == {"b": 1, "a": 2}


@pytest.mark.parametrize(
    "text",
    [
        '{"a": [1, 2]}',
        'Here you are:\n```json\n{"a": [1, 2]}\n```\nDone.',
        'Sure! {"a": [1, 2]} That is all.',
        '{"a": [1, 2,],}',
        '{"a": [1, 2',
    ],
)
def test_known_slips_are_mended(text: str) -> None:
    assert read_object(text) == {"a": [1, 2]}


@pytest.mark.parametrize(
    ("text", "why"),
    [("", "it is empty"), ("no", "it is not valid JSON"), ("[1]", "not an object"), ("{]", "it is not valid JSON")],
)
def test_what_cannot_be_read_is_said_in_words(text: str, why: str) -> None:
    problem = read_object(text)
    assert isinstance(problem, str)
    assert why in problem


@given(st.text(max_size=200))
def test_whatever_a_model_writes_reading_it_ends(text: str) -> None:
    assert isinstance(read_object(text), dict | str)


def test_a_tool_without_arguments_is_described_in_the_same_order_by_its_class_and_by_its_row() -> None:
    for cls in TOOLS:
        own = cls.descriptor()
        unset: dict[str, Any] = {name: None for name, value in DEFAULTS.items() if getattr(own, name) == value}
        stored = replace(own, **unset)
        assert bytes(stored.tool.spec("x")) == bytes(cls.described(stored).spec("x")), cls.__name__
