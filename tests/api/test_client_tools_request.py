"""What a client may send as its functions, and what is refused, with the name of the field."""

import json
from typing import Any

import jsonschema
import pytest

from client_tools import WEATHER, function
from longhouse.agents.schema.strict import restored, strict
from longhouse.api.openai import client_tools
from longhouse.api.openai.client_tools import MAX_SIZE, MOST_TOOLS
from longhouse.api.openai.responses.request import ResponseRequest
from longhouse.api.wire import ChatMessage
from longhouse.errors import CallerError
from longhouse.journal.events import ClientTool, ClientTools, Fault
from longhouse.tools.client_tools import fault_of, schema_of, tool_of

DEEP: Any = {"type": "object"}
for _ in range(40):
    DEEP = {"type": "object", "properties": {"a": DEEP}}
LIMIT = 64_000


def changed(**fields: Any) -> dict[str, Any]:
    return {"type": "function", "function": {**WEATHER["function"], **fields}}


@pytest.mark.parametrize(
    ("given", "param"),
    [
        ("text", "tools[0].type"),
        ({"type": "web_search"}, "tools[0].type"),
        ({"function": WEATHER["function"]}, "tools[0].type"),
        ({"type": "function"}, "tools[0].function"),
        (changed(name=""), "tools[0].function.name"),
        (changed(name="x" * 65), "tools[0].function.name"),
        (changed(name="погода"), "tools[0].function.name"),
        (changed(name="get weather"), "tools[0].function.name"),
        (changed(name="agent.clerk"), "tools[0].function.name"),
        (changed(name=7), "tools[0].function.name"),
        (changed(description=7), "tools[0].function.description"),
        (changed(strict="yes"), "tools[0].function.strict"),
        (changed(parameters=[]), "tools[0].function.parameters"),
        (changed(parameters={"type": "array"}), "tools[0].function.parameters"),
        (changed(parameters={"type": "object", "properties": {"a": {"type": "text"}}}), "tools[0].function.parameters"),
        (changed(parameters={"type": "object", "$ref": "file:///etc/passwd"}), "tools[0].function.parameters"),
        (changed(parameters={"type": "object", "description": "x" * LIMIT}), "tools[0].function.parameters"),
        (changed(parameters=DEEP), "tools[0].function.parameters"),
    ],
)
def test_a_function_that_cannot_be_offered_is_named(given: Any, param: str) -> None:
    with pytest.raises(CallerError) as refused:
        client_tools.read([given])
    assert (refused.value.status, refused.value.param) == (400, param)


def test_there_is_a_most_of_them() -> None:
    many = [function(f"f{n}") for n in range(MOST_TOOLS)]
    found = client_tools.read(many)
    assert found is not None
    assert len(found.tools) == MOST_TOOLS
    with pytest.raises(CallerError) as refused:
        client_tools.read([*many, function("one_more")])
    assert refused.value.param == "tools"
    assert client_tools.read([changed(description="x" * (MAX_SIZE - 1_000))]), (
        "a long description alone is none too much"
    )
    heavy = [changed(name=f"f{n}", description="x" * 60_000) for n in range(5)]
    with pytest.raises(CallerError, match="together"):
        client_tools.read(heavy)
    with pytest.raises(CallerError) as refused:
        client_tools.read([WEATHER, function("other"), WEATHER])
    assert refused.value.param == "tools[2].function.name"


def test_what_libraries_write_is_taken() -> None:
    zod = {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "type": "object",
        "properties": {"mail": {"type": "string", "format": "email", "pattern": r"^(?!\.)(?!.*\.\.)(a+)+@b$"}},
        "required": ["mail"],
        "additionalProperties": False,
    }
    found = client_tools.read(
        [changed(parameters=zod, strict=True), function("ping"), changed(name="empty", parameters={})]
    )
    assert found is not None
    mail, _, empty = found.tools
    assert mail.strict
    assert schema_of(mail) == {key: value for key, value in zod.items() if key != "$schema"}
    assert (empty.parameters, schema_of(empty)) == ("", {"type": "object", "properties": {}})
    bare = client_tools.read(
        [{"type": "function", "function": {"name": "ping", "description": None, "parameters": None}}]
    )
    assert bare == ClientTools(tools=(ClientTool(name="ping"),))
    flat = of_responses([{"type": "function", "name": "ping", "parameters": {"type": "object"}}])
    assert flat == ClientTools(tools=(ClientTool(name="ping", parameters='{"type":"object"}'),))


def of_responses(tools: list[Any], choice: Any = None) -> ClientTools | None:
    """The functions of a request to /v1/responses, which names them beside their type."""
    asked = ResponseRequest.model_validate({"input": "Hello", "tools": tools, "tool_choice": choice})
    chat = asked.as_chat([ChatMessage(role="user", content="Hello")], "agent")
    return client_tools.read(chat.tools or (), chat.tool_choice, chat.parallel_tool_calls)


ITEM = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}
KNOWN: list[tuple[dict[str, Any], Any, Any]] = [
    (
        {"properties": {"kids": {"type": "array", "items": {"$ref": "#"}}}},
        {"kids": [{"kids": [{}]}]},
        {"kids": [{"kids": 1}]},
    ),
    (
        {"$id": "https://a.b/tree", "properties": {"kid": {"$ref": "https://a.b/tree"}}},
        {"kid": {}},
        {"kid": {"kid": 1}},
    ),
    ({"$id": "https://a.b/tree", "properties": {"kid": {"$ref": "tree"}}}, {"kid": {}}, {"kid": {"kid": 1}}),
    (
        {"properties": {"a": {"$ref": "#item"}}, "$defs": {"b": {"$anchor": "item", **ITEM}}},
        {"a": {"name": ""}},
        {"a": {}},
    ),
    ({"properties": {"a": {"$ref": "item"}}, "$defs": {"b": {"$id": "item", **ITEM}}}, {"a": {"name": ""}}, {"a": {}}),
    ({"$dynamicAnchor": "n", "properties": {"kid": {"$dynamicRef": "#n"}}}, {"kid": {"kid": {}}}, {"kid": {"kid": 1}}),
    ({"$recursiveAnchor": True, "properties": {"kid": {"$recursiveRef": "#"}}}, {"kid": {}}, {"kid": {"kid": 1}}),
    (
        {"properties": {"pair": {"type": "array", "items": [ITEM, {"$ref": "#/properties/pair/items/0"}]}}},
        {"pair": [{"name": ""}, {"name": ""}]},
        {"pair": [{"name": ""}, {}]},
    ),
    ({"properties": {"pair": {"items": [{}], "additionalItems": False}}}, {"pair": [1]}, {"pair": [1, 2]}),
    ({"properties": {"$id": {"type": "string"}, "items": {"enum": [{"$id": 1}]}}}, {"items": {"$id": 1}}, {"$id": 1}),
    (
        {"properties": {"a/b": {"$id": "#x", **ITEM}, "c": {"$ref": "#/properties/a~1b"}, "d": {"$ref": "#x"}}},
        {},
        {"d": {}},
    ),
]


@pytest.mark.parametrize(("schema", "fitting", "other"), KNOWN)
def test_a_schema_may_refer_to_itself_and_name_its_parts(schema: Any, fitting: Any, other: Any) -> None:
    """Taken as OpenAI takes them; agents get pointers alone."""
    found = client_tools.read([changed(parameters={"type": "object", **schema})])
    assert found is not None
    [tool] = found.tools
    assert not {"$anchor", "$dynamicRef", "$recursiveRef"} & set(tool.parameters.split('"'))
    made = tool_of(tool)
    assert fault_of(made, json.dumps(fitting)) is None
    assert isinstance(fault_of(made, json.dumps(other)), Fault)
    form = strict(made.schema)
    jsonschema.Draft202012Validator.check_schema(form)
    assert "$ref" not in json.dumps(form)


def test_however_often_parts_refer_to_each_other_they_are_written_out_in_bounds() -> None:
    names = [f"d{n}" for n in range(30)]
    each = {"type": "object", "properties": {name: {"$ref": f"#/$defs/{name}"} for name in names[:25]}}
    parameters = {"type": "object", "properties": {"a": {"$ref": "#/$defs/d0"}}, "$defs": dict.fromkeys(names, each)}
    found = client_tools.read([changed(parameters=parameters)])
    assert found is not None
    made = tool_of(found.tools[0])
    assert len(json.dumps(strict(made.schema))) < 1_000_000
    inner = '{"d1": {"d2": {}}}'
    assert restored({"a": {"d0": inner, **dict.fromkeys(names[1:25])}}, made.schema) == {"a": {"d0": json.loads(inner)}}


def test_what_many_parts_share_is_written_out_in_bounds() -> None:
    """Three thousand choices, as they are written once, would be written hundreds of times."""
    shared = {"a": {"enum": [f"choice {n}" for n in range(3_000)]}, "b": {"allOf": [{"title": "t"}] * 300}}
    for name, value in shared.items():
        refs = {f"p{n}": {"$ref": f"#/$defs/{name}"} for n in range(390)}
        parameters = {"type": "object", "properties": refs, "$defs": {name: value}}
        found = client_tools.read([changed(parameters=parameters)])
        assert found is not None
        made = tool_of(found.tools[0])
        assert len(json.dumps(strict(made.schema))) < 500_000
        assert restored(dict.fromkeys(refs, "choice 7"), made.schema) == dict.fromkeys(refs, "choice 7")


def test_a_choice_says_what_may_and_what_must_be_called() -> None:
    tools, names = [function("a"), function("b")], ("a", "b")
    one = {"type": "function", "function": {"name": "b"}}
    some = {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [one]}}
    for choice, offered, must in (
        (None, names, ()),
        ("auto", names, ()),
        ("required", names, names),
        (one, names, ("b",)),
        (some, ("b",), ("b",)),
    ):
        found = client_tools.read(tools, choice)
        assert found is not None
        assert (tuple(tool.name for tool in found.tools), found.must_call) == (offered, must), choice
    assert client_tools.read(tools, "none") is None
    twice = {"type": "allowed_tools", "allowed_tools": {"tools": [one, one]}}
    again = client_tools.read(tools, twice)
    assert again is not None
    assert [tool.name for tool in again.tools] == ["b"], "as often as it is named, it is offered once"
    assert client_tools.read([]) is None
    flat = [{"type": "function", "name": name} for name in names]
    found = of_responses(flat, {"type": "function", "name": "a"})
    assert found is not None
    assert found.must_call == ("a",)
    parallel = client_tools.read(tools, None, False)
    assert parallel is not None
    assert not parallel.parallel
    wrong: list[tuple[Any, str]] = [
        ("always", "tool_choice"),
        (7, "tool_choice"),
        ({"type": "function"}, "tool_choice"),
        ({"type": "function", "function": {"name": "c"}}, "tool_choice"),
        ({"type": "function", "function": {"name": ["a"]}}, "tool_choice"),
        ({"type": "allowed_tools"}, "tool_choice.allowed_tools"),
        ({"type": "allowed_tools", "allowed_tools": {"tools": ["a"]}}, "tool_choice.allowed_tools.tools"),
    ]
    for given, param in wrong:
        with pytest.raises(CallerError) as refused:
            client_tools.read(tools, given)
        assert refused.value.param == param, given
