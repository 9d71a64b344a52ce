"""What a person does in a session from the command line: decide or settle a call, answer a question, cancel a turn,
fork it.

All of it is written to the database, as the API writes it; a worker goes on with the session within half a second.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from longhouse.api.caller import Caller
from longhouse.api.sessions import decisions
from longhouse.api.sessions.waiting import Question, find_questions
from longhouse.errors import AlreadyReturned, SetupError
from longhouse.journal.events import Decision
from longhouse.journal.session import Session
from longhouse.runtime.bus.local import Bus
from longhouse.runtime.inbox import Inbox
from longhouse.store import journals, leases
from longhouse.store import sessions as session_store
from longhouse.store.database import Database
from longhouse.store.forks import Fork, NoSuchEvent

BY: Final = "cli"
OPERATOR: Final = Caller("", BY, "admin")
UNASKED: Final = "no call waits for approval (for an unknown outcome, use `longhouse sessions settle`)"
UNDOUBTED: Final = (
    "no step can be settled so, and no call has an unknown outcome (for approvals, use `longhouse sessions approve` or"
    " `deny`)"
)
GONE: Final = "the session moved on meanwhile; `longhouse sessions show` tells what it waits for now."


async def decide(
    db: Database,
    session_id: str,
    name: str | None,
    decision: Decision,
    *,
    comment: str = "",
    result: str | None = None,
    show: Callable[[str], None] = lambda _: None,
) -> str:
    """Decides a call that waits for approval, or settles one whose outcome is unknown, or a lost step; its name.

    `show` is told the tool and its arguments first, and may raise."""
    first: Question | None = None
    for _ in range(decisions.RACES):
        session = await journals.load(db, session_id)
        fits = partial(decisions.is_possible, decision)
        waiting = await find_questions(db, session, name, fits, in_background=True)
        one = _only(waiting, session, UNASKED if decision in ("approve", "deny") else UNDOUBTED)
        if first and not one.is_same(first):
            raise SetupError(GONE)
        if first is None:
            show(f"{one.call.tool} {one.call.arguments}")
        first = one
        decided = decisions.decided(OPERATOR, one, decision, comment=comment)
        try:
            await _inbox(db).decide(one.session, decided, result)
        except journals.NotThere:
            continue
        return one.label(session)
    raise decisions.too_many_races()


async def answer(db: Database, session_id: str, name: str | None, text: str) -> str:
    """Answers a question, the oldest if none is named; its name."""
    session = await journals.load(db, session_id)
    waiting = await find_questions(db, session, name, lambda one: one.call.call_kind == "ask", in_background=True)
    one = _only(waiting[:1], session, "it asks nothing")
    try:
        await _inbox(db).answer(one.session, one.call.call, text, by=BY)
    except (AlreadyReturned, journals.NotThere):
        raise SetupError(GONE) from None
    return one.label(session)


async def fork(db: Database, session_id: str, after: int | None) -> Fork:
    """Opens a branch of a session that ends with this event; None: its last one."""
    owner = await session_store.owner_of(db, session_id)
    head = (await leases.heads(db, [session_id])).get(session_id, (0, ""))[0]
    try:
        forked = await _inbox(db).fork(session_id, owner or "", head if after is None else after)
    except NoSuchEvent as error:
        raise SetupError(f"--after should be an event of the session: 1 to {error.head}.") from None
    if forked is None:
        raise SetupError(GONE)
    return forked


async def cancel(db: Database, session_id: str) -> str:
    """Cancels the running turn, or the next queued one; the state of the session."""
    return str((await _inbox(db).cancel(await journals.load(db, session_id), by=BY)).state)


def _inbox(db: Database) -> Inbox:
    # Nobody follows this process: workers and gateways find what was written in the database.
    return Inbox(db, Bus())


def _only(waiting: Sequence[Question], session: Session, nothing: str) -> Question:
    if not waiting:
        raise SetupError(f"{nothing}: {session.id} is {session.state}; `longhouse sessions show` tells more.")
    if len(waiting) > 1:
        names = ", ".join(one.label(session) for one in waiting)
        raise SetupError(f"several calls wait: {names}; name one of them.")
    return waiting[0]
