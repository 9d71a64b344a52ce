"""One odd reply must not spoil a session: broken calls, thoughts without end, and turns that grow and grow."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web

from longhouse.agents.strategies.protocol import Body
from longhouse.agents.template import ExecutionPolicy, LLMPolicy, Template, ToolPolicy
from longhouse.journal.json_text import object_of
from longhouse.models.scripted import Say, call, calls, say
from longhouse.tools import tool
from server_helpers import House, Serving, content

ANSWER = {"name": "finalanswertool", "arguments": '{"answer": "Done.", "status": "completed"}'}


@tool
async def glance(at: str = "", text: str = "") -> str:
    """Glance at something."""
    return f"seen: {at}"


def template_of(agent: str = "ToolCallingAgent", **policies: Any) -> Template:
    policy = ToolPolicy(allowlist=("glance", "finalanswertool"))
    return Template(name="odd", base_agent_class=agent, tool_policy=policy, **policies)


@asynccontextmanager
async def pedant(first: dict[str, str]) -> AsyncIterator[str]:
    """A model server that parses the history, and refuses calls whose arguments are no JSON object, as some do."""
    asked = 0

    async def handle(request: web.Request) -> web.Response:
        nonlocal asked
        asked += 1
        for message in (await request.json())["messages"]:
            for made in message.get("tool_calls", ()):
                if object_of(made["function"]["arguments"]) is None:
                    return web.json_response({"error": {"message": "no object"}}, status=400)
        function, finish = (first, "length") if asked == 1 else (ANSWER, "tool_calls")
        made = {"index": 0, "id": f"p{asked}", "type": "function", "function": function}
        message = {"role": "assistant", "tool_calls": [made]}
        return web.json_response({"choices": [{"index": 0, "message": message, "finish_reason": finish}]})

    app = web.Application()
    app.router.add_post("/v1/chat/completions", handle)
    runner = web.AppRunner(app)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        yield f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
    finally:
        await runner.cleanup()


async def composed_again(house: House, session_id: str) -> list[bool]:
    """Step by step: is the request, composed again from the journal, the one that was sent?"""
    steps = (await house.kinds(session_id)).count("Replied")
    matches = []
    for step in range(1, steps + 1):
        async with house.http.get(f"/v1/sessions/{session_id}/steps/{step}/request") as response:
            matches.append((await response.json())["matches"])
    return matches


async def test_a_call_that_was_cut_off_does_not_make_servers_refuse_the_session(serving: Serving) -> None:
    async with (
        pedant({"name": "glance", "arguments": '{"at": "Os'}) as url,
        serving(templates=[template_of()], tools=[glance], llm_base_url=url, llm_api_key="sk-test") as house,
    ):
        first = await house.say("Look", model="odd")
        assert content(first) == "Done."
        assert content(await house.say("Again", model=first["model"])) == "Done."
        assert all(await composed_again(house, first["model"]))


async def test_a_thought_without_end_is_said_to_be_unreadable_and_forgotten(serving: Serving) -> None:
    def final(answer: str) -> Say:
        function = {"tool_name_discriminator": "finalanswertool", "answer": answer, "status": "completed"}
        return say(json.dumps({"enough_data": True, "function": function}))

    deep = '{"x": %s, "function": {"tool_name_discriminator": "glance"}}' % ("[" * 900 + "]" * 900)
    script = [say(deep), final("One."), final("Two.")]
    async with serving(script, templates=[template_of("SGRAgent")], tools=[glance]) as house:
        first = await house.say("Think", model="odd")
        assert content(first) == "One."
        assert content(await house.say("Again", model=first["model"])) == "Two."
        assert house.model is not None
        told = house.model.requests[1]["messages"][-1]["content"]
        assert "it is nested deeper than 50 levels" in told


async def test_a_turn_that_grows_and_grows_stays_within_its_window(serving: Serving) -> None:
    steps = iter(
        [
            *(
                calls(say(f"Step {n}. " + "words " * 200), call("glance", at=str(n), text="word " * 200))
                for n in range(25)
            )
        ]
    )

    def reply(body: Body) -> Say:
        if not body.tools:
            return say("It glanced here and there.")
        return next(steps, call("finalanswertool", answer="Done.", status="completed"))

    template = template_of(
        llm_policy=LLMPolicy(context_tokens=3_000), execution_policy=ExecutionPolicy(max_iterations=99)
    )
    async with serving(reply, templates=[template], tools=[glance]) as house:
        answered = await house.say("Look everywhere", model="odd")
        assert content(answered).startswith("Step 0. words")
        assert content(answered).endswith("\n\nDone.")
        assert house.model is not None
        asked = [request["messages"] for request in house.model.requests if request.get("tools")]
        # The budget is an estimate of what is said; around it there are names and marks.
        assert max(len(json.dumps(messages)) for messages in asked) < 1.5 * 4 * 3_000
        assert all({"role": "user", "content": "Look everywhere"} in messages for messages in asked)
        assert "Condensed" in await house.kinds(answered["model"])
        assert all(await composed_again(house, answered["model"]))
