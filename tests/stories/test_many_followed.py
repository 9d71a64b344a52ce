"""Few sessions are followed, or many: each stream has every event once and in order, and no end waits for a timer.

What happens in the middle of a turn may wait for company (`LINGER`), and whoever follows looks at Postgres from time to
time (`LOOK_EVERY`). Here both would take an hour, and no heartbeat wakes anybody: whatever comes, has come by itself.
"""

import asyncio
from collections.abc import Callable
from typing import Any, ClassVar

import pytest

from longhouse.agents.strategies.protocol import Body
from longhouse.agents.template import Template, ToolPolicy
from longhouse.api.sessions import tail
from longhouse.app import core
from longhouse.journal.messages import Assistant, text_of
from longhouse.models.scripted import Hang, Say, ScriptedStatus, call, calls, say
from longhouse.runtime.bus import local
from longhouse.tools import BaseTool, ToolContext
from response_helpers import StreamReader, streamed
from server_helpers import AGENT, House, Serving, Sse, sse, user

MANY = 30


class NoHeartbeat:
    is_due = False

    def __init__(self, *_: object) -> None:
        pass

    def stop(self) -> None:
        pass


class SendTool(BaseTool):
    """Send it, once a person has agreed."""

    needs_approval: ClassVar[bool] = True

    async def __call__(self, context: ToolContext, config: Any = None, **kwargs: Any) -> str:
        return "sent"


NAMES = ("clocktool", "sendtool", "clarificationtool", "finalanswertool")
CLERK = Template(name=AGENT, tool_policy=ToolPolicy(allowlist=NAMES))
LOOKED = calls(say("Я смотрю."), call("clocktool"), call("clocktool"))
ENDS = {
    "answer": call("finalanswertool", answer="很晚了。"),
    "words": Say(text="It is late.", chunk=3),
    "question": call("clarificationtool", questions=["Which city?"]),
    "approval": call("sendtool"),
    "failure": Say(fault=ScriptedStatus(400, message="broken")),
    "cancel": Say(fault=Hang()),
}
"""What the third request of a turn is answered with, by what the user has asked for."""
LAST = {
    "answer": "Finished",
    "words": "Finished",
    "question": "Called",
    "approval": "Called",
    "failure": "Failed",
    "cancel": "Cancelled",
}


def replied(body: Body) -> Say:
    asked = next(text_of(one.content) for one in body.messages if text_of(one.content).startswith("Go: "))
    return LOOKED if sum(isinstance(one, Assistant) for one in body.messages) < 2 else ENDS[asked.split()[1]]


async def chatted(house: House, kind: str, told: Callable[[str], None]) -> list[Sse]:
    """The stream of a chat, to its end; `told` is called with its session."""
    body = {"model": AGENT, "messages": [user(f"Go: {kind} now")], "stream": True}
    read: list[Sse] = []
    async with house.http.post("/v1/chat/completions", json=body) as response:
        async for event in sse(response):
            if not read:
                told(event.json["model"])
            read.append(event)
    return read


async def followed(house: House, session_id: str, *, leaves_after: int = 0) -> list[Sse]:
    """The events of a session, to the end; with `leaves_after` by a client that comes back once, where it was."""
    read: list[Sse] = []
    path, last = f"/v1/sessions/{session_id}/events", ""
    for most in (leaves_after, 10_000):
        if not most:
            continue
        async with house.http.get(path, headers={"Last-Event-ID": last} if last else {}) as response:
            async for event in sse(response):
                read.append(event)
                last = event.id or last
                if event.id and int(event.id) >= most:
                    break
    return read


async def cancelled(house: House, session_id: str) -> None:
    """Once the model has been asked for the third time, which it never answers."""
    while (await house.kinds(session_id)).count("Returned") < 4:
        await asyncio.sleep(0.05)
    async with house.http.post(f"/v1/sessions/{session_id}/cancel") as response:
        assert response.status == 202


async def lived(house: House, kind: str, number: int) -> None:
    """A session with three who follow it: its chat, one who reads its events, and one who leaves and comes back."""
    known: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    async with asyncio.TaskGroup() as tasks:
        chat = tasks.create_task(chatted(house, kind, known.set_result))
        session_id = await known
        events = tasks.create_task(followed(house, session_id))
        again = tasks.create_task(followed(house, session_id, leaves_after=1 + number % 9))
        if kind == "cancel":
            tasks.create_task(cancelled(house, session_id))
    kinds = await house.kinds(session_id)
    assert kinds[-1] == LAST[kind]
    for read in (events.result(), again.result()):
        facts = [event for event in read if event.id]
        assert [int(event.id) for event in facts] == list(range(1, len(kinds) + 1)), kind
        assert [event.event for event in facts] == kinds
    check_chat(chat.result(), kind)


def check_chat(read: list[Sse], kind: str) -> None:
    told = [event.json for event in read if event.data != "[DONE]"]
    assert (read[-1].data == "[DONE]") == (len(told) < len(read)) == ("error" not in told[-1])
    happened = [one["x_agent"]["event"] for one in told if "x_agent" in one]
    looks = ["tool_call", "tool_call", "tool_result", "tool_result"]
    assert [one for one in happened if one.startswith("tool_")][:8] == looks * 2
    words = "".join(one["choices"][0]["delta"].get("content") or "" for one in told if one.get("choices"))
    begun, end = "Я смотрю.\n\nЯ смотрю.", {"answer": "\n\n很晚了。", "words": "\n\nIt is late."}
    assert words.startswith(begun + end.get(kind, ""))
    errors = [one["error"]["code"] for one in told if "error" in one]
    assert errors == {"failure": ["provider_error"], "cancel": ["cancelled"]}.get(kind, [])
    assert ("Which city?" in words) == (kind == "question")
    assert ("sendtool" in words) == (kind == "approval")


async def responded(house: House, kind: str) -> None:
    """The same as a response: its numbers have no gap, and it ends."""
    reader: StreamReader
    async with streamed(house, f"Go: {kind} now") as reader:
        await reader.to_the_end()
    assert reader.numbers == list(range(len(reader.events)))
    assert reader.kinds[-1] == ("failed" if kind == "failure" else "completed")
    assert [item["type"] for item in reader.last["output"]].count("message") >= 1


@pytest.mark.parametrize("sessions", [1, MANY])
async def test_every_stream_is_whole_and_none_waits_for_a_timer(
    serving: Serving, monkeypatch: pytest.MonkeyPatch, sessions: int
) -> None:
    monkeypatch.setattr(local, "LINGER", 3600.0)
    monkeypatch.setattr(core, "LOOK_EVERY", 3600.0)
    monkeypatch.setattr(tail, "_Heartbeat", NoHeartbeat)
    kinds = list(ENDS)
    async with serving(replied, templates=[CLERK], tools=[SendTool], worker_slots=MANY) as house, asyncio.timeout(60):
        if sessions == 1:
            for number, kind in enumerate(kinds):
                await lived(house, kind, number)
                if kind != "cancel":
                    await responded(house, kind)
            return
        async with asyncio.TaskGroup() as tasks:
            for number in range(sessions):
                tasks.create_task(lived(house, kinds[number % len(kinds)], number))
            for kind in kinds[:-1]:
                tasks.create_task(responded(house, kind))
