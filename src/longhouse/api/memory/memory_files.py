"""Routes of memory files: what agents have kept for later can be seen, corrected and deleted."""

import uuid
from datetime import datetime
from typing import Annotated, Final, Literal, TypedDict

from fastapi import Query
from pydantic import Field

from longhouse.agents.template import MemoryScope
from longhouse.api import auth, pagination, wire
from longhouse.api.caller import Caller
from longhouse.api.http.json_route import of_app, refuses, strict_router
from longhouse.api.pagination import Omittable, Page
from longhouse.errors import CallerError
from longhouse.journal.messages import clean
from longhouse.store.database import Database
from longhouse.store.memory import memory_scopes
from longhouse.store.memory.memory_files import Memories, ScopedEntry, Verdict
from longhouse.store.memory.memory_scopes import Scope
from longhouse.tools.builtin.memory_files import REASONS
from longhouse.tools.builtin.memory_paths import MemoryRefused, normalised

FILES_PATH: Final = "/v1/memory/files"
API_WRITER: Final = "api"
"""Stands for the session in `written_by` of a file that was written over HTTP."""
STATUSES: Final[dict[Verdict, int]] = {
    "missing": 404,
    "not_empty": 409,
    "too_many": 409,
    "file_full": 413,
    "scope_full": 413,
}
CODES: Final[dict[Verdict, str]] = {"missing": "file_not_found"}
EXAMPLE: Final = {"content": "Ann prefers short answers."}


class Writer(TypedDict, total=False):
    """Who wrote a file last: a call of a session, or a key over HTTP."""

    key: str
    session_id: str
    agent: str | None
    call: str


class MemoryFile(TypedDict):
    object: Literal["memory.file"]
    path: str
    is_directory: bool
    size: int
    updated_at: datetime
    written_by: Writer
    scope: MemoryScope | None
    agent: str | None
    user: str | None
    conversation_id: str | None


class WholeMemoryFile(MemoryFile):
    content: str


class ReplacedFile(TypedDict):
    updated_at: datetime
    written_by: Writer


class WrittenMemoryFile(MemoryFile):
    replaced: ReplacedFile | None


class DeletedMemoryFile(TypedDict):
    path: str
    object: Literal["memory.file.deleted"]
    deleted: bool


class ScopeQuery(wire.StrictModel):
    """Whose files: what the query names of a scope."""

    scope: Omittable[MemoryScope] = Field(None, description="The kind of the files' scope")
    agent: Omittable[Annotated[str, Field(max_length=128)]] = Field(None, description="Of this agent")
    conversation_id: Omittable[wire.Id] = Field(None, description="Of this conversation")
    user: Omittable[Annotated[str, Field(max_length=1_000)]] = Field(None, description="Of this user")

    @property
    def kind(self) -> MemoryScope:
        return self.scope or ("agent" if self.agent else "conversation" if self.conversation_id else "owner")

    def scope_of(self, caller: Caller) -> Scope:
        """The one scope that is named, as a session with these names would use it."""
        kind, user = self.kind, caller.user(self.user)
        self.check(kind, user)
        if kind == "agent" and not self.agent:
            raise CallerError("Name the agent whose files are meant.", param="agent")
        if kind == "conversation" and not self.conversation_id:
            raise CallerError("Name the conversation whose files are meant.", param="conversation_id")
        return memory_scopes.scope_for(kind, caller.owner, user, self.agent or "", self.conversation_id or "")

    async def changed(self, caller: Caller, db: Database) -> Scope:
        """The scope, in which something is about to change: the key must be allowed to use all whose memory it is."""
        scope = self.scope_of(caller)
        match self.kind:
            case "agent":
                caller.uses(self.agent or "")
            case "conversation":
                await caller.uses_all_of(db, self.conversation_id or "", begun=True)
            case "owner":
                caller.uses_all()
        return scope

    def check(self, kind: MemoryScope | None, user: str | None) -> None:
        if kind in ("agent", "conversation") and not (user and user.strip()) and not self.conversation_id:
            raise CallerError(
                "Name a user, or the conversation_id: many people may share this key, so without a user the files"
                " belong to one conversation.",
                param="user",
            )


class FileListQuery(pagination.Paged, ScopeQuery):
    """The query of the list of files."""

    directories: pagination.YesOrNo = Field("false", description="Whether directories are listed too")


class Content(wire.StrictModel):
    content: str


Held = Annotated[Memories, of_app("memories")]
Named = Annotated[ScopeQuery, Query()]

router = strict_router("Memory", auth.user)


@router.get(FILES_PATH)
async def list_files(
    caller: auth.User, memories: Held, asked: Annotated[FileListQuery, Query()]
) -> wire.Json[Page[MemoryFile]]:
    """The memory files of a user, the last written first: of all scopes, or of those that are named."""
    user = caller.user(asked.user)
    asked.check(asked.scope or ("agent" if asked.agent else None), user)
    named = memory_scopes.reachable(caller.owner, user, agent=asked.agent, conversation=asked.conversation_id)
    found = await memories.newest(
        caller.owner,
        [pattern for kind, pattern in named if _is_asked(asked, kind, user)],
        before=asked.before,
        limit=asked.fetched,
        directories=asked.directories == "true",
    )
    rows, following = asked.cut(found, pagination.by("updated_at"))
    return wire.Json(pagination.page([_described(row) for row in rows], following))


@router.get(f"{FILES_PATH}/{{path:path}}")
async def get_file(caller: auth.User, memories: Held, path: str, place: Named) -> wire.Json[WholeMemoryFile]:
    """One memory file with its content, and who wrote it last."""
    scope, path = place.scope_of(caller), _path(path)
    entry, found = await memories.entry(scope, path), await memories.read(scope, path)
    if entry is None or found is None:
        raise _refused("missing", path)
    if found.content is None:
        raise _refused("is_directory", path)
    return wire.Json({**_described(entry), "content": found.content})


@router.put(
    f"{FILES_PATH}/{{path:path}}",
    openapi_extra=wire.example(**EXAMPLE),
    responses={201: wire.answer("A new file."), **refuses(409, 413)},
)
async def put_file(
    caller: auth.User, memories: Held, path: str, place: Named, body: Content
) -> wire.Json[WrittenMemoryFile]:
    """Writes the whole of a memory file; the last write wins, and the answer says whose file it replaced."""
    scope, path = await place.changed(caller, memories.db), _path(path)
    before = await memories.entry(scope, path)
    verdict = await memories.replace(scope, path, clean(body.content), key=_key_of(caller))
    if verdict not in ("done", "repeated"):
        raise _refused(verdict, path)
    after = await memories.entry(scope, path)
    if after is None:
        raise _refused("missing", path)  # it was deleted at once
    replaced: ReplacedFile | None = None
    if before:
        replaced = {"updated_at": before.updated_at, "written_by": writer(before.written_by)}
    return wire.Json({**_described(after), "replaced": replaced}, status_code=200 if before else 201)


@router.delete(f"{FILES_PATH}/{{path:path}}", responses=refuses(409, 413))
async def delete_file(caller: auth.User, memories: Held, path: str, place: Named) -> wire.Json[DeletedMemoryFile]:
    """Deletes a memory file, or an empty directory: its content is in no recall any more."""
    scope, path = await place.changed(caller, memories.db), _path(path)
    verdict = await memories.delete(scope, path, key=_key_of(caller))
    if verdict not in ("done", "repeated"):
        raise _refused(verdict, path)
    return wire.Json({"path": path, "object": "memory.file.deleted", "deleted": True})


def writer(written_by: str) -> Writer:
    """Who wrote a file last: a call of a session, or a key over HTTP."""
    session_id, _, call = written_by.partition(":")
    if session_id == API_WRITER:
        return {"key": call.partition(":")[0]}
    return {"session_id": session_id, "agent": session_id.rpartition("_")[0] or None, "call": call}


def _key_of(caller: Caller) -> str:
    """An idempotency key: the statement may be sent twice if the connection is lost."""
    return f"{API_WRITER}:{caller.publisher}:{uuid.uuid4().hex}"


def _is_asked(asked: FileListQuery, kind: MemoryScope, user: str | None) -> bool:
    """Whether this kind of scope is listed: the one that is named, or those that the other names are about."""
    if asked.scope:
        return kind == asked.scope
    if kind == "owner":
        return not asked.agent and not asked.conversation_id
    if kind == "agent":
        return bool(asked.agent or not asked.conversation_id or not user)
    return bool(asked.conversation_id or not asked.agent)


def _path(path: str) -> str:
    try:
        found = normalised(path)
    except MemoryRefused as error:
        raise CallerError(f"The path is refused: {error}.", param="path") from None
    if not found:
        raise CallerError("Name a file, such as people/ann.md.", param="path")
    return found


def _refused(verdict: Verdict, path: str) -> CallerError:
    reason = REASONS[verdict]
    words = f"{reason[:1].upper()}{reason[1:]}.".format(path=path)  # a path at the beginning stays as it is
    return CallerError(words, status=STATUSES.get(verdict, 400), code=CODES.get(verdict), param="path")


def _described(entry: ScopedEntry) -> MemoryFile:
    names = memory_scopes.names_of(entry.scope)
    return wire.body_of(
        MemoryFile,
        entry,
        object="memory.file",
        written_by=writer(entry.written_by),
        scope=names.scope if names else None,
        agent=names.agent if names else None,
        user=names.user if names else None,
        conversation_id=names.conversation if names else None,
    )
