"""GET /v1/sessions/{id}/memory: what a session remembers now."""

from collections.abc import Iterator
from typing import Annotated, Any

from fastapi import Response
from msgspec.structs import replace

from longhouse.agents.template import Template
from longhouse.api import auth, wire
from longhouse.api.json_route import of_app, strict_router
from longhouse.api.sessions.routes import SESSION_PATH, Held, Loaded
from longhouse.journal import remembered
from longhouse.journal.session import Session
from longhouse.memory.tool_results import titles_of
from longhouse.tools.toolbox import Toolbox

router = strict_router("Sessions", auth.user)


@router.get(f"{SESSION_PATH}/memory")
async def get_memory(sessions: Held, session: Loaded, toolbox: Annotated[Toolbox, of_app("toolbox")]) -> Response:
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
            "chunks": [
                {
                    "content": chunk.content,
                    "source": chunk.source,
                    "relevance_score": chunk.relevance_score,
                    "chunk_type": chunk.chunk_type,
                    "metadata": chunk.metadata,
                }
                for chunk in chunks
            ],
            "recalled": await memory.recalled(session, turn.recalled if turn else ()),
            "interactions": await memory.interactions(session, session.memory.interactions),
        }
    )


def _outlines(session: Session) -> Iterator[dict[str, Any]]:
    for reg_id, key in session.memory.outlines.items():
        read = session.memory.reads.get(key)
        chapters = titles_of(read.content) if read else []
        yield {"reg_id": reg_id, "call_id": read.call if read else None, "chapters": chapters}
