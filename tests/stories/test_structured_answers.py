"""A client that asks for JSON gets JSON that fits its schema, from every strategy; or a plain error."""

import asyncio
import json
from dataclasses import replace
from typing import Any, Literal

import pydantic
import pytest
from strategy_replies import WRITE, written

from longhouse.agents.requests.answer_format import IN_WORDS
from longhouse.agents.template import Abilities, LLMPolicy, Template, ToolPolicy
from longhouse.models.scripted import Say, call, say
from longhouse.runtime.steps import answer_check
from longhouse.tools import BaseTool, ToolContext
from server_helpers import House, Serving, chat, content, sse, user


class Weather(pydantic.BaseModel):
    """Погода."""

    city: str
    degrees: int
    sky: Literal["clear", "rain"]


RAIN = {"city": "Осло", "degrees": 12, "sky": "rain"}
GOOD, WRONG = json.dumps(RAIN, ensure_ascii=False), '{"city": "Осло", "degrees": "cold", "sky": "rain"}'
FORMAT: Any = {
    "type": "json_schema",
    "json_schema": {"name": "Weather", "strict": True, "schema": Weather.model_json_schema()},
}


def thinker(agent: str = "ToolCallingAgent", tools: tuple[str, ...] = ("clocktool",), **can: bool) -> Template:
    return Template(
        name="thinker",
        base_agent_class=agent,
        tool_policy=ToolPolicy(allowlist=tools),
        llm_policy=LLMPolicy(can=Abilities(**can)),
    )


def answers(agent: str, *texts: str) -> list[Say]:
    return written(agent, *(("finalanswertool", {"answer": text}) for text in texts))


async def streamed(house: House, **extra: Any) -> tuple[list[str], Any]:
    """The pieces of content, and the error that ended the stream."""
    body = {"model": "thinker", "messages": [user("Rain?")], "stream": True, **extra}
    pieces, error = [], None
    async with house.http.post("/v1/chat/completions", json=body) as response:
        async for event in sse(response):
            if event.data == "[DONE]":
                break
            told = event.json
            error = told.get("error", error)
            pieces += [one["delta"]["content"] for one in told.get("choices", ()) if one["delta"].get("content")]
    return pieces, error


@pytest.mark.parametrize("agent", WRITE)
async def test_parse_gets_what_its_model_describes(serving: Serving, agent: str) -> None:
    script = written(agent, ("clocktool", {}), ("finalanswertool", {"answer": GOOD}))
    async with serving(script, templates=[thinker(agent)]) as house:
        parsed = await house.client.chat.completions.parse(
            model="thinker", messages=[{"role": "user", "content": "Rain?"}], response_format=Weather
        )
        assert parsed.choices[0].message.parsed == Weather(**RAIN)
        assert house.model is not None
        for request in house.model.requests:
            assert IN_WORDS in request["messages"][0]["content"], "who answers by a tool is told in words"
            assert "Погода." in request["messages"][0]["content"]


@pytest.mark.parametrize("agent", WRITE)
async def test_an_answer_that_does_not_fit_is_asked_for_again(serving: Serving, agent: str) -> None:
    for texts in ((WRONG, GOOD), ("It rains.", WRONG, GOOD)):
        async with serving(answers(agent, *texts), templates=[thinker(agent)]) as house:
            pieces, error = await streamed(house, response_format=FORMAT)
            assert (json.loads("".join(pieces)), error) == (RAIN, None), "nothing of the others was said"
            assert house.model is not None
            told = json.dumps(house.model.requests[-1]["messages"], ensure_ascii=False)
            assert "does not follow the response format" in told
            assert "'cold' is not of type 'integer'" in told


@pytest.mark.parametrize("agent", WRITE)
async def test_after_two_repairs_the_turn_fails_in_plain_words(serving: Serving, agent: str) -> None:
    script = answers(agent, WRONG, WRONG, WRONG, GOOD)
    async with serving(script, templates=[thinker(agent)]) as house:
        answer = await chat(house, [user("Rain?")], model="thinker", response_format=FORMAT)
        assert answer["error"]["code"] == "answer_format"
        assert "degrees: 'cold' is not of type 'integer'" in answer["error"]["message"]
        async with house.http.get("/v1/sessions") as response:
            [row] = (await response.json())["data"]
        assert row["state"] == "FAILED"
        kinds = await house.kinds(row["session_id"])
        assert kinds.count("Called") == kinds.count("Returned"), "each call has its outcome"
        again = await house.say("Again", model=row["session_id"])
        assert json.loads(content(again)) == RAIN, "the session goes on"


@pytest.mark.parametrize("can", [{}, {"forced_tool_choice": False}, {"json_schema": False}])
@pytest.mark.parametrize("tools", [(), ("clocktool",)])
async def test_an_answer_in_words_is_held_to_it_too(serving: Serving, can: Any, tools: tuple[str, ...]) -> None:
    script = [Say(text=f"Here:\n```json\n{WRONG}\n```", chunk=7), Say(text=f"Here:\n```json\n{GOOD}\n```", chunk=7)]
    async with serving(script, templates=[thinker(tools=tools, **can)]) as house:
        pieces, error = await streamed(house, response_format=FORMAT)
        assert (json.loads("".join(pieces)), error) == (RAIN, None)
        assert house.model is not None
        assert all(("response_format" in one) is can.get("json_schema", True) for one in house.model.requests)


async def test_an_object_where_a_text_is_asked_for_is_taken(serving: Serving) -> None:
    async with serving([call("finalanswertool", answer=RAIN)], templates=[thinker()]) as house:
        answer = await chat(house, [user("Rain?")], model="thinker", response_format=FORMAT)
        assert json.loads(content(answer)) == RAIN


class Tree(pydantic.BaseModel):
    name: str
    kids: list["Tree"] = []


@pytest.mark.parametrize("agent", WRITE)
async def test_an_answer_may_be_a_tree(serving: Serving, agent: str) -> None:
    tree = Tree(name="дуб", kids=[Tree(name="ветвь", kids=[Tree(name="лист")])])
    wrong = json.dumps({"name": "дуб", "kids": [{"name": "ветвь", "kids": [{}]}]})
    script = written(agent, *(("finalanswertool", {"answer": text}) for text in (wrong, tree.model_dump_json())))
    async with serving(script, templates=[thinker(agent)]) as house:
        parsed = await house.client.chat.completions.parse(
            model="thinker", messages=[{"role": "user", "content": "Tree?"}], response_format=Tree
        )
        assert parsed.choices[0].message.parsed == tree
        assert house.model is not None
        told = json.dumps(house.model.requests[-1]["messages"])
        assert "kids.0.kids.0: 'name' is a required property" in told


async def test_other_requests_are_answered_while_an_answer_is_checked(serving: Serving) -> None:
    """A schema of 50 kB that asks thousands of things of each item: one effort for all checks of the answer."""
    names = [f"n{n}" for n in range(4_000)]
    item = {
        "anyOf": [{"required": names}, {"enum": names}, {"not": {"anyOf": [{"required": [name]} for name in "ab"]}}]
    }
    schema = {"type": "object", "properties": {"a": {"type": "array", "items": item}}}
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    long = json.dumps({"a": [{}] * 5_000})
    async with serving([call("finalanswertool", answer=long), say(GOOD)], templates=[thinker()]) as house:
        checked = answer_check._problem.cache_info()
        asking = asyncio.create_task(chat(house, [user("List?")], model="thinker", response_format=form))
        alive = 0
        while not asking.done():
            async with house.http.get("/health") as response:
                alive += response.status == 200
        assert json.loads(content(asking.result())) == json.loads(long)
        assert alive > 1
        again = answer_check._problem.cache_info()
        assert (again.misses - checked.misses) <= 2, "the event loop gives up, the thread says it for all"
        assert again.hits > checked.hits


async def test_any_object_will_do_where_no_schema_is_given(serving: Serving) -> None:
    async with serving([say("[1]"), say("NaN"), say('{"a": 1}')], templates=[thinker(tools=())]) as house:
        answer = await chat(house, [user("Rain?")], model="thinker", response_format={"type": "json_object"})
        assert content(answer) == '{"a": 1}'


async def test_an_agent_that_says_that_it_failed_says_it_as_an_error(serving: Serving) -> None:
    script = [call("finalanswertool", answer="There is no weather.", status="failed")] * 2
    async with serving(script, templates=[thinker()]) as house:
        answer = await chat(house, [user("Rain?")], model="thinker", response_format=FORMAT)
        assert (answer["error"]["code"], answer["error"]["message"]) == ("agent_failed", "There is no weather.")
        plain = await chat(house, [user("Rain?")], model="thinker", response_format={"type": "text"})
        assert content(plain) == "There is no weather."


class StampTool(BaseTool):
    """End the work with a stamp."""

    finishes = True
    text: str = GOOD

    async def __call__(self, context: ToolContext, config: Any = None, **kwargs: Any) -> str:
        context.state = "COMPLETED"
        context.execution_result = self.text
        return self.text


async def test_a_tool_that_ends_the_turn_by_itself_is_held_to_it(serving: Serving) -> None:
    stamper = replace(thinker(tools=("stamptool",)))
    script = [call("stamptool"), call("stamptool", text="Done.")]
    async with serving(script, templates=[stamper], tools=[StampTool]) as house:
        first, second = [
            await chat(house, [user(text)], model="thinker", response_format=FORMAT) for text in ("Rain?", "Again?")
        ]
        assert json.loads(content(first)) == RAIN
        assert second["error"]["code"] == "answer_format"


NO_FORMATS: list[Any] = [
    {"type": "grammar"},
    {"type": "json_schema"},
    {"type": "json_schema", "json_schema": {"schema": {"type": "object"}}},
    {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "array"}}},
    {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "object", "$ref": "http://a.b/c"}}},
    {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "object", "required": "city"}}},
    "json",
]


async def test_a_format_that_is_none_is_refused(serving: Serving) -> None:
    async with serving([], templates=[thinker()]) as house:
        for given in NO_FORMATS:
            answer = await chat(house, [user("Rain?")], model="thinker", response_format=given)
            assert answer["error"]["param"] == "response_format"
            async with house.http.get("/v1/sessions") as response:
                assert (await response.json())["data"] == []
