"""Incremental JSON reader: streams the answer out of a tool call while its arguments still arrive."""

import json
import re
from typing import Final

# The decodable beginning of a JSON string: plain characters, complete escapes, complete surrogate pairs.
_DECODABLE: Final = re.compile(
    r"""(?:[^"\\]
        |\\["\\/bfnrt]
        |\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}
        |\\u(?![dD][89a-fA-F])[0-9a-fA-F]{4})*""",
    re.VERBOSE,
)


class _OpenLevel:
    """An object or array that is not closed yet."""

    def __init__(self, is_object: bool) -> None:
        self.is_object = is_object
        self.key = ""
        self.expects_value = not is_object


class AnswerReader:
    """Gets fragments of a JSON object and returns what they add to the string at `path`.

    `given` is the path and the value of another string that must come first: in structured output, the tool name.
    """

    def __init__(self, path: tuple[str, ...] = ("answer",), given: tuple[tuple[str, ...], str] | None = None) -> None:
        self._path = path
        self._given = given
        self._is_given = given is None
        self._levels: list[_OpenLevel] = []
        self._string: list[str] | None = None
        self._escaped = False
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

    def _is_value_at(self, path: tuple[str, ...]) -> bool:
        is_value = bool(self._levels) and self._levels[-1].expects_value
        return is_value and tuple(level.key for level in self._levels) == path

    def _scan(self, char: str) -> None:
        """Processes one character before the field."""
        if self._string is not None:
            self._scan_string(char)
        elif char == '"':
            self._inside = self._is_given and self._is_value_at(self._path)
            self._string = None if self._inside else []
        elif char in "{[":
            self._levels.append(_OpenLevel(char == "{"))
        elif char in "}]":
            if self._levels:
                self._levels.pop()
        elif self._levels and self._levels[-1].is_object and char in ":,":
            self._levels[-1].expects_value = char == ":"

    def _scan_string(self, char: str) -> None:
        assert self._string is not None
        if self._escaped:
            self._escaped = False
            self._string.append(f"\\{char}")
        elif char == "\\":
            self._escaped = True
        elif char == '"':
            text, self._string = _decoded("".join(self._string)), None
            if self._levels and not self._levels[-1].expects_value:
                self._levels[-1].key = text
            elif self._given and self._is_value_at(self._given[0]):
                self._is_given = text == self._given[1]
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
    """The decoded content of a JSON string; empty if it is invalid, which matches no key."""
    try:
        return str(json.loads(f'"{raw}"', strict=False))
    except ValueError:
        return ""
