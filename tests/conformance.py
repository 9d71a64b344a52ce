"""Compares all that a Longhouse answers in tests with its OpenAPI document: what a story provokes must be described."""

import functools
import json
from collections.abc import Iterator
from typing import Any, Final

import jsonschema_rs
from fastapi import FastAPI
from fastapi.routing import APIRoute
from starlette.types import ASGIApp, Message, Receive, Scope, Send

import longhouse
from longhouse.api import server
from longhouse.api.http import openapi_schema

MOST: Final = 1_000_000
"""Bytes of a response that are kept to be compared."""


def closed(document: dict[str, Any]) -> dict[str, Any]:
    """The document, in which what is answered has no other fields than those that are described."""
    schemas: dict[str, Any] = document["components"]["schemas"]
    bodies = [item.get("requestBody") for path in document["paths"].values() for item in path.values()]
    asked = _all_named_in(bodies, schemas)
    shut = {
        name: {**schema, "additionalProperties": False} if name not in asked and "properties" in schema else schema
        for name, schema in schemas.items()
    }
    return {**document, "components": {**document["components"], "schemas": shut}}


def _all_named_in(value: Any, schemas: dict[str, Any]) -> set[str]:
    """The schemas that it names, and those that they name."""
    named = {*_named_in(value)}
    while more := {*_named_in([schemas[name] for name in named])} - named:
        named |= more
    return named


def _named_in(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        if isinstance(ref := value.get("$ref"), str):
            yield ref.rpartition("/")[2]
        value = list(value.values())
    if isinstance(value, list):
        for one in value:
            yield from _named_in(one)


class Described:
    """The document of this process, and what it says of a response."""

    def __init__(self, document: dict[str, Any]) -> None:
        self.document = closed(document)

    def problem(self, path: str, method: str, status: int, media_type: str, body: bytes) -> str | None:
        """What the document does not say of a response; None: it describes it."""
        responses = self.document["paths"][path][method.lower()]["responses"]
        if str(status) not in responses:
            return f"the status {status} is not described"
        content = self.resolved(responses[str(status)]).get("content", {})
        if not content:
            return "no body is described" if body else None
        kind = next((one for one in content if _fits(media_type, one)), None)
        if kind is None:
            return f"the type {media_type!r} is not described"
        if kind == "text/event-stream":
            return self._problem_of_events(path, method, status, body)
        return self._problem_of_json(path, method, status, body) if kind == "application/json" else None

    def resolved(self, response: dict[str, Any]) -> dict[str, Any]:
        if ref := response.get("$ref"):
            response = self.document["components"]["responses"][ref.rpartition("/")[2]]
        return response

    def _problem_of_json(self, path: str, method: str, status: int, body: bytes) -> str | None:
        try:
            self._validator(path, method, status).validate(json.loads(body))
        except jsonschema_rs.ValidationError as error:
            return f"{error.message} at {error.instance_path}"
        return None

    def _problem_of_events(self, path: str, method: str, status: int, body: bytes) -> str | None:
        for event in events_in(body):
            fitting = [check for names, check in self._events(path, method, status) if event.get("event") in names]
            problems = [problem for check in fitting if (problem := _problem_of_data(check, event["data"]))]
            if len(problems) == len(fitting):
                return f"the event {event} is not described: {problems}"
        return None

    @functools.cache  # noqa: B019 - one for the whole process
    def _validator(self, path: str, method: str, status: int) -> Any:
        content = self.resolved(self.document["paths"][path][method.lower()]["responses"][str(status)])["content"]
        return self._validator_for(content["application/json"]["schema"])

    @functools.cache  # noqa: B019 - one for the whole process
    def _events(self, path: str, method: str, status: int) -> list[tuple[list[str | None], Any]]:
        """Of each kind of event its names and a validator, or the words that its data may be."""
        content = self.document["paths"][path][method.lower()]["responses"][str(status)]["content"]
        found = []
        for one in content["text/event-stream"]["schema"]["anyOf"]:
            data = one["properties"]["data"]
            check = data["enum"] if "enum" in data else self._validator_for(data["contentSchema"])
            found.append((one["properties"].get("event", {"enum": [None]})["enum"], check))
        return found

    def _validator_for(self, schema: dict[str, Any]) -> Any:
        """With the schemas that it names, not with all: reading those takes ten times as long."""
        schemas: dict[str, Any] = self.document["components"]["schemas"]
        named = _all_named_in(schema, schemas)
        return jsonschema_rs.Draft202012Validator(
            {**schema, "components": {"schemas": {name: schemas[name] for name in named}}}
        )


def _problem_of_data(check: Any, data: str) -> str | None:
    if isinstance(check, list):
        return None if data in check else f"the data is none of {check}"
    try:
        check.validate(json.loads(data))
    except (json.JSONDecodeError, jsonschema_rs.ValidationError) as error:
        return str(error)[:500]
    return None


def _fits(media_type: str, described: str) -> bool:
    return described in ("*/*", media_type, f"{media_type.partition('/')[0]}/*")


def events_in(body: bytes) -> Iterator[dict[str, str]]:
    """The events of a stream, as far as they are whole."""
    for block in body.decode().split("\n\n")[:-1]:
        event = dict(line.split(": ", 1) for line in block.split("\n") if not line.startswith(":"))
        if "data" in event:
            yield event


class Conformance:
    """Around the application: notes what is answered and not described."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app
        self.problems: list[str] = []
        inner: Any = app
        while not isinstance(inner, FastAPI):
            inner = inner.app
        _of_process(inner)  # before it serves: making the document holds up the loop, and with it heartbeats

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        status, media_type, body, is_whole = 0, "", bytearray(), False

        async def watched(message: Message) -> None:
            nonlocal status, media_type, is_whole
            if message["type"] == "http.response.start":
                status = message["status"]
                types = [value.decode() for name, value in message["headers"] if name == b"content-type"]
                media_type = types[0].partition(";")[0] if types else ""
            elif len(body) < MOST:
                body.extend(message.get("body", b""))
                is_whole = not message.get("more_body", False)
            await send(message)

        try:
            await self.app(scope, receive, watched)
        finally:
            route = scope.get("route")
            is_known = status and (is_whole or media_type == "text/event-stream")
            is_ours = isinstance(route, APIRoute) and route.include_in_schema
            if route and is_ours and is_known and scope["method"] in route.methods:
                described = _of_process(scope["app"])
                problem = described.problem(route.path_format, scope["method"], status, media_type, bytes(body))
                if problem:
                    self.problems.append(f"{scope['method']} {route.path_format} {status}: {problem}")


_kept: list[Described] = []


def _of_process(app: FastAPI) -> Described:
    """All houses of a process have the same routes."""
    if not _kept:
        _kept.append(Described(openapi_schema.document(app)))
    return _kept[0]


def share() -> None:
    """Makes the document, for those that are forked from this process."""
    app = FastAPI(title="Longhouse", version=longhouse.__version__, openapi_url=None, docs_url=None)
    for router in server.ROUTERS:
        app.router.routes += router.routes
    _of_process(app)
