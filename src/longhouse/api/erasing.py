"""Routes that erase more than a session: a conversation, a user; for an admin, an owner and what is an owner's."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, Any, Final, TypedDict

from fastapi import Path, Query
from pydantic import Field

from longhouse.api import auth, pagination, wire
from longhouse.api.admin import docs
from longhouse.api.caller import Caller
from longhouse.api.http.json_route import Answers, of_app, refuses, strict_router
from longhouse.errors import CallerError
from longhouse.runtime.cleanup.eraser import Eraser
from longhouse.store.erasing.erasure_plan import ErasurePlan
from longhouse.store.erasing.erasures import Target

WITHIN: Final = 20.0
"""Seconds after which the answer is 202, and a worker process goes on."""
LONGEST_NAME: Final = 512
COUNTS: Final = {"sessions": 3, "events": 120, "files": 1, "interactions": 14, "passages": 17, "memory_files": 2}
KEPT: Final[dict[str, Any]] = {"sessions": [], "memory_files": []}
EXAMPLE: Final[dict[str, Any]] = {
    "id": "ann", "object": "user.deleted", "deleted": True, "dry_run": False, "counts": COUNTS, "kept": KEPT,
}  # fmt: skip
ANSWERS: Final[Answers] = {
    200: wire.answer("What was erased; with `dry_run`, what would be.", EXAMPLE),
    202: wire.answer("It takes longer and goes on in the background.", {**EXAMPLE, "deleted": False}),
    404: docs.error("There is nothing of it.", "There is no such user.", code="user_not_found"),
}


class RetainedData(TypedDict):
    """What stays, since somebody else needs it."""

    sessions: Sequence[str]
    memory_files: Sequence[str]


class Erased(TypedDict):
    id: str
    object: str
    deleted: bool
    dry_run: bool
    counts: dict[str, int]
    kept: RetainedData


class ErasingQuery(wire.StrictModel):
    dry_run: pagination.YesOrNo = Field("false", description="Whether to count only, and erase nothing")


AskedQuery = Annotated[ErasingQuery, Query()]
Held = Annotated[Eraser, of_app("eraser")]
ConversationId = Annotated[wire.Id, Path(description="The conversation")]
Owner = Annotated[wire.Id, Path(description="The owner")]

router = strict_router("Erasing", auth.user)
admin_router = strict_router("Admin", auth.admin)


@router.delete("/v1/conversations/{conversation_id}", responses=ANSWERS)
async def erase_conversation(
    caller: auth.User, eraser: Held, conversation_id: ConversationId, asked: AskedQuery
) -> wire.Json[Erased]:
    """Erases a conversation: all its sessions, what was added to it, the memory that belongs to it alone."""
    return await _erase(caller, eraser, Target("conversation", caller.owner, conversation_id), asked)


@router.delete("/v1/users/{user:path}", responses=ANSWERS)
async def erase_user(caller: auth.User, eraser: Held, user: str, asked: AskedQuery) -> wire.Json[Erased]:
    """Erases a user of yours: all sessions that were opened for it, with their sub-agents, and its memory."""
    return await _erase(caller, eraser, Target("user", caller.owner, _name(user)), asked)


@admin_router.delete("/admin/owners/{owner}", responses={**ANSWERS, **refuses(409)})
async def erase_owner(caller: auth.Admin, eraser: Held, owner: Owner, asked: AskedQuery) -> wire.Json[Erased]:
    """Erases an owner: its keys at once, then its sessions, users, memory, documents, tools and templates."""
    # The key of the settings stays, whoever it acts for.
    if asked.dry_run == "false" and caller.owner == owner and caller.key_digest:
        raise CallerError(
            "Your key acts for this owner and would go with it: erase it with a key of another owner, or with"
            " `longhouse erase owner`.",
            status=409,
            code="own_owner",
        )
    return await _erase(caller, eraser, Target("owner", owner), asked)


@admin_router.delete("/admin/owners/{owner}/conversations/{conversation_id}", responses=ANSWERS)
async def erase_conversation_of(
    caller: auth.Admin, eraser: Held, owner: Owner, conversation_id: ConversationId, asked: AskedQuery
) -> wire.Json[Erased]:
    """Erases a conversation of any owner."""
    return await _erase(caller, eraser, Target("conversation", owner, conversation_id), asked)


@admin_router.delete("/admin/owners/{owner}/users/{user:path}", responses=ANSWERS)
async def erase_user_of(
    caller: auth.Admin, eraser: Held, owner: Owner, user: str, asked: AskedQuery
) -> wire.Json[Erased]:
    """Erases a user of any owner."""
    return await _erase(caller, eraser, Target("user", owner, _name(user)), asked)


async def _erase(caller: Caller, eraser: Eraser, target: Target, asked: ErasingQuery) -> wire.Json[Erased]:
    await _check_templates(caller, eraser, target)
    plan = await eraser.plan(target)
    if not await eraser.is_there(target, plan):
        raise wire.not_found(f"There is no such {target.kind}.", code=f"{target.kind}_not_found")
    if asked.dry_run == "true":
        return wire.Json(_answer(target, plan, plan.counts, deleted=False, dry_run=True))
    erased = await eraser.erase(target, within=WITHIN)
    body = _answer(target, plan, erased.counts, deleted=erased.is_finished)
    return wire.Json(body, status_code=200 if erased.is_finished else 202)


def _answer(
    target: Target, plan: ErasurePlan, counts: dict[str, int], *, deleted: bool, dry_run: bool = False
) -> Erased:
    return {
        "id": target.name or target.owner,
        "object": f"{target.kind}.deleted",
        "deleted": deleted,
        "dry_run": dry_run,
        "counts": dict(counts),
        "kept": {"sessions": plan.kept_sessions, "memory_files": plan.kept_files},
    }


async def _check_templates(caller: Caller, eraser: Eraser, target: Target) -> None:
    """Raises if agents that the key may not use would lose memory: any agent may remember a user."""
    if target.kind == "conversation":
        await replace(caller, owner=target.owner).uses_all_of(eraser.inbox.db, target.name)
    else:
        caller.uses_all()


def _name(user: str) -> str:
    if not user.strip() or len(user) > LONGEST_NAME or "\x00" in user:
        raise CallerError("Name a user, as requests name it in `user`.", param="user")
    return user
