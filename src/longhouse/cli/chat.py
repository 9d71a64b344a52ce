"""`longhouse chat`: a chat in the terminal, over the same API that every client uses."""

import asyncio
import getpass
import os
import re
import sys
import threading
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any, Final

import aiohttp
import msgspec
from rich.console import Console
from yarl import URL

from longhouse.errors import LonghouseError, SetupError
from longhouse.journal.roles import role_of
from longhouse.journal.session import LOCAL_OWNER
from longhouse.journal.visible_text import readable, readable_json

_CONTROLS: Final = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f]")


class UnansweredError(LonghouseError):
    """This message got no answer; the chat goes on."""


def account(key: str) -> str:
    """The user name: without a key the local owner; with a key, which many may share, the account on this machine."""
    try:
        return getpass.getuser() if key else LOCAL_OWNER
    except (KeyError, OSError):  # the account has no name
        return LOCAL_OWNER


async def talk(url: str, model: str, key: str = "", user: str = "") -> None:
    """Reads lines until the end of input; each line is a message, and the answer is streamed to the terminal."""
    user = user or account(key)
    address, headers = _address(url), {"authorization": f"Bearer {key}"} if key else None
    page, lines = ChatPage(Console()), _lines()
    console = page.console
    is_met = False
    async with aiohttp.ClientSession(address, headers=headers) as http:
        while True:
            console.print("you> ", style="bold", end="")
            line = await lines.get()
            if line is None:
                return
            if not line.strip():
                continue
            try:
                async for chunk in _chunks(http, model, line, user):
                    model, is_met = chunk["model"], True
                    page.show(chunk)
            except (aiohttp.ClientError, UnansweredError) as error:
                is_ours = isinstance(error, UnansweredError)
                reason = str(error) if is_ours else f"Longhouse cannot be reached at {url}: {error}"
                if not is_met:
                    raise SetupError(reason) from None
                console.print(f"\n{reason} (the session: {model})", style="red", markup=False, highlight=False, end="")
            page.end()


def _lines() -> asyncio.Queue[str | None]:
    """The lines of standard input; None at its end. The thread is not joined at exit: it may block for ever."""
    lines: asyncio.Queue[str | None] = asyncio.Queue()
    loop = asyncio.get_running_loop()

    def put(line: bytes) -> None:
        loop.call_soon_threadsafe(lines.put_nowait, line.decode(errors="replace"))

    def read() -> None:
        rest = b""
        with suppress(RuntimeError):  # the event loop is closed
            while read := os.read(sys.stdin.fileno(), 65_536):
                *whole, rest = (rest + read).split(b"\n")
                for line in whole:
                    put(line)
            if rest:
                put(rest)
            loop.call_soon_threadsafe(lines.put_nowait, None)

    threading.Thread(target=read, daemon=True).start()
    return lines


def _address(url: str) -> URL:
    """The address of the server; `/v1` at its end is accepted, as OpenAI's clients write it."""
    try:
        address = URL(url)
    except ValueError:
        address = URL()
    if address.scheme not in ("http", "https") or not address.host:
        raise SetupError(f"{url!r} is not an address such as http://127.0.0.1:8400")
    return address.origin()


async def _chunks(http: aiohttp.ClientSession, model: str, line: str, user: str) -> AsyncIterator[dict[str, Any]]:
    body = {"model": model, "messages": [{"role": "user", "content": line}], "stream": True, "user": user}
    timeout = aiohttp.ClientTimeout(total=None)
    async with http.post("/v1/chat/completions", json=body, timeout=timeout) as response:
        if response.status != 200:
            raise UnansweredError(_reason(await response.read()))
        async for raw in response.content:
            data = raw.strip().removeprefix(b"data: ")
            if data == raw.strip() or data == b"[DONE]":
                continue
            chunk = msgspec.json.decode(data)
            if "error" in chunk:
                raise UnansweredError(chunk["error"]["message"])
            yield chunk


def _reason(answer: bytes) -> str:
    try:
        return str(msgspec.json.decode(answer)["error"]["message"])
    except (msgspec.MsgspecError, KeyError, TypeError):
        return "what answers there is not Longhouse"


class ChatPage:
    """Prints an answer: text as it comes, and the agent's activity between it on separate lines."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self._is_mid_line = False

    def show(self, chunk: dict[str, Any]) -> None:
        activity = chunk.get("x_agent") or {}
        if activity.get("event") == "tool_call" and role_of(activity["tool"]) != "finishes":
            gap = "\n" if self._is_mid_line else ""
            line = f"{gap}· {readable(activity['tool'])} {readable_json(activity['arguments'])}"
            self.console.print(line, style="dim", markup=False, highlight=False)
            self._is_mid_line = False
        for choice in chunk["choices"]:
            if words := choice["delta"].get("content"):
                # Without control sequences, which could overwrite what the person is asked.
                text = _CONTROLS.sub(lambda found: readable(found[0]), words)
                self.console.print(text, end="", markup=False, highlight=False)
                self._is_mid_line = not words.endswith("\n")

    def end(self) -> None:
        self.console.print()
        self._is_mid_line = False
