"""Erasures of more than one session: a conversation, a user, an owner. Each is asked for in a row, so that any process
can go on with what a killed one began. Here is also what goes besides the sessions.
"""

from collections import Counter
from datetime import datetime
from functools import partial
from typing import Final, Literal

import msgspec

from longhouse.store.automation import schedules
from longhouse.store.catalog import publish
from longhouse.store.database import Database, Executor, Transaction
from longhouse.store.memory import memory_files, memory_scopes
from longhouse.store.memory.memory_scopes import Scope
from longhouse.store.search import passages

Kind = Literal["session", "conversation", "user", "owner"]
DOCUMENT: Final = "document"
"""The kind of passages of documents."""
BATCH: Final = 50
ASK: Final = """
    INSERT INTO erasures AS e (kind, owner, name) VALUES (:kind, :owner, :name)
    ON CONFLICT (kind, owner, name) DO UPDATE SET at = now(), touched_at = now() RETURNING at
"""
TOUCH: Final = "UPDATE erasures SET touched_at = now() WHERE kind = :kind AND owner = :owner AND name = :name"
# Unless it was asked for once more meanwhile.
FINISH: Final = "DELETE FROM erasures WHERE kind = :kind AND owner = :owner AND name = :name AND at <= :at"
IS_ASKED: Final = "SELECT EXISTS (SELECT FROM erasures WHERE kind = :kind AND owner = :owner AND name = :name)"
LEFT: Final = """
    SELECT kind, owner, name, at FROM erasures WHERE touched_at < now() - make_interval(secs => :seconds) ORDER BY at
"""

THESE: Final[dict[Kind, str]] = {
    "session": "s.id = :name",
    "conversation": "s.conversation_id = :name",
    "user": 's."user" = :name',
    "owner": ":name = ''",
}
# Those that run go first, which stops them; then the roots, with whom their sub-agents go.
NEXT: Final = f"""
    SELECT s.id FROM sessions s WHERE s.owner = :owner AND {{these}} AND s.created_at <= :at
    ORDER BY s.due OR s.holder IS NOT NULL DESC, s.side = 'external', s.side = 'sub', s.created_at, s.id LIMIT {BATCH}
"""
# What was added from outside to a conversation in which nobody is left.
LONELY: Final = """
    SELECT s.id FROM sessions s WHERE s.owner = :owner AND s.side = 'external' AND s.created_at <= :at
      AND NOT EXISTS (
          SELECT FROM sessions o WHERE o.owner = s.owner AND o.conversation_id = s.conversation_id AND o.id <> s.id
      ) AND EXISTS (
          SELECT FROM forgotten f WHERE f.owner = s.owner AND f.conversation_id = s.conversation_id AND f.at >= :at
      )
"""
AGENTS: Final = """
    SELECT agent FROM sessions WHERE owner = :owner UNION SELECT agent FROM forgotten WHERE owner = :owner
    UNION SELECT name FROM catalog_names WHERE kind = 'template'
"""
_IN_SCOPES: Final = "owner = :owner AND (scope LIKE ANY(:patterns) OR scope = ANY(:keys))"
SCOPES: Final = f"""
    SELECT scope FROM memories WHERE {_IN_SCOPES} UNION SELECT scope FROM memory_calls WHERE {_IN_SCOPES}
"""
CLEAR: Final = "DELETE FROM memories WHERE owner = :owner AND scope = :scope RETURNING content IS NOT NULL"
CLEAR_CALLS: Final = "DELETE FROM memory_calls WHERE owner = :owner AND scope = :scope"
# The text is that of the deleted row: a new version may have been written since it was looked for.
DROP_DOCUMENTS: Final = f"""
    DELETE FROM documents WHERE id IN (SELECT id FROM documents WHERE owner = :owner ORDER BY id LIMIT {BATCH})
    RETURNING text_id
"""

DROP_KEYS: Final = """
    WITH gone AS (DELETE FROM api_keys WHERE owner = :owner RETURNING id), browsers AS (
        DELETE FROM browser_sessions WHERE key_id IN (SELECT id FROM gone)
    ), permits AS (
        DELETE FROM key_permits WHERE key_id IN (SELECT id FROM gone)
    ), requests AS (
        DELETE FROM open_requests WHERE key_id IN (SELECT id FROM gone)
    )
    SELECT count(*) FROM gone
"""
DROP_CATALOG: Final = """
    WITH names AS (DELETE FROM catalog_names WHERE owner = :owner RETURNING kind, name), versions AS (
        DELETE FROM catalog_versions v USING names n WHERE v.kind = n.kind AND v.name = n.name
        RETURNING v.kind, v.version
    ), overlays AS (
        DELETE FROM security_overlays o USING names n WHERE n.kind = 'tool' AND o.name = n.name
    ), moved AS (
        UPDATE catalog_generation g
        SET generation = generation + 1,
            erased_upto = GREATEST(erased_upto, (SELECT max(v.version) FROM versions v WHERE v.kind = g.kind))
        WHERE kind IN (SELECT kind FROM names)
    )
    SELECT count(*) FILTER (WHERE kind = 'tool') AS tools, count(*) FILTER (WHERE kind = 'template') AS templates
    FROM names
"""
OF_OWNER: Final = (
    "DELETE FROM requests WHERE owner = :owner",
    "DELETE FROM tool_uses WHERE owner = :owner",
    "DELETE FROM interaction_cuts WHERE owner = :owner",
    "DELETE FROM place_turns WHERE last_owner = :owner",
    "DELETE FROM retention_policies WHERE owner = :owner",
    "DELETE FROM usage_lately WHERE owner = :owner",
    "DELETE FROM usage_days WHERE owner = :owner",
    "DELETE FROM conversations WHERE owner = :owner",  # with the items that were added to them
)
DROP_WEBHOOKS: Final = "DELETE FROM webhooks WHERE owner = :owner"  # with their log
# One that names nobody speaks for the user in whose session it speaks, or who is alone in its conversation.
_OF_USER: Final = """
    ("user" = :name OR "user" IS NULL AND EXISTS (
        SELECT FROM sessions s
        WHERE s.owner = schedules.owner AND s.conversation_id = schedules.conversation_id AND s."user" = :name
          AND (s.agent = split_part(schedules.template, '@', 1) OR NOT EXISTS (
              SELECT FROM sessions o WHERE o.owner = s.owner AND o.conversation_id = s.conversation_id
                AND o."user" NOT IN (:name, o.owner)
          ))
    ))
"""
OF_SCHEDULES: Final[dict[Kind, str]] = {
    "session": "false AND :name = ''",
    "conversation": "conversation_id = :name",
    "user": _OF_USER,
    "owner": ":name = ''",
}
"""The schedules that go with it: they would bring it back."""
SCHEDULES: Final = schedules.GONE.format(these="owner = :owner AND {these} AND created_at <= :at")
CONVERSATION: Final = "DELETE FROM conversations WHERE owner = :owner AND id = :name AND created_at <= :at"


class Target(msgspec.Struct, frozen=True):
    """What is to be erased."""

    kind: Kind
    owner: str
    name: str = ""
    """The id of the session or the conversation, the name of the user; empty for an owner."""

    @property
    def is_lasting(self) -> bool:
        """Does it reach what outlives conversations?"""
        return self.kind in ("user", "owner")

    @property
    def named(self) -> dict[str, str]:
        return {"owner": self.owner, "name": self.name}

    @property
    def row(self) -> dict[str, str]:
        return {"kind": self.kind, **self.named}


async def ask(db: Database, target: Target) -> datetime:
    """Writes down that this is to be erased; the moment up to which it is."""
    at: datetime = await db.value(ASK, **target.row)
    return at


async def is_asked(db: Database, target: Target) -> bool:
    """Was it asked for before, and is not finished?"""
    return target.kind != "session" and bool(await db.value(IS_ASKED, **target.row))


async def touch(db: Database, target: Target) -> None:
    """Tells the others that somebody works on it."""
    await db.run(TOUCH, **target.row)


async def finish(db: Database, target: Target, at: datetime) -> None:
    await db.run(FINISH, **target.row, at=at)


async def left(db: Database, *, untouched_for: float) -> list[tuple[Target, datetime]]:
    """Erasures that nobody has worked on for so many seconds."""
    rows = await db.rows(LEFT, seconds=untouched_for)
    return [(Target(*named), at) for *named, at in rows]


async def next_sessions(db: Database, target: Target, at: datetime) -> list[str]:
    """The next sessions to erase, a few; then those from outside in conversations that have nobody left."""
    sql = NEXT.format(these=THESE[target.kind])
    if found := await db.column(sql, **target.named, at=at):
        return found
    if target.kind == "user":
        return await db.column(LONELY, owner=target.owner, at=at)
    return []


async def forget_scopes(db: Database, target: Target) -> Counter[str]:
    """Deletes the memory files that are left of a conversation, a user or an owner, with their passages."""
    counts: Counter[str] = Counter()
    for scope in await scopes(db, target):
        counts += await db.together(lambda tx, scope=scope: _clear(tx, scope))  # type: ignore[misc]
    return counts


async def _clear(tx: Transaction, scope: Scope) -> Counter[str]:
    await tx.lock(memory_files.LOCKS, scope.lock)
    are_files = await tx.column(CLEAR, owner=scope.owner, scope=scope.key)
    await tx.run(CLEAR_CALLS, owner=scope.owner, scope=scope.key)
    found = await passages.remove(tx, memory_files.PASSAGES, scope=scope.passages)
    return Counter(memory_files=sum(are_files), passages=found)


async def scopes(db: Executor, target: Target) -> list[Scope]:
    """The scopes of memory files that belong to the target as a whole."""
    patterns, keys = ["%"], list[str]()
    if target.kind == "user":
        agents = await db.column(AGENTS, owner=target.owner)
        patterns, keys = memory_scopes.of_user(target.owner, target.name, agents)
    elif target.kind == "conversation":
        patterns = memory_scopes.of_whole_conversation(target.name)
    elif target.kind == "session":
        return []
    return await db.read(partial(Scope, target.owner), SCOPES, owner=target.owner, patterns=patterns, keys=keys)


async def forget_schedules(db: Database, target: Target, at: datetime) -> int:
    """Deletes the schedules of a conversation, a user or an owner, with what is known of their runs."""
    sql = SCHEDULES.format(these=OF_SCHEDULES[target.kind])
    return int(await db.value(sql, **target.named, at=at))


async def forget_conversation(db: Database, target: Target, at: datetime) -> int:
    """Deletes what a conversation has besides its sessions: its metadata and the items that were added to it."""
    if target.kind != "conversation":
        return 0
    return await db.changed(CONVERSATION, **target.named, at=at)


async def forget_documents(db: Database, owner: str) -> Counter[str]:
    """Deletes some documents of an owner, with their pages, versions and passages; empty if there are none."""

    async def write(tx: Transaction) -> Counter[str]:
        texts = await tx.column(DROP_DOCUMENTS, owner=owner)
        if not texts:
            return Counter()
        return Counter(documents=len(texts), passages=await passages.remove(tx, DOCUMENT, groups=texts))

    return await db.together(write)


async def drop_keys(db: Database, owner: str) -> int:
    """Deletes the keys of an owner, and the browsers that were signed in with them: nobody acts for it any more."""
    return int(await db.value(DROP_KEYS, owner=owner))


async def forget_owner(db: Database, owner: str) -> Counter[str]:
    """Deletes what an owner has besides sessions, memory, documents and keys: tools, templates, webhooks and so on."""

    async def write(tx: Transaction) -> Counter[str]:
        await tx.lock(*publish.LOCK)
        [names] = await tx.rows(DROP_CATALOG, owner=owner)
        for sql in OF_OWNER:
            await tx.run(sql, owner=owner)
        hooks = await tx.changed(DROP_WEBHOOKS, owner=owner)
        return Counter(**dict(names), webhooks=hooks)

    return await db.together(write)
