"""A text that grows piece by piece, as a model writes it."""


class GrowingText:
    """To add a piece takes as long as the piece is, however long the whole has become."""

    __slots__ = ("_length", "_pieces")

    def __init__(self, text: str = "") -> None:
        self._pieces = [text]
        self._length = len(text)

    def add(self, text: str) -> None:
        self._pieces.append(text)
        self._length += len(text)

    def __len__(self) -> int:
        return self._length

    def __str__(self) -> str:
        if len(self._pieces) > 1:
            self._pieces = ["".join(self._pieces)]
        return self._pieces[0]
