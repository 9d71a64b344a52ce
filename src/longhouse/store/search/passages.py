"""Passages in Postgres: texts of many scopes, their terms as postings in small shards, and their vectors.

Deleting is real: the row, the vector and every posting of a passage go, and so do terms that no other passage has.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from itertools import groupby
from operator import attrgetter
from typing import Final

import asyncpg
import msgspec

from longhouse.arrays import np
from longhouse.store.database import Database, Executor, Transaction
from longhouse.store.rows import columns
from longhouse.store.search.postings import CROWDED, GONE, POSTING, SLOTS, pack

RECIPE: Final = 1
"""Version of the indexing method. Increase it when passages are tokenized or weighted differently."""
SHARD_SLOTS: Final = 2048
"""An append writes the row of each of its terms again: in a small shard, that of a frequent term has few kilobytes."""
WRITING: Final = 0x70617373  # "pass": shared by writers of a kind, alone for who deletes
IN_SCOPE: Final = 0x70617363  # "pasc": one writer for each scope and kind
MOVED_AT_ONCE: Final = 200
OF_SESSIONS: Final = ("interaction", "note")
"""Kinds whose group is a session: an erased session's passages are never written again."""

_SHOWN: Final = 'p.id, p.scope, p.kind, p.source, p."group", p.text, p.title, p.at, p.facts::text AS facts'
_WRITTEN: Final = ("source", "group", "text", "title", "context", "at", "facts", "thread", "position", "vector")
SHARDS: Final = """
    SELECT s.id, s.slots, s.gone, s.revision, p.term, p.postings
    FROM passage_shards s LEFT JOIN passage_postings p ON p.shard = s.id AND p.term = ANY(:terms::text[])
    WHERE s.scope = ANY(:scopes::text[]) AND s.kind = ANY(:kinds::text[])
    ORDER BY s.id
"""
# LIMIT makes each place one look-up in the index, whatever the planner believes about the table.
AT: Final = f"""
    SELECT {_SHOWN}, c.place FROM unnest(:places::bigint[]) AS c (place)
    CROSS JOIN LATERAL (
        SELECT * FROM passages p WHERE p.shard = (c.place / {SLOTS})::int AND p.slot = (c.place % {SLOTS})::int LIMIT 1
    ) p
"""
READ: Final = f"""
    SELECT {_SHOWN} FROM passages p WHERE p.id = ANY(:ids::bigint[]) AND p.scope = ANY(:scopes::text[])
    UNION ALL
    SELECT {_SHOWN} FROM unnest(:kinds::text[], :sources::text[]) AS named (kind, source)
    JOIN passages p ON p.scope = ANY(:scopes::text[]) AND p.kind = named.kind AND p.source = named.source
"""
COLUMNS: Final = """
    SELECT slot, extract(epoch FROM at)::float8 AS at, hashtextextended(thread, 0) AS thread, position,
           thread <> '' AS has_thread, CASE WHEN model = :model::int THEN vector END AS vector
    FROM passages WHERE shard = :shard AND slot >= :first
"""
NEXT_TO: Final = """
    WITH placed AS (
        SELECT id, lag(id) OVER thread AS before, lead(id) OVER thread AS after FROM passages
        WHERE kind = :kind AND "group" = ANY(:groups::text[]) AND thread <> ''
        WINDOW thread AS (PARTITION BY scope, thread ORDER BY position, id)
    )
    SELECT before, after FROM placed WHERE id = ANY(:ids::bigint[])
"""
KNOWN: Final = """
    SELECT p.*, p.facts::text AS facts_text, s.recipe FROM passages p JOIN passage_shards s ON s.id = p.shard
    WHERE p.scope = :scope AND p.kind = :kind AND p.source = ANY(:sources::text[])
"""
ERASED: Final = "SELECT session_id FROM forgotten WHERE session_id = ANY(:ids::text[])"
OPEN: Final = f"""
    SELECT id, slots FROM passage_shards
    WHERE scope = :scope AND kind = :kind AND recipe = {RECIPE} AND slots < {SHARD_SLOTS} AND NOT ({CROWDED})
    ORDER BY id DESC LIMIT 1 FOR UPDATE
"""
NEW: Final = f"""
    INSERT INTO passage_shards (scope, kind, recipe) VALUES (:scope, :kind, {RECIPE}) RETURNING id, slots
"""
TAKE: Final = "UPDATE passage_shards SET slots = slots + :taken WHERE id = :shard"
APPEND: Final = """
    INSERT INTO passage_postings AS p (shard, term, postings)
    SELECT :shard, term, postings FROM unnest(:terms::text[], :postings::bytea[]) AS added (term, postings)
    ON CONFLICT (shard, term) DO UPDATE SET postings = p.postings || EXCLUDED.postings
"""
# Arrays of arrays must have equal lengths, so that terms travel as JSON.
ADD: Final = """
    INSERT INTO passages AS p (scope, kind, source, "group", text, title, context, at, facts, thread, position, shard,
                               slot, terms, model, vector)
    SELECT :scope, :kind, a.source, a.of_group, a.text, a.title, a.context, a.at, a.facts::jsonb, a.thread, a.position,
           :shard, :first + a.nth - 1, ARRAY(SELECT jsonb_array_elements_text(a.terms::jsonb)),
           CASE WHEN a.vector IS NOT NULL THEN :model::int END, a.vector
    FROM unnest(:source::text[], :group::text[], :text::text[], :title::text[], :context::text[],
                :at::timestamptz[], :facts::text[], :thread::text[], :position::bigint[], :terms::text[],
                :vector::bytea[])
         WITH ORDINALITY
         AS a (source, of_group, text, title, context, at, facts, thread, position, terms, vector, nth)
    ON CONFLICT (scope, kind, source) DO UPDATE SET
        "group" = EXCLUDED."group", text = EXCLUDED.text, title = EXCLUDED.title, context = EXCLUDED.context,
        at = EXCLUDED.at, facts = EXCLUDED.facts, thread = EXCLUDED.thread, position = EXCLUDED.position,
        shard = EXCLUDED.shard, slot = EXCLUDED.slot, terms = EXCLUDED.terms, model = EXCLUDED.model,
        vector = EXCLUDED.vector
"""
REMOVE: Final = """
    DELETE FROM passages p WHERE {where} RETURNING p.shard, p.slot, p.terms
"""
REMOVED_BY: Final = {
    "kind": "p.kind = :kind",
    "scope": "p.scope = :scope",
    "groups": 'p."group" = ANY(:groups::text[])',
    "sources": "p.source = ANY(:sources::text[])",
}
POSTINGS: Final = """
    SELECT term, postings FROM passage_postings WHERE shard = :shard AND term = ANY(:terms::text[])
"""
KEEP: Final = """
    UPDATE passage_postings p SET postings = kept.postings
    FROM unnest(:terms::text[], :postings::bytea[]) AS kept (term, postings)
    WHERE p.shard = :shard AND p.term = kept.term
"""
DROP: Final = "DELETE FROM passage_postings WHERE shard = :shard AND term = ANY(:terms::text[])"
LEFT: Final = "UPDATE passage_shards SET gone = gone + :gone WHERE id = :shard RETURNING gone = slots"
EMPTY: Final = (
    "DELETE FROM passage_postings WHERE shard = :shard",
    "DELETE FROM passage_shards WHERE id = :shard",
)
OTHER_MODELS: Final = "SELECT id FROM search_models WHERE id <> :model ORDER BY id"
LACKING: Final = """
    SELECT id, kind, title, text, shard, slot FROM passages WHERE {model} AND id > :after ORDER BY id LIMIT :limit
"""
# In the order of the index, which is then read instead of the table, and no further than this.
WITHOUT_VECTORS: Final = """
    SELECT count(*) FROM (SELECT FROM passages WHERE model IS NULL ORDER BY model, id LIMIT :most) AS counted
"""
# A passage that was written again meanwhile has another place.
EMBED: Final = """
    UPDATE passages p SET model = :model, vector = given.vector
    FROM unnest(:ids::bigint[], :shards::int[], :slots::int[], :vectors::bytea[]) AS given (id, shard, slot, vector)
    WHERE p.id = given.id AND p.shard = given.shard AND p.slot = given.slot
"""
REVISE: Final = "UPDATE passage_shards SET revision = revision + 1 WHERE id = ANY(:shards::int[])"
OUTDATED: Final = f"SELECT id, scope, kind FROM passage_shards WHERE recipe <> {RECIPE} OR {CROWDED} ORDER BY id"
IN_SHARD: Final = """
    SELECT *, facts::text AS facts_text FROM passages WHERE shard = :shard ORDER BY thread, position, slot LIMIT :limit
"""


class PassageEntry(msgspec.Struct, frozen=True, kw_only=True):
    """A passage as the index stores it."""

    scope: str
    kind: str
    source: str
    group: str
    text: str
    title: str
    context: str
    at: datetime | None
    facts: str
    """A JSON object."""
    thread: str
    position: int
    weights: Mapping[str, float]
    vector: bytes | None = None


class Shard(msgspec.Struct, frozen=True):
    """A shard as a search sees it."""

    id: int
    revision: int
    slots: int
    gone: int


async def read_shards(
    db: Database, scopes: Sequence[str], kinds: Sequence[str], terms: Sequence[str]
) -> Sequence[asyncpg.Record]:
    """The shards of these scopes and kinds, with the postings of these terms and the slots that are gone."""
    return await db.rows(SHARDS, scopes=list(scopes), kinds=list(kinds), terms=[*terms, GONE])


async def at(db: Database, places: Sequence[int]) -> dict[int, asyncpg.Record]:
    """Place -> the passage there; a place whose passage has left is missing."""
    return {row["place"]: row for row in await db.rows(AT, places=list(places))}


async def read(
    db: Database, scopes: Sequence[str], ids: Sequence[int], names: Sequence[tuple[str, str]]
) -> Sequence[asyncpg.Record]:
    """The passages of these scopes with these ids, or with these kinds and sources."""
    kinds, sources = [kind for kind, _ in names], [source for _, source in names]
    return await db.rows(READ, scopes=list(scopes), ids=list(ids), kinds=kinds, sources=sources)


async def next_to(db: Executor, kind: str, places: Mapping[int, str]) -> set[int]:
    """The passages before and after these, which are given with their groups, in the threads of those groups."""
    rows = await db.rows(NEXT_TO, kind=kind, groups=sorted(set(places.values())), ids=list(places))
    return {found for row in rows for found in row if found is not None}


async def write(tx: Transaction, entries: Sequence[PassageEntry], model: int | None) -> None:
    """Writes passages in the place of those with the same scope, kind and source; equal ones stay as they are.

    A transaction that also removes passages of the kind removes them first: two that do it the other way round would
    wait for each other.
    """
    of_shards = attrgetter("kind", "scope")
    ordered = sorted(entries, key=of_shards)
    for kind in sorted({entry.kind for entry in entries}):
        await tx.run("SELECT pg_advisory_xact_lock_shared(:family, :key)", family=WRITING, key=_key(kind))
    for key in sorted({_key(entry.kind, entry.scope) for entry in entries}):
        await tx.lock(IN_SCOPE, key)
    ordered = await _without_erased(tx, ordered)
    for (kind, scope), own in groupby(ordered, key=of_shards):
        # The last of two with the same source stands.
        latest = {entry.source: entry for entry in own}
        rows = await tx.rows(KNOWN, scope=scope, kind=kind, sources=list(latest))
        known = {row["source"]: row for row in rows}
        new = [entry for entry in latest.values() if not _is_current(known.get(entry.source), entry, model)]
        await _leave(tx, [known[entry.source] for entry in new if entry.source in known])
        await _add(tx, new, model)


async def _without_erased(tx: Transaction, entries: Sequence[PassageEntry]) -> list[PassageEntry]:
    ids = {entry.group for entry in entries if entry.kind in OF_SESSIONS}
    erased = set(await tx.column(ERASED, ids=sorted(ids))) if ids else set()
    return [entry for entry in entries if entry.kind not in OF_SESSIONS or entry.group not in erased]


async def _add(tx: Transaction, new: Sequence[PassageEntry], model: int | None) -> None:
    """Adds passages of one scope and kind where there is room, shard after shard."""
    while new:
        of = {"scope": new[0].scope, "kind": new[0].kind}
        shard = await tx.row(OPEN, **of) or await tx.row(NEW, **of)
        assert shard is not None
        free = SHARD_SLOTS - shard["slots"]
        await _append(tx, shard["id"], shard["slots"], new[:free], model)
        new = new[free:]


def _is_current(row: asyncpg.Record | None, entry: PassageEntry, model: int | None) -> bool:
    """Is the passage there as it would be written now? Without a vector to write, an older one is good enough."""
    if row is None or row["recipe"] != RECIPE or (entry.vector is not None and row["model"] != model):
        return False
    same = ("group", "text", "title", "context", "at", "thread", "position")
    if any(row[name] != getattr(entry, name) for name in same):
        return False
    return bool(msgspec.json.decode(row["facts_text"]) == msgspec.json.decode(entry.facts))


async def _append(tx: Transaction, shard: int, first: int, entries: Sequence[PassageEntry], model: int | None) -> None:
    words, packed = pack([entry.weights for entry in entries], first)
    await tx.run(TAKE, shard=shard, taken=len(entries))
    await tx.run(APPEND, shard=shard, terms=words, postings=packed)
    await tx.run(
        ADD,
        scope=entries[0].scope,
        kind=entries[0].kind,
        shard=shard,
        first=first,
        model=model,
        terms=[msgspec.json.encode(list(entry.weights)).decode() for entry in entries],
        **columns(entries, *_WRITTEN),
    )


async def other_models(db: Database, model: int) -> list[int]:
    return await db.column(OTHER_MODELS, model=model)


async def lacking(db: Database, model: int | None, *, after: int, limit: int) -> Sequence[asyncpg.Record]:
    """A page of the passages with vectors of this model; None: of those without."""
    if model is None:
        return await db.rows(LACKING.format(model="model IS NULL"), after=after, limit=limit)
    return await db.rows(LACKING.format(model="model = :model"), model=model, after=after, limit=limit)


async def count_without_vectors(db: Database, most: int) -> int:
    """How many passages have no vector; no more than `most` are counted."""
    return int(await db.value(WITHOUT_VECTORS, most=most))


async def embed(db: Database, rows: Sequence[asyncpg.Record], vectors: Sequence[bytes], model: int) -> None:
    """Gives passages these vectors; processes that have cached their shards read them again."""
    values = {
        "ids": [row["id"] for row in rows],
        "shards": [row["shard"] for row in rows],
        "slots": [row["slot"] for row in rows],
    }

    async def write(tx: Transaction) -> None:
        await _alone(tx, {row["kind"] for row in rows})
        await tx.run(EMBED, **values, vectors=list(vectors), model=model)
        await tx.run(REVISE, shards=values["shards"])

    await db.together(write)


async def outdated(db: Database) -> Sequence[asyncpg.Record]:
    """Shards that other code has made, and those with many slots whose passages are gone."""
    return await db.rows(OUTDATED)


async def move(tx: Transaction, shard: asyncpg.Record, weigh: Callable[[asyncpg.Record], Mapping[str, float]]) -> bool:
    """Moves some passages of a shard to a new place, with terms weighed again; False where none were left."""
    await _alone(tx, [shard["kind"]])
    rows = await tx.rows(IN_SHARD, shard=shard["id"], limit=MOVED_AT_ONCE)
    await _leave(tx, rows)
    for model in sorted({row["model"] for row in rows}, key=lambda model: model or 0):
        entries = [_entry(row, weigh(row)) for row in rows if row["model"] == model]
        await _add(tx, entries, model)
    return bool(rows)


def _entry(row: asyncpg.Record, weights: Mapping[str, float]) -> PassageEntry:
    same = {name: row[name] for name in ("scope", "kind", *_WRITTEN)}
    return PassageEntry(**{**same, "facts": row["facts_text"]}, weights=weights)


async def _alone(tx: Transaction, kinds: Iterable[str]) -> None:
    """Waits for all who write passages of these kinds, and lets others wait until the end of the transaction."""
    for kind in sorted(kinds):
        await tx.lock(WRITING, _key(kind))


async def remove(
    tx: Transaction,
    kind: str,
    *,
    scope: str | None = None,
    groups: Sequence[str] | None = None,
    sources: Sequence[str] | None = None,
) -> int:
    """Deletes the passages of a kind that all these conditions name, inside a transaction; returns how many."""
    # Whoever is writing has either finished, and its passages are deleted here, or writes after this transaction.
    await _alone(tx, [kind])
    given = {"kind": kind, "scope": scope, "groups": groups, "sources": sources}
    wanted = {name: value for name, value in given.items() if value is not None}
    gone = await tx.rows(REMOVE.format(where=" AND ".join(map(REMOVED_BY.__getitem__, wanted))), **wanted)
    await _leave(tx, gone)
    return len(gone)


async def _leave(tx: Executor, rows: Iterable[asyncpg.Record]) -> None:
    """Takes the postings of passages out of their shards, with terms that nothing else there has."""
    by_shard: dict[int, list[asyncpg.Record]] = {}
    for row in rows:
        by_shard.setdefault(row["shard"], []).append(row)
    for shard, gone in sorted(by_shard.items()):
        is_empty = await tx.value(LEFT, shard=shard, gone=len(gone))
        if is_empty:
            for sql in EMPTY:
                await tx.run(sql, shard=shard)
        else:
            await _clear(tx, shard, gone)


async def _clear(tx: Executor, shard: int, gone: Sequence[asyncpg.Record]) -> None:
    slots = np.array([row["slot"] for row in gone])
    terms = sorted({term for row in gone for term in row["terms"]})
    kept: dict[str, bytes] = {}
    for row in await tx.rows(POSTINGS, shard=shard, terms=terms):
        before = np.frombuffer(row["postings"], POSTING)
        kept[row["term"]] = before[~np.isin(before["slot"], slots)].tobytes()
    left = {term: postings for term, postings in kept.items() if postings}
    await tx.run(KEEP, shard=shard, terms=list(left), postings=list(left.values()))
    await tx.run(DROP, shard=shard, terms=[term for term, postings in kept.items() if not postings])
    # The numbers of slots, and no word: a process that has cached their vectors leaves them out.
    await tx.run(APPEND, shard=shard, terms=[GONE], postings=[slots.astype(">i2").tobytes()])


def _key(*names: str) -> int:
    """The key of an advisory lock; two names with one key wait for each other in vain, and nothing else."""
    return zlib.crc32("\0".join(names).encode()) - 2**31
