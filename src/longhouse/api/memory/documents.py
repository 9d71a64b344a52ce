"""Document routes: upload, list, show with the table of contents, read pages, delete."""

import re
import tempfile
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import datetime
from typing import IO, Annotated, Any, Final, Literal, TypedDict
from urllib.parse import unquote

import msgspec
import structlog
from fastapi import Query, Request
from pydantic import Field
from starlette.datastructures import UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser

from longhouse.api import auth, pagination, wire
from longhouse.api.caller import Caller
from longhouse.api.http.json_route import UploadRoute, of_app, refuses, strict_router
from longhouse.api.pagination import Omittable, Page, YesOrNo
from longhouse.errors import CallerError
from longhouse.memory.documents import outline
from longhouse.memory.documents.library import DEEPEST, DocumentLibrary, ReadPages, is_reg_id
from longhouse.memory.documents.outline import OutlineEntry
from longhouse.memory.documents.parsed import DocumentError
from longhouse.store.memory import documents
from longhouse.store.memory.documents import Document, DocumentVersion, UnknownDocument

log = structlog.get_logger()

AROUND: Final = 64 * 1024
"""Bytes of a multipart body besides the file."""
BLOCK: Final = 1024 * 1024
_QUOTED: Final = re.compile(rb'"(?:[^"\\]|\\.)*"')
_EXTENDED: Final = re.compile(rb";\s*filename\*\s*=\s*utf-8'[^';]*'([\w!#$&+.^`|~%-]+)", re.IGNORECASE)

UPLOAD: Final = {
    "requestBody": {
        "required": True,
        "content": {
            "multipart/form-data": {
                "schema": {
                    "type": "object",
                    "properties": {
                        "file": {"type": "string", "format": "binary"},
                        "reg_id": {
                            "type": "string",
                            "description": "Its name here; by default made of the file's name",
                        },
                    },
                    "required": ["file"],
                }
            },
            "application/octet-stream": {"schema": {"type": "string", "format": "binary"}},
        },
    }
}


class ShownDocument(TypedDict):
    object: Literal["document"]
    reg_id: str
    title: str
    shared: bool
    version: int
    filename: str
    format: str
    size: int
    digest: str
    pages: int
    chunks: int
    added_by: str
    created_at: datetime
    changed_at: datetime


class AddedDocument(ShownDocument):
    change: str


class WholeDocument(ShownDocument):
    toc: list[OutlineEntry]
    versions: Sequence[DocumentVersion]


class DeletedDocument(TypedDict):
    reg_id: str
    object: Literal["document.deleted"]
    deleted: bool


class DocumentOwner(wire.StrictModel):
    shared: YesOrNo = Field("false", description="The document that all owners see; needs an admin key")

    def owner(self, caller: Caller) -> str | None:
        """Whose document is meant; None: everybody's."""
        if self.shared == "false":
            return caller.owner
        if caller.role != "admin":
            raise CallerError("Shared documents need an admin key.", status=403, code="insufficient_permissions")
        return None


class UploadQuery(DocumentOwner):
    filename: Omittable[str] = Field(
        None, max_length=255, description="The file's name, if the body is the file itself"
    )
    reg_id: Omittable[str] = Field(None, max_length=64, description="Its name here; by default made of the file's name")


class PagesQuery(wire.StrictModel):
    start: Annotated[int, Field(ge=1), pagination.Digits] = Field(1, description="The first page")
    end: Omittable[Annotated[int, Field(ge=1), pagination.Digits]] = Field(
        None, description="The last page; by default the first one"
    )


Library = Annotated[DocumentLibrary, of_app("documents")]

router = strict_router("Documents", auth.user)
uploads = strict_router("Documents", auth.user, route_class=UploadRoute)


@uploads.post(
    "/v1/documents",
    status_code=201,
    openapi_extra=UPLOAD,
    responses={200: wire.answer("These bytes were there already."), **refuses(409)},
)
async def add_document(
    request: Request, caller: auth.User, library: Library, asked: Annotated[UploadQuery, Query()]
) -> wire.Json[AddedDocument]:
    """Adds a file, as `multipart/form-data` or as the body itself; a changed file becomes a new version.

    Markdown, HTML, PDF, DOCX and plain text are read. The same bytes again change nothing, and are answered with 200.
    """
    owner = asked.owner(caller)
    caller.uses_all()
    with library.queue.place(owner):
        async with _received(request, asked, library.max_bytes) as sent:
            try:
                added = await library.add(sent.file, sent.name, owner=owner, reg_id=sent.reg_id, by=caller.publisher)
            except DocumentError as error:
                code = error.code or "invalid_document"
                raise CallerError(str(error), status=error.status, code=code, param="file") from None
    if added.change != "unchanged":
        log.info("document_added" if added.change == "added" else "document_changed", **_facts(added.document, caller))
    body: AddedDocument = {**described(added.document), "change": added.change}
    return wire.Json(body, status_code=200 if added.change == "unchanged" else 201)


@router.get("/v1/documents")
async def list_documents(
    caller: auth.User, library: Library, asked: pagination.PagedQuery
) -> wire.Json[Page[ShownDocument]]:
    """Your documents and the shared ones, those that changed last first."""
    await library.ship()
    found = await documents.page(library.db, caller.owner, before=asked.before, limit=asked.fetched)
    rows, following = asked.cut(found, pagination.by("changed_at", "reg_id"))
    return wire.Json(pagination.page([described(row) for row in rows], following))


@router.get("/v1/documents/{reg_id}")
async def get_document(caller: auth.User, library: Library, reg_id: str) -> wire.Json[WholeDocument]:
    """One document, with its table of contents and its versions."""
    document = await _found(library, caller, reg_id)
    sections = await library.outline(document)
    versions = await documents.versions(library.db, document)
    return wire.Json({**described(document), "toc": outline.tree(sections, DEEPEST), "versions": versions})


@router.get("/v1/documents/{reg_id}/pages")
async def get_pages(
    caller: auth.User, library: Library, reg_id: str, asked: Annotated[PagesQuery, Query()]
) -> wire.Json[ReadPages]:
    """The text of some pages of a document, as agents read it."""
    document = await _found(library, caller, reg_id)
    try:
        return wire.Json(await library.pages(caller.owner, document.reg_id, asked.start, asked.end or asked.start))
    except UnknownDocument as error:
        raise CallerError(f"There are no such pages: {error}.", param="start") from None


@router.delete("/v1/documents/{reg_id}")
async def delete_document(
    caller: auth.User, library: Library, reg_id: str, asked: Annotated[DocumentOwner, Query()]
) -> wire.Json[DeletedDocument]:
    """Deletes a document of yours with all its versions, its pages and its passages in the index.

    What agents have read of it stays where they read it: in the journals of their sessions and in the ledger's records
    of these calls, until those are deleted.
    """
    owner = asked.owner(caller)
    caller.uses_all()
    removed = await library.remove(owner, reg_id) if is_reg_id(reg_id) else None
    if removed is None:
        if owner is not None and (await _found(library, caller, reg_id)).owner is None:
            raise CallerError(
                "This document is shared: an admin key deletes it with ?shared=true.",
                status=403,
                code="shared_document",
            )
        raise _missing()
    log.info("document_removed", **_facts(removed, caller))
    return wire.Json({"reg_id": reg_id, "object": "document.deleted", "deleted": True})


def described(document: Document) -> ShownDocument:
    own = {"object": "document", "shared": document.owner is None, "created_at": document.added_at}
    return wire.body_of(ShownDocument, document, **own)


def _facts(document: Document, caller: Caller) -> dict[str, Any]:
    """What a log record says of a document; no word of it."""
    facts = {name: getattr(document, name) for name in ("owner", "reg_id", "version", "pages")}
    return {**facts, "passages": document.chunks, "by": caller.publisher}


async def _found(library: DocumentLibrary, caller: Caller, reg_id: str) -> Document:
    """The document that the caller sees; a document of another owner is not found."""
    try:
        if is_reg_id(reg_id):
            return await library.find(caller.owner, reg_id)
    except UnknownDocument:
        pass
    raise _missing()


def _missing() -> CallerError:
    return wire.not_found("There is no such document.", code="document_not_found")


class Received(msgspec.Struct, frozen=True):
    """A file that was uploaded, on disk."""

    file: IO[bytes]
    name: str
    reg_id: str


@asynccontextmanager
async def _received(request: Request, asked: UploadQuery, max_bytes: int) -> AsyncIterator[Received]:
    """Writes the upload to a file as it arrives: its size in memory does not depend on the file's.

    The file has no name: nothing is left of it in the folder for temporary files, also when this process is killed.
    """
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    with tempfile.TemporaryFile() as file:
        if kind == "multipart/form-data":
            yield await _from_form(request, asked, file, max_bytes)
            return
        if not asked.filename:
            raise CallerError(
                "Send the file as multipart/form-data in the field 'file', or as the body with ?filename=.",
                param="filename",
            )
        async for block in _blocks(request, max_bytes):
            file.write(block)
        yield Received(file, _base_name(asked.filename), asked.reg_id or "")


async def _from_form(request: Request, asked: UploadQuery, copy: IO[bytes], max_bytes: int) -> Received:
    parser = _FormParser(
        request.headers, _blocks(request, max_bytes + AROUND), max_files=1, max_fields=4, max_part_size=AROUND
    )
    try:
        form = await parser.parse()
    except MultiPartException as error:
        raise CallerError(f"The form cannot be read: {error.message.rstrip('.')}.", param="file") from None
    try:
        file, reg_id = form.get("file"), form.get("reg_id", "")
        unknown = [name for name in form if name not in ("file", "reg_id")]
        if unknown:
            raise CallerError(
                f"There is no field {unknown[0][:64]!r} here; known: file, reg_id.", param=unknown[0][:64]
            )
        if not isinstance(file, UploadFile) or not isinstance(reg_id, str):
            raise CallerError("Send the file in the field 'file', with its file name.", param="file")
        while block := await file.read(BLOCK):
            copy.write(block)
        # Many clients send names of other scripts with percent signs, as in addresses.
        name = _base_name(asked.filename or unquote(file.filename or ""))
        return Received(copy, name, asked.reg_id or reg_id)
    finally:
        # All of them: a form that ends in the middle of a file does not show that file.
        for spooled in parser._files_to_close_on_error:
            spooled.close()


class _FormParser(MultiPartParser):
    """Takes names of the form `filename*=UTF-8''…` too: standards forbid it in forms, and some clients send it."""

    def on_headers_finished(self) -> None:
        part = self._current_part
        if part.content_disposition and (found := _EXTENDED.search(_QUOTED.sub(b'""', part.content_disposition))):
            # It comes last, and so counts more than a name in plain letters; `_from_form` decodes it.
            part.content_disposition += b'; filename="%s"' % found[1]
        super().on_headers_finished()


def _blocks(request: Request, most: int) -> AsyncGenerator[bytes, None]:
    message = f"The file is longer than {most} bytes; split it."
    too_long = CallerError(message, status=413, code="request_too_large", param="file")
    return wire.blocks_of(request, most, too_long)


def _base_name(filename: str) -> str:
    """The name alone: what some clients send before it is of no use here."""
    name = filename.replace("\\", "/").rpartition("/")[2]
    if not name or not name.isprintable() or len(name) > 255:
        raise CallerError("The file has no name that can be used; send one such as report.pdf.", param="filename")
    return name
