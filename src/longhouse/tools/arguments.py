"""JSON Schema of tools: checks schemas before publication, and reads the arguments of calls."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar
from functools import partial
from typing import Annotated, Any, Final, Literal, TypedDict, TypeVar, Union

import msgspec

from longhouse.agents.schema import resolve
from longhouse.journal.events import Fault
from longhouse.journal.messages import clean
from longhouse.tools import patterns
from longhouse.tools.schema_checker import MAX_EFFORT, QUICK, SchemaChecker, TooMuchWork

MAX_SCHEMA: Final = 64_000
"""Maximum bytes of a published schema."""
MAX_DEPTH: Final = 32
MAX_NODES: Final = 1_000
"""Maximum objects and lists in a schema."""
MAX_NAME: Final = 500
"""Maximum characters of a reference, and of a name: what is written of each part holds those that it is in."""
MAX_PATTERNS: Final = 8_000
"""Maximum characters of all patterns of a schema together."""

DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"

Check = Callable[[dict[str, Any]], str | None]
"""Returns what is wrong with the arguments, or None."""
T = TypeVar("T")

_is_quick: Final = ContextVar("is_quick", default=False)
"""Checks that take more than QUICK raise LongCheck."""
_thread: Final = ThreadPoolExecutor(1, "schema-checks")
"""Where long checks are made, one at a time: the event loop shares the interpreter with one of them at most."""

_REFUSED: Final = frozenset(("$id", "$anchor", "$dynamicRef", "$dynamicAnchor", "$recursiveRef", "$recursiveAnchor"))
_NAMES: Final = _REFUSED | {"$ref"}
"""Other ways to refer to parts of a schema, which publishers have no need of; those of clients are made pointers."""

_Type = Literal["null", "boolean", "object", "array", "number", "string", "integer"]
_COUNTED: Final = ("Length", "Items", "Contains", "Properties")
_TEXTS: Final = (
    "pattern", "format", "title", "description", "contentMediaType", "contentEncoding", "$ref", "$schema", "$comment",
)  # fmt: skip


_FIELDS: Final[dict[str, Any]] = {
    "type": _Type | Annotated[list[_Type], msgspec.Meta(min_length=1)],
    "enum": list[Any],
    "examples": list[Any],
    "required": list[str],
    "dependentRequired": dict[str, list[str]],
    "multipleOf": Annotated[float, msgspec.Meta(gt=0)],
    **dict.fromkeys(resolve.ONE, Union["_Schema", bool]),
    **dict.fromkeys(resolve.LISTED, Annotated[list[Union["_Schema", bool]], msgspec.Meta(min_length=1)]),
    **dict.fromkeys(resolve.NAMED, dict[str, Union["_Schema", bool]]),
    "dependencies": dict[str, Union["_Schema", bool, list[str]]],
    **dict.fromkeys(("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"), float),
    **dict.fromkeys((f"{end}{of}" for end in ("min", "max") for of in _COUNTED), Annotated[int, msgspec.Meta(ge=0)]),
    **dict.fromkeys(("uniqueItems", "deprecated", "readOnly", "writeOnly"), bool),
    **dict.fromkeys(_TEXTS, str),
}
_Schema: Any = TypedDict("_Schema", _FIELDS, total=False)  # type: ignore[misc]  # a dictionary, but no literal
"""The types of the keywords, as in draft 2020-12; unknown keywords are not checked."""


class BadSchema(ValueError):  # noqa: N818 - it says what the schema is
    """Arguments cannot be checked against this schema; the message says why."""


class LongCheck(Exception):  # noqa: N818 - it says what was found
    """A check is too long for the event loop."""


def schema_problem(schema: Any, *, runs_patterns: bool = True, times: int = 1) -> str | None:
    """Why a tool with this schema is not published; takes bounded time for any input.

    Patterns that nobody runs here are not looked at: `runs_patterns`. It may be `times` as large as usual.
    """
    try:
        _check_size(schema, times)
        _check_words(schema, runs_patterns)
        _try(schema)
    except (BadSchema, resolve.BadReference) as error:
        return clean(str(error))[:500]
    except msgspec.ValidationError as error:
        return clean(f"the schema is not valid: {error}")[:500]
    return None


def client_schema(schema: Any, *, times: int = 1) -> dict[str, Any]:
    """The schema of a client as agents use it, in the words of one draft; BadSchema if it cannot be used."""
    _check_size(schema, times)
    kept = resolve.plain(schema)
    if problem := schema_problem(kept, runs_patterns=False, times=times):
        raise BadSchema(problem)
    return kept


def _try(schema: dict[str, Any]) -> None:
    """Raises if not even an empty object can be checked."""
    try:
        SchemaChecker(schema).problem({}, effort=QUICK)
    except RecursionError:
        raise BadSchema("the schema refers to itself without end") from None
    except TooMuchWork:
        raise BadSchema("the schema takes too much to check") from None


def _check_size(schema: Any, times: int) -> None:
    try:
        size = len(msgspec.json.encode(schema))
    except RecursionError:
        raise BadSchema(f"the schema is nested deeper than {MAX_DEPTH} levels") from None
    except (TypeError, ValueError):  # a lone surrogate among them
        raise BadSchema("the schema is not plain JSON") from None
    if size > times * MAX_SCHEMA:
        raise BadSchema(f"the schema has more than {times * MAX_SCHEMA} bytes")
    if not isinstance(schema, dict) or schema.get("type") != "object":
        raise BadSchema('the schema must describe an object: {"type": "object", …}')
    level: list[Any] = [schema]
    nodes = depth = 0
    while level:
        nodes, depth = nodes + len(level), depth + 1
        if depth > MAX_DEPTH:
            raise BadSchema(f"the schema is nested deeper than {MAX_DEPTH} levels")
        if nodes > times * MAX_NODES:
            raise BadSchema(f"the schema has more than {times * MAX_NODES} objects and lists")
        names = (name for node in level if isinstance(node, dict) for name in (*node, *map(node.get, _NAMES)))
        if any(isinstance(name, str) and len(name) > MAX_NAME for name in names):
            raise BadSchema(f"the schema has a reference or a name longer than {MAX_NAME} characters")
        inside = (value for node in level for value in (node.values() if isinstance(node, dict) else node))
        level = [value for value in inside if isinstance(value, dict | list)]


def _check_words(root: dict[str, Any], runs_patterns: bool) -> None:
    """Raises if a subschema is not valid or has a keyword that is not supported."""
    length, known = 0, set[int]()
    for schema in resolve.walk(root, partial(msgspec.convert, type=_Schema | bool)):
        needed = (*schema.get("dependentRequired", {}).values(), *schema.get("dependencies", {}).values())
        for names in (schema.get("type"), schema.get("required"), *needed):
            if isinstance(names, list) and len(set(names)) < len(names):
                raise BadSchema("the schema is not valid: a name is there twice")
        if not resolve.has_end(schema, root, known):
            raise BadSchema("the schema refers to itself without end")
        if refused := _REFUSED & schema.keys():
            raise BadSchema(f"the schema holds {min(refused)}, which is not understood here; leave it out")
        if schema.get("$schema", DIALECT).removesuffix("#") != DIALECT:
            raise BadSchema(f"$schema is not understood; leave it out, or write {DIALECT}")
        for pattern in (*schema.get("patternProperties", ()), *([schema["pattern"]] if "pattern" in schema else ())):
            length += len(pattern)
            if length > MAX_PATTERNS:
                raise BadSchema(f"the patterns of the schema have more than {MAX_PATTERNS} characters")
            if runs_patterns and (problem := patterns.problem(pattern)):
                raise BadSchema(f"{pattern[:100]!r}: {problem}")


def read(tool: str, arguments: str, check: Check) -> dict[str, Any] | Fault:
    """The arguments of a call, or a fault for the model that says why they do not fit."""
    try:
        given = msgspec.json.decode(arguments or "{}")
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        problem: str | None = f"they are not JSON: {error}"
    else:
        problem = check(given) if isinstance(given, dict) else "they must be a JSON object"
        if problem is None:
            return given  # type: ignore[no-any-return]
    return Fault(code="bad_arguments", message=clean(f"the arguments of {tool} do not fit: {problem}")[:2000])


def checker(schema: dict[str, Any]) -> Check:
    """A check of arguments against a schema of any draft."""
    made = SchemaChecker(client_schema(schema, times=2))

    def check(given: dict[str, Any]) -> str | None:
        is_quick = _is_quick.get()
        try:
            return made.problem(given, effort=QUICK if is_quick else MAX_EFFORT)
        except TooMuchWork:
            if is_quick:
                raise LongCheck from None
            return "they are too much to check; send less at once"
        except RecursionError:
            return "its schema or the arguments are nested without end"
        except Exception as error:  # noqa: BLE001 - a reference may lead to what is no schema, and fails anyhow
            return f"its schema is not valid: {error!r}"[:300]

    return check


async def apart(read: Callable[[], T]) -> T:
    """What `read` makes of arguments: here where its checks are quick, otherwise in a thread, from the beginning."""
    token = _is_quick.set(True)
    try:
        return read()
    except LongCheck:
        pass
    finally:
        _is_quick.reset(token)
    return await asyncio.get_running_loop().run_in_executor(_thread, read)
