"""A text that grows piece by piece, as a model writes it."""

from typing import Final

JOINED: Final = 256
"""Pieces joined at a time: each string costs some fifty bytes besides its text."""


class GrowingText:
    """To add a piece takes as long as the piece is, however long the whole has become."""

    __slots__ = ("_length", "_new", "_old")

    def __init__(self, text: str = "") -> None:
        self._old = [text]
        self._new: list[str] = []
        self._length = len(text)

    def add(self, text: str) -> None:
        self._new.append(text)
        self._length += len(text)
        if len(self._new) == JOINED:
            self._old.append("".join(self._new))
            self._new.clear()

    def __len__(self) -> int:
        return self._length

    def __str__(self) -> str:
        if self._new or len(self._old) > 1:
            self._old, self._new = ["".join((*self._old, *self._new))], []
        return self._old[0]
