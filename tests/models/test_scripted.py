"""The scripted model, in process and behind its server: both say and fail alike."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from longhouse.agents.strategies.protocol import Body
from longhouse.errors import ProviderError, SetupError
from longhouse.journal.messages import Assistant, Function, Message, System, ToolCall, ToolResult, User
from longhouse.models.http.client import open_endpoint
from longhouse.models.openai import OpenAIModel
from longhouse.models.protocol import Delta, Model, ToolCallDelta
from longhouse.models.scripted import (
    Call,
    Cut,
    Fault,
    Garbage,
    Hang,
    Say,
    Script,
    ScriptedModel,
    ScriptedStatus,
    call,
    calls,
    read_script,
    say,
)
from longhouse.models.scripted_server import serve


def asked(*messages: Message) -> Body:
    return Body(model="m", messages=messages or [User(content="Will it rain in Oslo?")])


async def deltas_of(model: Model, body: Body | None = None) -> list[Delta]:
    return [delta async for delta in model.stream(body or asked())]


def text_of(deltas: list[Delta]) -> str:
    return "".join(delta.text for delta in deltas)


def calls_of(deltas: list[Delta]) -> list[tuple[str, str, str]]:
    made: dict[int, ToolCallDelta] = {}
    for part in (part for delta in deltas for part in delta.calls):
        old = made.get(part.index, ToolCallDelta(index=part.index))
        made[part.index] = ToolCallDelta(
            index=part.index,
            id=old.id + part.id,
            name=old.name + part.name,
            arguments=old.arguments + part.arguments,
        )
    return [(each.id, each.name, each.arguments) for each in made.values()]


@asynccontextmanager
async def over_http(*script: Say) -> AsyncIterator[Model]:
    async with serve(script) as server, open_endpoint(server.url, "key", hang=0.3) as endpoint:
        yield OpenAIModel(endpoint)


@asynccontextmanager
async def in_process(*script: Say) -> AsyncIterator[Model]:
    yield ScriptedModel(script)


both_ways = pytest.mark.parametrize("way", [in_process, over_http])


# --- what is said, in process and over the wire


@both_ways
async def test_replies_follow_the_script_in_order(way: Any) -> None:
    async with way(say("One."), say("Two.", reasoning="After one.")) as model:
        assert text_of(await deltas_of(model)) == "One."
        second = await deltas_of(model)
    assert text_of(second) == "Two."
    assert "".join(delta.reasoning for delta in second) == "After one."
    assert [delta.finish for delta in second if delta.finish] == ["stop"]
    assert {delta.model for delta in second} == {"m"}


@both_ways
async def test_arguments_keep_the_order_of_the_script_and_ids_are_never_used_twice(way: Any) -> None:
    reply = calls(say("Let me look. "), call("weather", city="Oslo", at="noon"), call("news", name="x", tool=[1, 2]))
    async with way(reply, reply) as model:
        first, second = await deltas_of(model), await deltas_of(model)
    assert calls_of(first) == [
        ("call_1", "weather", '{"city":"Oslo","at":"noon"}'),
        ("call_2", "news", '{"name":"x","tool":[1,2]}'),
    ]
    assert [id_ for id_, _, _ in calls_of(second)] == ["call_3", "call_4"]
    assert text_of(first) == "Let me look. "
    assert [delta.finish for delta in first if delta.finish] == ["tool_calls"]


@both_ways
async def test_text_that_looks_like_a_blank_of_the_server_stays_as_it_is(way: Any) -> None:
    text = '"id":"?0" and "id":"?id","object":"chat.completion.chunk" ?0 ?id "?model"'
    async with way(calls(say(text), call(text, a=text))) as model:
        deltas = await deltas_of(model)
    assert text_of(deltas) == text
    assert calls_of(deltas) == [("call_1", text, msgspec.json.encode({"a": text}).decode())]


@both_ways
async def test_nonsense_for_arguments_is_written_as_it_stands(way: Any) -> None:
    async with way(Say(calls=(Call(name="weather", arguments='{"city": '),))) as model:
        assert calls_of(await deltas_of(model)) == [("call_1", "weather", '{"city": ')]


@both_ways
async def test_usage_is_counted(way: Any) -> None:
    body = asked(
        System(content="s" * 40),
        User(content="u" * 40),
        Assistant(tool_calls=(ToolCall(id="1", function=Function(name="weather", arguments="{}" * 20)),)),
        ToolResult(tool_call_id="1", content="t" * 40),
    )
    async with way(say("a" * 80)) as model:
        (usage,) = [delta.usage for delta in await deltas_of(model, body) if delta.usage]
    assert (usage.prompt_tokens, usage.completion_tokens, usage.total_tokens) == (41, 20, 61)


async def test_a_reply_comes_in_chunks_with_a_delay_between_them() -> None:
    model = ScriptedModel([Say(text="Hello, you", calls=(Call(name="t", arguments={"a": 1}),), chunk=4, delay=0.02)])
    started = time.monotonic()
    deltas = await deltas_of(model)
    assert [delta.text for delta in deltas if delta.text] == ["Hell", "o, y", "ou"]
    assert [part.arguments for delta in deltas for part in delta.calls] == ["", '{"a"', ":1}"]
    assert time.monotonic() - started >= 0.02 * (len(deltas) - 1)


async def test_the_server_sends_delayed_chunks_one_by_one() -> None:
    async with over_http(say("Hello, you", chunk=4, delay=0.05)) as model:
        assert [delta.text for delta in await deltas_of(model) if delta.text] == ["Hell", "o, y", "ou"]


# --- which reply


async def test_an_exhausted_script_says_so() -> None:
    model = ScriptedModel()
    with pytest.raises(ProviderError, match="no reply left") as caught:
        await deltas_of(model)
    assert not caught.value.retryable
    async with over_http() as remote:
        with pytest.raises(ProviderError, match="400: the script has no reply left") as caught:
            await deltas_of(remote)
    assert not caught.value.retryable


async def test_a_model_will_do_as_promised_and_remembers_what_it_was_asked() -> None:
    model = ScriptedModel([say("One.")])
    model.will(say("Two."), say("Three."))
    bodies = [asked(User(content=str(number))) for number in range(3)]
    assert [text_of(await deltas_of(model, body)) for body in bodies] == ["One.", "Two.", "Three."]
    assert model.bodies == bodies


async def test_a_model_that_lives_long_remembers_nothing() -> None:
    model = ScriptedModel(lambda _: say("Hi."), remember=False)
    assert text_of(await deltas_of(model)) == "Hi."
    assert model.bodies == []


async def test_a_function_may_choose_the_reply() -> None:
    def echo(body: Body) -> Say:
        last = body.messages[-1]
        assert isinstance(last, User)
        return say(f"{body.model}: {last.content}, {body.tool_choice}")

    body = Body(model="m", messages=[User(content="Hi")], tool_choice="auto")
    assert text_of(await deltas_of(ScriptedModel(echo), body)) == "m: Hi, auto"
    async with serve(echo) as server, open_endpoint(server.url) as endpoint:
        assert text_of(await deltas_of(OpenAIModel(endpoint), body)) == "m: Hi, auto"


async def test_a_script_by_step_is_played_by_many_at_once() -> None:
    script = Script(by="step", replies=(call("look"), call("think"), say("Done.")))
    model = ScriptedModel(script)
    history: list[Message] = [Assistant(content="An older answer."), User(content="Go.")]
    looked = (Assistant(content="a"), ToolResult(tool_call_id="1", content="r"))
    for steps, said in ((0, "look"), (1, "think"), (0, "look"), (2, "Done."), (5, "Done.")):
        deltas = await deltas_of(model, asked(*history, *looked * steps))
        assert text_of(deltas) + "".join(name for _, name, _ in calls_of(deltas)) == said


def test_a_script_is_read_from_json(tmp_path: Path) -> None:
    path = tmp_path / "script.json"
    path.write_text(
        """{"by": "step", "replies": [
            {"calls": [{"name": "weather", "arguments": {"z": 1, "a": [2]}}], "reasoning": "Hm."},
            {"text": "Sun.", "chunk": 3, "delay": 0.5, "fault": {"kind": "cut", "after": 2}},
            {"fault": {"kind": "status", "status": 429, "retry_after": 1.5}}]}"""
    )
    assert read_script(path) == Script(
        by="step",
        replies=(
            Say(reasoning="Hm.", calls=(Call(name="weather", arguments={"z": 1, "a": [2]}),)),
            say("Sun.", chunk=3, delay=0.5, fault=Cut(after=2)),
            Say(fault=ScriptedStatus(status=429, retry_after=1.5)),
        ),
    )


@pytest.mark.parametrize("text", ["", "[]", '{"by": "chance"}', '{"replies": [{"txt": "typo"}]}'])
def test_a_script_that_is_none_is_refused_in_a_sentence(tmp_path: Path, text: str) -> None:
    path = tmp_path / "script.json"
    path.write_text(text)
    with pytest.raises(SetupError, match="not understood"):
        read_script(path)
    with pytest.raises(SetupError, match="cannot be read"):
        read_script(tmp_path / "none.json")


# --- what goes wrong


@both_ways
@pytest.mark.parametrize(
    ("fault", "reason", "retryable", "retry_after"),
    [
        (ScriptedStatus(), "answered 500: The script says so.", True, None),
        (ScriptedStatus(status=429, retry_after=2.5, message="Slow down."), "answered 429: Slow down.", True, 2.5),
        (ScriptedStatus(status=401), "answered 401", False, None),
        (Hang(), "sent nothing", True, None),
        (Garbage(), "sent something that is not an answer: text/html", True, None),
    ],
)
async def test_faults_come_in_place_of_the_reply(
    way: Any, fault: Fault, reason: str, retryable: bool, retry_after: float | None
) -> None:
    async with way(Say(fault=fault), say("Better.")) as model:
        with pytest.raises(ProviderError, match=reason) as caught:
            await deltas_of(model)
        assert (caught.value.retryable, caught.value.retry_after) == (retryable, retry_after)
        assert text_of(await deltas_of(model)) == "Better."


async def heard_before_the_end(model: Model) -> tuple[str, ProviderError]:
    heard = ""
    try:
        async for delta in model.stream(asked()):
            heard += delta.text
    except ProviderError as error:
        return heard, error
    pytest.fail("the answer was not cut")


@both_ways
@pytest.mark.parametrize("delay", [0, 0.01])
async def test_a_cut_comes_after_so_many_deltas(way: Any, delay: float) -> None:
    async with way(say("Hello, you", chunk=4, delay=delay, fault=Cut(after=2))) as model:
        heard, error = await heard_before_the_end(model)
    assert heard == "Hello, y"
    assert error.retryable
    assert "broke off its answer" in str(error)


async def test_a_hang_in_process_can_be_cancelled() -> None:
    task = asyncio.create_task(deltas_of(ScriptedModel([Say(fault=Hang(seconds=60))])))
    await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_a_hang_on_the_socket_ends_when_it_is_told_to() -> None:
    async with over_http(Say(fault=Hang(seconds=0.05))) as model:
        with pytest.raises(ProviderError, match="closed the connection without an answer"):
            await deltas_of(model)


async def test_a_server_stops_although_somebody_hangs_on_it() -> None:
    async with asyncio.timeout(20):
        async with serve([Say(fault=Hang())]) as server, open_endpoint(server.url) as endpoint:
            task = asyncio.create_task(deltas_of(OpenAIModel(endpoint)))
            while not server.requests:
                await asyncio.sleep(0.01)
        with pytest.raises(ProviderError):
            await task


async def test_leaving_early_leaves_the_server_well() -> None:
    async with over_http(say("x" * 50, chunk=1, delay=0.02), say("Next.")) as model:
        async with aclosing(model.stream(asked())) as stream:
            await anext(stream)
        assert text_of(await deltas_of(model)) == "Next."
