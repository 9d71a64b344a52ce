"""Texts of user interfaces in Russian and Chinese beside their English: gettext catalogs and JSON files by language."""

import gettext as gnu
import io
import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from training.archives import Archive
from training.rows import Row, parallel

LANGUAGES: Final[Mapping[str, str]] = {
    **dict.fromkeys(("ru", "ru-RU", "ru_RU", "ru-ru", "ru_ru"), "ru"),
    **dict.fromkeys(("zh", "zh-CN", "zh_CN", "zh-cn", "zh_cn", "zh-Hans", "zh_Hans", "zh-hans", "zh_Hans_CN"), "zh"),
}
ENGLISH: Final = ("en", "en-US", "en_US", "en-us", "en_us", "en-GB", "en_GB")
# What only formats dates and numbers says nothing.
_FORMATS: Final = re.compile(
    r"dateFormat|timeFormat|availableFormats|intervalFormats|_type|_number|[pP]attern|skin tone"
)

_CATALOG: Final = re.compile(r"(?:.*/)?([\w-]+)/LC_MESSAGES/[^/]*\.(po|mo)$")
_LOCALE: Final = re.compile(rf"(.*[/._-])({'|'.join(sorted(LANGUAGES, key=len, reverse=True))})((?:/[^/]+)*\.json)$")
_ENTRY: Final = re.compile(r'(msgctxt|msgid_plural|msgid|msgstr(?:\[\d\])?)\s+"(.*)"$')


def gettext(archive: Archive) -> Iterator[Row]:
    for name in archive.names:
        found = _CATALOG.match(name)
        if not found or found[1] not in LANGUAGES or (found[2] == "mo" and f"{name[:-2]}po" in archive):
            continue
        entries = _po(archive.text(name)) if found[2] == "po" else _mo(archive.data(name))
        for english, foreign in entries:
            yield from parallel("gettext", LANGUAGES[found[1]], foreign, english)


def _po(text: str) -> Iterator[tuple[str, str]]:
    """msgid and msgstr of each entry that its translator was sure of."""
    for block in re.split(r"\n\s*\n", text):
        if "#, fuzzy" in block or "#~" in block:
            continue
        fields: dict[str, str] = {}
        current = ""
        for line in block.splitlines():
            if found := _ENTRY.match(line.strip()):
                current, fields[found[1]] = found[1], found[2]
            elif line.startswith('"') and current:
                fields[current] += line.strip()[1:-1]
        said, meant = fields.get("msgstr") or fields.get("msgstr[0]", ""), fields.get("msgid", "")
        if said and meant:
            yield _unquoted(meant), _unquoted(said)


def _unquoted(text: str) -> str:
    return text.replace("\\n", " ").replace('\\"', '"')


def _mo(data: bytes) -> Iterator[tuple[str, str]]:
    try:
        known = vars(gnu.GNUTranslations(io.BytesIO(data)))["_catalog"]
    except (OSError, ValueError, UnicodeError):
        return
    for key, said in known.items():
        meant = key[0] if isinstance(key, tuple) else key
        if meant and isinstance(said, str):
            yield meant.split("\x04")[-1], said


def locale_files(archive: Archive) -> Iterator[Row]:
    """`…/ru.json` beside `…/en.json`, `…/ru/x.json` beside `…/en/x.json`: texts with the same key say the same."""
    for name in archive.names:
        found = _LOCALE.match(name)
        if not found or "/node_modules/" in name:
            continue
        english = next((one for code in ENGLISH if (one := f"{found[1]}{code}{found[3]}") in archive), None)
        if english is None:
            continue
        meant = dict(_texts(archive, english))
        for key, said in _texts(archive, name):
            if not _FORMATS.search(key):
                yield from parallel("locale_files", LANGUAGES[found[2]], said, meant.get(key))


def _texts(archive: Archive, name: str) -> Iterator[tuple[str, str]]:
    try:
        yield from _flat(json.loads(archive.text(name)))
    except (ValueError, RecursionError):
        return


def _flat(value: Any, key: str = "") -> Iterator[tuple[str, str]]:
    if isinstance(value, dict):
        for part, beneath in value.items():
            # Some files name their own language as a key, which differs between them.
            yield from _flat(beneath, f"{key}/{'*' if part in LANGUAGES or part in ENGLISH else part}")
    elif isinstance(value, list):
        for nth, beneath in enumerate(value):
            yield from _flat(beneath, f"{key}/{nth}")
    elif isinstance(value, str):
        yield key, value
