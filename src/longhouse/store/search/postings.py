"""Words and where they are: postings in shards, appended to by the index, added up by a search."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import asyncpg
import numpy as np

from longhouse.store.database import Database

POSTING: Final = np.dtype([("slot", "<u2"), ("weight", "<f2")])
SHARD_SLOTS: Final = 16_384
"""Few shards make a search short, small ones make an append short: a frequent word's row has some ten kilobytes."""
MOST_GONE: Final = 0.25
"""The part of a shard that may be gone; after that nothing is added, and what is left of it moves on."""
FEWEST_GONE: Final = 64
SLOTS: Final = 2**16
"""More than a shard ever has: what a shard's number is multiplied by in the number of a place."""
GONE: Final = ""
"""In place of a term: the slots whose text has left. What is gone must not make a word look common."""
CROWDED: Final = f"gone >= greatest({FEWEST_GONE}, slots * {MOST_GONE})"

# The shard with room that was begun last, or a new one; its row is locked, so that slots are given out once.
OPEN: Final = f"""
    SELECT id, slots FROM search_shards
    WHERE kind = $1 AND owner IS NOT DISTINCT FROM $2 AND slots < $3 AND NOT ({CROWDED})
    ORDER BY id DESC LIMIT 1 FOR UPDATE
"""
NEW: Final = "INSERT INTO search_shards (kind, owner) VALUES ($1, $2) RETURNING id, slots"
TAKE: Final = "UPDATE search_shards SET slots = slots + $2 WHERE id = $1"

APPEND: Final = """
    INSERT INTO search_postings AS p (shard, term, postings)
    SELECT $1, term, postings FROM unnest($2::text[], $3::bytea[]) AS added (term, postings)
    ON CONFLICT (shard, term) DO UPDATE SET postings = p.postings || EXCLUDED.postings
"""

READ: Final = """
    SELECT s.id, s.slots, s.gone, p.term, p.postings
    FROM search_shards s LEFT JOIN search_postings p ON p.shard = s.id AND p.term = ANY($3::text[])
    WHERE s.kind = $1 AND (s.owner IS NULL OR s.owner = $2)
    ORDER BY s.id
"""


@dataclass(frozen=True, slots=True)
class Room:
    """Slots that a writer may fill."""

    shard: int
    first: int
    free: int


async def room(connection: asyncpg.Connection, kind: str, owner: str | None) -> Room:
    row = await connection.fetchrow(OPEN, kind, owner, SHARD_SLOTS) or await connection.fetchrow(NEW, kind, owner)
    return Room(row["id"], row["slots"], SHARD_SLOTS - row["slots"])


async def append(connection: asyncpg.Connection, where: Room, texts: Sequence[Mapping[str, float]]) -> None:
    """Writes the weights of texts that take the next slots of the shard."""
    words, packed = pack(texts, where.first)
    await connection.execute(TAKE, where.shard, len(texts))
    await connection.execute(APPEND, where.shard, words, packed)


def pack(texts: Sequence[Mapping[str, float]], first: int) -> tuple[list[str], list[bytes]]:
    """The texts turned round: each term with its postings, as they are stored."""
    numbers: dict[str, int] = {}
    terms = [numbers.setdefault(term, len(numbers)) for text in texts for term in text]
    rows = np.empty(len(terms), POSTING)
    rows["slot"] = np.repeat(np.arange(first, first + len(texts)), [len(text) for text in texts])
    rows["weight"] = [weight for text in texts for weight in text.values()]
    ids = np.array(terms, np.int64)
    order = np.argsort(ids, kind="stable")
    data = rows[order].tobytes()
    ends = np.cumsum(np.bincount(ids, minlength=len(numbers))) * POSTING.itemsize
    starts = [0, *ends[:-1].tolist()]
    return list(numbers), [data[start:end] for start, end in zip(starts, ends.tolist(), strict=True)]


async def read(db: Database, kind: str, caller: str | None, terms: Sequence[str]) -> Sequence[asyncpg.Record]:
    """Every shard that the caller may see, with the postings of these terms and of what is gone."""
    return await db.rows(READ, kind, caller, [*terms, GONE])
