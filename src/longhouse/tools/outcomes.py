"""Outcomes of calls: output of bounded length, and calls without an answer, which may have taken effect or not."""

from typing import Final

from longhouse.errors import LonghouseError
from longhouse.journal.events import Fault

LOST: Final = "the worker that ran it was lost"
"""The reason for a call whose worker was lost."""


class CallError(LonghouseError):
    """A call got no answer; the agent reads the message."""

    def __init__(self, message: str, *, in_doubt: bool = False) -> None:
        super().__init__(message)
        self.in_doubt = in_doubt
        """The call was sent or begun, and may have taken effect."""


class Told(CallError):  # noqa: N818 - it says what the agent is
    """The agent reads this message as it is."""

    def __init__(self, message: str, *, code: str = "tool_failed", in_doubt: bool = False) -> None:
        super().__init__(message, in_doubt=in_doubt)
        self.code = code


class NotBegun(CallError):  # noqa: N818 - it says what happened, or did not
    """Nothing was sent or started: the call certainly had no effect."""


def unknown(tool: str, why: str) -> Fault:
    """The fault for an effect whose outcome is unknown."""
    message = f"it is not known whether {tool} took effect: {why}; do not repeat it without checking"
    return Fault(code="unknown_outcome", message=message)


def bounded(text: str, limit: int) -> str:
    """The first `limit` characters, and how many were cut."""
    if len(text) <= limit:
        return text
    return f"{text[:limit]}\n[cut: {len(text) - limit} of {len(text)} characters left out]"
