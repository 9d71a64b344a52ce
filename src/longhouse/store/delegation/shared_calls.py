"""The tool calls of a request that the root agent and all sub-agents share, taken before the calls are made."""

from typing import Final

from longhouse.agents.delegation import tree_budget
from longhouse.errors import Deposed
from longhouse.journal.session import Session, Turn
from longhouse.store.database import Database, Transaction
from longhouse.store.delegation.delegations import LOCK

# The turn's own number is written anew each time: a step that is tried again, after its worker was lost, takes no more.
TAKE: Final = """
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


async def take(db: Database, session: Session, turn: Turn, wanted: int) -> int:
    """Takes this many calls for a step from the budget of its request; how many of them may be made."""
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
        taken: int | None = await tx.value(TAKE, **values)
        if taken is None:
            raise Deposed(f"session {session.id!r} was deleted")
        return taken

    return await db.together(write)
