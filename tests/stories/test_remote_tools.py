"""A remote tool in a session: whatever its endpoint does, the agent reads an outcome and the session goes on."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web

from longhouse.agents.template import Template, ToolPolicy
from longhouse.journal.events import Fault, Output
from longhouse.models.scripted import call
from support import Serving, content

CALLER = Template(name="caller", tool_policy=ToolPolicy(allowlist=("weather", "finalanswertool")))


@asynccontextmanager
async def endpoint() -> AsyncIterator[tuple[str, list[dict[str, Any]]]]:
    """An endpoint that does what the city asks for; with what it was sent."""
    seen: list[dict[str, Any]] = []

    async def answer(request: web.Request) -> web.StreamResponse:
        city = (await request.json())["city"]
        seen.append({"city": city, "key": request.headers["Idempotency-Key"]})
        match city:
            case "slow":
                await asyncio.sleep(30)
            case "huge":
                return web.json_response("x" * 10_000_000)
            case "moved":
                return web.Response(status=302, headers={"Location": "http://169.254.169.254/"})
            case "html":
                return web.Response(text="<html>", content_type="text/html")
            case "broken":
                return web.Response(text="{", content_type="application/json")
        return web.json_response({"city": city, "rain": True})

    app = web.Application()
    app.router.add_post("/weather", answer)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield f"127.0.0.1:{runner.addresses[0][1]}", seen
    finally:
        await runner.cleanup()


def described(place: str) -> dict[str, Any]:
    schema = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
    return {
        "name": "weather",
        "description_short": "The weather in a city.",
        "input_schema": schema,
        "runtime_binding": {"remote_endpoint": f"http://{place}/weather"},
        "effect": "read",
        "timeout": 1.0,
    }


async def test_whatever_an_endpoint_does_the_session_goes_on(serving: Serving) -> None:
    cities = ("Oslo", "slow", "huge", "moved", "html", "broken", "gone")
    asked = [call("weather", city=city) for city in cities]
    script = [*asked, call("weather", town=1), call("finalanswertool", answer="ok")]
    async with endpoint() as (place, seen), serving(script, templates=[], allow_egress=place) as house:
        async with house.http.post("/admin/tools", json=described(place)) as response:
            assert response.status == 201, await response.text()
        await house.app.catalog.templates.publish([CALLER], by="test")
        answered = await house.say("Weather?", model="caller")
        assert content(answered) == "ok"
        session = await house.folded(answered["model"])
        uses = [use for step in reversed(session.steps) for use in step.uses if use.tool == "weather"]
        outcomes = [use.outcome for use in uses]
        assert outcomes[0] == Output(content='{"city":"Oslo","rain":true}')
        assert outcomes[6] == Output(content='{"city":"gone","rain":true}')
        faults = [one.code for one in (*outcomes[1:6], outcomes[7]) if isinstance(one, Fault)]
        assert faults == ["timeout", "tool_failed", "tool_failed", "tool_failed", "tool_failed", "bad_arguments"]
        assert seen[0] == {"city": "Oslo", "key": f"{answered['model']}:1-action-0"}
        assert len(seen) == len(cities), "arguments that do not fit are never sent"


async def test_an_endpoint_that_is_gone_is_a_fault(serving: Serving) -> None:
    async with endpoint() as (place, _):
        pass
    script = [call("weather", city="Oslo"), call("finalanswertool", answer="ok")]
    async with serving(script, templates=[], allow_egress=place) as house:
        async with house.http.post("/admin/tools", json=described(place)) as response:
            assert response.status == 201
        await house.app.catalog.templates.publish([CALLER], by="test")
        answered = await house.say("Weather?", model="caller")
        uses = [use for step in (await house.folded(answered["model"])).steps for use in step.uses]
        [outcome] = [use.outcome for use in uses if use.tool == "weather"]
        assert isinstance(outcome, Fault)
        assert outcome.code == "tool_failed"


async def test_an_address_that_is_not_allowed_cannot_be_published(serving: Serving) -> None:
    async with serving([], templates=[]) as house:
        async with house.http.post("/admin/tools", json=described("127.0.0.1:5432")) as response:
            error = (await response.json())["error"]
        assert response.status == 400
        assert error["param"].startswith("runtime_binding")
