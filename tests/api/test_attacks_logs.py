"""Whatever a client, a model or a tool says, the log has one escaped record for each thing that happened."""

import asyncio
import json
import os
import re
import sys
from typing import Any

import aiohttp
from attack_helpers import CHAT, chat, raw

from longhouse.agents.strategies.protocol import Body
from longhouse.models.scripted import Say, ScriptedStatus, call
from longhouse.models.scripted_server import serve
from server_helpers import Process, process

FORGED = '{"event": "forged", "level": "info"}'
EVIL = f"x\n{FORGED}\r\n\x1b[2J\x1b]0;pwned\x07\x9b31m\u2028{FORGED}\u0085{FORGED}"
KEY = "sk-canary-0123456789"


def obey(body: Body) -> Say:
    """A model that does the worst it can: it fails with such words, and calls tools with them."""
    if "fail" in str(body.messages[-1]):
        return Say(fault=ScriptedStatus(status=400, message=f"{EVIL} {KEY}"))
    if len(body.messages) > 3:
        return call("finalanswertool", answer=EVIL)
    return call("clocktool", timezone=EVIL)


async def attack(http: aiohttp.ClientSession, url: str) -> int:
    """Sends what hurts in every place that could be logged; returns how many requests were made."""
    bodies: list[Any] = [
        chat(messages=[{"role": "user", "content": EVIL}], user=EVIL, metadata={"k": EVIL}),
        chat(messages=[{"role": "user", "content": f"fail {EVIL}"}]),
        chat(model=EVIL), chat(model=f"fail {KEY}"), chat(chat_id=EVIL), chat(metadata={"reply_to": EVIL}),
    ]  # fmt: skip
    for body in bodies:
        async with http.post(CHAT, json=body, headers={"authorization": f"Bearer {KEY}"}) as response:
            await response.read()
    path = "".join(f"%{byte:02x}" for byte in EVIL.encode())
    for target in (f"/{path}", f"/v1/sessions/{path}", f"/v1/models/{path}", f"/health?{path}={path}"):
        sent = f"GET {target} HTTP/1.1\r\nHost: {FORGED}\r\nX-A: {FORGED}\r\nConnection: close\r\n\r\n"
        await raw(url, sent.encode())
    for sent in (f"GET /\n{FORGED}\x1b[2J HTTP/1.1\r\n\r\n", f"GET / HTTP/1.1\r\nX-A: \x1b[2J\n{FORGED}\r\n\r\n"):
        await raw(url, sent.encode())
    return len(bodies) + 4


async def until_logged(said: list[str], requests: int) -> None:
    async with asyncio.timeout(10):
        while sum('"event": "request"' in line for line in said) < requests:
            await asyncio.sleep(0.02)


async def test_every_line_is_one_record_of_ours(dsn: str) -> None:
    settings = {"database_url": dsn, "log_level": "debug", "llm_api_key": KEY}
    async with serve(obey) as model, process(**settings, llm_base_url=model.url, patience="0") as house:
        made = await attack(house.http, house.url)
        await until_logged(house.said, made)
        await _end(house)
    lines = [line for line in house.said if " serves on " not in line]
    records = [json.loads(line) for line in lines]
    assert all({"event", "level", "timestamp"} <= set(record) for record in records)
    events = [record["event"] for record in records]
    assert events.count("request") == made
    assert "tool_raised" in events
    assert "model_call_failed" in events
    assert "session_rested" in events, "the debug level was on"
    libraries = [record["message"] for record in records if record["event"] == "library_log"]
    assert "Invalid HTTP request received." in libraries, "libraries log through us too"
    assert "forged" not in events
    assert "request_failed" not in events
    everything = "\n".join(house.said)
    assert re.search(r"[^\n\x20-\x7e]", everything) is None, "nothing but plain printable ASCII"
    assert KEY not in everything


async def test_a_terminal_is_told_nothing_that_it_would_obey(dsn: str) -> None:
    """People watch the log on a terminal: there, records are written for them, and escapes would be obeyed."""
    ours, theirs = os.openpty()
    env = {**os.environ, "LONGHOUSE_DATABASE_URL": dsn, "LONGHOUSE_LOG_LEVEL": "debug", "NO_COLOR": "1"}
    started = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "longhouse", "serve", "--port", "0",
        env=env, stdout=asyncio.subprocess.PIPE, stderr=theirs,
    )  # fmt: skip
    os.close(theirs)
    reading = asyncio.create_task(asyncio.to_thread(_read, ours))
    try:
        assert started.stdout is not None
        async with asyncio.timeout(30):
            url = (await started.stdout.readline()).decode().split()[-1]
        async with aiohttp.ClientSession(url) as http:
            await attack(http, url)
        started.terminate()
        async with asyncio.timeout(20):
            await started.wait()
    finally:
        if started.returncode is None:
            started.kill()
            await started.wait()
        written = await reading
        os.close(ours)
    shown = re.sub(r"\x1b\[[0-9;]*m", "", written)  # our own colours
    assert "\\x1b[2J" in shown, "escapes are written out"
    assert re.search(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u2028]", shown) is None
    assert not [line for line in shown.splitlines() if line.startswith(("{", '"'))]
    assert KEY not in shown


def _read(terminal: int) -> str:
    written = b""
    while True:
        try:
            piece = os.read(terminal, 65536)
        except OSError:  # the other side is closed
            break
        if not piece:
            break
        written += piece
    return written.decode()


async def _end(house: Process) -> None:
    house.process.terminate()
    await house.ended()
