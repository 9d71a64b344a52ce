"""Text that a person is to judge by: what is unseen in it, or makes other text read differently, is written out."""

import json
import re
from typing import Final

_SPACES: Final = "\u00a0\u3000"
"""As wide as they look, and common in texts of many languages."""
_EMOJI: Final = (
    "\u00a9\u00ae\u203c\u2049\u2122\u2139\u2194-\u2199\u21a9\u21aa\u231a-\u23ff\u24c2\u25aa-\u25fe\u2600-\u27bf"
    "\u2934\u2935\u2b05-\u2b55\u3030\u303d\u3297\u3299\U0001f000-\U0001faff"
)
"""What U+FE0F makes colourful; on digits, # and * it stands before the sign of a key."""
_BLANK: Final = re.compile(
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u2800\u2d7f\u3164\ufe00-\ufe0e\uffa0\ufffc"
    "\U0001107f\U00016fe4\U0001d159\U000e0100-\U000e01ef]"
    f"|(?<![{_EMOJI}])\ufe0f(?!(?<=[0-9#*]\ufe0f)\u20e3)"
)
"""Letters and marks that leave nothing to be seen."""
_BETWEEN: Final = str.maketrans("\t\n\r", "   ")
_TICKS: Final = re.compile("`+")
_PLAIN_NAME: Final = re.compile(r"[A-Za-z0-9]+([._/-][A-Za-z0-9]+)*")
"""Markdown leaves it as it is: an underscore within a word is one."""


def readable(text: str) -> str:
    """Letters of all languages as they are; controls, turns of direction and the unseen as JSON escapes them."""
    text = _BLANK.sub(lambda found: _escaped(found[0]), text)
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() or char in _SPACES else _escaped(char) for char in text)


def readable_json(text: str) -> str:
    """The same for JSON, on one line; it still holds the same value."""
    # Its strings hold none of these but as escapes: they stand between its parts, where a space says as much.
    return readable(text.translate(_BETWEEN))


def in_code(text: str) -> str:
    """One line as a code span: a chat that renders Markdown takes nothing out of it, and makes no link of it."""
    if not text:
        return ""
    ticks = "`" * (max(map(len, _TICKS.findall(text)), default=0) + 1)
    # A space at both ends is taken away again, so what begins and ends with spaces of its own needs them too.
    is_spaced = text[0] == text[-1] == " " and not text.isspace()
    gap = " " if "`" in (text[0], text[-1]) or is_spaced else ""
    return f"{ticks}{gap}{text}{gap}{ticks}"


def name_in_code(name: str) -> str:
    """A name as it is typed; as a code span where Markdown would show it otherwise."""
    return name if _PLAIN_NAME.fullmatch(name) else in_code(name)


def _escaped(char: str) -> str:
    return json.dumps(char)[1:-1]
