"""`longhouse serve --workers 2`: two processes behind one port, and one command that starts, watches and ends them."""

import asyncio
import json
import os
import re
import signal
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import psutil
import pytest

from longhouse.api.http.siblings import merged
from longhouse.api.rate_limits import GUESSES
from longhouse.cli.processes.child import ChildReady
from longhouse.cli.processes.listening import listening, url_of
from longhouse.cli.processes.supervisor import SIGNALS, Supervisor
from longhouse.errors import SetupError
from longhouse.store.catalog.overlays import FRESH_FOR
from longhouse.store.database import open_database
from longhouse.store.postgres import open_postgres
from mcp_helpers import ACCEPT, INITIALIZE
from server_helpers import (
    AGENT,
    Dictated,
    Process,
    data_folder,
    dictated,
    launched,
    launched_words,
    process,
    sse,
    user,
)

ADMIN = {"authorization": "Bearer key-of-the-house-0123456789"}
SERVE = ("serve", "--port", "0", "--workers", "2")


async def children_of(house: Process) -> list[int]:
    """The processes that serve, as the command tells them after its address."""
    async with asyncio.timeout(10):
        while not (told := [line for line in house.said if "processes serve: " in line]):
            await asyncio.sleep(0.01)
    assert len(told) == 1
    return [int(pid) for pid in re.findall(r"\d+", told[0].partition("serve: ")[2].partition(";")[0])]


def clients_of(pid: int) -> list[str]:
    """Addresses from which somebody is connected to a process."""
    found = psutil.Process(pid).net_connections("tcp")
    return [one.raddr.ip for one in found if one.raddr and one.status == psutil.CONN_ESTABLISHED]


class Clients:
    """Clients with one connection each, from addresses of their own, by which is seen who serves them."""

    def __init__(self, url: str, stack: AsyncExitStack) -> None:
        self._url, self._stack = url, stack
        self._addresses = (f"127.0.{block}.{number}" for block in range(1, 9) for number in range(1, 250))

    async def one(self, pids: list[int]) -> tuple[int, aiohttp.ClientSession]:
        """A client, and the process that serves it."""
        address = next(self._addresses)
        connector = aiohttp.TCPConnector(limit=1, local_addr=(address, 0), keepalive_timeout=60)
        http = aiohttp.ClientSession(self._url, connector=connector, headers=ADMIN)
        await self._stack.enter_async_context(http)
        async with http.get("/health") as response:
            await response.read()  # else the connection would not be used again
            assert response.status == 200
        return next(pid for pid in pids if address in clients_of(pid)), http

    async def at(self, pid: int, pids: list[int]) -> aiohttp.ClientSession:
        """A client of this process."""
        async with asyncio.timeout(30):
            while True:
                found, http = await self.one(pids)
                if found == pid:
                    return http


@asynccontextmanager
async def clients(house: Process) -> AsyncIterator[Clients]:
    async with AsyncExitStack() as stack:
        yield Clients(house.url, stack)


async def ask(http: aiohttp.ClientSession, method: str, path: str, body: Any = None, **headers: str) -> tuple[int, Any]:
    async with asyncio.timeout(30), http.request(method, path, json=body, headers=headers) as response:
        return response.status, await response.json() if response.status != 204 else None


def say(text: str, model: str = AGENT) -> Any:
    return {"model": model, "messages": [user(text)]}


async def answered(model: Dictated, text: str) -> Any:
    """The model is asked, and answers."""
    pen = await model.asked()
    pen.write(content=text)
    pen.write(finish="stop")
    pen.frames.put_nowait(b"data: [DONE]\n\n")
    pen.frames.put_nowait(b"")
    return pen.body


async def is_refused(url: str) -> bool:
    """Whether a new connection is."""
    try:
        _, writer = await asyncio.open_connection("127.0.0.1", int(url.rpartition(":")[2]))
    except ConnectionRefusedError:
        return True
    writer.close()
    return False


async def gone(pids: list[int]) -> None:
    """They have ended; if not, they are ended, for nobody else would."""
    give_up_at = time.monotonic() + 40
    while left := [pid for pid in pids if psutil.pid_exists(pid)]:
        if time.monotonic() > give_up_at:
            for pid in left:
                psutil.Process(pid).kill()
            raise AssertionError(f"{len(left)} of {len(pids)} processes are still there")
        await asyncio.sleep(0.05)


async def test_two_processes_are_one_house_and_one_of_them_may_die() -> None:
    with data_folder() as folder:
        settings = {"data_dir": str(folder), "admin_key": ADMIN["authorization"].removeprefix("Bearer ")}
        async with dictated() as model:
            settings["llm_base_url"] = model.url
            async with process(*SERVE, **settings) as house, clients(house) as known:
                assert sum("serves on" in line for line in house.said) == 1
                await _spread(known, house)
                pids = await children_of(house)
                first, second = await known.at(pids[0], pids), await known.at(pids[1], pids)
                await _known_to_both(first, second, model)
                await _answered_elsewhere(first, second, model)
                await _told_of_both(first, second, known, pids)
                port = house.url.rpartition(":")[2]
                refused = await launched_words("serve", "--port", port, "--workers", "2", database_url="postgres:///x")
                assert refused[0] == 1
                assert f"port {port} on 127.0.0.1 cannot be used" in refused[1]
                pids = await _killed(house, known, folder, model)
                # The supervisor is killed: its processes end, and so does its Postgres.
                house.kill()
                assert await house.ended() == -signal.SIGKILL
                await gone(pids)
            # What they leave behind is a house that can be served, and be left in peace.
            async with process(*SERVE, **settings) as house, clients(house) as known:
                await _left_in_peace(house, known, model)


async def _spread(known: Clients, house: Process) -> None:
    """Connections come to both processes."""
    pids = await children_of(house)
    assert {psutil.Process(pid).ppid() for pid in pids} == {house.process.pid}
    served = Counter([(await known.one(pids))[0] for _ in range(40)])
    assert min(served[pid] for pid in pids) > 5, served


async def _known_to_both(first: aiohttp.ClientSession, second: aiohttp.ClientSession, model: Dictated) -> None:
    """What is published or revoked at one process holds at the other at once."""
    template = {"name": "clerk", "tool_policy": {"allowlist": ["clocktool", "clarificationtool"]}}
    assert (await ask(first, "POST", "/admin/templates", template))[0] == 201
    asking = asyncio.create_task(ask(second, "POST", "/v1/chat/completions", say("Сколько времени? 几点了？", "clerk")))
    heard = await answered(model, "Полдень 正午")
    assert heard["messages"][-1]["content"] == "Сколько времени? 几点了？"
    status, reply = await asking
    assert (status, reply["choices"][0]["message"]["content"]) == (200, "Полдень 正午")
    # The session is one, whoever is asked for it.
    assert (await ask(first, "GET", f"/v1/sessions/{reply['model']}"))[1]["state"] == "COMPLETED"
    status, made = await ask(first, "POST", "/admin/keys", {"name": "Ann's", "owner": "ann", "role": "user"})
    assert status == 201
    with_key = {"authorization": f"Bearer {made['key']}"}
    assert (await ask(second, "GET", "/v1/models", **with_key))[0] == 200
    assert (await ask(first, "DELETE", f"/admin/keys/{made['id']}"))[0] == 204
    assert (await ask(second, "GET", "/v1/models", **with_key))[0] == 401


async def _answered_elsewhere(first: aiohttp.ClientSession, second: aiohttp.ClientSession, model: Dictated) -> None:
    """A call that one process was told to have approved, and that waits at the other, is approved at the first."""
    policy = "/admin/tools/clocktool/security_policy"
    assert (await ask(first, "PUT", policy, {"needs_approval": True}))[0] == 200
    await asyncio.sleep(FRESH_FOR)  # for which other processes may hold on to what they know
    asking = asyncio.create_task(ask(second, "POST", "/v1/chat/completions", say("What time is it?", "clerk")))
    pen = await model.asked()
    pen.call("clocktool", "{}")
    pen.end()
    _, reply = await asking
    session_id = reply["model"]
    assert (await ask(first, "GET", f"/v1/sessions/{session_id}"))[1]["state"] == "WAITING_FOR_APPROVAL"
    body = {"call_id": "1-action-0", "decision": "approve"}
    assert (await ask(first, "POST", f"/v1/sessions/{session_id}/approval", body))[0] == 202
    await answered(model, "Noon.")
    async with asyncio.timeout(30), second.get(f"/v1/sessions/{session_id}/events?deltas=false") as response:
        kinds = [one.json["event"]["kind"] async for one in sse(response) if "event" in one.json]
    assert kinds[-1] == "Finished"
    assert "Decided" in kinds


async def _told_of_both(
    first: aiohttp.ClientSession, second: aiohttp.ClientSession, known: Clients, pids: list[int]
) -> None:
    """What a process knows alone is told by each: its metrics, and its sessions of MCP."""
    for http in (first, second):
        async with http.get("/metrics") as response:
            page = await response.text()
        assert response.status == 200
        started = re.findall(r'^process_start_time_seconds\{process="(\d)"\}', page, re.MULTILINE)
        assert started == ["1", "2"]
        assert page.count("# TYPE longhouse_requests_total counter\n") == 1
        assert re.search(r'^longhouse_requests_total\{process="1",method="POST",', page, re.MULTILINE)
    assert (await ask(first, "GET", "/metrics", authorization="Bearer nonsense"))[0] == 401

    async with first.post("/mcp", json=INITIALIZE, headers=ACCEPT) as response:
        await response.read()
        assert response.status == 200
        session_id = response.headers["mcp-session-id"]
    listing = {"jsonrpc": "2.0", "id": 2, "method": "tools/list"}
    for http in (second, first):
        async with http.post("/mcp", json=listing, headers={**ACCEPT, "mcp-session-id": session_id}) as response:
            assert response.status == 200
            assert '"clerk"' in await response.text()
    for wrong in (f"9{session_id}", "2-" + "0" * 32, "1-", "７-x"):
        headers = {**ACCEPT, "mcp-session-id": wrong}
        async with second.post("/mcp", json=listing, headers=headers) as response:
            await response.read()
            assert response.status in (400, 404), wrong
    # Whoever guesses keys is counted by the machine from which he asks, whatever address he names; one was tried above.
    of_first = {**ACCEPT, "mcp-session-id": session_id}
    statuses = []
    for nth in range(2 * GUESSES):
        headers = {**of_first, "authorization": f"Bearer nonsense-{nth}", "longhouse-client": f"10.0.0.{nth}"}
        async with second.post("/mcp", json=listing, headers=headers) as response:
            statuses.append(response.status)
    assert (set(statuses[: GUESSES - 1]), statuses[-1]) == ({401}, 429)
    http = await known.at(pids[1], pids)
    async with http.post("/mcp", json=listing, headers=of_first) as response:
        assert response.status == 200


async def _killed(house: Process, known: Clients, folder: Path, model: Dictated) -> list[int]:
    """The process that runs a session is killed while a client follows it at the other."""
    pids = await children_of(house)
    async with open_postgres(folder) as postgres, open_database(postgres.dsn) as db:
        begun = await known.at(pids[0], pids)
        body = {**say("Tell me of the killed one."), "stream": True}
        async with begun.post("/v1/chat/completions", json=body) as response:
            session_id = (await anext(sse(response))).json["model"]
            pen = await model.asked()
            pen.write(content="It was ")
            holder = await db.value("SELECT holder FROM sessions WHERE id = :id", id=session_id)
        runs = next(pid for pid in pids if f"-{pid}-" in holder)
        other = next(pid for pid in pids if pid != runs)
        http = await known.at(other, pids)
        async with asyncio.timeout(30), http.get(f"/v1/sessions/{session_id}/events") as response:
            events = sse(response)
            # The words so far, or the words themselves where they came only now.
            while (await anext(events)).event not in ("delta.snapshot", "delta"):
                pass
            psutil.Process(runs).kill()
            await answered(model, "It was night. Была ночь.")
            last = [one async for one in events]
    kinds = [one.json["event"]["kind"] for one in last if one.id]
    assert (kinds[-1], "Resumed" in kinds) == ("Finished", True)
    # Who connects meanwhile is served, and another process takes the place of the one that died.
    await asyncio.gather(*(known.one([other]) for _ in range(10)))
    async with asyncio.timeout(30):
        while not any("serving_process_started" in line for line in house.said):
            await asyncio.sleep(0.05)
    ended = [line for line in house.said if "serving_process_ended" in line]
    assert len(ended) == 1
    assert '"reason": "signal 9"' in ended[0]
    pids = [child.pid for child in psutil.Process(house.process.pid).children() if "--child" in child.cmdline()]
    assert other in pids
    assert len(pids) == 2
    new = next(pid for pid in pids if pid != other)
    assert (await ask(await known.at(new, pids), "GET", f"/v1/sessions/{session_id}"))[1]["state"] == "COMPLETED"
    return pids


async def _left_in_peace(house: Process, known: Clients, model: Dictated) -> None:
    """SIGTERM: a reply that is being written is read to its end, then all have ended."""
    pids = await children_of(house)
    http = await known.at(pids[0], pids)
    asking = asyncio.create_task(ask(http, "POST", "/v1/chat/completions", say("Say it before you leave.")))
    pen = await model.asked()
    house.process.send_signal(signal.SIGTERM)
    async with asyncio.timeout(20):
        while not await is_refused(house.url):  # and not kept waiting
            await asyncio.sleep(0.02)
    pen.write(content="Farewell.")
    pen.write(finish="stop")
    pen.frames.put_nowait(b"data: [DONE]\n\n")
    pen.frames.put_nowait(b"")
    status, reply = await asking
    assert (status, reply["choices"][0]["message"]["content"]) == (200, "Farewell.")
    assert await house.ended() == 0
    await gone(pids)
    assert not [line for line in house.said if "serving_process_ended" in line or "Traceback" in line]


async def test_without_the_supervisor_nobody_stays(dsn: str) -> None:
    """With a Postgres of others, too, which does not end with it; nor do its sockets."""
    async with process(*SERVE, database_url=dsn) as house:
        pids = await children_of(house)
        folder = json.loads(psutil.Process(pids[0]).cmdline()[-1])["folder"]
        assert os.stat(folder).st_mode & 0o077 == 0
        assert sorted(os.listdir(folder)) == ["1", "2"]
        house.kill()
        await house.ended()
        await gone(pids)
        assert os.path.basename(folder) not in os.listdir(os.path.dirname(folder))


async def test_a_second_signal_ends_a_process_that_stands_still(dsn: str, tmp_path: Path) -> None:
    # It may be called in a folder of anybody: nothing that lies there is run.
    for name in ("typer", "structlog", "longhouse", "tempfile"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('hijacked')\n", "utf-8")
    async with launched("longhouse", *SERVE, folder=tmp_path, database_url=dsn) as house:
        assert house.url, house.said
        pids = await children_of(house)
        psutil.Process(pids[0]).suspend()
        house.process.send_signal(signal.SIGTERM)
        await gone(pids[1:])
        assert psutil.pid_exists(pids[0])
        house.process.send_signal(signal.SIGTERM)
        await gone(pids)
        assert await house.ended() == 128 + signal.SIGKILL


async def test_a_process_that_the_system_does_not_start_is_told_in_one_sentence() -> None:
    with pytest.raises(SetupError, match="cannot be started"):
        await Supervisor([], 2, folder="x" * 200_000).run(asyncio.Event())  # more than a command line may hold
    for name in SIGNALS:
        asyncio.get_running_loop().remove_signal_handler(name)


def test_metrics_are_merged_by_lines_whatever_the_values_hold() -> None:
    page = '# HELP n N.\n# TYPE n counter\nn{agent="a\u2028b\x85 {c"} 1.0\n'
    assert merged({"1": page, "2": page}) == (
        "# HELP n N.\n# TYPE n counter\n"
        'n{process="1",agent="a\u2028b\x85 {c"} 1.0\nn{process="2",agent="a\u2028b\x85 {c"} 1.0\n'
    )


def test_an_address_of_ipv6_is_told_as_a_url() -> None:
    try:
        with listening("::1", 0) as listener:
            assert url_of(listener) == f"http://[::1]:{listener.getsockname()[1]}"
    except SetupError:
        pytest.skip("this machine has no IPv6")


async def test_what_cannot_be_served_is_said_once(tmp_path: Path, dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = tmp_path / "agents.yaml"
    broken.write_text("agents:\n  - nothing: here\n", "utf-8")
    code, said = await launched_words(*SERVE, database_url=dsn, agents_file=str(broken))
    assert code == 1
    assert said.count("longhouse: ") == 1, said
    assert str(broken) in said
    assert "Traceback" not in said
    assert "serves on" not in said
    code, said = await launched_words("serve", database_url=dsn, serve_workers="65")
    assert (code, said.count("\n")) == (1, 1)
    assert "LONGHOUSE_SERVE_WORKERS" in said
    code, said = await launched_words("serve", "--workers", "0", database_url=dsn)
    assert code == 2
    assert ("--workers" in said, "equal to 1 " in said) == (True, True)
    deep = tmp_path / ("d" * 100)
    deep.mkdir()
    monkeypatch.setenv("TMPDIR", str(deep))
    code, said = await launched_words(*SERVE, database_url=dsn)
    assert (code, said.count("\n")) == (1, 1), said
    assert "TMPDIR" in said
    assert not list(deep.iterdir())


async def test_who_is_ready_when_all_leave_is_not_announced(capsys: pytest.CaptureFixture[str]) -> None:
    """A signal may come while the last one of them starts: then the port is closed."""
    with listening("127.0.0.1", 0) as listener:
        supervisor = Supervisor([listener], 1, "")
        supervisor.leave()
        [place] = supervisor._places
        place.report = ChildReady(is_open=False, is_demo=False)
        supervisor._on_report(place, place.report)
    assert "serves on" not in capsys.readouterr().out
