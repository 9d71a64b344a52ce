"""Limits on how many sessions run at once in the whole fleet, of a template and of a key; the others wait for a place.

A limit is named `template:<name>` or `key:<id>`, and says how many sessions may run under it at `most`. A session that
runs under a limit has a place of it: a row of the table `places`, whose column `held` names the limit, as the parameter
`:held` does. `:limit` is a number of rows, as in SQL. Only sessions under a limit pay for it: they are claimed in a
transaction that holds the limit's lock.
"""

from collections.abc import Iterable, Mapping
from typing import Final

import asyncpg
import msgspec

from longhouse.store.database import Database, Transaction, advisory_key

LOCKS: Final = 0x706C6163
"""The class of these advisory locks, "plac"; one lock for each limit."""
AT_ONCE: Final = 1_000
"""Sessions that are let in at once where a limit was taken away."""

# The limit is that of the active version: whoever lowers it lowers it for all sessions of the template.
OF_TEMPLATE: Final = """(
    SELECT (v.descriptor #>> '{{execution_policy,max_running}}')::integer FROM catalog_versions v
    WHERE v.kind = 'template' AND v.name = {agent}
      AND v.descriptor #>> '{{execution_policy,max_running}}' IS NOT NULL
      AND v.version = (SELECT n.active FROM catalog_names n WHERE n.kind = 'template' AND n.name = {agent})
)"""
OF_KEY: Final = "COALESCE((SELECT k.max_running FROM api_keys k WHERE k.id = {key}), :per_key::integer)"

LIMITS_OF: Final = f"""
    SELECT 'template:' || s.agent AS template, {OF_TEMPLATE.format(agent="s.agent")} AS template_most,
           'key:' || s.key_id AS key,
           CASE WHEN s.key_id IS NOT NULL THEN {OF_KEY.format(key="s.key_id")} END AS key_most
    FROM sessions s WHERE s.id = :session
"""
MOST: Final = f"""
    SELECT CASE WHEN starts_with(:held, 'template:') THEN {OF_TEMPLATE.format(agent="substr(:held, 10)")}
                ELSE {OF_KEY.format(key="substr(:held, 5)")} END
"""
# A place is held by a session that runs or is about to. One under both limits keeps the place of its key while it waits
# for its template: were it given up, it would lose one whenever it got the other. Nobody waits the other way round.
_HELD: Final = "(s.due OR starts_with(s.waits_for, 'template:') AND starts_with(p.held, 'key:'))"
GIVE_UP_OLD: Final = f"""
    DELETE FROM places p WHERE p.held = :held
    AND NOT EXISTS (SELECT FROM sessions s WHERE s.id = p.session_id AND {_HELD})
"""
# The session itself does not count: it may have its place already.
TAKEN: Final = """
    SELECT count(*) FILTER (WHERE session_id <> :session) AS others, bool_or(session_id = :session) AS has_one,
           EXISTS (SELECT FROM sessions WHERE waits_for = :held) AS is_awaited
    FROM places WHERE held = :held
"""
TAKE: Final = "INSERT INTO places (held, session_id) SELECT :held, unnest(:sessions::text[]) ON CONFLICT DO NOTHING"
# A holder that is lost stays named: the next claim journals that it was.
QUEUE_UP: Final = """
    UPDATE sessions s SET due = false, wake_at = NULL, waits_for = :held,
                          queued_at = CASE WHEN s.due THEN s.queued_at ELSE now() END
    WHERE s.id = :session AND (s.due OR s.wake_at <= now())
      AND (s.holder IS NULL OR s.holder = :worker OR NOT EXISTS (SELECT FROM workers w WHERE w.id = s.holder))
    RETURNING true
"""
LET_IN: Final = """
    UPDATE sessions SET due = true, waits_for = NULL
    WHERE id IN (SELECT id FROM sessions WHERE id = ANY(:sessions) ORDER BY id FOR UPDATE) RETURNING id
"""
LAST_OWNER: Final = "SELECT last_owner FROM place_turns WHERE held = :held"
TURN: Final = """
    INSERT INTO place_turns (held, last_owner) VALUES (:held, :owner)
    ON CONFLICT (held) DO UPDATE SET last_owner = EXCLUDED.last_owner
"""

# The next sessions, in fair order between owners: first those of owners with the fewest running ones, from the owner
# behind `last` on, and of one owner the longest due first. Each owner is one step in an index, however many sessions it
# has. Owners with running sessions are looked at besides as many as are asked for: others may come before them.
IN_TURN: Final = """
WITH RECURSIVE counted AS (
    SELECT owner, count(*) AS running FROM unnest(:running_owners::text[]) AS r (owner) GROUP BY owner
), most AS (
    SELECT :limit::integer + count(*) AS n FROM counted
), behind AS (
    (SELECT s.owner, 1 AS nth FROM sessions s WHERE {which} AND s.owner > :last ORDER BY s.owner LIMIT 1)
    UNION ALL
    SELECT next.owner, b.nth + 1 FROM behind b CROSS JOIN LATERAL (
        SELECT s.owner FROM sessions s WHERE {which} AND s.owner > b.owner ORDER BY s.owner LIMIT 1
    ) next WHERE b.nth < (SELECT n FROM most)
), before AS (
    (SELECT s.owner, 1 AS nth FROM sessions s WHERE {which} AND s.owner <= :last ORDER BY s.owner LIMIT 1)
    UNION ALL
    SELECT next.owner, b.nth + 1 FROM before b CROSS JOIN LATERAL (
        SELECT s.owner FROM sessions s WHERE {which} AND s.owner > b.owner AND s.owner <= :last ORDER BY s.owner LIMIT 1
    ) next WHERE b.nth < (SELECT n FROM most)
), turns AS (
    SELECT owner, nth FROM behind UNION ALL SELECT owner, nth + (SELECT n FROM most) FROM before
), owners AS (
    SELECT t.owner, t.nth, COALESCE(c.running, 0) AS running FROM turns t LEFT JOIN counted c USING (owner)
    ORDER BY COALESCE(c.running, 0), t.nth LIMIT :limit
)
SELECT found.id, o.owner FROM owners o CROSS JOIN LATERAL (
    SELECT s.id, row_number() OVER () AS nth FROM (
        SELECT s.id FROM sessions s WHERE {which} AND s.owner = o.owner
        ORDER BY s.queued_at NULLS FIRST LIMIT {of_each}
    ) s
) found
ORDER BY o.running + found.nth, o.nth LIMIT :limit
"""
NEXT: Final = IN_TURN.format(which="s.waits_for = :held", of_each=":limit")
RUNNING_OWNERS: Final = "SELECT s.owner FROM places p JOIN sessions s ON s.id = p.session_id WHERE p.held = :held"

# One step of the index for each limit that somebody waits for.
AWAITED: Final = f"""
WITH RECURSIVE held AS (
    (SELECT waits_for FROM sessions WHERE waits_for IS NOT NULL ORDER BY waits_for LIMIT 1)
    UNION ALL
    SELECT next.waits_for FROM held h CROSS JOIN LATERAL (
        SELECT waits_for FROM sessions WHERE waits_for > h.waits_for ORDER BY waits_for LIMIT 1
    ) next
)
SELECT h.waits_for AS held, (
    SELECT count(*) FROM places p JOIN sessions s ON s.id = p.session_id WHERE p.held = h.waits_for AND {_HELD}
) AS taken, CASE WHEN starts_with(h.waits_for, 'template:') THEN {OF_TEMPLATE.format(agent="substr(h.waits_for, 10)")}
                 ELSE {OF_KEY.format(key="substr(h.waits_for, 5)")} END AS most
FROM held h
"""
WAITING: Final = """
    SELECT waits_for, count(*)::int AS number FROM sessions WHERE waits_for IS NOT NULL GROUP BY waits_for
"""
FORGET: Final = f"""
    DELETE FROM places p WHERE NOT EXISTS (SELECT FROM sessions s WHERE s.id = p.session_id AND {_HELD})
"""


class LimitedClaim(msgspec.Struct, frozen=True):
    """The outcome of a claim under limits."""

    row: asyncpg.Record | None
    limits: tuple[str, ...]
    """Those of which the session has a place."""
    let_in: tuple[str, ...] = ()
    """Sessions that got a place meanwhile."""


async def claim(db: Database, session_id: str, sql: str, *, worker: str, per_key: int | None) -> LimitedClaim:
    """Claims a session under limits with this statement, if each of them has a place for it; else it waits for one."""

    async def attempt(tx: Transaction) -> LimitedClaim:
        found = await tx.row(LIMITS_OF, session=session_id, per_key=per_key)
        both = ((found["key"], found["key_most"]), (found["template"], found["template_most"])) if found else ()
        limits, let_in = {held: most for held, most in both if most}, list[str]()
        await _lock(tx, limits)
        for held, most in limits.items():
            await tx.run(GIVE_UP_OLD, held=held)
            taken = await tx.row(TAKEN, held=held, session=session_id)
            assert taken is not None
            if taken["others"] < most and (taken["has_one"] or not taken["is_awaited"]):
                await tx.run(TAKE, held=held, sessions=[session_id])
                continue
            if await tx.value(QUEUE_UP, session=session_id, held=held, worker=worker):
                let_in += await _let_in(tx, held, most)
            if session_id not in let_in:
                return LimitedClaim(None, (), tuple(let_in))
        row = await tx.row(sql, session=session_id, worker=worker)
        return LimitedClaim(row, tuple(limits), tuple(one for one in let_in if one != session_id))

    return await db.together(attempt)


async def let_in(db: Database, held: Iterable[str], *, per_key: int | None) -> list[str]:
    """Gives free places of these limits to sessions that wait for one; returns the sessions, which are due now."""
    found: list[str] = []
    for one in held:

        async def attempt(tx: Transaction, one: str = one) -> list[str]:
            await _lock(tx, {one: None})
            await tx.run(GIVE_UP_OLD, held=one)
            return await _let_in(tx, one, await tx.value(MOST, held=one, per_key=per_key))

        found += await db.together(attempt)
    return found


async def with_room(db: Database, *, per_key: int | None) -> list[str]:
    """The limits that somebody waits for although they have a free place, or are no limits any more."""
    rows = await db.rows(AWAITED, per_key=per_key)
    return [row["held"] for row in rows if row["most"] is None or row["taken"] < row["most"]]


async def waiting(db: Database) -> dict[str, int]:
    """Limit -> how many sessions wait for a place of it."""
    return dict(await db.rows(WAITING))


async def forget(db: Database) -> None:
    """Deletes places of sessions that do not run any more."""
    await db.run(FORGET)


async def _let_in(tx: Transaction, held: str, most: int | None) -> list[str]:
    running = await tx.column(RUNNING_OWNERS, held=held)
    free = AT_ONCE if most is None else most - len(running)
    if free <= 0:
        return []
    last = await tx.value(LAST_OWNER, held=held) or ""
    rows = await tx.rows(NEXT, held=held, last=last, limit=free, running_owners=running)
    # One that was erased since is not there any more.
    there = set(await tx.column(LET_IN, sessions=[row["id"] for row in rows])) if rows else set()
    chosen = [row for row in rows if row["id"] in there]
    ids = [row["id"] for row in chosen]
    if chosen:
        await tx.run(TURN, held=held, owner=chosen[-1]["owner"])
        if most is not None:
            await tx.run(TAKE, held=held, sessions=ids)
    return ids


async def _lock(tx: Transaction, limits: Mapping[str, int | None]) -> None:
    """Everybody takes the locks in the same order."""
    for number in sorted({advisory_key(held.encode()) for held in limits}):
        await tx.lock(LOCKS, number)
