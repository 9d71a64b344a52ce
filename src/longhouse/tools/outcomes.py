"""Outcomes of calls: output of bounded length, and calls without an answer, which may have taken effect or not."""

import asyncio
import os
import re
import traceback
from typing import Any, Final

import msgspec

from longhouse.errors import LonghouseError
from longhouse.journal.events import Fault
from longhouse.journal.words.visible_text import readable_lines

LONGEST_TRACEBACK: Final = 4000
_LOOKED_FOR: Final = re.compile(r"""\bos(?:\.py|>)", line \d+, in __getitem__\n(?:    .*\n)*KeyError: '(\w+)'""")

LOST: Final = "the worker that ran it was lost"
"""The reason for a call whose worker was lost."""


class CallError(LonghouseError):
    """A call got no answer; the agent reads the message."""

    traceback = ""
    """Of what it raised in another process, for the log."""
    has_returned = False
    """The tool has run and raised nothing; what it gave cannot be taken."""

    def __init__(self, message: str, *, in_doubt: bool = False, has_ended: bool = False) -> None:
        super().__init__(message)
        self.in_doubt = in_doubt
        """The call was sent or begun, and may have taken effect."""
        self.has_ended = has_ended
        """What ran it has ended: if it has not taken effect yet, it does not any more."""


class ToolFailed(CallError):  # noqa: N818 - it says what happened
    """The agent reads this message as it is."""

    def __init__(
        self, message: str, *, code: str = "tool_failed", in_doubt: bool = False, has_ended: bool = False
    ) -> None:
        super().__init__(message, in_doubt=in_doubt, has_ended=has_ended)
        self.code = code


class NotBegun(CallError):  # noqa: N818 - it says what happened, or did not
    """Nothing was sent or started: the call certainly had no effect."""


_NO_ANSWER: Final = (
    TimeoutError,
    ConnectionResetError,
    ConnectionAbortedError,
    BrokenPipeError,
    EOFError,
    MemoryError,
    SystemExit,
    asyncio.CancelledError,
)
"""By these the code of a tool says that it was interrupted or got no answer, by any other that it failed."""
_NO_ANSWER_OF_CLIENTS: Final = frozenset(
    {
        "httpx.RemoteProtocolError", "httpx.ReadError", "httpx.WriteError", "httpx.ReadTimeout", "httpx.WriteTimeout",
        "httpcore.RemoteProtocolError", "httpcore.ReadError", "httpcore.WriteError",
        "aiohttp.ServerDisconnectedError", "aiohttp.ClientPayloadError",
        "http.IncompleteRead", "requests.ChunkedEncodingError", "urllib3.ReadTimeoutError",
        "botocore.ConnectionClosedError", "asyncpg.ConnectionDoesNotExistError",
    }
)  # fmt: skip
"""The same from clients that a tool may use; what they raise while they connect is not among them."""
_NO_ANSWER_OF_GRPC: Final = ("UNAVAILABLE", "DEADLINE_EXCEEDED")


def is_in_doubt(error: BaseException | None) -> bool:
    """Whether a call that ended with this exception of its tool may have taken effect."""
    while error:
        if isinstance(error, CallError):
            return error.in_doubt
        if isinstance(error, _NO_ANSWER) or _is_of_client(error):
            return True
        if isinstance(error, BaseExceptionGroup) and any(map(is_in_doubt, error.exceptions)):
            return True
        error = error.__cause__ or error.__context__
    return False


def _is_of_client(error: BaseException) -> bool:
    names = {f"{kind.__module__.partition('.')[0]}.{kind.__name__}" for kind in type(error).__mro__}
    status = getattr(error, "code", None) if "grpc.RpcError" in names else None
    is_of_grpc = callable(status) and getattr(status(), "name", "") in _NO_ANSWER_OF_GRPC
    return is_of_grpc or not names.isdisjoint(_NO_ANSWER_OF_CLIENTS)


def traceback_of(error: BaseException) -> str:
    """The traceback of what a tool raised, its end if it is long; without what the agent reads anyway."""
    if isinstance(error, CallError):
        return error.traceback
    return readable_lines("".join(traceback.format_exception(error))[-LONGEST_TRACEBACK:])


def hidden_variable(said: str) -> str:
    """The variable that a tool looked for in its environment, by its traceback, if this process has it."""
    found = _LOOKED_FOR.search(said)
    return found[1] if found and found[1] in os.environ else ""


def unknown(tool: str, why: str) -> Fault:
    """The fault for an effect whose outcome is unknown."""
    message = f"it is not known whether {tool} took effect: {why}; do not repeat it without checking"
    return Fault(code="unknown_outcome", message=message)


def text_of(output: Any) -> str:
    """What a tool has returned, as text: JSON of plain values, as remote tools give it."""
    if type(output) is str:
        return output
    if output is not None and not isinstance(output, dict | list | tuple | bool):
        return _words(output)
    try:
        return msgspec.json.encode(output, enc_hook=_words).decode()
    except (TypeError, ValueError, RecursionError):  # it holds something that JSON has no form for
        return str(output)


def _words(value: Any) -> str:
    text = str(value)
    if text == object.__repr__(value):
        problem = (
            f"it has run, and returned an object of the class {type(value).__name__}, which is no JSON and no text"
        )
        raise ToolFailed(f"{problem}: a tool returns a text, a number, a list or a dict", in_doubt=True)
    return text


def bounded(text: str, limit: int) -> str:
    """The first `limit` characters, and how many were cut."""
    if len(text) <= limit:
        return text
    return f"{text[:limit]}\n[cut: {len(text) - limit} of {len(text)} characters left out]"
