"""A real gRPC server of tools in a process of its own, with code that protoc has generated from our .proto.

It does what the arguments ask for, and writes down what it was asked.
"""

import asyncio
import importlib
import json
import os
import sys
import time
from collections.abc import AsyncIterator
from concurrent import futures
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from longhouse.tools.grpc import channels

PROTO = Path(channels.__file__).with_name("tool.proto")


def compiled(folder: Path) -> None:
    """Has protoc make its modules of the .proto: messages and service."""
    if not (folder / "tool_pb2_grpc.py").exists():
        protoc = importlib.import_module("grpc_tools.protoc")
        target = [f"-I{PROTO.parent}", f"--python_out={folder}", f"--grpc_python_out={folder}", PROTO.name]
        assert protoc.main(["protoc", *target]) == 0


def imported(folder: Path, name: str) -> Any:
    sys.path.insert(0, str(folder))
    try:
        return importlib.import_module(name)
    finally:
        sys.path.remove(str(folder))


@dataclass
class GrpcServer:
    folder: Path
    port: int
    process: asyncio.subprocess.Process

    @property
    def place(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def url(self) -> str:
        return f"grpc://{self.place}"

    @property
    def seen(self) -> list[dict[str, Any]]:
        """All that it was asked, and which calls were cancelled."""
        file = self.folder / "seen.jsonl"
        return [json.loads(line) for line in file.read_text("utf-8").splitlines()] if file.exists() else []

    def asked(self, method: str = "Call") -> list[dict[str, Any]]:
        return [one for one in self.seen if one["method"] == method]

    async def saw(self, method: str, count: int = 1) -> None:
        async with asyncio.timeout(20):
            while len(self.asked(method)) < count:
                await asyncio.sleep(0.01)


@asynccontextmanager
async def grpc_server(folder: Path, *options: str, port: int = 0) -> AsyncIterator[GrpcServer]:
    """`options`: `tls`, with `key.pem` and `cert.pem` in the folder; `no_probe`; `garbage`; `silent`."""
    compiled(folder)
    process = await asyncio.create_subprocess_exec(
        sys.executable, __file__, str(folder), str(port), *options, stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout
    try:
        async with asyncio.timeout(30):
            opened = int(await process.stdout.readline())
        yield GrpcServer(folder, opened, process)
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


def main(folder: Path, port: int, options: list[str]) -> None:
    import grpc  # noqa: PLC0415 - it is for this process alone

    messages, service = imported(folder, "tool_pb2"), imported(folder, "tool_pb2_grpc")

    def note(method: str, request: Any, context: Any, **more: Any) -> None:
        asked = {"method": method, "name": request.name, "key": request.idempotency_key, **more}
        asked["arguments"] = json.loads(request.arguments_json)
        asked["metadata"] = dict(context.invocation_metadata())
        asked["peer"] = context.peer()
        with (folder / "seen.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps(asked) + "\n")

    def returned(value: Any) -> Any:
        return messages.CallResponse(result_json=json.dumps(value))

    def faulty(*words: Any) -> Any:
        return messages.CallResponse(fault=messages.Fault(code=words[0], message=words[1], retryable=len(words) > 2))

    def hang(request: Any, context: Any, gone: Path | None = None) -> Any:
        """Until the caller is gone, or a file is there."""
        while context.is_active() and not (gone and gone.exists()):
            time.sleep(0.01)
        if not context.is_active():
            note("Cancelled", request, context)
        return returned("paid")

    def packed(context: Any) -> Any:
        context.set_compression(grpc.Compression.Gzip)
        return returned("x" * 50_000_000)

    def end(request: Any, context: Any) -> Any:
        match json.loads(request.arguments_json):
            case {"do": "hang"}:
                return hang(request, context)
            case {"do": "pay"}:
                return hang(request, context, folder / "go")
            case {"do": "die"}:
                os._exit(1)
            case {"do": "huge"}:
                return returned("x" * 5_000_000)
            case {"do": "packed"}:
                return packed(context)
            case {"do": "json", "text": text}:
                return messages.CallResponse(result_json=text)
            case {"do": "fault", "fault": words}:
                return faulty(*words)
            case {"do": "echo"}:
                return returned({"filler": "x" * 240, "metadata": dict(context.invocation_metadata())})
            case {"do": "echo fault"}:
                return faulty("denied", "x" * 240 + str(dict(context.invocation_metadata())))
            case {"do": "status", "status": status, "details": details}:
                return context.abort(grpc.StatusCode[status], details)
            case {"do": "raise"}:
                raise ValueError("out of order")
        return returned({"you said": json.loads(request.arguments_json)})

    class Tools(service.ToolServicer):  # type: ignore[name-defined, misc]
        def Call(self, request: Any, context: Any) -> Any:  # noqa: N802
            left = context.time_remaining()
            note("Call", request, context, deadline=request.deadline_unix_ms, left=left)
            return end(request, context)

        if "no_probe" not in options:

            def Probe(self, request: Any, context: Any) -> Any:  # noqa: N802
                note("Probe", request, context)
                found = folder / "settled" / request.idempotency_key
                told = json.loads(found.read_text()) if found.exists() else {"outcome": "DID_NOT_HAPPEN"}
                return messages.ProbeResponse(**told)

    class Garbage(grpc.GenericRpcHandler):  # type: ignore[misc]
        """Bytes that are no message at all. Only such a handler is told under which host it was called."""

        def service(self, details: Any) -> Any:
            return grpc.unary_unary_rpc_method_handler(self.answer)

        def answer(self, request: bytes, context: Any) -> bytes:
            host = context._rpc_event.call_details.host.decode()
            (folder / "seen.jsonl").write_text(json.dumps({"method": "Call", "host": host}) + "\n")
            return b"\xff\xff not a message"

    class Silent(grpc.GenericRpcHandler):  # type: ignore[misc]
        """Calls that do their work and end well, without a message."""

        def service(self, details: Any) -> Any:
            if not details.method.endswith("/Call"):
                read, write = messages.ProbeRequest.FromString, messages.ProbeResponse.SerializeToString
                return grpc.unary_unary_rpc_method_handler(Tools().Probe, read, write)
            return grpc.unary_stream_rpc_method_handler(self.answer, messages.CallRequest.FromString)

        def answer(self, request: Any, context: Any) -> Any:
            note("Call", request, context)
            (folder / "settled").mkdir(exist_ok=True)
            happened = {"outcome": "HAPPENED", "result_json": json.dumps("Оплачено 付款了")}
            (folder / "settled" / request.idempotency_key).write_text(json.dumps(happened))
            return iter(())

    server = grpc.server(futures.ThreadPoolExecutor(16), options=[("grpc.max_send_message_length", -1)])
    if "garbage" in options:
        server.add_generic_rpc_handlers((Garbage(),))
    elif "silent" in options:
        server.add_generic_rpc_handlers((Silent(),))
    else:
        service.add_ToolServicer_to_server(Tools(), server)
    place = f"127.0.0.1:{port}"
    if "tls" in options:
        pair = [((folder / "key.pem").read_bytes(), (folder / "cert.pem").read_bytes())]
        opened = server.add_secure_port(place, grpc.ssl_server_credentials(pair))
    else:
        opened = server.add_insecure_port(place)
    server.start()
    print(opened, flush=True)
    server.wait_for_termination()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3:])
