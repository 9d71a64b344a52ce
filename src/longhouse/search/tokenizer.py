"""Tokenizer of the search: turns text in English, Russian, Chinese and other languages into terms to match."""

import re
import unicodedata
from functools import lru_cache
from itertools import pairwise
from typing import Final

from Stemmer import Stemmer

from longhouse.lazy_pattern import compiled_later

_STOP_WORDS: Final = """
    a about also am an and any are as at be because been both but by can could did do does each ever every for from
    had has have he her here him his how i if in into is it its just let like many may me might more most much must my
    need no nor not of on only or other our own please same shall she should since so some such than that the their
    them then there these they this those through to too until us very want was we were what when where which while
    who whose why will with without would yet you your
    а без более больше бы был была были было быть в вам вами вас ваш ваша ваше ваши весь во вот все всё всегда всем всех
    всю вы где да для до его ее её ей ему если есть еще ещё ж же за здесь зачем и из или им ими их к как какая какие
    какого какое какой какую ко когда который которая которое которые кто куда ли либо лучше мне мной можно мои мой моя
    моё моего моей моих мою мы на над надо нам нами нас наш наша наше наши не него нее неё ней нет ни ним них но нужен
    нужна нужно нужны о об один она они оно он от откуда очень по под пожалуйста почему при про просто с сам сама само
    сами самый свой своя свои себе себя со сколько так такая такие такое такой там тебе тебя тем то тобой того тоже той
    только том тот тут ты у уж уже хотим хочет хочу чего чей чем через что чтобы чуть эта эти это этого этой этом этот
    эту я
"""
STOP_WORDS: Final = frozenset(_STOP_WORDS.split())
"""Words that do not describe what a tool does. Rare words have a higher weight anyway, but in a small catalog some of
these are rare by chance."""
STOP_CHARACTERS: Final = frozenset(
    "的了着过吗呢吧啊呀嘛么我你您他她它们这那哪些个位是有在不没也都就才还很太更最和与及或跟把被给对从到向为以之其所"
    "而但则如若因该什怎谁几啥请帮一能会要可想让使"
)
"""Stop characters of Chinese: alone or next to each other they are grammar, next to others they are part of a word."""

LONGEST_WORD: Final = 40
"""Longer runs are keys, digests and addresses; a description and a query do not share them."""

PART: Final = 4
"""Letters in an n-gram of a Russian word: unrelated words share many 3-grams, related words share few 5-grams."""

# Scripts without spaces between words: Thai and its neighbours, kana, Han, Hangul.
_UNSPACED: Final = (
    "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3041-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af\uf900-\ufaff"
)
# A Latin word also ends before a capital letter: `getHTTPStatus` has three words, `userIDs` two.
_LATIN: Final = (
    r"[A-Z]{2,}s?(?![a-z])[0-9]*|[A-Z]+(?![a-z])[0-9]*|[A-Z]?[a-z]+[0-9]*"
    r"|[0-9]+(?:[A-Z]|[a-z]+)?(?![A-Za-z])|[0-9]+"
)
_RUN: Final = compiled_later(rf"{_LATIN}|[{_UNSPACED}]+|[^\W_]+?(?=[{_UNSPACED}A-Za-z0-9]|\W|_|$)")
_PREFIX: Final = re.compile(r".*[.:/](?=.)")
_ACCENTED: Final = compiled_later("[\u00c0-\u024f\u1e00-\u1eff]+")
_ACCENT: Final = re.compile("[\u0300-\u036f]")

_ENGLISH: Final = Stemmer("english")
_RUSSIAN: Final = Stemmer("russian")


def terms(text: str) -> list[str]:
    """The terms of a text in order, with repeats."""
    return [term for run in _runs(text) for term in _terms_of(run.lower())]


def joined(name: str) -> set[str]:
    """A name as one term, with and without its prefix: `x.web_search`, `WebSearch` and `websearch` match each other."""
    whole = ("".join(_runs(part)).lower() for part in (name, own_part(name)))
    return {term for word in whole if word and word[0] < "\u0e00" for term in _terms_of(word)}


@lru_cache(maxsize=65_536)
def parts(term: str) -> tuple[str, ...]:
    """The n-grams or characters of a term, where related words share no stem; `~` marks them apart from terms.

    Russian drops vowels, changes consonants and builds compounds, which no stemmer undoes: `электричек` and
    `электрички`, `авиабилеты` and `билет` share n-grams. A Chinese word consists of characters.
    """
    if term[0] >= "\u0e00":
        return tuple(f"~{char}" for char in term if char not in STOP_CHARACTERS)
    if not "\u0400" <= term[0] <= "\u04ff":
        return ()
    return tuple(dict.fromkeys(f"~{term[start : start + PART]}" for start in range(len(term) - PART + 1)))


def own_part(name: str) -> str:
    """A tool's name without the server prefix: the server says little about what the tool does."""
    return _PREFIX.sub("", name) or name


def spaced(name: str) -> str:
    """A name as separate words, for an embedding model."""
    return " ".join(_runs(name)).lower()


def _runs(text: str) -> list[str]:
    return _RUN.findall(text if text.isascii() else _plain(text))


def _plain(text: str) -> str:
    """Replaces full-width forms and ligatures by plain ones, and removes accents from Latin letters."""
    text = unicodedata.normalize("NFKC", text).replace("ß", "ss")
    return _ACCENTED.sub(lambda run: _ACCENT.sub("", unicodedata.normalize("NFKD", run[0])), text)


@lru_cache(maxsize=65_536)
def _terms_of(word: str) -> tuple[str, ...]:
    if word[0] >= "\u0e00":
        pairs = pairwise(word) if len(word) > 1 else ((word,),)
        return tuple("".join(pair) for pair in pairs if not STOP_CHARACTERS.issuperset(pair))
    if word in STOP_WORDS or len(word) > LONGEST_WORD:
        return ()
    if word.isdigit():
        return (word,)
    if "\u0400" <= word[0] <= "\u04ff":
        return (_RUSSIAN.stemWord(word.replace("ё", "е")),)
    return (_ENGLISH.stemWord(word),)
