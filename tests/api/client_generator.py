"""Generates a client from the OpenAPI document, as strangers do: types and functions of Python, and no word of ours."""

import keyword
import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any, Final

NAME: Final = "generated_longhouse_client"
HEAD: Final = """
from __future__ import annotations
from datetime import date, datetime
from typing import Any, Literal
import msgspec


class Refused(Exception):
    def __init__(self, status, envelope):
        super().__init__(envelope.error.message)
        self.status, self.code = status, envelope.error.code


class Client:
    def __init__(self, http):
        self._http = http

    async def _ask(self, method, path, query, body, kind):
        query = {name: str(value) for name, value in query.items() if value is not None}
        async with self._http.request(method, path, params=query, json=body) as response:
            raw = await response.read()
            if response.status >= 400:
                raise Refused(response.status, msgspec.json.decode(raw, type=Envelope))
            return msgspec.json.decode(raw, type=kind) if kind else None
"""
PLAIN: Final = {"integer": "int", "number": "float", "boolean": "bool", "null": "None"}
FORMATS: Final = {"date-time": "datetime", "date": "date"}


class Generator:
    def __init__(self, document: dict[str, Any]) -> None:
        self.paths: dict[str, Any] = document["paths"]
        self.components: dict[str, Any] = document["components"]

    def module(self) -> Any:
        """The client, as a module that was imported."""
        made = sys.modules[NAME] = ModuleType(NAME)
        exec(compile(self.source(), NAME, "exec"), made.__dict__)
        return made

    def source(self) -> str:
        methods = [self._method(path, method, one) for path, item in self.paths.items() for method, one in item.items()]
        classes = [self._class(name, one) for name, one in self.components["schemas"].items() if "properties" in one]
        return "\n".join([HEAD, *methods, *classes])

    def _class(self, name: str, schema: dict[str, Any]) -> str:
        required = schema.get("required", ())
        lines = [f"class {name}(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):"]
        for field, one in schema["properties"].items():
            plain = f"{field}_" if keyword.iskeyword(field) else field
            default = "" if field in required else "default=msgspec.UNSET, "
            kind = self._type(one) + ("" if field in required else " | msgspec.UnsetType")
            lines.append(f"    {plain}: {kind} = msgspec.field({default}name={field!r})")
        return "\n".join([*lines, "    pass"])

    def _type(self, schema: dict[str, Any]) -> str:
        if ref := schema.get("$ref"):
            name = ref.rpartition("/")[2]
            named = self.components["schemas"][name]
            return name if "properties" in named else self._type(named)
        if members := schema.get("anyOf") or schema.get("oneOf"):
            kinds = list(dict.fromkeys(self._type(one) for one in members))
            objects = [one for one in kinds if one in self.components["schemas"]]
            # Which of several objects it is, no type says.
            return "Any" if len(objects) > 1 or "Any" in kinds else " | ".join(kinds)
        if "enum" in schema:
            return f"Literal[{', '.join(map(repr, schema['enum']))}]"
        kind = schema.get("type")
        if kind == "string":
            return FORMATS.get(schema.get("format", ""), "str")
        if kind == "array":
            return f"list[{self._type(schema.get('items') or {})}]"
        if kind == "object":
            more = schema.get("additionalProperties")
            return f"dict[str, {self._type(more) if isinstance(more, dict) else 'Any'}]"
        return PLAIN.get(kind or "", "Any")

    def _method(self, path: str, method: str, operation: dict[str, Any]) -> str:
        named = {place: [*_names(operation, place)] for place in ("path", "query")}
        taken = [*named["path"], "*", "body=None", *(f"{_plain(one)}=None" for one in named["query"])]
        query = ", ".join(f"{one!r}: {_plain(one)}" for one in named["query"])
        asked = f"{method.upper()!r}, f{path!r}, {{{query}}}, body, {self._answer(operation)}"
        return (
            f"    async def {operation['operationId']}(self, {', '.join(taken)}):\n"
            f"        return await self._ask({asked})"
        )

    def _answer(self, operation: dict[str, Any]) -> str:
        """The type of what is answered; None where it is no JSON."""
        done = next(one for status, one in operation["responses"].items() if status < "300")
        content = done.get("content", {})
        return self._type(content["application/json"]["schema"]) if "application/json" in content else "None"


def _names(operation: dict[str, Any], place: str) -> Iterator[str]:
    return (one["name"] for one in operation.get("parameters", ()) if one["in"] == place)


def _plain(name: str) -> str:
    return f"{name}_" if keyword.iskeyword(name) else name
