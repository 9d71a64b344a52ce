"""A row of training text, and what every reader does to texts."""

import html
import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Final, Literal

Kind = Literal["pair", "parallel", "text"]
"""A request and what answers it, both in one language; a text and its English; a text alone."""

HAN: Final = re.compile("[\u4e00-\u9fff]")
CYRILLIC: Final = re.compile("[а-яё]", re.IGNORECASE)
LONGEST_QUERY: Final = 260
LONGEST_TEXT: Final = 420

_CASE: Final = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
_TAG: Final = re.compile(r"<[^>]{1,200}>")
_LINK: Final = re.compile(r"\[([^\]]*)\]\([^)]*\)")
_ADDRESS: Final = re.compile(r"https?://\S+")
_MARK: Final = re.compile(r"[`*#|]+|:\w+:`")
_FIELD: Final = re.compile(r"%\(\w+\)[sdr]|%[sdr]|\$?\{+[^{}]*\}+|\[%key:[^\]]*%\]|&&?(?=\w)")
_SENTENCE: Final = re.compile(r"(.{15,300}?[.!?。；])(?=\s|$|[^\x00-\x7f])", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Row:
    source: str
    kind: Kind
    language: str
    query: str
    text: str


def spaced(name: str) -> str:
    """`getHTTPStatus`, `get_http_status` -> `get http status`: as the product reads names."""
    return " ".join(re.sub(r"[^\w]+|_", " ", _CASE.sub(" ", name)).split()).lower()


def clean(text: object) -> str:
    """Without markup, addresses and line breaks; nothing for what is no text."""
    if not isinstance(text, str):
        return ""
    plain = _LINK.sub(r"\1", html.unescape(_TAG.sub(" ", text)))
    return " ".join(_MARK.sub(" ", _ADDRESS.sub("", plain)).split())


def first_sentence(text: str) -> str:
    found = _SENTENCE.match(text)
    return (found[1] if found else text[:300]).strip()


def pair(source: str, query: str, text: str, language: str = "en") -> Iterator[Row]:
    query = query.strip()
    if len(query) >= 2 and text.strip():
        yield Row(source, "pair", language, query[:LONGEST_QUERY], text.strip()[:LONGEST_TEXT])


def operation(source: str, name: str, summary: str, description: str, parameters: Iterable[str] = ()) -> Iterator[Row]:
    """An operation of an API: its first sentence asks, its name with the rest and its parameters answers."""
    summary, description = clean(summary), clean(description)
    if len(summary) < 8:
        summary = first_sentence(description)
    description = description.removeprefix(summary).strip(" .")
    if len(summary) >= 8:
        names = " ".join(spaced(one) for one in list(parameters)[:20])
        yield from pair(source, summary, f"{spaced(name)}: {description[:350]} {names}")


def parallel(source: str, language: str, foreign: object, english: object) -> Iterator[Row]:
    """A text and its English, if the one is foreign and the other is not."""
    if not isinstance(foreign, str) or not isinstance(english, str):
        return
    said, meant = clean(_FIELD.sub("", foreign)), clean(_FIELD.sub("", english))
    is_foreign = bool((CYRILLIC if language == "ru" else HAN).search(said)) and len(said) >= 2
    is_english = re.search("[A-Za-z]{2}", meant) and not CYRILLIC.search(meant) and not HAN.search(meant)
    if is_foreign and is_english and len(said) < 900:
        yield Row(source, "parallel", language, said[:LONGEST_QUERY], meant[:LONGEST_TEXT])


def unique(rows: Iterable[Row]) -> Iterator[Row]:
    seen: set[tuple[str, str]] = set()
    for row in rows:
        key = (row.query[:120].lower(), row.text[:80].lower())
        if key not in seen:
            seen.add(key)
            yield row


def write(path: Path, rows: Iterable[Row]) -> Counter[str]:
    """One JSON list a line; returns how many there are of each language."""
    counts: Counter[str] = Counter()
    with path.open("w", encoding="utf-8") as file:
        for row in rows:
            file.write(json.dumps(astuple(row), ensure_ascii=False, separators=(",", ":")) + "\n")
            counts[row.language] += 1
    return counts


def read(lines: Iterable[str]) -> Iterator[Row]:
    return (Row(*json.loads(line)) for line in lines)
