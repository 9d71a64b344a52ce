"""Escapes invisible characters and direction marks in text that a person reads before deciding."""

import json
import re
from typing import Final

_SPACES: Final = "\u00a0\u3000"
"""Visible as spaces, and common in texts of many languages."""
_EMOJI: Final = (
    "\u00a9\u00ae\u203c\u2049\u2122\u2139\u2194-\u2199\u21a9\u21aa\u231a-\u23ff\u24c2\u25aa-\u25fe\u2600-\u27bf"
    "\u2934\u2935\u2b05-\u2b55\u3030\u303d\u3297\u3299\U0001f000-\U0001faff"
)
"""Characters that U+FE0F turns into emoji; after digits, # and * it comes before the keycap character."""
_BLANK: Final = re.compile(
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u2800\u2d7f\u3164\ufe00-\ufe0e\uffa0\ufffc"
    "\U0001107f\U00016fe4\U0001d159\U000e0100-\U000e01ef]"
    f"|(?<![{_EMOJI}])\ufe0f(?!(?<=[0-9#*]\ufe0f)\u20e3)"
)
"""Letters and marks that are rendered as nothing."""
_JOINER: Final = "\u200d"
_JOINED: Final = re.compile(f"(?:(?<=[{_EMOJI}])|(?<=[{_EMOJI}]\ufe0f)){_JOINER}(?=[{_EMOJI}])")
"""The joiner between emoji that are one picture, such as a family."""
UNSETTLED: Final = re.compile(r"[\W\d]*\Z")
"""The end of a piece of text: what follows it may be a part of its last character."""
_BETWEEN: Final = str.maketrans("\t\n\r", "   ")
_LAID_OUT: Final = re.compile("[^\n\t]+")
_TICKS: Final = re.compile("`+")
_PLAIN_NAME: Final = re.compile(r"[A-Za-z0-9]+([._/-][A-Za-z0-9]+)*")
"""Markdown shows such a name unchanged: an underscore inside a word is literal."""


def readable(text: str) -> str:
    """Letters of all languages unchanged; control, direction and invisible characters as JSON escapes."""
    return _JOINER.join(map(_readable, _JOINED.split(text))) if _JOINER in text else _readable(text)


def _readable(text: str) -> str:
    text = _BLANK.sub(lambda found: _escaped(found[0]), text)
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() or char in _SPACES else _escaped(char) for char in text)


def readable_lines(text: str) -> str:
    """The same for text of several lines; ends of lines and tabs are kept."""
    return _LAID_OUT.sub(lambda found: readable(found[0]), text)


def readable_json(text: str) -> str:
    """The same for JSON text, on one line; the JSON value does not change."""
    # JSON strings contain these only as escapes: unescaped they are white space between tokens, like a space.
    return readable(text.translate(_BETWEEN))


def in_code(text: str) -> str:
    """One line as a Markdown code span: it is rendered literally, and no link is made of it."""
    if not text:
        return ""
    ticks = "`" * (max(map(len, _TICKS.findall(text)), default=0) + 1)
    # Markdown strips one space from both ends, so text that begins and ends with a space needs extra spaces.
    is_spaced = text[0] == text[-1] == " " and not text.isspace()
    gap = " " if "`" in (text[0], text[-1]) or is_spaced else ""
    return f"{ticks}{gap}{text}{gap}{ticks}"


def name_in_code(name: str) -> str:
    """A name unchanged; as a code span if Markdown would change it."""
    return name if _PLAIN_NAME.fullmatch(name) else in_code(name)


def _escaped(char: str) -> str:
    return json.dumps(char)[1:-1]
