"""The OpenAI protocol, byte for byte where clients look: chunks, envelopes, headers, models, parameters."""

import asyncio
import base64
import hashlib
import json
from typing import Any

import openai
import pydantic
import pytest

from longhouse.agents.template import PromptPack, Template, ToolPolicy
from longhouse.api import wire
from longhouse.errors import CallerError
from longhouse.models.scripted import Say, call
from server_helpers import AGENT, House, Serving, Sse, chat, content, sse, user

ANSWER = call("finalanswertool", answer="Hello, Ada.")
LOOK = Say(text="Let me look. ", reasoning="Hm. ", calls=call("clocktool").calls)
TOOLS = ("clarificationtool", "finalanswertool", "clocktool")
PIXEL = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)


async def streamed(house: House, **body: Any) -> list[Sse]:
    asked = {"model": AGENT, "messages": [user("Hello")], "stream": True, **body}
    async with asyncio.timeout(20), house.http.post("/v1/chat/completions", json=asked) as response:
        assert response.status == 200
        assert response.headers["content-type"].startswith("text/event-stream")
        return [event async for event in sse(response)]


async def last_request(house: House) -> Any:
    assert house.model is not None
    return house.model.requests[-1]


def read(*messages: Any) -> Any:
    return wire.ChatRequest.model_validate({"model": AGENT, "messages": [*messages]}).messages


def test_a_history_of_texts_is_read_like_any_other() -> None:
    roles = ("system", "developer", "user", "assistant")
    texts = [{"role": role, "content": f"Да, {role}: 好\n", "name": "ann", "refusal": None} for role in roles]
    parts = {"role": "user", "content": [{"type": "text", "text": "Hello"}]}
    calls = [{"id": "c1", "type": "function", "function": {"name": "look", "arguments": "{}"}}]
    called = {"role": "assistant", "content": "I look.", "tool_calls": calls}
    result = {"role": "tool", "content": "Rain", "tool_call_id": "c1"}

    def told(messages: Any) -> list[Any]:
        return [(one.role, one.content, one.text, one.tool_calls, one.tool_call_id) for one in messages]

    plain, *others = read(*texts), read(*texts, parts), read(*texts, called), read(*texts, result)
    assert {type(one) for one in plain} == {wire.TextMessage}
    for one in others:
        assert (told(one[:-1]), {type(message) for message in one}) == (told(plain), {wire.ChatMessage})
    assert [others[0][-1].text, others[1][-1].tool_calls[0].id, others[2][-1].tool_call_id] == ["Hello", "c1", "c1"]

    for bad, where in (
        ({"role": "robot", "content": "x"}, "role"),
        ({"role": "user", "content": 5}, "content"),
        ({"role": "user", "content": "x", "tool_call_id": 5}, "tool_call_id"),
        ({"content": "x"}, "role"),
    ):
        with pytest.raises(pydantic.ValidationError) as refused:
            read(*texts, bad)
        assert refused.value.errors()[0]["loc"][:3] == ("messages", len(texts), where)
    for number in (0, wire.MAX_MESSAGES + 1):
        with pytest.raises(pydantic.ValidationError, match="messages"):
            read(*texts[:1] * number)


def test_a_body_of_texts_is_what_any_decoder_reads_and_is_refused_where_it_would_be() -> None:
    said = [{"role": role, "content": f"{role}: 好 \\ \u2028 Да\n"} for role in ("system", "user", "assistant", "user")]
    rest = {"model": AGENT, "temperature": 0.5, "user": "Аня", "tools": [{"a": 10**30}], "chat_id": 7, "n": None}
    same = [
        {**rest, "messages": said},
        {**rest, "messages": [{**one, "name": "ann"} for one in said]},
        {**rest, "messages": said, "unknown": {"a": [1.5]}},
        {**rest, "messages": [*said, user("no NUL: \\u0000")]},
        {"agent_version": AGENT, "message": "Привет"},
        {"agent_version": AGENT, "messages": said, "message": "Привет"},
        {**rest, "messages": [*said, {"role": "user", "content": [{"type": "text", "text": "Hello"}]}]},
    ]
    for body in same:
        encoded = json.dumps(body, ensure_ascii=False).encode()
        one, other = (
            wire.ChatRequest.model_validate(decode(encoded)) for decode in (wire.ChatRequest.decode, wire.decode)
        )
        assert [(m.role, m.content, m.text) for m in one.messages] == [
            (m.role, m.content, m.text) for m in other.messages
        ]
        assert one.model_dump(exclude={"messages"}) == other.model_dump(exclude={"messages"})
        assert one.system == other.system
    [first, *_] = wire.ChatRequest.decode(json.dumps(same[0]).encode())["messages"]
    assert isinstance(first, wire.TextMessage), "read at once"

    bare = b'{"model":"m","messages":[{"role":"user","content":"%b}]%b}'
    for text, more, told in (
        (b'\xff"', b"", "UTF-8"),
        (b'"', b',"unknown":"\xff"', "UTF-8"),
        (b'","unknown":"\xff"', b"", "UTF-8"),
        (b'"', b',"unknown":1e999', "UTF-8"),
        (b'"', b"},", "UTF-8"),
        (b'\\u0000"', b"", "NUL"),
        (b'"', b',"unknown":"\\u0000"', "NUL"),
        (b'"', b',"user":"\\u0000"', "NUL"),
    ):
        with pytest.raises(CallerError, match=told):
            wire.ChatRequest.decode(bare % (text, more))
    for count, kind in ((0, "too_short"), (wire.MAX_MESSAGES + 1, "too_long")):
        many = wire.ChatRequest.decode(json.dumps({"model": AGENT, "messages": said[1:2] * count}).encode())
        with pytest.raises(pydantic.ValidationError) as refused:
            wire.ChatRequest.model_validate(many)
        assert [(one["loc"], one["type"]) for one in refused.value.errors()] == [(("messages",), kind)]


# Chat completions


async def test_a_stream_has_the_shape_and_the_order_that_clients_expect(serving: Serving) -> None:
    async with serving([LOOK, ANSWER]) as house:
        events = await streamed(house)
        assert {event.event for event in events} == {""}
        assert events[-1].data == "[DONE]"
        chunks = [event.json for event in events[:-1]]
        assert len({(chunk["id"], chunk["created"], chunk["model"]) for chunk in chunks}) == 1
        assert chunks[0]["id"].startswith("chatcmpl-")
        assert isinstance(chunks[0]["created"], int)
        assert (await house.session(chunks[0]["model"]))["state"] == "COMPLETED"
        for chunk in chunks:
            assert chunk["object"] == "chat.completion.chunk"
            assert "usage" not in chunk
            [choice] = chunk["choices"]
            assert choice.keys() == {"index", "delta", "logprobs", "finish_reason"}
            assert (choice["index"], choice["logprobs"]) == (0, None)
            assert choice["delta"].keys() <= {"role", "content", "reasoning_content"}
        assert chunks[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
        assert [chunk["choices"][0]["finish_reason"] for chunk in chunks] == [None] * (len(chunks) - 1) + ["stop"]
        assert chunks[-1]["choices"][0]["delta"] == {}
        texts = [chunk["choices"][0]["delta"].get("content") for chunk in chunks[1:]]
        assert "".join(text for text in texts if text) == "Let me look. \n\nHello, Ada."


async def test_what_the_server_does_is_told_in_x_agent(serving: Serving) -> None:
    async with serving([LOOK, ANSWER, call("clarificationtool", questions=["Who?"])]) as house:
        chunks = [event.json for event in (await streamed(house))[:-1]]
        told = [chunk["x_agent"] for chunk in chunks if chunk.get("x_agent")]
        assert [one["event"] for one in told] == [
            "accepted", "started", "tool_call", "tool_result", "tool_call", "tool_result", "completed",
        ]  # fmt: skip
        shown = await house.session(chunks[0]["model"])
        for one in told:
            assert (one["agent"], one["session_id"], one["depth"]) == (AGENT, shown["session_id"], 0)
            assert (one["trace_id"], one["conversation_id"]) == (shown["trace_id"], shown["conversation_id"])
        assert [one["state"] for one in told] == ["INITED", *["RESEARCHING"] * 5, "COMPLETED"]
        looked, seen = told[2], told[3]
        assert (looked["tool"], looked["call_id"], looked["arguments"]) == ("clocktool", "1-action-0", "{}")
        assert (seen["call_id"], seen["status"]) == ("1-action-0", "ok")

        waiting = (await streamed(house))[-2].json
        assert waiting["choices"][0]["finish_reason"] == "stop"
        asked = waiting["x_agent"]
        assert (asked["event"], asked["status"], asked["call_id"]) == ("waiting", "waiting", "1-action-0")
        assert asked["state"] == "WAITING_FOR_CLARIFICATION"


async def test_usage_comes_last_and_only_when_asked_for(serving: Serving) -> None:
    async with serving([LOOK, ANSWER]) as house:
        chunks = [event.json for event in (await streamed(house, stream_options={"include_usage": True}))[:-1]]
        assert all(chunk["usage"] is None for chunk in chunks[:-1])
        last = chunks[-1]
        assert last["choices"] == []
        assert (last["id"], last["created"], last["model"]) == tuple(chunks[0][k] for k in ("id", "created", "model"))
        usage = last["usage"]
        assert usage["prompt_tokens"] + usage["completion_tokens"] == usage["total_tokens"] > 0
        assert usage["total_tokens"] == (await house.session(last["model"]))["usage"]["total_tokens"]
        assert chunks[-2]["choices"][0]["finish_reason"] == "stop"
        for options in (None, {}, {"include_usage": None}, {"include_usage": False, "include_obfuscation": "no"}):
            assert "usage" not in (await streamed(house, stream_options=options))[-2].json


async def test_an_answer_at_once_has_the_shape_that_clients_expect(serving: Serving) -> None:
    async with serving([LOOK, ANSWER]) as house:
        answer = await house.say("Hello")
        assert answer.keys() == {"id", "object", "created", "model", "choices", "usage", "x_agent"}
        assert answer["object"] == "chat.completion"
        [choice] = answer["choices"]
        assert choice == {
            "index": 0,
            "message": {
                "role": "assistant", "content": "Let me look. \n\nHello, Ada.", "refusal": None,
                "reasoning_content": "Hm. ",
            },
            "logprobs": None,
            "finish_reason": "stop",
        }  # fmt: skip
        assert answer["usage"]["total_tokens"] > 0
        assert answer["x_agent"]["event"] == "completed"
        assert answer["x_agent"]["session_id"] == answer["model"]


async def test_what_a_turn_cost_before_its_question_is_not_counted_again(serving: Serving) -> None:
    async with serving([call("clarificationtool", questions=["Who?"]), ANSWER]) as house:
        asked = await house.say("Hello")
        answered = await house.say("Ada", model=asked["model"])
        whole = (await house.session(asked["model"]))["usage"]
        for field in ("prompt_tokens", "completion_tokens", "total_tokens"):
            assert 0 < asked["usage"][field] < whole[field]
            assert asked["usage"][field] + answered["usage"][field] == whole[field]
        assert asked["id"] != answered["id"]


# Models


async def test_templates_and_sessions_are_models(serving: Serving) -> None:
    policy = ToolPolicy(allowlist=TOOLS)
    templates = [Template(name=AGENT, tool_policy=policy, allow_client_system=allowed) for allowed in (False, True)]
    async with serving(
        [ANSWER], templates=[*templates, Template(name="other", tool_policy=ToolPolicy(allowlist=TOOLS))]
    ) as house:
        listed = await house.client.models.list()
        assert [model.id for model in listed.data] == ["auto", "other", AGENT]
        async with house.http.get("/v1/models") as response:
            body = await response.json()
        assert body["object"] == "list"
        # Clients that choose among agents see what each can; OpenAI's own fields are there in all of them.
        ours = {"capabilities", "tags"}
        assert all(model.keys() - ours == {"id", "object", "created", "owned_by"} for model in body["data"])
        session_id = (await house.say("Hello"))["model"]
        for name in (AGENT, f"{AGENT}@1", f"{AGENT}@2", session_id):
            model = await house.client.models.retrieve(name)
            assert (model.id, model.object) == (name, "model")
        for name in ("nobody", f"{AGENT}@3", f"{AGENT}@x", "a/b/c", f"{AGENT}_00000000-0000-4000-8000-000000000000"):
            async with house.http.get(f"/v1/models/{name}") as response:
                assert response.status == 404
                error = (await response.json())["error"]
            assert error.keys() == {"message", "type", "param", "code"}
            assert (error["type"], error["code"]) == ("invalid_request_error", "model_not_found")


async def test_a_version_may_be_named_and_holds_for_its_turn(serving: Serving) -> None:
    templates = [
        Template(
            name=AGENT,
            tool_policy=ToolPolicy(allowlist=TOOLS),
            version=version,
            prompt_pack=PromptPack(system_prompt=f"Version {version}.", initial_user_request="{current_date}: {task}"),
        )
        for version in (1, 2)
    ]
    async with serving([ANSWER] * 3, templates=templates) as house:
        for model, version in ((AGENT, 2), (f"{AGENT}@1", 1), (f"{AGENT}@2", 2)):
            answer = await house.say("Hello", model=model)
            assert (await last_request(house))["messages"][0]["content"] == f"Version {version}."
            assert (await house.session(answer["model"]))["version"] == version
            assert answer["model"].startswith(f"{AGENT}_")


async def test_an_unknown_model_is_not_found_and_leaves_no_trace(serving: Serving) -> None:
    async with serving([ANSWER]) as house:
        for model in ("gpt-4o", f"{AGENT}@9", f"{AGENT}_00000000-0000-4000-8000-000000000000"):
            for stream in (False, True):
                with pytest.raises(openai.NotFoundError) as raised:
                    await house.client.chat.completions.create(
                        model=model,
                        messages=[{"role": "user", "content": "Hello"}],
                        stream=stream,
                    )
                assert raised.value.code == "model_not_found"
                assert raised.value.request_id
        assert await house.db.value("SELECT count(*) FROM sessions") == 0


# Around every answer


async def test_every_answer_has_the_headers_that_clients_look_for(serving: Serving) -> None:
    hello = {"model": AGENT, "messages": [user("Hello")]}
    requests: list[tuple[str, str, Any, int]] = [
        ("POST", "/v1/chat/completions", hello, 200),
        ("POST", "/v1/chat/completions", {**hello, "stream": True}, 200),
        ("POST", "/v1/chat/completions", {**hello, "model": "nobody"}, 404),
        ("POST", "/v1/chat/completions", {"model": AGENT}, 400),
        ("GET", "/v1/models", None, 200),
        ("GET", "/v1/sessions/nobody", None, 404),
        ("GET", "/v1/nothing", None, 404),
        ("DELETE", "/v1/models", None, 405),
    ]
    async with serving([ANSWER] * 2) as house:
        ids = set()
        for method, path, body, status in requests:
            async with house.http.request(method, path, json=body) as response:
                assert response.status == status
                ids.add(response.headers["x-request-id"])
                assert response.headers["openai-processing-ms"].isdecimal()
                assert response.headers["openai-version"] == "2020-10-01"
                await response.read()
        assert len(ids) == len(requests)


async def test_a_route_that_is_not_there_has_the_envelope_too(serving: Serving) -> None:
    async with serving([]) as house:
        for method, path, status, code in (
            ("GET", "/v1", 404, "not_found"),
            ("GET", "/v1/nothing", 404, "not_found"),
            ("POST", "/v1/embeddings", 404, "not_found"),
            ("GET", "/v1/chat/completions", 405, "method_not_allowed"),
            ("PUT", "/v1/sessions", 405, "method_not_allowed"),
        ):
            async with house.http.request(method, path) as response:
                assert response.status == status
                assert response.content_type == "application/json"
                error = (await response.json())["error"]
            assert error.keys() == {"message", "type", "param", "code"}
            assert (error["type"], error["code"]) == ("invalid_request_error", code)


# What the client asks of the model


async def test_what_is_not_offered_says_so(serving: Serving) -> None:
    async with serving([]) as house:
        for name in ("compact", "input_tokens"):
            body = {"model": AGENT, "input": "Hello"}
            async with house.http.post(f"/v1/responses/{name}", json=body) as response:
                error = (await response.json())["error"]
                assert (response.status, error["code"]) == (404, "not_offered")
        for part in ({"type": "file", "file": {"file_data": "x"}}, {"type": "input_audio", "input_audio": {}}):
            refused = await chat(house, [{"role": "user", "content": [part]}])
            assert refused["error"]["param"].startswith("messages[0].content")
            assert "POST /v1/responses, as input_file" in refused["error"]["message"]
            assert "Input tag" not in refused["error"]["message"]


async def test_a_request_of_the_seed_is_answered_with_a_stream(serving: Serving) -> None:
    """As it is written: no field says that it shall be one. Other requests are answered as their clients accept it."""
    accepts = {"Accept": "text/event-stream"}
    seed = {"message": "Hello", "chat_id": 12345, "context": [], "subagent_contexts": {}, "agent_version": AGENT}
    plain = {"model": AGENT, "messages": [user("Hello")]}
    tries: list[tuple[Any, dict[str, str], bool]] = [
        (seed, {}, True),
        (seed, {"Accept": "application/json"}, True),
        (plain, accepts, True),
        (plain, {}, False),
        (plain, {"Accept": "application/json, text/event-stream"}, False),
        ({**plain, "stream": None}, accepts, True),
        ({**plain, "stream": False}, accepts, False),
        ({**seed, "stream": False}, accepts, False),
    ]
    async with serving(lambda body: ANSWER) as house:
        for body, headers, is_stream in tries:
            async with house.http.post("/v1/chat/completions", json=body, headers=headers) as response:
                assert response.status == 200, await response.text()
                kind = response.headers["content-type"].partition(";")[0]
                assert kind == ("text/event-stream" if is_stream else "application/json"), (body, headers)
                assert "Hello, Ada." in await response.text()


async def test_what_an_agent_does_not_take_is_listed_as_ignored(serving: Serving) -> None:
    tools = [{"type": "function", "function": {"name": "delete_all", "parameters": {"type": "object"}}}]
    shut = Template(name=AGENT, tool_policy=ToolPolicy(allowlist=TOOLS), allow_client_tools=False)
    async with serving([ANSWER] * 3, templates=[shut]) as house:
        answer = await house.say("Hello", tools=tools, tool_choice="auto", parallel_tool_calls=True, made_up=1)
        assert content(answer) == "Hello, Ada."
        assert "tools" in answer["x_agent"]["ignored"]
        assert "delete_all" not in str(await last_request(house))
        first = (await streamed(house, tools=tools))[0].json
        assert "tools" in first["x_agent"]["ignored"]
        assert "ignored" not in (await house.say("Hello"))["x_agent"]


async def test_system_texts_of_the_client_follow_the_prompt_of_the_template(serving: Serving) -> None:
    # With a date in one of the prompts, none is added to the system's.
    pack = PromptPack(system_prompt="You are careful.", clarification_response="{clarifications} ({current_date})")
    deaf = Template(name="deaf", tool_policy=ToolPolicy(allowlist=TOOLS), prompt_pack=pack, allow_client_system=False)
    said = [
        {"role": "system", "content": "Be brief."},
        user("Hello"),
        {"role": "developer", "content": [{"type": "text", "text": "Speak {current_date} Norwegian."}]},
        user("Who am I?"),
    ]
    async with serving(
        [ANSWER] * 3, templates=[Template(name=AGENT, tool_policy=ToolPolicy(allowlist=TOOLS), prompt_pack=pack), deaf]
    ) as house:
        answer = await chat(house, said, custom_system_prompt="Be kind.")
        messages = (await last_request(house))["messages"]
        system = {
            "role": "system",
            "content": "You are careful.\n\nBe brief.\n\nSpeak {current_date} Norwegian.\n\nBe kind.",
        }
        assert messages == [system, user("Hello"), user("Who am I?")]
        # They belong to their turn.
        await house.say("And now?", model=answer["model"])
        assert (await last_request(house))["messages"][0]["content"] == "You are careful."
        await chat(house, said, model="deaf")
        assert (await last_request(house))["messages"][0]["content"] == "You are careful."


async def test_sampling_reaches_the_model_for_this_turn(serving: Serving) -> None:
    shape = {"type": "json_schema", "json_schema": {"name": "z", "schema": {"type": "object", "a": {}}}}
    sampling: dict[str, Any] = {
        "temperature": 0,
        "top_p": 0.5,
        "max_tokens": 77,
        "seed": 7,
        "stop": ["\n"],
        "response_format": shape,
    }
    async with serving([LOOK, call("finalanswertool", answer='{"a": 1}'), ANSWER, ANSWER]) as house:
        answer = await house.say("Hello", **sampling)
        assert house.model is not None
        for request in house.model.requests:
            assert {name: request[name] for name in sampling} == sampling
            assert list(request["response_format"]["json_schema"]) == ["name", "schema"]
        await house.say("More", model=answer["model"])
        later = await last_request(house)
        assert (later["temperature"], later["max_tokens"]) == (0.4, 8000)
        assert later.keys().isdisjoint({"top_p", "seed", "stop", "response_format"})
        await house.say("Hello", max_completion_tokens=55)
        assert (await last_request(house))["max_tokens"] == 55


async def test_images_are_files_here_and_data_urls_to_the_model(serving: Serving) -> None:
    url = f"data:image/png;base64,{base64.b64encode(PIXEL).decode()}"
    image = {"type": "image_url", "image_url": {"url": url, "detail": "low"}}
    picture = {"role": "user", "content": [{"type": "text", "text": "What is this?"}, image]}
    async with serving([ANSWER] * 2) as house:
        answer = await chat(house, [picture])
        assert (await last_request(house))["messages"][1] == picture
        row = await house.db.row("SELECT digest, media_type, content FROM files")
        assert row is not None
        assert tuple(row) == (hashlib.sha256(PIXEL).hexdigest(), "image/png", PIXEL)
        body = await house.db.value("SELECT string_agg(body::text, '') FROM journal")
        assert row["digest"] in body
        assert "base64" not in body
        # It is shown again with every later request of the session.
        await house.say("Sure?", model=answer["model"])
        assert (await last_request(house))["messages"][1] == picture
        remote = {"type": "image_url", "image_url": {"url": "http://127.0.0.1:1/a.png"}}
        refused = await chat(house, [{"role": "user", "content": [remote]}])
        assert refused["error"]["type"] == "invalid_request_error"
        assert refused["error"]["param"]
