"""What a client may send as its functions, and what is refused, with the name of the field."""

from typing import Any

import pytest

from client_tools import WEATHER, function
from longhouse.api.openai import client_tools
from longhouse.api.openai.client_tools import MAX_DESCRIPTION, MAX_SIZE, MOST_TOOLS
from longhouse.errors import CallerError
from longhouse.journal.events import ClientTool, ClientTools
from longhouse.tools.client_tools import schema_of

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
        (changed(description="x" * (MAX_DESCRIPTION + 1)), "tools[0].function.description"),
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
    heavy = [changed(name=f"f{n}", description="x" * MAX_DESCRIPTION) for n in range(MAX_SIZE // MAX_DESCRIPTION + 1)]
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
    flat = client_tools.read([{"type": "function", "name": "ping", "parameters": {"type": "object"}}], nested=False)
    assert flat == ClientTools(tools=(ClientTool(name="ping", parameters='{"type":"object"}'),))


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
    assert client_tools.read([]) is None
    flat = [{"type": "function", "name": name} for name in names]
    found = client_tools.read(flat, {"type": "function", "name": "a"}, nested=False)
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
