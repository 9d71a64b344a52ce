"""Makes capsules: a session with all that its requests were made with, in one file; and replays what is in one."""

import asyncio
import hashlib
import tempfile
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final

import msgspec

from longhouse import clock
from longhouse.agents.strategies.base import AgentRegistry
from longhouse.agents.strategies.protocol import Request
from longhouse.agents.template import Template
from longhouse.agents.tool import Tool
from longhouse.agents.tool_descriptor import RuntimeBinding
from longhouse.api import auth, wire
from longhouse.api.http.json_route import refuses, strict_router
from longhouse.api.sessions.replay import BeforeReply, composed, offered_then, request_at, steps_from
from longhouse.api.sessions.routes import SESSION_PATH, Held, Sessions
from longhouse.api.sessions.timeline import LineStream
from longhouse.errors import CallerError
from longhouse.journal.fold import FOLD_VERSION, blank
from longhouse.store import journals
from longhouse.store.backups import archive
from longhouse.store.backups.archive import ArchiveWriter
from longhouse.store.capsules import exporting, format, imported
from longhouse.store.capsules.format import CapsuleManifest, Replayed, SessionLine, TextLine, VersionLine, line
from longhouse.store.catalog.catalog import Catalog
from longhouse.store.database import Database

HIDDEN: Final = "hidden"
"""Stands for the address of a remote tool."""

router = strict_router("Sessions", auth.user)


class CapsuleStream(LineStream):
    """The file, as it is read; a browser saves it."""

    media_type = "application/zip"


@router.get(f"{SESSION_PATH}/capsule", responses=refuses(409))
async def get_capsule(caller: auth.User, sessions: Held, session_id: str) -> CapsuleStream:
    """The session and all agents that it called in one file, with the versions of templates and tools, the files and
    the memory that their requests were made with. `longhouse sessions import` opens it elsewhere, read-only."""
    row = await sessions.find(caller, session_id)
    with tempfile.TemporaryDirectory(prefix="longhouse-capsule-") as folder:
        path = Path(folder) / "capsule"
        # It is sent as it is written; whoever opens it checks it.
        if await make(sessions, path, row.id, verify=lambda made: None) is None:
            raise wire.not_found("There is no such session.", code="session_not_found")
        file = path.open("rb")  # it outlives its folder, and ends with the stream

    async def pieces() -> AsyncGenerator[bytes, None]:
        with file:
            while piece := await asyncio.to_thread(file.read, archive.PIECE):
                yield piece

    return CapsuleStream(pieces(), f"{row.id}.capsule")


async def make(
    sessions: Sessions, target: Path, session_id: str, *, verify: Callable[[Path], Any] = format.verify
) -> CapsuleManifest | None:
    """Writes the capsule of a session to a new file; None if there is no such session."""
    if await imported.capsule_of(sessions.db, session_id):
        raise CallerError(
            "This session was imported from a capsule: pass that file on.", status=409, code="session_read_only"
        )
    found = await exporting.tree_of(sessions.db, session_id)
    if not found:
        return None
    with archive.writing(target, verify) as writer:
        media_types = await exporting.write_tree(sessions.db, writer, found)
        parts = _RequestInputs(sessions)
        replays = tuple([await _replayed(sessions.db, session, parts.request) for session in found])
        await parts.write(writer)
        manifest = CapsuleManifest(
            made_at=clock.now(), session=session_id, sessions=replays, files=media_types, parts=writer.parts
        )
        writer.finish(manifest)
    return manifest


class _RequestInputs:
    """What the requests of sessions were made with."""

    def __init__(self, sessions: Sessions) -> None:
        self._sessions = sessions
        self._templates: dict[tuple[str, int], Template | None] = {}
        self._tools: dict[tuple[str, int], Tool | None] = {}
        self._texts: list[TextLine] = []

    async def request(self, row: SessionLine, asked: BeforeReply) -> Request | None:
        """Composes the request before a reply of a session, and keeps what that took."""
        ref = (row.agent, asked.turn.version)
        if ref not in self._templates:
            self._templates[ref] = await self._sessions.catalog.templates.find(*ref)
        offered = await offered_then(asked, self._described)
        template = self._templates[ref]
        if template is None or AgentRegistry.get(template.base_agent_class) is None:
            return None
        request, text = await composed(self._sessions.memory, asked, template, offered)
        if text:
            self._texts.append(TextLine(session_id=row.id, seq=asked.seq, text=text))
        return request

    async def _described(self, name: str, version: int) -> Tool | None:
        if (name, version) not in self._tools:
            self._tools[name, version] = await described(self._sessions.catalog, name, version)
        return self._tools[name, version]

    async def write(self, writer: ArchiveWriter) -> None:
        catalog = self._sessions.catalog
        lines = [
            _version("template", *ref, catalog.templates.encoded(_without_place(one)))
            for ref, one in self._templates.items()
            if one
        ]
        for ref in self._tools:
            if tool := await catalog.tools.find(*ref):
                bound = replace(tool, runtime_binding=_elsewhere(tool.runtime_binding))
                lines.append(_version("tool", *ref, catalog.tools.encoded(bound)))
        writer.put("catalog.jsonl", b"".join(map(line, lines)))
        writer.put("remembered.jsonl", b"".join(map(line, self._texts)))


def _without_place(template: Template) -> Template:
    """Without the address of its model, which no request has in it."""
    return replace(template, llm_policy=replace(template.llm_policy, base_url=None, api_key_ref=None, proxy=None))


def _elsewhere(binding: RuntimeBinding) -> RuntimeBinding:
    """Without the address of a remote tool: it may be a secret, and whoever may talk to an agent gets the capsule."""
    return replace(binding, remote_endpoint=HIDDEN, api_key_ref=None) if binding.remote_endpoint else binding


def _version(kind: Any, name: str, version: int, descriptor: str) -> VersionLine:
    return VersionLine(kind=kind, name=name, version=version, descriptor=msgspec.Raw(descriptor.encode()))


async def described(catalog: Catalog, name: str, version: int) -> Tool | None:
    """A tool by its description alone: enough for a request, and not for a call."""
    found = await catalog.tools.find(name, version)
    return found.tool if found else None


async def _replayed(
    db: Database, row: SessionLine, compose: Callable[[SessionLine, BeforeReply], Awaitable[Request | None]]
) -> Replayed:
    """Composes every request of a session up to its head, and folds its journal."""
    requests = same = 0
    async with aclosing(steps_from(db, row.id, 1)) as steps:
        async for step in steps:
            if step.record.seq > row.head:
                break
            request = await compose(row, step.asked)
            requests += 1
            same += request is not None and request.digest == step.asked.replied.digest
            await asyncio.sleep(0)  # composing the request of a long session takes milliseconds
    session = await journals.load_up_to(db, blank(row.id), row.head)
    digest = hashlib.sha256(msgspec.json.encode(session)).hexdigest()
    return Replayed(id=row.id, state=session.state, head=row.head, fold=digest, requests=requests, same=same)


async def replay(sessions: Sessions, session_id: str) -> list[tuple[Replayed, Replayed | None]]:
    """Folds the journals of a session and of all that it called, and composes their requests again.

    Beside each is the result from its capsule; None for a session that was not imported, and for a capsule of a
    release that folds in another way.
    """
    db, found = sessions.db, await exporting.tree_of(sessions.db, session_id)
    capsule = await imported.capsule_of(db, session_id)
    manifest = await imported.manifest_of(db, capsule) if capsule else None
    is_known = manifest is not None and manifest.fold_version == FOLD_VERSION
    then = {one.id: one for one in manifest.sessions} if manifest and is_known else {}

    async def compose(row: SessionLine, asked: BeforeReply) -> Request | None:
        return await request_at(sessions, partial(described, sessions.catalog), row.agent, asked)

    return [(await _replayed(db, row, compose), then.get(row.id)) for row in found]
