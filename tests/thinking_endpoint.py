"""A model on a real socket that wants its thinking back: a request without it, or with another's, is a 400.

It also says what no script of ours can: refusals, replies that are cut off, what was spent on thinking.
"""

import asyncio
import json
import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import msgspec
from aiohttp import web


@dataclass(frozen=True)
class Written:
    """One reply."""

    text: str = ""
    calls: tuple[tuple[str, dict[str, Any] | str], ...] = ()
    refusal: str = ""
    finish: str = ""
    reasoning_tokens: int = 0
    hangs: bool = False


Writer = Callable[[dict[str, Any]], Written]


def write(text: str = "", *calls: tuple[str, Any], **extra: Any) -> Written:
    return Written(text, calls, **extra)


def answering(text: str) -> Written:
    return write("", ("finalanswertool", {"answer": text}))


def step_of(body: Any) -> int:
    """How often the model has replied since somebody last spoke."""
    roles = [one["role"] for one in body["messages"]]
    last = max((nth for nth, role in enumerate(roles) if role == "user"), default=0)
    return roles[last:].count("assistant")


def thoughts_in(body: Any) -> list[str]:
    """The thinking that a request gives back, in order."""
    return [one["reasoning_content"] for one in body["messages"] if "reasoning_content" in one]


class ThinkingEndpoint:
    def __init__(self, writer: Writer, name: str) -> None:
        self.writer = writer
        self.name = name
        """In all that it writes, and in nothing that it may be shown of another."""
        self.url = ""
        self.bodies: list[Any] = []
        self.complaints: list[str] = []
        self.is_picky = True

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        body = msgspec.json.decode(await request.content.read())
        self.bodies.append(body)
        if self.is_picky and (complaint := self.complaint(body)):
            self.complaints.append(complaint)
            return web.json_response({"error": {"message": complaint}}, status=400)
        written = self.writer(body)
        if written.hangs:
            await asyncio.Event().wait()
        frames = [b"data: %b\n\n" % json.dumps(one).encode() for one in self._chunks(written, body["model"])]
        return web.Response(body=b"".join([*frames, b"data: [DONE]\n\n"]), content_type="text/event-stream")

    def complaint(self, body: Any) -> str:
        """What is missing or wrong in the messages with calls; empty if nothing."""
        for message in body["messages"]:
            parts = [message.get("reasoning_content"), message.get("extra_content")]
            parts += [call.get("extra_content") for call in message.get("tool_calls", ())]
            if not message.get("tool_calls"):
                if any(parts):
                    return "thinking stands where there is no call"
                continue
            number = int(re.sub(r"\D", "", str(parts[0])) or 0)
            if parts[:2] != self._of_reply(number):
                return f"the thinking of {self.name} is missing, or another's: {parts}"
            signed = [one["google"]["thought_signature"] for one in parts[2:] if one]
            if signed != [self._signature(number)] and not self.is_structured(body):
                return f"the first call of reply {number} lacks its signature: {signed}"
        return ""

    @staticmethod
    def is_structured(body: Any) -> bool:
        """No functions are sent: what was called is in the text."""
        return "tools" not in body

    def _of_reply(self, number: int) -> list[Any]:
        return [
            f"{self.name} thinks: \u5929\u6c14 \u043f\u043e\u0433\u043e\u0434\u0430 {number}",
            {self.name: {"state": [number], "z": None, "a": 1.5}},
        ]

    def _signature(self, number: int) -> str:
        return f"{self.name}+/={number}"

    def _chunks(self, written: Written, model: str) -> list[Any]:
        """Thinking in pieces, before and among the calls, as endpoints send it."""
        number = len(self.bodies)
        reasoning, extra = self._of_reply(number)
        deltas: list[dict[str, Any]] = [{"reasoning_content": reasoning[:9]}, {"reasoning_content": reasoning[9:]}]
        deltas += [{"content": written.text}] if written.text else []
        deltas += [{"refusal": part} for part in re.findall(r"\S+\s*", written.refusal)]
        for index, (name, given) in enumerate(written.calls):
            arguments = given if isinstance(given, str) else json.dumps(given)
            call = {"index": index, "id": f"c{number}-{index}", "type": "function"}
            # As Gemini has it: of several calls the first one is signed.
            signed = {"extra_content": {"google": {"thought_signature": self._signature(number)}}} if not index else {}
            deltas.append({"tool_calls": [{**call, **signed, "function": {"name": name, "arguments": ""}}]})
            deltas.append({"tool_calls": [{"index": index, "function": {"arguments": arguments}}]})
        deltas.append({"extra_content": extra})
        finish = written.finish or ("tool_calls" if written.calls else "stop")
        chunks: list[dict[str, Any]] = [
            {"choices": [{"index": 0, "delta": one, "finish_reason": None}]} for one in deltas
        ]
        details = {"reasoning_tokens": written.reasoning_tokens}
        usage = {"prompt_tokens": 10, "completion_tokens": 40, "completion_tokens_details": details}
        ends: list[dict[str, Any]] = [
            {"choices": [{"index": 0, "delta": {}, "finish_reason": finish}]},
            {"choices": [], "usage": usage},
        ]
        return [{"model": model, **one} for one in (*chunks, *ends)]


@asynccontextmanager
async def thinking(writer: Writer, name: str = "ponder") -> AsyncIterator[ThinkingEndpoint]:
    endpoint = ThinkingEndpoint(writer, name)
    runner = web.ServerRunner(
        web.Server(endpoint.handle, handler_cancellation=True, access_log=None), shutdown_timeout=0.1
    )
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        endpoint.url = f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
        yield endpoint
    finally:
        await runner.cleanup()
