"""Text without the characters that nobody sees: a reader must find what the model is told."""

import re
from typing import Final

_LINE_ENDS: Final = re.compile("\r\n?|[\x0b\x0c\x85\u2028\u2029]")
_UNSEEN: Final = re.compile(
    "["
    "\x00-\x08\x0e-\x1f\x7f-\x9f"  # controls; Postgres keeps no NUL
    "\u00ad\u200b\u2060\ufeff\ufffe\uffff"  # hints for breaking lines, byte order marks, no characters
    "\u202a-\u202e\u2066-\u2069"  # overrides of the direction: they show another text than the one that is there
    "\ud800-\udfff"  # halves of characters; UTF-8 has no bytes for them
    "\U000e0000-\U000e0fff"  # tags: whole sentences that no screen shows
    "]"
)
_CJK: Final = "\u2e80-\u9fff\uac00-\ud7af\uf900-\ufaff\uff00-\uffef"
_CJK_BREAK: Final = re.compile(rf"(?<=[{_CJK}])[ \t]*\n[ \t]*(?=[{_CJK}])")
_SPACES: Final = re.compile(r"[^\S\n]+")


def cleaned(text: str) -> str:
    """The same text with `\\n` at the end of lines and without what is not shown."""
    return _UNSEEN.sub("", _LINE_ENDS.sub("\n", text))


def one_line(text: str) -> str:
    """All lines as one; Chinese and Japanese have no space where a line was broken."""
    return " ".join(_CJK_BREAK.sub("", text).split())


def joint(before: str, after: str) -> str:
    """What comes between two lines that are made one: the last character of one, the first of the other."""
    return "" if _CJK_BREAK.search(f"{before}\n{after}") else " "


def squeezed(text: str) -> str:
    """Lines with single spaces, none at their ends."""
    lines = (_SPACES.sub(" ", line).strip() for line in text.split("\n"))
    return "\n".join(lines).strip("\n")
