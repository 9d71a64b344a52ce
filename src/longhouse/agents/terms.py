"""Text as terms: what two texts have in common when they speak of the same thing."""

import re
import unicodedata
from functools import lru_cache
from itertools import pairwise
from typing import Final

from Stemmer import Stemmer

_STOP_WORDS: Final = """
    a about am an and any are as at be been but by can could did do does for from had has have he her him his how i if
    in into is it its let like may me might my of on or our please shall she should so some such that the their them
    then there these they this those to us was we were what when where which who will with would you your
    а без бы был была были было быть в вам вас весь во вот все всё вы где да для до его ее её если есть еще ещё же за
    и из или им их к как ко когда кто ли мне мной мы на над не него нее неё нет ни них но о об он она они оно от по
    под при с со так такой там то того тоже той только том ты у уже чтобы что эта эти это этот я
"""
STOP_WORDS: Final = frozenset(_STOP_WORDS.split())
"""Words that say nothing of what a tool does. Rare words weigh more anyway; these would only cost time."""

LONGEST_WORD: Final = 40
"""Longer runs are keys, digests and addresses, which no description shares with a query."""

# Scripts that are written without spaces between words: Thai and its neighbours, kana, Han, Hangul.
_UNSPACED: Final = (
    "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3041-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af\uf900-\ufaff"
)
# A Latin word also ends where a capital begins: `getHTTPStatus` has three, `userIDs` two.
_LATIN: Final = (
    r"[A-Z]{2,}s?(?![a-z])[0-9]*|[A-Z]+(?![a-z])[0-9]*|[A-Z]?[a-z]+[0-9]*"
    r"|[0-9]+(?:[A-Z]|[a-z]+)?(?![A-Za-z])|[0-9]+"
)
_RUN: Final = re.compile(rf"{_LATIN}|[{_UNSPACED}]+|[^\W_]+?(?=[{_UNSPACED}A-Za-z0-9]|\W|_|$)")
_PREFIX: Final = re.compile(r".*[.:/](?=.)")
_ACCENTED: Final = re.compile("[\u00c0-\u024f\u1e00-\u1eff]+")
_ACCENT: Final = re.compile("[\u0300-\u036f]")

_ENGLISH: Final = Stemmer("english")
_RUSSIAN: Final = Stemmer("russian")


def terms(text: str) -> list[str]:
    """The terms of a text in order, each as often as it is there."""
    return [term for run in _runs(text) for term in _terms_of(run.lower())]


def joined(name: str) -> set[str]:
    """A name as one term, with and without its prefix: `x.web_search`, `WebSearch` and `websearch` find each other."""
    whole = ("".join(_runs(part)).lower() for part in (name, own_part(name)))
    return {term for word in whole if word and word[0] < "\u0e00" for term in _terms_of(word)}


def own_part(name: str) -> str:
    """A tool's name without its server's: whose it is says little of what it does."""
    return _PREFIX.sub("", name) or name


def spaced(name: str) -> str:
    """A name as words: what a model of language can read."""
    return " ".join(_runs(name)).lower()


def _runs(text: str) -> list[str]:
    return _RUN.findall(text if text.isascii() else _plain(text))


def _plain(text: str) -> str:
    """Full-width forms and ligatures as their plain ones; Latin letters without accents."""
    text = unicodedata.normalize("NFKC", text).replace("ß", "ss")
    return _ACCENTED.sub(lambda run: _ACCENT.sub("", unicodedata.normalize("NFKD", run[0])), text)


@lru_cache(maxsize=65_536)
def _terms_of(word: str) -> tuple[str, ...]:
    if word[0] >= "\u0e00":
        return (*word, *(first + second for first, second in pairwise(word)))
    if word in STOP_WORDS or len(word) > LONGEST_WORD:
        return ()
    if word.isdigit():
        return (word,)
    if "\u0400" <= word[0] <= "\u04ff":
        return (_RUSSIAN.stemWord(word.replace("ё", "е")),)
    return (_ENGLISH.stemWord(word),)
