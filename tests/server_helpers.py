"""What stories are told with: a Longhouse on a real socket, in this process or in one that can be killed."""

import asyncio
import os
import re
import shutil
import signal
import socket
import tempfile
import time
import uuid
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cached_property
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import psutil
import uvicorn
from aiohttp import web
from msgspec.structs import replace
from openai import AsyncOpenAI, DefaultAsyncHttpxClient

from conformance import Conformance
from forked_server import Forked
from longhouse import clock
from longhouse.agents import rules
from longhouse.agents.builtin import BUILT_IN
from longhouse.agents.template import Template
from longhouse.agents.tool import Tool
from longhouse.api.http_protocol import Bounds, Connections, config_of
from longhouse.app import TOOLS, App, open_app
from longhouse.journal import events
from longhouse.journal.events import Recorded
from longhouse.journal.fold import blank, fold
from longhouse.journal.session import Session, Turn
from longhouse.models.scripted import Playable
from longhouse.models.scripted_server import ScriptedServer as ModelServer
from longhouse.models.scripted_server import serve as serve_model
from longhouse.runtime.bus.items import Draft
from longhouse.runtime.bus.local import Bus
from longhouse.runtime.workers.trials import ON_TRIAL
from longhouse.settings import Settings
from longhouse.store import journals, leases
from longhouse.store.database import Database, open_database
from longhouse.tools.base import BaseTool

AGENT = "tool_calling_agent"
NO_FILES = {"config_file": "", "agents_file": "", "logging_config": ""}
"""What somebody keeps in the folder that tests run in is none of their business."""


class HouseClient:
    """What a test says to a Longhouse over HTTP, in whichever process it serves."""

    http: aiohttp.ClientSession

    async def say(self, text: str, *, model: str = AGENT, **extra: Any) -> Any:
        """One message, one answer, not streamed; extra fields go into the body."""
        body = {"model": model, "messages": [{"role": "user", "content": text}], **extra}
        async with self.http.post("/v1/chat/completions", json=body) as response:
            return await response.json()

    async def session(self, session_id: str) -> Any:
        async with self.http.get(f"/v1/sessions/{session_id}") as response:
            return await response.json()

    async def until(self, session_id: str, *states: str, within: float = 30.0) -> Any:
        """The session once it is in one of these states."""
        end, pause = time.monotonic() + within, 0.02
        while (shown := await self.session(session_id))["state"] not in states:
            if time.monotonic() > end:
                async with self.http.get(f"/v1/sessions/{session_id}/timeline") as response:
                    raise AssertionError(f"it is {shown['state']} after {within} s: {await response.text()}")
            await asyncio.sleep(pause)
            pause = min(pause * 1.5, 0.15)  # whoever asks all the time keeps the house from what it is waited for
        return shown


@dataclass
class House(HouseClient):
    """A Longhouse that serves on `url`, in this process."""

    app: App
    url: str
    http: aiohttp.ClientSession
    model: ModelServer | None
    """The scripted model behind it, over real HTTP; None: the demo model answers."""
    connections: Connections
    """Those who have connected to it."""

    @property
    def db(self) -> Database:
        return self.app.db

    @cached_property
    def client(self) -> AsyncOpenAI:
        """Made for those who ask for it: to make one takes milliseconds, and most tests do without."""
        # Without TLS there is no need to read the certificates of the whole world.
        plain = DefaultAsyncHttpxClient(verify=False)
        return AsyncOpenAI(base_url=f"{self.url}/v1", api_key="none", max_retries=0, http_client=plain)

    async def leave(self) -> None:
        if "client" in vars(self):
            await self.client.close()

    async def journal(self, session_id: str) -> list[Recorded]:
        return await journals.read(self.db, session_id)

    async def kinds(self, session_id: str) -> list[str]:
        return [type(record.event).__name__ for record in await self.journal(session_id)]

    async def folded(self, session_id: str) -> Session:
        return await journals.load(self.db, session_id)


class Serving:
    """Starts Longhouses on one database. Several at once share it, as several processes would."""

    def __init__(self, dsn: str) -> None:
        self.dsn = dsn

    @asynccontextmanager
    async def __call__(
        self,
        script: Playable | None = None,
        *,
        templates: Iterable[Template] = BUILT_IN,
        tools: Sequence[type[BaseTool]] = (),
        bounds: Bounds | None = None,
        works: bool = True,
        **settings: Any,
    ) -> AsyncIterator[House]:
        """In this process; `script` is played by a model server on a socket of its own."""
        async with AsyncExitStack() as stack:
            model = None
            if script is not None:
                model = await stack.enter_async_context(serve_model(script))
                settings = {"llm_base_url": model.url, "llm_api_key": "sk-test-canary", **settings}
            chosen = Settings(database_url=self.dsn, **{"worker_slots": 8, **NO_FILES, **settings})
            opened = open_app(chosen, templates=templates, tools=(*TOOLS, *tools), works=works)
            app = await stack.enter_async_context(opened)
            connections = Connections(bounds)
            url = await stack.enter_async_context(_served(app, connections, chosen.trusted_proxies))
            http = await stack.enter_async_context(aiohttp.ClientSession(url))
            house = House(app, url, http, model, connections)
            stack.push_async_callback(house.leave)
            yield house


@asynccontextmanager
async def _served(app: App, connections: Connections, trusts: Sequence[str]) -> AsyncIterator[str]:
    compared = Conformance(app.asgi)
    config = config_of(compared, connections, trusts=trusts, host="127.0.0.1", port=0, timeout_graceful_shutdown=1)
    config.load()
    server = uvicorn.Server(config)
    server.lifespan = config.lifespan_class(config)
    await server.startup()
    try:
        port = server.servers[0].sockets[0].getsockname()[1]
        yield f"http://127.0.0.1:{port}"
    finally:
        await server.shutdown()
    assert not compared.problems, "the OpenAPI document does not describe this:\n" + "\n".join(compared.problems)


@dataclass
class Process(HouseClient):
    """A Longhouse in a process of its own, which can be killed."""

    process: Forked
    url: str
    said: list[str]
    http: aiohttp.ClientSession

    async def facts(self, session_id: str) -> list[Any]:
        """The journal of a session that rests, as clients see it."""
        async with self.http.get(f"/v1/sessions/{session_id}/events?deltas=false") as response:
            return [fact.json async for fact in sse(response) if "event" in fact.json]

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)

    async def ended(self, within: float = 20.0) -> int:
        async with asyncio.timeout(within):
            return await self.process.wait()


def so_far(bus: Bus, session_id: str) -> Draft | None:
    """What is written of a reply."""
    draft = bus.draft(session_id)
    return draft.so_far if draft else None


def free_port() -> int:
    """One that nobody listens at, for programs that are told theirs."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


async def answering(url: str) -> None:
    """Waits until somebody answers there, whatever the answer is."""
    async with aiohttp.ClientSession() as http, asyncio.timeout(30):
        while True:
            try:
                async with http.get(url):
                    return
            except aiohttp.ClientConnectionError:
                await asyncio.sleep(0.05)


def in_memory() -> str | None:
    """Where files cost little: Postgres makes a thousand for each database. None where memory has no room for them."""
    is_there = os.access("/dev/shm", os.W_OK)
    return "/dev/shm" if is_there and shutil.disk_usage("/dev/shm").free > 4 * 2**30 else None


@contextmanager
def data_folder() -> Iterator[Path]:
    """A data folder that the account of an embedded Postgres may enter; removed once that Postgres has left it."""
    with tempfile.TemporaryDirectory(prefix="longhouse-test-", dir=in_memory()) as name:
        folder = Path(name)
        folder.chmod(0o711)
        try:
            yield folder
        finally:
            _await_postgres(folder)


def _await_postgres(folder: Path, within: float = 20.0) -> None:
    """A Postgres whose owner was killed writes everything down before it ends, and takes its pid file with it."""
    give_up_at = time.monotonic() + within
    while running := [file for file in folder.rglob("postmaster.pid") if _is_running(file)]:
        assert time.monotonic() < give_up_at, f"Postgres did not end: {running}"
        time.sleep(0.02)


def _is_running(pid_file: Path) -> bool:
    try:
        return psutil.pid_exists(int(pid_file.read_text().split()[0]))
    except (FileNotFoundError, IndexError):
        return False


@asynccontextmanager
async def process(*arguments: str, **environment: str) -> AsyncIterator[Process]:
    """`longhouse serve --port 0` (or other arguments) with LONGHOUSE_* variables; ready when its line is printed."""
    arguments = arguments or ("serve", "--port", "0")
    async with launched("longhouse", *arguments, files=None, **environment) as started:
        yield started


@asynccontextmanager
async def launched(
    *command: str, files: int | None = None, folder: Path | str | None = None, **environment: str
) -> AsyncIterator[Process]:
    """`longhouse` itself, or a program of the tests that says where it serves as `longhouse serve` does.

    `files`: how many it may have open. `folder`: where it is called, and reads the files that are there.
    """
    given = environment if folder else NO_FILES | environment
    env = {**os.environ, **{f"LONGHOUSE_{name.upper()}": value for name, value in given.items()}}
    started = Forked(command, env, files, folder)
    output = await started.output()
    said: list[str] = []
    reading: asyncio.Task[None] | None = None
    try:
        url = ""
        async with asyncio.timeout(30):
            while line := (await output.readline()).decode():
                said.append(line.rstrip())
                if found := re.search(r"serves on (http://\S+)", line):
                    url = found[1]
                    break
                if "worker ready" in line:
                    break
        reading = asyncio.create_task(_drain(output, said))
        async with aiohttp.ClientSession(url or None) as http:
            yield Process(started, url, said, http)
    finally:
        if started.returncode is None:
            started.kill()
            await started.wait()
        if reading:
            await reading


async def _drain(stream: asyncio.StreamReader, said: list[str]) -> None:
    while line := await stream.readline():
        said.append(line.decode(errors="replace").rstrip())


@dataclass(frozen=True)
class Sse:
    """One server-sent event."""

    data: str
    event: str = ""
    id: str = ""

    @property
    def json(self) -> Any:
        return msgspec.json.decode(self.data)


async def sse(response: aiohttp.ClientResponse) -> AsyncIterator[Sse]:
    """The events of a stream; comments are passed over."""
    fields: dict[str, str] = {}
    async for raw in response.content:
        line = raw.decode().rstrip("\r\n")
        if not line:
            if "data" in fields:
                yield Sse(**fields)
            fields = {}
        elif not line.startswith(":"):
            name, _, value = line.partition(":")
            fields[name] = value.removeprefix(" ")


def plan_nodes(plan: dict[str, Any]) -> list[dict[str, Any]]:
    """A node of a plan of Postgres, and all below it."""
    return [plan, *(node for below in plan.get("Plans", ()) for node in plan_nodes(below))]


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def assistant(text: str) -> dict[str, Any]:
    return {"role": "assistant", "content": text}


def content(answer: Any) -> str:
    """The words of an answer that was not streamed."""
    assert "choices" in answer, answer
    return str(answer["choices"][0]["message"]["content"])


async def chat(
    house: House, messages: list[Any], *, model: str = AGENT, headers: dict[str, str] | None = None, **extra: Any
) -> Any:
    """The answer to a chat request that is not streamed, whatever its status."""
    body = {"model": model, "messages": messages, **extra}
    async with asyncio.timeout(30), house.http.post("/v1/chat/completions", json=body, headers=headers) as response:
        return await response.json()


@dataclass
class Pen:
    """One reply of a dictated model: the test writes it, fragment by fragment."""

    body: Any
    frames: "asyncio.Queue[bytes | None]"

    def write(self, finish: str | None = None, **delta: Any) -> None:
        choice = {"index": 0, "delta": delta, "finish_reason": finish}
        self.frames.put_nowait(b"data: %b\n\n" % msgspec.json.encode({"choices": [choice]}))

    def call(self, name: str, arguments: str = "", index: int = 0) -> None:
        """A tool call begins."""
        function = {"name": name, "arguments": arguments}
        self.write(tool_calls=[{"index": index, "id": f"call_{index}", "type": "function", "function": function}])

    def more(self, arguments: str, index: int = 0) -> None:
        """More of its arguments."""
        self.write(tool_calls=[{"index": index, "function": {"arguments": arguments}}])

    def end(self, arguments: str = "") -> None:
        if arguments:
            self.more(arguments)
        self.write(finish="tool_calls")
        self.frames.put_nowait(b"data: [DONE]\n\n")
        self.frames.put_nowait(b"")

    def cut(self) -> None:
        """The connection dies."""
        self.frames.put_nowait(None)


class Dictated:
    """A model on a real socket that says what the test dictates, when the test dictates it."""

    def __init__(self) -> None:
        self.url = ""
        self._pens: asyncio.Queue[Pen] = asyncio.Queue()

    async def asked(self, within: float = 20.0) -> Pen:
        """The next request, once it is there."""
        async with asyncio.timeout(within):
            return await self._pens.get()

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        pen = Pen(msgspec.json.decode(await request.content.read()), asyncio.Queue())
        self._pens.put_nowait(pen)
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        response.enable_chunked_encoding()
        await response.prepare(request)
        while frame := await pen.frames.get():
            await response.write(frame)
        if frame is None and request.transport is not None:
            request.transport.close()
        return response


@asynccontextmanager
async def dictated() -> AsyncIterator[Dictated]:
    model = Dictated()
    runner = web.ServerRunner(
        web.Server(model.handle, handler_cancellation=True, access_log=None), shutdown_timeout=0.1
    )
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        model.url = f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
        yield model
    finally:
        await runner.cleanup()


__all__ = ["AGENT", "House", "Process", "Serving", "Sse", "launched", "open_database", "process", "sse"]


# Journals written by hand, for what needs no database.

BEGAN = datetime(2026, 1, 31, 12, tzinfo=UTC)
LIMITS = events.Limits(max_iterations=10, max_clarifications=3, time_budget=600)


def turn_of(session: Session) -> Turn:
    assert session.turn is not None
    return session.turn


def open_tools(session: Session, template: Template, tools: Sequence[Tool], now: datetime) -> list[Tool]:
    """Those of `tools` that the rules leave open, if the turn has worked until now."""
    now_open = rules.open_tools(session, replace(turn_of(session), worked_at=now), template)
    return [tool for tool in tools if now_open.includes(tool)]


def folded(
    *new: events.Event,
    session: Session | None = None,
    since: datetime | None = None,
    every: timedelta = timedelta(seconds=1),
) -> Session:
    """The session with these events, one every second from noon on, or from where `session` ended."""
    session = session or blank(f"{AGENT}_1")
    at = since or (session.updated_at + every if session.updated_at else BEGAN)
    return fold(
        (Recorded(seq=session.head + 1 + nth, at=at + nth * every, event=event) for nth, event in enumerate(new)),
        session,
    )


def opened(agent: str = AGENT) -> events.Opened:
    return events.Opened(agent=agent, version=1, owner="local", conversation="c")


def prompted(text: str, *, trace: str = "t", **extra: Any) -> events.Prompted:
    return events.Prompted(trace=trace, content=(text,), **extra)


def started(prompt: int, *, trace: str = "t", limits: events.Limits = LIMITS) -> events.Started:
    """A worker took the prompt with this seq."""
    return events.Started(trace=trace, prompt=prompt, version=1, instance="i", limits=limits, date="2026-01-31")


def used(call: str, *, tool: str = "clocktool", arguments: str = "{}", **extra: Any) -> events.Called:
    return events.Called(call=call, tool=tool, arguments=arguments, **extra)


def returned(call: str, content: str = "ok", **extra: Any) -> events.Returned:
    return events.Returned(call=call, outcome=events.Output(content=content), **extra)


async def lost_after(db: Database, agent: str, task: str, *told: events.Event) -> str:
    """A session whose worker was never heard of again after these events of its first turn; it did not merely wait."""
    session_id, at, worker = f"{agent}_{uuid.uuid4()}", clock.now(), "a worker that is gone"
    begin = events.Opened(agent=agent, version=1, owner="local", conversation=session_id)
    start = events.Started(
        trace="t1", prompt=2, version=1, instance="i", limits=LIMITS, date="2026-01-31", approve_in_chat=True
    )
    new = [start, *told]
    records = [Recorded(seq=3 + nth, at=at, event=event) for nth, event in enumerate(new)]

    async def write(tx: Any) -> None:
        await journals.open(tx, session_id, begin, events.Prompted(trace="t1", content=(task,)), task=task)
        lease = (await leases.claim(tx, session_id, worker)).lease
        assert lease is not None
        after = fold(records, await journals.load(tx, session_id))
        await journals.append(tx, after, new, fence=lease.fence, worker=worker, at=at, rest=None)
        await leases.note_trial(tx, lease, ON_TRIAL)

    await db.together(write)  # at once: a worker that lives would take it up in between
    return session_id


async def lost_in_a_step(db: Database, agent: str, task: str) -> str:
    """A session that has lost three workers, as the next one will find, before the model had said a word."""
    resumed = (events.Resumed(worker=f"w{nth + 1}", previous=f"w{nth}") for nth in range(2))
    return await lost_after(db, agent, task, *resumed)


async def launched_words(*arguments: str, within: float = 60.0, **environment: str) -> tuple[int, str]:
    """A `longhouse` command that ends by itself, with LONGHOUSE_* variables: its exit code and all that it said."""
    env = {**os.environ, **{f"LONGHOUSE_{name.upper()}": value for name, value in (NO_FILES | environment).items()}}
    started = Forked(["longhouse", *arguments], env, None)
    try:
        async with asyncio.timeout(within):
            said = await (await started.output()).read()
            await started.wait()
    finally:
        if started.returncode is None:
            started.kill()
            await started.wait()
    assert started.returncode is not None
    return started.returncode, said.decode()


async def indexed(http: aiohttp.ClientSession, within: float = 30.0) -> None:
    """Waits until tools are found by search: what that needs in memory is there from then on."""
    async with asyncio.timeout(within):
        while True:
            async with http.post("/admin/tools/search", json={"query": "look at the clock"}) as response:
                found = (await response.json())["data"]
            if found and found[0]["legs"]["semantic"] is not None:
                return
            await asyncio.sleep(0.1)


# A sequence keeps what is rolled back.
FULL = """
    CREATE OR REPLACE FUNCTION full_disk() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
        PERFORM nextval('refusals');
        RAISE EXCEPTION 'could not extend file: No space left on device' USING ERRCODE = '{code}';
    END $$
"""


@asynccontextmanager
async def full(db: Database, table: str, on: str, code: str = "53100") -> AsyncIterator[None]:
    """There is no room for more in this table while the block runs, or another trouble with it."""
    await db.run("CREATE SEQUENCE IF NOT EXISTS refusals")
    await db.run(FULL.format(code=code))
    await db.run(f"CREATE TRIGGER full_disk BEFORE {on} ON {table} EXECUTE FUNCTION full_disk()")
    try:
        yield
    finally:
        await db.run(f"DROP TRIGGER full_disk ON {table}")
