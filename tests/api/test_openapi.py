"""The OpenAPI document says of every route which parameters it takes and what it answers: that, and nothing else."""

import json
import re
from collections.abc import Iterator
from typing import Any, get_args

import msgspec
import pytest
from attack_helpers import refusal
from client_generator import Generator
from fastapi import FastAPI
from key_helpers import routes_of
from pydantic import BaseModel, BeforeValidator, ValidationError

from conformance import Described
from longhouse.api.a2a.wire import Configuration, MessageIn, SendParams, TaskParams
from longhouse.api.console.session import SignIn
from longhouse.api.http.json_route import JsonRoute
from longhouse.models.scripted import call
from server_helpers import AGENT, House, Serving


async def document(house: House) -> Any:
    async with house.http.get("/openapi.json") as response:
        return await response.json()


def parameters(operation: Any, where: str) -> dict[str, Any]:
    return {one["name"]: one for one in operation.get("parameters", ()) if one["in"] == where}


async def test_the_query_parameters_of_every_route_are_described(serving: Serving) -> None:
    """A route that refuses a parameter names those it knows: the document must name the same."""
    async with serving() as house:
        told = {}
        for path, operations in (await document(house))["paths"].items():
            if operation := operations.get("get"):
                url = f"{re.sub(r'{[^}]*}', 'x', path)}?nonsense=1"
                async with house.http.get(url) as response:
                    if response.status != 400:
                        continue  # one of OpenAI's, or open to all: it takes anything and reads nothing
                    message = (await response.json())["error"]["message"]
                known = re.search(r"here; known: (.*)\.$", message)
                told[path] = (known[1].split(", ") if known else [], list(parameters(operation, "query")))
    assert {"/v1/sessions", "/v1/sessions/{session_id}", "/v1/sessions/{session_id}/events"} <= told.keys()
    for path, (known_names, described) in told.items():
        assert sorted(described) == sorted(known_names), path


async def test_a_parameter_comes_with_a_sentence_and_a_schema_that_holds(serving: Serving) -> None:
    async with serving() as house:
        paths = (await document(house))["paths"]
        listing = parameters(paths["/v1/sessions"]["get"], "query")
        assert all(one["description"] and one["required"] is False for one in listing.values())
        assert listing["state"]["schema"]["enum"][:3] == ["INITED", "RESEARCHING", "WAITING_FOR_CLARIFICATION"]
        fitting = {
            "state": listing["state"]["schema"]["enum"][-1],
            "conversation_id": "a.b:c@d-e_1",
            "since": listing["since"]["schema"]["example"],
            "until": listing["until"]["schema"]["example"],
            "limit": str(listing["limit"]["schema"]["maximum"]),
        }
        assert re.search(listing["conversation_id"]["schema"]["pattern"], fitting["conversation_id"])
        async with house.http.get("/v1/sessions", params=fitting) as response:
            assert response.status == 200, await response.text()
        most = int(fitting["limit"])
        for wrong in ({"state": "inited"}, {"conversation_id": ".."}, {"limit": str(most + 1)}, {"since": "today"}):
            async with house.http.get("/v1/sessions", params=wrong) as response:
                assert response.status == 400, wrong
        assert not re.search(listing["conversation_id"]["schema"]["pattern"], "..")
        following = paths["/v1/sessions/{session_id}/events"]["get"]
        assert list(parameters(following, "path")) == ["session_id"]
        assert list(parameters(following, "header")) == ["Last-Event-ID"]


def operations(told: Any) -> list[tuple[str, str, Any]]:
    return [(path, method, one) for path, item in told["paths"].items() for method, one in item.items()]


TURNS = ("/v1/chat/completions", "/v1/responses")
"""Routes that carry out turns: a limit of the operator may end those."""


async def test_every_operation_says_what_it_answers_and_its_examples_fit(serving: Serving) -> None:
    async with serving() as house:
        app: Any = house.app.asgi
        while not isinstance(app, FastAPI):
            app = app.app
        assert app.openapi_schema is None, "nobody pays for the document before it is asked for"
        told = await document(house)
    described = Described(told)
    for path, method, operation in operations(told):
        responses, where = operation["responses"], f"{method} {path}"
        assert {"421", "500", "503"} <= responses.keys(), where
        assert ("401" in responses) == ("security" in operation), where
        assert "404" in responses or "{" not in path, where
        assert (
            not {"4XX", "422", "default"} & responses.keys()
            or path in (*TURNS, "/v1/schedules")
            or path.endswith("/fork")
        ), where
        for status, one in responses.items():
            content = described.resolved(one).get("content", {})
            assert all(media["schema"] for media in content.values()), where
            assert (status == "204") == (not content), where
            if "example" in (media := content.get("application/json", {})):
                body = msgspec.json.encode(media["example"])
                problem = described.problem(path, method, int(status), "application/json", body)
                assert problem is None, (where, status, problem)
    for code, wrong in ((418, b"{}"), (200, b'{"object": "list", "data": []}'), (404, b'{"error": {"message": "?"}}')):
        assert described.problem("/v1/sessions/{session_id}/questions", "get", code, "application/json", wrong)
    event = b'event: delta\ndata: {"after": 1, "fence": 1, "offset": 0, "kind": "content"}\n\n'
    assert described.problem("/v1/sessions/{session_id}/events", "get", 200, "text/event-stream", event)
    names = [operation["operationId"] for _, _, operation in operations(told)]
    assert len(names) == len(set(names))
    assert all(name.isidentifier() for name in names)
    text = json.dumps(told)
    for name in told["components"]["schemas"]:
        assert f'"#/components/schemas/{name}"' in text, f"nothing refers to {name}"
        assert "__" not in name, name


async def test_a_version_that_is_put_needs_no_name(serving: Serving) -> None:
    """Its path has it: the document says so, and so does the server."""
    async with serving([]) as house:
        async with house.http.get("/openapi.json") as response:
            document = await response.json()
        for kind, body in (("template", {"title": "model"}), ("tool", None)):
            for method, needs in (("post", True), ("put", False)):
                path = f"/admin/{kind}s" + ("" if method == "post" else "/{name}")
                sent = document["paths"][path][method]["requestBody"]["content"]["application/json"]["schema"]
                named = json.dumps(sent).partition("schemas/")[2].partition('"')[0]
                schema = sent if method == "put" else document["components"]["schemas"][named]
                assert ("name" in schema["required"]) == needs, (kind, method)
            if body:
                async with house.http.put(f"/admin/{kind}s/{AGENT}", json=body) as response:
                    assert response.status == 201, await response.text()


async def test_a_method_that_a_path_does_not_have_is_refused_with_those_that_it_has(serving: Serving) -> None:
    async with serving() as house:
        paths = (await document(house))["paths"]
        patterns = [(re.compile(re.sub(r"{[^}]*}", "[^/]+", path)), item) for path, item in paths.items()]
        for path in paths:
            url = re.sub(r"{[^}]*}", "x", path)
            known = {method.upper() for pattern, item in patterns if pattern.fullmatch(url) for method in item}
            for method in {"GET", "POST", "PUT", "PATCH", "DELETE"} - known:
                async with house.http.request(method, url) as response:
                    assert (await refusal(response)).status == 405, (method, url)
                    assert set(response.headers["allow"].split(", ")) == known, (method, url)


async def test_a_client_that_is_generated_from_the_document_holds_a_conversation(serving: Serving) -> None:
    """Types and functions are made of the document alone; what they decode has no field that they do not know."""
    script = [
        call("clarificationtool", questions=["В каком городе?"]),
        call("finalanswertool", answer="奥斯陆下雨。", status="completed"),
    ]
    async with serving(script) as house:
        made = Generator(await document(house)).module()
        client = made.Client(house.http)
        prompt = {"model": AGENT, "messages": [{"role": "user", "content": "Какая погода?"}]}
        with pytest.raises(made.Refused) as refused:
            await client.chat_completions(body={**prompt, "temperature": "hot"})
        assert refused.value.status == 400
        asked = await client.chat_completions(body={**prompt, "chat_id": "weather"})
        assert asked.choices[0].message.content == "В каком городе?"
        session = await client.get_session(asked.model)
        assert (session.state, session.task) == ("WAITING_FOR_CLARIFICATION", "Какая погода?")
        answer = {"answer": "奥斯陆", "call_id": session.questions[0].name}
        assert (await client.clarify(asked.model, body=answer)).session_id == asked.model
        await house.until(asked.model, "COMPLETED")
        seen = await client.admin_get_session(asked.model)
        assert (seen.result, seen.counters.clarifications_used) == ("奥斯陆下雨。", 1)
        listed = await client.list_sessions(limit=1, conversation_id="weather", state="COMPLETED")
        assert [(one.session_id, one.turns) for one in listed.data] == [(asked.model, 1)]
        messages = await client.get_messages(asked.model)
        assert {"role": "user", "content": "奥斯陆"} in messages.data
        assert [one.n for one in (await client.list_steps(asked.model)).data] == [1, 2]
        assert (await client.admin_tools_get_name("finalanswertool")).tool_id == "finalanswertool"
        with pytest.raises(made.Refused) as missing:
            await client.get_session("nobody")
        assert (missing.value.status, missing.value.code) == (404, "session_not_found")


WRONG: tuple[Any, ...] = (True, False, 0, 1, 1.0, "", "0", "1", "true", [], {}, ["1"])
"""One of each kind of JSON; those that a field is not described to take are refused, not read as something else."""
NO_NUMBERS = (" 1", "1 ", "+1", "-1", "1_0", "1.0", "1e1", "0x1", "１", "true", "")
NO_MOMENTS = ("0", "1", "1700000000", "-170000000", "170000.000", "true", "2026-01-31T", "tomorrow")


def models_in(kind: Any) -> set[type[BaseModel]]:
    """The models of a type, and those that are in them."""
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        fields = kind.model_fields.values()
        return {kind}.union(*(models_in(part) for one in fields for part in (one.annotation, *one.metadata)))
    return set[type[BaseModel]]().union(*(models_in(part) for part in get_args(kind)))


def fields_of(model: type[BaseModel]) -> Iterator[tuple[str, list[Any]]]:
    """Each field, with the schemas of which one fits what it takes."""
    schema = model.model_json_schema()

    def flat(one: Any) -> Iterator[Any]:
        one = schema["$defs"][one["$ref"].rpartition("/")[2]] if "$ref" in one else one
        parts = [part for kind in ("anyOf", "oneOf", "allOf") for part in one.get(kind, ())]
        yield from (each for part in parts for each in flat(part)) if parts else (one,)

    for name, one in schema["properties"].items():
        yield name, list(flat(one))


def takes(schema: Any, value: Any) -> bool:
    kinds: dict[str, Any] = {
        "boolean": bool,
        "integer": int,
        "number": (int, float),
        "string": str,
        "array": list,
        "object": dict,
    }
    if any(value == one and type(value) is type(one) for one in [*schema.get("enum", ()), schema.get("const", {})]):
        return True
    if "type" not in schema:
        return not schema.keys() & {"enum", "const"}
    is_number = schema["type"] in ("integer", "number")
    kind = kinds.get(schema["type"], type(None))
    return isinstance(value, kind) and not (is_number and isinstance(value, bool))


def refuses_value(model: type[BaseModel], name: str, value: Any) -> bool:
    try:
        model.model_validate({name: value})
    except ValidationError as error:
        return any(one["loc"][:1] == (name,) for one in error.errors())
    return False


async def test_no_body_and_no_parameter_takes_one_kind_of_value_for_another(serving: Serving) -> None:
    async with serving(works=False) as house:
        every = [context.original_route for context in routes_of(house)]
        routes = [one for one in every if isinstance(one, JsonRoute)]
        queried: set[type[BaseModel]] = {kind for one in routes for field in one.dependant.query_params
                   for kind in models_in(field.field_info.annotation)}  # fmt: skip
        bodies: set[type[BaseModel]] = {
            kind for one in routes if one.body_field for kind in models_in(one.body_field.field_info.annotation)
        }
        assert (len(bodies) > 40, len(queried) > 15) == (True, True), "all of them are walked"
        models: list[type[BaseModel]] = [*bodies, SendParams, TaskParams, MessageIn, Configuration, SignIn]
        taken = [
            (model.__name__, name, value)
            for model in models
            for name, schemas in fields_of(model)
            for value in WRONG
            if not any(takes(one, value) for one in schemas) and not refuses_value(model, name, value)
        ]
        assert taken == []
        texts = [
            (model.__name__, name, value)
            for model in queried
            for name, schemas in fields_of(model)
            for one in schemas
            for value in (
                NO_NUMBERS if one.get("type") == "integer" else NO_MOMENTS if "date" in one.get("format", "") else ()
            )
            if not refuses_value(model, name, value)
        ]
        assert texts == []
        beside = [
            one.alias
            for route in routes
            for one in (*route.dependant.query_params, *route.dependant.path_params)
            if one.field_info.annotation in (int, float, bool)
            and not any(isinstance(each, BeforeValidator) for each in one.field_info.metadata)
        ]
        assert beside == [], "numbers are read by `pagination.digits`"

        path = "/v1/conversations/c/interactions/prune"
        not_numbers: list[Any] = [False, True, "0", "1", [], {}]
        for wrong in not_numbers:
            async with house.http.post(path, json={"older_than_days": wrong}) as response:
                assert response.status == 400, wrong
                assert (await response.json())["error"]["param"] == "older_than_days"
        for query in ("until=0", "since=1700000000", "until=2026-01-31T00:00:00Z"):
            async with house.http.get(f"/v1/usage?{query}") as response:
                assert response.status == 400, query
