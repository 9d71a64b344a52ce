"""Forks a session: a branch that begins with its events up to one of them, and goes on by itself."""

from functools import partial
from typing import TypedDict

from pydantic import Field

from longhouse.api import auth, repeating, wire
from longhouse.api.http.json_route import refuses, strict_router
from longhouse.api.repeating import IdempotencyKey
from longhouse.api.sessions.routes import SESSION_PATH, ForkedFrom, Held, forked_from, no_such_session
from longhouse.errors import CallerError
from longhouse.journal.session import State
from longhouse.store import forks
from longhouse.store.database import Database
from longhouse.store.forks import Branch, Fork, NoSuchEvent
from longhouse.store.requests import RequestIdentity

router = strict_router("Sessions", auth.user)


class ForkRequest(wire.StrictModel):
    after: int = Field(ge=1, description="The last event that the branch has of the session")


class BranchedSession(TypedDict):
    session_id: str
    template: str
    label: str
    forked_from: ForkedFrom
    state: State
    head: int


class ForkedSession(BranchedSession):
    conversation_id: str
    agents: list[BranchedSession]
    """The agents that it had called by then."""
    files_left_out: list[str]
    """Memory files of the conversation that were changed since: what they said then is not kept."""


@router.post(
    f"{SESSION_PATH}/fork", status_code=201, openapi_extra=wire.example(after=2), responses=refuses(409, 422, 429)
)
async def fork(
    caller: auth.User, sessions: Held, session_id: str, asked: ForkRequest, idempotency_key: IdempotencyKey = None
) -> wire.Json[ForkedSession]:
    """Opens a branch of the session in a conversation of its own: with the events up to and including `after`, and with
    the agents that it had called by then, as they were. Both go on, and neither sees the other."""
    row = await sessions.find(caller, session_id)
    caller.uses(row.agent)
    accepted = repeating.accepted(caller, idempotency_key, "fork", row.id, str(asked.after))
    before = partial(_forked_before, sessions.db, accepted)
    if forked := await before():
        return _shown(forked)
    if asked.after > row.head:
        raise _no_such_event(row.head)
    caller.spends()

    def allowed(branch: Branch) -> None:
        if branch.due:
            caller.uses(branch.session.agent)

    await caller.opens_session()
    write = partial(
        sessions.inbox.fork, row.id, caller.owner, asked.after, key=caller.key or None, allowed=allowed,
        accepted=accepted,
    )  # fmt: skip
    try:
        forked = await repeating.made_once(sessions.db, before, write)
    except NoSuchEvent as error:
        raise _no_such_event(error.head) from None
    if forked is None:
        raise no_such_session()
    return _shown(forked)


async def _forked_before(db: Database, accepted: RequestIdentity | None) -> Fork | None:
    """The fork that the same request has made before, as it is now."""
    before = await repeating.accepted_before(db, accepted)
    return await forks.made_by(db, before.session_id, accepted.owner) if accepted and before else None


def _shown(forked: Fork) -> wire.Json[ForkedSession]:
    shown: ForkedSession = {
        **_branched(forked.top),
        "conversation_id": forked.top.session.conversation,
        "agents": [_branched(one) for one in forked.below],
        "files_left_out": list(forked.left_out),
    }
    return wire.Json(shown, status_code=201)


def _branched(branch: Branch) -> BranchedSession:
    session, origin = branch.session, forked_from(branch.origin)
    return wire.body_of(BranchedSession, session, session_id=session.id, template=session.agent, forked_from=origin)


def _no_such_event(head: int) -> CallerError:
    return CallerError(f"after should be an event of the session: 1 to {head}.", param="after")
