"""Tables with very many sessions, written by SQL as workers would have left them."""

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Final

from longhouse.journal import events
from longhouse.store.database import Database, Transaction
from longhouse.store.memory import interactions

AGENT: Final = "tool_calling_agent"
OWNERS: Final = 1_000
"""Owners besides `local`, to whom every tenth session belongs."""
UNINDEXED: Final = ("sessions", "journal", "asking_sessions", "rests", "projection_cursors")
BATCH: Final = 200_000
_LIMITS: Final = events.Limits(max_iterations=20, max_clarifications=3, time_budget=1800)
_BEGIN: Final[tuple[events.Event, ...]] = (
    events.Opened(agent=AGENT, version=1, owner="local", conversation="c"),
    events.Prompted(trace="t", content=("Will it rain in the next days? I would like to know it for my journey.",)),
    events.Started(trace="t", prompt=2, version=1, instance="i", limits=_LIMITS, date="2026-01-31"),
)
ASKED: Final = (
    *_BEGIN,
    events.Replied(calls=(events.ProviderCall(id="p", name="clarificationtool", arguments="{}"),)),
    events.Called(
        call="1-action-0",
        tool="clarificationtool",
        arguments='{"questions":["Which city?"]}',
        call_kind="ask",
        question="Which city?",
    ),
)
FINISHED: Final = (
    *_BEGIN,
    events.Replied(calls=(events.ProviderCall(id="p", name="clocktool", arguments="{}"),)),
    events.Called(call="1-action-0", tool="clocktool", arguments='{"timezone":"UTC"}'),
    events.Returned(call="1-action-0", outcome=events.Output(content="2026-01-31T12:00:00+00:00, a Saturday")),
    events.Replied(text="It will rain on Sunday, and again on Tuesday and Wednesday, says the forecast. " * 5),
    events.Finished(answer="It will rain on Sunday, and again on Tuesday and Wednesday, says the forecast. " * 5),
)

# md5 makes ids as scattered as those of real sessions, and the same in every table; in their order, indexes grow at
# their ends.
_NUMBERED: Final = """
    SELECT n, :agent || '_' || md5(:set || n)::uuid AS id, 'c-' || :set || n AS conversation,
           CASE WHEN n % 10 = 0 THEN 'local' ELSE 'owner-' || n % :owners END AS owner,
           now() - n * interval '10 seconds' AS at
    FROM generate_series(:first::int, :last::int) n ORDER BY 2
"""
_JOURNAL: Final = f"""
    INSERT INTO journal (session_id, seq, conversation_id, trace_id, kind, call_id, append_id, nth, body, at)
    SELECT s.id, e.seq, s.conversation, 't', e.kind, e.call, md5(s.id)::uuid, e.seq, e.body, s.at
    FROM ({_NUMBERED}) s
    CROSS JOIN unnest(:kinds::text[], :calls::text[], :bodies::json[]) WITH ORDINALITY AS e (kind, call, body, seq)
"""
_SESSIONS: Final = f"""
    INSERT INTO sessions (id, owner, conversation_id, side, agent, head, fence, due, holder, state, version, trace_id,
                          task, created_at, updated_at, wake_at)
    SELECT s.id, s.owner, s.conversation, 'root', :agent, :head, 1, :due, :holder, :state, 1, 't',
           'Will it rain in the next days? I would like to know it for my journey.', s.at, s.at,
           CASE WHEN :wakes THEN now() + interval '1 day' + s.n * interval '1 second' END
    FROM ({_NUMBERED}) s
"""
# As the trigger notes a session with one question.
_ASKING: Final = f"""
    INSERT INTO asking_sessions (id, owner, agent, due_by, asked_at, is_single)
    SELECT s.id, s.owner, :agent, '9999-12-31 00:00:00+00', s.at, true FROM ({_NUMBERED}) s
"""
_RESTS: Final = f"INSERT INTO rests (fingerprint, session_id, seq) SELECT md5(s.id), s.id, :head FROM ({_NUMBERED}) s"
_CURSORS: Final = f"""
    INSERT INTO projection_cursors (projection, session_id, epoch, head)
    SELECT '{interactions.PROJECTION}', s.id, '', :head FROM ({_NUMBERED}) s
"""

_INDEXES: Final = """
    SELECT c.relname AS name, pg_get_indexdef(c.oid) AS made_by
    FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid JOIN pg_class t ON t.oid = i.indrelid
    WHERE t.relname = ANY(:tables) AND t.relnamespace = current_schema()::regnamespace
      AND NOT EXISTS (SELECT FROM pg_constraint k WHERE k.conindid = c.oid)
"""


async def fill(
    db: Database,
    name: str,
    number: int,
    *,
    state: str,
    told: tuple[events.Event, ...] = FINISHED,
    journals: int | None = None,
    due: bool = False,
    holder: str | None = None,
    wakes: bool = False,
    is_old: bool = False,
) -> None:
    """So many sessions of the set `name`; the first `journals` of them (all by default) have their events.

    `is_old`: they rest, and all that follows a turn is done: a house that starts has nothing to do for them.
    """
    told_columns = {
        "kinds": [events.kind_of(one) for one in told],
        "calls": [events.call_of(one) for one in told],
        "bodies": [events.encode(one) for one in told],
    }
    head = {"head": len(told)}
    row = {"due": due, "holder": holder, "state": state, "wakes": wakes}
    numbers = {"agent": AGENT, "set": name, "owners": OWNERS}

    async def write(tx: Transaction) -> None:
        # Neither triggers nor keys are looked at row by row, and nothing waits for the disk.
        await tx.run("SET LOCAL session_replication_role = replica")
        await tx.run("SET LOCAL synchronous_commit = off")
        for first, last in _batches(number if journals is None else journals):
            await tx.run(_JOURNAL, first=first, last=last, **numbers, **told_columns)
        for first, last in _batches(number):
            place = {"first": first, "last": last, **numbers}
            await tx.run(_SESSIONS, **place, **head, **row)
            if state.startswith("WAITING"):
                await tx.run(_ASKING, **place)
            if is_old:
                await tx.run(_RESTS, **place, **head)
                await tx.run(_CURSORS, **place, **head)

    await db.together(write)


@asynccontextmanager
async def unindexed(db: Database) -> AsyncIterator[None]:
    """The tables have no indexes but those of their constraints while the block lasts: built at once, they cost less
    than row by row. Nobody else may use the tables meanwhile."""
    found = await db.rows(_INDEXES, tables=list(UNINDEXED))
    for index in found:
        await db.run(f'DROP INDEX "{index["name"]}"')
    yield
    for index in found:
        await db.run(index["made_by"])


def _batches(number: int) -> Iterator[tuple[int, int]]:
    return ((first, min(first + BATCH - 1, number)) for first in range(1, number + 1, BATCH))


async def settle(db: Database) -> None:
    """Vacuums and analyses every table, so that autovacuum does not do it while something is measured."""
    await db.run("VACUUM (ANALYZE)")
    await db.run("CHECKPOINT")
