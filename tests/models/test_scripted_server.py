"""The scripted server as others see it: its bytes, the openai SDK against it, its command."""

import asyncio
import json
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import openai
import pytest

from longhouse.agents.strategies.protocol import Body
from longhouse.journal.messages import User
from longhouse.models.http.client import open_endpoint
from longhouse.models.openai import OpenAIModel
from longhouse.models.protocol import Model
from longhouse.models.scripted import (
    Call,
    Cut,
    Say,
    ScriptedStatus,
    call,
    say,
)
from longhouse.models.scripted_server import serve


async def text_of(model: Model) -> str:
    body = Body(model="m", messages=[User(content="Hi")])
    return "".join([delta.text async for delta in model.stream(body)])


async def test_the_stream_is_exactly_that_of_openai() -> None:
    reply = Say(text="Hm.", reasoning="So.", calls=(Call(name="weather", arguments={"a": 1}),))
    body = {"model": "m", "messages": [{"role": "user", "content": "Hi"}], "stream": True}
    body["stream_options"] = {"include_usage": True}
    async with serve([reply]) as server, aiohttp.ClientSession() as http:
        async with http.post(f"{server.url}/chat/completions", json=body, headers={"X-Trace": "7"}) as response:
            assert response.content_type == "text/event-stream"
            events = (await response.text()).split("\n\n")
        assert server.requests == [body]
        assert server.headers[0]["x-trace"] == "7"
    assert events[-2:] == ["data: [DONE]", ""]
    chunks = [json.loads(event.removeprefix("data: ")) for event in events[:-2]]
    assert {(each["id"], each["object"], each["created"], each["model"]) for each in chunks} == {
        ("chatcmpl-1", "chat.completion.chunk", chunks[0]["created"], "m")
    }
    assert [each["choices"][0]["delta"] for each in chunks[:-1]] == [
        {"role": "assistant", "content": ""},
        {"reasoning_content": "So."},
        {"content": "Hm."},
        {
            "tool_calls": [
                {"index": 0, "id": "call_1", "type": "function", "function": {"name": "weather", "arguments": ""}}
            ]
        },
        {"tool_calls": [{"index": 0, "function": {"arguments": '{"a":1}'}}]},
        {},
    ]
    assert [each["choices"][0]["finish_reason"] for each in chunks[:-1]] == [None] * 5 + ["tool_calls"]
    assert [each["usage"] for each in chunks[:-1]] == [None] * 6
    assert chunks[-1]["choices"] == []
    assert chunks[-1]["usage"] == {"prompt_tokens": 1, "completion_tokens": 5, "total_tokens": 6}


async def test_usage_is_sent_only_to_those_who_ask() -> None:
    body = {"model": "m", "messages": [{"role": "user", "content": "Hi"}], "stream": True}
    async with (
        serve([say("Hi.")]) as server,
        aiohttp.ClientSession() as http,
        http.post(f"{server.url}/chat/completions", json=body) as response,
    ):
        assert "usage" not in await response.text()


@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("POST", "/chat/completions", b"{", 400),
        ("POST", "/chat/completions", b'{"model": "m"}', 400),
        ("POST", "/chat/completions", b'{"model": "m", "messages": [{"role": "\xff"}]}', 400),
        ("GET", "/nothing", b"", 404),
    ],
)
async def test_errors_come_in_the_envelope(method: str, path: str, body: bytes, status: int) -> None:
    async with (
        serve() as server,
        aiohttp.ClientSession() as http,
        http.request(method, server.url + path, data=body) as response,
    ):
        assert response.status == status
        error = (await response.json())["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["type"] == "invalid_request_error"


# --- the SDK


TOOL: Any = {
    "type": "function",
    "function": {"name": "weather", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}},
}


@asynccontextmanager
async def sdk(*script: Say, max_retries: int = 0) -> AsyncIterator[openai.AsyncOpenAI]:
    async with (
        serve(script) as server,
        openai.AsyncOpenAI(base_url=server.url, api_key="key", max_retries=max_retries) as client,
    ):
        yield client


async def test_the_sdk_lists_the_models() -> None:
    async with sdk() as client:
        assert [model.id async for model in client.models.list()] == ["scripted"]


async def test_the_sdk_reads_a_whole_answer_with_tools_and_goes_on() -> None:
    messages: list[Any] = [{"role": "user", "content": "Rain?"}]
    async with sdk(call("weather", city="Oslo"), say("No rain.", chunk=2, delay=0.001)) as client:
        choice: Any = {"type": "function", "function": {"name": "weather"}}
        first = await client.chat.completions.create(model="m", messages=messages, tools=[TOOL], tool_choice=choice)
        (made,) = first.choices[0].message.tool_calls or []
        assert made.type == "function"
        assert (made.function.name, made.function.arguments) == ("weather", '{"city":"Oslo"}')
        assert first.choices[0].finish_reason == "tool_calls"
        messages += [first.choices[0].message, {"role": "tool", "tool_call_id": made.id, "content": "dry"}]
        second = await client.chat.completions.create(model="m", messages=messages, tools=[TOOL])
    assert second.choices[0].message.content == "No rain."
    assert second.usage
    assert second.usage.total_tokens == second.usage.prompt_tokens + second.usage.completion_tokens


async def test_the_sdk_streams_text_and_tools() -> None:
    reply = Say(text="Let me look.", calls=(Call(name="weather", arguments={"city": "Oslo"}),), chunk=3)
    async with sdk(reply, msgspec.structs.replace(reply, delay=0.001)) as client:
        for _ in range(2):
            async with client.chat.completions.stream(
                model="m",
                messages=[{"role": "user", "content": "Rain?"}],
                tools=[TOOL],
                stream_options={"include_usage": True},
            ) as stream:
                final = await stream.get_final_completion()
            message = final.choices[0].message
            assert message.content == "Let me look."
            assert [made.function.arguments for made in message.tool_calls or []] == ['{"city":"Oslo"}']
            assert final.choices[0].finish_reason == "tool_calls"
            assert final.usage


async def test_the_sdk_meets_real_errors() -> None:
    async with sdk(
        Say(fault=ScriptedStatus(status=429, retry_after=0.01)), Say(fault=ScriptedStatus(status=401)), max_retries=1
    ) as client:
        with pytest.raises(openai.AuthenticationError, match="The script says so"):
            await client.chat.completions.create(model="m", messages=[])
    async with sdk(Say(fault=Cut(after=1), text="Well")) as client:
        with pytest.raises(openai.APIConnectionError):
            await client.chat.completions.create(model="m", messages=[])


# --- the command


async def test_the_command_serves_a_script_until_it_is_told_to_stop(tmp_path: Path) -> None:
    path = tmp_path / "script.json"
    path.write_text('{"by": "step", "replies": [{"text": "Hello."}]}')
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "longhouse.models.scripted_server", str(path), stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout
    url = (await process.stdout.readline()).decode().strip()
    async with open_endpoint(url) as endpoint:
        assert [await text_of(OpenAIModel(endpoint)) for _ in range(2)] == ["Hello."] * 2
    process.send_signal(signal.SIGTERM)
    assert await asyncio.wait_for(process.wait(), 5) == 0


async def test_the_command_refuses_a_bad_script_in_one_sentence(tmp_path: Path) -> None:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "longhouse.models.scripted_server",
        str(tmp_path / "none.json"),
        stderr=asyncio.subprocess.PIPE,
    )
    _, complaint = await process.communicate()
    assert process.returncode == 1
    assert complaint.decode().count("\n") == 1
    assert "cannot be read" in complaint.decode()
