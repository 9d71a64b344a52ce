"""Exceptions, grouped by who can act on them. Failures of tools are not here: they are `Fault`s, for the agent."""

from typing import Any


class LonghouseError(Exception):
    """Base class of all errors that are raised on purpose."""


class SetupError(LonghouseError):
    """The machine or the settings do not allow a start; the message says what to do."""


class CallerError(LonghouseError):
    """The request is invalid or cannot be served; the client gets the message, and nothing was recorded."""

    def __init__(
        self,
        message: str,
        *,
        status: int = 400,
        kind: str = "invalid_request_error",
        code: str | None = None,
        param: str | None = None,
        retry_after: int | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.kind = kind
        self.code = code
        self.param = param
        self.retry_after = retry_after
        """Seconds after which the client may retry the request."""


class ReadOnlySession(CallerError):  # noqa: N818 - it says what the session is
    """The session came in a capsule: it is looked at, and never goes on."""

    def __init__(self) -> None:
        super().__init__(
            "This session was imported from a capsule and is read-only: start a session of your own to go on.",
            status=409,
            code="session_read_only",
        )


class Deposed(LonghouseError):  # noqa: N818 - it says what happened to the worker
    """Another worker holds the session's lease: this worker stops, and neither reads nor retries."""


class CannotRun(LonghouseError):  # noqa: N818 - it says what this process cannot do
    """This process lacks a package of the agent: its sessions are left to processes that have it."""


class AlreadyReturned(LonghouseError):  # noqa: N818
    """The call already has an outcome; the first one stays."""


class ProviderError(LonghouseError):
    """A model or an endpoint failed; `retryable` and the retry policy decide what follows.

    Its message is for the operator. `public_message` is for users of an agent: it names no host and quotes no response.
    """

    def __init__(
        self, message: str, *, retryable: bool, retry_after: float | None = None, public_message: str | None = None
    ) -> None:
        super().__init__(message)
        self.public_message = public_message or message
        self.usage: Any = None
        """The `Usage` of a failed reply whose tokens were used all the same: they count against the budget."""
        self.retryable = retryable
        self.retry_after = retry_after


class UnknownShape(LonghouseError):  # noqa: N818
    """A journal holds an event that this process does not know, or is inconsistent: it releases the session."""
