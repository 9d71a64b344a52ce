"""Reads what a person types: with history, editing, and a paste of several lines as one message."""

import os
import sys
import termios
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from prompt_toolkit import PromptSession
from prompt_toolkit.completion import WordCompleter
from prompt_toolkit.formatted_text import FormattedText
from prompt_toolkit.history import FileHistory, History, InMemoryHistory
from prompt_toolkit.input.typeahead import clear_typeahead
from prompt_toolkit.key_binding import KeyBindings
from prompt_toolkit.output.vt100 import Vt100_Output

CONTINUED: Final = "...> "


class LineEditor:
    """The prompt of a chat. Ctrl-C raises KeyboardInterrupt, Ctrl-D on an empty line EOFError."""

    def __init__(self, commands: Sequence[str], state_folder: Path) -> None:
        output = Vt100_Output.from_pty(sys.stdout, term=os.environ.get("TERM"))
        # The terminal is not asked for the place of its cursor: on a slow line the answer would be read as text.
        output.enable_cpr = False
        completer = WordCompleter(list(commands), sentence=True)
        self._messages: PromptSession[str] = PromptSession(
            history=opened_history(state_folder), completer=completer, complete_while_typing=False, output=output,
            multiline=True, key_bindings=_keys(), prompt_continuation=CONTINUED, enable_open_in_editor=True,
        )  # fmt: skip
        # What is decided or answered is not offered again.
        self._answers: PromptSession[str] = PromptSession(
            history=InMemoryHistory(),
            output=output,
            multiline=True,
            key_bindings=_keys(),
            prompt_continuation=CONTINUED,
        )

    async def message(self, prompt: str) -> str:
        return await self._read(self._messages, prompt, "ansigreen")

    async def answer(self, prompt: str) -> str:
        return await self._read(self._answers, prompt, "ansimagenta")

    async def decision(self, prompt: str) -> str:
        """An answer that is typed from now on: what was typed before was not about this."""
        clear_typeahead(self._answers.input)
        termios.tcflush(sys.stdin, termios.TCIFLUSH)
        return await self.answer(prompt)

    async def _read(self, session: PromptSession[str], prompt: str, colour: str) -> str:
        # A signal from elsewhere ends the process as usual: only the key is an event of the prompt.
        return await session.prompt_async(FormattedText([(f"bold {colour}", prompt)]), handle_sigint=False)


def _keys() -> KeyBindings:
    """Enter sends; Alt-Enter begins a new line."""
    keys = KeyBindings()

    @keys.add("enter")
    def _(event: Any) -> None:
        event.current_buffer.validate_and_handle()

    @keys.add("escape", "enter")
    def _(event: Any) -> None:
        event.current_buffer.insert_text("\n")

    return keys


def state_folder() -> Path:
    """Where programs keep what lasts from one start to the next, as the XDG specification says."""
    given = os.environ.get("XDG_STATE_HOME", "")
    base = Path(given) if os.path.isabs(given) else Path.home() / ".local" / "state"
    return base / "longhouse"


def opened_history(folder: Path) -> History:
    """The history in a file that nobody else can read; in memory where no file can be kept."""
    file = folder / "chat_history"
    with suppress(OSError, RuntimeError):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(file, os.O_CREAT | os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW, 0o600)
        try:
            os.fchmod(descriptor, 0o600)
        finally:
            os.close(descriptor)
        return FileHistory(str(file))
    return InMemoryHistory()
