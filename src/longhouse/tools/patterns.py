"""Checks untrusted regular expressions: syntax and catastrophic backtracking. They run on single characters only.

Catastrophic backtracking comes from nested repetition whose iterations are ambiguous, as in `(a+)+`. Iterations are
unambiguous if each must contain a character that the inner repetition cannot match, as in `[a-z]+(-[a-z]+)*`.
"""

import re
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final

LONGEST: Final = 500
MANY: Final = 50
"""A repetition with a higher bound counts as unbounded."""

_TOKEN: Final = re.compile(
    r"""(?P<open>\((?:\?(?::|=|!|<=|<!|P?<[A-Za-z]\w*>))?)
    | (?P<close>\))
    | (?P<bar>\|)
    | (?P<repeat>(?:[*+?]|\{[0-9]+(?:,[0-9]*)?\})\??)
    | (?P<atom>\[\^?\]?(?:\\.|[^\]\\])*\]|\\x[0-9A-Fa-f]{2}|\\u[0-9A-Fa-f]{4}|\\.|.)""",
    re.VERBOSE | re.DOTALL,
)
_LETTERS: Final = (*map(chr, range(128)), "\xa0", "é", "ж", "中", "😀")
_ZERO_WIDTH: Final = frozenset({"^", "$", r"\b", r"\B", r"\A", r"\Z"})


@dataclass(slots=True)
class _Item:
    """An atom or a group of alternatives, with its repetition."""

    atom: str = ""
    ways: list[list["_Item"]] = field(default_factory=list)
    looks: bool = False
    """A look-around: it consumes nothing."""
    least: int = 1
    is_loop: bool = False


@lru_cache(maxsize=1024)
def problem(pattern: str) -> str | None:
    """Why this pattern is refused."""
    if len(pattern) > LONGEST:
        return f"the pattern has more than {LONGEST} characters"
    # Python's parser needs a P in named groups; JSON Schema uses the JavaScript dialect.
    pattern = re.sub(r"\(\?<(?=[A-Za-z])", "(?P<", pattern)
    try:
        with warnings.catch_warnings(action="ignore"):
            re.compile(pattern)
        root = _parsed(pattern)
    except (re.error, RecursionError, OverflowError, ValueError) as error:
        return f"the pattern is not valid: {error}"
    if any(_is_endless(item) for item in _items(root)):
        return "the pattern may take forever: it repeats what already repeats"
    return None


def _parsed(pattern: str) -> list[list[_Item]]:
    ways: list[list[_Item]] = [[]]
    outer: list[list[list[_Item]]] = []
    for token in _TOKEN.finditer(pattern):
        match token.lastgroup:
            case "open":
                group = _Item(ways=[[]], looks=token[0] not in ("(", "(?:") and not token[0].endswith(">"))
                if pattern.startswith("(?", token.start()) and token[0] == "(":
                    raise ValueError(f"{pattern[token.start() : token.start() + 4]}… is not understood")
                ways[-1].append(group)
                outer.append(ways)
                ways = group.ways
            case "close":
                ways = outer.pop()
            case "bar":
                ways.append([])
            case "repeat":
                _repeat(ways[-1][-1], token[0].removesuffix("?") or "?")
            case _:
                ways[-1].append(_Item(atom=token[0]))
    return ways


def _repeat(item: _Item, how: str) -> None:
    least, _, most = how.strip("{}").partition(",")
    if how in ("*", "+", "?"):
        least, most = ("1", "") if how == "+" else ("0", "1" if how == "?" else "")
    elif "," not in how:
        most = least
    item.least = min(item.least, int(least))
    item.is_loop = item.is_loop or not most or int(most) > MANY


def _items(ways: list[list[_Item]]) -> Iterator[_Item]:
    for item in (item for way in ways for item in way):
        yield item
        yield from _items(item.ways)


def _is_endless(item: _Item) -> bool:
    if not item.is_loop or not item.ways:
        return False
    inner = [one for one in _items(item.ways) if one.is_loop]
    eaten = frozenset[str]().union(*(_eats(one) for one in inner))
    return bool(inner) and not _divides(item, eaten)


def _divides(item: _Item, eaten: frozenset[str]) -> bool:
    """Must this item consume a character that is not in `eaten`?"""
    if item.looks or item.atom in _ZERO_WIDTH:
        return False
    if item.ways:
        return all(any(one.least > 0 and _divides(one, eaten) for one in way) for way in item.ways)
    return _letters(item.atom).isdisjoint(eaten)


def _eats(item: _Item) -> frozenset[str]:
    if not item.ways:
        return _letters(item.atom)
    return frozenset[str]().union(*(_letters(one.atom) for one in _items(item.ways) if not one.ways))


@lru_cache(maxsize=1024)
def _letters(atom: str) -> frozenset[str]:
    """The characters that an atom matches; all of them if that is not known."""
    if atom in _ZERO_WIDTH:
        return frozenset()
    try:
        with warnings.catch_warnings(action="ignore"):
            one = re.compile(atom, re.DOTALL)
    except re.error:  # a reference to a group
        return frozenset(_LETTERS)
    return frozenset(letter for letter in (*_LETTERS, *atom) if one.fullmatch(letter))
