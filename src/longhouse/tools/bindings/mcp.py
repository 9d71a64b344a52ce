"""Binding of MCP tools: description, validation of arguments, text of results."""

import hashlib
import math
import re
from collections.abc import Awaitable, Callable
from typing import Any, Final, get_args

import mcp_types
import msgspec

from longhouse.agents.tool import Remembers, Tool
from longhouse.journal.events import Effect, Fault
from longhouse.journal.messages import clean
from longhouse.redaction import Redaction
from longhouse.tools.arguments import BadSchema, checker, read
from longhouse.tools.bindings.base import Binding, Work
from longhouse.tools.config import ToolConfig
from longhouse.tools.context import ToolContext
from longhouse.tools.outcomes import CallError, bounded

MAX_DESCRIPTION: Final = 4_000
MAX_SCHEMA: Final = 100_000
"""Maximum bytes of a schema; a tool with a larger one is skipped."""
NO_LIMIT: Final = 100_000_000
"""`mcp_context_limit` bounds the result instead; it is known only when the tool is called."""

REMEMBERS: Final = "longhouse/remembers"
"""The key in a tool's `_meta` by which a server says what working memory keeps of its results."""

_NAME: Final = re.compile(r"[A-Za-z0-9_./-]{1,128}")

Call = Callable[[str, dict[str, Any], ToolContext], Awaitable[mcp_types.CallToolResult]]
"""Calls a tool of the server by its own name."""


class Unusable(Exception):  # noqa: N818 - it says what the tool is
    """This tool cannot be offered; the message says why."""


class McpToolError(CallError):
    """The tool reported an error; the agent reads its message."""


def mcp_binding(server: str, listed: mcp_types.Tool, call: Call, *, timeout: float, secrets: Redaction) -> Binding:
    """The binding of a tool as its server lists it; Unusable if agents cannot be offered it."""
    tool = _described(server, listed, timeout, secrets)
    try:
        check = checker(listed.input_schema)
    except BadSchema as error:
        raise Unusable(f"its schema cannot be used: {error}") from error

    def bind(arguments: str) -> Work | Fault:
        given = read(tool.name, arguments, check)
        if isinstance(given, Fault):
            return given

        async def work(context: ToolContext, config: ToolConfig) -> str:
            result = await call(listed.name, given, context)
            text = secrets.hide(text_of(result))
            if result.is_error:
                raise McpToolError(text or f"{tool.name} failed and did not say why")
            return bounded(text, config.execution.mcp_context_limit)

        return work

    return Binding(tool, bind, is_elsewhere=True)


def _described(server: str, listed: mcp_types.Tool, timeout: float, secrets: Redaction) -> Tool:
    if not _NAME.fullmatch(listed.name):
        raise Unusable("its name is not made of letters, digits, _, -, . and /")
    schema = listed.input_schema
    encoded = msgspec.json.encode(schema, order="sorted")
    if len(encoded) > MAX_SCHEMA:
        raise Unusable(f"its schema has more than {MAX_SCHEMA} bytes")
    if schema.get("type") != "object":
        raise Unusable("its schema does not describe an object")
    description = clean(secrets.hide(listed.description or listed.title or ""))[:MAX_DESCRIPTION]
    hints = listed.annotations
    effect: Effect = "idempotent" if hints and hints.idempotent_hint else "once"
    # A version number from a hash of the content, since MCP tools have no versions: the same in every process.
    digest = hashlib.sha256(encoded + b"\0" + description.encode()).digest()
    return Tool(
        name=f"{server}.{listed.name}",
        description=description,
        schema=schema,
        version=int.from_bytes(digest[:3], "big") + 1,
        effect="read" if hints and hints.read_only_hint else effect,
        timeout=timeout,
        max_output=NO_LIMIT,
        remembers=_remembers(listed) if hints and hints.read_only_hint else "",
    )


def _remembers(listed: mcp_types.Tool) -> Remembers:
    """What the server says of its results; an unknown word is as none."""
    said = (listed.meta or {}).get(REMEMBERS)
    known: tuple[Remembers, ...] = get_args(Remembers)
    return next((one for one in known if one == said), "")


def text_of(result: mcp_types.CallToolResult) -> str:
    """The result as text: text blocks, other blocks described, and structured content unless the text repeats it."""
    text = "\n".join(_words(block) for block in result.content)
    structured = result.structured_content
    if structured is None or _repeats(text, structured):
        return text
    return "\n".join(part for part in (text, msgspec.json.encode(structured).decode()) if part)


def _repeats(text: str, structured: Any) -> bool:
    same = [structured]
    if isinstance(structured, dict) and set(structured) == {"result"}:
        same.append(structured["result"])
    if text in same:
        return True
    try:
        return msgspec.json.decode(text) in same
    except (msgspec.DecodeError, RecursionError):
        return False


def _words(block: mcp_types.ContentBlock) -> str:
    match block.type:
        case "text":
            return block.text
        case "image" | "audio":
            return f"[{block.type} {block.mime_type}, {_size(block.data)}]"
        case "resource_link":
            return f"[link to {block.name}: {block.uri}]"
        case _:
            resource = block.resource
            if isinstance(resource, mcp_types.TextResourceContents):
                return resource.text
            return f"[file {resource.uri}, {resource.mime_type or 'of unknown type'}, {_size(resource.blob)}]"


def _size(base64: str) -> str:
    return f"{math.ceil(len(base64) * 3 / 4 / 1000)} kB"
