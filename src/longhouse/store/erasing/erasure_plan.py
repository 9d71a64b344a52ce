"""What an erasure would delete, counted, and what of a user would stay. Nothing is changed."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from longhouse.store import files
from longhouse.store.database import Database, Transaction
from longhouse.store.delegation import tree
from longhouse.store.erasing import erasure
from longhouse.store.erasing.erasures import DOCUMENT, OF_SCHEDULES, THESE, Kind, Target, scopes
from longhouse.store.memory import memory_files, memory_scopes
from longhouse.store.search import passages

MOST_KEPT: Final = 100
"""Names of what stays that are told."""

ALL: Final = "SELECT s.id FROM sessions s WHERE s.owner = :owner AND {these}"
# What was added from outside to conversations in which only these sessions are.
LONELY_WITHOUT: Final = """
    SELECT s.id FROM sessions s WHERE s.owner = :owner AND s.side = 'external' AND s.conversation_id IN (
        SELECT conversation_id FROM sessions WHERE id = ANY(:ids)
    ) AND NOT EXISTS (
        SELECT FROM sessions o WHERE o.owner = s.owner AND o.conversation_id = s.conversation_id AND o.id <> s.id
          AND o.id <> ALL(:ids)
    )
"""
COUNT: Final = f"""
    SELECT (SELECT count(*) FROM journal WHERE session_id = ANY(:ids)) AS events,
           (SELECT count(*) FROM ledger WHERE session_id = ANY(:ids)) AS interactions,
           (SELECT count(*) FROM passages WHERE kind = ANY(:kinds) AND "group" = ANY(:ids)) AS passages,
           ({files.USED_BY_THESE}) AS files
"""
COUNT_BESIDE: Final = """
    SELECT (SELECT count(*) FROM schedules WHERE owner = :owner AND {schedules}) AS schedules,
           (SELECT count(*) FROM conversations WHERE owner = :owner AND {created}) AS conversations
"""
CREATED: Final[dict[Kind, str]] = {
    "session": "false",
    "conversation": "id = :name",
    "user": "false",
    "owner": "true",
}
"""Of what was created with a name of its own, what goes with it."""
COUNT_SCOPES: Final = f"""
    SELECT m.scope, m.path, CASE
        WHEN m.scope = ANY(:whole) THEN true
        WHEN m.scope = :lasting THEN split_part(m.written_by, ':', 1) = ANY(:ids) AND m.former_writers = '{{}}'
        ELSE split_part(m.written_by, ':', 1) = ANY(:ids) OR m.former_writers && :ids
    END AS is_gone, (
        SELECT count(*) FROM passages p JOIN unnest(:scopes::text[], :indexed::text[]) AS named (scope, indexed)
            ON p.scope = named.indexed WHERE named.scope = m.scope AND p.kind = '{memory_files.PASSAGES}'
            AND p."group" = m.path
    ) AS passages
    FROM memories m WHERE m.owner = :owner AND m.scope = ANY(:scopes) AND m.content IS NOT NULL
"""
COUNT_OF_OWNER: Final = f"""
    SELECT (SELECT count(*) FROM documents WHERE owner = :owner) AS documents,
           (SELECT count(*) FROM api_keys WHERE owner = :owner) AS keys,
           (SELECT count(*) FROM webhooks WHERE owner = :owner) AS webhooks,
           (SELECT count(*) FROM catalog_names WHERE owner = :owner AND kind = 'tool') AS tools,
           (SELECT count(*) FROM catalog_names WHERE owner = :owner AND kind = 'template') AS templates,
           (SELECT count(*) FROM passages p JOIN documents d ON p."group" = d.text_id
            WHERE d.owner = :owner AND p.kind = '{DOCUMENT}') AS passages
"""
KEPT_FILES: Final = f"""
    SELECT path FROM memories
    WHERE owner = :owner AND scope = :scope AND content IS NOT NULL AND former_writers <> '{{}}'
      AND (split_part(written_by, ':', 1) = ANY(:ids) OR former_writers && :ids) ORDER BY path LIMIT {MOST_KEPT}
"""
# A message names its user where that is not the session's.
KEPT_SESSIONS: Final = f"""
    SELECT s.id FROM sessions s WHERE s.owner = :owner AND s.id <> ALL(:ids) AND EXISTS (
        SELECT FROM journal_events e WHERE e.session_id = s.id AND e.kind IN ('Prompted', 'Returned', 'Decided')
          AND e.body ->> 'user' = :user
    ) ORDER BY s.created_at, s.id LIMIT {MOST_KEPT}
"""


@dataclass(frozen=True, slots=True)
class ErasurePlan:
    """What an erasure would delete, and what of it would stay."""

    counts: Counter[str]
    kept_sessions: list[str] = field(default_factory=list)
    """Sessions of others in which the user spoke too."""
    kept_files: list[str] = field(default_factory=list)
    """Memory files that the user's sessions wrote together with others."""

    @property
    def is_empty(self) -> bool:
        return not any(self.counts.values())


async def plan(db: Database, target: Target) -> ErasurePlan:
    """What would be deleted now, and what would stay; nothing is changed."""

    async def count(tx: Transaction) -> ErasurePlan:
        # Everything is counted at one moment.
        await tx.run("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY")
        ids = await _session_ids(tx, target)
        counts: Counter[str] = Counter(sessions=len(ids))
        counts += await _counted(tx, COUNT, owner=target.owner, ids=ids, kinds=passages.OF_SESSIONS)
        counts += await _count_memories(tx, target, ids)
        beside = COUNT_BESIDE.format(schedules=OF_SCHEDULES[target.kind], created=CREATED[target.kind])
        counts += await _counted(tx, beside, **target.named)
        if target.kind == "owner":
            counts += await _counted(tx, COUNT_OF_OWNER, owner=target.owner)
        if target.kind != "user":
            return ErasurePlan(counts)
        shared = memory_scopes.of_owner(target.owner).key
        return ErasurePlan(
            counts,
            await tx.column(KEPT_SESSIONS, owner=target.owner, ids=ids, user=target.name),
            await tx.column(KEPT_FILES, owner=target.owner, scope=shared, ids=ids),
        )

    return await db.together(count)


async def _counted(tx: Transaction, sql: str, **values: object) -> Counter[str]:
    [row] = await tx.rows(sql, **values)
    return Counter(dict(row))


async def _session_ids(tx: Transaction, target: Target) -> list[str]:
    """The sessions of the target, with all that they have called."""
    sql = ALL.format(these=THESE[target.kind])
    found = set(await tx.column(sql, **target.named))
    if target.kind in ("session", "user"):
        found |= await tree.ever_called(tx, *found)
    if target.kind == "user":
        found |= set(await tx.column(LONELY_WITHOUT, owner=target.owner, ids=sorted(found)))
    return sorted(found)


async def _count_memories(tx: Transaction, target: Target, ids: Sequence[str]) -> Counter[str]:
    """The memory files that would go, and their passages."""
    whole = set(await scopes(tx, target))
    partly, deserted = await erasure.scopes_of(tx, target.owner, ids)
    whole |= deserted
    of_all = memory_scopes.of_owner(target.owner)
    named = sorted(whole | partly | ({of_all} if target.is_lasting else set()), key=lambda scope: scope.key)
    rows = await tx.rows(
        COUNT_SCOPES,
        owner=target.owner,
        ids=ids,
        whole=[scope.key for scope in whole],
        lasting=of_all.key if target.is_lasting else "",
        scopes=[scope.key for scope in named],
        indexed=[scope.passages for scope in named],
    )
    gone = [row for row in rows if row["is_gone"]]
    return Counter(memory_files=len(gone), passages=sum(row["passages"] for row in gone))
