"""Tools of real MCP servers, over stdio and HTTP, which die, hang, change and say too much."""

import asyncio
import json
import os
import signal
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mcp_types
import psutil
import pytest
from aiohttp import web
from bench.house import listening
from mcp.shared.message import SessionMessage
from structlog.testing import capture_logs

from forked_server import Forked
from longhouse.journal import events
from longhouse.journal.events import Fault, Output
from longhouse.tools.builtin.dialogue import FinalAnswerTool
from longhouse.tools.config import ExecutionConfig, ToolConfig
from longhouse.tools.mcp.client import open_mcp
from longhouse.tools.mcp.config import read_servers
from longhouse.tools.mcp.transport import MOST_BYTES, TOO_MUCH, _WireLine
from longhouse.tools.toolbox import Toolbox
from longhouse.tracing import Tracing
from mcp_nursery import forked
from server_helpers import folded, free_port, opened, prompted, started, turn_of, used

SCRIPT = str(Path(__file__).with_name("mcp_test_server.py"))
TOKEN = "canary-token-4711"


@dataclass
class Tried:
    """A server that is configured, and the toolbox that its tools are in."""

    toolbox: Toolbox
    notes: Path
    logs: list[Any]

    async def call(self, tool: str, **arguments: Any) -> str | Fault:
        return await self.call_raw(tool, json.dumps(arguments))

    async def call_raw(self, tool: str, arguments: str) -> str | Fault:
        name = f"tried.{tool}"
        session = folded(
            opened(), prompted("x"), started(2), events.Replied(), used("1-action-0", tool=name, arguments=arguments)
        )
        [call] = session.due_calls
        async with asyncio.timeout(60):
            outcome = (await self.toolbox.perform(call, session, turn_of(session))).outcome
        return outcome.content if isinstance(outcome, Output) else outcome

    def noted(self, line: str) -> int:
        return self.notes.read_text().splitlines().count(line)

    def said(self, event: str) -> int:
        return sum(record["event"] == event for record in self.logs)


@pytest.fixture
def logs() -> Iterator[list[Any]]:
    with capture_logs() as records:
        yield records


@pytest.fixture
def notes(tmp_path: Path) -> Path:
    (tmp_path / "notes").touch()
    return tmp_path / "notes"


async def until(condition: Callable[[], object], within: float = 30.0) -> None:
    async with asyncio.timeout(within):
        while not condition():
            await asyncio.sleep(0.02)


def pids(notes: Path) -> list[int]:
    """The processes that the server ran in, the latest last."""
    return [int(line.split()[1]) for line in notes.read_text().splitlines() if line.startswith("pid ")]


def written(notes: Path, entry: dict[str, Any], name: str = "tried") -> Path:
    path = notes.with_name("mcp.json")
    path.write_text(json.dumps({"mcpServers": {name: entry}}))
    return path


def stdio(notes: Path, **extra: Any) -> dict[str, Any]:
    env = {"NOTES": str(notes), "TOKEN": "${MCP_TEST_TOKEN}"}
    command, *args = forked(SCRIPT, "stdio")
    return {"command": command, "args": args, "env": env, **extra}


@asynccontextmanager
async def served(notes: Path, port: int, kind: str = "http") -> AsyncIterator[asyncio.subprocess.Process]:
    env = {**os.environ, "NOTES": str(notes), "TOKEN": TOKEN}
    process = await asyncio.create_subprocess_exec(
        *forked(SCRIPT, kind, str(port)), env=env, stderr=asyncio.subprocess.DEVNULL
    )
    try:
        await until(lambda: answers(port) or process.returncode is not None)
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()
        await until(lambda: not answers(port))


def answers(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


@asynccontextmanager
async def trying(
    notes: Path, entry: dict[str, Any], logs: list[Any], *, limit: int = 15_000, start_within: float = 45.0
) -> AsyncIterator[Tried]:
    servers = read_servers(written(notes, entry), {"MCP_TEST_TOKEN": TOKEN})
    toolbox = Toolbox([FinalAnswerTool], config=ToolConfig(execution=ExecutionConfig(mcp_context_limit=limit)))
    async with open_mcp(servers, toolbox, start_within=start_within):
        yield Tried(toolbox, notes, logs)


@asynccontextmanager
async def trying_over(kind: str, notes: Path, logs: list[Any], **extra: Any) -> AsyncIterator[Tried]:
    async with AsyncExitStack() as stack:
        entry = stdio(notes)
        if kind in ("http", "json"):
            port = free_port()
            await stack.enter_async_context(served(notes, port, kind))
            entry = {"url": f"http://127.0.0.1:{port}/mcp", "headers": {"Authorization": "Bearer ${MCP_TEST_TOKEN}"}}
        yield await stack.enter_async_context(trying(notes, {**entry, **extra}, logs, limit=1000))


async def test_a_banner_is_one_record_in_the_log_and_a_call_has_its_place_in_a_trace(
    notes: Path, logs: list[Any]
) -> None:
    entry = stdio(notes)
    entry["env"]["BANNER"] = "21"
    async with trying(notes, entry, logs) as tried:
        assert await tried.call("add", a=1) == "2"
        await until(lambda: tried.said("mcp_server_output"))
        words = [line for _, line in tried.toolbox.sources["tried"]().last_words]
        assert [f"*** line {nth} of a banner, with [hidden] ***" for nth in range(21)] == words
    [record] = [record for record in logs if record["event"] == "mcp_server_output"]
    assert record["line"].splitlines() == words
    async with trying_over("http", notes, logs) as tried:
        with Tracing().sending("", "a" * 32, "b" * 16):
            assert await tried.call("add", a=2) == "3"
        assert await tried.call("add", a=3) == "4"
        assert tried.noted(f"traceparent 00-{'a' * 32}-{'b' * 16}-01") == 1


def fault(outcome: str | Fault) -> Fault:
    assert isinstance(outcome, Fault), outcome
    return outcome


@pytest.mark.parametrize("kind", ["stdio", "http"])
async def test_tools_are_listed_once_and_called_often(kind: str, notes: Path, logs: list[Any]) -> None:
    async with trying_over(kind, notes, logs, timeout=5) as tried:
        hanging = asyncio.create_task(tried.call("hang"))
        add, put, send = (tried.toolbox.find(f"tried.{name}") for name in ("add", "put", "send"))
        assert add
        assert put
        assert send
        assert (add.description, add.effect, add.remembers) == ("Add two numbers.", "read", "page")
        assert add.schema["required"] == ["a"]
        assert (put.effect, put.remembers) == ("idempotent", ""), "only what reads is remembered"
        assert send.effect == "once"
        sums = await asyncio.gather(*(tried.call("add", a=nth) for nth in range(10)))
        assert sums == [str(nth + 1) for nth in range(10)]
        assert json.loads(str(await tried.call("put", name="x"))) == {"name": "x", "kept": True}
        picture = str(await tried.call("picture"))
        assert picture == "Here:\n[image image/png, 3 kB]\n[link to notes: file:///notes.txt]"
        assert await tried.call("huge", size=50_000) == f"{'x' * 1000}\n[cut: 49000 of 50000 characters left out]"
        failed = fault(await tried.call("fail"))
        assert failed.code == "tool_failed"
        assert "no luck with [hidden]" in failed.message
        late = fault(await hanging)
        assert late.code == "unknown_outcome"
        assert "took effect: tried.hang did not answer within 5 seconds" in late.message
        assert await tried.call("add", a=1) == "2"
        assert tried.noted("list") == 1
    assert TOKEN not in repr(logs)


@pytest.mark.parametrize("kind", ["stdio", "http", "json"])
async def test_an_answer_without_measure_costs_its_own_call_and_no_other(
    kind: str, notes: Path, logs: list[Any]
) -> None:
    async with trying_over(kind, notes, logs) as tried:
        hanging = asyncio.create_task(tried.call("nap", seconds=2.0))
        much = fault(await tried.call("huge", size=50_000_000))
        assert much.code == "unknown_outcome"
        assert "the MCP server 'tried' sent more than 8388608 bytes" in much.message
        assert await tried.call("add", a=1) == "2"
        assert await hanging == "rested", "what was under way beside it goes on"
        assert (tried.noted("list"), tried.said("mcp_server_unreachable")) == (1, 0)
        assert (
            await tried.call("huge", size=3_000_000) == f"{'x' * 1000}\n[cut: 2999000 of 3000000 characters left out]"
        )


@pytest.mark.parametrize(
    ("line", "answers"),
    [
        (b'{"jsonrpc":"2.0","id":7,"result":{"a":"%s"}}', 7),
        (b'{"id": 7, "jsonrpc": "2.0", "result": "%s"}', 7),
        (b'{"jsonrpc":"2.0","result":{"id":3,"a":"%s"},"id":7}', 7),
        (b'{"result":{"a":"%s","id":3},"id":7,"jsonrpc":"2.0"}', 7),
        # Nobody waits for these.
        (b'{"jsonrpc":"2.0","method":"notifications/message","params":{"id":3,"data":"%s"}}', None),
        (b'{"jsonrpc":"2.0","id":7,"method":"sampling/createMessage","params":"%s"}', None),
    ],
)
def test_whose_answer_a_long_line_was_is_told_by_its_ends(line: bytes, answers: int | None) -> None:
    written = _WireLine()
    text = line % (b"x" * (MOST_BYTES + 1))
    for start in range(0, len(text), 65_536):
        written.add(text[start : start + 65_536])
    assert len(written.kept) + len(written.tail or b"") < 2000
    message = written.message()
    if answers is None:
        assert message is None
        return
    assert isinstance(message, SessionMessage)
    assert isinstance(message.message, mcp_types.JSONRPCError)
    assert (message.message.id, message.message.error.message) == (7, TOO_MUCH)


async def test_a_call_that_never_left_is_known_to_have_had_no_effect(notes: Path, logs: list[Any]) -> None:
    async with trying_over("http", notes, logs) as tried:
        [pid] = pids(notes)
        os.kill(pid, signal.SIGKILL)
        await until(lambda: not psutil.pid_exists(pid))
        gone = fault(await tried.call("send", to="Oslo"))
        assert gone.code == "tool_failed"
        assert "cannot be reached" in gone.message
        assert tried.noted("call send") == 0


ODD_ENDS = (
    web.Response(text="<p>paid</p>", content_type="text/html"),
    web.Response(body=b"{}", content_type="application/octet-stream"),
    web.Response(status=202),
    web.Response(status=303, headers={"location": "http://127.0.0.2:1/done"}),
)


async def test_an_answer_that_says_nothing_of_the_call_leaves_its_effect_unknown(notes: Path, logs: list[Any]) -> None:
    """The library calls each of these an invalid request, as a server would that did nothing."""
    ends, calls = iter(ODD_ENDS), 0

    async def answer(request: web.BaseRequest) -> web.StreamResponse:
        nonlocal calls
        asked = await request.json() if request.method == "POST" else {}
        result: dict[str, Any] = {"tools": [{"name": "pay", "inputSchema": {"type": "object"}}]}
        match asked.get("method"):
            case "tools/call":
                calls += 1
                return next(ends)
            case "initialize":
                info = {"name": "till", "version": "1"}
                result = {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}}, "serverInfo": info}
            case "tools/list":
                pass
            case _:
                return web.Response(status=202 if asked else 405)
        return web.json_response({"jsonrpc": "2.0", "id": asked["id"], "result": result})

    async with listening(answer) as url, trying(notes, {"url": url}, logs) as tried, asyncio.timeout(60):
        found = [fault(await tried.call("pay")).code for _ in ODD_ENDS]
    assert (found, calls) == (["unknown_outcome"] * 4, 4)


async def test_arguments_are_checked_before_the_call_and_secrets_stay_with_the_server(
    notes: Path, logs: list[Any], capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LONGHOUSE_LLM_API_KEY", "canary-of-ours")
    async with trying_over("stdio", notes, logs) as tried:
        for arguments, words in [
            ('{"a": "one"}', "a: 'one' is not of type 'integer'"),
            ("{}", "'a' is a required property"),
            ('{"a": 1, "c": 2}', "'c' was unexpected"),
            ("[1]", "must be a JSON object"),
            ("{", "not JSON"),
        ]:
            refused = fault(await tried.call_raw("add", arguments))
            assert refused.code == "bad_arguments"
            assert words in refused.message
        assert tried.noted("call add") == 0
        assert fault(await tried.call("nothing")).code == "unknown_tool"
        answer = str(await tried.call("tell"))
        assert answer.startswith("TOKEN=[hidden] LONGHOUSE=None"), "servers get no secrets of ours"
        await until(lambda: any(record.get("line") == "my token is [hidden]" for record in logs))
    assert TOKEN not in repr(logs)
    assert TOKEN not in "".join(capfd.readouterr())
    [pid] = pids(notes)
    await until(lambda: not psutil.pid_exists(pid))


async def test_a_server_that_dies_in_a_call_is_a_fault_and_is_back_at_the_next(notes: Path, logs: list[Any]) -> None:
    async with trying_over("stdio", notes, logs) as tried:
        died = fault(await tried.call("die"))
        assert died.code == "unknown_outcome"
        assert "'tried' was lost during the call" in died.message
        assert "it is not known whether tried.die took effect" in died.message
        assert await tried.call("add", a=1) == "2"
        [_, second] = pids(notes)
        # Between calls nothing was under way, so that the next call finds a new server and no fault.
        os.kill(second, signal.SIGKILL)
        await until(lambda: tried.said("mcp_server_unreachable") == 2)
        assert await tried.call("send", to="Oslo") == "sent to Oslo"
        assert tried.noted("list") == 3


async def test_an_http_server_that_was_away_is_reached_again(notes: Path, logs: list[Any]) -> None:
    port = free_port()
    entry = {"url": f"http://127.0.0.1:{port}/mcp"}
    async with trying(notes, entry, logs) as tried:
        assert tried.said("mcp_server_unreachable") == 1, "a dead server keeps nobody from starting"
        assert tried.toolbox.find("tried.add") is None
        async with served(notes, port):
            await until(lambda: tried.toolbox.find("tried.add"))
            assert await tried.call("add", a=1) == "2"
            assert "'tried'" in fault(await tried.call("die")).message
            gone = fault(await tried.call("add", a=1))
            assert "cannot be reached" in gone.message
        async with served(notes, port):
            assert await tried.call("add", a=1) == "2"


@pytest.mark.parametrize("kind", ["stdio", "http"])
async def test_tools_that_change_are_listed_again_once(kind: str, notes: Path, logs: list[Any]) -> None:
    async with trying_over(kind, notes, logs) as tried:
        assert tried.toolbox.find("tried.later") is None
        assert await tried.call("grow", name="later") == "grown"
        await until(lambda: tried.toolbox.find("tried.later") and not tried.toolbox.find("tried.send"))
        assert await tried.call("later", word="loud") == "LOUD"
        assert fault(await tried.call("send", to="x")).code == "unknown_tool"
        assert tried.noted("list") == 2


async def test_a_connection_that_is_given_up_between_calls_takes_no_call_with_it(notes: Path, logs: list[Any]) -> None:
    async with trying_over("stdio", notes, logs) as tried:
        assert await tried.call("stumble") == "stumbled"
        await until(lambda: tried.said("mcp_server_unreachable") == 1)
        assert await tried.call("send", to="Oslo") == "sent to Oslo"
        assert (tried.noted("call send"), tried.said("mcp_server_connected")) == (1, 2)


MODERN = """
from mcp.server import MCPServer
from mcp.server.mcpserver import Context

server = MCPServer("modern")

@server.tool()
async def grow(context: Context) -> str:
    def later(word: str) -> str:
        return word.upper()
    server.add_tool(later)
    await context.notify_tools_changed()
    return "grown"

server.run()
"""


async def test_a_server_that_tells_changes_only_when_asked_is_asked(notes: Path, logs: list[Any]) -> None:
    script = notes.with_name("modern.py")
    script.write_text(MODERN)
    command, *args = forked(str(script))
    async with trying(notes, {"command": command, "args": args}, logs) as tried:
        assert await tried.call("grow") == "grown"
        await until(lambda: tried.toolbox.find("tried.later"))
        assert await tried.call("later", word="loud") == "LOUD"


STRICT = """
import anyio
import mcp_types
from mcp.server.lowlevel import Server
from mcp.server.stdio import stdio_server

SCHEMA = {"type": "object", "properties": {"a": {"type": "string", "pattern": "^(a+)+$"}}}
TOOL = mcp_types.Tool(name="spell", input_schema={"type": "object", "properties": {}}, output_schema=SCHEMA)

async def listed(context, asked):
    return mcp_types.ListToolsResult(tools=[TOOL])

async def called(context, asked):
    content = [mcp_types.TextContent(type="text", text="spelt")]
    return mcp_types.CallToolResult(content=content, structured_content={"a": "a" * 60 + "!"})

async def main():
    server = Server("strict", on_list_tools=listed, on_call_tool=called)
    async with stdio_server() as (read, write):
        await server.run(read, write, server.create_initialization_options())

anyio.run(main)
"""


async def test_what_a_server_says_of_its_results_keeps_nobody_busy_and_loses_no_result(
    notes: Path, logs: list[Any]
) -> None:
    """The SDK runs the patterns of the schema on the event loop, and throws away a result that does not fit."""
    script = notes.with_name("strict.py")
    script.write_text(STRICT)
    command, *args = forked(str(script))
    async with trying(notes, {"command": command, "args": args}, logs) as tried, asyncio.timeout(30):
        assert "spelt" in str(await tried.call("spell"))
        assert tried.said("mcp_server_unreachable") == 0


async def test_a_command_that_is_not_there_is_told_in_words(notes: Path, logs: list[Any]) -> None:
    async with trying(notes, {"command": "no-such-command-here"}, logs):
        pass
    [record] = [record for record in logs if record["event"] == "mcp_server_unreachable"]
    assert record["reason"] == "there is no command 'no-such-command-here'"


LONGHOUSE = """
import asyncio, sys
from pathlib import Path
from longhouse.tools.mcp.client import open_mcp
from longhouse.tools.mcp.config import read_servers
from longhouse.tools.toolbox import Toolbox

async def main():
    async with open_mcp(read_servers(Path(sys.argv[1])), Toolbox([]), start_within=0.1):
        await asyncio.sleep(600)

asyncio.run(main())
"""


async def test_a_killed_longhouse_leaves_no_server_behind(notes: Path) -> None:
    stubborn = {"command": "sh", "args": ["-c", f"echo pid $$ >> {notes}; exec sleep 600"]}
    path, program = written(notes, stubborn), notes.with_name("program.py")
    program.write_text(LONGHOUSE)
    process = Forked([str(program), str(path)], os.environ, None)
    output = await process.output()
    try:
        await until(lambda: pids(notes))
    finally:
        process.kill()
        await process.wait()
        await output.read()
    [pid] = pids(notes)
    await until(lambda: not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE)
