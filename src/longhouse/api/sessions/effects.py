"""GET /v1/sessions/{id}/effects: the calls of a session that may have changed the world, and what became of each."""

from typing import Annotated, Final

from fastapi import Query
from pydantic import Field

from longhouse.api import auth, pagination, wire
from longhouse.api.http.json_route import strict_router
from longhouse.api.pagination import Omittable
from longhouse.api.sessions.routes import SESSION_PATH, Held
from longhouse.api.sessions.timeline import Number
from longhouse.journal.effects import ShownEffect, effects_of
from longhouse.store import journals

EXAMPLE: Final = {
    "call_id": "1-action-0",
    "tool": "pay",
    "version": 1,
    "effect": "once",
    "key": "clerk_1f0c:1-action-0",
    "arguments": '{"amount": 12}',
    "state": "unknown",
    "doubt": "its worker was lost while it ran",
    "workers_lost": 1,
    "fault": None,
    "by": None,
    "intended_at": "2026-01-31T12:00:00Z",
    "deadline": "2026-01-31T12:01:00Z",
    "settled_at": None,
}

router = strict_router("Sessions", auth.user)


class Effects(pagination.Limited):
    before: Omittable[Number] = Field(None, description="Only calls before this event: the `next` of the page before")


@router.get(f"{SESSION_PATH}/effects", responses={200: wire.answer("One page.", pagination.page([EXAMPLE]))})
async def list_effects(
    caller: auth.User, sessions: Held, session_id: str, asked: Annotated[Effects, Query()]
) -> wire.Json[pagination.Page[ShownEffect]]:
    """The last calls of tools whose effect is `idempotent` or `once`, in order, each with its idempotency key and its
    state: `intended`, `done`, `failed`, `not_begun`, `unknown`. One that is unknown and still open is settled by
    `POST …/approval`."""
    row = await sessions.find(caller, session_id)
    seqs = await journals.effect_seqs(sessions.db, row.id, before=asked.before, limit=asked.fetched)
    shown, following = seqs[: asked.limit], str(seqs[asked.limit - 1]) if len(seqs) > asked.limit else None
    records = await journals.read(sessions.db, row.id, after=shown[-1] - 1) if shown else []
    return wire.Json(pagination.page(effects_of(row.id, records, before=asked.before), following))
