"""Section numbers of headings, in the ways documents of English, Russian and Chinese write them."""

import re
from typing import Final

_CHINESE_DIGITS: Final = "零一二三四五六七八九"
_CHINESE: Final = "[0-9零〇一二两三四五六七八九十百千]+"  # noqa: RUF001 - a zero
_CHINESE_PART: Final = re.compile(rf"第\s*({_CHINESE})\s*([部编編篇卷章节節条條])")
_CHINESE_ITEM: Final = re.compile(rf"({_CHINESE})、")
_CHINESE_APPENDIX: Final = re.compile(rf"附[录錄件]\s*([A-Z]|{_CHINESE})")
_NAMED: Final = re.compile(
    r"(part|chapter|section|article|appendix|annex|часть|глава|раздел|статья|приложение|§)"
    r"\s*(?:№\s*)?([0-9]+(?:\.[0-9]+)*|[ivxlc]+|[a-zа-я])(?![\w])",  # noqa: RUF001
    re.IGNORECASE,
)
_DOTTED: Final = re.compile(r"([0-9]{1,4}(?:\.[0-9]{1,4}){0,7})(?:[.)．]?\s+(?=\S)|(?=[\u4e00-\u9fff]))")  # noqa: RUF001
_LEVELS: Final = {"部": 1, "编": 1, "編": 1, "篇": 1, "卷": 1, "章": 1, "节": 2, "節": 2, "条": 3, "條": 3}
_ROMAN: Final = {"i": 1, "v": 5, "x": 10, "l": 50, "c": 100}


def number_of(title: str) -> str:
    """`3.2.1` of `3.2.1 Pumps`, `3` of 第三章 and of Chapter III, `A` of Appendix A; empty without a number."""
    if found := _CHINESE_PART.match(title) or _CHINESE_ITEM.match(title) or _CHINESE_APPENDIX.match(title):
        return found[1] if found[1].isascii() else str(_chinese(found[1]))
    if found := _NAMED.match(title):
        return _named_number(found[2])
    found = _DOTTED.match(title)
    return found[1] if found else ""


def without_number(title: str) -> str:
    """`Pumps` of `3.2.1 Pumps` and of `Chapter III. Pumps`."""
    for pattern in (_CHINESE_PART, _CHINESE_ITEM, _CHINESE_APPENDIX, _NAMED, _DOTTED):
        if found := pattern.match(title):
            return title[found.end() :].lstrip(" .:、—-")
    return title


def level_of(title: str) -> int:
    """The level that a number alone tells: 2 for `3.2 Pumps` and 第二节; 0 without a clear number."""
    if found := _CHINESE_PART.match(title):
        return _LEVELS[found[2]]
    if (found := _NAMED.match(title)) or (found := _CHINESE_APPENDIX.match(title)):
        return min(6, found[found.lastindex or 0].count(".") + 1)
    found = _DOTTED.match(title)
    return min(6, found[1].count(".") + 1) if found else 0


def is_numbered_title(line: str) -> bool:
    """Whether a line is a heading by its number: 第三章 总则, Глава 3, 3.2 Pumps; `1. item` is not."""
    if len(line) > 120 or line.endswith((".", ";", ",", "。", "；", "，", ":")):  # noqa: RUF001
        return False
    if _CHINESE_PART.match(line) or _CHINESE_APPENDIX.match(line) or _NAMED.match(line):
        return not re.search(r"[.。；;]\s*\S{8}", line)  # noqa: RUF001
    found = _DOTTED.match(line)
    return bool(found and "." in found[1] and re.match(r"[^\W\d_]", line[found.end() :]))


def _named_number(text: str) -> str:
    is_roman = len(text) > 1 or text in "IVX"
    return str(_roman(text)) if is_roman and set(text.lower()) <= _ROMAN.keys() else text.upper()


def _roman(text: str) -> int:
    values = [_ROMAN[sign] for sign in text.lower()]
    return sum(-a if a < b else a for a, b in zip(values, [*values[1:], 0], strict=True))


def _chinese(text: str) -> int:
    total, digit = 0, 0
    for sign in text.replace("〇", "零").replace("两", "二"):  # noqa: RUF001
        if sign in "十百千":
            total += (digit or 1) * {"十": 10, "百": 100, "千": 1000}[sign]
            digit = 0
        elif sign.isdecimal():
            digit = digit * 10 + int(sign)
        else:
            digit = digit * 10 + _CHINESE_DIGITS.index(sign)
    return total + digit
