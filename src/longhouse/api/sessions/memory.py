"""GET /v1/sessions/{id}/memory: what a session remembers now."""

from collections.abc import Iterator, Sequence
from typing import Annotated, Any, Literal, TypedDict

from msgspec.structs import replace

from longhouse.agents.template import Template
from longhouse.api import auth, wire
from longhouse.api.http.json_route import of_app, strict_router
from longhouse.api.sessions.routes import SESSION_PATH, Held, Loaded
from longhouse.journal import remembered
from longhouse.journal.session import Session
from longhouse.memory.tool_results import titles_of
from longhouse.memory.working import ContentChunk
from longhouse.tools.toolbox import Toolbox

router = strict_router("Sessions", auth.user)


class KnownOutline(TypedDict):
    reg_id: str
    call_id: str | None
    chapters: list[str]


class ShownMemory(TypedDict):
    """What a session remembers."""

    object: Literal["session.memory"]
    session_id: str
    enabled: bool
    current_query: str
    outlines: list[KnownOutline]
    known_chapters: list[str]
    chunks: list[ContentChunk]
    recalled: Sequence[dict[str, Any]]
    interactions: Sequence[dict[str, Any]]


@router.get(f"{SESSION_PATH}/memory")
async def get_memory(
    sessions: Held, session: Loaded, toolbox: Annotated[Toolbox, of_app("toolbox")]
) -> wire.Json[ShownMemory]:
    """What the session remembers: outlines, chunks by relevance, recalled items, interactions from outside."""
    memory = sessions.memory
    session = replace(session, memory=remembered.without(session.memory, await toolbox.outdated(session)))
    version = session.turn.version if session.turn else session.version
    found = await sessions.catalog.templates.find(session.agent, version)
    template = found or Template(name=session.agent)
    is_on, turn = memory.is_on(template), session.turn
    working = memory.working(session.memory, template)
    chunks = working.relevant_chunks if is_on else []
    return wire.Json(
        {
            "object": "session.memory",
            "session_id": session.id,
            "enabled": is_on,
            "current_query": working.current_query,
            "outlines": list(_outlines(session)) if is_on else [],
            "known_chapters": working.known_chapters if is_on else [],
            "chunks": chunks,
            "recalled": await memory.recalled(session, turn.recalled if turn else ()),
            "interactions": await memory.interactions(session, session.memory.interactions),
        }
    )


def _outlines(session: Session) -> Iterator[KnownOutline]:
    for reg_id, key in session.memory.outlines.items():
        read = session.memory.reads.get(key)
        chapters = titles_of(read.content) if read else []
        yield {"reg_id": reg_id, "call_id": read.call if read else None, "chapters": chapters}
