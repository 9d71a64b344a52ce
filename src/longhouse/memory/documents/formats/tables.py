"""Rows of cells as a Markdown table."""

from collections.abc import Iterable, Sequence
from typing import Final

Cell = tuple[str, int, int]
"""Text, columns and rows that it spans."""


MAX_COLUMNS: Final = 200


def markdown(rows: Sequence[Sequence[str]]) -> str:
    """A table whose first row is its header; every row has as many cells as the longest."""
    width = max(map(len, rows))
    lines = [_line([*row, *[""] * (width - len(row))]) for row in rows]
    return "\n".join((lines[0], _line(["---"] * width), *lines[1:]))


def _line(cells: Iterable[str]) -> str:
    return "| " + " | ".join(" ".join(cell.replace("|", "\\|").split()) for cell in cells) + " |"


def spanned(rows: Iterable[Iterable[Cell]]) -> list[list[str]]:
    """Rows of single cells: one over several rows is in each of them, one over several columns in the first."""
    table: list[list[str]] = []
    below: dict[int, tuple[str, int]] = {}
    """For each column the cell from above, and how many rows it still takes."""
    for row in rows:
        line: list[str] = []
        for content, columns, down in row:
            _fill(line, below)
            for n in range(min(columns, MAX_COLUMNS - len(line))):
                if down > 1:
                    below[len(line)] = ("" if n else content, down - 1)
                line.append("" if n else content)
        _fill(line, below)
        if any(line):
            table.append(line)
    return table


def _fill(line: list[str], below: dict[int, tuple[str, int]]) -> None:
    while (column := len(line)) in below:
        content, rows = below.pop(column)
        if rows > 1:
            below[column] = (content, rows - 1)
        line.append(content)
