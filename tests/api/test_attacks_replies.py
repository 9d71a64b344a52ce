"""NUL and half a surrogate pair from a model or a tool become U+FFFD, and the session goes on."""

import asyncio
from typing import Any

import msgspec
import pytest
from attack_helpers import chat

from longhouse.agents.template import Template, ToolPolicy
from longhouse.models.scripted import call
from longhouse.tools import BaseTool, ToolContext
from server_helpers import AGENT, Dictated, Pen, Serving, Sse, content, dictated, sse

SHOWN = "a\ufffdb\ufffdc"


def write(pen: Pen, delta: bytes, *, finish: bytes = b"null", model: bytes = b'"m"') -> None:
    """A chunk exactly as a broken provider would send it."""
    frame = b'data: {"model": %b, "choices": [{"index": 0, "delta": %b, "finish_reason": %b}]}\n\n'
    pen.frames.put_nowait(frame % (model, delta, finish))


def end(pen: Pen) -> None:
    pen.frames.put_nowait(b"data: [DONE]\n\n")
    pen.frames.put_nowait(b"")


def use(name: bytes, arguments: bytes, call_id: bytes = b"1") -> bytes:
    return (
        b'{"tool_calls": [{"index": 0, "id": "%b", "type": "function", '
        b'"function": {"name": "%b", "arguments": "%b"}}]}' % (call_id, name, arguments)
    )


async def streamed(serving: Serving, model: Dictated, *replies: list[bytes]) -> tuple[list[Sse], Any, list[Any]]:
    """What a client reads, the session afterwards, and its journal, when the model says these deltas."""
    async with serving(llm_base_url=model.url, patience=0.0) as house:
        async with house.http.post("/v1/chat/completions", json=chat(stream=True)) as response:
            reading = asyncio.create_task(_all(response))
            for deltas in replies:
                pen = await model.asked()
                for delta in deltas:
                    write(pen, delta)
                write(pen, b"{}", finish=b'"stop\\u0000\\ud800"', model=b'"m\\ud800\\u0000"')
                end(pen)
            events = await asyncio.wait_for(reading, 20)
        session_id = events[0].json["model"]
        return events, await house.session(session_id), await house.journal(session_id)


async def _all(response: Any) -> list[Sse]:
    return [event async for event in sse(response)]


def content_of(events: list[Sse]) -> str:
    assert events[-1].data == "[DONE]", events[-1]
    chunks = [event.json for event in events[:-1]]
    return "".join(chunk["choices"][0]["delta"].get("content") or "" for chunk in chunks)


@pytest.mark.parametrize(
    "deltas",
    [
        pytest.param([b'{"content": "a\\u0000b\\ud800c"}'], id="in plain text"),
        pytest.param([b'{"content": "a\\u0000b"}', b'{"content": "\\ud800"}', b'{"content": "c"}'], id="in pieces"),
        pytest.param(
            [b'{"reasoning_content": "\\u0000\\ud800"}', b'{"content": "a\\u0000b\\udfffc"}'], id="in its thoughts"
        ),
        pytest.param(
            [use(b"finalanswertool", b'{\\"answer\\": \\"a\\u0000b\\ud800c\\"}')], id="as characters of the arguments"
        ),
        pytest.param(
            [use(b"finalanswertool", b'{\\"answer\\": \\"a\\\\u0000b\\\\ud800c\\"}')], id="escaped in the arguments"
        ),
        pytest.param(
            [use(b"finalanswertool", b'{\\"answer\\": \\"a\\\\u0000b\\\\uDFFFc\\"}', b"\\ud800\\u0000")],
            id="in the call id",
        ),
    ],
)
async def test_what_cannot_be_kept_in_a_reply_is_made_visible(serving: Serving, deltas: list[bytes]) -> None:
    async with dictated() as model:
        events, session, journal = await streamed(serving, model, deltas)
    assert content_of(events) == SHOWN
    assert (session["state"], session["result"]) == ("COMPLETED", SHOWN)
    assert "\x00" not in str(journal)


async def test_a_pair_that_arrives_in_halves_does_not_restart_the_answer(serving: Serving) -> None:
    async with dictated() as model:
        halves = [b'{"content": "a\\ud83d"}', b'{"content": "\\ude00b"}']
        events, session, _ = await streamed(serving, model, halves)
    assert content_of(events) == session["result"]
    assert session["state"] == "COMPLETED"


async def test_whole_pairs_and_escaped_backslashes_are_left_alone(serving: Serving) -> None:
    async with dictated() as model:
        arguments = rb"{\"answer\": \"\\ud83d\\ude00 \\\\u0000 \\\\ud800\"}"
        events, session, journal = await streamed(serving, model, [use(b"finalanswertool", arguments)])
    assert content_of(events) == session["result"] == "😀 \\u0000 \\ud800"
    replied = next(record.event for record in journal if type(record.event).__name__ == "Replied")
    assert replied.calls[0].arguments == r'{"answer": "\ud83d\ude00 \\u0000 \\ud800"}', "kept as the model wrote it"


async def test_a_tool_name_or_a_question_with_such_characters_is_not_the_end(serving: Serving) -> None:
    async with dictated() as model:
        wrong = [use(b"clock\\u0000tool\\ud800", b"{}")]
        asks = [use(b"clarificationtool", b'{\\"questions\\": [\\"a\\\\u0000b\\\\ud800c\\"]}')]
        events, session, _ = await streamed(serving, model, wrong, asks)
    assert content_of(events) == SHOWN
    assert session["state"] == "WAITING_FOR_CLARIFICATION"
    assert session["questions"][0]["text"] == SHOWN


FRAMES = 'x\n\ndata: [DONE]\n\ndata: {"error": {}}\r\n\r\nevent: Finished\nid: 99\n: y\u2028\r'


async def test_an_answer_cannot_break_out_of_its_frame(serving: Serving) -> None:
    async with dictated() as model:
        arguments = msgspec.json.encode({"answer": FRAMES}).decode()
        as_text = msgspec.json.encode(arguments)[1:-1]
        events, session, journal = await streamed(serving, model, [use(b"finalanswertool", as_text)])
    assert content_of(events) == session["result"] == FRAMES
    assert [event.data for event in events].count("[DONE]") == 1
    async with serving() as house, house.http.get(f"/v1/sessions/{session['session_id']}/events") as response:
        facts = [event async for event in sse(response)]
    assert [int(fact.id) for fact in facts] == [record.seq for record in journal]
    assert [fact.event for fact in facts].count("Finished") == 1
    assert facts[-1].json["event"]["answer"] == FRAMES


async def test_what_people_say_is_never_a_template(serving: Serving) -> None:
    text = "{task} {current_date} {clarifications} {available_tools.__class__} {0} {} {{7*7}} %s ${x}"
    async with serving([call("clarificationtool", questions=[text]), call("finalanswertool", answer=text)]) as house:
        asked = await house.say(text)
        assert content(asked) == text
        assert content(await house.say(text, model=asked["model"])) == text
        assert house.model is not None
        said = [message.get("content") for message in house.model.requests[-1]["messages"][1:]]
        assert said == [text, None, text, text]


class LeakTool(BaseTool):
    """Say what cannot be kept, and write it down too."""

    fail: bool = False

    async def __call__(self, context: ToolContext, config: Any = None, **kwargs: Any) -> str:
        context.searches = ["a\x00b\ud800c"]
        context.sources = {"k\ud800": {"title": ["a\x00b\ud800c"]}}
        context.current_step_reasoning = "a\x00b\ud800c"
        if self.fail:
            raise ValueError("a\x00b\ud800c")
        return "a\x00b\ud800c"


@pytest.mark.parametrize("fail", [False, True])
async def test_what_cannot_be_kept_in_a_tools_output_is_made_visible(serving: Serving, fail: bool) -> None:
    script = [call("leaktool", fail=fail), call("finalanswertool", answer="done")]
    template = Template(name=AGENT, tool_policy=ToolPolicy(allowlist=("leaktool", "finalanswertool")))
    async with serving(script, templates=[template], tools=[LeakTool]) as house:
        answer = await house.say("leak")
        assert content(answer) == "done"
        assert house.model is not None
        seen = house.model.requests[-1]["messages"][-1]
        assert seen["content"] == (f"Error: ValueError: {SHOWN}" if fail else SHOWN)
        session = await house.session(answer["model"])
        assert session["state"] == "COMPLETED"
        if not fail:
            snapshot = session["context_snapshot"]
            assert snapshot["searches"] == [SHOWN]
            assert snapshot["sources"] == {"k\ufffd": {"title": [SHOWN]}}
            assert snapshot["current_step_reasoning"] == SHOWN
        async with house.http.get(f"/v1/sessions/{answer['model']}/messages") as response:
            assert SHOWN in await response.text()
