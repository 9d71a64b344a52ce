"""Erases a session and all sub-agent sessions that it called from every table, in one transaction.

Rows are deleted and not blanked: a session with empty events could neither be folded nor continue, and a request for it
gets the same answer as for a session that never existed. Postgres itself keeps dead rows until its next vacuum.
"""

import hashlib
import uuid
from collections import Counter
from collections.abc import Sequence
from datetime import datetime
from typing import Final

import msgspec

from longhouse.journal.events import Fault
from longhouse.journal.roles import tools_of
from longhouse.journal.session import EPHEMERAL, EPHEMERAL_LABEL
from longhouse.store import files
from longhouse.store.database import Database, Transaction
from longhouse.store.delegation import tree
from longhouse.store.delegation.delegations import LOCK, LOCK_ROWS, return_outcome
from longhouse.store.delegation.results import DelegationResult
from longhouse.store.memory import memory_files, memory_scopes
from longhouse.store.memory.memory_scopes import Scope
from longhouse.store.search import passages

FORGOTTEN: Final = DelegationResult(
    outcome=Fault(code="forgotten", message="the agent was deleted with all that it knew, and did not finish")
)
REPORTS: Final = ", ".join(f"'{name}'" for name in tools_of("reports"))
"""Tools whose calls were recorded without a role. Their files are in a folder, and the file name ends with a digest of
the call."""

WHERE: Final = "SELECT conversation_id FROM sessions WHERE id = :session AND owner = :owner"
DONE: Final = "SELECT session_id FROM forgotten WHERE request = :request ORDER BY nth"
LOCK_TASKS: Final = """
    SELECT FROM delegations WHERE parent = ANY(:ids) OR child = ANY(:ids) ORDER BY parent, call FOR UPDATE
"""
# Calls of other sessions that wait for one of these get a fault; a call that has its outcome keeps it in its journal.
OUTCOMES: Final = """
    WITH others AS (
        SELECT parent, call, outcome IS NULL AS is_open FROM delegations
        WHERE child = ANY(:ids) AND parent <> ALL(:ids)
    )
    UPDATE delegations d SET outcome = :outcome FROM others o WHERE d.parent = o.parent AND d.call = o.call
    RETURNING d.parent, d.call, d.trace, o.is_open
"""
NOTE: Final = f"""
    INSERT INTO forgotten (session_id, owner, conversation_id, side, agent, label, reports, request)
    SELECT s.id, s.owner, s.conversation_id, s.side, s.agent, CASE
        WHEN s.label = '' THEN ''
        WHEN s.label ~ '{EPHEMERAL_LABEL}' THEN '{EPHEMERAL}'
        ELSE encode(sha256(convert_to(s.id || ':' || s.label, 'UTF8')), 'hex')
    END, ARRAY(
        SELECT left(encode(sha256(convert_to(j.session_id || ':' || j.call_id, 'UTF8')), 'hex'), 8)
        FROM journal_events j WHERE j.session_id = s.id AND j.kind = 'Called'
        AND (j.body ->> 'role' = 'reports' OR j.body ->> 'tool' IN ({REPORTS}))
    ), :request FROM sessions s WHERE s.id = ANY(:ids) ORDER BY s.id
"""
GONE: Final = {
    table: f"DELETE FROM {table} WHERE {column} = ANY(:ids)"
    for table, column in (
        ("delegations", "parent"),  # with who awaits them
        ("journal", "session_id"),
        ("snapshots", "session_id"),
        ("rests", "session_id"),
        ("requests", "session_id"),
        ("responses", "session_id"),  # with what was shown of them
        ("schedule_runs", "session_id"),
        ("projection_cursors", "session_id"),
        ("webhook_news", "session_id"),
        ("sessions", "id"),  # with files, counters, places, open questions and deliveries
    )
}
FORGET_LEDGER: Final = "DELETE FROM ledger WHERE session_id = ANY(:ids)"
# What was cut from the ledger of a conversation, once none of its sessions could bring it back.
CUTS: Final = """
    DELETE FROM interaction_cuts c WHERE c.owner = :owner AND c.conversation_id = :conversation AND NOT EXISTS (
        SELECT FROM sessions s WHERE s.owner = c.owner AND s.conversation_id = c.conversation_id
    )
"""
# Whoever has something to do, or did something since.
LIVELY: Final = """
    SELECT EXISTS (
        SELECT FROM sessions WHERE id = ANY(:ids) AND (
            due OR holder IS NOT NULL OR wake_at IS NOT NULL OR waits_for IS NOT NULL OR updated_at >= :since
            OR state NOT IN ('INITED', 'COMPLETED', 'FAILED', 'CANCELLED')
        )
    )
"""
SHARING: Final = """
    SELECT DISTINCT owner, "user", agent, conversation_id FROM sessions
    WHERE owner = :owner AND conversation_id = :conversation AND (id = ANY(:ids)) = :are_gone
"""
CONVERSATIONS: Final = "SELECT DISTINCT conversation_id FROM sessions WHERE owner = :owner AND id = ANY(:ids)"
# A directory stays as long as it contains something that stays.
WRITTEN: Final = """
    WITH known AS (
        SELECT scope, path, content IS NULL AS is_directory, CASE
            -- Of what all users of an owner share, only what nobody else has written.
            WHEN scope = :lasting THEN split_part(written_by, ':', 1) = ANY(:ids) AND former_writers = '{}'
            ELSE split_part(written_by, ':', 1) = ANY(:ids) OR former_writers && :ids
        END AS is_theirs
        FROM memories WHERE owner = :owner AND scope = ANY(:scopes)
    )
    DELETE FROM memories m USING known k
    WHERE m.owner = :owner AND m.scope = k.scope AND m.path = k.path AND k.is_theirs AND NOT (
        k.is_directory AND EXISTS (
            SELECT FROM known b WHERE b.scope = k.scope AND starts_with(b.path, k.path || '/') AND NOT b.is_theirs
        )
    )
    RETURNING m.scope, m.path, m.content IS NOT NULL AS is_file
"""
DESERTED: Final = "DELETE FROM memories WHERE owner = :owner AND scope = ANY(:scopes) RETURNING content IS NOT NULL"
DESERTED_CALLS: Final = "DELETE FROM memory_calls WHERE owner = :owner AND scope = ANY(:scopes)"
MEMORY_CALLS: Final = "DELETE FROM memory_calls WHERE owner = :owner AND split_part(key, ':', 1) = ANY(:ids)"
IN_ORDER: Final = "SELECT pg_advisory_xact_lock(hashtextextended('longhouse forgetting', 0))"

SINCE: Final = """
    SELECT nth, session_id, owner, conversation_id, side, agent, label, reports FROM forgotten
    WHERE nth > :nth ORDER BY nth LIMIT 500
"""
THERE: Final = "SELECT id FROM sessions WHERE id = ANY(:ids)"
SWEEP: Final = "DELETE FROM forgotten WHERE at < now() - interval '7 days'"


class Forgotten(msgspec.Struct, frozen=True):
    """The effects of an erasure."""

    ids: list[str]
    """The sessions that were erased."""
    appended: list[tuple[str, int]]
    """The sessions that waited for one of them and got a fault, with their new heads."""
    counts: Counter[str] = msgspec.field(default_factory=Counter)
    """How much of each kind went."""


class ErasedSession(msgspec.Struct, frozen=True):
    """An erased session: what is needed to find its copies in other systems."""

    nth: int
    session_id: str
    owner: str
    conversation_id: str
    side: str
    agent: str
    mark: str
    """Empty for a session without a label. An agent chose the words of a label, so only its digest is stored."""
    reports: Sequence[str] = ()

    @property
    def is_ephemeral(self) -> bool:
        return self.mark == EPHEMERAL

    def has_label(self, label: str) -> bool:
        return self.mark == hashlib.sha256(f"{self.session_id}:{label}".encode()).hexdigest()


async def forget(
    db: Database, session_id: str, owner: str, *, lasting: bool = False, at_rest_since: datetime | None = None
) -> Forgotten | None:
    """Deletes a session of this owner and all sessions that it has called; None if there is none.

    A worker that holds one of them finds no row to append to, and stops. With `lasting`, what they alone wrote to the
    memory that all users of the owner share goes too. With `at_rest_since`, nothing goes if one of them has something
    to do, or did something since: who erases by age is too late then.
    """
    request = uuid.uuid4()

    async def write(tx: Transaction) -> Forgotten | None:
        conversation = await tx.value(WHERE, session=session_id, owner=owner)
        if conversation is None:
            # Perhaps this is a retry, because the answer to the first try was lost.
            done = await tx.column(DONE, request=request)
            return Forgotten(done, []) if done else None
        await tx.run(LOCK, owner=owner, conversation=conversation)  # from here on no session can join the tree
        # In any trace: the journal of a sub-agent contains the tasks of all traces.
        ids = sorted(await tree.ever_called(tx, session_id))
        if at_rest_since and await tx.value(LIVELY, ids=ids, since=at_rest_since):
            return None  # before any row of those who wait for them is locked
        await tx.run(LOCK_TASKS, ids=ids)  # before the sessions: the order in which all code locks both
        waiting = [row for row in await tx.rows(OUTCOMES, ids=ids, outcome=FORGOTTEN.encoded) if row["is_open"]]
        there = set(await tx.column(LOCK_ROWS, ids=sorted({*ids, *(row["parent"] for row in waiting)})))
        if session_id not in there:
            return None  # another request was first
        if at_rest_since and await tx.value(LIVELY, ids=ids, since=at_rest_since):
            raise _NotAtRest
        appended = await return_outcome(tx, waiting, FORGOTTEN)
        return Forgotten(ids, appended, await _delete(tx, owner, conversation, ids, request, lasting=lasting))

    try:
        return await db.together(write)
    except _NotAtRest:
        return None


class _NotAtRest(Exception):  # noqa: N818 - it is no error
    """Takes back what was done before: a prompt came at the last moment."""


async def _delete(
    tx: Transaction, owner: str, conversation: str, ids: Sequence[str], request: uuid.UUID, *, lasting: bool
) -> Counter[str]:
    held, count = await files.held(tx, ids), await tx.value(files.USED_BY_THESE, owner=owner, ids=ids)
    memories = await _forget_memories(tx, owner, conversation, ids, lasting=lasting)
    # The numbers grow in the order of commits, so that a reader that follows them misses none.
    await tx.run(IN_ORDER)
    await tx.run(NOTE, ids=ids, request=request)
    gone = {table: await tx.changed(sql, ids=ids) for table, sql in GONE.items()}
    await tx.run(CUTS, owner=owner, conversation=conversation)
    await files.drop_unused(tx, held)
    # Last: turns that write passages wait for whoever deletes some.
    found = 0
    for scope, paths in memories.passages.items():
        found += await passages.remove(tx, memory_files.PASSAGES, scope=scope, groups=paths)
    interactions, derived = await forget_derived(tx, ids)
    return Counter(
        sessions=gone["sessions"], events=gone["journal"], files=count, interactions=interactions,
        passages=found + derived, memory_files=memories.files,
    )  # fmt: skip


async def forget_derived(tx: Transaction, ids: Sequence[str]) -> tuple[int, int]:
    """Deletes what the ledger has of these sessions, and the passages by which they are found; how many of each."""
    interactions, found = await tx.changed(FORGET_LEDGER, ids=ids), 0
    for kind in passages.OF_SESSIONS:
        found += await passages.remove(tx, kind, groups=ids)
    return interactions, found


class _ForgottenMemories(msgspec.Struct, frozen=True):
    files: int
    passages: dict[str, list[str] | None]
    """Scope of passages -> the files whose passages go; None: those of all."""


async def _forget_memories(
    tx: Transaction, owner: str, conversation: str, ids: Sequence[str], *, lasting: bool
) -> _ForgottenMemories:
    """Deletes files that these sessions wrote in scopes of this conversation, and scopes that no session can read now.

    Long-term memory outlives conversations on purpose; with `lasting`, what these sessions alone wrote for all goes.
    """
    passing = await _shared(tx, owner, conversation, ids, are_gone=True)
    of_all = memory_scopes.of_owner(owner)
    theirs = passing | {of_all} if lasting else passing
    # A concurrent write has either finished before this, or finds that the session has been erased.
    for lock in sorted({scope.lock for scope in theirs}):
        await tx.lock(memory_files.LOCKS, lock)
    keys = [scope.key for scope in theirs]
    written = await tx.rows(WRITTEN, owner=owner, scopes=keys, lasting=of_all.key if lasting else "", ids=ids)
    # Read under the locks: a session that was opened meanwhile may have written there before.
    deserted = passing - await _shared(tx, owner, conversation, ids, are_gone=False)
    gone = [scope.key for scope in deserted]
    rest = await tx.rows(DESERTED, owner=owner, scopes=gone)
    await tx.run(DESERTED_CALLS, owner=owner, scopes=gone)
    await tx.run(MEMORY_CALLS, owner=owner, ids=ids)
    found: dict[str, list[str] | None] = {scope.passages: None for scope in deserted}
    for scope in theirs - deserted:
        if paths := [row["path"] for row in written if row["scope"] == scope.key]:
            found[scope.passages] = paths
    return _ForgottenMemories(sum(row["is_file"] for row in written) + sum(row[0] for row in rest), found)


async def _shared(tx: Transaction, owner: str, conversation: str, ids: Sequence[str], *, are_gone: bool) -> set[Scope]:
    """The scopes that belong to this conversation alone: of these sessions, or of all its other sessions."""
    found = await tx.read(
        memory_scopes.passing, SHARING, owner=owner, conversation=conversation, ids=ids, are_gone=are_gone
    )
    return set().union(*found)


async def scopes_of(tx: Transaction, owner: str, ids: Sequence[str]) -> tuple[set[Scope], set[Scope]]:
    """The scopes of conversations that these sessions can write to, and those of them that nobody else can read."""
    theirs, others = set[Scope](), set[Scope]()
    for conversation in await tx.column(CONVERSATIONS, owner=owner, ids=ids):
        theirs |= await _shared(tx, owner, conversation, ids, are_gone=True)
        others |= await _shared(tx, owner, conversation, ids, are_gone=False)
    return theirs & others, theirs - others


async def since(db: Database, nth: int) -> list[ErasedSession]:
    """A page of the sessions that were erased after this number, in order."""
    return await db.read(ErasedSession, SINCE, nth=nth)


async def gone(db: Database, ids: Sequence[str]) -> set[str]:
    """Those of these sessions that no longer exist."""
    return set(ids).difference(await db.column(THERE, ids=list(ids)) if ids else ())


async def sweep(db: Database) -> None:
    """Deletes old entries: a process that has not deleted its copies within a week no longer runs."""
    await db.run(SWEEP)
