"""A turn keeps the version that it began with, whatever is published meanwhile; the next one follows."""

import asyncio
from dataclasses import replace
from typing import Any

from longhouse.agents.template import LLMPolicy, Streaming, Template, ToolPolicy
from longhouse.models.scripted import Say, call
from longhouse.tools import BaseTool, ToolContext
from server_helpers import House, Pen, Serving, content, dictated

NAME = "clerk"
DONE = call("finalanswertool", answer="Done.")
ASK = call("clarificationtool", questions=["Which?"])


class TellTool(BaseTool):
    """Tell a story."""

    async def __call__(self, context: ToolContext, config: Any = None, **kwargs: Any) -> str:
        return "Once upon a time"


def described(text: str, **more: Any) -> dict[str, Any]:
    """A template as the Admin API takes it."""
    policy = {"allowlist": ["telltool", "clarificationtool", "finalanswertool"]}
    return {"name": NAME, "prompt_pack": {"system_prompt": text}, "tool_policy": policy, **more}


async def admin(house: House, method: str, path: str, body: Any = None) -> Any:
    async with house.http.request(method, f"/admin/templates{path}", json=body) as response:
        told = await response.json()
        assert response.status in (200, 201), told
        return told


async def publish(house: House, text: str, **more: Any) -> int:
    published = await admin(house, "POST", "", described(text, **more))
    assert published["is_active"]
    return int(published["version"])


def is_on(pen: Pen) -> str:
    """The system prompt that the model was sent, without the date behind it."""
    return str(pen.body["messages"][0]["content"]).splitlines()[0]


def finish(pen: Pen) -> None:
    pen.call("finalanswertool", '{"answer": "Done."}')
    pen.end()


async def test_turns_end_on_the_version_they_began_with_and_new_ones_follow(serving: Serving) -> None:
    async with dictated() as model, serving(llm_base_url=model.url, tools=[TellTool]) as house:
        assert await publish(house, "one") == 1
        running = asyncio.create_task(house.say("work", model=NAME))
        at_work = await model.asked()
        asking = asyncio.create_task(house.say("ask", model=NAME))
        pen = await model.asked()
        pen.call("clarificationtool", '{"questions": ["Which?"]}')
        pen.end()
        waiting = (await asking)["model"]

        assert await publish(house, "two") == 2
        assert await publish(house, "two") == 2, "the same content is no new version"
        fresh = asyncio.create_task(house.say("new", model=NAME))
        newest = await model.asked()
        assert is_on(newest) == "two"

        at_work.call("telltool")
        at_work.end()
        still = await model.asked()
        assert is_on(still) == "one", "the running turn goes on as it began"
        finish(still)
        ended = await running
        answering = asyncio.create_task(house.say("this", model=waiting))
        answered = await model.asked()
        assert is_on(answered) == "one", "and so does the one that waited"
        finish(answered)
        await answering
        finish(newest)
        versions = [(await house.session(one["model"]))["version"] for one in (ended, await answering, await fresh)]
        assert versions == [1, 1, 2]

        for expected, text, change in (
            (1, "one", ("POST", f"/{NAME}/rollback", None)),
            (2, "two", ("POST", f"/{NAME}/activate", {"version": 2})),
            (1, "one", ("POST", f"/{NAME}/rollback", None)),
        ):
            moved = await admin(house, *change)
            assert (moved["version"], moved["is_active"]) == (expected, True)
            again = asyncio.create_task(house.say("on", model=waiting))
            pen = await model.asked()
            assert is_on(pen) == text, "a new turn of an old session follows too"
            finish(pen)
            assert (await house.session((await again)["model"]))["version"] == expected


async def test_a_pinned_session_stays_with_the_version_it_was_opened_with(serving: Serving) -> None:
    async with serving(lambda body: DONE, templates=(), tools=[TellTool]) as house:
        await publish(house, "one", follow="pinned")
        old = (await house.say("hi", model=NAME))["model"]
        await publish(house, "two", follow="pinned")
        await house.say("again", model=old)
        new = (await house.say("hi", model=NAME))["model"]
        assert [(await house.session(one))["version"] for one in (old, new)] == [1, 2]
        await publish(house, "three")
        await house.say("again", model=old)
        await house.say("again", model=new)
        assert [(await house.session(one))["version"] for one in (old, new)] == [1, 2], "it is they that were pinned"
        asked = await house.say("with the newest, please", model=f"{NAME}@3", metadata={"conversation_id": "c"})
        assert (await house.session(asked["model"]))["version"] == 3


async def test_a_version_that_was_asked_for_is_the_one_that_runs(serving: Serving) -> None:
    async with serving(lambda body: DONE, templates=(), tools=[TellTool]) as house:
        await publish(house, "one")
        await publish(house, "two")
        old = await house.say("hi", model=f"{NAME}@1", metadata={"conversation_id": "c"})
        assert (await house.session(old["model"]))["version"] == 1
        again = await house.say("hi", model=NAME, metadata={"conversation_id": "c"})
        assert again["model"] == old["model"]
        assert (await house.session(old["model"]))["version"] == 2
        assert (await house.say("hi", model=f"{NAME}@3"))["error"]["code"] == "model_not_found"


async def test_what_is_deactivated_or_retired_lets_its_turns_end_and_begins_none(serving: Serving) -> None:
    def script(body: Any) -> Say:
        return ASK if len(body.messages) == 2 else DONE

    async with serving(script, templates=(), tools=[TellTool]) as house:
        await publish(house, "one")
        waiting = [(await house.say("hi", model=NAME))["model"] for _ in range(2)]
        await admin(house, "POST", f"/{NAME}/deactivate")
        assert (await house.say("hi", model=NAME))["error"]["code"] == "model_not_found"
        assert content(await house.say("this", model=waiting[0])) == "Done."
        body = {"model": waiting[0], "messages": [{"role": "user", "content": "and then?"}]}
        async with house.http.post("/v1/chat/completions", json=body) as response:
            assert (response.status, (await response.json())["error"]["code"]) == (404, "template_not_found")
        await admin(house, "POST", f"/{NAME}/rollback")
        assert content(await house.say("and now?", model=waiting[0])) == "Done."

        async with house.http.delete(f"/admin/templates/{NAME}") as response:
            assert response.status in (200, 204)
        assert (await house.say("hi", model=NAME))["error"]["code"] == "model_not_found"
        assert content(await house.say("this", model=waiting[1])) == "Done."
        await publish(house, "one")
        assert (await house.session(waiting[1]))["version"] == 1
        assert content(await house.say("hello again", model=waiting[1])) == "Done."


async def test_a_new_version_of_a_tool_reaches_the_next_turn_and_not_the_running_one(serving: Serving) -> None:
    template = Template(name=NAME, tool_policy=ToolPolicy(allowlist=("telltool", "finalanswertool")))
    async with dictated() as model, serving(llm_base_url=model.url, templates=[template], tools=[TellTool]) as house:
        running = asyncio.create_task(house.say("hi", model=NAME))
        pen = await model.asked()
        assert told_of(pen) == "Tell a story."
        tool = await house.app.catalog.tools.find("telltool")
        assert tool is not None
        newer = replace(tool, description_short="Tell a short story.", max_output=4)
        await house.app.catalog.tools.publish([newer], by="a test")
        pen.call("telltool")
        pen.end()
        pen = await model.asked()
        assert pen.body["messages"][-1]["content"] == "Once upon a time", "the call runs as it was offered"
        assert told_of(pen) == "Tell a story."
        finish(pen)
        session_id = (await running)["model"]
        next_turn = asyncio.create_task(house.say("again", model=session_id))
        pen = await model.asked()
        assert told_of(pen) == "Tell a short story."
        pen.call("telltool")
        pen.end()
        pen = await model.asked()
        assert pen.body["messages"][-1]["content"].startswith("Once\n")
        finish(pen)
        await next_turn
        for step in (1, 2, 3, 4):
            async with house.http.get(f"/v1/sessions/{session_id}/steps/{step}/request") as response:
                assert (await response.json())["matches"], f"step {step} is composed again as it was"


def told_of(pen: Pen) -> str:
    [described] = [one["function"] for one in pen.body["tools"] if one["function"]["name"] == "telltool"]
    return str(described["description"])


async def test_a_tool_that_comes_back_within_a_turn_is_the_version_it_was(serving: Serving) -> None:
    """A rule closes it for a step; a new version is published meanwhile."""
    rules = {"availability": [{"when": "iteration == 1", "exclude": ["telltool"]}]}
    async with dictated() as model, serving(llm_base_url=model.url, templates=(), tools=[TellTool]) as house:
        await publish(house, "one", rules=rules)
        running = asyncio.create_task(house.say("hi", model=NAME))
        pen = await model.asked()
        assert told_of(pen) == "Tell a story."
        pen.call("telltool")
        pen.end()
        pen = await model.asked()
        assert [one["function"]["name"] for one in pen.body["tools"]] == ["clarificationtool", "finalanswertool"]
        tool = await house.app.catalog.tools.find("telltool")
        assert tool is not None
        await house.app.catalog.tools.publish([replace(tool, description_short="Another.")], by="a test")
        pen.call("telltool")
        pen.end()
        pen = await model.asked()
        assert told_of(pen) == "Tell a story."
        finish(pen)
        await running


async def test_an_answer_is_shown_the_way_the_waiting_turns_own_version_says(serving: Serving) -> None:
    quiet = LLMPolicy(streaming=Streaming(reasoning=False))
    old = Template(
        name=NAME, llm_policy=quiet, tool_policy=ToolPolicy(allowlist=("clarificationtool", "finalanswertool"))
    )
    thoughtful = Say(reasoning="Hm.", calls=DONE.calls)
    async with serving([ASK, thoughtful, thoughtful], templates=[old]) as house:
        session_id = (await house.say("hi", model=NAME))["model"]
        await publish(house, "two", tool_policy={"allowlist": ["clarificationtool", "finalanswertool"]})
        assert await reasoning(house, session_id) == "", "the turn that waited is as quiet as it began"
        assert await reasoning(house, session_id) == "Hm."


async def reasoning(house: House, model: str) -> str:
    stream = await house.client.chat.completions.create(
        model=model, messages=[{"role": "user", "content": "this"}], stream=True
    )
    chunks = [chunk async for chunk in stream]
    return "".join(getattr(chunk.choices[0].delta, "reasoning_content", None) or "" for chunk in chunks)


async def test_publishers_at_once_leave_one_active_version_and_every_turn_a_known_one(serving: Serving) -> None:
    async with serving(lambda body: DONE, templates=(), tools=[TellTool]) as house:
        await publish(house, "0")
        publishing = [publish_any(house, str(number % 5)) for number in range(10)]
        talking = [house.say("hi", model=NAME) for _ in range(10)]
        *_, answers = await asyncio.gather(asyncio.gather(*publishing), asyncio.gather(*talking))
        versions = {(await house.session(answer["model"]))["version"] for answer in answers}
        assert versions <= set(range(1, 6))
        async with house.http.get(f"/admin/templates/{NAME}/versions") as response:
            rows = (await response.json())["data"]
        assert [row["version"] for row in rows] == [5, 4, 3, 2, 1]
        assert sum(row["is_active"] for row in rows) == 1


async def publish_any(house: House, text: str) -> None:
    await admin(house, "POST", "", described(text))
