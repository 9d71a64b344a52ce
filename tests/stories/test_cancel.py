"""Cancel ends a running turn, wherever it is worked on, and leaves a history that the next turn can build on."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, ClassVar

import pytest

from longhouse.agents.template import Template, ToolPolicy
from longhouse.journal import events
from longhouse.journal.events import Effect, Fault
from longhouse.models.scripted import Hang, Say, ScriptedStatus, call, calls, say
from longhouse.models.scripted_server import serve as serve_model
from longhouse.runtime.cleanup.retention import Retention
from longhouse.runtime.inbox import Inbox
from longhouse.tools import BaseTool, ToolContext
from server_helpers import House, Serving, sse


class Wait(BaseTool):
    """Wait for something that does not come."""

    under_way: ClassVar[list[str]] = []
    ended: ClassVar[list[str]] = []

    async def __call__(self, context: ToolContext, config: Any = None, **kwargs: Any) -> str:
        self.under_way.append(context.session_id)
        try:
            await asyncio.Event().wait()
        finally:
            self.ended.append(context.session_id)
        return ""


class Send(BaseTool):
    """Send a letter, which cannot be called back."""

    effect: ClassVar[Effect] = "once"
    under_way: ClassVar[list[str]] = []
    go: ClassVar[dict[str, asyncio.Event]] = {}
    sent: ClassVar[list[str]] = []

    async def __call__(self, context: ToolContext, config: Any = None, **kwargs: Any) -> str:
        go = self.go.setdefault(context.session_id, asyncio.Event())
        self.under_way.append(context.session_id)
        await go.wait()
        self.sent.append(context.session_id)
        return "sent"


AGENT = "waiter"
TEMPLATE = Template(
    name=AGENT, tool_policy=ToolPolicy(allowlist=("clarificationtool", "finalanswertool", "clocktool", "wait", "send"))
)
HOUSE: Any = {"templates": [TEMPLATE], "tools": (Wait, Send)}
THINKS = say("", fault=Hang())
ANSWER = call("finalanswertool", answer="Now I can.")


async def eventually(is_so: Callable[[], bool], within: float = 30.0) -> None:
    async with asyncio.timeout(within):
        while not is_so():
            await asyncio.sleep(0.005)


async def only_session(house: House) -> str:
    """The id of the one session, once it is there."""
    async with asyncio.timeout(10):
        while not (found := await house.db.value("SELECT id FROM sessions WHERE state = 'RESEARCHING'")):
            await asyncio.sleep(0.005)
        return str(found)


async def cancel(house: House, session_id: str) -> str:
    async with house.http.post(f"/v1/sessions/{session_id}/cancel") as response:
        assert response.status == 202
        return str((await response.json())["state"])


async def assert_next_turn_is_answered(house: House, session_id: str, requests: list[Any]) -> None:
    answered = await asyncio.wait_for(house.say("And now?", model=session_id), 20)
    assert answered["choices"][0]["message"]["content"] == "Now I can."
    assert_paired(requests[-1]["messages"])
    async with house.http.get(f"/v1/sessions/{session_id}/messages") as response:
        assert_paired((await response.json())["data"])


def assert_paired(messages: list[Any]) -> None:
    """Every tool call is followed by its one result, as providers demand."""
    called = [made["id"] for message in messages for made in message.get("tool_calls") or ()]
    results = [message["tool_call_id"] for message in messages if message["role"] == "tool"]
    assert called == results


@asynccontextmanager
async def running(serving: Serving, *script: Say) -> AsyncIterator[tuple[House, asyncio.Task[Any], str]]:
    async with serving(script, **HOUSE) as house:
        saying = asyncio.create_task(house.http.post("/v1/chat/completions", json=body("Go")))
        yield house, saying, await only_session(house)


def body(text: str, **extra: Any) -> dict[str, Any]:
    return {"model": AGENT, "messages": [{"role": "user", "content": text}], **extra}


async def test_cancel_in_mid_model_call_hangs_up_on_the_model(serving: Serving) -> None:
    async with running(serving, THINKS, ANSWER) as (house, saying, session_id):
        model = house.model
        assert model is not None
        await eventually(lambda: len(model.requests) == 1)
        assert await cancel(house, session_id) == "CANCELLED"
        response = await asyncio.wait_for(saying, 10)
        assert (response.status, response.headers["x-should-retry"]) == (409, "false")
        assert (await response.json())["error"]["code"] == "cancelled"
        await eventually(lambda: house.app.worker.busy == 0)
        assert await house.kinds(session_id) == ["Opened", "Prompted", "Started", "Cancelled"]
        # Once more changes nothing: the turn has ended.
        assert await cancel(house, session_id) == "CANCELLED"
        assert len(await house.journal(session_id)) == 4
        await assert_next_turn_is_answered(house, session_id, model.requests)


async def test_cancel_ends_a_stream_with_an_error(serving: Serving) -> None:
    async with serving([THINKS], **HOUSE) as house:
        async with house.http.post("/v1/chat/completions", json=body("Go", stream=True)) as response:
            stream = sse(response)
            first = await anext(stream)
            await eventually(lambda: bool(house.model and house.model.requests))
            await cancel(house, first.json["model"])
            rest = [event async for event in stream]
        assert rest[-1].json["error"]["code"] == "cancelled"


async def test_cancel_in_mid_tool_gives_every_open_call_its_fault(serving: Serving) -> None:
    step = calls(call("wait"), call("clocktool"), call("wait"))
    async with running(serving, step, ANSWER) as (house, saying, session_id):
        await eventually(lambda: Wait.under_way.count(session_id) == 2)
        await house.until(session_id, "RESEARCHING")
        assert await cancel(house, session_id) == "CANCELLED"
        assert (await asyncio.wait_for(saying, 10)).status == 409
        await eventually(lambda: Wait.ended.count(session_id) == 2 and house.app.worker.busy == 0)
        told = [record.event for record in await house.journal(session_id)]
        outcomes = {event.call: event.outcome for event in told if isinstance(event, events.Returned)}
        assert set(outcomes) == {"1-action-0", "1-action-1", "1-action-2"}
        for slow in ("1-action-0", "1-action-2"):
            outcome = outcomes[slow]
            assert isinstance(outcome, Fault)
            assert outcome.code == "cancelled"
        assert isinstance(told[-1], events.Cancelled)
        assert house.model is not None
        await assert_next_turn_is_answered(house, session_id, house.model.requests)
        assert "the turn was cancelled" in str(house.model.requests[-1]["messages"])


async def test_an_effect_that_cannot_be_called_back_does_not_reopen_a_cancelled_turn(serving: Serving) -> None:
    async with running(serving, call("send"), ANSWER) as (house, saying, session_id):
        await eventually(lambda: session_id in Send.under_way)
        await cancel(house, session_id)
        assert (await asyncio.wait_for(saying, 10)).status == 409
        await eventually(lambda: house.app.worker.busy == 0)
        before = await house.kinds(session_id)
        Send.go[session_id].set()
        await eventually(lambda: session_id in Send.sent)
        assert house.model is not None
        await assert_next_turn_is_answered(house, session_id, house.model.requests)
        assert (await house.kinds(session_id))[: len(before)] == before
        assert Send.under_way.count(session_id) == 1
        async with house.http.get(f"/v1/sessions/{session_id}/effects") as listed:
            [effect] = (await listed.json())["data"]
        assert (effect["state"], effect["fault"]["code"]) == ("unknown", "cancelled"), "it was under way"


async def test_cancel_of_a_question_closes_it(serving: Serving) -> None:
    async with serving([call("clarificationtool", questions=["Who?"]), ANSWER], **HOUSE) as house:
        session_id = (await house.say("Go", model=AGENT))["model"]
        assert await cancel(house, session_id) == "CANCELLED"
        assert (await house.session(session_id))["questions"] == []
        async with house.http.post(f"/v1/sessions/{session_id}/clarification", json={"answer": "Me"}) as response:
            assert (response.status, response.headers["x-should-retry"]) == (409, "false")
        assert house.model is not None
        await assert_next_turn_is_answered(house, session_id, house.model.requests)


async def test_cancel_ends_one_turn_and_the_prompt_behind_it_is_answered(serving: Serving) -> None:
    async with running(serving, THINKS, ANSWER) as (house, saying, session_id):
        behind = asyncio.create_task(house.say("And me?", model=session_id))
        async with asyncio.timeout(10):
            while (await house.session(session_id))["queued"] != 1:
                await asyncio.sleep(0.01)
        assert await cancel(house, session_id) == "CANCELLED"
        assert (await asyncio.wait_for(saying, 10)).status == 409
        answered = await asyncio.wait_for(behind, 20)
        assert answered["choices"][0]["message"]["content"] == "Now I can."


async def test_a_prompt_that_is_cancelled_before_any_worker_began_is_over_for_everybody(serving: Serving) -> None:
    async with serving([ANSWER], works=False, allow_egress="127.0.0.0/8", **HOUSE) as house:
        async with house.http.post("/v1/webhooks", json={"url": "http://127.0.0.1:9/hook"}) as response:
            assert response.status == 201, await response.text()
            hook = (await response.json())["id"]
        async with house.http.post("/v1/responses", json={"model": AGENT, "input": "Go", "background": True}) as asked:
            response_id = (await asked.json())["id"]
        session_id = str(await house.db.value("SELECT id FROM sessions"))
        async with house.http.post("/v1/chat/completions", json=body("Also", stream=True, model=session_id)) as stream:
            assert await anext(sse(stream))
            assert await cancel(house, session_id) == "INITED", "the one behind it is still to come"
            assert await cancel(house, session_id) == "CANCELLED"
            assert [one async for one in sse(stream)][-1].json["error"]["code"] == "cancelled"
        async with house.http.get(f"/v1/responses/{response_id}") as shown:
            assert (await shown.json())["status"] == "cancelled"
        async with house.http.get(f"/v1/sessions/{session_id}") as shown:
            assert ((await shown.json())["state"], shown.status) == ("CANCELLED", 200)
        for part in ("messages", "timeline", "effects", "events"):
            async with house.http.get(f"/v1/sessions/{session_id}/{part}") as shown:
                assert shown.status == 200, await shown.text()
        for state, ids in (("CANCELLED", [session_id]), ("INITED", [])):
            async with house.http.get(f"/v1/sessions?state={state}") as listed:
                assert [row["session_id"] for row in (await listed.json())["data"]] == ids
        old = "UPDATE sessions SET created_at = now() - interval '9 days', updated_at = now() - interval '9 days'"
        await house.db.run(old)
        async with serving([ANSWER], **HOUSE) as worker:
            async with asyncio.timeout(20):
                while not (told := await deliveries(house, hook)):
                    await asyncio.sleep(0.05)
            assert told == [("session.rested", "CANCELLED")]
            answered = await asyncio.wait_for(worker.say("And now?", model=session_id), 20)
            assert answered["choices"][0]["message"]["content"] == "Now I can."
        async with house.http.post("/v1/responses", json={"model": AGENT, "input": "Go", "background": True}):
            unbegun = str(await house.db.value("SELECT id FROM sessions WHERE state = 'INITED'"))
        await cancel(house, unbegun)
        # As a process of an earlier release leaves it.
        await house.db.run(f"{old}, state = 'INITED' WHERE id = :id", id=unbegun)
        assert (await house.folded(unbegun)).state == "CANCELLED"
        async with asyncio.timeout(20):
            await Retention(Inbox(house.db, house.app.bus), days=5).sweep()
        assert await house.db.value("SELECT array_agg(id) FROM sessions") == [session_id], "nothing else was too old"


async def deliveries(house: House, hook: str) -> list[tuple[str, str]]:
    async with house.http.get(f"/v1/webhooks/{hook}/deliveries") as response:
        found = (await response.json())["data"]
    return [(one["type"], one["payload"]["data"]["state"]) for one in found if one["payload"]]


@pytest.mark.parametrize("where", ["in mid model call", "in mid tool", "between two attempts"])
async def test_cancel_reaches_a_turn_that_another_process_works_on(serving: Serving, where: str) -> None:
    """The two houses share nothing but the database."""
    trouble = Say(fault=ScriptedStatus(429, retry_after=50))
    first = {"in mid model call": THINKS, "in mid tool": call("wait"), "between two attempts": trouble}[where]
    async with serve_model([first, ANSWER]) as model, serving(llm_base_url=model.url, **HOUSE) as worker:
        saying = asyncio.create_task(worker.http.post("/v1/chat/completions", json=body("Go")))
        session_id = await only_session(worker)
        async with serving(llm_base_url=model.url, **HOUSE) as other:
            await eventually(lambda: bool(model.requests))
            if where == "in mid tool":
                await eventually(lambda: session_id in Wait.under_way)
            if where == "between two attempts":
                await eventually(lambda: worker.app.worker.busy == 0)
            assert await cancel(other, session_id) == "CANCELLED"
            assert (await asyncio.wait_for(saying, 10)).status == 409
            await eventually(lambda: worker.app.worker.busy == 0)
            if where == "in mid tool":
                assert session_id in Wait.ended
            told = await other.journal(session_id)
            assert isinstance(told[-1].event, events.Cancelled)
            assert await other.db.value("SELECT wake_at IS NULL AND NOT due AND holder IS NULL FROM sessions")
            await assert_next_turn_is_answered(other, session_id, model.requests)
