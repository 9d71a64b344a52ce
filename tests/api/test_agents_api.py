"""The paths that users of SGR-Agent Core know: /agents, /agents/{id}/state, /agents/{id}/provide_clarification."""

from typing import Any

import pytest
from attack_helpers import ask, leaves_no_trace, refused

from longhouse.models.scripted import call
from server_helpers import House, Serving, Sse, sse

ANSWER = call("finalanswertool", answer="Rain in Oslo.")


async def provided(house: House, agent_id: str, body: Any) -> list[Sse]:
    async with house.http.post(f"/agents/{agent_id}/provide_clarification", json=body) as response:
        assert response.status == 200, await response.text()
        assert response.headers["content-type"].startswith("text/event-stream")
        return [event async for event in sse(response)]


async def test_agents_are_listed_newest_first(serving: Serving) -> None:
    async with serving(ask) as house:
        one, two = [(await house.say(task))["model"] for task in ("first", "second")]
        async with house.http.get("/agents") as response:
            found = await response.json()
        assert found["total"] == 2
        assert [(row["agent_id"], row["task"]) for row in found["agents"]] == [(two, "second"), (one, "first")]
        assert all(set(row) == {"agent_id", "task", "state", "created_at"} for row in found["agents"])
        assert {row["state"] for row in found["agents"]} == {"WAITING_FOR_CLARIFICATION"}


async def test_the_state_is_the_context_snapshot(serving: Serving) -> None:
    async with serving([ask(), ANSWER]) as house:
        agent_id = (await house.say("Will it rain?"))["model"]
        async with house.http.get(f"/agents/{agent_id}/state") as response:
            state = await response.json()
        snapshot = (await house.session(agent_id))["context_snapshot"]
        assert state == {"agent_id": agent_id, "task": "Will it rain?", **snapshot}
        assert (state["state"], state["iteration"], state["sources"]) == ("WAITING_FOR_CLARIFICATION", 1, {})
        await provided(house, agent_id, {"clarifications": "Oslo"})
        async with house.http.get(f"/agents/{agent_id}/state") as response:
            state = await response.json()
        assert (state["state"], state["execution_result"]) == ("COMPLETED", "Rain in Oslo.")
        assert state["clarifications_used"] == 1


@pytest.mark.parametrize(
    ("body", "heard"),
    [
        ({"clarifications": "Oslo"}, "Oslo"),
        ({"clarifications": ["Oslo", "tomorrow"]}, "Oslo\ntomorrow"),
        ({"messages": [{"role": "user", "content": "Oslo"}]}, "Oslo"),
        (
            {
                "messages": [
                    {"role": "assistant", "content": "Which city?"},
                    {"role": "user", "content": [{"type": "text", "text": "Oslo"}]},
                    {"role": "user", "content": "tomorrow"},
                ]
            },
            "Oslo\ntomorrow",
        ),
    ],
)
async def test_a_clarification_is_answered_with_a_stream(serving: Serving, body: Any, heard: str) -> None:
    async with serving([ask(), ANSWER]) as house:
        agent_id = (await house.say("Will it rain?"))["model"]
        events = await provided(house, agent_id, body)
        assert events[-1].data == "[DONE]"
        chunks = [event.json for event in events[:-1]]
        assert {chunk["object"] for chunk in chunks} == {"chat.completion.chunk"}
        assert {chunk["model"] for chunk in chunks} == {agent_id}
        assert "".join(chunk["choices"][0]["delta"].get("content") or "" for chunk in chunks) == "Rain in Oslo."
        assert chunks[-1]["choices"][0]["finish_reason"] == "stop"
        assert house.model is not None
        assert house.model.requests[-1]["messages"][-1] == {"role": "user", "content": heard}


async def test_a_clarification_that_nobody_asked_for_is_refused(serving: Serving) -> None:
    async with serving([ask(), ANSWER]) as house:
        agent_id = (await house.say("Will it rain?"))["model"]
        path = f"/agents/{agent_id}/provide_clarification"
        async with leaves_no_trace(house):
            empty: list[tuple[Any, str | None]] = [
                ({}, "clarifications"),
                ({"clarifications": ""}, "clarifications"),
                ({"clarifications": []}, "clarifications"),
                ({"clarifications": 7}, "clarifications"),
                ({"clarifications": ["Oslo", 7]}, "clarifications[1]"),
                ({"messages": []}, "messages"),
                ({"messages": [{"role": "assistant", "content": "Oslo"}]}, "clarifications"),
                ({"messages": [{"role": "wizard", "content": "Oslo"}]}, "messages[0].role"),
                ({"clarifications": "Oslo", "stream": True}, "stream"),
            ]
            for body, param in empty:
                found = await refused(house, body, path)
                assert (found.status, found.param) == (400, param), body
            unknown = "/agents/tool_calling_agent_00000000-0000-4000-8000-000000000000"
            assert (await refused(house, {"clarifications": "x"}, f"{unknown}/provide_clarification")).status == 404
        await provided(house, agent_id, {"clarifications": "Oslo"})
        async with house.http.post(path, json={"clarifications": "Bergen"}) as response:
            assert response.status == 409
            assert response.headers["x-should-retry"] == "false"
            assert (await response.json())["error"]["code"] == "already_settled"
