"""Pages of rows, newest first."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from types import MappingProxyType

import asyncpg

from longhouse.store.database import Database

Position = tuple[datetime, str]
"""The last row of the previous page."""


async def page(
    db: Database,
    select: str,
    *,
    by: str,
    before: Position | None,
    limit: int,
    conditions: Mapping[str, str] = MappingProxyType({}),
    **filters: object,
) -> Sequence[asyncpg.Record]:
    """A page in descending order `by` two columns; `conditions` has the SQL of each filter, None leaves a filter out.

    The statement has only the conditions in use: with `OR` for the others, its plan would use no index.
    """
    values = {name: value for name, value in filters.items() if value is not None}
    used = [conditions[name] for name in values]
    if before:
        used.append(f"({by}) < (:before_at, :before_id)")
        values |= {"before_at": before[0], "before_id": before[1]}
    where = f"WHERE {' AND '.join(used)}" if used else ""
    order = f"{by.replace(',', ' DESC,')} DESC"
    return await db.rows(f"{select} {where} ORDER BY {order} LIMIT :limit", limit=limit, **values)
