"""Calls that brought no answer: which of them surely did nothing, and which may have taken effect."""

from typing import Final

from longhouse.errors import LonghouseError
from longhouse.journal.events import Fault

UNKNOWN: Final = "unknown_outcome"
"""The code of a Fault that says so."""
LOST: Final = "the worker that ran it was lost"
"""Why nothing is known of a call whose worker is gone."""


class CallError(LonghouseError):
    """A call brought no answer; in words that an agent can act on."""

    def __init__(self, message: str, *, in_doubt: bool = False) -> None:
        super().__init__(message)
        self.in_doubt = in_doubt
        """It was sent, or begun, and may have taken effect."""


class NotBegun(CallError):  # noqa: N818 - it says what happened, or did not
    """Nothing was sent and nothing was started: the call surely had no effect."""


def unknown(tool: str, why: str) -> Fault:
    """What an agent is told of an effect that nobody can be sure of."""
    message = f"it is not known whether {tool} took effect: {why}; do not repeat it without checking"
    return Fault(code=UNKNOWN, message=message)
