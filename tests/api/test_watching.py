"""For those who watch: /health, /ready, /metrics, the documents; and what every answer carries."""

import asyncio
import json
import re
from typing import Any

import msgspec
import pytest
import structlog
from attack_helpers import ask, chat, refusal
from key_helpers import admin_of, client_of, keyed

from document_texts import ENGLISH
from longhouse.agents.schema import resolve
from longhouse.api import server
from longhouse.api.auth import Authenticator
from longhouse.api.rate_limits import KeyLimits
from longhouse.api.watching.metrics import Metrics
from longhouse.catalog.validation import CatalogValidator
from longhouse.memory.documents.library import DocumentLibrary
from longhouse.memory.ledger import Ledger
from longhouse.memory.ledger_projection import LedgerProjector
from longhouse.memory.parts import MemoryParts
from longhouse.memory.session_memory import SessionMemory
from longhouse.models.scripted import Say, ScriptedStatus, call, calls
from longhouse.runtime.bus.local import Bus
from longhouse.search.finder import Finder
from longhouse.search.passages import PassageIndex
from longhouse.store.catalog.catalog import Catalog
from longhouse.store.database import Database, open_database
from longhouse.tools.toolbox import Toolbox
from pages import ROOT
from postgres_proxy import lines
from server_helpers import AGENT, House, Serving, lost_after

BELOW_SESSIONS = {
    "": {"get", "delete"},
    "/effects": {"get"},
    "/timeline": {"get"},
    "/export": {"get"},
    "/capsule": {"get"},
    "/steps": {"get"},
    "/messages": {"get"},
    "/events": {"get"},
    "/questions": {"get"},
    "/clarification": {"post"},
    "/memory": {"get"},
    "/steps/{step}/request": {"get"},
    "/steps/{step}/replay": {"post"},
    "/fork": {"post"},
    "/log": {"get"},
    "/artifacts": {"get"},
    "/artifacts/{artifact_id}": {"get"},
    "/images/{digest}": {"get"},
    "/sources": {"get"},
    "/approval": {"post"},
    "/cancel": {"post"},
}
ROUTES = {
    **{
        f"{root}/sessions/{{session_id}}{path}": methods
        for root in ("/v1", "/admin")
        for path, methods in BELOW_SESSIONS.items()
    },
    "/v1/questions": {"get"},
    "/admin/questions": {"get"},
    "/v1/chat/completions": {"post"},
    "/v1/responses": {"post"},
    "/v1/responses/{response_id}": {"get", "delete"},
    "/v1/responses/{response_id}/cancel": {"post"},
    "/v1/responses/{response_id}/input_items": {"get"},
    "/v1/conversations": {"post"},
    "/v1/conversations/{conversation_id}/items": {"get", "post"},
    "/v1/conversations/{conversation_id}/items/{item_id}": {"get", "delete"},
    "/v1/models": {"get"},
    "/v1/models/{model}": {"get"},
    "/v1/sessions": {"get"},
    "/v1/sessions/facets": {"get"},
    "/v1/conversations/{conversation_id}/interactions": {"get", "post", "delete"},
    "/v1/conversations/{conversation_id}/interactions/compress": {"post"},
    "/v1/conversations/{conversation_id}/interactions/memory": {"get"},
    "/v1/conversations/{conversation_id}/interactions/prune": {"post"},
    "/v1/conversations/{conversation_id}": {"get", "post", "delete"},
    "/v1/schedules": {"get", "post"},
    "/v1/schedules/{schedule_id}": {"get", "patch", "delete"},
    "/v1/schedules/{schedule_id}/run": {"post"},
    "/v1/schedules/{schedule_id}/runs": {"get"},
    "/v1/users/{user}": {"delete"},
    "/admin/owners/{owner}": {"delete"},
    "/admin/owners/{owner}/conversations/{conversation_id}": {"delete"},
    "/admin/owners/{owner}/users/{user}": {"delete"},
    "/admin/owners/{owner}/retention": {"put", "delete"},
    "/admin/retention": {"get"},
    "/v1/memory/files": {"get"},
    "/v1/memory/files/{path}": {"get", "put", "delete"},
    "/v1/documents": {"get", "post"},
    "/v1/documents/{reg_id}": {"get", "delete"},
    "/v1/documents/{reg_id}/pages": {"get"},
    "/v1/statistics": {"get"},
    "/v1/usage": {"get"},
    "/v1/webhooks": {"get", "post"},
    "/v1/webhooks/{webhook_id}": {"get", "patch", "delete"},
    "/v1/webhooks/{webhook_id}/rotate": {"post"},
    "/v1/webhooks/{webhook_id}/test": {"post"},
    "/v1/webhooks/{webhook_id}/deliveries": {"get"},
    "/v1/webhooks/{webhook_id}/deliveries/{delivery_id}/retry": {"post"},
    "/a2a/{template}": {"post"},
    "/a2a/{template}/.well-known/agent-card.json": {"get"},
    "/agents": {"get"},
    "/agents/{agent_id}/state": {"get"},
    "/agents/{agent_id}/provide_clarification": {"post"},
    "/agents/{agent_id}/cancel": {"post"},
    "/agents/{agent_id}": {"delete"},
    "/health": {"get"},
    "/ready": {"get"},
    "/metrics": {"get"},
    "/admin/keys": {"get", "post"},
    "/admin/keys/{key_id}": {"delete", "patch"},
    "/admin/keys/{key_id}/rotate": {"post"},
    "/admin/statistics": {"get"},
    "/admin/usage": {"get"},
    "/admin/operations": {"get"},
    "/admin/mcp": {"get"},
    "/admin/sessions": {"get"},
    "/admin/sessions/facets": {"get"},
    "/admin/instances": {"get"},
    "/admin/workers": {"get"},
    "/admin/directory/search": {"post"},
    "/admin/models/probe": {"post"},
    **{
        f"/admin/{kind}{path}": methods
        for kind in ("tools", "templates")
        for path, methods in {
            "": {"get", "post"},
            "/{name}": {"get", "put", "patch", "delete"},
            "/{name}@{version}": {"get"},
            "/{name}/versions": {"get"},
            "/{name}/diff": {"get"},
            "/{name}/activate": {"post"},
            "/{name}/rollback": {"post"},
            "/{name}/deactivate": {"post"},
        }.items()
    },
    "/admin/tools/search": {"post"},
    "/admin/tools/{name}/try": {"post"},
    "/admin/tools/{name}/security_policy": {"get", "put", "patch", "delete"},
}


async def ask_ready(db: Database) -> tuple[int, Any]:
    """What /ready of a gateway without a worker says."""
    status, _, told = await ask_gateway(db, "/ready")
    return status, told


async def ask_gateway(db: Database, path: str) -> tuple[int, dict[bytes, bytes], Any]:
    """Status, headers and body of what a gateway without a worker answers."""
    authenticator = Authenticator(db, admin_key="", limits=KeyLimits())
    catalog = Catalog(db)
    asgi = server.build(
        server.Parts(
            db=db,
            bus=Bus(),
            catalog=catalog,
            metrics=Metrics(lambda: 0, lambda: ()),
            authenticator=authenticator,
            toolbox=Toolbox(()),
            validator=CatalogValidator(catalog),
            finder=Finder(db, None),
        )
    )
    sent: list[Any] = []

    async def receive() -> Any:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Any) -> None:
        sent.append(message)

    host = (b"host", b"localhost")
    scope = {"type": "http", "method": "GET", "path": path, "query_string": b"", "headers": [host], "root_path": ""}
    async with asyncio.timeout(10):
        await asgi({**scope, "http_version": "1.1", "scheme": "http", "server": ("x", 1)}, receive, send)
    return sent[0]["status"], dict(sent[0]["headers"]), msgspec.json.decode(sent[1]["body"])


async def test_health_says_nothing_but_that_we_are_here(serving: Serving) -> None:
    async with serving() as house, house.http.get("/health") as response:
        assert (response.status, await response.json()) == (200, {"status": "healthy", "service": "Longhouse"})


async def test_ready_means_that_a_worker_is_there(serving: Serving, db: Database) -> None:
    status, told = await ask_ready(db)
    assert (status, told["error"]["type"]) == (503, "server_error")
    assert "worker" in told["error"]["message"]
    async with serving() as house:
        async with house.http.get("/ready") as response:
            assert (response.status, await response.json()) == (200, {"status": "ready", "workers": 1})
        assert (await ask_ready(db))[0] == 200, "the worker may be another's"
    assert (await ask_ready(db))[0] == 503, "a worker that leaves says goodbye"


async def test_ready_does_not_wait_for_a_postgres_that_is_away(dsn: str) -> None:
    async with open_database(dsn, pool_size=1) as db, db.pool.acquire():
        status, told = await ask_ready(db)
        assert (status, told["error"]["message"]) == (503, "Postgres cannot be reached.")
    status, told = await ask_ready(db)
    assert (status, told["error"]["type"]) == (503, "server_error")


async def test_a_request_that_postgres_is_needed_for_may_come_again_when_it_is_back(dsn: str) -> None:
    async with open_database(dsn) as db:
        pass
    with structlog.testing.capture_logs() as logs:
        status, headers, told = await ask_gateway(db, "/v1/models")
    assert (status, told["error"]["message"]) == (503, "Postgres cannot be reached.")
    assert (told["error"]["type"], told["error"]["code"]) == ("server_error", "unavailable")
    assert b"x-should-retry" not in headers, "whoever retries by itself may do so"
    assert headers[b"retry-after"] == b"2"
    assert [(one["log_level"], one["event"]) for one in logs] == [
        ("warning", "database_unreachable"),
        ("info", "request"),
    ]


async def metrics(house: House) -> str:
    async with house.http.get("/metrics") as response:
        assert response.headers["content-type"].startswith("text/plain")
        return await response.text()


async def test_requests_are_counted_by_pattern_and_never_by_path(serving: Serving) -> None:
    async with serving(ask) as house:
        session_id = (await house.say("hi"))["model"]
        for _ in range(2):
            await house.session(session_id)
        paths = [f"/v1/sessions/x{n}" for n in range(20)] + [f"/nowhere/{n}" for n in range(20)] + ["/v1/models/zzz"]
        for path in paths:
            async with house.http.get(path) as response:
                assert response.status == 404
        async with house.http.delete(f"/v1/sessions/{session_id}/messages") as response:
            assert response.status == 405
        async with house.http.request("PROPFIND", "/nowhere") as response:
            assert response.status == 404
        page = await metrics(house)
        counted = {line.rpartition(" ")[0]: line.rpartition(" ")[2] for line in page.splitlines() if line[0] != "#"}

        def requests(method: str, route: str, status: int) -> str | None:
            labels = f'method="{method}",route="{route}",status="{status}"'
            return counted.get(f"longhouse_requests_total{{{labels}}}")

        assert requests("POST", "/v1/chat/completions", 200) == "1.0"
        assert requests("GET", "/v1/sessions/{session_id}", 200) == "2.0"
        assert requests("GET", "/v1/sessions/{session_id}", 404) == "20.0"
        assert requests("GET", "unknown", 404) == "20.0"
        assert requests("DELETE", "/v1/sessions/{session_id}/messages", 405) == "1.0"
        assert requests("GET", "/v1/models/{model:path}", 404) == "1.0"
        assert session_id not in page
        assert not any(word in page for word in ("nowhere", "x19", "zzz"))
        assert counted["longhouse_sessions_busy"] == "0.0"
        assert counted['longhouse_instances{status="IDLE"}'] == "1.0"
        assert 'longhouse_request_first_byte_seconds_count{route="/v1/chat/completions"}' in counted
        size = len(page)
        for n in range(50):
            async with house.http.get(f"/somewhere/else/{n}"):
                pass
        assert len(await metrics(house)) < size + 3_000, "new paths make no new series"


async def test_those_who_watch_see_how_memory_is_doing(
    serving: Serving, db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Nothing is embedded in the background while this is told.
    monkeypatch.setattr("longhouse.search.passages.FIRST_AFTER", 3_600.0)
    async with serving(ask, conversation_memory_enabled=False) as house:
        for _ in range(2):
            await house.say("hi")
        assert "longhouse_ledger_sessions_behind" not in await metrics(house), "it is switched off"
    async with serving() as house, asyncio.timeout(20):
        while "longhouse_ledger_sessions_behind 2.0" not in (page := await metrics(house)):
            await asyncio.sleep(0.02)
        assert 'longhouse_documents{shared="false"} 0.0' in page
        async with house.http.post("/v1/documents?filename=rules.md", data=ENGLISH.encode()) as response:
            assert response.status == 201
        async with house.http.get("/v1/documents") as response:
            assert len((await response.json())["data"]) == 2
        await db.run("UPDATE passages SET model = NULL, vector = NULL WHERE id = (SELECT min(id) FROM passages)")
        page = await metrics(house)
        shown = [line for line in page.splitlines() if line.startswith(("longhouse_documents", "longhouse_passages"))]
        assert shown == [
            'longhouse_documents{shared="false"} 1.0',
            'longhouse_documents{shared="true"} 1.0',
            "longhouse_passages_without_vectors 1.0",
        ]
    table = (ROOT / "docs" / "operations.md").read_text().partition("## Log records")[0]
    documented = set(re.findall(r"`((?:longhouse|process)_\w+?)(?:_total)?(?:\{[^`]*)?`", table))
    assert documented == {
        one.removesuffix("_total") for one in re.findall(r"# TYPE (\w+) (?:counter|gauge|histogram)", page)
    } - {
        "longhouse_requests_created",
        "longhouse_request_first_byte_seconds_created",
    }


async def test_what_agents_do_is_counted_by_template_and_owner(serving: Serving) -> None:
    hostile = 'eve"} 1\n# TYPE x\\ Ева 夏娃'
    tired = Say(fault=ScriptedStatus(503, retry_after=0.01))
    clock = calls(call("clocktool", timezone="UTC"), call("clocktool", timezone="nowhere"))
    done = call("finalanswertool", answer="Done.")
    script = [tired, clock, done, done, done, call("clarificationtool", questions=["Which?"])]
    with structlog.testing.capture_logs() as logs:
        async with keyed(serving, script, metrics_owners=2) as house:
            people = [await client_of(house, owner) for owner in ("ann", "eve", "cem", "dia")]
            # Today such a name is refused; who knows what is in an old database.
            await house.db.run("UPDATE api_keys SET owner = :owner WHERE id = :id", owner=hostile, id=people[1].id)
            sessions = [(await one.say("hi"))["model"] for one in people]
            async with admin_of(house).ask("GET", "/metrics") as response:
                page = await response.text()
            assert await people[3].status("POST", f"/v1/sessions/{sessions[3]}/cancel") == 202
            async with admin_of(house).ask("GET", "/health") as response:
                assert response.status == 200
            assert await people[0].status("GET", "/metrics") == 403
    counted = dict(line.rpartition(" ")[::2] for line in page.splitlines() if not line.startswith("#"))

    def of(name: str, owner: str = "ann", **more: str) -> float | None:
        labels = sorted({"template": AGENT, "owner": owner, **more}.items())
        shown = ",".join(f'{key}="{value}"' for key, value in labels)
        found = counted.get(f"longhouse_{name}{{{shown}}}")
        return None if found is None else float(found)

    assert (of("model_call_seconds_count"), of("model_errors_total"), of("model_retries_total")) == (3, 1, 1)
    assert of("model_call_seconds_bucket", le="+Inf") == 3
    assert (of("tool_call_seconds_count"), of("tool_errors_total")) == (3, 1), "the answer is given by a tool too"
    assert (of("tokens_total", kind="input") or 0) > (of("tokens_total", kind="output") or 0) > 0
    assert of("turns_total", state="COMPLETED") == 1
    escaped = hostile.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    assert of("turns_total", escaped, state="COMPLETED") == 1
    assert of("turns_total", "other", state="COMPLETED") == 1, "cem is one too many"
    assert of("model_call_seconds_count", "other") == 2
    assert "cem" not in page
    assert counted['longhouse_tool_runs_total{outcome="failed",tool="clocktool"}'] == "1.0"
    assert counted['longhouse_sessions{state="WAITING_FOR_CLARIFICATION"}'] == "1.0"
    assert (counted["longhouse_open_questions"], counted["longhouse_oldest_runnable_seconds"]) == ("1.0", "0.0")
    assert float(counted["process_resident_memory_bytes"]) > 1e6
    ends = [one for one in logs if one["event"] == "turn_finished"]
    assert [(one["session"], one["owner"], one["state"]) for one in ends] == [
        (sessions[0], "ann", "COMPLETED"),
        (sessions[1], hostile, "COMPLETED"),
        (sessions[2], "cem", "COMPLETED"),
        (sessions[3], "dia", "CANCELLED"),
    ]
    assert (ends[0]["agent"], ends[0]["steps"], ends[0]["log_level"]) == (AGENT, 2, "info")
    assert ends[0]["tokens"] > 0
    assert ends[0]["seconds"] > 0
    told = [(one["path"], one["status"]) for one in logs if one["event"] == "request" and one["log_level"] == "info"]
    assert [one for one in told if one[0] in ("/health", "/ready", "/metrics")] == [("/metrics", 403)]
    shown = set(re.findall(r"\b(?:longhouse|process)_\w+", (ROOT / "deploy/grafana/longhouse.json").read_text()))
    assert len(shown) > 30
    names = {re.split(r"[{ ]", line)[0] for line in page.splitlines() if not line.startswith("#")}
    declared = {
        f"{name}{end}" for name in re.findall(r"# TYPE (\w+) (?:counter|gauge)", page) for end in ("", "_total")
    }
    assert not shown - names - declared, "the dashboard asks for what is there"


async def test_metrics_come_without_what_postgres_counts_while_it_is_away(
    dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_database(dsn, pool_size=1) as db:
        index = PassageIndex(db, None)
        ledger = Ledger(db, LedgerProjector(db, index))
        numbers = Metrics(
            lambda: 0, lambda: (), memory=MemoryParts(DocumentLibrary(db, index), ledger, SessionMemory())
        )
        assert b"longhouse_documents{" in await numbers.page()
        monkeypatch.setattr("longhouse.api.watching.metrics.COUNTED_WITHIN", 0.05)
        async with db.pool.acquire():
            page = await numbers.page()
    assert b"longhouse_documents{" not in page
    assert b"longhouse_sessions_busy 0.0" in page


async def test_those_who_watch_see_how_the_fleet_is_doing(serving: Serving, db: Database) -> None:
    def shown(page: str) -> dict[str, float]:
        starts = ("longhouse_worker", "longhouse_sessions_without", "longhouse_takeovers_t", "longhouse_database_r")
        found = [line.partition(" ")[::2] for line in page.splitlines() if line.startswith(starts)]
        return {name.removeprefix("longhouse_"): float(value) for name, value in found}

    lost = await lost_after(db, AGENT, "Are you there?")
    none = {"workers": 0, "worker_slots": 0, "sessions_without_worker": 1, "takeovers_total": 0}
    there = {"database_reachable": 1, "database_retries_total": 0}
    async with serving(works=False) as gateway:
        assert shown(await metrics(gateway)) == {**none, **there}
        async with serving(lambda body: call("finalanswertool", answer="Here.")) as house:
            await house.until(lost, "COMPLETED")
            some = {"workers": 1, "worker_slots": 8, "sessions_without_worker": 0}
            assert shown(await metrics(house)) == {**some, **there, "takeovers_total": 1}
            assert shown(await metrics(gateway)) == {**some, **there, "takeovers_total": 0}


async def test_metrics_are_told_while_postgres_is_away(dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The key of the settings is known without it, and no scrape is counted for the limits of its key."""
    monkeypatch.setattr("longhouse.api.watching.metrics.COUNTED_WITHIN", 0.05)
    monkeypatch.setattr("longhouse.api.auth.FOUND_WITHIN", 0.05)
    monkeypatch.setattr("longhouse.api.watching.monitoring.READY_WITHIN", 0.05)
    async with lines(dsn) as (address, between), keyed(Serving(address), rate_limit=2) as house:
        stored = await client_of(house, "ann", "admin")
        between.freeze()
        try:
            for _ in range(3):
                async with asyncio.timeout(10), admin_of(house).ask("GET", "/metrics") as response:
                    assert response.status == 200
                    page = await response.text()
                    assert "longhouse_sessions_busy 0.0" in page
                    assert "longhouse_database_reachable 0.0" in page
                    assert "longhouse_workers" not in page
                    assert "x-ratelimit-limit-requests" not in response.headers
            for client, path in ((stored, "/metrics"), (admin_of(house), "/ready")):
                assert await client.status("GET", path) == 503
        finally:
            between.thaw()
        monkeypatch.setattr("longhouse.api.auth.FOUND_WITHIN", 30.0)
        for _ in range(3):
            assert await stored.status("GET", "/metrics") == 200


async def test_calls_that_are_refused_are_counted_by_the_reason(serving: Serving) -> None:
    clock = call("clocktool", timezone="UTC")
    refused = calls(call("deletefiletool", path="x"), call("no_such_tool"), call("clocktool", timezone=7), clock)
    async with serving([refused, call("finalanswertool", answer="Done.")]) as house:
        assert "longhouse_calls_refused_total{" not in await metrics(house)
        answer = await house.say("hi")
        lines = [
            line for line in (await metrics(house)).splitlines() if line.startswith("longhouse_calls_refused_total")
        ]
        assert set(lines) == {
            'longhouse_calls_refused_total{code="not_offered"} 2.0',
            'longhouse_calls_refused_total{code="bad_arguments"} 1.0',
        }
        assert "no_such_tool" in repr(await house.journal(answer["model"])), "and they are in the journal"


async def test_the_openapi_document_has_every_route_and_every_body(serving: Serving) -> None:
    async with serving() as house:
        async with house.http.get("/openapi.json") as response:
            document = await response.json()
        async with house.http.get("/docs") as response:
            assert response.status == 200
            assert response.headers["content-type"].startswith("text/html")
            assert "/docs/start.js" in await response.text()
        async with house.http.get("/docs/start.js") as response:
            assert "/openapi.json" in await response.text()
    paths = document["paths"]
    assert {path: set(operations) for path, operations in paths.items()} == ROUTES
    references = set(re.findall(r'"\$ref": "([^"]*)"', json.dumps(document)))
    assert references, "bodies are described once, and referred to"
    assert all(resolve.target(document, one) for one in references), "every reference leads somewhere"
    assert all(operation.get("description") for path in paths.values() for operation in path.values())
    bodies = {path: _body(document, operations["post"]) for path, operations in paths.items() if "post" in operations}
    assert bodies["/v1/chat/completions"]["required"] == ["model", "messages"]
    message = resolve.target(document, bodies["/v1/chat/completions"]["properties"]["messages"]["items"]["$ref"])
    assert {"role", "content", "tool_calls"} <= set(message["properties"])
    assert set(bodies["/v1/sessions/{session_id}/clarification"]["properties"]) == {"answer", "call_id", "user"}
    approval = bodies["/v1/sessions/{session_id}/approval"]["properties"]
    assert approval["decision"]["enum"] == ["approve", "deny", "happened", "did_not_happen", "give_up"]
    assert set(bodies["/agents/{agent_id}/provide_clarification"]["properties"]) == {
        "clarifications",
        "messages",
        "user",
    }
    assert bodies["/v1/sessions/{session_id}/cancel"] is None


def _body(document: Any, operation: Any) -> Any:
    if "application/json" not in operation.get("requestBody", {}).get("content", {}):
        return None
    described = operation["requestBody"]["content"]["application/json"]
    assert described["example"]
    schema = described["schema"]
    return resolve.target(document, schema["$ref"]) if "$ref" in schema else schema


async def test_every_answer_carries_an_id_of_its_own(serving: Serving) -> None:
    async with serving(ask) as house:
        seen = []
        for method, path in (("GET", "/health"), ("GET", "/metrics"), ("GET", "/nowhere"), ("POST", "/health")):
            async with house.http.request(method, path, headers={"x-request-id": "mine"}) as response:
                seen.append(response.headers["x-request-id"])
                assert response.headers["openai-version"] == "2020-10-01"
                assert response.headers["openai-processing-ms"].isdecimal()
        async with house.http.post("/v1/chat/completions", json=chat(stream=True)) as response:
            seen.append(response.headers["x-request-id"])
            await response.read()
        assert len(set(seen)) == 5
        assert all(one.startswith("req_") for one in seen)


async def test_an_unknown_route_or_method_is_refused_in_the_envelope(serving: Serving) -> None:
    async with serving() as house:
        for path in ("/v1", "/v1/chat", "/admin", "/v1/response", "/redoc", "/v1/sessions/"):
            async with house.http.get(path) as response:
                found = await refusal(response)
                assert (found.status, found.error["code"]) == (404, "not_found"), path
        for method, path in (("DELETE", "/v1/models"), ("GET", "/v1/chat/completions"), ("PUT", "/health")):
            async with house.http.request(method, path) as response:
                found = await refusal(response)
                assert (found.status, found.error["code"]) == (405, "method_not_allowed"), path
                assert response.headers["allow"]
