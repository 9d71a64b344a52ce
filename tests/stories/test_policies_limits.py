"""What a turn may use up, where it thinks, and what it begins without: said by the template, felt in the turn."""

from contextlib import AsyncExitStack
from typing import Any

import pytest
from pydantic import TypeAdapter, ValidationError

from longhouse.agents.template import (
    Availability,
    ExecutionPolicy,
    LLMPolicy,
    MemoryPolicy,
    PromptPack,
    ResetPolicy,
    Rules,
    Template,
    ToolPolicy,
)
from longhouse.journal.messages import ToolResult
from longhouse.models.scripted import call, calls, say
from longhouse.models.scripted_server import serve as serve_model
from longhouse.tools import BaseTool, ToolContext
from server_helpers import House, Serving, content

END = "finalanswertool"
DONE = call(END, answer="Done.")
WORK = call("worktool")
NAMED = ("worktool", "clarificationtool", "createreporttool", END)


class WorkTool(BaseTool):
    """Work a little."""

    async def __call__(self, context: ToolContext, config: Any = None, **kwargs: Any) -> str:
        context.searches_used += 1
        context.sources["http://a"] = {"url": "http://a", "title": "A"}
        return "worked"


def template(name: str = "a", **more: Any) -> Template:
    return Template(**{"name": name, "tool_policy": ToolPolicy(allowlist=NAMED), **more})


def offered(house: House) -> list[set[str]]:
    """The tools of each request."""
    assert house.model is not None
    return [{one["function"]["name"] for one in request.get("tools", ())} for request in house.model.requests]


def heard(house: House) -> list[str]:
    """What the model was last told by tools."""
    assert house.model is not None
    return [one["content"] for one in house.model.requests[-1]["messages"] if one["role"] == "tool"]


ALL = set(NAMED)
LAST = {END, "createreporttool"}


@pytest.mark.parametrize(
    ("policy", "steps"),
    [
        ({}, [ALL, ALL, ALL]),
        ({"max_iterations": 1}, [ALL, LAST]),
        ({"tool_budget": 2}, [ALL, ALL, LAST]),
        ({"token_budget": 1}, [ALL]),
        ({"time_budget": 0.000001}, [ALL]),
        ({"max_clarifications": 0}, [ALL - {"clarificationtool"}] * 3),
        ({"stop_conditions": ("calls >= 1",)}, [ALL, LAST]),
        ({"stop_conditions": ("enough_data", "iteration == 2 and sources_found > 0")}, [ALL, ALL, LAST]),
        ({"stop_conditions": ("searches_used > max_searches",), "max_searches": 0}, [ALL, LAST]),
    ],
)
async def test_a_budget_closes_what_does_not_finish(
    serving: Serving, policy: dict[str, Any], steps: list[set[str]]
) -> None:
    work = template(execution_policy=ExecutionPolicy(**policy))

    def choose(body: Any) -> Any:
        done = sum(1 for message in body.messages if isinstance(message, ToolResult))
        is_open = any(b'"worktool"' in bytes(raw) for raw in body.tools)
        return WORK if is_open and done < 2 else DONE

    async with serving(choose, templates=[work], tools=[WorkTool], patience=1) as house:
        answer = await house.say("work", model="a")
        assert offered(house) == steps
        if policy.keys() & {"token_budget", "time_budget"}:
            assert answer["error"]["code"] == "limit_reached", "twice its budget ends a turn"
        else:
            assert content(answer) == "Done."


async def test_a_tool_budget_holds_within_one_reply(serving: Serving) -> None:
    work = template(execution_policy=ExecutionPolicy(tool_budget=2))
    many = calls(*[WORK] * 30, call("createreporttool", title="T", content="C"))
    async with serving([many, DONE], templates=[work], tools=[WorkTool]) as house:
        answer = await house.say("work", model="a")
        assert content(answer) == "Done."
        told = heard(house)
        assert told[:2] == ["worked"] * 2
        assert told[2:-1] == ["Error: all 2 calls of this turn are used"] * 28
        assert '"title"' in told[-1], "what helps to come to an end stays open"
        assert offered(house)[-1] == LAST


async def test_an_answer_beside_too_many_calls_is_still_the_answer(serving: Serving) -> None:
    work = template(execution_policy=ExecutionPolicy(tool_budget=1))
    async with serving([calls(WORK, WORK, DONE)], templates=[work], tools=[WorkTool]) as house:
        answer = await house.say("work", model="a")
        assert content(answer) == "Done."
        steps = (await house.folded(answer["model"])).steps
        assert [getattr(use.outcome, "code", "") for step in steps for use in step.uses] == ["", "no_more_calls", ""]


async def test_a_reply_asks_no_more_questions_than_are_left(serving: Serving) -> None:
    work = template(execution_policy=ExecutionPolicy(max_clarifications=1))
    wrong = call("clarificationtool", questions=[])
    asking = [call("clarificationtool", questions=[f"Question {n}?"]) for n in range(4)]
    async with serving([calls(wrong, *asking), DONE], templates=[work], tools=[WorkTool]) as house:
        answer = await house.say("work", model="a")
        assert content(answer) == "Question 0?"
        assert len((await house.session(answer["model"]))["questions"]) == 1
        assert content(await house.say("yes", model=answer["model"])) == "Done."
        assert heard(house)[2:] == ["Error: all 1 questions of this turn are used"] * 3


async def test_an_agent_that_acts_before_it_thinks_does_not_lose_the_tool(serving: Serving) -> None:
    thought = {"reasoning_steps": ["a"], "current_situation": "s", "plan_status": "p", "enough_data": True}
    thinking = call("reasoningtool", remaining_steps=["look"], task_completed=False, **thought)
    hybrid = template(base_agent_class="SGRToolCallingAgent")
    script = [*[WORK] * 3, thinking, WORK, thinking, DONE]
    async with serving(script, templates=[hybrid], tools=[WorkTool]) as house:
        assert content(await house.say("work", model="a")) == "Done."
        assert all("worktool" in names for names in offered(house))
        assert "worked" in heard(house)
        assert not any("closed" in told for told in heard(house))


async def test_an_answer_that_does_not_fit_may_be_given_again_and_again(serving: Serving) -> None:
    async with serving([*[call(END, answer=5)] * 4, DONE], templates=[template()], tools=[WorkTool]) as house:
        assert content(await house.say("work", model="a")) == "Done."
        assert all(END in names for names in offered(house))
        assert not any("closed" in told for told in heard(house))


async def test_a_new_turn_begins_without_the_thoughts_of_the_last(serving: Serving) -> None:
    thought = {"reasoning_steps": ["a"], "current_situation": "s", "plan_status": "p", "enough_data": True}
    thinking = call("reasoningtool", remaining_steps=["look for cats"], task_completed=True, **thought)
    closing = Rules(availability=(Availability(when="enough_data", exclude=("worktool",)),))
    hybrid = template(base_agent_class="SGRToolCallingAgent", rules=closing)
    async with serving([thinking, DONE] * 2, templates=[hybrid], tools=[WorkTool]) as house:
        session_id = (await house.say("cats", model="a"))["model"]
        await house.say("tax law", model=session_id)
        assert ["worktool" in names for names in offered(house)] == [True, False, True, False]


async def test_a_template_thinks_where_its_policy_says_with_its_own_key_through_its_own_proxy(
    serving: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LONGHOUSE_SECRET_OTHER_KEY", "sk-other")
    async with AsyncExitStack() as stack:
        there = await stack.enter_async_context(serve_model(lambda body: call(END, answer="There.")))
        keyed = LLMPolicy(base_url=there.url, api_key_ref="other-key", model="big", temperature=0.1, max_tokens=77)
        routed = LLMPolicy(base_url="http://nowhere.invalid/v1", proxy=there.url.removesuffix("/v1"))
        missing = LLMPolicy(base_url=there.url, api_key_ref="no-such-key")
        templates = [
            template("plain"),
            template("keyed", llm_policy=keyed),
            template("keyless", llm_policy=LLMPolicy(base_url=there.url)),
            template("routed", llm_policy=routed),
            template("missing", llm_policy=missing),
        ]
        opening = serving(lambda body: call(END, answer="Here."), templates=templates, tools=[WorkTool])
        house = await stack.enter_async_context(opening)
        assert house.model is not None
        assert content(await house.say("hi", model="plain")) == "Here."
        assert content(await house.say("hi", model="keyed")) == "There."
        assert {name: there.requests[-1][name] for name in ("model", "temperature", "max_tokens")} == {
            "model": "big", "temperature": 0.1, "max_tokens": 77,
        }  # fmt: skip
        assert content(await house.say("hi", model="keyless")) == "There."
        assert content(await house.say("hi", model="routed")) == "There.", "the proxy answers for a host that is not"
        keys = [headers.get("authorization", "") for headers in there.headers]
        assert keys[0] == "Bearer sk-other"
        assert not any("sk-test-canary" in key for key in keys), "the settings' key is for the settings' endpoint"
        failed = await house.say("hi", model="missing")
        assert (
            failed["error"]["message"] == "missing@1 names the secret 'no-such-key', which this process was not given."
        )


@pytest.mark.parametrize("alone", [{"api_key_ref": "k"}, {"proxy": "http://proxy"}])
def test_a_key_or_a_proxy_without_an_endpoint_would_do_nothing_and_is_refused(alone: dict[str, str]) -> None:
    with pytest.raises(ValidationError, match="belong to a base_url"):
        TypeAdapter(Template).validate_python({"name": "a", "llm_policy": alone})


@pytest.mark.parametrize(
    ("reset", "history", "sources"),
    [
        (ResetPolicy(), True, True),
        (ResetPolicy(clean=("conversation",)), False, True),
        (ResetPolicy(clean=("context",)), True, False),
        (ResetPolicy(keep=("context",)), False, True),
        (ResetPolicy(keep=("conversation", "artifacts", "long_term_memory")), True, False),
        (ResetPolicy(keep=()), False, False),
    ],
)
async def test_a_new_turn_begins_without_what_its_policy_cleans(
    serving: Serving, reset: ResetPolicy, history: bool, sources: bool
) -> None:
    async with serving([WORK, DONE, DONE], templates=[template(reset_policy=reset)], tools=[WorkTool]) as house:
        session_id = (await house.say("first", model="a"))["model"]
        await house.say("second", model=session_id)
        assert house.model is not None
        said = [message["content"] for message in house.model.requests[-1]["messages"] if message["role"] == "user"]
        assert said == (["first", "second"] if history else ["second"])
        assert bool((await house.session(session_id))["context_snapshot"]["sources"]) is sources


@pytest.mark.parametrize(("reset", "left"), [(ResetPolicy(), 1), (ResetPolicy(clean=("artifacts",)), 0)])
async def test_a_new_turn_keeps_or_leaves_the_files_of_the_last_one(
    serving: Serving, reset: ResetPolicy, left: int
) -> None:
    report = call("createreporttool", title="T", content="C")
    async with serving([report, DONE, DONE], templates=[template(reset_policy=reset)], tools=[WorkTool]) as house:
        session_id = (await house.say("first", model="a"))["model"]
        await house.say("second", model=session_id)
        assert len((await house.folded(session_id)).files) == left


async def test_prompts_are_the_templates_own(serving: Serving) -> None:
    pack = PromptPack(
        system_prompt="Tools:\n{available_tools}",
        initial_user_request="Please: {task}",
        clarification_response="They said: {clarifications}",
    )
    script = [call("clarificationtool", questions=["Which?"]), DONE]
    async with serving(script, templates=[template(prompt_pack=pack)], tools=[WorkTool]) as house:
        session_id = (await house.say("do it", model="a"))["model"]
        await house.say("this", model=session_id)
        assert house.model is not None
        system, *rest = house.model.requests[-1]["messages"]
        assert system["content"].startswith("Tools:\n1. worktool: Work a little.\n")
        assert [one["content"] for one in rest if one["role"] == "user"] == ["Please: do it", "They said: this"]


@pytest.mark.parametrize(("window", "shown"), [(None, ["one", "two"]), (1, ["two"]), (2, ["one", "two"])])
async def test_so_much_of_earlier_turns_is_shown(serving: Serving, window: int | None, shown: list[str]) -> None:
    memory = MemoryPolicy(context_window=window)
    async with serving([DONE, DONE], templates=[template(memory_policy=memory)], tools=[WorkTool]) as house:
        session_id = (await house.say("one", model="a"))["model"]
        await house.say("two", model=session_id)
        assert house.model is not None
        said = [message["content"] for message in house.model.requests[-1]["messages"] if message["role"] == "user"]
        assert said == shown


@pytest.mark.parametrize("allowed", [True, False])
async def test_a_client_may_add_a_system_text_or_not(serving: Serving, allowed: bool) -> None:
    async with serving([DONE], templates=[template(allow_client_system=allowed)], tools=[WorkTool]) as house:
        body = [{"role": "system", "content": "Rhyme."}, {"role": "user", "content": "hi"}]
        await house.client.chat.completions.create(model="a", messages=body)  # type: ignore[arg-type]
        assert house.model is not None
        assert ("Rhyme." in house.model.requests[0]["messages"][0]["content"]) is allowed


async def test_a_template_of_another_owner_is_as_good_as_none(serving: Serving) -> None:
    templates = [template("theirs", owner="ann"), template("ours", owner="local")]
    async with serving([DONE], templates=templates, tools=[WorkTool]) as house:
        assert (await house.say("hi", model="theirs"))["error"]["code"] == "model_not_found"
        assert (await house.say("hi", model="theirs@1"))["error"]["code"] == "model_not_found"
        assert content(await house.say("hi", model="ours")) == "Done."
        async with house.http.get("/v1/models") as response:
            models = [model["id"] for model in (await response.json())["data"]]
        assert "ours" in models
        assert "theirs" not in models


async def test_the_class_of_an_agent_is_how_it_thinks(serving: Serving) -> None:
    structured = template("structured", base_agent_class="SGRAgent")
    async with serving(
        lambda body: calls(say("{}"), DONE), templates=[template(), structured], tools=[WorkTool]
    ) as house:
        await house.say("hi", model="a")
        await house.say("hi", model="structured")
        assert house.model is not None
        first, *others = house.model.requests
        assert "tools" in first
        assert all("response_format" in request for request in others)
