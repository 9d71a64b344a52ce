"""A response is a turn, or a part of one: with sub-agents, behind others, beside decisions, and when it goes wrong."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest
from test_approval import BANK, DONE, TRANSFER, DraftTool, TransferTool
from test_delegation_questions import ASKED, DEEP

from delegating_server import answer, ask, last_result, playing
from longhouse.agents.template import ExecutionPolicy
from longhouse.models.scripted import ScriptedStatus, call, calls, say, step_of
from response_helpers import ask as asked_for
from response_helpers import ended, get, said, streamed, text_of, types_of
from server_helpers import AGENT, Serving, dictated

SIGN = call("signtool")


@pytest.fixture(autouse=True)
def _nothing_sent_yet() -> None:
    TransferTool.sent.clear()


async def test_what_an_agent_below_asks_is_asked_here_and_answered_by_the_next_response(serving: Serving) -> None:
    async with playing(serving, DEEP) as house:
        first = await said(house, "Weather?", model="master")
        assert text_of(first) == ASKED
        assert first["x_agent"]["waiting_for"] == "clarification"
        [delegated] = [item for item in first["output"] if item["type"] == "mcp_call"]
        assert (delegated["name"], delegated["status"]) == ("agent.ann", "incomplete")
        second = await said(house, "Oslo", model="master", previous_response_id=first["id"])
        assert text_of(second) == "Rain in Oslo."
        assert [item["status"] for item in second["output"]] == ["completed", "completed"]
        assert (await get(house, f"/v1/responses/{first['id']}"))[1] == first
        assert second["x_agent"]["trace_id"] == first["x_agent"]["trace_id"]


async def test_approvals_of_several_agents_are_given_at_once(serving: Serving) -> None:
    roles = {
        "master": lambda body: (
            last_result(body) if step_of(body.messages) else calls(ask("ann", "Sign."), ask("ben", "Sign."))
        ),
        "ann": lambda body: answer("Ann has.") if step_of(body.messages) else SIGN,
        "ben": lambda body: answer("Ben has.") if step_of(body.messages) else SIGN,
    }
    async with playing(serving, roles) as house:
        first = await said(house, "Sign it.", model="master")
        requests = [item for item in first["output"] if item["type"] == "mcp_approval_request"]
        assert [one["name"] for one in requests] == ["signtool", "signtool"]
        given = [
            {"type": "mcp_approval_response", "approval_request_id": one["id"], "approve": True} for one in requests
        ]
        second = await said(house, given, model=None, previous_response_id=first["id"])
        assert text_of(second) == "Ben has."
        assert types_of(second).count("mcp_call") == 2


async def test_what_the_chat_may_not_decide_a_response_does_not_decide(serving: Serving) -> None:
    """The template leaves it to the route, or the request is of another user."""
    bank = replace(BANK, execution_policy=ExecutionPolicy(approve_in_chat=False))
    for template, other in ((bank, "ada"), (BANK, "eve"), (BANK, None)):
        async with serving([TRANSFER, DONE], templates=[template], tools=[TransferTool, DraftTool]) as house:
            first = await said(house, "Pay", user="ada")
            [request] = [item for item in first["output"] if item["type"] == "mcp_approval_request"]
            given = [{"type": "mcp_approval_response", "approval_request_id": request["id"], "approve": True}]
            status, refused = await asked_for(house, given, previous_response_id=first["id"], user=other)
            assert (status, refused["error"]["code"]) == (403, "decided_elsewhere")
            place = f"POST /v1/sessions/{first['x_agent']['session_id']}/approval"
            assert place in refused["error"]["message"]
            assert TransferTool.sent == []
            if template is BANK:
                done = await said(house, given, previous_response_id=first["id"], user="ada")
                assert text_of(done) == "Done."
                TransferTool.sent.clear()


async def test_a_message_beside_a_decision_is_kept_and_its_response_says_so(serving: Serving) -> None:
    async with serving([TRANSFER, DONE], templates=[BANK], tools=[TransferTool, DraftTool]) as house:
        first = await said(house, "Pay")
        beside = await said(house, "By the way, hurry.", previous_response_id=first["id"])
        assert text_of(beside).startswith("Still waiting for a decision. Your message is kept")
        [request] = [item for item in first["output"] if item["type"] == "mcp_approval_request"]
        given = {"type": "mcp_approval_response", "approval_request_id": request["id"], "approve": True}
        done = await said(house, [given], previous_response_id=beside["id"])
        assert text_of(done) == "Done."
        assert "By the way, hurry." in str(house.model and house.model.requests[1]["messages"])
        assert (await get(house, f"/v1/responses/{beside['id']}"))[1] == beside


async def test_a_response_waits_for_the_one_before_it(serving: Serving) -> None:
    async with dictated() as model, serving(llm_base_url=model.url) as house:
        first = await said(house, "First", background=True)
        pen = await model.asked()
        second = await said(house, "Second", background=True, previous_response_id=first["id"])
        assert (await get(house, f"/v1/responses/{second['id']}"))[1]["status"] == "queued"
        for text in ("One.", "Two."):
            pen.call("finalanswertool", f'{{"answer": "{text}"}}')
            pen.end()
            pen = await model.asked() if text == "One." else pen
        assert text_of(await ended(house, first["id"])) == "One."
        assert text_of(await ended(house, second["id"])) == "Two."


async def test_one_that_waits_is_cancelled_alone_and_from_another_node(serving: Serving) -> None:
    async with (
        dictated() as model,
        serving(llm_base_url=model.url) as house,
        serving(llm_base_url=model.url, works=False) as other,
    ):
        first = await said(house, "First", background=True)
        pen = await model.asked()
        async with streamed(house, "Second", background=True, previous_response_id=first["id"]) as reader:
            await reader.next()
            assert (await get(other, f"/v1/responses/{reader.id}/cancel", "POST"))[1]["status"] == "cancelled"
            await reader.to_the_end()
            assert reader.last["status"] == "cancelled"
        pen.call("finalanswertool", '{"answer": "One."}')
        pen.end()
        assert text_of(await ended(house, first["id"])) == "One."


async def test_a_turn_that_fails_is_an_error_and_a_failed_response(serving: Serving) -> None:
    trouble = say("", fault=ScriptedStatus(status=401, message="no"))
    async with serving([trouble, trouble]) as house:
        status, refused = await asked_for(house, "Hello")
        assert (status, refused["error"]["code"]) == (502, "provider_error")
        async with streamed(house) as reader:
            await reader.to_the_end()
            assert reader.kinds[-1] == "failed"
            assert (reader.last["status"], reader.last["error"]["code"]) == ("failed", "server_error")
            assert reader.last["x_agent"]["code"] == "provider_error"
            assert (await get(house, f"/v1/responses/{reader.id}"))[1] == reader.last


async def test_an_answer_that_was_cut_off_is_incomplete(serving: Serving) -> None:
    async with dictated() as model, serving(llm_base_url=model.url) as house:

        async def cut_off(asking: asyncio.Task[Any], finish: str = "length") -> Any:
            pen = await model.asked()
            assert pen.body["max_tokens"] == 5
            pen.write(content="As much as fits")
            pen.write(finish=finish)
            pen.frames.put_nowait(b"data: [DONE]\n\n")
            pen.frames.put_nowait(b"")
            return await asking

        cut = await cut_off(asyncio.create_task(said(house, "Hello", max_output_tokens=5)))
        assert (cut["status"], cut["incomplete_details"]) == ("incomplete", {"reason": "max_output_tokens"})
        assert text_of(cut) == "As much as fits"
        for finish in ("length", "content_filter"):
            chat = await cut_off(asyncio.create_task(house.say("Hello", max_completion_tokens=5)), finish)
            assert chat["choices"][0]["finish_reason"] == finish
            assert chat["choices"][0]["message"]["content"] == "As much as fits"


async def test_a_retry_of_a_stream_follows_the_same_response(serving: Serving) -> None:
    async with dictated() as model, serving(llm_base_url=model.url) as house:
        body = {"model": AGENT, "input": "Hello", "stream": True}
        key = {"Idempotency-Key": "the-same"}

        async def first_event() -> Any:
            async with house.http.post("/v1/responses", json=body, headers=key) as response:
                return (await response.content.readuntil(b"\n\n")).decode()

        assert await first_event() == await first_event()
        pen = await model.asked()
        pen.call("finalanswertool", '{"answer": "Once."}')
        pen.end()
        assert await house.db.value("SELECT count(*) FROM responses") == 1


async def test_who_follows_a_response_whose_session_is_erased_is_told(serving: Serving) -> None:
    async with dictated() as model, serving(llm_base_url=model.url) as house, streamed(house) as reader:
        await model.asked()
        session = (await reader.next())["response"]["x_agent"]["session_id"]
        assert (await get(house, f"/v1/sessions/{session}", "DELETE"))[0] == 200
        events = await reader.to_the_end()
        assert (events[-1]["type"], events[-1]["code"]) == ("error", "session_deleted")
        assert events[-1]["sequence_number"] == events[-2]["sequence_number"]
        assert (await get(house, f"/v1/responses/{reader.id}"))[0] == 404
