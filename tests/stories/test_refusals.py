"""How replies end that are no answer: with a refusal, or cut off in a call; and what was spent on thinking."""

from typing import Any

import pydantic
import pytest
from strategy_replies import thought
from test_thinking import BOTH, clerk

from response_helpers import said, streamed
from server_helpers import AGENT, Serving, content, user
from thinking_endpoint import Written, answering, step_of, thinking, write

WORDS = "I'm sorry, I cannot help with that. \u6211\u4e0d\u80fd\u3002"


class Recipe(pydantic.BaseModel):
    name: str


@pytest.mark.parametrize("strategy", ["ToolCallingAgent", "SGRAgent", "SGRToolCallingAgent"])
async def test_what_a_model_refuses_is_a_refusal_everywhere(serving: Serving, strategy: str) -> None:
    async with (
        thinking(lambda body: write(refusal=WORDS)) as model,
        serving(llm_base_url=model.url, templates=[clerk(strategy)]) as house,
    ):
        answered = await house.client.chat.completions.parse(
            model=AGENT, messages=[{"role": "user", "content": "A recipe!"}], response_format=Recipe
        )
        message = answered.choices[0].message
        assert (message.refusal, message.content, message.parsed) == (WORDS, None, None)
        assert (answered.choices[0].finish_reason, len(model.bodies)) == ("stop", 1), "it is not asked again"
        async with house.client.chat.completions.stream(
            model=AGENT, messages=[{"role": "user", "content": "A recipe!"}], response_format=Recipe
        ) as stream:
            events = [event async for event in stream]
            completion = await stream.get_final_completion()
            final = completion.choices[0].message
        assert (final.refusal, final.content or None) == (WORDS, None)
        assert "".join(event.delta for event in events if event.type == "refusal.delta") == WORDS
        # A client that resends it goes on with the session; the model is told what it said.
        talk: Any = [user("A recipe!"), message.model_dump(include={"role", "content", "refusal"}), user("Why?")]
        again = await house.client.chat.completions.create(model=AGENT, messages=talk)
        assert again.model == completion.model, "the newest of the two"
        assert [one["content"] for one in model.bodies[-1]["messages"][1:]] == ["A recipe!", WORDS, "Why?"]

        response = await said(house, "A recipe!")
        [item] = [one for one in response["output"] if one["type"] == "message"]
        assert item["content"] == [{"type": "refusal", "refusal": WORDS}]
        assert response["status"] == "completed"
        async with streamed(house, "A recipe!") as reader:
            await reader.to_the_end()
            kinds = [kind for kind in reader.kinds if "refusal" in kind]
            assert kinds == ["refusal.delta", "refusal.done"]
            assert not reader.text
        shown = await house.session(answered.model)
        assert (shown["state"], shown["result"]) == ("COMPLETED", WORDS)
        message_sent = {"messageId": "m", "role": "user", "kind": "message", "parts": [{"kind": "text", "text": "Hi"}]}
        asked = {"jsonrpc": "2.0", "id": 1, "method": "message/send", "params": {"message": message_sent}}
        async with house.http.post(f"/a2a/{AGENT}", json=asked) as a2a:
            assert WORDS in (await a2a.text())


async def test_a_call_that_is_cut_off_is_asked_for_once_more_and_then_the_turn_ends_in_words(serving: Serving) -> None:
    cut = write("", ("clocktool", '{"timezone": "Europe/Os'), finish="length")

    def writer(body: Any) -> Written:
        last = next(one["content"] for one in reversed(body["messages"]) if one["role"] == "user")
        if last == "Once" and step_of(body):
            return answering("Noon.") if step_of(body) > 1 else BOTH
        if last == "Later" and step_of(body) == 0:
            return BOTH
        return cut

    async with thinking(writer) as model, serving(llm_base_url=model.url, templates=[clerk()]) as house:
        assert content(await house.say("Once")) == "Noon."
        told = [one["content"] for one in model.bodies[1]["messages"] if one["role"] == "tool"]
        assert told[0].startswith("Error: The reply was cut off in its call of clocktool")
        before = len(model.bodies)
        ended = await house.say("Again")
        assert len(model.bodies) == before + 2
        assert content(ended).startswith("The reply was cut off in its call of clocktool")
        assert ended["choices"][0]["finish_reason"] == "length"
        assert (await house.session(ended["model"]))["state"] == "FAILED"
        before = len(model.bodies)
        assert content(await house.say("Later")).startswith("The reply was cut off in its call of clocktool")
        assert len(model.bodies) == before + 3, "a whole step, and two that were cut"
        response = await said(house, "Again")
        assert (response["status"], response["incomplete_details"]) == ("incomplete", {"reason": "max_output_tokens"})


async def test_a_hybrid_ends_too_where_its_action_is_cut_off_twice(serving: Serving) -> None:
    def writer(body: Any) -> Written:
        if body["tool_choice"] != "required":
            return write("", ("reasoningtool", thought(("clocktool", {}))))
        return write("", ("clocktool", '{"timezone": "Europe/Os'), finish="length")

    templates = [clerk("SGRToolCallingAgent")]
    async with thinking(writer) as model, serving(llm_base_url=model.url, templates=templates) as house:
        assert content(await house.say("Again")).startswith("The reply was cut off")
        assert len(model.bodies) == 4


async def test_what_was_spent_on_thinking_is_told(serving: Serving) -> None:
    def writer(body: Any) -> Written:
        return (
            write("Noon.", reasoning_tokens=30) if step_of(body) else write("", ("clocktool", {}), reasoning_tokens=7)
        )

    async with thinking(writer) as model, serving(llm_base_url=model.url, templates=[clerk()]) as house:
        answered = await house.client.chat.completions.create(
            model=AGENT, messages=[{"role": "user", "content": "What time is it?"}]
        )
        assert answered.usage
        assert answered.usage.completion_tokens_details
        assert answered.usage.completion_tokens_details.reasoning_tokens == 37
        response = await said(house, "What time is it?")
        assert response["usage"]["output_tokens_details"] == {"reasoning_tokens": 37}
        assert (await house.session(answered.model))["usage"]["reasoning_tokens"] == 37
