"""Sources and search results in a tool context: objects for tools, plain JSON in the journal."""

from collections.abc import ItemsView, KeysView, ValuesView
from datetime import datetime
from typing import Annotated, Any

import pydantic
from pydantic import AfterValidator, Field, PlainSerializer

from longhouse import clock


class FoundRecord(pydantic.BaseModel):
    """Fields by attribute and by name in brackets; what only its tool knows stays with it."""

    model_config = pydantic.ConfigDict(extra="allow", defer_build=True)

    def __getitem__(self, name: str) -> Any:
        return self._held()[name]

    def __setitem__(self, name: str, value: Any) -> None:
        setattr(self, name, value)

    def __contains__(self, name: object) -> bool:
        return name in self._held()

    def get(self, name: str, default: Any = None) -> Any:
        return self._held().get(name, default)

    def keys(self) -> KeysView[str]:
        return self._held().keys()

    def values(self) -> ValuesView[Any]:
        return self._held().values()

    def items(self) -> ItemsView[str, Any]:
        return self._held().items()

    def _held(self) -> dict[str, Any]:
        """Item access gives a time as the text that the journal stores."""
        held = {**self.__dict__, **(self.model_extra or {})}
        return {name: _zoned(value) for name, value in held.items()}


class SourceData(FoundRecord):
    """A page that was found, under the number that it is cited by."""

    number: int
    title: str | None = "Untitled"
    url: str
    snippet: str = ""
    full_content: str = ""
    char_count: int = 0

    def __str__(self) -> str:
        return f"[{self.number}] {self.title or 'Untitled'} - {self.url}"


def _local(moment: datetime) -> datetime:
    """A local time without a zone, like `datetime.now()`: tools compare the two."""
    return moment.astimezone().replace(tzinfo=None) if moment.tzinfo else moment


def _zoned(value: Any) -> Any:
    return clock.iso(value) if isinstance(value, datetime) else value


class SearchResult(FoundRecord):
    """A search and the sources that it found."""

    query: str
    answer: str | None = None
    citations: list[SourceData] = Field(default_factory=list)
    timestamp: Annotated[datetime, AfterValidator(_local), PlainSerializer(_zoned, when_used="json")] = Field(
        default_factory=lambda: _local(clock.now())
    )

    def __str__(self) -> str:
        return f"Search: '{self.query}' ({len(self.citations)} sources)"


def as_source(value: Any) -> Any:
    """A source from the journal as an object; a value of another shape is returned unchanged."""
    if not isinstance(value, dict) or type(value.get("number")) is not int:
        return value
    source = _fitting(SourceData, value)
    if isinstance(source, SourceData) and "char_count" not in value:
        source.char_count = len(source.full_content)
    return source


def as_search(value: Any) -> Any:
    """The same for a search."""
    return _fitting(SearchResult, value) if isinstance(value, dict) else value


def _fitting(cls: type[FoundRecord], value: dict[str, Any]) -> Any:
    try:
        return cls.model_validate(value)
    except pydantic.ValidationError:
        return value
