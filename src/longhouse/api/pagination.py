"""Query parameters of our own routes: each of them known, each of them checked."""

import base64
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Any, Final, Protocol

from starlette.requests import Request

from longhouse.api import wire
from longhouse.errors import CallerError

MAX_PAGE: Final = 200


class Listed(Protocol):
    """A row of a list that is shown newest first."""

    @property
    def id(self) -> str: ...

    @property
    def created_at(self) -> datetime: ...


class Query:
    """The parameters of one request; a name that is not known here is a 400 that says so."""

    def __init__(self, request: Request, known: Sequence[str] = ()) -> None:
        self._given = dict(request.query_params)
        for name, value in self._given.items():
            if name not in known:
                here = f"; known: {', '.join(known)}" if known else ""
                raise CallerError(f"There is no query parameter {name[:64]!r} here{here}.", param=name[:64])
            if "\x00" in value:
                raise CallerError(f"{name} holds a NUL character.", param=name)

    def text(self, name: str) -> str | None:
        return self._given.get(name)

    def id(self, name: str) -> str | None:
        value = self.text(name)
        return None if value is None else wire.checked_id(value, name)

    def choice(self, name: str, choices: Iterable[str]) -> str | None:
        value = self.text(name)
        if value is not None and value not in list(choices):
            raise CallerError(f"{name} must be one of {', '.join(choices)}.", param=name)
        return value

    def number(self, name: str, *, default: int, least: int, most: int) -> int:
        value = self._given.get(name, str(default))
        if not (value.isascii() and value.isdecimal() and len(value) < 10 and least <= int(value) <= most):
            raise CallerError(f"{name} must be a number from {least} to {most}.", param=name)
        return int(value)

    def moment(self, name: str) -> datetime | None:
        value = self.text(name)
        try:
            return None if value is None else _in_utc(value)
        except (ValueError, OverflowError):
            example = "2026-01-31T12:00:00Z"
            raise CallerError(f"{name} must be ISO 8601 with a zone, such as {example}.", param=name) from None

    def cursor(self, name: str) -> tuple[datetime, str] | None:
        """Where the page before ended, as `cursor_of` wrote it."""
        value = self.text(name)
        if value is None:
            return None
        try:
            moment, _, session_id = base64.urlsafe_b64decode(value).decode().partition(" ")
            if "\x00" in session_id:
                raise ValueError("no id holds a NUL")
            return _in_utc(moment), session_id
        except (ValueError, OverflowError):
            raise CallerError(f"{name} must be the `next` of an earlier page.", param=name) from None


def parameter(name: str, description: str, *, where: str = "query", **schema: Any) -> dict[str, Any]:
    """A parameter for the OpenAPI document; a text, unless its schema says otherwise."""
    shown = {"type": "string", **schema}
    return {"name": name, "in": where, "required": False, "description": description, "schema": shown}


def described(*parameters: dict[str, Any]) -> dict[str, Any]:
    """The parameters of a route for the OpenAPI document, which cannot see them: we read queries ourselves."""
    return {"parameters": list(parameters)}


PAGED: Final = (
    parameter("limit", "How many at most", type="integer", minimum=1, maximum=MAX_PAGE, default=50),
    parameter("before", "The `next` of the page before"),
)
MOMENT: Final = {"format": "date-time", "example": "2026-01-31T12:00:00Z"}


async def none(request: Request) -> None:
    """A dependency of the routes that take no query parameters."""
    Query(request)


def cursor_of(row: Listed) -> str:
    return cursor_at(row.created_at, row.id)


def cursor_at(moment: datetime, row_id: str) -> str:
    return base64.urlsafe_b64encode(f"{moment.isoformat()} {row_id}".encode()).decode()


def _in_utc(text: str) -> datetime:
    """A moment that Postgres can be asked about: with a zone, and still a year of four digits in UTC."""
    moment = datetime.fromisoformat(text)
    if moment.tzinfo is None:
        raise ValueError("a moment needs a zone")
    return moment.astimezone(UTC)
