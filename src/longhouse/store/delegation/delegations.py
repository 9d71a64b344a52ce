"""Delegations between sessions, and the calls that await them. A change to several sessions is one transaction.

Locks are taken in one order everywhere, so that there is no deadlock: the conversation's advisory lock, rows of
`delegations`, rows of `sessions` by id, what belongs to sessions.
"""

import uuid
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import datetime
from types import MappingProxyType
from typing import Final, TypeVar

import asyncpg
import msgspec

from longhouse.agents.delegation import MAX_OPEN_TASKS, Delegation, tree_budget, waits_for
from longhouse.errors import AlreadyReturned, Deposed
from longhouse.journal.events import Event, Fault, Opened, Outcome, Output, Returned
from longhouse.journal.session import Session, Turn, ended_turn
from longhouse.store import journals
from longhouse.store.database import Database, Executor, Transaction
from longhouse.store.delegation import results
from longhouse.store.delegation.results import DelegationResult
from longhouse.store.journals import Appended, Placed, Rest
from longhouse.store.rows import columns

T = TypeVar("T")

LOCK: Final = (
    "SELECT pg_advisory_xact_lock(hashtextextended('longhouse delegation ' || :owner || ' ' || :conversation, 0))"
)
LOCK_ROWS: Final = "SELECT id, head FROM sessions WHERE id = ANY(:ids) ORDER BY id FOR UPDATE"

# Edges from a waiting session to the session that it waits for: open delegations that a call awaits. A child works its
# queue in order, so a task in the queue also waits for what the tasks ahead of it wait for.
EDGES: Final = """
    SELECT d.parent, d.child FROM sessions s JOIN delegations d ON d.parent = s.id JOIN awaits a
        ON a.parent = d.parent AND a.awaited = d.call
    WHERE s.owner = :owner AND s.conversation_id = :conversation AND d.outcome IS NULL
"""

CHILDREN: Final = f"""
    SELECT s.agent, s.label, s.id, {journals.room_in("s.")} AS has_room
    FROM unnest(:agent::text[], :label::text[]) AS asked (agent, label)
    JOIN sessions s ON s.owner = :owner AND s.conversation_id = :conversation AND s.side = 'sub'
        AND s.agent = asked.agent AND s.label = asked.label
"""

DELEGATE: Final = """
WITH delegated AS (
    INSERT INTO delegations (parent, call, child, prompt, trace) VALUES (:parent, :call, :child, :prompt, :trace)
)
INSERT INTO awaits (parent, call, awaited) SELECT :parent, :call, :call WHERE :awaited
"""
AWAIT: Final = "INSERT INTO awaits (parent, call, awaited) VALUES (:parent, :call, :handle)"
HANDLE: Final = "SELECT child, outcome FROM delegations WHERE parent = :parent AND call = :call FOR UPDATE"
KEEP: Final = "UPDATE delegations SET outcome = :outcome WHERE parent = :parent AND call = :call"

# Stores the outcome of an ended turn; returns the call that delegated it, if there is one.
END: Final = """
    UPDATE delegations SET outcome = :outcome WHERE child = :child AND prompt = :prompt AND outcome IS NULL
    RETURNING parent, call, trace
"""
# The waiting calls that are still open, and their trace: a later turn than that of the task may have made them.
AWAITING: Final = """
WITH waited AS (DELETE FROM awaits WHERE parent = :parent AND awaited = :call RETURNING call)
SELECT waited.call, s.trace_id AS trace FROM waited JOIN sessions s ON s.id = :parent
WHERE NOT EXISTS (
    SELECT FROM journal r WHERE r.session_id = :parent AND r.call_id = waited.call AND r.kind = 'Returned'
)
"""

# The turn's own number is written anew each time: a step that is tried again, after its worker was lost, takes no more.
TAKE_CALLS: Final = """
    WITH others AS (
        SELECT COALESCE(sum(calls), 0) AS calls FROM shared_calls
        WHERE root = :root AND trace = :trace AND (session_id, prompt) <> (:session, :prompt)
    ), granted AS (
        SELECT greatest(0, least(:wanted::bigint, :budget - calls - :used))::integer AS calls FROM others
    )
    INSERT INTO shared_calls (root, trace, session_id, prompt, calls)
    SELECT :root, :trace, there.id, :prompt, :used + calls
    FROM granted, (SELECT id FROM sessions WHERE id = :session FOR KEY SHARE) there
    ON CONFLICT (root, trace, session_id, prompt) DO UPDATE SET calls = EXCLUDED.calls
    RETURNING calls - :used
"""

_FULL: Final = Fault(
    code=journals.TOO_MANY_WAITING,
    message="too many tasks wait for that agent already; wait for some, call it under another label, or do it yourself",
)


_CYCLE: Final = Fault(
    code="cycle",
    message="cycle: that agent waits, through whomever, for you; do it yourself, or call it under another label",
)


class Recording(msgspec.Struct, frozen=True):
    """The parameters of the lease holder's append, as for `journals.append`."""

    fence: int
    worker: str
    at: datetime
    keeps: bool = False
    """The lease is kept: the holder has something to do that the session does not tell of."""


class Collect(msgspec.Struct, frozen=True):
    """A call that waits for the result of a delegation that another call of the same session has started."""

    call: str
    handle: str


Settle = Callable[[Sequence[Event]], tuple[Session, list[Event]]]
"""Folds new events: returns the session after them, and the events together with those that follow from them."""


async def begin(
    db: Database,
    session: Session,
    new: Sequence[Event],
    tasks: Sequence[Delegation],
    collects: Sequence[Collect],
    *,
    faults: Mapping[str, Outcome] = MappingProxyType({}),
    settle: Settle,
    recording: Recording,
) -> tuple[Session, Appended, list[tuple[str, int]]]:
    """Records calls of agents and prompts those agents, all or nothing; returns other sessions written to, with heads.

    `faults`: the calls that are refused already. A task for an agent that waits for this session, directly or
    indirectly, returns the fault `cycle`; a task beyond the limit of concurrent tasks returns `too_many_agents`, and
    one for an agent whose queue is full `too_many_waiting`.
    """
    append_id = uuid.uuid4()

    async def write(tx: Transaction) -> tuple[Session, Appended, list[tuple[str, int]]]:
        await tx.run(LOCK, owner=session.owner, conversation=session.conversation)
        children, full = await _children(tx, session, tasks)
        edges: list[tuple[str, str]] = []
        if collects or any(children.values()):  # a new agent waits for none
            edges += map(tuple, await tx.rows(EDGES, owner=session.owner, conversation=session.conversation))
        circles = {
            task.call for task in tasks if task.awaited and waits_for(edges, children[task.call] or "", session.id)
        }
        refused: dict[str, Outcome] = {**faults, **dict.fromkeys(full, _FULL), **dict.fromkeys(circles, _CYCLE)}
        refused |= await _too_many(tx, session, [task for task in tasks if task.call not in {*circles, *full}])
        known, settled_at_once = await _collected(tx, session.id, collects, edges)
        after, settled = settle([*_refusing(new, refused), *settled_at_once])
        # A reply may call agents without awaiting them, and also end the turn.
        kept, ended = None, list[asyncpg.Record]()
        if turn := ending_turn(session, after):
            kept = results.of_turn(turn, outcome_of(after, turn))
            ended += await tx.rows(END, child=after.id, prompt=turn.prompt, outcome=kept.counted.encoded)
        touched = {session.id, *filter(None, children.values()), *(row["parent"] for row in ended)}
        if len(touched) > 1:  # the append locks the session's own row
            await tx.rows(LOCK_ROWS, ids=sorted(touched))
        appended = await append(tx, session, after, settled, recording=recording, append_id=append_id)
        prompted = await return_outcome(tx, ended, kept) if kept else []
        begun: set[tuple[str, str]] = set()
        for task in tasks:
            if task.call in refused:
                continue
            # An imported history is given once: to a new session.
            is_new = children[task.call] is None and (task.agent, task.label) not in begun
            begun.add((task.agent, task.label))
            prompted.append(await _prompt(tx, session, task if is_new else task.with_prior(())))
        for collect in known:
            await tx.run(AWAIT, parent=session.id, call=collect.call, handle=collect.handle)
        return after, appended, prompted

    return await _once(db, session, append_id, write)


async def end(
    db: Database, session: Session, after: Session, turn: Turn, settled: Sequence[Event], *, recording: Recording
) -> tuple[Appended, list[tuple[str, int]]]:
    """Records the end of a turn that another agent asked for, and the outcome in that agent's journal; atomically."""
    append_id = uuid.uuid4()

    async def write(tx: Transaction) -> tuple[Appended, list[tuple[str, int]]]:
        kept = results.of_turn(turn, outcome_of(after, turn))
        ended = await tx.rows(END, child=after.id, prompt=turn.prompt, outcome=kept.counted.encoded)
        await tx.rows(LOCK_ROWS, ids=sorted({session.id, *(row["parent"] for row in ended)}))
        appended = await append(tx, session, after, settled, recording=recording, append_id=append_id)
        return appended, await return_outcome(tx, ended, kept)

    return await _once(db, session, append_id, write)


async def take_calls(db: Database, session: Session, turn: Turn, wanted: int) -> int:
    """Takes this many calls for a step from the budget that its request shares; how many of them may be made."""
    budget = tree_budget(turn)
    if budget is None:
        return wanted
    values = {
        "root": turn.prompted.root or session.id,
        "trace": turn.trace,
        "session": session.id,
        "prompt": turn.prompt,
        "wanted": wanted,
        "budget": budget,
        "used": turn.calls - turn.subagents.calls,
    }

    async def write(tx: Transaction) -> int:
        await tx.run(LOCK, owner=session.owner, conversation=session.conversation)
        taken: int | None = await tx.value(TAKE_CALLS, **values)
        if taken is None:
            raise Deposed(f"session {session.id!r} was deleted")
        return taken

    return await db.together(write)


def ending_turn(before: Session, after: Session) -> Turn | None:
    """The turn that another agent has asked for and that ends between `before` and `after`, if there is one."""
    turn = ended_turn(before, after)
    return turn if turn and turn.prompted.reply_to else None


def outcome_of(session: Session, turn: Turn) -> Outcome:
    """The outcome of a turn for the agent that asked for it."""
    if turn.ended == "COMPLETED":
        return Output(content=turn.answer or "")
    return Fault(code=turn.code or "failed", message=turn.error or f"the agent {session.agent} did not finish")


async def _once(
    db: Database, session: Session, append_id: uuid.UUID, write: Callable[[Transaction], Awaitable[T]]
) -> T:
    """Runs the transaction. DelegationWritten: an earlier try was committed, and the caller reads the journal."""
    try:
        return await db.together(write)
    except asyncpg.UniqueViolationError as error:
        if await journals.last_written(db, session.id, append_id):
            raise DelegationWritten from error
        if error.constraint_name == "journal_returned":
            raise AlreadyReturned(f"a call of session {session.id!r} has its outcome already") from error
        raise


class DelegationWritten(Exception):  # noqa: N818 - not an error
    """The append was already written: the connection was lost after the commit."""


async def append(
    db: Executor,
    before: Session,
    after: Session,
    settled: Sequence[Event],
    *,
    recording: Recording,
    append_id: uuid.UUID | None = None,
) -> Appended:
    """Appends as the lease holder; the same statement releases the lease if nothing is left to do."""
    keeps = recording.keeps or after.can_move or after.lacks_title
    rest = None if keeps else Rest(head=before.head, wake_at=after.wake_at)
    return await journals.append(
        db,
        after,
        settled,
        fence=recording.fence,
        worker=recording.worker,
        at=recording.at,
        rest=rest,
        fingerprint=after.rest_mark if rest or not after.is_running else None,
        append_id=append_id,
    )


async def _children(
    tx: Transaction, parent: Session, tasks: Sequence[Delegation]
) -> tuple[dict[str, str | None], set[str]]:
    """Call -> the session that its task goes to, None where that is not open yet; and the calls whose session has a
    full queue."""
    if not tasks:
        return {}, set()
    asked = {"owner": parent.owner, "conversation": parent.conversation, "most_waiting": journals.MOST_WAITING}
    rows = await tx.rows(CHILDREN, **asked, **columns(tasks, "agent", "label"))
    there = {(row["agent"], row["label"]): row for row in rows}
    known = {task.call: there.get((task.agent, task.label)) for task in tasks}
    children = {call: row and row["id"] for call, row in known.items()}
    return children, {call for call, row in known.items() if row and not row["has_room"]}


async def _prompt(tx: Transaction, parent: Session, task: Delegation) -> tuple[str, int]:
    opened = Opened(
        agent=task.agent,
        version=task.version,
        owner=parent.owner,
        user=parent.user,
        conversation=parent.conversation,
        side="sub",
        label=task.label,
    )
    prompted = task.prompted
    text = "".join(content for content in prompted.content if isinstance(content, str))
    proposed = f"{task.agent}_{uuid.uuid4()}"
    placed: Placed = await journals.open(tx, proposed, opened, prompted, task=text, parent=parent.id, most_waiting=None)
    await tx.run(
        DELEGATE,
        parent=parent.id,
        call=task.call,
        child=placed.session_id,
        prompt=placed.seq,
        trace=prompted.trace,
        awaited=task.awaited,
    )
    return placed.session_id, placed.seq


async def _collected(
    tx: Transaction, parent: str, collects: Sequence[Collect], edges: Sequence[tuple[str, str]]
) -> tuple[list[Collect], list[Returned]]:
    """The collects that have to wait, and the outcomes of those that do not."""
    waiting, returned = [], []
    for collect in collects:
        row = await tx.row(HANDLE, parent=parent, call=collect.handle)
        if row is None:
            fault = Fault(code="unknown_handle", message=f"there is no handle {collect.handle[:100]!r} of yours")
            returned.append(Returned(call=collect.call, outcome=fault))
        elif row["outcome"] is not None:
            kept = results.decode(row["outcome"])
            returned.append(kept.returned(collect.call))
            if kept.spent:  # counted once
                await tx.run(KEEP, parent=parent, call=collect.handle, outcome=kept.counted.encoded)
        elif waits_for(edges, row["child"], parent):
            returned.append(Returned(call=collect.call, outcome=_CYCLE))
        else:
            waiting.append(collect)
    return waiting, returned


async def return_outcome(
    tx: Transaction, ended: Sequence[asyncpg.Record], kept: DelegationResult
) -> list[tuple[str, int]]:
    """Appends the outcome to every open call that awaits it; only the first one is charged the cost."""
    appended = []
    for row in ended:
        waiting = await tx.rows(AWAITING, parent=row["parent"], call=row["call"])
        calls = [one["call"] for one in waiting]
        if calls:
            new = [kept.returned(calls[0]), *(kept.counted.returned(call) for call in calls[1:])]
            placed = await journals.add(tx, row["parent"], new, trace=waiting[0]["trace"])
            appended.append((placed.session_id, placed.seq))
        elif kept.spent:
            await tx.run(KEEP, parent=row["parent"], call=row["call"], outcome=kept.encoded)
    return appended


async def _too_many(tx: Transaction, session: Session, tasks: Sequence[Delegation]) -> dict[str, Outcome]:
    """Call -> fault, for the calls beyond the limit of concurrent tasks of one trace."""
    if not tasks:
        return {}
    room = MAX_OPEN_TASKS - await results.count_open(tx, session, tasks[0].prompted.trace)
    message = f"{MAX_OPEN_TASKS} tasks are being worked on for this request already; wait for some, or do it yourself"
    fault = Fault(code="too_many_agents", message=message)
    return {task.call: fault for task in tasks[max(0, room) :]}


def _refusing(new: Sequence[Event], faults: Mapping[str, Outcome]) -> list[Event]:
    """The events with the faults of refused calls; the handle that an unawaited call has returned is removed."""
    kept = [one for one in new if not (isinstance(one, Returned) and one.call in faults)]
    return [*kept, *(Returned(call=call, outcome=fault) for call, fault in faults.items())]
