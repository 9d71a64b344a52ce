"""Trouble that is not the caller's: what clients are told of it."""

from longhouse.errors import CallerError
from longhouse.store.database import UNREACHABLE


def of(error: Exception, session: str = "") -> CallerError:
    """What a client is told of an error that ended its request; `session`: where the request had gone before."""
    return away(session) if isinstance(error, UNREACHABLE) else defect(session)


def away(session: str = "") -> CallerError:
    return _ours("Postgres cannot be reached.", session, code="unavailable")


def stopping(session: str = "") -> CallerError:
    return _ours("The server is stopping.", session, code="unavailable")


def defect(session: str = "") -> CallerError:
    return _ours("Something went wrong on our side.", session, status=500, code="internal_error")


def _ours(message: str, session: str, *, status: int = 503, code: str) -> CallerError:
    if session:
        message = f"{message} The session goes on: see /v1/sessions/{session}."
    return CallerError(message, status=status, kind="server_error", code=code)
