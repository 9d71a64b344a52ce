"""Artifact routes: the files that a session's tools created, the images it was sent, the sources its tools found."""

import re
from datetime import datetime
from pathlib import PurePosixPath
from typing import Any, Final, TypedDict
from urllib.parse import quote

from fastapi import Request, Response

from longhouse.api import auth, pagination, wire
from longhouse.api.http import addresses
from longhouse.api.http.json_route import strict_router
from longhouse.api.pagination import Page
from longhouse.api.sessions.routes import SESSION_PATH, Held, Loaded
from longhouse.journal.session import Artifact, Session
from longhouse.store import files

_DIGEST: Final = re.compile("[0-9a-f]{64}")
_UNTRUSTED: Final = {
    "x-content-type-options": "nosniff",
    "content-security-policy": "sandbox; default-src 'none'",
}
"""Headers for content that anybody may have made: it runs nothing, and is never taken for another type."""


class ShownArtifact(TypedDict):
    """A file that a tool created."""

    id: str
    session_id: str
    path: str
    media_type: str
    size: int
    digest: str
    call_id: str
    created_at: datetime
    download: str


class ShownSource(TypedDict):
    """What a tool found, as it wrote it."""

    number: int | None
    url: str
    title: Any
    snippet: Any
    full_content: Any


class Download(Response):
    """A file of any type."""

    media_type = "*/*"


class Image(Response):
    media_type = "image/*"


router = strict_router("Sessions", auth.user)


@router.get(f"{SESSION_PATH}/artifacts")
async def list_artifacts(session: Loaded, request: Request) -> wire.Json[Page[ShownArtifact]]:
    """The files that the session's tools created, oldest first."""
    here = f"{addresses.root_of(request.scope)}{request.url.path}"  # an admin downloads below /admin
    return wire.Json(pagination.page([_described(session, artifact, here) for artifact in session.files]))


@router.get(f"{SESSION_PATH}/artifacts/{{artifact_id}}")
async def get_artifact(sessions: Held, session: Loaded, artifact_id: str) -> Download:
    """Downloads one file: by its id, or by the id of the call that created it (the first of several)."""
    found = next((one for one in session.files if artifact_id in (str(one.seq), one.file.call)), None)
    kept = await files.of_session(sessions.db, session.id, [found.file.digest]) if found else {}
    if found is None or found.file.digest not in kept:
        raise wire.not_found("There is no such artifact.", code="artifact_not_found")
    return Download(kept[found.file.digest][1], headers=_headers(found))


@router.get(f"{SESSION_PATH}/images/{{digest}}")
async def get_image(caller: auth.User, sessions: Held, session_id: str, digest: str) -> Image:
    """An image that was sent to the session, by the digest that its `Prompted` event names."""
    row = await sessions.find(caller, session_id)
    kept = await files.of_session(sessions.db, row.id, [digest] if _DIGEST.fullmatch(digest) else [])
    media_type, content = kept.get(digest, ("", b""))
    if not files.safe_media_type(media_type).startswith("image/"):
        raise wire.not_found("There is no such image.", code="image_not_found")
    headers = {"content-type": media_type, "content-disposition": "inline"}
    return Image(content, headers=_UNTRUSTED | headers)


@router.get(f"{SESSION_PATH}/sources")
async def list_sources(session: Loaded) -> wire.Json[Page[ShownSource]]:
    """The sources that the session's tools found, in the order of their numbers."""
    sources = [_source(url, source) for url, source in session.context.get("sources", {}).items()]
    in_order = sorted(sources, key=lambda source: (source["number"] is None, source["number"] or 0))
    return wire.Json(pagination.page(in_order))


def _described(session: Session, artifact: Artifact, here: str) -> ShownArtifact:
    return wire.body_of(
        ShownArtifact,
        artifact.file,
        id=str(artifact.seq),
        session_id=session.id,
        call_id=artifact.file.call,
        created_at=artifact.at,
        download=f"{here}/{artifact.seq}",
    )


def _headers(artifact: Artifact) -> dict[str, str]:
    """Headers that make a browser save the file and never open it: untrusted input may have set its type, name and
    content."""
    name = PurePosixPath(artifact.file.path).name or "artifact"
    plain = re.sub(r"[^A-Za-z0-9._-]", "_", name)
    media_type = files.safe_media_type(artifact.file.media_type)
    return {
        **_UNTRUSTED,
        "content-type": f"{media_type}; charset=utf-8" if media_type.startswith("text/") else media_type,
        "content-disposition": f"attachment; filename=\"{plain}\"; filename*=UTF-8''{quote(name, safe='')}",
    }


def _source(url: str, source: Any) -> ShownSource:
    """A source in our format, whichever tool wrote it."""
    found: dict[str, Any] = source if isinstance(source, dict) else {}
    number = found.get("number")
    return {
        "number": number if isinstance(number, int) else None,
        "url": url,
        "title": found.get("title", ""),
        "snippet": found.get("snippet", ""),
        "full_content": found.get("full_content", ""),
    }
