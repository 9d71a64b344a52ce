"""Rows as parameters of a statement: a few as plain values, since an array costs as much as ten of them; many as
arrays, a column each."""

from collections.abc import Sequence
from typing import Any, Final

PLACES: Final = "abcd"
"""Names of the rows that are few."""


class Rows:
    """A source of rows for FROM, with an ordinal `nth` in the end."""

    def __init__(self, name: str, **types: str) -> None:
        self._name = name
        self._types = types
        self._columns = ", ".join((*types, "nth"))
        arrays = ", ".join(f":{name}_{column}::{type_}[]" for column, type_ in types.items())
        self.in_arrays = f"unnest({arrays}) WITH ORDINALITY AS {name} ({self._columns})"
        """SQL for any number of rows."""

    def source(self, count: int) -> str:
        """SQL for so many rows."""
        if not is_few(count):
            return self.in_arrays
        rows = (
            ", ".join(f":{self._name}_{column}_{place}::{type_}" for column, type_ in self._types.items())
            for place in PLACES[:count]
        )
        written = ", ".join(f"({row}, {nth})" for nth, row in enumerate(rows, 1))
        return f"(VALUES {written}) AS {self._name} ({self._columns})"

    def values(self, rows: Sequence[Sequence[object]]) -> dict[str, object]:
        """The parameters of `source`: a tuple of each row, in the order of the columns."""
        if not is_few(len(rows)):
            return self.arrays(rows)
        return {
            f"{self._name}_{column}_{place}": value
            for place, row in zip(PLACES, rows, strict=False)
            for column, value in zip(self._types, row, strict=True)
        }

    def arrays(self, rows: Sequence[Sequence[object]]) -> dict[str, object]:
        """The parameters of `in_arrays`."""
        return {f"{self._name}_{column}": [row[nth] for row in rows] for nth, column in enumerate(self._types)}


def columns(values: Sequence[object], *names: str) -> dict[str, list[Any]]:
    """Attributes of values as arrays, each the parameter of its own name."""
    return {name: [getattr(one, name) for one in values] for name in names}


def is_few(count: int) -> bool:
    return 0 < count <= len(PLACES)
