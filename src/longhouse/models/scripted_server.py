"""The scripted model as an OpenAI-compatible HTTP server: its faults happen on a real socket."""

import argparse
import asyncio
import itertools
import signal
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, Final

import msgspec
import uvloop
from aiohttp import web

from longhouse.agents.strategies.protocol import Body
from longhouse.errors import ProviderError, SetupError
from longhouse.models.protocol import Delta
from longhouse.models.scripted import (
    Cut,
    Garbage,
    Hang,
    Playable,
    Say,
    Script,
    ScriptedStatus,
    ScriptPlayer,
    deltas_of,
    read_script,
    usage_of,
)

CREATED: Final = 1_767_225_600
"""Fixed creation time of all answers: a script produces the same bytes in each run."""

_json: Final = msgspec.json.Encoder()
_body_decoder: Final = msgspec.json.Decoder(Body)


class ScriptedServer(ScriptPlayer):
    """A running server: its URL and the requests it received."""

    def __init__(self, script: Playable, *, remember: bool) -> None:
        super().__init__(script)
        self.url = ""
        self.headers: list[dict[str, str]] = []
        """The headers of each chat request, names in lower case."""
        self._bodies: list[bytes] = []
        self._remember = remember
        self._answers = itertools.count(1)

    @property
    def requests(self) -> list[Any]:
        """The body of each chat request, decoded."""
        return [msgspec.json.decode(body) for body in self._bodies]

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        match request.method, request.path:
            case "POST", "/v1/chat/completions":
                return await self._chat(request)
            case "GET", "/v1/models":
                model = {"id": "scripted", "object": "model", "created": CREATED, "owned_by": "longhouse"}
                return _answer({"object": "list", "data": [model]})
        return _error(404, f"There is nothing at {request.method} {request.path}.")

    async def _chat(self, request: web.BaseRequest) -> web.StreamResponse:
        raw = await request.content.read()
        if self._remember:
            self._bodies.append(raw)
            self.headers.append({name.lower(): value for name, value in request.headers.items()})
        try:
            body = _body_decoder.decode(raw)
            reply = self.reply(body)
        except (ValueError, RecursionError, ProviderError) as error:
            return _error(400, str(error))
        match reply.fault:
            case ScriptedStatus() as fault:
                return _error(fault.status, fault.message, retry_after=fault.retry_after)
            case Garbage() as fault:
                return web.Response(text=fault.page, content_type="text/html")
            case Hang() as fault:
                with suppress(TimeoutError):
                    async with asyncio.timeout(fault.seconds):
                        await asyncio.Event().wait()
                return _hung_up(request)
        return await (self._stream(request, body, reply) if body.stream else self._whole(request, body, reply))

    async def _stream(self, request: web.BaseRequest, body: Body, reply: Say) -> web.StreamResponse:
        counted = body.stream_options is not None and body.stream_options.include_usage
        head = self._head(body, "chat.completion.chunk") | ({"usage": None} if counted else {})
        start = b"data: %b" % _json.encode(head)[:-1]
        events = [
            b'%b,"choices":[%b]}\n\n' % (start, _json.encode(_choice("delta", _piece(delta), delta.finish)))
            for delta in (Delta(), *deltas_of(reply, self.call_ids(reply)))
        ]
        if counted:
            events.append(b"data: %b\n\n" % _json.encode({**head, "choices": [], "usage": usage_of(body, reply)}))
        events.append(b"data: [DONE]\n\n")
        if isinstance(reply.fault, Cut):
            return _hung_up(request, await _sent(request, events[: 1 + reply.fault.after], reply.delay))
        if reply.delay:
            return await _sent(request, events, reply.delay)
        return web.Response(body=b"".join(events), content_type="text/event-stream")

    async def _whole(self, request: web.BaseRequest, body: Body, reply: Say) -> web.StreamResponse:
        ids = self.call_ids(reply)
        await asyncio.sleep(reply.delay * len(deltas_of(reply, ids)))
        if isinstance(reply.fault, Cut):
            return _hung_up(request)
        choice = _choice("message", _message(reply, ids), "tool_calls" if reply.calls else "stop")
        return _answer({**self._head(body, "chat.completion"), "choices": [choice], "usage": usage_of(body, reply)})

    def _head(self, body: Body, kind: str) -> dict[str, Any]:
        return {"id": f"chatcmpl-{next(self._answers)}", "object": kind, "created": CREATED, "model": body.model}


@asynccontextmanager
async def serve(
    script: Playable = (), *, host: str = "127.0.0.1", port: int = 0, remember: bool = True
) -> AsyncIterator[ScriptedServer]:
    """Serves a script while the block runs; long-running servers set `remember` to False."""
    server = ScriptedServer(script, remember=remember)
    # aiohttp's router is left out: it would cost a tenth of the time, and a benchmark's peer should cost nothing.
    runner = web.ServerRunner(
        web.Server(server.handle, handler_cancellation=True, access_log=None), shutdown_timeout=0.1
    )
    await runner.setup()
    try:
        await web.TCPSite(runner, host, port).start()
        server.url = f"http://{host}:{runner.addresses[0][1]}/v1"
        yield server
    finally:
        await runner.cleanup()


def _choice(name: str, content: dict[str, Any], finish: str | None) -> dict[str, Any]:
    return {"index": 0, name: content, "logprobs": None, "finish_reason": finish}


def _piece(delta: Delta) -> dict[str, Any]:
    if delta.calls:
        call = delta.calls[0]
        if call.id:
            function = {"name": call.name, "arguments": ""}
            return {"tool_calls": [{"index": call.index, "id": call.id, "type": "function", "function": function}]}
        return {"tool_calls": [{"index": call.index, "function": {"arguments": call.arguments}}]}
    if delta.reasoning:
        return {"reasoning_content": delta.reasoning}
    if delta.text:
        return {"content": delta.text}
    return {} if delta.finish else {"role": "assistant", "content": ""}


def _message(reply: Say, ids: Sequence[str]) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": reply.text or None, "refusal": None}
    if reply.reasoning:
        message["reasoning_content"] = reply.reasoning
    if reply.calls:
        message["tool_calls"] = [
            {"id": id_, "type": "function", "function": {"name": call.name, "arguments": call.written}}
            for call, id_ in zip(reply.calls, ids, strict=True)
        ]
    return message


def _answer(answer: dict[str, Any]) -> web.Response:
    return web.Response(body=_json.encode(answer), content_type="application/json")


def _error(status: int, message: str, *, retry_after: float | None = None) -> web.Response:
    kind = "server_error" if status >= 500 else "rate_limit_error" if status == 429 else "invalid_request_error"
    error = {"message": message, "type": kind, "param": None, "code": None}
    headers = {} if retry_after is None else {"Retry-After": f"{retry_after:g}"}
    return web.Response(
        status=status, body=_json.encode({"error": error}), content_type="application/json", headers=headers
    )


async def _sent(request: web.BaseRequest, events: Sequence[bytes], delay: float) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    response.enable_chunked_encoding()
    await response.prepare(request)
    for number, event in enumerate(events):
        if number and delay:
            await asyncio.sleep(delay)
        await response.write(event)
    return response


def _hung_up(request: web.BaseRequest, response: web.StreamResponse | None = None) -> web.StreamResponse:
    """Closes the connection before the end of the answer is sent."""
    if request.transport is not None:
        request.transport.close()
    return response or web.Response()


async def main(script: Script, port: int) -> None:
    """Serves until SIGINT or SIGTERM."""
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    async with serve(script, port=port, remember=False) as server:
        print(server.url, flush=True)
        await stop.wait()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m longhouse.models.scripted_server", description=__doc__)
    parser.add_argument("script", type=Path)
    parser.add_argument("--port", type=int, default=0)
    arguments = parser.parse_args()
    try:
        uvloop.run(main(read_script(arguments.script), arguments.port))
    except (SetupError, OSError) as problem:
        parser.exit(1, f"{problem}\n")
