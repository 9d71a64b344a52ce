"""The chat where no terminal is: each line of standard input is a message, and the answer is streamed as text."""

from typing import Any

import aiohttp
from rich.console import Console

from longhouse.cli.chat.client import ChatClient, UnansweredError
from longhouse.cli.running import stdin_lines
from longhouse.errors import SetupError
from longhouse.journal.roles import role_of
from longhouse.journal.words.visible_text import UNSETTLED, readable, readable_json, readable_lines


async def talk(client: ChatClient, model: str) -> None:
    """Reads lines until the end of input; each line is a message, and the answer is streamed to standard output."""
    page, lines = ChatPage(Console()), stdin_lines()
    console = page.console
    is_met = False
    while True:
        console.print("you> ", style="bold", end="")
        line = await lines.get()
        if line is None:
            return
        if not line.strip():
            continue
        try:
            async for chunk in client.say(model, line.decode(errors="replace")):
                model, is_met = chunk["model"], True
                page.show(chunk)
        except (aiohttp.ClientError, UnansweredError) as error:
            page.settle()
            why = readable_lines(client.reason(error))
            if not is_met:
                raise SetupError(why) from None
            console.print(f"\n{why} (the session: {model})", style="red", markup=False, highlight=False, end="")
        page.end()


class ChatPage:
    """Prints an answer: text as it comes, and the agent's activity between it on separate lines."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self._is_mid_line = False
        self._rest = ""

    def show(self, chunk: dict[str, Any]) -> None:
        activity = chunk.get("x_agent") or {}
        if activity.get("event") == "tool_call" and role_of(activity["tool"]) != "finishes":
            self.settle()
            gap = "\n" if self._is_mid_line else ""
            line = f"{gap}· {readable(activity['tool'])} {readable_json(activity['arguments'])}"
            self.console.print(line, style="dim", markup=False, highlight=False)
            self._is_mid_line = False
        for choice in chunk["choices"]:
            if words := choice["delta"].get("content"):
                text = self._rest + words
                settled = UNSETTLED.sub("", text)
                self._write(settled)
                self._rest = text[len(settled) :]

    def end(self) -> None:
        self.settle()
        self.console.print()
        self._is_mid_line = False

    def settle(self) -> None:
        """Prints what was held back."""
        self._write(self._rest)

    def _write(self, words: str) -> None:
        self._rest = ""
        if words:
            self.console.print(readable_lines(words), end="", markup=False, highlight=False)
            self._is_mid_line = not words.endswith("\n")
