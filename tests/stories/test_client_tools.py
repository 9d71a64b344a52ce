"""Functions of a client: the agent calls them, the session rests, and the client's result goes on with the turn."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest
from openai.types.chat import ChatCompletionChunk
from strategy_replies import WRITE, offered, written

from client_tools import WEATHER, Program, arguments, finish, function, result
from longhouse.agents.template import Abilities, LLMPolicy, Streaming, Template, ToolPolicy
from longhouse.journal import events
from longhouse.models.scripted import Say, call, calls, say
from server_helpers import AGENT, House, Serving, assistant, content, dictated, user

ASK, TELL = call("get_weather", city="Oslo"), call("finalanswertool", answer="Rain in Oslo.")
PLAIN = Template(name="plain", tool_policy=ToolPolicy(allowlist=()))
CLERK = Template(name="clerk", tool_policy=ToolPolicy(allowlist=("clocktool", "clarificationtool", "finalanswertool")))


def error(answer: Any) -> tuple[str | None, str | None]:
    return answer["error"]["code"], answer["error"]["param"]


async def results_seen(house: House) -> list[tuple[str, str]]:
    """Role and content of what the model was last shown behind the task."""
    assert house.model is not None
    return [
        (one["role"], one.get("content", "")) for one in house.model.requests[-1]["messages"] if one["role"] != "system"
    ]


# The road


async def test_a_call_rests_until_the_client_sends_its_result(serving: Serving) -> None:
    async with serving([ASK, TELL]) as house:
        asked = await house.client.chat.completions.create(
            model=AGENT,
            messages=[{"role": "user", "content": "Rain?"}],
            tools=[WEATHER],
        )
        [choice] = asked.choices
        assert (choice.finish_reason, choice.message.content) == ("tool_calls", None)
        [wanted] = choice.message.tool_calls or []
        assert wanted.type == "function"
        assert (wanted.function.name, wanted.function.arguments) == ("get_weather", '{"city":"Oslo"}')

        assert house.app.worker.busy == 0, "nobody waits for it"
        shown = await house.session(asked.model)
        assert shown["state"] == "WAITING_FOR_CLARIFICATION"
        [question] = shown["questions"]
        assert (question["kind"], question["tool"]) == ("client", "get_weather")
        async with house.http.get(f"/v1/sessions/{asked.model}/messages") as response:
            history = (await response.json())["data"]
        assert [one["role"] for one in history] == ["user", "assistant"], "it has no result yet"
        async with house.http.get("/v1/questions", params={"kind": "client"}) as response:
            [listed] = (await response.json())["data"]
        assert (listed["root"], listed["tool"], listed["text"]) == (
            asked.model,
            "get_weather",
            "The client runs get_weather, and has not sent its result yet.",
        )

        messages: list[Any] = [
            user("Rain?"),
            choice.message.model_dump(exclude_unset=True),
            result(wanted.id, "12°, дождь"),
        ]
        told = await house.client.chat.completions.create(model=AGENT, messages=messages, tools=[WEATHER])
        assert (told.choices[0].finish_reason, told.choices[0].message.content) == ("stop", "Rain in Oslo.")
        assert told.model == asked.model
        assert await house.kinds(asked.model) == [
            "Opened", "Prompted", "Started", "Replied", "Called", "Returned",
            "Replied", "Called", "Returned", "Finished",
        ]  # fmt: skip
        assert house.model is not None
        first, second = house.model.requests
        assert "get_weather" in offered(first)
        assert "finalanswertool" in offered(first), "beside the agent's own"
        [sent] = [one for one in first["tools"] if one["function"]["name"] == "get_weather"]
        assert sent["function"]["parameters"] == WEATHER["function"]["parameters"]
        assert second["messages"][-1] == {"role": "tool", "tool_call_id": "1-action-0", "content": "12°, дождь"}

        # The conversation goes on as any other, also without tools.
        house.model.will(call("finalanswertool", answer="Bye."))
        messages += [assistant("Rain in Oslo."), user("Thanks")]
        last = await house.client.chat.completions.create(model=AGENT, messages=messages)
        assert (last.model, last.choices[0].message.content) == (asked.model, "Bye.")
        assert "get_weather" not in offered(house.model.requests[-1])


async def test_a_call_is_streamed_as_openai_streams_it(serving: Serving) -> None:
    both = calls(say("I look. "), ASK, call("get_weather", city="Rome"))
    async with serving([both, TELL]) as house:
        messages: list[Any] = [user("Rain?")]
        streamed = await house.client.chat.completions.create(
            model=AGENT,
            messages=messages,
            tools=[WEATHER],
            stream=True,
            stream_options={"include_usage": True},
        )
        text, made, ends, usage = "", dict[int, dict[str, Any]](), [], None
        async for chunk in streamed:
            assert isinstance(chunk, ChatCompletionChunk)
            usage = chunk.usage or usage
            for choice in chunk.choices:
                text += choice.delta.content or ""
                ends += [choice.finish_reason] if choice.finish_reason else []
                for part in choice.delta.tool_calls or ():
                    assert part.function is not None
                    one = made.setdefault(part.index, {"id": part.id, "name": part.function.name, "arguments": ""})
                    one["arguments"] += part.function.arguments or ""
        assert (text, ends) == ("I look. ", ["tool_calls"])
        assert [(one["name"], one["arguments"]) for one in made.values()] == [
            ("get_weather", '{"city":"Oslo"}'),
            ("get_weather", '{"city":"Rome"}'),
        ]
        assert usage is not None
        assert usage.total_tokens > 0
        wanted = [
            {"id": one["id"], "type": "function", "function": {"name": one["name"], "arguments": one["arguments"]}}
            for one in made.values()
        ]
        messages += [{"role": "assistant", "content": text, "tool_calls": wanted}]
        messages += [result(one["id"], f"{index}°") for index, one in made.items()]
        async with house.client.chat.completions.stream(model=AGENT, messages=messages, tools=[WEATHER]) as stream:
            told = await stream.get_final_completion()
        assert told.choices[0].message.content == "Rain in Oslo."
        assert told.choices[0].finish_reason == "stop"


@pytest.mark.parametrize("agent", WRITE)
@pytest.mark.parametrize("tools", [("clocktool",), ()])
async def test_every_strategy_offers_them(serving: Serving, agent: str, tools: tuple[str, ...]) -> None:
    script = written(agent, ("get_weather", {"city": "Осло"}), ("finalanswertool", {"answer": "Дождь."}))
    template = Template(name="thinker", base_agent_class=agent, tool_policy=ToolPolicy(allowlist=tools))
    async with serving(script, templates=[template]) as house:
        program = Program(house, model="thinker")
        asked = await program.say("Дождь?")
        assert finish(asked) == "tool_calls"
        assert "ignored" not in asked["x_agent"]
        assert [arguments(one) for one in program.calls] == [{"city": "Осло"}]
        told = await program.send(*program.results("12°"))
        assert (finish(told), content(told), told["model"]) == ("stop", "Дождь.", asked["model"])
        for step in range(1, len(script) + 1):
            async with house.http.get(f"/v1/sessions/{told['model']}/steps/{step}/request") as response:
                assert (await response.json())["matches"], "it can be composed again"


async def test_own_tools_run_while_those_of_the_client_wait(serving: Serving) -> None:
    mixed = calls(ASK, call("clocktool"), call("get_weather", city="Rome"))
    async with serving([mixed, TELL], templates=[CLERK]) as house:
        program = Program(house, model="clerk")
        session_id = (await program.say("Rain?"))["model"]
        assert [arguments(one)["city"] for one in program.calls] == ["Oslo", "Rome"]
        returned = [one.event for one in await house.journal(session_id) if isinstance(one.event, events.Returned)]
        assert [one.call for one in returned] == ["1-action-1"], "the clock has told the time"

        [first, second] = program.results("1°", "2°")
        status, partly = await program.sent(second)
        assert (status, *error(partly)) == (400, "tool_results_missing", "messages")
        assert f"{first['tool_call_id']} (get_weather)" in partly["error"]["message"]
        assert second["tool_call_id"] not in partly["error"]["message"]
        told = await program.send(second, first)
        assert content(told) == "Rain in Oslo."
        seen = await results_seen(house)
        assert [text for role, text in seen if role == "tool"][::2] == ["1°", "2°"], "in the order of the calls"


async def test_a_question_waits_until_the_client_has_answered(serving: Serving) -> None:
    both = calls(ASK, call("clarificationtool", questions=["Today?"]))
    async with serving([both, TELL], templates=[CLERK]) as house:
        program = Program(house, model="clerk")
        assert finish(await program.say("Rain?")) == "tool_calls"
        asked = await program.send(*program.results("12°"))
        assert (finish(asked), content(asked), asked["x_agent"]["waiting_for"]) == ("stop", "Today?", "clarification")
        assert content(await program.say("Yes")) == "Rain in Oslo."


# Who is meant


async def test_two_equal_conversations_that_wait_at_once_get_their_own_results(serving: Serving) -> None:
    def scene(body: Any) -> Say:
        last = body.messages[-1]
        return call("finalanswertool", answer=f"It is {last.content}") if hasattr(last, "tool_call_id") else ASK

    async with serving(scene) as house:
        one, other = Program(house), Program(house)
        first, second = await one.say("Rain?"), await other.say("Rain?")
        assert first["model"] != second["model"]
        told = await one.send(*one.results("wet")), await other.send(*other.results("dry"))
        assert [content(each) for each in told] == ["It is wet", "It is dry"]
        assert [each["model"] for each in told] == [first["model"], second["model"]]


async def test_a_client_may_change_and_leave_out_what_was_said(serving: Serving) -> None:
    async with serving([calls(say("Let me see."), ASK), TELL, call("finalanswertool", answer="Bye.")]) as house:
        program = Program(house)
        session_id = (await program.say("Rain?"))["model"]
        [made] = program.calls
        short: list[Any] = [{"role": "assistant", "content": None, "tool_calls": [made]}, result(made["id"], "12°")]
        program.messages = []
        told = await program.send(*short)
        assert (content(told), told["model"]) == ("Rain in Oslo.", session_id)
        assert (await program.say("Thanks"))["model"] == session_id, "and what it sent is what it is known by"


async def test_a_named_conversation_and_a_session_take_results_alone(serving: Serving) -> None:
    async with serving([ASK, TELL, ASK, TELL]) as house:
        program = Program(house, metadata={"conversation_id": "talk"})
        session_id = (await program.say("Rain?"))["model"]
        given, program.messages = program.results("12°"), []
        told = await program.send(*given)
        assert (content(told), told["model"]) == ("Rain in Oslo.", session_id)

        direct = Program(house, model=session_id)
        asked = await direct.say("And now?")
        assert finish(asked) == "tool_calls"
        [question] = (await house.session(session_id))["questions"]
        direct.messages = []
        told = await direct.send(result(question["call_id"], "13°"))
        assert (content(told), told["model"]) == ("Rain in Oslo.", session_id), (
            "the session's own id of the call will do"
        )
        async with house.http.get("/v1/sessions") as response:
            assert len((await response.json())["data"]) == 1


async def test_auto_finds_the_agent_that_waits(serving: Serving) -> None:
    cast: Any = {"templates": [CLERK, PLAIN]}
    async with serving([ASK, TELL], default_template="clerk", **cast) as house:
        program = Program(house, model="auto")
        asked = await program.say("Rain?")
        assert house.model is not None
        async with serving(default_template="plain", llm_base_url=house.model.url, **cast) as other:
            program.house = other
            told = await program.send(*program.results("12°"))
        assert (content(told), told["model"]) == ("Rain in Oslo.", asked["model"])


# What comes otherwise


async def test_a_result_for_a_call_that_nobody_made_is_refused(serving: Serving) -> None:
    async with serving([ASK, TELL]) as house:
        program = Program(house)
        session_id = (await program.say("Rain?"))["model"]
        before = await house.kinds(session_id)
        [right] = program.results("12°")
        wrong = result("call_" + "0" * 32, "?")
        status, answer = await program.sent(right, wrong)
        assert (status, *error(answer)) == (400, None, "messages[3]")
        for model, named in ((session_id, {}), (AGENT, {"metadata": {"conversation_id": "other"}})):
            stranger = Program(house, model=model, **named)
            status, answer = await stranger.sent(wrong)
            assert (status, *error(answer)) == (400, "tool_call_not_found", "messages[0].tool_call_id")
        foreign = [user("Hi"), {"role": "assistant", "content": None, "tool_calls": [{**program.calls[0], "id": "x"}]}]
        status, answer = await Program(house).sent(*foreign, result("x", "12°"))
        assert (status, *error(answer)) == (400, "tool_call_not_found", "messages[2].tool_call_id")
        status, answer = await program.sent(right, right)
        assert (status, error(answer)[1]) == (400, "messages[3].tool_call_id"), "one result for one call"
        assert await house.kinds(session_id) == before
        assert content(await program.send(right)) == "Rain in Oslo."


async def test_the_same_result_again_gets_the_same_answer_and_another_one_is_refused(serving: Serving) -> None:
    async with serving([ASK, TELL]) as house:
        program = Program(house)
        session_id = (await program.say("Rain?"))["model"]
        [given] = program.results("12°")
        for _ in range(2):
            status, answer = await program.sent(given)
            assert (status, content(answer), answer["model"]) == (200, "Rain in Oslo.", session_id)
        status, answer = await program.sent(result(given["tool_call_id"], "30°"))
        assert (status, error(answer)[0]) == (409, "already_settled")
        assert (await house.kinds(session_id)).count("Returned") == 2, "and the answer's"


async def test_who_writes_instead_goes_on_without_the_results(serving: Serving) -> None:
    both = calls(ASK, call("get_weather", city="Rome"))
    async with serving([both, call("finalanswertool", answer="As you like.")]) as house:
        program = Program(house)
        session_id = (await program.say("Rain?"))["model"]
        told = await program.say("Forget it")
        assert (finish(told), content(told), told["model"]) == ("stop", "As you like.", session_id)
        seen = await results_seen(house)
        not_run = "Error: the client sent no result of this call: the user has written instead"
        assert seen[-3:] == [("tool", not_run), ("tool", not_run), ("user", "Forget it")]
        kinds = await house.kinds(session_id)
        assert kinds.count("Started") == 1, "in the same turn"


async def test_a_message_that_comes_with_the_results_is_read_after_them(serving: Serving) -> None:
    async with serving([ASK, TELL, call("finalanswertool", answer="Bye.")]) as house:
        program = Program(house)
        session_id = (await program.say("Rain?"))["model"]
        told = await program.send(*program.results("12°"), user("In short"))
        assert (content(told), told["model"]) == ("Rain in Oslo.", session_id)
        assert (await results_seen(house))[-2:] == [("tool", "12°"), ("user", "In short")]
        assert (await program.say("Thanks"))["model"] == session_id


async def test_a_message_behind_the_call_is_told_what_it_waits_for(serving: Serving) -> None:
    async with dictated() as model, serving(llm_base_url=model.url, templates=[CLERK]) as house:
        program = Program(house, model="clerk", chat_id="talk")
        asking = asyncio.create_task(program.say("Rain?"))
        pen = await model.asked()
        later = asyncio.create_task(house.say("And snow?", model="clerk", chat_id="talk"))
        async with asyncio.timeout(20), house.http.get("/v1/sessions") as response:
            [row] = (await response.json())["data"]
            while not (await house.folded(row["session_id"])).queue:
                await asyncio.sleep(0.01)
        pen.call("get_weather", '{"city": "Oslo"}')
        pen.end()
        assert finish(await asking) == "tool_calls"
        told = await later
        assert content(told) == "Your message is next, once a client has sent the result of get_weather."
        assert (finish(told), told["x_agent"]["waiting_for"]) == ("stop", "client"), "it is not asked to run anything"
        answering = asyncio.create_task(program.send(*program.results("12°")))
        for answer in ("Rain.", "Snow."):
            pen = await model.asked()
            pen.call("finalanswertool", f'{{"answer": "{answer}"}}')
            pen.end()
        assert content(await answering) == "Rain."
        assert (await house.until(row["session_id"], "COMPLETED"))["result"] == "Snow."


async def test_a_cancelled_turn_takes_no_result(serving: Serving) -> None:
    async with serving([ASK, TELL]) as house:
        program = Program(house)
        session_id = (await program.say("Rain?"))["model"]
        async with house.http.post(f"/v1/sessions/{session_id}/cancel") as response:
            assert response.status == 202
        status, answer = await program.sent(*program.results("12°"))
        assert (status, error(answer)[0]) == (409, "already_settled")
        assert "the turn was cancelled" in answer["error"]["message"]
        assert (await house.session(session_id))["state"] == "CANCELLED"


async def test_nobody_can_answer_for_the_client_but_an_operator_can_give_up(serving: Serving) -> None:
    async with serving([ASK, TELL]) as house:
        program = Program(house)
        session_id = (await program.say("Rain?"))["model"]
        [question] = (await house.session(session_id))["questions"]
        call_id = question["call_id"]
        for path, body in (
            (f"/v1/sessions/{session_id}/clarification", {"answer": "wet"}),
            (f"/v1/sessions/{session_id}/clarification", {"answer": "wet", "call_id": call_id}),
            (f"/v1/sessions/{session_id}/approval", {"call_id": call_id, "decision": "approve"}),
            (f"/v1/sessions/{session_id}/approval", {"call_id": call_id, "decision": "happened", "result": "wet"}),
            (f"/agents/{session_id}/provide_clarification", {"clarifications": "wet"}),
        ):
            async with house.http.post(path, json=body) as response:
                assert response.status in (400, 409), path
        async with house.http.get(f"/agents/{session_id}/state") as response:
            assert (await response.json())["state"] == "waiting_for_clarification"
        async with house.http.get(f"/v1/sessions/{session_id}/timeline") as response:
            [turn] = (await response.json())["turns"]
        assert [one["for"] for one in turn["waits"]] == ["client"]
        given_up = {"call_id": call_id, "decision": "give_up"}
        async with house.http.post(f"/v1/sessions/{session_id}/approval", json=given_up) as response:
            assert response.status == 202
        await house.until(session_id, "COMPLETED")
        assert (await results_seen(house))[-1] == (
            "tool",
            "Error: the client has not sent a result, and the call was given up",
        )
        status, answer = await program.sent(*program.results("12°"))
        assert (status, error(answer)[0]) == (409, "already_settled")


async def test_arguments_that_do_not_fit_go_back_to_the_model(serving: Serving) -> None:
    wrong = calls(call("get_weather", city="Oslo", days=0), call("get_weather"), call("get_weather", town="Oslo"))
    async with serving([wrong, ASK, TELL]) as house:
        program = Program(house)
        assert finish(await program.say("Rain?")) == "tool_calls"
        assert [arguments(one) for one in program.calls] == [{"city": "Oslo"}]
        results = [text for role, text in await results_seen(house) if role == "tool"]
        assert all(text.startswith("Error: the arguments of get_weather do not fit:") for text in results)
        assert len(results) == 3


# Who takes them


async def test_a_template_says_whether_it_takes_them(serving: Serving) -> None:
    shut = replace(CLERK, allow_client_tools=False)
    async with serving([ASK, TELL], templates=[shut]) as house:
        told = await Program(house, model="clerk", tool_choice="auto").say("Rain?")
        assert told["x_agent"]["ignored"] == ["tools", "tool_choice"]
        assert content(told) == "Rain in Oslo."
        assert house.model is not None
        assert all("get_weather" not in offered(request) for request in house.model.requests)
        unread = await Program(house, {"type": "nonsense"}, model="clerk").say("Rain?")
        assert unread["error"]["code"] == "provider_error", "what is not taken is not looked at"


async def test_the_version_that_a_turn_begins_with_says_whether_they_are_taken(serving: Serving) -> None:
    async with dictated() as model, serving(llm_base_url=model.url, templates=[CLERK]) as house:
        running = asyncio.create_task(house.say("Wait", model="clerk", chat_id="talk"))
        pen = await model.asked()
        later = asyncio.create_task(Program(house, model="clerk", chat_id="talk").say("Rain?"))
        async with asyncio.timeout(20), house.http.get("/v1/sessions") as response:
            [row] = (await response.json())["data"]
            while not (await house.folded(row["session_id"])).queue:
                await asyncio.sleep(0.01)
        shut = {"name": "clerk", "allow_client_tools": False, "tool_policy": {"allowlist": ["finalanswertool"]}}
        async with house.http.post("/admin/templates", json=shut) as response:
            assert response.status == 201
        for answer in ("Done.", "Who knows."):
            assert "get_weather" not in offered(pen.body)
            pen.call("finalanswertool", f'{{"answer": "{answer}"}}')
            pen.end()
            pen = await model.asked() if answer == "Done." else pen
        assert [content(await one) for one in (running, later)] == ["Done.", "Who knows."]


async def test_a_sub_agent_does_not_see_them(serving: Serving) -> None:
    def scene(body: Any) -> Say:
        is_below = "Look." in str(body.messages[1])
        last = body.messages[-1]
        if is_below:
            return call("get_weather", city="Oslo") if not hasattr(last, "tool_call_id") else TELL
        return call("agent_clerk", task="Look.") if not hasattr(last, "tool_call_id") else TELL

    boss = Template(name="boss", tool_policy=ToolPolicy(allowlist=("agent.clerk", "finalanswertool")))
    async with serving(scene, templates=[boss, CLERK]) as house:
        told = await Program(house, model="boss").say("Rain?")
        assert (finish(told), content(told)) == ("stop", "Rain in Oslo.")
        assert house.model is not None
        for request in house.model.requests:
            is_below = "Look." in str(request["messages"][1])
            assert ("get_weather" in offered(request)) is not is_below
        below = [one for one in house.model.requests if "Look." in str(one["messages"][1])][-1]
        assert "is not among the tools" in below["messages"][-1]["content"]


async def test_a_name_that_the_agent_has_itself_is_refused(serving: Serving) -> None:
    careful = replace(CLERK, tool_policy=replace(CLERK.tool_policy, denylist=("rm",)))
    async with serving([ASK, TELL], templates=[careful]) as house:
        for name, code in (
            ("clocktool", "tool_name_taken"),
            ("finalanswertool", "tool_name_taken"),
            ("ClockTool", "tool_name_taken"),
            ("FinalAnswerTool", "tool_name_taken"),
            ("rm", "tool_not_allowed"),
        ):
            status, answer = await Program(house, WEATHER, function(name), model="clerk").sent(user("Rain?"))
            assert (status, *error(answer)) == (400, code, "tools[1].function.name")
            assert repr(name) in answer["error"]["message"]
        # What exists and is not the agent's may have the same name.
        assert (
            finish(await Program(house, WEATHER, function("listdocuments"), model="clerk").say("Rain?")) == "tool_calls"
        )


async def test_another_owner_cannot_answer(serving: Serving) -> None:
    async with serving([ASK, TELL], admin_key="k3y") as house:
        program, keys = Program(house), []
        for owner in ("shop", "bank"):
            body = {"name": owner, "owner": owner, "role": "user"}
            async with house.http.post("/admin/keys", json=body, headers={"authorization": "Bearer k3y"}) as response:
                keys.append((await response.json())["key"])
        program.headers = {"authorization": f"Bearer {keys[0]}"}
        assert finish(await program.say("Rain?")) == "tool_calls"
        given = program.results("12°")
        program.headers = {"authorization": f"Bearer {keys[1]}"}
        status, answer = await program.sent(*given)
        assert (status, *error(answer)) == (400, "tool_call_not_found", "messages[2].tool_call_id")
        program.headers = {"authorization": f"Bearer {keys[0]}"}
        assert content(await program.send(*given)) == "Rain in Oslo."


# What the model may do


def choice_of(request: Any) -> Any:
    return request["tool_choice"]


@pytest.mark.parametrize("agent", WRITE)
async def test_a_choice_of_the_client_is_kept_until_the_first_call(serving: Serving, agent: str) -> None:
    script = written(agent, ("get_weather", {"city": "Oslo"}), ("finalanswertool", {"answer": "Rain."}))
    template = Template(name="thinker", base_agent_class=agent, tool_policy=ToolPolicy(allowlist=("clocktool",)))
    async with serving(script, templates=[template]) as house:
        one = {"type": "function", "function": {"name": "get_weather"}}
        program = Program(house, WEATHER, function("get_time"), model="thinker")
        await program.say("Rain?", tool_choice=one)
        assert house.model is not None
        last = house.model.requests[-1]
        assert {*offered(last)} - {"reasoningtool"} == {"get_weather"}
        assert content(await program.send(*program.results("12°"))) == "Rain."
        last = house.model.requests[-1]
        assert {"get_weather", "get_time", "clocktool", "finalanswertool"} <= {*offered(last)}


async def test_what_the_choices_mean(serving: Serving) -> None:
    async with serving(lambda body: TELL, templates=[CLERK]) as house:
        assert house.model is not None
        allowed = {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [function("get_time")]}}
        for choice, names in (
            ("auto", {"get_weather", "get_time"}),
            ("none", set[str]()),
            (allowed, {"get_time"}),
        ):
            await Program(house, WEATHER, function("get_time"), model="clerk").say("Rain?", tool_choice=choice)
            assert {*offered(house.model.requests[-1])} & {"get_weather", "get_time"} == names, choice
        await Program(house, WEATHER, function("get_time"), model="clerk").sent(user("Rain?"), tool_choice="required")
        demanded = house.model.requests[0 - len(house.model.requests) + 3]
        assert ({*offered(demanded)}, choice_of(demanded)) == ({"get_weather", "get_time"}, "required")


async def test_one_call_at_a_time(serving: Serving) -> None:
    both = calls(ASK, call("get_weather", city="Rome"))
    async with serving([both, TELL]) as house:
        program = Program(house, parallel_tool_calls=False)
        await program.say("Rain?")
        assert [arguments(one)["city"] for one in program.calls] == ["Oslo"]
        assert content(await program.send(*program.results("12°"))) == "Rain in Oslo."
        assert house.model is not None
        assert all(not request.get("parallel_tool_calls") for request in house.model.requests)
        assert "one call at a time" in house.model.requests[-1]["messages"][-1]["content"]


async def test_who_sends_results_without_tools_takes_them_back(serving: Serving) -> None:
    async with serving([ASK, TELL]) as house:
        program = Program(house)
        await program.say("Rain?")
        assert content(await program.send(*program.results("12°"), tools=None)) == "Rain in Oslo."
        assert house.model is not None
        assert "get_weather" not in offered(house.model.requests[-1])


async def test_an_agent_that_shows_its_own_calls_shows_none_where_the_client_runs_some(serving: Serving) -> None:
    policy = LLMPolicy(streaming=Streaming(tool_activity="tool_calls"))
    async with serving([call("clocktool"), ASK, TELL], templates=[replace(CLERK, llm_policy=policy)]) as house:
        streamed = await house.client.chat.completions.create(
            model="clerk",
            messages=[{"role": "user", "content": "Rain?"}],
            tools=[WEATHER],
            stream=True,
        )
        made = [part async for chunk in streamed for part in chunk.choices[0].delta.tool_calls or ()]
        assert [part.function.name for part in made if part.function and part.function.name] == ["get_weather"]


async def test_an_endpoint_that_cannot_force_calls_may_be_told_in_words(serving: Serving) -> None:
    policy = LLMPolicy(can=Abilities(forced_tool_choice=False))
    async with serving([ASK, say("Rain, I hear.")], templates=[replace(PLAIN, llm_policy=policy)]) as house:
        program = Program(house, model="plain")
        assert finish(await program.say("Rain?")) == "tool_calls"
        assert content(await program.send(*program.results("12°"))) == "Rain, I hear."


async def test_at_the_end_of_its_steps_an_agent_calls_no_client(serving: Serving) -> None:
    short = replace(CLERK, execution_policy=replace(CLERK.execution_policy, max_iterations=1))
    async with serving([ASK, ASK, TELL], templates=[short]) as house:
        program = Program(house, model="clerk")
        await program.say("Rain?")
        assert content(await program.send(*program.results("12°"))) == "Rain in Oslo."
        assert house.model is not None
        assert "get_weather" not in offered(house.model.requests[1])
