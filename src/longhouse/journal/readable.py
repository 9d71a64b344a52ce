"""Text that a person is to judge by: what is unseen in it, or makes other text read differently, is written out."""

import json
import re
from typing import Final

_SPACES: Final = "\u00a0\u3000"
"""As wide as they look, and common in texts of many languages."""
_BLANK: Final = re.compile(
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u2800\u3164\ufe00-\ufe0e\uffa0\U000e0100-\U000e01ef]"
)
"""Letters and marks that leave nothing to be seen. The one that makes an emoji colourful is not among them."""
_BETWEEN: Final = str.maketrans("\t\n\r", "   ")


def readable(text: str) -> str:
    """Letters of all languages as they are; controls, turns of direction and the unseen as JSON escapes them."""
    if text.isprintable() and not _BLANK.search(text):
        return text
    return "".join(char if _is_seen(char) else json.dumps(char)[1:-1] for char in text)


def readable_json(text: str) -> str:
    """The same for JSON, on one line; it still holds the same value."""
    # Its strings hold none of these but as escapes: they stand between its parts, where a space says as much.
    return readable(text.translate(_BETWEEN))


def _is_seen(char: str) -> bool:
    return (char.isprintable() or char in _SPACES) and not _BLANK.match(char)
