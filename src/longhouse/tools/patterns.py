"""Checks untrusted regular expressions: syntax and catastrophic backtracking. They run on single characters only.

Catastrophic backtracking comes from nested repetition whose iterations are ambiguous, as in `(a+)+`. Iterations are
unambiguous if each must contain a character that the inner repetition cannot match, as in `[a-z]+(-[a-z]+)*`.
"""

import re
import warnings
from collections.abc import Iterator
from functools import lru_cache
from re import _compiler, _parser  # type: ignore[attr-defined]  # the parser of `re`, which has no public name
from typing import Any, Final

LONGEST: Final = 500
MANY: Final = 50
"""A repetition with a higher bound counts as unbounded."""

_QUOTED: Final = re.compile(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]", re.DOTALL)
_FOREIGN: Final = re.compile(r"\(\?(?!:|=|!|<=|<!|P?<[A-Za-z])")
"""Groups that only Python understands: JSON Schema uses the JavaScript dialect."""
_LETTERS: Final = (*map(chr, range(128)), "\xa0", "é", "ж", "中", "😀")
_REPEATS: Final = (_parser.MAX_REPEAT, _parser.MIN_REPEAT, _parser.POSSESSIVE_REPEAT)
_ZERO_WIDTH: Final = (_parser.AT, _parser.ASSERT, _parser.ASSERT_NOT, _parser.FAILURE)

_Item = tuple[Any, Any]
"""A part of a parsed pattern: its kind, and what it holds."""


@lru_cache(maxsize=1024)
def problem(pattern: str) -> str | None:
    """Why this pattern is refused."""
    if len(pattern) > LONGEST:
        return f"the pattern has more than {LONGEST} characters"
    if foreign := _FOREIGN.search(_QUOTED.sub("x", pattern)):
        return f"the pattern is not valid: {foreign.string[foreign.start() :][:4]}… is not understood"
    try:
        with warnings.catch_warnings(action="ignore"):
            # Python's parser needs a P in named groups.
            re.compile(pattern := re.sub(r"\(\?<(?=[A-Za-z])", "(?P<", pattern))
            items = list(_items(_parser.parse(pattern)))
    except (re.error, RecursionError, OverflowError, ValueError) as error:
        return f"the pattern is not valid: {error}"
    if any(_is_endless(item) for item in items):
        return "the pattern may take forever: it repeats what already repeats"
    return None


def _items(pattern: Any) -> Iterator[_Item]:
    """The items of a pattern, and those inside them."""
    waiting = [pattern]
    while waiting:
        for kind, held in waiting.pop().data:
            yield kind, held
            waiting += _parts(held)


def _parts(held: Any) -> list[Any]:
    """The patterns inside an item: the body of a group or a repetition, or alternatives."""
    parts = (held[-1] if isinstance(held[-1], list) else held[-1:]) if held and isinstance(held, tuple) else ()
    return [part for part in parts if isinstance(part, _parser.SubPattern)]


def _is_loop(item: _Item) -> bool:
    return item[0] in _REPEATS and item[1][1] > MANY


def _is_endless(item: _Item) -> bool:
    inner = [one for one in _items(item[1][2]) if _is_loop(one)] if _is_loop(item) else []
    consumed = frozenset[str]().union(*(_letters(*one) for loop in inner for one in _items(loop[1][2])))
    return bool(inner) and not _divides(item[1][2], consumed)


def _divides(pattern: Any, consumed: frozenset[str]) -> bool:
    """Must this pattern consume a character that is not in `consumed`?"""
    for kind, held in pattern.data:
        parts = _parts(held)
        if kind in _ZERO_WIDTH or (kind in _REPEATS and held[0] == 0):
            continue
        if all(_divides(part, consumed) for part in parts) if parts else _letters(kind, held).isdisjoint(consumed):
            return True
    return False


def _letters(kind: Any, held: Any) -> frozenset[str]:
    """The characters that an item matches by itself; all of them if that is not known."""
    if kind is _parser.GROUPREF:
        return frozenset(_LETTERS)
    if kind in _ZERO_WIDTH or _parts(held):
        return frozenset()
    return _matched(tuple(held) if kind is _parser.IN else ((kind, held),))


@lru_cache(maxsize=1024)
def _matched(members: tuple[_Item, ...]) -> frozenset[str]:
    """The characters of a class, of those above and those that it names."""
    named = [held for kind, held in members if kind is _parser.LITERAL]
    ends = [end for kind, held in members if kind is _parser.RANGE for end in held]
    atom = members if members[0][0] in (_parser.ANY, _parser.NOT_LITERAL) else [(_parser.IN, list(members))]
    one = _compiler.compile(_parser.SubPattern(_parser.State(), list(atom)), re.DOTALL | re.UNICODE)
    return frozenset(letter for letter in (*_LETTERS, *map(chr, named + ends)) if one.fullmatch(letter))
