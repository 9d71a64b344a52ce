"""Endpoints that want their thinking back get it, unchanged, with each call that they made; no other endpoint does."""

import asyncio
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from strategy_replies import thought

from delegating_server import session_of
from longhouse.agents.template import LLMPolicy, MemoryPolicy, Template, ToolPolicy
from longhouse.store import journals
from server_helpers import AGENT, Serving, chat, content, process, user
from thinking_endpoint import Written, answering, step_of, thinking, thoughts_in, write

THOUGHT = thought(("clocktool", {}))
CLOCK = write("", ("clocktool", {}))
BOTH = write("", ("clocktool", {}), ("clocktool", {}))
TOOLS = ("clarificationtool", "clocktool", "finalanswertool")
WEATHER = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object", "properties": {}}}}


def clerk(strategy: str = "ToolCallingAgent", *, tools: Any = TOOLS, **policy: Any) -> Template:
    allowed = (*tools, "reasoningtool") if strategy == "SGRToolCallingAgent" else tools
    return Template(
        name=AGENT,
        base_agent_class=strategy,
        tool_policy=ToolPolicy(allowlist=allowed),
        llm_policy=LLMPolicy(**{"model": "ponder-1", **policy}),
    )


def structured(tool: str, **arguments: Any) -> Written:
    return write(json.dumps({**THOUGHT, "function": {"tool_name_discriminator": tool, **arguments}}))


def hybrid(body: Any) -> Written:
    """A thought, an action, a thought, an answer."""
    if body["tool_choice"] != "required":
        return write("", ("reasoningtool", THOUGHT))
    return answering("Noon.") if step_of(body) > 2 else CLOCK


@pytest.mark.parametrize(
    ("strategy", "writer", "given"),
    [
        ("ToolCallingAgent", lambda body: answering("Noon.") if step_of(body) else BOTH, [0, 1]),
        ("SGRToolCallingAgent", hybrid, [0, 1, 2, 3]),
        (
            "SGRAgent",
            lambda body: structured("finalanswertool", answer="Noon.") if step_of(body) else structured("clocktool"),
            [0, 1],
        ),
    ],
)
async def test_each_strategy_gives_back_what_was_thought(
    serving: Serving, strategy: str, writer: Any, given: list[int]
) -> None:
    async with thinking(writer) as model, serving(llm_base_url=model.url, templates=[clerk(strategy)]) as house:
        first = await house.say("What time is it?")
        assert (content(first), model.complaints) == ("Noon.", [])
        assert [len(thoughts_in(body)) for body in model.bodies] == given
        assert content(await house.say("And now?", model=first["model"])) == "Noon."
        assert (model.complaints, len(thoughts_in(model.bodies[-1]))) == ([], 2 * len(given) - 1)
        # It is shown as reasoning alone, and found in no search.
        session = f"/v1/sessions/{first['model']}"
        async with house.http.get(f"{session}/messages") as response:
            shown = await response.text()
        assert "thought_signature" not in shown
        assert "ponder thinks" not in shown
        async with house.http.get("/v1/sessions?q=ponder%20thinks") as response:
            assert (await response.json())["data"] == []
        # What was sent is composed again from the journal, byte for byte, and can be sent again.
        for step in range(1, len(model.bodies) + 1):
            async with house.http.get(f"{session}/steps/{step}/request") as response:
                assert (await response.json())["matches"], step
        async with house.http.post(f"{session}/steps/{len(given)}/replay", json={}) as response:
            replayed = await response.json()
        assert (replayed["request"]["matches"], model.complaints) == (True, [])


async def test_another_process_goes_on_after_kill_9_and_so_does_a_branch(folder: Path) -> None:
    is_up = asyncio.Event()

    def writer(body: Any) -> Written:
        if not step_of(body):
            return BOTH
        return answering("Noon.") if is_up.is_set() else Written(hangs=True)

    async with thinking(writer) as model:
        settings = {"data_dir": str(folder), "llm_base_url": model.url, "llm_model": "ponder-1"}
        async with process(**settings) as there:
            saying = asyncio.create_task(there.say("What time is it?"))
            async with asyncio.timeout(20):
                while len(model.bodies) < 2:
                    await asyncio.sleep(0.01)
            there.kill()
            await there.ended()
            await asyncio.gather(saying, return_exceptions=True)
        is_up.set()
        async with process(**settings) as there:
            async with there.http.get("/v1/sessions") as response:
                [session] = (await response.json())["data"]
            rested = await there.until(session["session_id"], "COMPLETED", within=60)
            path, asked = f"/v1/sessions/{session['session_id']}/fork", {"after": rested["head"]}
            async with there.http.post(path, json=asked) as response:
                branch = (await response.json())["session_id"]
            assert content(await there.say("And now?", model=branch)) == "Noon."
    assert model.complaints == []
    assert len(thoughts_in(model.bodies[-1])) == 3


async def test_clients_and_sub_agents_and_long_talks_lose_nothing(serving: Serving) -> None:
    def writer(body: Any) -> Written:
        last = body["messages"][-1]
        if body["messages"][0]["content"].startswith("You keep the memory"):
            return write("They looked at the clock.")
        match last["content"] if last["role"] == "user" else "":
            case "Ask":
                return write("", ("agent_helper", {"task": "Look"}))
            case "Weather?":
                return write("", ("weather", {}))
            case "Question":
                return write("", ("clarificationtool", {"questions": ["Which?"]}))
            case "Look":
                return CLOCK
            case str(text) if text.startswith("Long"):
                return write("", ("clocktool", {}), ("clarificationtool", {"questions": ["Go on? " + "x" * 2_000]}))
        return answering("Done.")

    helper = replace(clerk(), name="helper")
    top = clerk(tools=(*TOOLS, "agent.helper"), context_tokens=4_000)
    async with thinking(writer) as model, serving(llm_base_url=model.url, templates=[top, helper]) as house:
        session = (await house.say("Ask"))["model"]
        assert content(await house.say("Ask", model=session)) == "Done."
        below = await session_of(house.db, "helper")
        assert len(thoughts_in(model.bodies[-1])) == 4 - 1
        assert await house.kinds(below)
        asked = await chat(house, [user("Weather?")], model=session, tools=[WEATHER])
        [made] = asked["choices"][0]["message"]["tool_calls"]
        result = {"role": "tool", "tool_call_id": made["id"], "content": "Rain."}
        talk = [user("Weather?"), asked["choices"][0]["message"], result]
        assert content(await chat(house, talk, model=session, tools=[WEATHER])) == "Done."
        await house.say("Question", model=session)
        assert content(await house.say("This one", model=session)) == "Done."
        for nth in range(6):
            await house.say(f"Long {nth}", model=session)
            await house.say("Go on", model=session)
        assert "Condensed" in await house.kinds(session)
        assert model.complaints == []
        assert len(model.bodies) > 25


async def test_no_other_endpoint_and_no_other_family_of_models_gets_it(serving: Serving) -> None:
    def writer(body: Any) -> Written:
        return answering("Noon.") if step_of(body) else BOTH

    async with thinking(writer) as ponder, thinking(writer, "muser") as muser:
        async with serving(llm_base_url=ponder.url, templates=[clerk()]) as house:
            session = (await house.say("What time is it?"))["model"]
            assert content(await house.say("And now?", model=session)) == "Noon."
            # Another model of the same family is one of them.
            await house.app.catalog.templates.publish([clerk(model="vendor/Ponder-2-mini")], by="a test")
            assert content(await house.say("And now?", model=session)) == "Noon."
            assert (ponder.complaints, len(thoughts_in(ponder.bodies[-1]))) == ([], 5)
            ponder.is_picky = muser.is_picky = False
            await house.app.catalog.templates.publish([clerk(model="other-1")], by="a test")
            await house.say("And now?", model=session)
            assert len(thoughts_in(ponder.bodies[-1])) == 1, "its own"
            head = (await house.folded(session)).head
        async with serving(llm_base_url=muser.url, templates=[clerk()]) as house:
            await house.say("And now?", model=session)
            assert "ponder thinks" not in str(muser.bodies[-1])
            # Nor does a replay tell it: what is sent there is not what was sent then.
            async with house.http.post(f"/v1/sessions/{session}/steps/2/replay", json={}) as response:
                assert not (await response.json())["request"]["matches"]
            assert "ponder" not in str(muser.bodies[-1]["messages"])
            assert (await journals.load(house.db, session)).head > head


async def test_effort_and_other_parameters_of_a_template_reach_the_endpoint(serving: Serving) -> None:
    extra = {"provider": {"order": ["a"]}, "top_k": 20}
    template = clerk(effort="high", extra=extra)
    remembering = replace(template, title="model", memory_policy=MemoryPolicy(context_window=2))
    async with (
        thinking(lambda body: write("Noon.")) as model,
        serving(llm_base_url=model.url, templates=[remembering]) as house,
    ):
        session = (await house.say("What time is it?"))["model"]
        await house.until(session, "COMPLETED")
        for body in model.bodies:
            assert (body["reasoning_effort"], body["top_k"], body["provider"]) == ("high", 20, {"order": ["a"]})
            assert (body["model"], body["stream"], body["messages"][0]["role"]) == ("ponder-1", True, "system")
        async with house.http.get(f"/v1/sessions/{session}/steps/1/request") as response:
            sent = await response.json()
        assert (sent["matches"], sent["request"]["top_k"]) == (True, 20)
        for taken in ("messages", "model", "stream", "tools", "n", "response_format"):
            body = {"name": "bad", "llm_policy": {"extra": {taken: "x"}}}
            async with house.http.post("/admin/templates", json=body) as response:
                refused = (await response.json())["error"]
            assert response.status == 400, taken
            assert taken in refused["message"]
            assert refused["param"].startswith("llm_policy.extra")
