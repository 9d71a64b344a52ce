"""Errors of calls without an answer: NotBegun had no effect, an uncertain call may have taken effect."""

from typing import Final

from longhouse.errors import LonghouseError
from longhouse.journal.events import Fault

UNKNOWN: Final = "unknown_outcome"
"""Fault code of an unknown outcome."""
LOST: Final = "the worker that ran it was lost"
"""The reason for a call whose worker was lost."""


class CallError(LonghouseError):
    """A call got no answer; the agent reads the message."""

    def __init__(self, message: str, *, in_doubt: bool = False) -> None:
        super().__init__(message)
        self.in_doubt = in_doubt
        """The call was sent or begun, and may have taken effect."""


class NotBegun(CallError):  # noqa: N818 - it says what happened, or did not
    """Nothing was sent or started: the call certainly had no effect."""


def unknown(tool: str, why: str) -> Fault:
    """The fault for an effect whose outcome is unknown."""
    message = f"it is not known whether {tool} took effect: {why}; do not repeat it without checking"
    return Fault(code=UNKNOWN, message=message)
