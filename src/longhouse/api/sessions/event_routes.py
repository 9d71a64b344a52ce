"""GET /v1/sessions/{id}/events: the events of a session, or of its whole tree, as a live stream."""

from typing import Annotated, Literal

from fastapi import Header, Query, Response
from pydantic import Field

from longhouse.api import auth, streaming, wire
from longhouse.api.json_route import strict_router
from longhouse.api.pagination import Omittable, YesOrNo
from longhouse.api.sessions.cursor import BEGINNING, cursor_of
from longhouse.api.sessions.routes import Held
from longhouse.api.sessions.sse import events_of
from longhouse.api.sessions.tree_reader import TreeReader
from longhouse.store import journals

router = strict_router("Sessions", auth.user)


class Following(wire.Strict):
    after: str = Field(BEGINNING, description="Continue after the event with this id")
    until: Literal["rest", "never"] = Field("rest", description="Close when nobody can move, or never")
    tree: YesOrNo = Field("false", description="Also what the agents beneath do")
    deltas: YesOrNo = Field("true", description="Also what is being written")


LastEventId = Annotated[Omittable[str], Header(alias="Last-Event-ID", description="The same; it wins over `after`")]


@router.get("/v1/sessions/{session_id}/events")
async def get_events(
    caller: auth.User,
    sessions: Held,
    session_id: str,
    asked: Annotated[Following, Query()],
    last_event_id: LastEventId = None,
) -> Response:
    """The session's events as server-sent events; resume with `Last-Event-ID` or `after`."""
    db, deltas, is_tree = sessions.db, asked.deltas == "true", asked.tree == "true"
    row = await sessions.find(caller, session_id)
    cursor = await cursor_of(db, row, last_event_id or asked.after or BEGINNING, is_tree=is_tree)
    reader = TreeReader.of_session(db, row.id, row.conversation_id, cursor.seen_heads) if is_tree else None
    resting = await journals.load(db, row.id, row.head) if asked.until == "rest" else None
    return streaming.EventStream(events_of(db, sessions.bus, cursor, reader, until_rest_of=resting, deltas=deltas))
