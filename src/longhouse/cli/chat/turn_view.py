"""Draws one turn while it runs: what the agents do line by line, the answer as Markdown, and below it a status line."""

import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import msgspec
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.padding import Padding
from rich.segment import Segment, SegmentLines
from rich.text import Text

from longhouse.cli.chat.client import Chunk
from longhouse.cli.chat.markdown import SafeMarkdown, finished
from longhouse.cli.chat.pages import MARKS
from longhouse.cli.one_line import lasting, plain
from longhouse.journal.roles import role_of
from longhouse.journal.words.visible_text import readable, readable_lines

AGENT_PREFIX: Final = "agent."
"""How the tools begin that are agents, as the API names them."""
SPINNER: Final = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"
ARGUMENTS: Final = 200
RESULT: Final = 100
LIVE: Final = 20_000
"""Characters of the unfinished block that are drawn while it grows; all of it is drawn at its end."""
SILENT: Final = ("finishes", "asks", "reasons")
"""Roles of calls that are read as words: an answer, a question, a thought."""


class Running(msgspec.Struct, frozen=True):
    tool: str
    arguments: str
    began: float


class TurnView:
    """The drawing of one turn. `show` takes the chunks of the chat; `refresh` is called a few times a second."""

    def __init__(self, console: Console, agent: str) -> None:
        self.console = console
        self.agent = agent
        self.last: dict[str, Any] = {}
        """The last activity: how the turn ended."""
        self._began = time.monotonic()
        self._step = 1
        self._running: dict[str, Running] = {}
        self._doing = "sends the message"
        self._trouble = ""
        self._tail = ""
        """Markdown that is not printed yet."""
        self._is_named = False
        self._is_after_line = False
        self._live: Live | None = None
        self._drawn: tuple[str, list[list[Segment]]] = ("", [])
        self._rests_until = 0.0

    @contextmanager
    def drawn(self) -> Iterator[None]:
        """Draws on the terminal; at the end only what was printed above the status line stays."""
        with Live(
            get_renderable=self._frame, console=self.console, auto_refresh=False, transient=True,
            redirect_stdout=False, redirect_stderr=False, vertical_overflow="crop",
        ) as self._live:  # fmt: skip
            yield
        self._live = None

    def refresh(self) -> None:
        """Prints the blocks that are whole, and draws the rest anew."""
        now = time.monotonic()
        if now >= self._rests_until:
            self._print_blocks()
            self._lay_out()
            # A megabyte in one paragraph is laid out more rarely: drawing takes a fifth of the time at most.
            self._rests_until = now + 5 * (time.monotonic() - now)
        if self._live:
            self._live.refresh()

    def note(self, words: str) -> None:
        """What the status line says until something happens."""
        self._trouble = words

    def show(self, chunk: Chunk) -> None:
        for choice in chunk["choices"]:
            delta = choice["delta"]
            if delta.get("reasoning_content"):
                self._doing = "thinks"
            if words := delta.get("content"):
                self._doing, self._trouble = "writes", ""
                self._tail += readable_lines(words)
        if activity := chunk.get("x_agent"):
            self._show_activity(activity)

    def end(self, *, keeps_tail: bool = True) -> None:
        """Prints what is left; without `keeps_tail`, the last block is not said: it is asked in another form."""
        self._print_blocks()
        if keeps_tail and self._tail.strip():
            self._print_markdown(self._tail)
        self._tail = ""

    # What happens

    def _show_activity(self, activity: dict[str, Any]) -> None:
        event = activity["event"]
        if event == "retrying":
            self._trouble = readable_lines(activity["reason"])
            return
        self._trouble = ""
        self.last = activity
        if event.startswith("subagent_"):
            self._show_subagent(event, activity)
            return
        self.agent = activity.get("agent") or self.agent
        match event:
            case "accepted":
                self._doing = "waits for the agent"
            case "started":
                self._doing = "thinks"
            case "resumed":
                self._print_line("↻ another worker has taken over", depth=0, style="yellow")
            case "tool_call":
                self._begin(activity["call_id"], activity["tool"], activity["arguments"])
            case "tool_result":
                self._finish(activity["call_id"], activity["tool"], activity["status"] == "ok", activity["content"])

    def _begin(self, call_id: str, tool: str, arguments: str) -> None:
        if found := re.match(r"\d{1,6}", call_id):
            self._step = int(found[0])
        self._running[call_id] = Running(tool, arguments, time.monotonic())
        self._doing = _work(tool)

    def _finish(self, call_id: str, tool: str, is_ok: bool, content: str, depth: int = 0) -> None:
        began = self._running.pop(call_id, None)
        if not depth and not self._running:
            self._step, self._doing = self._step + 1, "thinks"
        is_shown = tool.startswith(AGENT_PREFIX) and is_ok  # the sub-agent has said it itself
        if is_shown or role_of(tool) in SILENT:
            return
        took = f" · {lasting(time.monotonic() - began.began)}" if began else ""
        asked = plain(began.arguments, ARGUMENTS) if began else ""
        mark = MARKS["ok" if is_ok else "error"]
        line = Text.assemble(mark, (readable(tool), "bold"), (f" {asked}{took}", "dim"))
        self._print_line(line, depth)
        if words := plain(content, RESULT):
            self._print_line(Text(f"  {words}", style="red" if not is_ok else "dim"), depth)

    def _show_subagent(self, event: str, activity: dict[str, Any]) -> None:
        name, depth = readable(activity["agent"]), activity["depth"]
        match event:
            case "subagent_delegation":
                task = plain(activity["task"], ARGUMENTS)
                self._print_line(Text.assemble(("▸ ", "cyan"), (name, "bold cyan"), (f" {task}", "dim")), depth - 1)
                self._doing = f"{name} works"
            case "subagent_tool":
                call_id = f"{activity['session_id']}/{activity['call_id']}"
                self._running[call_id] = Running(activity["tool"], activity["arguments"], time.monotonic())
                self._doing = f"{name} · {_work(activity['tool'])}"
            case "subagent_tool_result":
                call_id, content = f"{activity['session_id']}/{activity['tool_call_id']}", activity["content"]
                self._finish(call_id, activity["name"], not content.startswith("Error: "), content, depth)
                self._doing = f"{name} thinks"
            case "subagent_completion":
                is_ok, said = activity["status"] == "completed", plain(activity["response"], RESULT)
                words = said if is_ok else f"{plain(activity['status'])} {said}"
                line = Text.assemble(MARKS["ok" if is_ok else "error"], (name, "bold cyan"), (f" {words}", "dim"))
                self._print_line(line, depth - 1)

    # What is drawn

    def _print_blocks(self) -> None:
        if length := finished(self._tail):
            whole, self._tail = self._tail[:length], self._tail[length:]
            self._print_markdown(whole)

    def _print_markdown(self, text: str) -> None:
        self._name_agent()
        self._drawn = ("", [])
        if self._is_after_line:
            self.console.print()
        lines = self._lines(text)
        self.console.print(SegmentLines(lines, new_lines=True), end="")
        self.console.print()
        self._is_after_line = False

    def _print_line(self, line: str | Text, depth: int, style: str = "") -> None:
        if self._tail.strip():
            self.end()
        self._name_agent()
        words = Text(line, style=style) if isinstance(line, str) else line
        words.no_wrap, words.overflow = True, "ellipsis"
        self.console.print(Padding(words, (0, 0, 0, 2 * max(0, depth) + 2)))
        self._is_after_line = True

    def _name_agent(self) -> None:
        if not self._is_named:
            self.console.print(Text(readable(self.agent), style="bold magenta"))
            self._is_named = True

    def _frame(self) -> RenderableType:
        room = max(3, self.console.height - 3)
        if not self._tail.strip():
            return self._status()
        return Group(SegmentLines(self._drawn[1][-room:], new_lines=True), self._status())

    def _lay_out(self) -> None:
        """Lays the unfinished block out, where it is drawn and has changed."""
        shown = self._tail[-LIVE:]
        if self._live and self._drawn[0] != shown:
            self._drawn = (shown, self._lines(shown) if shown.strip() else [])

    def _lines(self, text: str) -> list[list[Segment]]:
        """The text laid out, without the blank lines around it that Rich adds to some blocks."""
        lines = self.console.render_lines(SafeMarkdown(text), self.console.options, pad=False)
        full = [place for place, line in enumerate(lines) if any(segment.text.strip() for segment in line)]
        return lines[full[0] : full[-1] + 1] if full else []

    def _status(self) -> Text:
        """The agent, its step, what it does, how long it has taken, and why a call of the model is tried again."""
        now = time.monotonic()
        spun = SPINNER[int(now * 10) % len(SPINNER)]
        taken = _whole(now - self._began)
        parts = [readable(self.agent), f"step {self._step}", self._doing, taken]
        line = Text(no_wrap=True, overflow="ellipsis")
        line.append(f"{spun} {' · '.join(parts)}", style="cyan")
        if self._trouble:
            line.append(f" · {self._trouble}", style="yellow")
        else:
            line.append(" · Ctrl-C cancels", style="dim")
        return line


def _work(tool: str) -> str:
    return f"asks {readable(tool.removeprefix(AGENT_PREFIX))}" if tool.startswith(AGENT_PREFIX) else readable(tool)


def _whole(seconds: float) -> str:
    """Whole seconds: a status line that changes with each tenth is not read."""
    return f"{int(seconds)} s" if seconds < 60 else lasting(seconds)
