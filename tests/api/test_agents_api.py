"""The paths that users of SGR-Agent Core know, below /agents: what they answer is read with its own models."""

from typing import Any

import pytest
from attack_helpers import ask, leaves_no_trace, refused
from pydantic import BaseModel
from sgr_agent_core import AgentStatesEnum
from sgr_agent_core.server import models

from longhouse import Template, ToolContext, ToolPolicy, tool
from longhouse.models.scripted import call
from server_helpers import House, Serving, Sse, sse

ANSWER = call("finalanswertool", answer="Rain in Oslo.")


async def provided(house: House, agent_id: str, body: Any) -> list[Sse]:
    async with house.http.post(f"/agents/{agent_id}/provide_clarification", json=body) as response:
        assert response.status == 200, await response.text()
        assert response.headers["content-type"].startswith("text/event-stream")
        return [event async for event in sse(response)]


def read(model: type[BaseModel], body: Any) -> Any:
    """What a client of SGR-Agent Core reads: its own model, no field more and none less."""
    assert set(body) == set(model.model_fields)
    return model.model_validate(body)


async def answered(house: House, method: str, path: str) -> Any:
    async with house.http.request(method, path) as response:
        assert response.status == 200, await response.text()
        return await response.json()


async def test_agents_are_listed_newest_first(serving: Serving) -> None:
    async with serving(ask) as house:
        one, two = [(await house.say(task))["model"] for task in ("first", "второе 第二")]
        body = await answered(house, "GET", "/agents")
        found = read(models.AgentListResponse, body)
        assert found.total == 2
        agents = [read(models.AgentListItem, agent) for agent in body["agents"]]
        assert [(agent.agent_id, list(agent.task_messages)) for agent in agents] == [
            (two, [{"role": "user", "content": "второе 第二"}]), (one, [{"role": "user", "content": "first"}]),
        ]  # fmt: skip
        assert {AgentStatesEnum(agent.state) for agent in agents} == {AgentStatesEnum.WAITING_FOR_CLARIFICATION}
        assert agents[0].creation_time > agents[1].creation_time
        read(models.HealthResponse, await answered(house, "GET", "/health"))


async def test_a_state_is_told_from_the_first_question_to_the_answer(serving: Serving) -> None:
    oak = "https://trees.example/oak"

    @tool
    async def look(context: ToolContext) -> str:
        """Looks."""
        context.sources[oak] = {"number": 1, "url": oak}
        context.current_step_reasoning = {"remaining_steps": ["ask"]}
        return "seen"

    looker = Template(name="looker", tool_policy=ToolPolicy(allowlist=("look", "clarificationtool")))
    async with serving([call("look"), ask(), ANSWER], templates=[looker], tools=[look]) as house:
        agent_id = (await house.say("Will it rain?", model="looker"))["model"]
        state = read(models.AgentStateResponse, await answered(house, "GET", f"/agents/{agent_id}/state"))
        assert (state.agent_id, state.state, state.iteration) == (agent_id, "waiting_for_clarification", 2)
        assert list(state.task_messages) == [{"role": "user", "content": "Will it rain?"}]
        assert (state.sources_count, state.current_step_reasoning) == (1, {"remaining_steps": ["ask"]})
        assert state.execution_result is None
        await provided(house, agent_id, {"clarifications": "Oslo"})
        state = read(models.AgentStateResponse, await answered(house, "GET", f"/agents/{agent_id}/state"))
        assert (state.state, state.execution_result) == ("completed", "Rain in Oslo.")
        assert state.clarifications_used == 1


async def test_an_agent_is_cancelled_and_deleted(serving: Serving) -> None:
    async with serving(ask) as house:
        agent_id = (await house.say("Will it rain?"))["model"]
        cancelled = read(models.AgentCancelResponse, await answered(house, "POST", f"/agents/{agent_id}/cancel"))
        assert (cancelled.agent_id, cancelled.cancelled, cancelled.state) == (agent_id, True, "cancelled")
        again = await answered(house, "POST", f"/agents/{agent_id}/cancel")
        assert again["state"] == "cancelled", "it stays in the list, and may be cancelled once more"
        other = (await house.say("And now?"))["model"]
        for deleted_id in (agent_id, other):
            deleted = read(models.AgentDeleteResponse, await answered(house, "DELETE", f"/agents/{deleted_id}"))
            assert (deleted.agent_id, deleted.deleted, deleted.final_state) == (deleted_id, True, "cancelled")
        assert (await answered(house, "GET", "/agents"))["total"] == 0
        for method, path in (("POST", "/cancel"), ("GET", "/state"), ("DELETE", "")):
            async with house.http.request(method, f"/agents/{agent_id}{path}") as response:
                assert response.status == 404, (method, path)


async def test_the_id_of_the_agent_comes_before_its_first_word(serving: Serving) -> None:
    body = {"model": "tool_calling_agent", "messages": [{"role": "user", "content": "Will it rain?"}]}
    async with serving([ask(), ANSWER, ANSWER]) as house:
        async with house.http.post("/v1/chat/completions", json={**body, "stream": True}) as response:
            agent_id = response.headers["X-Agent-ID"]
            assert response.headers["X-Agent-Model"] == "tool_calling_agent"
            assert agent_id in await response.text()
        answer = {"messages": [{"role": "user", "content": "Oslo"}]}
        async with house.http.post(f"/agents/{agent_id}/provide_clarification", json=answer) as response:
            assert response.headers["X-Agent-ID"] == agent_id
            assert "Rain in Oslo." in await response.text()
        async with house.http.post("/v1/chat/completions", json={**body, "model": agent_id}) as response:
            assert response.headers["X-Agent-ID"] == (await response.json())["model"] == agent_id


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
