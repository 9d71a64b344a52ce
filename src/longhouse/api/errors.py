"""Trouble that is not the caller's: what clients are told of it."""

from typing import Final

from longhouse.errors import CallerError
from longhouse.store.database import PASSING, UNREACHABLE

RETRY_AFTER: Final = 2
"""Seconds after which a request that met a Postgres in trouble, or a server that stops, is worth another try."""


def named(error: Exception) -> str:
    """What is the matter with Postgres, for the log."""
    return "Postgres is away" if isinstance(error, UNREACHABLE) else "Postgres is in trouble"


def of(error: Exception, session: str = "") -> CallerError:
    """What a client is told of an error that ended its request; `session`: where the request had gone before."""
    if isinstance(error, UNREACHABLE):
        return away(session)
    return troubled(session) if isinstance(error, PASSING) else defect(session)


def away(session: str = "") -> CallerError:
    return _passing("Postgres cannot be reached.", session)


def troubled(session: str = "") -> CallerError:
    """Postgres is there, but has no disk, no memory or no time for this."""
    return _passing("Postgres is in trouble for the moment.", session)


def stopping(session: str = "") -> CallerError:
    return _passing("The server is stopping.", session)


def defect(session: str = "") -> CallerError:
    message = _with_session("Something went wrong on our side.", session)
    return CallerError(message, status=500, kind="server_error", code="internal_error")


def _passing(message: str, session: str) -> CallerError:
    # A client may send it again: what had been kept of it by then is found by its key, or as a repeat.
    message = _with_session(message, session)
    return CallerError(message, status=503, kind="server_error", code="unavailable", retry_after=RETRY_AFTER)


def _with_session(message: str, session: str) -> str:
    return f"{message} The session goes on: see /v1/sessions/{session}." if session else message
