"""Traces of turns at a real collector: one tree, over agents, processes and deaths, and no word of anybody in it."""

import asyncio
from datetime import timedelta
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from structlog.testing import capture_logs
from test_remote_tools import CALLER, described
from yarl import URL

from collector import attributes, collecting, tree
from delegating_server import answer, appears, ask, cast, cast_house, results
from longhouse.agents.strategies.protocol import Body
from longhouse.agents.template import Template, ToolPolicy
from longhouse.integrations.otlp import TraceProjector
from longhouse.models.scripted import Say, ScriptedStatus, call, calls, say
from longhouse.models.scripted_server import serve as serve_model
from longhouse.store.database import Database
from server_helpers import Serving, chat, user

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
COMES_IN = {"traceparent": f"00-{TRACE}-{SPAN}-01"}


async def serve_weather(app: web.Application) -> tuple[web.AppRunner, str]:
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    return runner, f"127.0.0.1:{runner.addresses[0][1]}"


async def test_a_turn_is_a_tree_that_reaches_from_the_client_to_the_model_and_the_tools(serving: Serving) -> None:
    seen: list[str] = []

    async def weather(request: web.Request) -> web.Response:
        seen.append(request.headers["traceparent"])
        return web.json_response({"rain": "Зонт-canary"})

    app = web.Application()
    app.router.add_post("/weather", weather)
    runner, place = await serve_weather(app)
    invented = call("secret_canary", of="canary-arguments")
    script = [
        calls(say("I think canary-thought."), call("weather", city="Город-canary"), invented),
        call("finalanswertool", answer="canary-answer 雨"),
    ]
    settings: dict[str, Any] = {
        "allow_egress": place,
        "otlp_headers": "x-key=canary%20key",
        "service_name": "our-house",
    }
    try:
        async with collecting() as collector:
            async with serving(script, templates=[], otlp_endpoint=collector.url, **settings) as house:
                async with house.http.post("/admin/tools", json=described(place)) as response:
                    assert response.status == 201
                await house.app.catalog.templates.publish([CALLER], by="test")
                said = await chat(house, [user("canary-task 天气")], model="caller", headers=COMES_IN)
                session_id = said["model"]
                assert house.model
                asked = [one["traceparent"] for one in house.model.headers]
            # The process has ended: its last spans were sent before it did.
            spans = collector.spans
            assert tree(spans, SPAN) == [
                [
                    "invoke_agent caller",
                    ["step 1", ["chat gpt-4o-mini"], ["execute_tool unknown"], ["execute_tool weather"]],
                    ["step 2", ["chat gpt-4o-mini"], ["execute_tool finalanswertool"]],
                ]
            ]
            assert {span["traceId"] for span in spans.values()} == {TRACE}
            ids = {name: [one["spanId"] for one in spans.values() if one["name"] == name] for name in names_of(spans)}
            assert asked == [f"00-{TRACE}-{one}-01" for one in ids["chat gpt-4o-mini"]]
            assert seen == [f"00-{TRACE}-{one}-01" for one in ids["execute_tool weather"]]
            [turn] = [attributes(spans[one]) for one in ids["invoke_agent caller"]]
            assert turn["gen_ai.operation.name"] == "invoke_agent"
            assert (turn["longhouse.session"], turn["longhouse.owner"]) == (session_id, "local")
            assert (turn["longhouse.state"], turn["longhouse.steps"]) == ("COMPLETED", 2)
            model = [attributes(spans[one]) for one in ids["chat gpt-4o-mini"]]
            assert [one["gen_ai.response.finish_reasons"] for one in model] == [["tool_calls"], ["tool_calls"]]
            assert turn["gen_ai.usage.input_tokens"] == sum(one["gen_ai.usage.input_tokens"] for one in model) > 0
            [failed] = [spans[one] for one in ids["execute_tool unknown"]]
            assert (failed["status"]["code"], attributes(failed)["error.type"]) == (2, "not_offered")
            assert collector.resource["service.name"] == "our-house"
            assert collector.headers[0]["x-key"] == "canary key"
            sent = b"".join(collector.raw).decode()
            assert "canary" not in sent
            assert "sk-test" not in sent
    finally:
        await runner.cleanup()


def names_of(spans: dict[str, Any]) -> set[str]:
    return {span["name"] for span in spans.values()}


async def test_a_collector_that_is_away_or_refuses_holds_up_nobody(
    serving: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("longhouse.integrations.otlp.LAST_WITHIN", 0.1)
    monkeypatch.setattr("longhouse.integrations.otlp.TraceProjector.linger", 0.0)
    refused = Say(fault=ScriptedStatus(400, message="no"))
    async with collecting() as collector:
        away = collector.url
    async with serving([call("finalanswertool", answer="1")], otlp_endpoint=away) as house:
        first = (await house.say("One"))["model"]
    async with serving([call("finalanswertool", answer="x")] * 3) as house:
        not_sampled = {"traceparent": f"00-{TRACE}-{SPAN}-00"}
        quiet = (await chat(house, [user("Two")], headers=not_sampled))["model"]
        assert house.model
        assert "traceparent" not in house.model.headers[0], "who does not trace passes nothing on"
        await chat(house, [user("Three")], headers={"traceparent": f"00-{'0' * 32}-{SPAN}-01"})
    async with collecting() as collector:
        collector.answers = [503, 429]
        script = [refused, call("finalanswertool", answer="4"), call("finalanswertool", answer="5")]
        async with serving(script, otlp_endpoint=f"{collector.url}/v1/traces") as house:
            await house.say("Four")
            spans = await collector.until("invoke_agent tool_calling_agent", "chat")
            async with asyncio.timeout(20):
                while len(roots_of(spans := collector.spans)) < 3:
                    await asyncio.sleep(0.02)
            told = {attributes(span)["longhouse.session"]: span for span in roots_of(spans)}
            assert first in told, "what was not sent in time is sent when the collector is there"
            assert quiet not in told
            trace = (await house.session(first))["trace_id"]
            assert told[first]["traceId"] == trace, "without a client's context, it is the turn's own"
            [error] = [span for span in spans.values() if span["name"] == "chat"]
            assert attributes(error)["error.type"] == "provider_error"
            assert all(span.get("parentSpanId", "") in {"", *spans} for span in spans.values())
            collector.answers = [400]
            await house.say("Five")
            async with asyncio.timeout(20):
                while 'longhouse_trace_spans_total{outcome="refused"} 0.0' in await metrics(house):
                    await asyncio.sleep(0.02)
            assert "traceparent" in house.model.headers[-1] if house.model else False


async def test_turns_that_ended_too_long_before_the_collector_is_back_are_told_and_not_sent(
    serving: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(TraceProjector, "recent", timedelta(seconds=2))
    monkeypatch.setattr(TraceProjector, "linger", 0.0)
    async with collecting() as collector:
        port = URL(collector.url).port or 0
    finish = call("finalanswertool", answer="x")
    with capture_logs() as logs:
        async with serving([finish] * 3, otlp_endpoint=collector.url) as house:
            missed = [(await house.say(text))["model"] for text in ("One", "Two")]
            while not [one for one in logs if one["event"] == "service_unreachable"]:
                await asyncio.sleep(0.02)
            ended = "SELECT count(*) FROM sessions WHERE updated_at < now() - interval '2 seconds'"
            while await house.db.value(ended) < 2:
                await asyncio.sleep(0.1)
            async with collecting(port) as collector:
                await house.say("Three")
                await collector.until("invoke_agent tool_calling_agent")
                async with asyncio.timeout(20):
                    while "longhouse_trace_turns_missed_total 2.0" not in await metrics(house):
                        await asyncio.sleep(0.02)
                sent = {attributes(span)["longhouse.session"] for span in roots_of(collector.spans)}
    assert not sent & set(missed)
    [told] = [one for one in logs if one["event"] == "traces_missed"]
    assert (told["turns"], told["log_level"]) == (2, "warning")


async def test_the_call_for_a_title_is_a_span_below_the_turn_that_it_followed(serving: Serving) -> None:
    titled = Template(name="titled", title="model", tool_policy=ToolPolicy(allowlist=("finalanswertool",)))

    def script(body: Body) -> Say:
        return call("finalanswertool", answer="x") if body.tools else say("Canary weather")

    async with collecting() as collector:
        async with serving(script, templates=[titled], otlp_endpoint=collector.url) as house:
            await chat(house, [user("Hello")], model="titled", headers=COMES_IN)
            spans = await collector.until("invoke_agent titled", "chat")
            assert house.model
            asked = house.model.headers[-1]["traceparent"]
        assert "Canary" not in b"".join(collector.raw).decode()
    [title] = [span for span in spans.values() if span["name"] == "chat"]
    assert (attributes(title)["longhouse.purpose"], title["traceId"]) == ("title", TRACE)
    assert asked == f"00-{TRACE}-{title['spanId']}-01"
    [whole] = tree(spans, SPAN)
    assert whole == [
        "invoke_agent titled",
        ["step 1", ["chat gpt-4o-mini"], ["execute_tool finalanswertool"]],
        ["chat"],
    ]


def roots_of(spans: dict[str, Any]) -> list[Any]:
    return [span for span in spans.values() if span["name"].startswith("invoke_agent")]


async def metrics(house: Any) -> str:
    async with house.http.get("/metrics") as response:
        return str(await response.text())


async def test_agents_in_two_processes_are_one_tree_even_if_one_of_them_is_killed(dsn: str, db: Database) -> None:
    asked_ann: list[Body] = []

    def ann(body: Body) -> Say:
        asked_ann.append(body)
        told = answer("ann is done")
        # The first time it takes for ever; whoever asks again is answered at once.
        return Say(calls=told.calls, chunk=1, delay=1.0) if len(asked_ann) == 1 else told

    def master(body: Body) -> Say:
        return answer("both are done") if results(body) else calls(ask("ann", "canary"), ask("ben", "canary"))

    roles = cast(master=master, ann=ann, ben=lambda body: answer("ben is done"))
    async with collecting() as collector, serve_model(roles) as model:
        settings = {"database_url": dsn, "llm_base_url": model.url, "otlp_endpoint": collector.url}
        async with cast_house(**settings) as first:
            saying = asyncio.create_task(first.say("Go", model="master"))
            await collector.until("invoke_agent ben")
            root = str(await appears(db, "SELECT id FROM sessions WHERE side = 'root'"))
            assert asked_ann
            first.kill()
            await first.ended()
            await asyncio.gather(saying, return_exceptions=True)
            assert isinstance(saying.exception(), aiohttp.ClientError)
        assert len(collector.spans) == 4, "that of ben: it belongs to a call whose span is sent by another process"
        async with cast_house(**settings) as second:
            await second.until(root, "COMPLETED", within=30)
            spans = await collector.until("invoke_agent master", "invoke_agent ann")
    [whole] = tree(spans)
    model_call = "chat gpt-4o-mini"
    steps = {
        name: [f"invoke_agent {name}", ["step 1", [model_call], ["execute_tool finalanswertool"]]]
        for name in ("ann", "ben")
    }
    called = [[f"execute_tool agent.{name}", steps[name]] for name in ("ann", "ben")]
    assert whole == [
        "invoke_agent master",
        ["step 1", [model_call], *called],
        ["step 2", [model_call], ["execute_tool finalanswertool"]],
    ]
    assert len({span["traceId"] for span in spans.values()}) == 1
    [of_ann] = [span for span in spans.values() if span["name"] == "invoke_agent ann"]
    assert [one["name"] for one in of_ann["events"]] == ["longhouse.takeover"]
    workers = {attributes(span)["longhouse.worker"] for span in spans.values() if span["name"] == model_call}
    assert len(workers) == 2, "each process has done its part"
    assert len({one["traceparent"] for one in model.headers}) == 4 < len(model.headers), "asked again, in the same span"
