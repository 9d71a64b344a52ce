"""Postings of terms in shards: the indexer appends to them, a search reads and adds up their weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import asyncpg
import msgspec

from longhouse.arrays import np
from longhouse.store.database import Database, Transaction

POSTING: Final = [("slot", "<u2"), ("weight", "<f2")]
"""The type of a posting for numpy, which is not loaded yet."""
POSTING_BYTES: Final = 4
SHARD_SLOTS: Final = 16_384
"""Few shards make a search fast, small ones make an append fast: a frequent term's row has some ten kilobytes."""
MOST_GONE: Final = 0.25
"""The share of a shard's documents that may be deleted; beyond that it takes no new ones, and the others move away."""
FEWEST_GONE: Final = 64
SLOTS: Final = 2**16
"""More slots than a shard ever has: a document's place is `shard * SLOTS + slot`."""
GONE: Final = ""
"""Stands for a term: its postings are the slots of deleted documents, which must not make a term look frequent."""
CROWDED: Final = f"gone >= greatest({FEWEST_GONE}, slots * {MOST_GONE})"

# The newest shard with free slots; its row is locked, so that each slot is given out once.
OPEN: Final = f"""
    SELECT id, slots FROM search_shards
    WHERE kind = :kind AND owner IS NOT DISTINCT FROM :owner AND slots < :slots AND NOT ({CROWDED})
    ORDER BY id DESC LIMIT 1 FOR UPDATE
"""
NEW: Final = "INSERT INTO search_shards (kind, owner) VALUES (:kind, :owner) RETURNING id, slots"
TAKE: Final = "UPDATE search_shards SET slots = slots + :taken WHERE id = :shard"

APPEND: Final = """
    INSERT INTO search_postings AS p (shard, term, postings)
    SELECT :shard, term, postings FROM unnest(:terms::text[], :postings::bytea[]) AS added (term, postings)
    ON CONFLICT (shard, term) DO UPDATE SET postings = p.postings || EXCLUDED.postings
"""

READ: Final = """
    SELECT s.id, s.slots, s.gone, p.term, p.postings
    FROM search_shards s LEFT JOIN search_postings p ON p.shard = s.id AND p.term = ANY(:terms::text[])
    WHERE s.kind = :kind AND (s.owner IS NULL OR s.owner = :caller)
    ORDER BY s.id
"""


class FreeSlots(msgspec.Struct, frozen=True):
    """Free slots of a shard that a writer may fill."""

    shard: int
    first: int
    free: int


async def room(tx: Transaction, kind: str, owner: str | None) -> FreeSlots:
    row = await tx.row(OPEN, kind=kind, owner=owner, slots=SHARD_SLOTS) or await tx.row(NEW, kind=kind, owner=owner)
    assert row is not None
    return FreeSlots(row["id"], row["slots"], SHARD_SLOTS - row["slots"])


async def append(tx: Transaction, where: FreeSlots, texts: Sequence[Mapping[str, float]]) -> None:
    """Writes the term weights of documents, which take the next slots of the shard."""
    words, packed = pack(texts, where.first)
    await tx.run(TAKE, shard=where.shard, taken=len(texts))
    await tx.run(APPEND, shard=where.shard, terms=words, postings=packed)


def pack(texts: Sequence[Mapping[str, float]], first: int) -> tuple[list[str], list[bytes]]:
    """Inverts documents: the terms, and for each term its postings as stored bytes."""
    numbers: dict[str, int] = {}
    terms = [numbers.setdefault(term, len(numbers)) for text in texts for term in text]
    rows = np.empty(len(terms), POSTING)
    rows["slot"] = np.repeat(np.arange(first, first + len(texts)), [len(text) for text in texts])
    rows["weight"] = [weight for text in texts for weight in text.values()]
    ids = np.array(terms, np.int64)
    order = np.argsort(ids, kind="stable")
    data = rows[order].tobytes()
    ends = np.cumsum(np.bincount(ids, minlength=len(numbers))) * POSTING_BYTES
    starts = [0, *ends[:-1].tolist()]
    return list(numbers), [data[start:end] for start, end in zip(starts, ends.tolist(), strict=True)]


async def read(db: Database, kind: str, caller: str | None, terms: Sequence[str]) -> Sequence[asyncpg.Record]:
    """Every shard that the caller may see, with the postings of these terms and of deleted documents."""
    return await db.rows(READ, kind=kind, caller=caller, terms=[*terms, GONE])
