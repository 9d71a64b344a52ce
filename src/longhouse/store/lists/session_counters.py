"""Counters of sessions for lists: derived from the journals, and brought up to date by whoever reads them.

An append does nothing for them. A read counts what was appended since the last one, in the sessions that it shows.
"""

import asyncio
from collections.abc import Mapping
from typing import Final

import asyncpg
import msgspec

from longhouse.errors import UnknownShape
from longhouse.journal.counters import COUNTERS_VERSION, NOT_COUNTED, Counters
from longhouse.store import journals
from longhouse.store.database import Database

BATCH: Final = 200
"""Sessions that are brought up to date together."""
PAGE: Final = 2_000
"""Events that are read at once: decoding them holds up other requests for some milliseconds."""

KNOWN: Final = """
    SELECT session_id, counted FROM session_counters WHERE session_id = ANY(:ids) AND version = :version
"""
EVENTS: Final = f"""
    SELECT j.session_id, j.seq, j.at, j.trace_id, j.worker, j.fence, j.body, f.content
    FROM unnest(:ids::text[], :after::bigint[], :upto::bigint[]) WITH ORDINALITY AS span (session_id, after, upto, nth)
    JOIN journal j ON j.session_id = span.session_id AND j.seq > span.after AND j.seq <= span.upto
    LEFT JOIN files f ON f.digest = j.body_digest
    WHERE j.kind NOT IN ({", ".join(f"'{kind}'" for kind in NOT_COUNTED)})
    ORDER BY span.nth, j.seq LIMIT :limit
"""
# The sessions are locked first, in the order in which an erasure locks them; one that is gone is left out.
KEEP: Final = """
    INSERT INTO session_counters AS c (session_id, version, head, found_by, failed_tools, counted)
    SELECT new.session_id, :version, new.head, new.found_by, ARRAY(SELECT json_array_elements_text(new.failed_tools)),
           new.counted
    FROM (SELECT id FROM sessions WHERE id = ANY(:ids::text[]) ORDER BY id FOR KEY SHARE) there
    JOIN unnest(:ids::text[], :heads::bigint[], :words::text[], :tools::json[], :counted::bytea[])
        AS new (session_id, head, found_by, failed_tools, counted) ON new.session_id = there.id
    ORDER BY new.session_id
    ON CONFLICT (session_id) DO UPDATE SET version = excluded.version, head = excluded.head,
        found_by = excluded.found_by, failed_tools = excluded.failed_tools, counted = excluded.counted
    WHERE c.head < excluded.head OR c.version <> excluded.version
"""

_decoder: Final = msgspec.json.Decoder(Counters)


async def counted(db: Database, heads: Mapping[str, int], *, may_lag: int = 0) -> dict[str, Counters]:
    """Session -> its counters up to this head; what is not counted yet is counted now, and kept.

    `may_lag`: so few events are counted for this reader alone, who comes often.
    """
    rows = await db.rows(KNOWN, ids=list(heads), version=COUNTERS_VERSION) if heads else []
    found = {row["session_id"]: _decoder.decode(row["counted"]) for row in rows}
    behind = {one: head for one, head in heads.items() if one not in found or found[one].head < head}
    ids = list(behind)
    for start in range(0, len(ids), BATCH):
        batch = ids[start : start + BATCH]
        kept = {one: found[one].head if one in found else 0 for one in batch}
        fresh = await _count(db, {one: (found.get(one, Counters()), behind[one]) for one in batch})
        await _keep(db, {one: new for one, new in fresh.items() if new.head - kept[one] > may_lag})
        found |= fresh
    return found


async def _count(db: Database, behind: Mapping[str, tuple[Counters, int]]) -> dict[str, Counters]:
    """Counts the events of these sessions from their counters on up to a head."""
    waiting = {one: _Span(counters, counters.head, upto) for one, (counters, upto) in behind.items()}
    while waiting:
        after, upto = [span.after for span in waiting.values()], [span.upto for span in waiting.values()]
        rows = await db.rows(EVENTS, ids=list(waiting), after=after, upto=upto, limit=PAGE)
        for row in rows:
            waiting[row["session_id"]].add(row)
        # Sessions come one after another: where the page is full, the last one and those behind it have more.
        ids = list(waiting)
        done = ids.index(rows[-1]["session_id"]) if len(rows) == PAGE else len(ids)
        for one in ids[:done]:
            waiting.pop(one).end()
        await asyncio.sleep(0)
    return {one: counters for one, (counters, _) in behind.items()}


class _Span(msgspec.Struct):
    """A session whose events are being counted."""

    counters: Counters
    after: int
    upto: int
    is_readable: bool = True
    """False: a newer process wrote an event of it, before which its counters stay."""

    def add(self, row: asyncpg.Record) -> None:
        self.after = row["seq"]
        if self.is_readable:
            try:
                self.counters.add(journals.recorded(row[1:]))
            except UnknownShape:
                self.is_readable = False

    def end(self) -> None:
        if self.is_readable:
            self.counters.head = self.upto  # the last events may be of kinds that are not counted


async def _keep(db: Database, fresh: Mapping[str, Counters]) -> None:
    if not fresh:
        return
    values = list(fresh.values())
    await db.run(
        KEEP,
        version=COUNTERS_VERSION,
        ids=list(fresh),
        heads=[one.head for one in values],
        words=[one.found_by for one in values],
        tools=[msgspec.json.encode(one.failed_tools).decode() for one in values],
        counted=[msgspec.json.encode(one) for one in values],
    )
