"""Rows that wait to be written at the same moment, gathered in one statement: a commit costs as much as a few rows."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, TypeAlias

import asyncpg
import structlog

from longhouse.store.connections import Loan

log = structlog.get_logger()

MOST: Final = 4
"""Rows in one statement."""
PATIENCE: Final = 0.02
"""Seconds after which the next statement begins while another is still under way: that one may wait for a lock."""

Row = tuple[Any, ...]
"""The first value is the key."""
Found: TypeAlias = "asyncpg.Record | None"
_Waiting = tuple[Row, asyncio.Future[Found]]


class Gathering:
    """While something is written, what comes next waits, and is then written together.

    The statement for several rows is a short cut. It returns a record for each row that it has written, the key first.
    What it leaves out is written alone, and so is everything where it fails: only that tells what is wrong.
    """

    def __init__(self, acquire: Callable[[], Loan], statement: Callable[[Sequence[Row]], tuple[Any, ...]]) -> None:
        self._acquire = acquire
        self._statement = statement
        self._under_way = 0
        self._waiting: list[_Waiting] = []
        self._impatience: asyncio.TimerHandle | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def write(self, row: Row, alone: Callable[[], Awaitable[Found]]) -> Found:
        """Writes a row together with others, or `alone`."""
        if self._under_way and (found := await self._gathered(row)):
            return found
        self._under_way += 1
        try:
            return await alone()
        finally:
            self._end()

    async def _gathered(self, row: Row) -> Found:
        loop = asyncio.get_running_loop()
        turn: asyncio.Future[Found] = loop.create_future()
        self._waiting.append((row, turn))
        if len(self._waiting) >= MOST:
            self._begin()
        elif self._impatience is None:
            self._impatience = loop.call_later(PATIENCE, self._begin)
        return await turn

    def _begin(self) -> None:
        if self._impatience:
            self._impatience.cancel()
            self._impatience = None
        waiting, self._waiting = self._waiting, []
        group: dict[Any, _Waiting] = {}
        for row, turn in waiting:
            if turn.done():
                continue  # it was cancelled
            if row[0] in group or len(group) == MOST:
                self._waiting.append((row, turn))
            else:
                group[row[0]] = row, turn
        loop = asyncio.get_running_loop()
        if self._waiting:  # of a session that is in the group already; perhaps nobody comes after it
            self._impatience = loop.call_later(PATIENCE, self._begin)
        if len(group) == 1:
            [(_, turn)] = group.values()
            turn.set_result(None)
        elif group:
            task = loop.create_task(self._write(list(group.values())))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    def _end(self) -> None:
        self._under_way -= 1
        if self._waiting and not self._under_way:
            self._begin()

    async def _write(self, group: list[_Waiting]) -> None:
        self._under_way += 1
        found: dict[Any, asyncpg.Record] = {}
        try:
            async with self._acquire() as connection:
                # A caller that was cancelled meanwhile may have released the session.
                rows = [row for row, turn in group if not turn.done()]
                if len(rows) > 1:
                    found = {record[0]: record for record in await connection.fetch(*self._statement(rows))}
        except Exception as error:  # noqa: BLE001 - each is written alone, and learns what is wrong
            log.debug("gathered_statement_failed", rows=len(group), error=type(error).__name__)
        finally:
            for row, turn in group:
                if not turn.done():
                    turn.set_result(found.get(row[0]))
            self._end()
