"""Server-side errors (500 and 503) as clients see them."""

import functools
from typing import Final

import structlog

from longhouse.errors import CallerError, UnknownShape
from longhouse.store.database import PASSING, UNREACHABLE

log = structlog.get_logger()

RETRY_AFTER: Final = 2
"""Seconds after which a client should retry when Postgres fails or the server stops."""


TROUBLE: Final = (*PASSING, UnknownShape)
"""Errors that are no defect of this process: another try may reach one that can answer."""


def log_trouble(error: Exception, message: str, **about: str | None) -> None:
    if isinstance(error, UnknownShape):
        _log_unreadable(str(error))
        return
    key = "database_unreachable" if isinstance(error, UNREACHABLE) else "database_trouble"
    log.warning(key, message=message, error=repr(error), **about)


@functools.lru_cache(maxsize=1_000)
def _log_unreadable(what: str) -> None:
    """Once for each kind of thing that cannot be read: clients ask again."""
    message = "A request was refused: this process cannot read what a newer release has written."
    log.error("journal_unreadable", message=message, error=what)


def error_for(error: Exception, session: str = "") -> CallerError:
    """The response for an error that ended a request; `session`: the session that the request had reached by then."""
    if isinstance(error, UNREACHABLE):
        return unavailable("Postgres cannot be reached.", session)
    if isinstance(error, PASSING):  # it is out of disk or memory, or timed out
        return unavailable("Postgres has a temporary problem.", session)
    if isinstance(error, UnknownShape):
        return unavailable("A newer release has written this, and this process cannot read it: ask again.", session)
    message = _with_session("An internal error: the log of the server has the details.", session)
    return CallerError(message, status=500, kind="server_error", code="internal_error")


def unavailable(message: str, session: str = "") -> CallerError:
    # A client may retry: what was committed by then is found by its idempotency key, or as a repeated request.
    message = _with_session(message, session)
    return CallerError(message, status=503, kind="server_error", code="unavailable", retry_after=RETRY_AFTER)


def _with_session(message: str, session: str) -> str:
    return f"{message} The session goes on: see /v1/sessions/{session}." if session else message
