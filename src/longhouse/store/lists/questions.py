"""Open questions over many sessions, read without folding a journal: clarifications, approvals, unknown outcomes,
steps that lost their workers, and calls whose results the client has to send."""

from collections.abc import Collection, Mapping, Sequence
from datetime import UTC, datetime
from typing import Final

import msgspec

from longhouse.journal.session import LOST_STEP, LOST_STEP_PREFIX, TAKES_WORKERS, QuestionKind
from longhouse.store.database import Database
from longhouse.store.delegation.tree import callers

SHOWN: Final = 20_000
"""Characters of a call's arguments, and of a question; the session holds all of them."""
MARKED: Final = 201
"""Sessions that count for the mark of an owner: one more than the longest page."""
NEVER: Final = datetime(9999, 12, 31, tzinfo=UTC)
"""The place in the order of a question without a deadline."""

FILTERS: Final = {"owner": "owner = :owner", "agent": "agent = :agent", "ids": "id = ANY(:ids)"}

# The sessions that rest, in the order of their first questions: a page is read from the first of them alone.
FIRST: Final = """
    SELECT id, due_by, asked_at FROM asking_sessions
    WHERE true {also} ORDER BY due_by, asked_at, id LIMIT :sessions
"""
FROM: Final = "AND (due_by, asked_at, id) >= (:after_due, :after_at, :after_id)"
# Sessions that ask several questions may have further ones behind a page that showed their first.
SEVERAL: Final = """
    SELECT id FROM asking_sessions WHERE NOT is_single AND (due_by, asked_at) <= (:after_due, :after_at) {also}
"""
# Two sets, each found without reading other sessions: those that rest, and those whose other calls still run. The state
# is looked at again: a session may have moved on since its id was read.
RESTING: Final = """
    SELECT * FROM sessions WHERE id = ANY(:resting) AND state IN ('WAITING_FOR_CLARIFICATION', 'WAITING_FOR_APPROVAL')
"""
RUNNING: Final = "SELECT s.* FROM sessions s WHERE s.due AND s.state = 'RESEARCHING' {also}"
# The open calls of a session follow its last reply: a model is asked again only when all calls have returned. A call
# that waits in a session that cannot move, and that needs no approval any more, has lost its worker. While a probe is
# asked about a call, its session is at work. A step that lost its workers is no call: a decision with an id of its own
# asks about it, and the next one with this id answers.
OPEN: Final = f"""
    WITH asking AS ({RESTING} UNION ALL {{running}}), open_calls AS (
        SELECT s.id AS session_id, s.owner, s.conversation_id, s.agent, s.label, s.trace_id, c.seq, c.call_id,
               c.at AS opened_at, c.tool, c.question, c.arguments, c.arguments_size,
               CASE WHEN d.decision = 'unknown' THEN d.comment ELSE '' END AS doubt,
               CASE WHEN c.call_kind = 'step' THEN
                        CASE WHEN d.decision IS NULL AND s.state <> 'RESEARCHING' THEN 'worker_lost' END
                    WHEN c.call_kind = 'ask' THEN 'clarification'
                    WHEN c.call_kind = 'client' THEN 'client'
                    WHEN d.decision = 'unknown' AND c.effect <> 'once' AND d.comment = '{TAKES_WORKERS}'
                        THEN 'worker_lost'
                    WHEN d.decision = 'unknown' AND NOT d.probed THEN 'unknown_outcome'
                    WHEN c.approve_by IS NOT NULL AND d.decision IS NULL THEN 'approval'
                    WHEN s.state <> 'RESEARCHING' THEN 'unknown_outcome' END AS kind,
               CASE WHEN d.decision IS NULL THEN c.approve_by END AS deadline
        FROM asking s
        LEFT JOIN LATERAL (
            SELECT seq FROM journal WHERE session_id = s.id AND kind = 'Replied' ORDER BY seq DESC LIMIT 1
        ) last_reply ON true
        CROSS JOIN LATERAL (
            SELECT e.seq, e.call_id, e.at, COALESCE(e.body ->> 'tool', '') AS tool,
                   CASE e.kind WHEN 'Decided' THEN '{LOST_STEP}'
                               ELSE left(COALESCE(e.body ->> 'question', ''), :shown) END AS question,
                   left(COALESCE(e.body ->> 'arguments', ''), :shown) AS arguments,
                   length(COALESCE(e.body ->> 'arguments', '')) AS arguments_size,
                   CASE e.kind WHEN 'Decided' THEN 'step'
                               ELSE COALESCE(e.body ->> 'call_kind', 'tool') END AS call_kind,
                   COALESCE(e.body ->> 'effect', 'read') AS effect,
                   (e.body ->> 'approve_by')::timestamptz AS approve_by
            FROM journal_events e
            WHERE e.session_id = s.id AND e.seq > COALESCE(last_reply.seq, 0) AND (
                e.kind = 'Called'
                OR (e.kind = 'Decided' AND e.call_id LIKE '{LOST_STEP_PREFIX}%' AND e.body ->> 'decision' = 'unknown')
            ) OFFSET 0
        ) c
        LEFT JOIN LATERAL (
            SELECT e.body ->> 'decision' AS decision, COALESCE(e.body ->> 'comment', '') AS comment,
                   COALESCE(e.body ->> 'probed', 'false') = 'true' AS probed
            FROM journal_events e
            WHERE e.session_id = s.id AND e.seq > c.seq AND e.kind = 'Decided' AND e.call_id = c.call_id
            ORDER BY e.seq DESC LIMIT 1
        ) d ON true
        WHERE c.call_kind <> 'agent' AND NOT EXISTS (
            SELECT FROM journal r WHERE r.session_id = s.id AND r.call_id = c.call_id AND r.kind = 'Returned'
        )
    ), page AS (
        SELECT *, COALESCE(deadline, :never) AS due_by FROM open_calls
        WHERE kind IS NOT NULL AND (deadline IS NULL OR deadline > :now) {{which}}
        ORDER BY due_by, opened_at, session_id, seq LIMIT :limit
    )
    SELECT COALESCE(root.id, p.session_id) AS root, COALESCE(root.head, 0) AS root_head, p.session_id, p.agent, p.label,
           p.owner, root."user", p.conversation_id, p.kind, p.call_id, p.tool, p.question, p.arguments,
           p.arguments_size > :shown AS is_cut, p.doubt, p.deadline, p.opened_at, p.seq
    FROM page p
    LEFT JOIN LATERAL (
        {callers("p.session_id", "p.trace_id")}
        SELECT s.id, s."user", s.head FROM callers c JOIN sessions s ON s.id = c.id
        ORDER BY s.side <> 'root', c.depth LIMIT 1
    ) root ON true
    ORDER BY p.due_by, p.opened_at, p.session_id, p.seq
"""
AFTER: Final = """
    AND (COALESCE(deadline, :never), opened_at, session_id, seq) > (:after_due, :after_at, :after_id, :after_seq)
"""
# Of each owner, or of all, the sessions that the longest first page can show. Any append to one of them changes it, and
# so does one that joins or leaves them. A running session counts while one of its calls may ask: its other appends
# change no list. What a long body asks is not looked up.
MARKS: Final = f"""
    WITH running AS MATERIALIZED (
        SELECT s.owner, s.id, s.head FROM sessions s WHERE s.due AND s.state = 'RESEARCHING' AND EXISTS (
            SELECT FROM (
                SELECT seq FROM journal WHERE session_id = s.id AND kind = 'Replied' ORDER BY seq DESC LIMIT 1
            ) last_reply
            JOIN journal c ON c.session_id = s.id AND c.seq > last_reply.seq AND c.kind = 'Called'
            WHERE (c.body_digest IS NOT NULL OR c.body ->> 'approve_by' IS NOT NULL OR c.body ->> 'question' IS NOT NULL
                   OR c.body ->> 'call_kind' = 'client'
                   OR EXISTS (SELECT FROM journal d WHERE d.session_id = s.id AND d.seq > c.seq AND d.kind = 'Decided'))
              AND NOT EXISTS (
                SELECT FROM journal r WHERE r.session_id = s.id AND r.call_id = c.call_id AND r.kind = 'Returned'
            )
        )
    ), resting AS (
        SELECT wanted.owner, a.id FROM unnest(:owners::text[]) AS wanted (owner) CROSS JOIN LATERAL (
            SELECT id FROM asking_sessions WHERE owner = wanted.owner ORDER BY due_by, asked_at, id LIMIT {MARKED}
        ) a
        UNION ALL
        (SELECT NULL, id FROM asking_sessions WHERE :everybody ORDER BY due_by, asked_at, id LIMIT {MARKED})
    )
    SELECT owner, bit_xor(hashtextextended(id, head)) AS mark FROM (
        SELECT r.owner, s.id, s.head
        FROM resting r CROSS JOIN LATERAL (SELECT id, head FROM sessions WHERE id = r.id LIMIT 1) s
        UNION ALL SELECT owner, id, head FROM running WHERE owner = ANY(:owners)
        UNION ALL SELECT NULL, id, head FROM running WHERE :everybody
    ) asking GROUP BY owner
"""


class QuestionFilter(msgspec.Struct, frozen=True):
    """Which questions a list shows; None: all of them."""

    owner: str | None = None
    agent: str | None = None
    kind: QuestionKind | None = None
    limit: int = 50
    ids: tuple[str, ...] | None = None
    """Of these sessions only."""

    @property
    def conditions(self) -> dict[str, object]:
        values = {"owner": self.owner, "agent": self.agent, "ids": None if self.ids is None else list(self.ids)}
        return {name: value for name, value in values.items() if value is not None}

    @property
    def also(self) -> str:
        """Only the conditions in use: with `OR` for the others, the plan would use no index."""
        return "".join(f" AND {FILTERS[one]}" for one in self.conditions)


class OpenQuestion(msgspec.Struct, frozen=True):
    """A call, or a step, that waits for a person, and the root session of the one that made it."""

    root: str
    root_head: int
    """The last seq of the root session."""
    session_id: str
    agent: str
    label: str
    owner: str
    user: str | None
    conversation_id: str
    kind: QuestionKind
    call_id: str
    tool: str
    question: str
    arguments: str
    is_cut: bool
    """The arguments are longer than shown."""
    doubt: str
    deadline: datetime | None
    opened_at: datetime
    seq: int

    @property
    def position(self) -> "Position":
        return (self.deadline or NEVER, self.opened_at, self.session_id, self.seq)


Position = tuple[datetime, datetime, str, int]
"""The place of a question in the order: its deadline, when it was asked, and where."""


async def open_questions(
    db: Database, asked: QuestionFilter, now: datetime, after: Position | None = None
) -> list[OpenQuestion]:
    """The earliest deadline first, then the oldest; those after `after` only."""
    sessions = asked.limit
    while True:
        firsts = await _first_sessions(db, asked, after, sessions)
        found = await _read(db, asked, now, after, [*firsts, *await _with_several(db, asked, after)])
        if len(firsts) < sessions or (len(found) == asked.limit and _is_complete(found, firsts)):
            return found
        sessions *= 4


async def marks(db: Database, owners: Collection[str | None]) -> dict[str | None, int]:
    """Owner -> a checksum that changes with every append to a session on the first page; None: of all owners."""
    named = [one for one in owners if one is not None]
    return dict(await db.rows(MARKS, owners=named, everybody=None in owners))


async def _first_sessions(
    db: Database, asked: QuestionFilter, after: Position | None, sessions: int
) -> dict[str, tuple[datetime, datetime]]:
    """So many sessions that rest -> the deadline and the time of their first question."""
    also = asked.also + (f" {FROM}" if after else "")
    rows = await db.rows(FIRST.format(also=also), sessions=sessions, **asked.conditions, **_place(after, 3))
    return {row["id"]: (row["due_by"], row["asked_at"]) for row in rows}


async def _with_several(db: Database, asked: QuestionFilter, after: Position | None) -> list[str]:
    if after is None:
        return []
    rows = await db.rows(SEVERAL.format(also=asked.also), **asked.conditions, **_place(after, 2))
    return [row["id"] for row in rows]


async def _read(
    db: Database, asked: QuestionFilter, now: datetime, after: Position | None, resting: list[str]
) -> list[OpenQuestion]:
    """Questions of these sessions that rest, and of those that run."""
    which, values = "", {**asked.conditions, **_place(after, 4), "shown": SHOWN, "never": NEVER, "now": now}
    if asked.kind:
        which, values["kind"] = "AND kind = :kind", asked.kind
    if after:
        which += f" {AFTER}"
    statement = OPEN.format(running=RUNNING.format(also=asked.also), which=which)
    return await db.read(OpenQuestion, statement, resting=resting, limit=asked.limit, **values)


def _is_complete(found: Sequence[OpenQuestion], firsts: Mapping[str, tuple[datetime, datetime]]) -> bool:
    """Can no session that was not read stand among these? Only what comes before the last session read is certain."""
    edge = max(firsts.values())
    return all(one.position[:2] < edge or one.position[:2] == firsts.get(one.session_id) for one in found)


def _place(after: Position | None, parts: int) -> dict[str, object]:
    """The parameters of a place in the order."""
    names = ("after_due", "after_at", "after_id", "after_seq")[:parts]
    return dict(zip(names, after, strict=False)) if after else {}
