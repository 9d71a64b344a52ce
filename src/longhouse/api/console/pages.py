"""The pages and files of the console: open to everybody, since they hold nothing; what they show needs a key."""

import functools
import hashlib
import re
from collections.abc import Iterator
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import PurePosixPath
from typing import Final

import msgspec
from fastapi import APIRouter, Request, Response

from longhouse.api import wire
from longhouse.api.http import addresses
from longhouse.api.http.lazy_route import LazyRoute

PAGES: Final = (
    "/",
    "/s/{id}",
    "/inbox",
    "/sessions",
    "/sessions/{id}",
    "/catalog/agents",
    "/catalog/agents/{name}",
    "/catalog/tools",
    "/catalog/tools/{name}",
    "/documents",
    "/documents/{id}",
    "/memory",
    "/schedules",
    "/schedules/{id}",
    "/webhooks",
    "/webhooks/{id}",
    "/operations",
    "/keys",
    "/sign-in",
)
"""The addresses of screens; all answer the same page, whose script opens the screen."""

TYPES: Final = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
    ".png": "image/png",
}
"""The files that are served, by suffix."""

HEADERS: Final = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:;"
    " connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none';"
    " require-trusted-types-for 'script'",
    "x-frame-options": "DENY",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}
"""The pages act with all rights of their reader: they run their own scripts alone, and are shown in no frame."""

CHECKED: Final = "no-cache"
KEPT: Final = "public, max-age=31536000, immutable"
"""How long a browser keeps a file: the page is asked for each time; it names its files by what they all contain, so
that they are kept for ever and an upgrade mixes no files of two versions."""
STATIC: Final = "/console/{path:path}"
_OF_RELEASE: Final = re.compile(r"([0-9a-f]{16})/(.+)")

router = APIRouter(include_in_schema=False, route_class=LazyRoute)


class StaticFile(msgspec.Struct, frozen=True):
    content: bytes
    media_type: str
    etag: str


@functools.cache
def files() -> dict[str, StaticFile]:
    """All files of the console by their path. Only a path that is in this table is served, so none leads elsewhere."""
    found = {}
    for path, file in _walk(resources.files("longhouse.api.console") / "static"):
        if media_type := TYPES.get(PurePosixPath(path).suffix):
            content = file.read_bytes()
            found[path] = StaticFile(content, media_type, _etag(content))
    return found


@functools.cache
def release() -> str:
    """A name of all files together."""
    tags = sorted((path, file.etag) for path, file in files().items())
    return hashlib.sha256(repr(tags).encode()).hexdigest()[:16]


@functools.cache
def _index(root_path: str) -> StaticFile:
    """The page, with the addresses of this release's files; from those its scripts know the root path."""
    content = files()["index.html"].content.replace(b"/console/", f"{root_path}/console/{release()}/".encode())
    return StaticFile(content, TYPES[".html"], _etag(content))


def _etag(content: bytes) -> str:
    return f'"{hashlib.sha256(content).hexdigest()[:32]}"'


def _walk(folder: Traversable, prefix: str = "") -> Iterator[tuple[str, Traversable]]:
    for entry in folder.iterdir():
        path = f"{prefix}{entry.name}"
        if entry.is_dir():
            yield from _walk(entry, f"{path}/")
        else:
            yield path, entry


async def page(request: Request) -> Response:
    """The page of every screen. A client that accepts only JSON means a route of the API, and gets a 404."""
    if not _takes_html(request.headers.get("accept", "")):
        raise wire.not_found("There is no such route.")
    response = _answer(request, _index(addresses.root_of(request.scope)), CHECKED)
    response.headers["vary"] = "accept"
    return response


@router.api_route(STATIC, methods=["GET", "HEAD"])
async def static(path: str, request: Request) -> Response:
    """A file. A page of another release, during an upgrade, gets the one that is here."""
    named = _OF_RELEASE.fullmatch(path)
    file = files().get(named[2] if named else path)
    if file is None:
        raise wire.not_found("There is no such file.")
    return _answer(request, file, KEPT if named and named[1] == release() else CHECKED)


def _answer(request: Request, file: StaticFile, cache: str) -> Response:
    headers = {**HEADERS, "cache-control": cache, "etag": file.etag}
    known = [tag.strip().removeprefix("W/") for tag in request.headers.get("if-none-match", "").split(",")]
    if file.etag in known:
        return Response(status_code=304, headers=headers)
    return Response(file.content, media_type=file.media_type, headers=headers)


def _takes_html(accept: str) -> bool:
    kinds = [kind.partition(";")[0].strip().lower() for kind in accept.split(",")]
    return not accept or any(kind in ("text/html", "text/*", "*/*") for kind in kinds)


for _path in PAGES:
    router.add_api_route(_path, page, methods=["GET", "HEAD"])
