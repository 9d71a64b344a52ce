"""Errors sorted by who can act on them. What a tool does wrong is not here: that is a `Fault`, for the agent."""


class LonghouseError(Exception):
    """The root of all errors that we raise on purpose."""


class SetupError(LonghouseError):
    """The machine or the settings do not let us start; one sentence says what to do."""


class CallerError(LonghouseError):
    """The request cannot be served as asked; the client is told, and nothing was recorded."""

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
        """Seconds after which the same request may be served."""


class Deposed(LonghouseError):  # noqa: N818 - it says what happened to the worker
    """Another worker holds this session; stop, read nothing, retry nothing."""


class Postponed(LonghouseError):  # noqa: N818
    """The session is to be tried later, when nobody else is tried whose worker was lost more than once."""


class AlreadyReturned(LonghouseError):  # noqa: N818
    """The call has its outcome already; the first one stands."""


class ProviderError(LonghouseError):
    """A model or an endpoint failed; `retryable` and the retry policy decide what follows.

    Its text is for the operator. `told` is for whoever talks to an agent: it names no host, and quotes nobody.
    """

    def __init__(
        self, message: str, *, retryable: bool, retry_after: float | None = None, told: str | None = None
    ) -> None:
        super().__init__(message)
        self.told = told or message
        self.retryable = retryable
        self.retry_after = retry_after


class UnknownShape(LonghouseError):  # noqa: N818
    """A journal holds a shape that this process does not know, or does not add up: it is let go, not guessed at."""
