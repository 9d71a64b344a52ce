"""Ten thousand sessions and one of two thousand events, written into the tables as the server would have."""

from longhouse.journal import events
from longhouse.store.database import Database

SESSIONS = 10_000
EVENTS = 2_000
LONG = "tool_calling_agent_long"

SESSION = """INSERT INTO sessions
        (id, owner, conversation_id, side, agent, version, head, due, created_at, updated_at, state, task, trace_id)
    SELECT CASE WHEN :count::int = 1 THEN :prefix ELSE :prefix || g END, 'local', :prefix || g, 'root',
           (ARRAY['tool_calling_agent', 'master', 'secretary'])[g % 3 + 1], 1, :head, false,
           now() - make_interval(secs => g), now() - make_interval(secs => g),
           (ARRAY['COMPLETED', 'FAILED', 'CANCELLED'])[g % 7 % 3 + 1], 'This is task number ' || g, 't'
    FROM generate_series(1, :count::int) g"""
JOURNAL = """INSERT INTO journal (session_id, seq, conversation_id, trace_id, kind, call_id, append_id, nth, body, at)
    SELECT CASE WHEN :count::int = 1 THEN :prefix ELSE :prefix || g END, b.seq, :prefix || g, 't', b.kind, b.call,
           gen_random_uuid(), 1, b.body, now() - make_interval(secs => g) + make_interval(secs => b.seq * 0.1)
    FROM generate_series(1, :count::int) g,
         unnest(:kinds::text[], :calls::text[], :bodies::json[]) WITH ORDINALITY AS b (kind, call, body, seq)"""


async def fill_many(db: Database) -> None:
    whole = _journal()
    await _fill(db, "tool_calling_agent_", SESSIONS, [*whole[:6], whole[-1]])
    await _fill(db, LONG, 1, whole)
    await db.run("ANALYZE")


async def _fill(db: Database, prefix: str, count: int, journal: list[events.Event]) -> None:
    calls = [event.call if isinstance(event, events.Called | events.Returned) else None for event in journal]
    await db.run(SESSION, prefix=prefix, count=count, head=len(journal))
    await db.run(
        JOURNAL, prefix=prefix, count=count, kinds=[type(event).__name__ for event in journal], calls=calls,
        bodies=[events.encode(event) for event in journal],
    )  # fmt: skip


def _journal() -> list[events.Event]:
    """One turn of so many events, and its answer."""
    limits = events.Limits(max_iterations=1_000, max_clarifications=3, time_budget=6_000)
    told: list[events.Event] = [
        events.Opened(agent="tool_calling_agent", version=1, owner="local", conversation="c"),
        events.Prompted(trace="t", content=("Count to the end.",)),
        events.Started(trace="t", prompt=2, version=1, instance="i", limits=limits, date="2026-01-31"),
    ]
    usage = events.Usage(prompt_tokens=900, completion_tokens=100, total_tokens=1_000)
    for number in range(1, (EVENTS - 4) // 3 + 1):
        name = f"{number}-action-0"
        told += [
            events.Replied(text=f"Step {number}. " + "Some words. " * 20, usage=usage),
            events.Called(call=name, tool="clocktool", arguments="{}"),
            events.Returned(call=name, outcome=events.Output(content="It is noon. " * 60)),
        ]
    return [*told, events.Finished(answer="That was all.")]
