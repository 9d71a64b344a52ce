"""Pagination: query parameters of lists, cursors, and pages."""

import base64
from collections.abc import Callable, Sequence
from datetime import UTC, date, datetime
from typing import Annotated, Any, Final, Generic, Literal, TypedDict, TypeVar

from fastapi import Query
from pydantic import BeforeValidator, Field, GetJsonSchemaHandler
from pydantic.json_schema import JsonSchemaValue, WithJsonSchema
from pydantic_core import CoreSchema

from longhouse.api import wire

MAX_PAGE: Final = 200

T = TypeVar("T")
Row = TypeVar("Row")


class _NeverNull:
    """A query parameter may be omitted, but is never null: the OpenAPI document shows it without null."""

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        shown, _null = handler(schema)["anyOf"]
        return handler.resolve_ref_schema(shown)


def digits(value: Any) -> Any:
    """The number of a query parameter; Pydantic would read `1_0`, ` 1` and `1.0` too."""
    if not isinstance(value, str):
        return value
    if value.isascii() and value.isdecimal() and len(value) < 11:
        return int(value)
    raise ValueError("It should be a number, written in digits")


def _day(text: str) -> str:
    """The day of a query parameter; Pydantic would read `0` as 1970, and a moment too."""
    if len(text) != len("2026-01-31") or text[4] + text[7] != "--":
        raise ValueError("It should be a day, such as 2026-01-31")
    return text


def in_utc(text: Any) -> datetime:
    """A timestamp that Postgres accepts: with a zone, and with a four-digit year in UTC."""
    try:
        moment = datetime.fromisoformat(str(text))
        if moment.tzinfo is None:
            raise ValueError("a moment needs a zone")
        return moment.astimezone(UTC)
    except (ValueError, OverflowError):
        raise ValueError("It should be ISO 8601 with a zone, such as 2026-01-31T12:00:00Z") from None


def _cursor(text: Any) -> tuple[datetime, str]:
    try:
        moment, _, row_id = base64.urlsafe_b64decode(text).decode().partition(" ")
        if "\x00" in row_id:
            raise ValueError("no id holds a NUL")
        return in_utc(moment), row_id
    except ValueError:
        raise ValueError("It should be the `next` of an earlier page") from None


Digits = BeforeValidator(digits)
Omittable = Annotated[T | None, _NeverNull()]
Moment = Annotated[datetime, BeforeValidator(in_utc), Field(json_schema_extra={"example": "2026-01-31T12:00:00Z"})]
# A pair of timestamp and id; typed as a tuple, FastAPI would read it from two parameters of the same name.
Cursor = Annotated[Any, BeforeValidator(_cursor), WithJsonSchema({"type": "string"})]
Day = Annotated[date, Field(strict=False), BeforeValidator(_day)]
YesOrNo = Literal["true", "false"]


class Limited(wire.StrictModel):
    """The size of a page."""

    limit: Annotated[int, Field(ge=1, le=MAX_PAGE), Digits] = Field(50, description="How many at most")

    @property
    def fetched(self) -> int:
        """Rows to read: one more than the page, to know whether another page follows."""
        return self.limit + 1

    def cut(self, rows: Sequence[Row], cursor: Callable[[Row], str]) -> tuple[Sequence[Row], str | None]:
        """The rows of the page, and its `next`."""
        page = rows[: self.limit]
        return page, cursor(page[-1]) if len(rows) > self.limit else None

    def page(self, rows: Sequence[Row], cursor: Callable[[Row], str]) -> "Page[Row]":
        """The page of these rows."""
        return page(*self.cut(rows, cursor))


class Paged(Limited):
    """The query of a list, newest first."""

    before: Omittable[Cursor] = Field(None, description="The `next` of the page before")

    @property
    def filters(self) -> dict[str, Any]:
        """The fields besides the page."""
        return self.model_dump(exclude={"limit", "before"})


PagedQuery = Annotated[Paged, Query()]


def cursor(moment: datetime, row_id: str) -> str:
    return base64.urlsafe_b64encode(f"{moment.isoformat()} {row_id}".encode()).decode()


def by(moment: str, row_id: str = "id") -> Callable[[Any], str]:
    """The cursor of a row, which has its moment and its id under these names."""
    return lambda row: cursor(getattr(row, moment), getattr(row, row_id))


class Page(TypedDict, Generic[T]):
    """A list, or one page of it."""

    object: Literal["list"]
    data: Sequence[T]
    has_more: bool
    next: str | None
    """What to send as `before` for the page after this one."""


def page(data: Sequence[T], following: str | None = None) -> Page[T]:
    """A list in the shape that every route returns."""
    return {"object": "list", "data": data, "has_more": following is not None, "next": following}
