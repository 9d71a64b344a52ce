"""Dates in words, by which passages are found."""

from datetime import datetime
from typing import Final

from longhouse.lazy_pattern import compiled_later

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


def date_words(at: datetime, text: str) -> str:
    """The date as questions in the language of the text name it."""
    if _HAN.search(text):
        return f"{at.year}年{at.month}月{at.day}日"
    month = (_RUSSIAN_MONTHS if _CYRILLIC.search(text) else _MONTHS)[at.month - 1]
    return f"{at.day} {month} {at.year}"
