"""Broken Longhouses: each lacks one protection, and the checks must find what comes of it."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from msgspec.structs import replace

from chaos.patching import Function, replaced
from longhouse import clock
from longhouse.errors import Deposed
from longhouse.journal import events
from longhouse.journal.fold import blank, extended
from longhouse.runtime.inbox import Delivered
from longhouse.store import journals

COMMITS_LATE: Final = 0.7
"""Seconds between the acknowledgement and the commit of the mutant that acknowledges too early."""


@dataclass(frozen=True)
class Mutant:
    name: str
    invariant: str
    """The invariant that must be found violated."""
    break_it: Callable[[], None]
    """Run in each process before it starts."""
    faults: Mapping[str, float]
    """How often each kind of fault comes: those that bring the defect to light."""
    sql: tuple[str, ...] = ()
    """Takes away what the schema itself would refuse."""
    mix: Mapping[str, float] = field(default_factory=lambda: {"tools": 1.0})


def _no_fence() -> None:
    replaced("longhouse.store.journals:APPEND", lambda sql: _without(sql, "AND s.fence = :fence"))


def _without(sql: str, condition: str) -> str:
    assert condition in sql
    return sql.replace(condition, "AND :fence::bigint IS NOT NULL")


def _deposed_retries() -> None:
    def wrap(append: Function) -> Function:
        async def retried(db: Any, session: Any, new: Any, *, fence: int, **rest: Any) -> Any:
            try:
                return await append(db, session, new, fence=fence, **rest)
            except Deposed:
                current = await db.value("SELECT fence FROM sessions WHERE id = :id", id=session.id)
                return await append(db, session, new, fence=current, **rest)

        async def wrapped(*args: Any, **kwargs: Any) -> Any:
            # A worker that was frozen cancels its runs by its clock: this one does not give up for that.
            return await asyncio.shield(retried(*args, **kwargs))

        return wrapped

    replaced("longhouse.store.journals:append", wrap)


def _ack_before_commit() -> None:
    late: set[asyncio.Task[Any]] = set()

    def wrap(open_session: Function) -> Function:
        async def commit(*args: Any, **kwargs: Any) -> None:
            await asyncio.sleep(COMMITS_LATE)
            await open_session(*args, **kwargs)

        async def wrapped(inbox: Any, session_id: str, opened: Any, prompt: Any, **rest: Any) -> Delivered:
            task = asyncio.create_task(commit(inbox, session_id, opened, prompt, **rest))
            late.add(task)
            return Delivered(extended(blank(session_id), [opened, prompt], clock.now()))

        return wrapped

    replaced("longhouse.runtime.inbox:Inbox.open", wrap)


def _result_twice() -> None:
    def wrap(append: Function) -> Function:
        async def wrapped(db: Any, session: Any, new: Sequence[events.Event], **rest: Any) -> Any:
            appended = await append(db, session, new, **rest)
            results = [one for one in new if isinstance(one, events.Returned)]
            if results:
                await journals.add(db, session.id, results[:1], trace=session.trace)
            return appended

        return wrapped

    replaced("longhouse.store.journals:append", wrap)


def _seq_reset() -> None:
    def restarted(sql: str) -> str:
        assert "head = s.head + :count" in sql
        begins_anew = "head = CASE WHEN :new_kind_a::text = 'Resumed' THEN 0 ELSE s.head END + :count"
        return sql.replace("head = s.head + :count", begins_anew)

    replaced("longhouse.store.journals:APPEND", restarted)
    # None is written together with others, by a statement that counts on.
    replaced("longhouse.store.journals:_said", lambda said: lambda rows, used: None)


def _counts_outages() -> None:
    replaced(
        "longhouse.agents.rules:worked_seconds",
        lambda _: lambda turn: (clock.now() - turn.started_at).total_seconds() - turn.subagents.seconds,
    )


def _counts_jumps() -> None:
    replaced("longhouse.runtime.recorder:_idle", lambda _: lambda *_: [])


def _stays_inited() -> None:
    def wrap(cancel: Function) -> Function:
        def wrapped(builder: Any, trace: str) -> None:
            cancel(builder, trace)
            builder.base = replace(builder.base, withdrawn=False)

        return wrapped

    replaced("longhouse.journal.fold:_Builder._cancel", wrap)


def _trial_never_ends() -> None:
    """Whoever lost a worker and is next to be tried is not woken."""
    for way in ("acquit", "end"):
        replaced(f"longhouse.runtime.workers.trials:Trials.{way}", lambda ends: lambda trials, session_id: None)
    replaced("longhouse.runtime.workers.trials:QUIET", lambda quiet: 1e6)


MUTANTS: Final = (
    Mutant("no_fence", "I3", _no_fence, faults={"freeze recording": 1.0}),
    Mutant("deposed_retries", "I3", _deposed_retries, faults={"freeze recording": 1.0}),
    Mutant("ack_before_commit", "I1", _ack_before_commit, faults={"gateway": 1.0}, mix={"plain": 1.0}),
    Mutant("result_twice", "I2", _result_twice, faults={"worker": 1.0}, sql=("DROP INDEX journal_returned",)),
    Mutant(
        "seq_reset", "I5", _seq_reset, faults={"worker": 1.0}, sql=("ALTER TABLE journal DROP CONSTRAINT journal_pkey",)
    ),
    Mutant("counts_outages", "I4", _counts_outages, faults={"outage": 1.0}),
    Mutant("counts_jumps", "I4", _counts_jumps, faults={"clock": 1.0}),
    Mutant("stays_inited", "I4", _stays_inited, faults={"outage": 1.0}),
    Mutant("trial_never_ends", "I4", _trial_never_ends, faults={"in a row": 1.0}),
)
BY_NAME: Final = {mutant.name: mutant for mutant in MUTANTS}
