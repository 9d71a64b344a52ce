"""Server-side errors (500 and 503) as clients see them."""

from typing import Final

from longhouse.errors import CallerError
from longhouse.store.database import PASSING, UNREACHABLE

RETRY_AFTER: Final = 2
"""Seconds after which a client should retry when Postgres fails or the server stops."""


def log_key(error: Exception) -> str:
    """The log key of a Postgres error."""
    return "database_unreachable" if isinstance(error, UNREACHABLE) else "database_trouble"


def error_for(error: Exception, session: str = "") -> CallerError:
    """The response for an error that ended a request; `session`: the session that the request had reached by then."""
    if isinstance(error, UNREACHABLE):
        return unavailable("Postgres cannot be reached.", session)
    if isinstance(error, PASSING):  # it is out of disk or memory, or timed out
        return unavailable("Postgres has a temporary problem.", session)
    message = _with_session("An internal error: the log of the server has the details.", session)
    return CallerError(message, status=500, kind="server_error", code="internal_error")


def unavailable(message: str, session: str = "") -> CallerError:
    # A client may retry: what was committed by then is found by its idempotency key, or as a repeated request.
    message = _with_session(message, session)
    return CallerError(message, status=503, kind="server_error", code="unavailable", retry_after=RETRY_AFTER)


def _with_session(message: str, session: str) -> str:
    return f"{message} The session goes on: see /v1/sessions/{session}." if session else message
