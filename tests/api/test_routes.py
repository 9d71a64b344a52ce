"""Every route and who may call it: a route that is not in this table, or has no guard, fails the build."""

import asyncio
import threading
from types import SimpleNamespace
from typing import Annotated, Any

import pytest
from attack_helpers import answers, ask, raw
from fastapi import Depends, Request, Response
from fastapi.dependencies.models import Dependant
from key_helpers import Client, admin_of, client_of, keyed, methods_of, routes_of

from longhouse.api import auth, wire
from longhouse.api.caller import Caller
from longhouse.api.console.pages import PAGES
from longhouse.api.http import json_route
from longhouse.api.http.json_route import StrictRoute, of_app
from longhouse.errors import CallerError
from server_helpers import House, Serving

CONSOLE = {*PAGES, "/console/{path:path}", "/console/session"}
"""Pages and files that hold nothing, and where a browser signs in."""
OPEN = {"/health", "/ready", *CONSOLE}
ADMIN = ("/admin/", "/metrics", "/docs", "/openapi.json")
USER = ("/v1/", "/agents", "/mcp", "/a2a/")


def who_may(path: str) -> str:
    """The table, as the documentation has it."""
    if path in OPEN:
        return "anybody"
    if path.startswith(ADMIN):
        return "admin"
    assert path.startswith(USER), f"{path} is not in the table: who may call it?"
    return "user"


def guards(dependant: Dependant) -> set[Any]:
    """The guards that a request passes before it reaches the route, in whatever depth."""
    found = {dependant.call} if isinstance(dependant.call, auth.Guard) else set()
    return found.union(*(guards(below) for below in dependant.dependencies))


async def test_every_route_has_the_guard_that_the_table_says(serving: Serving) -> None:
    async with serving() as house:
        seen = 0
        for route in routes_of(house):
            assert route.path, route
            dependant = getattr(route, "dependant", None)
            assert dependant is not None, f"{route.path} takes no dependencies: nobody would guard it"
            admin = auth.watcher if route.path == "/metrics" else auth.admin
            expected = {"anybody": set(), "user": {auth.user}, "admin": {admin}}[who_may(route.path)]
            assert guards(dependant) >= expected, f"{route.path} lets in more than {who_may(route.path)}"
            assert who_may(route.path) == "anybody" or guards(dependant), route.path
            first = dependant.dependencies[0].call if dependant.dependencies else None
            assert not expected or first in expected, f"{route.path} has no guard as its first dependency"
            seen += 1
        assert seen > 20


def filled(path: str) -> str:
    """The path with something in each of its places."""
    for name in ("session_id", "agent_id", "artifact_id", "key_id", "name", "version", "model:path", "id"):
        path = path.replace(f"{{{name}}}", "tool_calling_agent_00000000-0000-4000-8000-000000000000")
    return path.replace("{step}", "1").replace("{", "").replace("}", "")


def calls_of(house: House) -> list[tuple[str, str, str]]:
    """Each route as (method, path to call, who may)."""
    calls = []
    for route in routes_of(house):
        for method in methods_of(route):
            assert route.path
            calls.append((method, filled(route.path), who_may(route.path)))
    return calls


async def test_who_calls_without_the_key_it_needs_is_refused_everywhere(serving: Serving) -> None:
    async with keyed(serving, ask, rate_limit=10_000) as house:
        nobody, wrong, ann = Client(house), Client(house, "lh_" + "x" * 43), await client_of(house, "ann")
        for method, path, who in calls_of(house):
            for client in (nobody, wrong):
                if who == "anybody":
                    known = (200, 204, 404, 415) if path.startswith("/console/") else (200,)
                    assert await client.status(method, path) in known, path
                    continue
                status, error = await client.refused(method, path, body={} if method != "GET" else None)
                assert (status, error["code"]) == (401, "invalid_api_key"), (method, path)
                sent = house.http.request(method, f"{path}?nonsense=1", data=b"{", headers={"content-type": "text/x"})
                async with sent as response:
                    assert response.status == 401, "nothing of a request is looked at before its key"
            if who != "anybody" and method != "GET":
                for size in (7, 10**12):
                    head = f"{method} {path} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
                    lines = f"content-length: {size}\r\nconnection: close\r\n\r\n"
                    received = await raw(house.url, (head + lines).encode())
                    assert answers(received) == [401], "a body that never comes is not waited for"
            if who == "admin":
                status, error = await ann.refused(method, path, body={} if method != "GET" else None)
                assert (status, error["code"]) == (403, "insufficient_permissions"), (method, path)
        assert await house.db.value("SELECT count(*) FROM sessions") == 0


async def test_who_has_the_key_gets_past_the_guard_everywhere(serving: Serving) -> None:
    async with keyed(serving, ask, rate_limit=10_000) as house:
        admin, ann = admin_of(house), await client_of(house, "ann")
        for method, path, who in calls_of(house):
            for client in (admin, ann) if who == "user" else (admin,):
                assert await client.status(method, path) not in (401, 403, 500), (method, path)


async def test_the_openapi_document_says_which_key_a_route_needs(serving: Serving) -> None:
    async with keyed(serving) as house:
        document = await admin_of(house).got("/openapi.json")
        schemes = document["components"]["securitySchemes"]
        assert {name: (one["type"], one["scheme"]) for name, one in schemes.items()} == {
            "user_key": ("http", "bearer"),
            "admin_key": ("http", "bearer"),
        }
        for path, operations in document["paths"].items():
            for operation in operations.values():
                needed = {name for one in operation.get("security", []) for name in one}
                assert needed == {"anybody": set(), "user": {"user_key"}, "admin": {"admin_key"}}[who_may(path)], path


async def test_the_document_page_works_without_a_network(serving: Serving) -> None:
    async with serving() as house:
        async with house.http.get("/docs") as response:
            page = await response.text()
            assert (response.status, "https://" in page) == (200, False)
        for name, kind in (("swagger-ui-bundle.js", "javascript"), ("swagger-ui.css", "text/css")):
            assert f"/docs/static/{name}" in page
            async with house.http.get(f"/docs/static/{name}") as response:
                assert (response.status, kind in response.headers["content-type"]) == (200, True)
        for name in ("nothing.js", "..%2fconsts.py", "%2e%2e", "%00", "."):
            assert await Client(house).status("GET", f"/docs/static/{name}") == 404


async def test_a_request_waits_for_a_route_that_the_openapi_document_makes_in_a_thread() -> None:
    begun, may_end = threading.Event(), threading.Event()

    class Slow(wire.StrictModel):
        name: str

        @classmethod
        def model_rebuild(cls, **options: Any) -> bool | None:
            begun.set()
            assert may_end.wait(20)
            return super().model_rebuild(**options)

    async def endpoint(body: Slow) -> None: ...

    endpoint.__annotations__ = {"body": Slow}
    route = StrictRoute("/slow", endpoint, methods=["POST"], dependencies=[Depends(auth.admin)])
    describing = asyncio.create_task(asyncio.to_thread(getattr, route, "body_field"))
    assert await asyncio.to_thread(begun.wait, 20)
    asking = asyncio.create_task(asyncio.to_thread(getattr, route, "app"))
    done, _ = await asyncio.wait((asking,), timeout=0.2)
    may_end.set()
    assert not done
    assert callable(await asking)
    assert await describing is not None


async def test_an_endpoint_that_is_called_directly_is_behind_all_guards_of_its_route() -> None:
    asked, seen = [], []

    class Door:
        async def authenticate(self, request: Request, *, is_metered: bool = True) -> Caller:
            asked.append(is_metered)
            return Caller(owner="ann", role=role)

    class Given(wire.StrictModel):
        name: str

    async def endpoint(body: Given, caller: auth.User, shop: Annotated[Any, of_app("shop")]) -> Response:
        seen.append((body.name, caller.owner, shop))
        return Response(status_code=204)

    async def receive() -> Any:
        return {"type": "http.request", "body": b'{"name": "Anna"}', "more_body": False}

    endpoint.__annotations__ = {"body": Given, "caller": auth.User, "shop": Annotated[Any, of_app("shop")]}
    first, second = Depends(auth.user), Depends(auth.watcher)
    route = StrictRoute("/shop", endpoint, methods=["POST"], dependencies=[first, second])
    assert json_route._direct(route.dependant)
    handler, state = route.get_route_handler(), SimpleNamespace(authenticator=Door(), shop="the shop")
    scope = {
        "type": "http", "method": "POST", "path": "/shop", "query_string": b"", "app": SimpleNamespace(state=state),
        "headers": [(b"content-type", b"application/json")],
    }  # fmt: skip
    role: Any = "user"
    with pytest.raises(CallerError, match="admin key"):
        await handler(Request(scope, receive))
    assert not seen
    asked.clear()
    role = "admin"
    assert (await handler(Request(scope, receive))).status_code == 204
    assert (seen, asked) == ([("Anna", "ann", "the shop")], [True, True, False]), "before the body, then each once"
