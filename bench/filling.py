"""Tables with very many sessions, written by SQL as workers would have left them."""

from collections.abc import Iterator
from typing import Final

from longhouse.journal import events
from longhouse.store.database import Database

AGENT: Final = "tool_calling_agent"
OWNERS: Final = 1_000
"""Owners besides `local`, to whom every tenth session belongs."""
BATCH: Final = 50_000
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

# md5 makes ids as scattered as those of real sessions, and the same in every table.
_NUMBERED: Final = """
    SELECT n, :agent || '_' || md5(:set || n)::uuid AS id, 'c-' || :set || n AS conversation,
           CASE WHEN n % 10 = 0 THEN 'local' ELSE 'owner-' || n % :owners END AS owner,
           now() - n * interval '10 seconds' AS at
    FROM generate_series(:first::int, :last::int) n
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
) -> None:
    """So many sessions of the set `name`; the first `journals` of them (all by default) have their events."""
    told_columns = {
        "kinds": [events.kind_of(one) for one in told],
        "calls": [events.call_of(one) for one in told],
        "bodies": [events.encode(one) for one in told],
    }
    row = {"head": len(told), "due": due, "holder": holder, "state": state, "wakes": wakes}
    numbers = {"agent": AGENT, "set": name, "owners": OWNERS}
    for first, last in _batches(number if journals is None else journals):
        await db.run(_JOURNAL, first=first, last=last, **numbers, **told_columns)
    await db.run("ANALYZE journal")  # the trigger that notes who asks reads it
    for first, last in _batches(number):
        await db.run(_SESSIONS, first=first, last=last, **numbers, **row)


def _batches(number: int) -> Iterator[tuple[int, int]]:
    return ((first, min(first + BATCH - 1, number)) for first in range(1, number + 1, BATCH))


async def settle(db: Database) -> None:
    """What autovacuum would have done by and by."""
    for table in ("sessions", "journal", "asking_sessions"):
        await db.run(f"VACUUM (ANALYZE) {table}")
    await db.run("CHECKPOINT")
