"""Turns of a talk as passages: what was said, found by its speaker, its date and the turns next to it."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final

import msgspec

from longhouse.lazy_pattern import compiled_later
from longhouse.search.passages import Passage

_MONTHS: Final = (
    "January", "February", "March", "April", "May", "June",
    "July", "August", "September", "October", "November", "December",
)  # fmt: skip
_RUSSIAN_MONTHS: Final = (
    "января", "февраля", "марта", "апреля", "мая", "июня",
    "июля", "августа", "сентября", "октября", "ноября", "декабря",
)  # fmt: skip
_CYRILLIC: Final = compiled_later("[\u0400-\u04ff]")
_HAN: Final = compiled_later("[\u4e00-\u9fff]")


class SpokenTurn(msgspec.Struct, frozen=True, kw_only=True):
    """Something that somebody said."""

    scope: str
    """Who may find it."""
    source: str
    """Unique within the scope, among turns."""
    group: str
    """The session, with which it is deleted."""
    text: str
    speaker: str = ""
    at: datetime | None = None
    thread: str = ""
    """The talk; turns of one thread that follow each other are found by each other's words."""
    position: int = 0
    """The order in the talk."""
    facts: Mapping[str, Any] = msgspec.field(default_factory=dict)


def passage_of_turn(turn: SpokenTurn) -> Passage:
    """The passage by which a turn is found.

    Its neighbours are no part of it: they count when a search ranks. A turn is written once, and leaves no word in
    others when it is deleted.
    """
    return Passage(
        scope=turn.scope,
        kind="interaction",
        source=turn.source,
        group=turn.group,
        text=turn.text,
        title=turn.speaker,
        context=date_words(turn.at, turn.text) if turn.at else "",
        at=turn.at,
        facts=turn.facts,
        thread=turn.thread,
        position=turn.position,
    )


def date_words(at: datetime, text: str) -> str:
    """The date as questions in the language of the text name it."""
    if _HAN.search(text):
        return f"{at.year}年{at.month}月{at.day}日"
    month = (_RUSSIAN_MONTHS if _CYRILLIC.search(text) else _MONTHS)[at.month - 1]
    return f"{at.day} {month} {at.year}"
