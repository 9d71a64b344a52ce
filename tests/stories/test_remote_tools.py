"""A remote tool in a session: whatever its endpoint does, the agent reads an outcome and the session goes on."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Literal

import pytest
from aiohttp import web

from longhouse.agents.strategies.protocol import Body
from longhouse.agents.template import ExecutionPolicy, Template, ToolPolicy
from longhouse.journal.events import Fault, Output
from longhouse.journal.messages import ToolResult
from longhouse.models.scripted import Say, call
from server_helpers import House, Serving, content

CALLER = Template(name="caller", tool_policy=ToolPolicy(allowlist=("weather", "impatient", "finalanswertool")))


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
        "timeout": 30.0,
    }


async def test_whatever_an_endpoint_does_the_session_goes_on(serving: Serving) -> None:
    cities = ("Oslo", "slow", "huge", "moved", "html", "broken", "gone")
    asked = [call("impatient" if city == "slow" else "weather", city=city) for city in cities]
    script = [*asked, call("weather", town=1), call("finalanswertool", answer="ok")]
    async with endpoint() as (place, seen), serving(script, templates=[], allow_egress=place) as house:
        patient = described(place)
        impatient = {**patient, "name": "impatient", "timeout": 1.0}
        async with house.http.post("/admin/tools", json=[patient, impatient]) as response:
            assert response.status == 201, await response.text()
        await house.app.catalog.templates.publish([CALLER], by="test")
        answered = await house.say("Weather?", model="caller")
        assert content(answered) == "ok"
        session = await house.folded(answered["model"])
        uses = [use for step in reversed(session.steps) for use in step.uses if use.tool != "finalanswertool"]
        outcomes = [use.outcome for use in uses]
        assert outcomes[0] == Output(content='{"city":"Oslo","rain":true}')
        assert outcomes[6] == Output(content='{"city":"gone","rain":true}')
        faults = [one.code for one in (*outcomes[1:6], outcomes[7]) if isinstance(one, Fault)]
        assert faults == ["timeout", "tool_failed", "tool_failed", "tool_failed", "tool_failed", "bad_arguments"]
        assert seen[0] == {"city": "Oslo", "key": f"{answered['model']}:1-action-0"}
        assert len(seen) == len(cities), "arguments that do not fit are never sent"


async def test_an_endpoint_whose_results_are_remembered_is_asked_once(serving: Serving) -> None:
    script = [*[call("weather", city="Oslo")] * 2, call("weather", city="broken"), call("finalanswertool", answer="ok")]
    async with endpoint() as (place, seen), serving(script, templates=[], allow_egress=place) as house:
        async with house.http.post("/admin/tools", json=described(place) | {"remembers": "page"}) as response:
            assert response.status == 201, await response.text()
        await house.app.catalog.templates.publish([CALLER], by="test")
        answered = await house.say("Weather?", model="caller")
        assert [one["city"] for one in seen] == ["Oslo", "broken"]
        assert len((await house.folded(answered["model"])).memory.reads) == 1


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


class Bank:
    """Pays as often as it is asked, under whatever key, and hangs up instead of saying so the first time."""

    def __init__(self) -> None:
        self.paid: list[str] = []

    async def pay(self, request: web.Request) -> web.StreamResponse:
        self.paid.append(request.headers["Idempotency-Key"])
        if len(self.paid) == 1:
            assert request.transport
            request.transport.abort()
        return web.json_response(f"paid {len(self.paid)}")


@asynccontextmanager
async def paying(serving: Serving, *, unknown: Literal["ask", "tell"] = "ask") -> AsyncIterator[tuple[House, Bank]]:
    """An agent that pays, and again if it is told that nothing was reached."""

    def pays(body: Body) -> Say:
        results = [message.content for message in body.messages if isinstance(message, ToolResult)]
        if results and "could not be reached" in results[-1]:
            return call("pay")
        return call("finalanswertool", answer=results[-1]) if results else call("pay")

    bank, app = Bank(), web.Application()
    app.router.add_post("/pay", bank.pay)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        place = f"127.0.0.1:{runner.addresses[0][1]}"
        tool = {**described(place), "name": "pay", "effect": "once", "input_schema": {"type": "object"}}
        tool["runtime_binding"] = {"remote_endpoint": f"http://{place}/pay"}
        payer = Template(
            name="payer",
            tool_policy=ToolPolicy(allowlist=("pay", "finalanswertool")),
            execution_policy=ExecutionPolicy(unknown=unknown),
        )
        async with serving(pays, templates=[], allow_egress=place) as house:
            async with house.http.post("/admin/tools", json=tool) as response:
                assert response.status == 201, await response.text()
            await house.app.catalog.templates.publish([payer], by="test")
            yield house, bank
    finally:
        await runner.cleanup()


@pytest.mark.parametrize(
    ("decision", "result", "paid"),
    [("happened", "paid, says the bank", 1), ("did_not_happen", "paid 2", 2), ("give_up", "given up", 1)],
)
async def test_a_payment_whose_answer_was_lost_is_a_question_and_is_not_made_twice(
    serving: Serving, decision: str, result: str, paid: int
) -> None:
    async with paying(serving) as (house, bank):
        asked = await house.say("Pay.", model="payer")
        session_id = asked["model"]
        assert content(asked).startswith(
            "It is not known whether pay (1-action-0) took effect: `pay was asked, and its"
        )
        assert (asked["x_agent"]["status"], asked["x_agent"]["waiting_for"]) == ("waiting", "approval")
        shown = await house.session(session_id)
        [question] = shown["questions"]
        assert (shown["state"], question["kind"], question["tool"]) == (
            "WAITING_FOR_APPROVAL", "unknown_outcome", "pay",
        )  # fmt: skip
        assert question["text"].startswith("Did pay happen? It is not known: pay was asked, and its answer was lost")
        assert "could not be reached" not in str(shown)
        # That nobody knows is no decision of a person; and the others are made once.
        for said, status in (("unknown", 400), (decision, 202), (decision, 409)):
            verdict = {"call_id": "1-action-0", "decision": said, "result": "paid, says the bank"}
            async with house.http.post(f"/v1/sessions/{session_id}/approval", json=verdict) as response:
                assert response.status == status
        assert result in (await house.until(session_id, "COMPLETED"))["result"]
        assert bank.paid == [f"{session_id}:1-action-0"] * paid


async def test_an_agent_that_is_told_that_nobody_knows_can_say_so(serving: Serving) -> None:
    async with paying(serving, unknown="tell") as (house, bank):
        answered = await house.say("Pay.", model="payer")
        assert "it is not known whether pay took effect: pay was asked, and its answer was lost" in content(answered)
        assert "do not repeat it without checking" in content(answered)
        assert (await house.session(answered["model"]))["questions"] == []
        assert len(bank.paid) == 1
