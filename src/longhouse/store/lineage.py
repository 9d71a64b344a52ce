"""Who is beneath whom: the agents that a trace has reached from a session, and those that it waits for."""

from dataclasses import dataclass
from datetime import datetime
from typing import Final

from longhouse.store.database import Database

# Every session that this trace has reached from here, itself first; with $3, only those still at it. Who has ended may
# have left others at work, so the way leads through everybody; agents may have called each other in turn, so it is
# bounded by the depth at which nobody calls anybody any more.
TREE: Final = """
    WITH RECURSIVE tree (id, depth) AS (
        SELECT $1::text, 0
        UNION
        SELECT d.child, tree.depth + 1 FROM tree JOIN delegations d ON d.parent = tree.id
        WHERE d.trace = $2 AND tree.depth < 33
    )
    SELECT s.id, s.agent, s.label, s.state, s.head, s.due, s.wake_at, s.holder, s.parent, min(tree.depth) AS depth
    FROM tree JOIN sessions s ON s.id = tree.id
    WHERE NOT $3 OR s.id = $1 OR EXISTS (
        SELECT FROM delegations d WHERE d.child = s.id AND d.trace = $2 AND d.outcome IS NULL
    )
    GROUP BY s.id ORDER BY depth, s.created_at, s.id
"""
# The traces at whose end a session waits: its own, and those of earlier turns whose outcome it collects.
AWAITED: Final = """
    SELECT DISTINCT d.child, d.trace FROM awaits a JOIN delegations d ON d.parent = a.parent AND d.call = a.awaited
    WHERE a.parent = $1 AND d.trace <> $2 AND d.outcome IS NULL
"""


@dataclass(frozen=True, slots=True)
class Node:
    """A session in the tree of a trace."""

    id: str
    agent: str
    label: str
    state: str
    head: int
    due: bool
    wake_at: datetime | None
    holder: str | None
    parent: str | None
    depth: int

    @property
    def rests(self) -> bool:
        return not self.due and self.wake_at is None


async def tree(db: Database, session_id: str, trace: str, *, working: bool = False) -> list[Node]:
    """The sessions that this trace has reached from here, itself first; with `working`, those still at it."""
    return [Node(*row) for row in await db.rows(TREE, session_id, trace, working)]


async def beneath(db: Database, session_id: str, trace: str) -> list[Node]:
    """Those at work beneath a session whose outcomes it may wait for, also where an earlier turn has asked them."""
    found = {node.id: node for node in await tree(db, session_id, trace, working=True)}
    for row in await db.rows(AWAITED, session_id, trace):
        found |= {node.id: node for node in await tree(db, row["child"], row["trace"], working=True)}
    return [node for node in found.values() if node.id != session_id]
