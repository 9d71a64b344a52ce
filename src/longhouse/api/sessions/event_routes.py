"""GET /v1/sessions/{id}/events: a session, or its whole tree, as it goes on."""

from typing import Final

from fastapi import APIRouter, Depends, Request, Response

from longhouse.api import auth, pagination, streaming
from longhouse.api.sessions.cursor import BEGINNING, cursor_of
from longhouse.api.sessions.routes import Sessions
from longhouse.api.sessions.sse import events_of
from longhouse.api.sessions.tree_sse import tree_events_of
from longhouse.errors import CallerError
from longhouse.store import journals

FOLLOWING: Final = pagination.described(
    pagination.parameter("after", "Continue after the event with this id", default=BEGINNING),
    pagination.parameter("Last-Event-ID", "The same; it wins over `after`", where="header"),
    pagination.parameter("until", "Close when nobody can move, or never", enum=["rest", "never"], default="rest"),
    pagination.parameter("tree", "Also what the agents beneath do", enum=["true", "false"], default="false"),
    pagination.parameter("deltas", "Also what is being written", enum=["true", "false"], default="true"),
)
YES_OR_NO: Final = ("true", "false")


def routes(sessions: Sessions) -> APIRouter:
    router = APIRouter(tags=["Sessions"], dependencies=[Depends(auth.user)])
    db, bus = sessions.db, sessions.bus

    @router.get("/v1/sessions/{session_id}/events", response_model=None, openapi_extra=FOLLOWING)
    async def get_events(caller: auth.User, session_id: str, request: Request) -> Response:
        """What happens, as server-sent events; continue with `Last-Event-ID` or `after`."""
        asked = pagination.Query(request, ("after", "until", "tree", "deltas"))
        until = asked.choice("until", ("rest", "never")) or "rest"
        tree = asked.choice("tree", YES_OR_NO) == "true"
        deltas = asked.choice("deltas", YES_OR_NO) != "false"
        row = await sessions.find(caller, session_id)
        after = request.headers.get("last-event-id") or asked.text("after") or BEGINNING
        cursor = await cursor_of(db, row.id, after) if tree else None
        seq = 0 if tree else _seq(after, row.head)
        resting = await journals.load(db, row.id, row.head) if until == "rest" else None
        if cursor:
            return streaming.EventStream(
                tree_events_of(db, bus, cursor, row.conversation_id, until_rest_of=resting, deltas=deltas)
            )
        return streaming.EventStream(events_of(db, bus, row.id, seq, until_rest_of=resting, deltas=deltas))

    return router


def _seq(after: str, head: int) -> int:
    if not (after.isascii() and after.isdecimal() and len(after) < 19 and int(after) <= head):
        raise CallerError("The event id to continue from is not one of this session.", param="after")
    return int(after)
