"""Reads the answer out of a tool call whose arguments are still arriving, so that people see it as it is written."""

import json
import re
from typing import Final

# As much of a JSON string as can be decoded: plain characters, whole escapes, whole surrogate pairs.
_DECODABLE: Final = re.compile(
    r"""(?:[^"\\]
        |\\["\\/bfnrt]
        |\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}
        |\\u(?![dD][89a-fA-F])[0-9a-fA-F]{4})*""",
    re.VERBOSE,
)


class AnswerReader:
    """Feed it fragments of a JSON object; it gives back what they add to the string under `field` at the top level."""

    def __init__(self, field: str = "answer") -> None:
        self._field = field
        self._depth = 0
        self._string: list[str] | None = None
        self._escaped = False
        self._key = ""
        self._expects_value = False
        self._inside = False
        self._done = False
        self._held = ""

    def feed(self, fragment: str) -> str:
        if self._done:
            return ""
        if self._inside:
            return self._read(fragment)
        for index, char in enumerate(fragment):
            self._scan(char)
            if self._inside:
                return self._read(fragment[index + 1 :])
        return ""

    def _scan(self, char: str) -> None:
        """One character on the way to the field."""
        if self._string is not None:
            self._scan_string(char)
        elif char == '"':
            if self._depth == 1 and self._expects_value and self._key == self._field:
                self._inside = True
            else:
                self._string = []
        elif char in "{[":
            self._depth += 1
        elif char in "}]":
            self._depth -= 1
        elif char == ":" and self._depth == 1:
            self._expects_value = True
        elif char == "," and self._depth == 1:
            self._expects_value = False

    def _scan_string(self, char: str) -> None:
        assert self._string is not None
        if self._escaped:
            self._escaped = False
            self._string.append(f"\\{char}")
        elif char == "\\":
            self._escaped = True
        elif char == '"':
            if self._depth == 1 and not self._expects_value:
                self._key = _decoded("".join(self._string))
            self._string = None
        else:
            self._string.append(char)

    def _read(self, fragment: str) -> str:
        self._held += fragment
        match = _DECODABLE.match(self._held)
        assert match is not None
        ready, self._held = match[0], self._held[match.end() :]
        self._done = self._held.startswith('"')
        return _decoded(ready)


def _decoded(raw: str) -> str:
    """The inside of a JSON string; a key that is none is no key that we look for."""
    try:
        return str(json.loads(f'"{raw}"', strict=False))
    except ValueError:
        return ""
