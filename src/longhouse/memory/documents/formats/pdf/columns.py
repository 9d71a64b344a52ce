"""Tables of pages: lines whose words stand in columns."""

from collections.abc import Sequence

from msgspec.structs import replace

from longhouse.memory.documents.formats.pdf.lines import LEADERS, Line, Word, joined


def table(lines: Sequence[Line], start: int) -> tuple[list[list[str]], int]:
    """The rows of a table that begins at this line, and where it ends; no rows if there is none."""
    columns = lines[start].cells()
    if len(columns) < 2 or LEADERS.search(lines[start].text):
        return [], start
    rows: list[list[str]] = []
    end = start
    full = 0
    for line in lines[start:]:
        cells = line.cells()
        if end > start and not 0 <= lines[end - 1].end_y - line.y < 4 * line.size:
            break
        places = _places(cells, columns)
        if places is None or (len(cells) < 2 and not rows):
            break
        if len(cells) == 1 and (places[0] == 0 or lines[end - 1].end_y - line.y > 2 * line.size):
            break
        if places[0] > 0 and len(cells) < len(columns):
            _continue(rows[-1], cells, places)
        else:
            row = [""] * len(columns)
            _continue(row, cells, places)
            rows.append(row)
            columns = [_wider(column, cells, places, n) for n, column in enumerate(columns)]
            full += len(cells) == len(columns)
        end += 1
    lengths = [len(cell) for row in rows for cell in row if cell]
    is_table = full >= 2 and len(rows) >= 2 and sum(lengths) / len(lengths) <= 60
    return (rows, end) if is_table else ([], start)


def _places(cells: Sequence[Word], columns: Sequence[Word]) -> list[int] | None:
    """In which column each cell stands; None if one stands in none, or two in the same."""
    places: list[int] = []
    for cell in cells:
        over = [min(cell.right, c.right) - max(cell.left, c.left) for c in columns]
        near = [abs(cell.left - c.left) < 3 or abs(cell.right - c.right) < 3 for c in columns]
        best = max(range(len(columns)), key=lambda n: (near[n], over[n]))
        if (not near[best] and over[best] <= 0) or best in places:
            return None
        places.append(best)
    return places if places == sorted(places) else None


def _continue(row: list[str], cells: Sequence[Word], places: Sequence[int]) -> None:
    for cell, place in zip(cells, places, strict=True):
        row[place] = joined(row[place], cell.text)


def _wider(column: Word, cells: Sequence[Word], places: Sequence[int], n: int) -> Word:
    if n not in places:
        return column
    cell = cells[places.index(n)]
    return replace(column, left=min(column.left, cell.left), right=max(column.right, cell.right))
