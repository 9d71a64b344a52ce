"""Responses of /v1/responses: where each begins in its journal, what was shown of it before, and how it ended."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Final, Literal, TypeVar

import msgspec
from msgspec import structs

from longhouse.store.database import Executor

Part = Literal["content", "reasoning"]
Kind = TypeVar("Kind")

COLUMNS: Final = "id, owner, session_id, trace_id, after, request, rest, is_stored, created_at"
# Part of the statement that appends the request: there is no response without its request, and none without a response.
RESPOND: Final = """
    INSERT INTO responses (id, owner, placed_in, placed_at, session_id, trace_id, after, request, is_stored, created_at)
    SELECT :response, :owner, moved.id, moved.head, COALESCE(:followed::text, moved.id),
           COALESCE(:follows::text, :trace), COALESCE(:after::bigint, moved.head), :request::json,
           :is_stored::boolean, :at
    FROM moved
"""
# With it goes which items of the conversation its agent reads now.
USE_ITEMS: Final = """
    UPDATE conversation_items SET used_in = moved.id FROM moved WHERE conversation_items.id = ANY(:items::text[])
"""
FIND: Final = f"SELECT {COLUMNS} FROM responses WHERE id = :id AND owner = :owner AND NOT is_deleted"
PLACED: Final = f"SELECT {COLUMNS} FROM responses WHERE placed_in = :session AND placed_at = :seq AND NOT is_deleted"
OF_SESSIONS: Final = f"""
    SELECT {COLUMNS} FROM responses WHERE session_id = ANY(:sessions) AND NOT is_deleted ORDER BY created_at, after
"""
OPEN: Final = f"""
    SELECT {COLUMNS} FROM responses
    WHERE session_id = :session AND trace_id = :trace AND rest IS NULL AND NOT is_deleted
"""
DRAFTS: Final = """
    SELECT seq, nth, step, part, text FROM response_drafts
    WHERE response_id = :response AND (seq, nth) > (:seq, :nth) ORDER BY seq, nth
"""
# Only at the head that the writer has read: events come after what was shown before them, in every process. The lock
# makes an append that comes at the same moment wait for it.
SHOW: Final = """
    INSERT INTO response_drafts (response_id, seq, nth, step, part, text)
    SELECT :response, :seq, :nth, :step, :part, :text
    FROM (SELECT FROM sessions WHERE id = :session AND head = :seq FOR SHARE) there
    ON CONFLICT DO NOTHING RETURNING nth
"""
REST: Final = """
    WITH there AS (SELECT FROM sessions WHERE id = :session AND head = :head FOR SHARE)
    UPDATE responses SET rest = :rest FROM there WHERE id = :response AND rest IS NULL RETURNING rest
"""
RESTED: Final = "SELECT rest FROM responses WHERE id = :response"
DROP_DRAFTS: Final = "DELETE FROM response_drafts WHERE response_id = :response"
DELETE: Final = """
    WITH gone AS (DELETE FROM response_drafts WHERE response_id = :response)
    UPDATE responses SET is_deleted = true, request = '{}', rest = NULL WHERE id = :response AND NOT is_deleted
"""
# The responses that brought a message: one that comes with results of functions is not the last event of its append.
BROUGHT: Final = """
    SELECT FROM (
        SELECT * FROM responses WHERE placed_in = j.session_id AND placed_at >= j.seq ORDER BY placed_at LIMIT 1
    ) r JOIN journal last ON last.session_id = r.placed_in AND last.seq = r.placed_at
    WHERE last.append_id = j.append_id
"""
# Whether nothing was ever said in this session but what belongs to deleted responses, and to this one.
DESERTED: Final = f"""
    SELECT NOT EXISTS (
        SELECT FROM journal j WHERE j.session_id = :session AND j.kind = 'Prompted'
          AND NOT EXISTS ({BROUGHT} AND (r.is_deleted OR r.id = :response))
    ) AND NOT EXISTS (
        SELECT FROM responses r WHERE r.session_id = :session AND NOT r.is_deleted AND r.id <> :response
    )
"""
# Whether nothing in the session `s` is to be kept: neither a response, nor what was said by other routes.
IS_UNSTORED: Final = f"""
    NOT EXISTS (SELECT FROM responses o WHERE o.session_id = s.id AND o.is_stored)
    AND NOT EXISTS (SELECT FROM journal j WHERE j.session_id = s.id AND j.kind = 'Prompted' AND NOT EXISTS ({BROUGHT}))
"""
UNSTORED: Final = f"""
    SELECT DISTINCT r.session_id, r.owner, late.at FROM (SELECT now() - :kept::interval) late (at)
    JOIN responses r ON r.created_at < late.at JOIN sessions s ON s.id = r.session_id AND s.updated_at < late.at
    WHERE NOT r.is_stored AND {IS_UNSTORED}
"""
TAKES_UNSTORED: Final = f"SELECT s.state LIKE 'WAITING%' OR ({IS_UNSTORED}) FROM sessions s WHERE s.id = :session"


class NewResponse(msgspec.Struct, frozen=True):
    """A response that is written together with its request, as the parameters of RESPOND and USE_ITEMS."""

    response: str
    request: str
    """As JSON."""
    is_stored: bool = True
    followed: str | None = None
    """The session that the client talks to, where the request goes to a sub-agent of it; and its head."""
    after: int | None = None
    items: tuple[str, ...] = ()
    """Items that were added to the conversation, and come with the request."""


class ResponseRow(msgspec.Struct, frozen=True):
    id: str
    owner: str
    session_id: str
    trace_id: str
    after: int
    request: str
    rest: str | None
    is_stored: bool
    created_at: datetime


class ShownText(msgspec.Struct, frozen=True):
    """Text of a reply that was shown before the reply was recorded."""

    seq: int
    """The head of the journal when it was shown."""
    nth: int
    step: str
    part: Part
    text: str


async def find(db: Executor, response: str, owner: str) -> ResponseRow | None:
    row = await db.row(FIND, id=response, owner=owner)
    return ResponseRow(*row) if row else None


async def placed(db: Executor, session: str, seq: int) -> ResponseRow | None:
    """The response whose request is this event."""
    row = await db.row(PLACED, session=session, seq=seq)
    return ResponseRow(*row) if row else None


async def of_sessions(db: Executor, sessions: Sequence[str]) -> list[ResponseRow]:
    """The responses of these sessions, the oldest first."""
    return await db.read(ResponseRow, OF_SESSIONS, sessions=list(sessions))


async def unended(db: Executor, session: str, trace: str) -> list[ResponseRow]:
    """Responses of a turn for which no end is written down."""
    return await db.read(ResponseRow, OPEN, session=session, trace=trace)


async def shown_texts(db: Executor, response: str, seq: int, nth: int) -> list[ShownText]:
    """What was shown of a response after this place."""
    return await db.read(ShownText, DRAFTS, response=response, seq=seq, nth=nth)


async def show(db: Executor, response: str, session: str, text: ShownText) -> bool:
    """Writes down what is about to be shown; False if somebody has shown or recorded something else meanwhile."""
    return await db.value(SHOW, response=response, session=session, **structs.asdict(text)) is not None


async def end_at_rest(db: Executor, response: str, session: str, head: int, rest: Kind) -> Kind | None:
    """Writes down what a response ends with; whoever is first decides. None: the session has moved on."""
    encoded = msgspec.json.encode(rest).decode()
    found = await db.value(REST, response=response, session=session, head=head, rest=encoded)
    found = found or await db.value(RESTED, response=response)
    return msgspec.json.decode(found, type=type(rest)) if found else None


async def drop_shown(db: Executor, response: str) -> None:
    await db.run(DROP_DRAFTS, response=response)


async def delete(db: Executor, response: str) -> None:
    """Deletes what is kept of a response beside its journal."""
    await db.run(DELETE, response=response)


async def is_last(db: Executor, response: str, session: str) -> bool:
    """Whether all else that was said in its session belongs to deleted responses."""
    return bool(await db.value(DESERTED, session=session, response=response))


async def takes_unstored(db: Executor, session: str) -> bool:
    """Whether a response that is not to be stored may go on in this session: nothing in it is kept, or it waits."""
    return bool(await db.value(TAKES_UNSTORED, session=session))


async def unstored(db: Executor, kept: timedelta) -> list[tuple[str, str, datetime]]:
    """Sessions and owners of what was not to be kept, that did nothing for so long; since when, by Postgres."""
    return [tuple(row) for row in await db.rows(UNSTORED, kept=kept)]
