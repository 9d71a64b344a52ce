"""From the result of a reading tool to what working memory keeps of it.

Tools of others answer in many ways: JSON text, blocks of text, models, lists or objects. What cannot be understood, and
what reports an error, is not remembered; nothing here raises.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Literal

from pydantic_core import PydanticSerializationError, to_jsonable_python

from longhouse.journal import json_text
from longhouse.memory.working import AgentMemory, first_name, first_text, source_of, titles

Kind = Literal["outline", "search", "page"]
"""What a tool's result is to the memory."""

_TOOLS: Final[Mapping[str, Kind]] = {"get_toc": "outline", "smart_search": "search", "read_page_range": "page"}
# Servers and tool sets put their own names before a tool's: `mcp__docs__get_toc`, `docs.get_toc`, `docs_get_toc`.
_NAME: Final = re.compile(rf"(?:.*[^a-zA-Z0-9])?({'|'.join(_TOOLS)})", re.DOTALL)
_FAILURE: Final = re.compile(r"\s*error\b", re.IGNORECASE)


def remember_call(memory: AgentMemory, tool_name: str, arguments: object, result: object) -> bool:
    """Keeps the result of a tool that is known by its name; says whether it was understood."""
    found = _NAME.fullmatch(tool_name)
    return found is not None and remember(memory, _TOOLS[found[1]], arguments, result)


def remember(memory: AgentMemory, kind: Kind, arguments: object, result: object) -> bool:
    """Keeps the result of a tool of this kind; says whether it was understood."""
    value = _value(result)
    if value is None:
        return False
    named = arguments if isinstance(arguments, Mapping) else {}
    return _KEEP[kind](memory, named, value)


def is_failure(result: object) -> bool:
    """Whether a result reports an error, or nothing at all."""
    return _value(result) is None


def titles_of(outline: object) -> list[str]:
    """The titles of an outline as a tool returned it, in reading order."""
    toc = _toc(_value(outline))
    return list(titles(toc)) if toc else []


def _toc(value: object) -> dict[str, Any] | None:
    """An outline, which may be written as a text: each of its lines is the title of a chapter. A single line, or JSON
    that was cut, is none."""
    if isinstance(value, str):
        lines = [line.strip() for line in value.splitlines() if line.strip()]
        is_text = len(lines) > 1 and not lines[0].startswith(("{", "["))
        value = [{"title": line} for line in lines] if is_text else None
    if isinstance(value, list):
        return {"items": value}
    return value if isinstance(value, dict) else None


def _keep_outline(memory: AgentMemory, arguments: Mapping[str, Any], value: object) -> bool:
    toc = _toc(value)
    # A part of an outline is no outline: the model would be told that it knows the rest.
    if toc is None or arguments.get("expand_section"):
        return False
    reg_id = first_name(arguments, "reg_id") or first_name(toc, "reg_id")
    if not reg_id or not any(isinstance(entries, list) and entries for entries in toc.values()):
        return False
    memory.cache_toc(reg_id, toc)
    return True


def _keep_search(memory: AgentMemory, arguments: Mapping[str, Any], value: object) -> bool:
    results = _listed(value, "results")
    if results is None:
        return False
    place = {"reg_id": first_name(arguments, "reg_id")}
    memory.add_search_results([place | result for result in results if isinstance(result, dict)])
    return True


def _keep_page(memory: AgentMemory, arguments: Mapping[str, Any], value: object) -> bool:
    if isinstance(value, str):
        value = {"content": value}
    pages = [page for page in _listed(value, "pages") or [value] if isinstance(page, dict)]
    read = [(text, page) for page in pages if (text := first_text(page, "content", "content_markdown", "text"))]
    whole = value if isinstance(value, dict) else {}
    for text, page in reversed(read):
        memory.add_page_content(text, _page_source({**arguments, **whole, "source": "", **page}))
    return bool(read)


_KEEP: Final[Mapping[Kind, Callable[[AgentMemory, Mapping[str, Any], object], bool]]] = {
    "outline": _keep_outline,
    "search": _keep_search,
    "page": _keep_page,
}


def _page_source(known: Mapping[str, Any]) -> str:
    """`angui_2024 P85` for a page, `angui_2024 P85-87` for a range."""
    if source := first_name(known, "source"):
        return source
    start, end = first_name(known, "page", "page_num", "start_page"), first_name(known, "end_page")
    is_page = first_name(known, "page", "page_num") or end in ("", start)
    return source_of(first_name(known, "reg_id"), start if is_page else f"{start}-{end}")


def _listed(value: object, key: str) -> Sequence[Any] | None:
    """A list, or the list that an object has under this name."""
    inner = value.get(key) if isinstance(value, dict) else value
    return inner if isinstance(inner, list) else None


def _value(result: object) -> dict[str, Any] | list[Any] | str | None:
    """A result as an object, a list or a text; None for an error and for what is none of them."""
    value = _plain(result)
    if isinstance(value, dict) and value.keys() == {"result"}:
        # MCP servers wrap what is no object.
        value = _plain(value["result"])
    if isinstance(value, dict):
        return None if value.get("error") else value
    if isinstance(value, str):
        return None if _FAILURE.match(value) or not value.strip() else value
    return value if isinstance(value, list) else None


def _plain(result: object) -> Any:
    """A result without the ways in which it was wrapped: models, blocks of text, JSON."""
    value = result if isinstance(result, str) else _builtins(result)
    if isinstance(value, list) and (texts := _texts_of_blocks(value)):
        parsed = [json_text.value_of(text) for text in texts]
        if len(parsed) > 1 and all(isinstance(one, dict) for one in parsed):
            return parsed
        value = "\n".join(texts)
    if isinstance(value, str):
        parsed_text = json_text.value_of(value)
        return parsed_text if isinstance(parsed_text, dict | list) else value
    return value


def _builtins(value: object) -> Any:
    """Models and data classes as plain values; None if something in them cannot be written, or is nested too deeply."""
    try:
        plain = to_jsonable_python(value, bytes_mode="base64", serialize_unknown=True)
    except (PydanticSerializationError, ValueError, RecursionError):
        return None
    return None if json_text.is_deep(plain) else plain


def _texts_of_blocks(blocks: Sequence[Any]) -> list[str]:
    """The texts of content blocks, as models' APIs and MCP write results; empty if these are something else."""
    if not all(isinstance(block, dict) and "type" in block and "score" not in block for block in blocks):
        return []
    return [block["text"] for block in blocks if block["type"] == "text" and isinstance(block.get("text"), str)]
