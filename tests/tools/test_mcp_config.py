"""The file that names MCP servers, and schemas that come from strangers."""

import json
import socket
import threading
from pathlib import Path
from typing import Any

import mcp_types
import pytest

from longhouse.errors import SetupError
from longhouse.journal.events import Fault
from longhouse.redaction import Redaction
from longhouse.tools.bindings.base import Binding
from longhouse.tools.bindings.mcp import Unusable, mcp_binding, text_of
from longhouse.tools.mcp.config import ServerEntry, read_servers

SECRET = "canary/secret+4711"


def written(folder: Path, servers: Any) -> Path:
    path = folder / "mcp.json"
    path.write_text(json.dumps({"mcpServers": servers}))
    return path


def test_variables_are_filled_in_everywhere(tmp_path: Path) -> None:
    servers = {
        "local": {"command": "${RUN}", "args": ["--token=${KEY}", "$KEY"], "env": {"K": "a${KEY}b"}, "timeout": 5},
        "far": {"url": "https://${HOST}/mcp", "headers": {"X-Key": "${KEY}"}, "type": "http"},
    }
    local, far = read_servers(written(tmp_path, servers), {"RUN": "serve", "KEY": SECRET, "HOST": "mcp.example"})
    args, env = [f"--token={SECRET}", "$KEY"], {"K": f"a{SECRET}b"}
    assert local.entry == ServerEntry(command="serve", args=args, env=env, timeout=5)
    assert far.entry == ServerEntry(url="https://mcp.example/mcp", headers={"X-Key": SECRET}, timeout=60)
    assert SECRET not in repr((local, far, local.entry, far.entry))
    hidden = local.secrets.hide(f"{SECRET} canary%2Fsecret%2B4711 {json.dumps(SECRET)}")
    assert hidden == '[hidden] [hidden] "[hidden]"'


def test_a_folder_is_not_a_secret(tmp_path: Path) -> None:
    [server] = read_servers(
        written(tmp_path, {"files": {"command": "x", "args": ["${ROOT}"]}}), {"ROOT": str(tmp_path)}
    )
    assert server.secrets.hide(f"{tmp_path}/a.txt") == f"{tmp_path}/a.txt"


def test_without_a_file_there_are_no_servers() -> None:
    assert read_servers(None) == ()


@pytest.mark.parametrize(
    ("servers", "words"),
    [
        (
            {"a": {"command": "x", "env": {"K": "${UNSET_HERE}"}}},
            "the environment variable UNSET_HERE, which is not set",
        ),
        ({"a": {}}, "'a' needs either a command or a url"),
        ({"a": {"command": "x", "url": "http://x"}}, "'a' needs either a command or a url"),
        ({"a": {"command": "x", "extra": "${KEY}"}}, "unknown field `extra`"),
        ({"a": {"command": 7}}, "Expected `str | null`, got `int`"),
        ({"a": {"url": "${KEY}"}}, "must begin with http:// or https://"),
        ({"a": {"url": "http://x/sse", "type": "sse"}}, "SSE transport is not supported"),
        ({"a": {"command": "x", "timeout": 0}}, "more than 0 seconds"),
        ({"a b": {"command": "x"}}, "needs another name"),
        ({"agent": {"command": "x"}}, "needs another name"),
        ([], "cannot be read"),
    ],
)
def test_a_wrong_file_is_refused_in_words_without_values(tmp_path: Path, servers: Any, words: str) -> None:
    with pytest.raises(SetupError) as refused:
        read_servers(written(tmp_path, servers), {"KEY": SECRET})
    assert words in str(refused.value)
    assert SECRET not in str(refused.value)


def test_a_file_that_is_not_there_is_refused_in_words(tmp_path: Path) -> None:
    with pytest.raises(SetupError, match="cannot be read: No such file"):
        read_servers(tmp_path / "none.json")
    (tmp_path / "torn.json").write_text('{"mcpServers": {')
    with pytest.raises(SetupError, match="cannot be read"):
        read_servers(tmp_path / "torn.json")


async def never(name: str, arguments: Any, context: Any) -> Any:
    raise AssertionError("nothing is called")


def bound(schema: dict[str, Any], name: str = "tool") -> Binding:
    told = mcp_types.Tool(name=name, input_schema={"type": "object", **schema})
    return mcp_binding("far", told, never, timeout=5, secrets=Redaction())


def test_no_reference_is_ever_fetched() -> None:
    asked = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(0.3)
        port = listener.getsockname()[1]
        with pytest.raises(Unusable, match="points outside of the schema"):
            bound({"properties": {"a": {"$ref": f"http://127.0.0.1:{port}/schema.json"}}})
        with pytest.raises(TimeoutError):
            listener.accept()
    assert not asked.is_set()


def test_no_pattern_of_a_stranger_is_run() -> None:
    evil = {
        "properties": {"a": {"pattern": "^(a+)+$"}},
        "patternProperties": {"^(b+)+$": {}},
        "additionalProperties": False,
    }
    arguments = json.dumps({"a": "a" * 60 + "!", "b" * 60 + "!": 1})
    assert not isinstance(bound(evil).bind(arguments), Fault)


def test_a_schema_without_end_ends_in_words() -> None:
    with pytest.raises(Unusable, match="refers to itself without end"):
        bound({"$ref": "#"})


@pytest.mark.parametrize(
    ("schema", "name"),
    [
        ({"type": "array"}, "tool"),
        ({"properties": {"a": {"type": "banana"}}}, "tool"),
        ({"description": "x" * 100_001}, "tool"),
        ({}, "two words"),
        ({}, "аdd"),
        ({}, "x" * 129),
    ],
)
def test_a_tool_that_cannot_be_offered_is_left_out(schema: dict[str, Any], name: str) -> None:
    with pytest.raises(Unusable):
        bound(schema, name)


def test_a_tool_that_changes_has_another_version() -> None:
    first, again, other = bound({}), bound({}), bound({"properties": {"a": {"type": "string"}}})
    assert first.tool.ref == again.tool.ref
    assert first.tool.ref != other.tool.ref


@pytest.mark.parametrize(
    ("text", "structured", "said"),
    [
        ("plain", None, "plain"),
        ("3", {"result": 3}, "3"),
        ("three", {"result": "three"}, "three"),
        ('{"a": 1}', {"a": 1}, '{"a": 1}'),
        ("see", {"a": 1}, 'see\n{"a":1}'),
        (None, {"a": 1}, '{"a":1}'),
    ],
)
def test_structured_content_is_said_once(text: str | None, structured: Any, said: str) -> None:
    content: list[Any] = [mcp_types.TextContent(type="text", text=text)] if text else []
    assert text_of(mcp_types.CallToolResult(content=content, structured_content=structured)) == said
