"""The OpenAPI document: parameters and bodies as FastAPI reads them, responses as the routes type them.

Nothing of a response is written twice: its schema is that of the type which the route encodes.
"""

from collections import Counter
from collections.abc import Iterator
from functools import cache
from http import HTTPStatus
from types import UnionType
from typing import Any, Final, Literal, Union, get_args, get_origin

import msgspec
from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from fastapi.routing import APIRoute
from pydantic import BaseModel

from longhouse.api import auth, wire
from longhouse.api.http import streaming
from longhouse.api.http.json_route import JsonRoute

ABOUT: Final = """A server for AI agents. Errors have one shape, `Envelope`, whatever their status.

What cannot be read as a request is refused before a route is found, in the same shape: with 400, 408, 414, 421, 431
or 503; an address that is no route with 404, and a method that it does not have with 405. Every response names its
request in `x-request-id`. Of `text/event-stream` the schema describes one event; comments in between keep the
connection open."""
SCHEMAS: Final = "#/components/schemas/"
EVENTS: Final = streaming.EventStream.media_type
ERRORS: Final = {
    400: "Something is wrong with the request: the message says what, and `param` where.",
    401: "The API key is missing, not valid, or expired.",
    403: "The key, or the page that asks, may not do this.",
    404: "There is no such thing, or it is somebody else's.",
    409: "It does not fit what is there now.",
    413: "It is too large.",
    415: "The body is no JSON.",
    421: "While no API keys are set, the server is asked by a local name alone.",
    422: "It was understood, and cannot be done.",
    429: "A limit or a budget of the key is used up.",
    500: "An internal error of the server.",
    502: "The model failed.",
    503: "Something that is needed cannot be reached just now.",
}
HEADERS: Final = {
    401: {"www-authenticate": "How to send a key"},
    429: {"retry-after": "Seconds after which to try again"},
    503: {"retry-after": "Seconds after which to try again"},
}


def document(app: FastAPI) -> dict[str, Any]:
    """The whole document; it takes almost half a second."""
    described = get_openapi(title=app.title, version=app.version, description=ABOUT, routes=app.routes)
    components = described["components"]
    schemas = Schemas(components["schemas"])
    routes = [route for route in app.routes if isinstance(route, APIRoute) and route.include_in_schema]
    names = Counter(_plain_name(route) for route in routes)
    for route in routes:
        for method in sorted(route.methods or ()):
            operation = described["paths"][route.path_format][method.lower()]
            operation["operationId"] = _name(route, names)
            operation["responses"] = {str(status): one for status, one in _responses(route, schemas)}
            if _is_admins(route):
                # What an admin does for another owner is written for users too: their keys do not open it here.
                operation["security"] = [{auth.admin.scheme_name: []}]
    components["responses"] = {_error_name(status): _error(status, {}, schemas) for status in ERRORS}
    # Of what a query reads from text, FastAPI adds types to which nothing refers.
    text = msgspec.json.encode(described).decode()
    components["schemas"] = {name: one for name, one in schemas.known.items() if f'"{SCHEMAS}{name}"' in text}
    return described


def _is_admins(route: APIRoute) -> bool:
    return route.path.startswith("/admin/")


def _plain_name(route: APIRoute) -> str:
    return f"admin_{route.name}" if _is_admins(route) else route.name


def _name(route: APIRoute, names: Counter[str]) -> str:
    """The name of a function in generated clients: that of ours. Tools and templates share names of functions."""
    plain = _plain_name(route)
    return plain if names[plain] == 1 else f"admin_{route.path.split('/')[2]}_{route.name}"


# Responses


def _responses(route: APIRoute, schemas: "Schemas") -> Iterator[tuple[int, dict[str, Any]]]:
    answers = route.answers if isinstance(route, JsonRoute) else {}
    described = {int(status): one for status, one in answers.items()}
    done = {route.status_code or HTTPStatus.OK} | {status for status in described if status < HTTPStatus.BAD_REQUEST}
    for status in sorted(done):
        one = described.get(status, {})
        shown: dict[str, Any] = {"description": one.get("description") or "Done.", "headers": _headers(status)}
        if content := _content(route, one, schemas):
            shown["content"] = content
        yield status, shown
    for status in sorted((described.keys() - done) | _errors(route)):
        shared = {"$ref": f"#/components/responses/{_error_name(status)}"}
        yield status, _error(status, described[status], schemas) if described.get(status) else shared


def _content(route: APIRoute, answer: dict[str, Any], schemas: "Schemas") -> dict[str, Any]:
    """Media types and what they hold, as the route's annotation says."""
    content: dict[str, Any] = {}
    for kind in _members(route.endpoint.__annotations__["return"]):
        media_type, held = (get_origin(kind) or kind).media_type, (*get_args(kind), None)[0]
        if media_type is None or held is wire.Envelope:
            continue  # errors are described by their statuses
        if media_type == EVENTS:
            schema: dict[str, Any] = {"anyOf": [_event(one, schemas) for one in _members(held)]}
        elif media_type == wire.Json.media_type:
            schema = schemas.of(answer.get("kind") or held)
        else:
            schema = {"type": "string"} if media_type.startswith("text/") else {"type": "string", "format": "binary"}
        content[media_type.partition(";")[0]] = {"schema": schema}
    if answer.get("example") is not None:
        content[wire.Json.media_type]["example"] = answer["example"]
    return content


def _event(kind: Any, schemas: "Schemas") -> dict[str, Any]:
    """One event of a stream, as clients of server-sent events get it: its data is text, which holds JSON."""
    # Events of Responses say their names in their data.
    name, data = get_args(kind) or (kind.__annotations__["type"], kind)
    if get_origin(data) is Literal:
        text: dict[str, Any] = {"type": "string", "enum": list(get_args(data))}
    else:
        held = {"contentMediaType": wire.Json.media_type, "contentSchema": schemas.of(data)}
        text = {"type": "string", **held}
    fields: dict[str, Any] = {"data": text}
    if name is not type(None):
        is_literal = get_origin(name) is Literal
        fields["event"] = {"enum": list(get_args(name)) if is_literal else [one.__name__ for one in _members(name)]}
    fields["id"] = {"type": "string"}
    return {"type": "object", "properties": fields, "required": [one for one in fields if one != "id"]}


def _errors(route: APIRoute) -> set[int]:
    """The errors that follow from what a route is: from its guard, its path, its query and its body."""
    found = {421, 500, 503}
    if "{" in route.path:
        found.add(404)
    if any(isinstance(one.dependency, auth.Guard) for one in route.dependencies):
        found |= {401, 403, 429}
    if not isinstance(route, JsonRoute):
        return found
    is_reading = route.methods == {"GET"}
    if route.is_strict or route.body_field:
        found.add(400)
    if route.body_field or route.reads_body or (route.is_strict and not is_reading):
        found.add(413)
    if route.body_field or (route.is_strict and not is_reading and not route.reads_body):
        found.add(415)
    return found


def _error_name(status: int) -> str:
    return f"Error{status}"


def _error(status: int, answer: dict[str, Any], schemas: "Schemas") -> dict[str, Any]:
    media: dict[str, Any] = {"schema": schemas.of(answer.get("kind") or wire.Envelope)}
    if answer.get("example") is not None:
        media["example"] = answer["example"]
    description = answer.get("description") or ERRORS[status]
    return {"description": description, "headers": _headers(status), "content": {wire.Json.media_type: media}}


def _headers(status: int) -> dict[str, Any]:
    named = {"x-request-id": "The name of this request in our log", **HEADERS.get(status, {})}
    return {
        name: {"description": words, "required": name == "x-request-id", "schema": {"type": "string"}}
        for name, words in named.items()
    }


# Schemas


class Schemas:
    """The schemas of the document by name: those of FastAPI, and those of our types."""

    def __init__(self, known: dict[str, Any]) -> None:
        self.known = known
        self.of = cache(self._made)
        """The schema of a type; what it names is added."""

    def _made(self, kind: Any) -> dict[str, Any]:
        members = _members(kind)
        if len(members) > 1:
            return {"anyOf": [self.of(one) for one in members]}
        [schema], found = msgspec.json.schema_components(
            [kind], schema_hook=self._of_model, ref_template=f"{SCHEMAS}{{name}}"
        )
        self._add(found)
        return schema

    def _of_model(self, kind: Any) -> dict[str, Any]:
        """The schema of a type that msgspec does not know."""
        if not issubclass(kind, BaseModel):
            raise NotImplementedError
        schema = kind.model_json_schema(ref_template=f"{SCHEMAS}{{model}}")
        self.known |= schema.pop("$defs", {}) | self.known  # FastAPI has written those of bodies from the same classes
        for one in schema["properties"].values():
            one.pop("default", None)  # it says that a field may be left out, not what it is then
        self._add({kind.__name__: schema})
        return {"$ref": f"{SCHEMAS}{kind.__name__}"}

    def _add(self, found: dict[str, Any]) -> None:
        for name, schema in found.items():
            known = self.known.setdefault(name, schema)
            is_same = sorted(known["enum"]) == sorted(schema.get("enum", ())) if "enum" in known else known == schema
            if not is_same:
                raise ValueError(f"Two schemas are called {name}: {self.known[name]} and {schema}")


def _members(kind: Any) -> list[Any]:
    """The members of a union; of anything else, itself."""
    return [*get_args(kind)] if get_origin(kind) in (Union, UnionType) else [kind]
