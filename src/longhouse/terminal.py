"""A conversation in the terminal, over the same API that every client uses."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import msgspec
from rich.console import Console

from longhouse.errors import SetupError


async def talk(url: str, model: str, key: str = "") -> None:
    """Reads lines until the end of input; each is a message, and the answer is written as it comes."""
    console = Console()
    headers = {"authorization": f"Bearer {key}"} if key else None
    async with aiohttp.ClientSession(url, headers=headers) as http:
        while True:
            try:
                line = await asyncio.to_thread(console.input, "[bold]you> [/]")
            except EOFError:
                return
            if not line.strip():
                continue
            try:
                async for chunk in _chunks(http, model, line):
                    model = chunk["model"]
                    _show(console, chunk)
            except aiohttp.ClientError as error:
                raise SetupError(f"Longhouse cannot be reached at {url}: {error}") from error
            console.print()


async def _chunks(http: aiohttp.ClientSession, model: str, line: str) -> AsyncIterator[dict[str, Any]]:
    body = {"model": model, "messages": [{"role": "user", "content": line}], "stream": True}
    timeout = aiohttp.ClientTimeout(total=None)
    async with http.post("/v1/chat/completions", json=body, timeout=timeout) as response:
        if response.status != 200:
            raise SetupError((await response.json())["error"]["message"])
        async for raw in response.content:
            data = raw.strip().removeprefix(b"data: ")
            if data == raw.strip() or data == b"[DONE]":
                continue
            chunk = msgspec.json.decode(data)
            if "error" in chunk:
                raise SetupError(chunk["error"]["message"])
            yield chunk


def _show(console: Console, chunk: dict[str, Any]) -> None:
    activity = chunk.get("x_agent") or {}
    if activity.get("event") == "tool_call" and activity["tool"] != "finalanswertool":
        console.print(f"[dim]· {activity['tool']} {activity['arguments']}[/]")
    for choice in chunk["choices"]:
        console.print(choice["delta"].get("content") or "", end="", markup=False, highlight=False)
