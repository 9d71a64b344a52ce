"""Sessions as a table on a terminal, with short ids; and the sessions that a short id means."""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, Final

from rich.table import Table
from rich.text import Text

from longhouse.cli.one_line import plain

SHORT: Final = 8
"""Characters of a short id, unless two rows would share it."""
STYLES: Final = {
    "COMPLETED": "green", "FAILED": "red", "CANCELLED": "yellow", "WAITING_FOR_CLARIFICATION": "magenta",
    "WAITING_FOR_APPROVAL": "magenta",
}  # fmt: skip
TITLE: Final = 200
LEAST: Final = 12
GAP: Final = 2
"""Columns between two columns of a table."""


def own_part(session_id: str) -> str:
    """The part of an id that is its own: ids begin with the name of the agent."""
    return session_id.rpartition("_")[2]


def short_ids(ids: Iterable[str]) -> dict[str, str]:
    """Id -> the shortest beginning of its own part that no other of these ids has, of eight characters or more."""
    parts = {one: own_part(one) for one in ids}
    for length in range(SHORT, 40):
        cut = {one: part[:length] for one, part in parts.items()}
        if len(set(cut.values())) == len(cut):
            return cut
    return parts


def meant(ids: Iterable[str], start: str) -> list[str]:
    """The ids that a beginning means: of the whole id, or of its own part."""
    return [one for one in ids if one.startswith(start) or own_part(one).startswith(start)]


def table(
    rows: Sequence[Mapping[str, Any]], now: datetime, width: int, *, owners: Mapping[str, str] | None = None
) -> Table:
    """The rows of `GET /v1/sessions`, in this width; `owners`: id -> owner, where several may be shown."""
    drawn, short = (
        Table(box=None, pad_edge=False, padding=(0, GAP, 0, 0), header_style="dim"),
        short_ids(row["session_id"] for row in rows),
    )
    names = ("id", "state", "agent", *(("owner",) if owners else ()), "turns", "age")
    for name in (*names, "title"):
        drawn.add_column(name, no_wrap=True, justify="right" if name in ("turns", "age") else "left")
    cells = [[Text(name) for name in names]]
    for row in rows:
        state, session_id = row["state"], row["session_id"]
        asks = f" ({row['questions']})" if row["questions"] else ""
        line = [Text(plain(short[session_id]), "bold"), Text(f"{state}{asks}", STYLES.get(state, "cyan"))]
        line += [Text(plain(f"{row['template']}@{row['version']}"))]
        line += [Text(plain(owners[session_id]))] if owners else []
        cells.append([*line, Text(str(row["turns"])), Text(age(now, row["created_at"]))])
    # The title gets what the others leave: Rich would cut all columns alike.
    used = sum(max(line[place].cell_len for line in cells) + GAP for place in range(len(names)))
    for line, row in zip(cells[1:], rows, strict=True):
        title = Text(plain(row["title"] or row["task"] or "", TITLE))
        title.truncate(max(LEAST, width - used), overflow="ellipsis")
        drawn.add_row(*line, title)
    return drawn


def age(now: datetime, at: datetime | str) -> str:
    since = datetime.fromisoformat(at) if isinstance(at, str) else at
    seconds = max(0, int((now - since).total_seconds()))
    for name, length in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= length:
            return f"{seconds // length} {name}"
    return f"{seconds} s"
