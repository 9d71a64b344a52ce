"""What a process keeps of its searches for as long as the index stays as it is."""

from collections import OrderedDict
from typing import Any, Generic, TypeAlias, TypeVar

T = TypeVar("T")
State: TypeAlias = tuple[Any, ...]
"""Of the index: while it stays the same, a search finds the same."""


class KeptResults(Generic[T]):
    """What was found, for as long as the index stays as it was then; the last few."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._found: OrderedDict[tuple[Any, ...], tuple[State, T]] = OrderedDict()

    def get(self, key: tuple[Any, ...], now: State | None) -> T | None:
        if now is None or key not in self._found or self._found[key][0] != now:
            return None
        self._found.move_to_end(key)
        return self._found[key][1]

    def keep(self, key: tuple[Any, ...], now: State | None, found: T) -> None:
        if now is None:
            return
        self._found[key] = (now, found)
        self._found.move_to_end(key)
        if len(self._found) > self._most:
            self._found.popitem(last=False)
