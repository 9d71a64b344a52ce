"""A caller that keeps memory itself: histories come with the request, and what is to be saved comes back."""

import json
from typing import Any

import delegating_server as agents
from longhouse.models.scripted import call, calls
from server_helpers import House, Serving, sse

TOLD = [{"role": "user", "content": "The user is Алия"}, {"role": "assistant", "content": "I will remember"}]


def requests_of(house: House) -> list[Any]:
    assert house.model is not None
    return house.model.requests


async def ask(house: House, **body: Any) -> list[dict[str, Any]]:
    """What the stream says of agents, in its order."""
    async with house.http.post("/v1/chat/completions", json={"stream": True, **body}) as response:
        assert response.status == 200, await response.text()
        chunks = [json.loads(chunk.data) async for chunk in sse(response) if chunk.data != "[DONE]"]
    return [chunk["x_agent"] for chunk in chunks if chunk.get("x_agent")]


async def test_the_whole_body_of_such_a_caller_is_accepted_and_its_histories_are_used(serving: Serving) -> None:
    script = [call("agent_analytic", task="What is the name?"), call("finalanswertool", answer="Алия"),
              call("agent_analytic", task="Again?"), call("finalanswertool", answer="Still Алия"),
              call("finalanswertool", answer="Your name is Алия")]  # fmt: skip
    async with serving(script) as house:
        body = {
            "message": "What is my name?",
            "chat_id": 12345,
            "context": [{"role": "user", "content": "Hello"}, {"role": "assistant", "content": "Hi"}],
            "subagent_contexts": {"analytic": TOLD},
            "agent_version": "master",
            "stream": False,
        }
        async with house.http.post("/v1/chat/completions", json=body) as response:
            answered = await response.json()
        assert answered["choices"][0]["message"]["content"] == "Your name is Алия"
        master, first, _, second, _ = [request["messages"] for request in requests_of(house)]
        assert [message["content"] for message in master[1:]] == ["Hello", "Hi", "What is my name?"]
        assert first[1:] == [*TOLD, {"role": "user", "content": "What is the name?"}]
        assert second[1:-1] == [*first[1:], {"role": "assistant", "content": "Алия"}]


async def test_what_is_to_be_saved_comes_back_and_nothing_is_kept(serving: Serving) -> None:
    scene = [call("agent_analytic", task="The user is Алия"), call("finalanswertool", answer="I will remember"),
             call("finalanswertool", answer="Done")]  # fmt: skip
    async with serving(scene * 2) as house:
        for _ in range(2):
            told = await ask(
                house, message="I am Алия", chat_id="12345", subagent_contexts={"analytic": []}, agent_version="master"
            )
            saved = [one for one in told if one["event"].startswith("subagent_")]
            assert [one["role"] for one in saved] == ["subagent_delegation", "subagent_completion"]
            assert saved[0]["task"] == "The user is Алия"
            assert saved[1]["response"] == "I will remember"
            assert {(one["subagent_name"], one["chat_id"]) for one in saved} == {("analytic", "12345")}
        children = [request["messages"] for request in requests_of(house)[1::3]]
        assert [[message["content"] for message in one[1:]] for one in children] == [["The user is Алия"]] * 2


async def test_a_sub_agent_that_is_not_named_has_its_own_memory(serving: Serving) -> None:
    scene = [
        call("agent_analytic", task="one"),
        call("finalanswertool", answer="1"),
        call("finalanswertool", answer="x"),
    ]
    async with serving(scene * 2) as house:
        await house.say("go", model="master", chat_id="c")
        await ask(house, message="go", chat_id="c", context=[], agent_version="master")
        last = requests_of(house)[4]["messages"]
        assert [message["content"] for message in last[1:]] == ["one", "1", "one"]


async def test_histories_that_are_no_histories_are_refused(serving: Serving) -> None:
    async with serving([]) as house:
        for body, param in (
            ({"context": "x"}, "context"),
            ({"context": [{"role": "king", "content": "x"}]}, "context"),
            ({"subagent_contexts": {"../x": []}}, "subagent_contexts"),
            ({"subagent_contexts": [1]}, "subagent_contexts"),
            ({"message": 7}, "messages"),
        ):
            sent = {"message": "go", "agent_version": "master", **body}
            async with house.http.post("/v1/chat/completions", json=sent) as response:
                error = (await response.json())["error"]
            assert response.status == 400
            assert error["param"].startswith(param)


def seen_by(house: House, name: str) -> list[list[str]]:
    """What each request of this agent had shown it."""
    return [[one["content"] for one in messages] for messages in agents.requests_of(house.model, name)]


def passing(name: str, **extra: Any) -> agents.Role:
    return lambda body: agents.last_result(body) if agents.results(body) else agents.ask(name, "Who am I?", **extra)


THROUGH_ANOTHER: dict[str, agents.Role] = {
    "master": passing("ann"),
    "ann": passing("ben"),
    "ben": agents.in_steps(agents.answer("known")),
}


async def test_a_sub_agent_that_is_named_has_that_history_whoever_calls_it(serving: Serving) -> None:
    async with agents.playing(serving, THROUGH_ANOTHER) as house:
        for name in ("Алия", "Boris"):
            told = [{"role": "user", "content": f"I am {name}"}, {"role": "assistant", "content": "noted"}]
            await house.say("Go", model="master", chat_id="c", context=[], subagent_contexts={"ben": told})
        await house.say("Go", model="master", chat_id="c", context=[], subagent_contexts={"ben": []})
        assert seen_by(house, "ben") == [["I am Алия", "noted", "Who am I?"], ["I am Boris", "noted", "Who am I?"],
                                         ["Who am I?"]]  # fmt: skip
        # Ann, who is not named, remembers; and Ben has a life of his own that knows nothing of these.
        assert len(await agents.sessions_of(house.db, "ann")) == 1
        await house.say("Go", model="master", chat_id="c")
        assert seen_by(house, "ben")[-1] == ["Who am I?"]


async def test_a_history_that_is_brought_along_is_kept_once(serving: Serving) -> None:
    told = [{"role": "user", "content": "x" * 100_000}]
    fan = calls(*(agents.ask("ann", "Go.", label=f"n{nth}") for nth in range(5)))
    roles = {
        "master": lambda body: agents.answer("done") if agents.results(body) else fan,
        "ann": agents.in_steps(agents.answer("ok")),
    }
    async with agents.playing(serving, roles) as house:
        await house.say("Go", model="master", chat_id="c", context=[], subagent_contexts={"ben": told})
        kept = await house.db.value("SELECT sum(octet_length(content)) FROM files")
        assert 100_000 < kept < 150_000


async def test_calls_of_tools_in_a_history_are_not_taken_for_those_of_the_turn(serving: Serving) -> None:
    def ann(body: Any) -> Any:
        return agents.answer("five") if agents.results(body) else call("clocktool", timezone="UTC")

    used = {"id": "1-action-0", "type": "function", "function": {"name": "clocktool", "arguments": "{}"}}
    told = [
        message
        for _ in range(2)
        for message in (
            {"role": "user", "content": "Time?"},
            {"role": "assistant", "content": "", "tool_calls": [used]},
            {"role": "tool", "content": "17:00", "tool_call_id": "1-action-0", "name": "clocktool"},
            {"role": "assistant", "content": "Five"},
        )
    ]
    async with agents.playing(serving, {"master": passing("ann"), "ann": ann}) as house:
        await house.say("Go", model="master", chat_id="c", context=[], subagent_contexts={"ann": told})
        last = agents.requests_of(house.model, "ann")[-1]
        made = [one["id"] for message in last for one in message.get("tool_calls") or ()]
        answered = [message["tool_call_id"] for message in last if message["role"] == "tool"]
        assert made == answered
        assert len(set(made)) == 3
        assert made[-1] == "1-action-0"


async def test_the_next_message_of_the_chat_answers_what_such_a_turn_has_asked(serving: Serving) -> None:
    script = [
        call("clarificationtool", questions=["Which city?"]),
        call("finalanswertool", answer="Rain in Oslo"),
        call("finalanswertool", answer="A new turn"),
    ]
    async with serving(script) as house:
        body: dict[str, Any] = {
            "chat_id": 7,
            "context": [{"role": "user", "content": "Hello"}],
            "agent_version": "master",
        }
        body["stream"] = False

        async def said(message: str) -> tuple[str, str]:
            async with house.http.post("/v1/chat/completions", json={**body, "message": message}) as response:
                answered = await response.json()
            return answered["model"], answered["choices"][0]["message"]["content"]

        first, question = await said("Will it rain?")
        assert "Which city?" in question
        assert await said("Oslo") == (first, "Rain in Oslo")
        last = requests_of(house)[-1]["messages"]
        assert "Oslo" in last[-1]["content"]
        assert last[1]["content"] == "Hello", "the history that came with the question"
        async with house.http.get("/v1/questions") as response:
            assert (await response.json())["data"] == [], "nothing waits for ever"
        other, answer = await said("And now?")
        assert (other != first, answer) == (True, "A new turn")


async def test_the_history_of_an_agent_that_there_is_not_is_refused(serving: Serving) -> None:
    async with serving([call("finalanswertool", answer="Done")]) as house:
        body = {"message": "Go", "chat_id": 7, "agent_version": "master", "subagent_contexts": {"analytics": TOLD}}
        async with house.http.post("/v1/chat/completions", json=body) as response:
            error = (await response.json())["error"]
            assert (response.status, error["param"]) == (400, "subagent_contexts")
        says = "There is no agent 'analytics' whose history subagent_contexts could be; did you mean analytic?"
        assert error["message"] == says
        async with house.http.post("/admin/templates/analytic/deactivate") as response:
            assert response.status == 200
        async with house.http.post(
            "/v1/chat/completions", json={**body, "subagent_contexts": {"analytic": TOLD}}
        ) as response:
            assert response.status == 200, "it was there"
