"""What the model saw at each step, composed again from the journal byte for byte."""

import asyncio
import hashlib
from dataclasses import replace
from typing import Any

import msgspec

from longhouse.agents.template import ExecutionPolicy, LLMPolicy, PromptPack, Template, ToolPolicy
from longhouse.journal.events import Replied
from longhouse.models.scripted import call, calls, say
from longhouse.tools import BaseTool, ToolContext
from server_helpers import House, Serving, dictated

TOOLS = ("clarificationtool", "clocktool", "lines", "finalanswertool")
TEMPLATE = Template(
    name="stepper",
    tool_policy=ToolPolicy(allowlist=TOOLS),
    prompt_pack=PromptPack(system_prompt="{current_date}\n{available_tools}", initial_user_request="Task: {task}"),
    execution_policy=ExecutionPolicy(max_iterations=3, max_clarifications=1),
)


class Lines(BaseTool):
    """Write many lines."""

    tool_name = "lines"
    number: int = 1

    async def __call__(self, context: ToolContext, config: Any = None, **kwargs: Any) -> str:
        return "A line of text.\n" * self.number


class Shown(msgspec.Struct, forbid_unknown_fields=True):
    """The answer, with the request in the bytes in which it came."""

    request: msgspec.Raw
    digest: str
    matches: bool
    tokens: dict[str, int]
    selection: dict[str, Any] | None = None


async def shown(house: House, session_id: str, step: int) -> Shown:
    async with house.http.get(f"/v1/sessions/{session_id}/steps/{step}/request") as response:
        assert response.status == 200, await response.text()
        return msgspec.json.decode(await response.read(), type=Shown)


async def replies(house: House, session_id: str) -> list[Replied]:
    return [record.event for record in await house.journal(session_id) if isinstance(record.event, Replied)]


async def check(house: House, session_id: str) -> int:
    """Every step is what the model was sent, in these bytes; says how many there are."""
    assert house.model is not None
    sent = [request for request in house.model.requests if "Task: " in str(request["messages"]) and is_step(request)]
    recorded = await replies(house, session_id)
    assert len(sent) == len(recorded)
    for nth, (request, replied) in enumerate(zip(sent, recorded, strict=True), start=1):
        again = await shown(house, session_id, nth)
        raw = bytes(again.request)
        assert again.matches, nth
        assert hashlib.sha256(raw).hexdigest() == again.digest == replied.digest
        asked = [(key, value) for key, value in request.items() if key not in ("stream", "stream_options")]
        assert list(msgspec.json.decode(raw).items()) == asked
    return len(recorded)


def is_step(request: Any) -> bool:
    return bool(request.get("tools") or request.get("response_format"))


def final(text: str) -> Any:
    return call("finalanswertool", answer=text)


async def test_every_step_of_a_long_life_is_composed_again(serving: Serving) -> None:
    script = [
        call("clarificationtool", questions=["Which city?"]),
        calls(say("Hm.", reasoning="Hm."), call("clocktool"), call("lines", number=3), call("nosuchtool", z=1, a=2)),
        final("One."),
        calls(call("clocktool"), call("clocktool")),
        call("clarificationtool", questions=["Really?"]),
        call("lines", number="many"),
        call("lines"),
        final("Two."),
        call("lines", number=2),
        final("Three."),
    ]  # fmt: skip
    async with serving(script, templates=[TEMPLATE], tools=[Lines]) as house:
        asked = await house.say("Will it rain?", model="stepper", temperature=0.1, seed=7)
        session_id = asked["model"]
        await house.say("Oslo", model=session_id)
        await house.say("And tomorrow?", model=session_id)
        await house.say("Yes", model=session_id)
        await house.until(session_id, "COMPLETED", "FAILED")
        await house.say("And then?", model=session_id)
        assert await check(house, session_id) == len(script)
        assert names(await shown(house, session_id, 1)) == list(TOOLS)
        assert names(await shown(house, session_id, 7)) == ["finalanswertool"]


def names(request: Shown) -> list[str]:
    return [tool["function"]["name"] for tool in msgspec.json.decode(request.request)["tools"]]


async def test_steps_with_stubs_and_summaries_are_composed_again(serving: Serving) -> None:
    small = replace(TEMPLATE, llm_policy=LLMPolicy(context_tokens=1_500))
    script = [
        call("lines", number=200),
        call("lines", number=200),
        final("One."),
        say("A summary."),
        final("Two."),
        final("Three."),
    ]
    async with serving(script, templates=[small], tools=[Lines]) as house:
        session_id = (await house.say("First " + "words " * 700, model="stepper"))["model"]
        await house.say("Second " + "words " * 700, model=session_id)
        await house.say("Third", model=session_id)
        assert "Condensed" in await house.kinds(session_id)
        assert await check(house, session_id) == 5
        assert b"[result of lines left out: 3200 characters" in bytes((await shown(house, session_id, 3)).request)
        assert b"A summary." in bytes((await shown(house, session_id, 4)).request)


async def test_thoughts_and_actions_are_steps_alike(serving: Serving) -> None:
    hybrid = replace(
        TEMPLATE, base_agent_class="SGRToolCallingAgent", tool_policy=ToolPolicy(allowlist=("reasoningtool", *TOOLS))
    )
    thought = {"reasoning_steps": ["a", "b"], "current_situation": "s", "plan_status": "p", "enough_data": False,
               "remaining_steps": ["r"], "task_completed": False}  # fmt: skip
    script = [
        call("reasoningtool", **thought), call("lines"), call("clocktool"), call("reasoningtool", **thought),
        final("One."), call("reasoningtool", **thought), final("Two."),
    ]  # fmt: skip
    async with serving(script, templates=[hybrid], tools=[Lines]) as house:
        session_id = (await house.say("Think", model="stepper"))["model"]
        await house.say("Think again", model=session_id)
        assert await check(house, session_id) == len(script)


async def test_structured_steps_are_composed_again(serving: Serving) -> None:
    structured = replace(TEMPLATE, base_agent_class="SGRAgent")
    async with serving([chosen("lines", number=2), chosen("finalanswertool", answer="Done.", status="completed")],
                       templates=[structured], tools=[Lines]) as house:  # fmt: skip
        session_id = (await house.say("Think", model="stepper"))["model"]
        assert await check(house, session_id) == 2


def chosen(tool: str, **arguments: Any) -> Any:
    reasoning = {"reasoning_steps": ["a", "b"], "current_situation": "s", "plan_status": "p", "enough_data": False,
                 "remaining_steps": ["r"], "task_completed": False}  # fmt: skip
    step = {**reasoning, "function": {"tool_name_discriminator": tool, **arguments}}
    return say(msgspec.json.encode(step).decode())


async def test_a_prompt_that_came_while_the_model_wrote_changes_nothing(serving: Serving) -> None:
    async with dictated() as model, serving(templates=[TEMPLATE], tools=[Lines], llm_base_url=model.url) as house:
        first = asyncio.create_task(house.say("First", model="stepper", chat_id="c"))
        pen = await model.asked()
        second = asyncio.create_task(house.say("Second", model="stepper", chat_id="c"))
        await prompts(house, 2)
        pen.call("clocktool", "{}")
        pen.end()
        for text in ("One.", "Two."):
            pen = await model.asked()
            pen.call("finalanswertool", msgspec.json.encode({"answer": text}).decode())
            pen.end()
        session_id = (await first)["model"]
        await second
        kinds = await house.kinds(session_id)
        assert kinds.index("Replied") > kinds.index("Prompted", 2)
        assert [(await shown(house, session_id, nth)).matches for nth in (1, 2, 3)] == [True] * 3


async def prompts(house: House, number: int) -> None:
    """Waits until so many prompts are in the journals."""
    async with asyncio.timeout(20):
        while await house.db.value("SELECT count(*) FROM journal WHERE kind = 'Prompted'") < number:
            await asyncio.sleep(0.01)


async def test_a_request_that_cannot_be_composed_again_says_so(serving: Serving) -> None:
    script = [call("lines"), final("One.")]
    async with serving(script, templates=[TEMPLATE], tools=[Lines]) as house:
        session_id = (await house.say("Go", model="stepper"))["model"]
        for step in ("0", "3"):
            async with house.http.get(f"/v1/sessions/{session_id}/steps/{step}/request") as response:
                assert (response.status, (await response.json())["error"]["code"]) == (404, "step_not_found")
        for step in ("one", "-1", "9" * 30):
            async with house.http.get(f"/v1/sessions/{session_id}/steps/{step}/request") as response:
                assert response.status == 400
        async with house.http.get("/v1/sessions/stepper_x/steps/1/request") as response:
            assert (response.status, (await response.json())["error"]["code"]) == (404, "session_not_found")
        async with house.http.get(f"/v1/sessions/{session_id}/steps/1/request?x=1") as response:
            assert response.status == 400
    changed = replace(TEMPLATE, prompt_pack=PromptPack(system_prompt="Other words."))
    async with serving([], templates=[changed], tools=[Lines]) as house:
        assert (await shown(house, session_id, 1)).matches, "a version stays what it was"
        await house.db.run("DELETE FROM catalog_versions WHERE name = 'stepper' AND version = 1")
    async with (
        serving([], templates=[changed], tools=[Lines]) as house,
        house.http.get(f"/v1/sessions/{session_id}/steps/1/request") as response,
    ):
        assert (response.status, (await response.json())["error"]["code"]) == (409, "template_not_found")
