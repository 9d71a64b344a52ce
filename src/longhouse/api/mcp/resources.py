"""Documents as resources of the MCP server: those that the caller's agents read."""

import re
from typing import Final
from urllib.parse import quote, unquote

import mcp_types as types

from longhouse.api import pagination
from longhouse.api.caller import Caller
from longhouse.errors import CallerError
from longhouse.memory.documents.library import DocumentLibrary, is_reg_id
from longhouse.store.memory import documents
from longhouse.store.memory.documents import Document, UnknownDocument

SCHEME: Final = "longhouse://documents/"
MEDIA_TYPE: Final = "text/markdown"
PAGES: Final = types.ResourceTemplate(
    name="pages",
    title="Pages of a document",
    uri_template=f"{SCHEME}{{reg_id}}/pages/{{pages}}",
    description="The text of some pages: 3, or 3-7.",
    mime_type=MEDIA_TYPE,
)
LISTED: Final = 100
MOST: Final = 200_000
"""Characters of a document that are read at once; the rest is read by pages."""
_ADDRESS: Final = re.compile(rf"{SCHEME}([^/?#]+)(?:/pages/([0-9]{{1,9}})(?:-([0-9]{{1,9}}))?)?")


async def listed(library: DocumentLibrary, caller: Caller, cursor: str | None) -> types.ListResourcesResult:
    """A page of the documents that the caller sees."""
    await library.ship()
    try:
        asked = pagination.Paged.model_validate({"limit": str(LISTED), **({"before": cursor} if cursor else {})})
    except ValueError:
        raise CallerError("cursor should be the nextCursor of an earlier page.", param="cursor") from None
    found = await documents.page(library.db, caller.owner, before=asked.before, limit=asked.fetched)
    rows, following = asked.cut(found, pagination.by("changed_at", "reg_id"))
    return types.ListResourcesResult(resources=[_resource(row) for row in rows], next_cursor=following)


def _resource(document: Document) -> types.Resource:
    return types.Resource(
        name=document.reg_id,
        title=document.title,
        uri=f"{SCHEME}{quote(document.reg_id)}",
        description=f"{document.pages} pages, from {document.filename}",
        mime_type=MEDIA_TYPE,
    )


async def read(library: DocumentLibrary, caller: Caller, uri: str) -> types.ReadResourceResult:
    """The text of a document, or of some of its pages; another owner's is not found."""
    match = _ADDRESS.fullmatch(uri)
    reg_id = unquote(match[1]) if match else ""
    try:
        if not match or not is_reg_id(reg_id):
            raise UnknownDocument("see resources/list")
        document = await library.find(caller.owner, reg_id)
        first, last = int(match[2] or 1), int(match[3] or match[2] or document.pages)
        if not 1 <= first <= last:
            raise UnknownDocument(f"pages {first} to {last} are none of {document.reg_id}")
        text = await _text(library, caller, document, first, last)
    except UnknownDocument as error:
        raise CallerError(f"There is no such resource: {error}.", status=404, param="uri") from None
    content = types.TextResourceContents(uri=uri, mime_type=MEDIA_TYPE, text=text)
    return types.ReadResourceResult(contents=[content])


async def _text(library: DocumentLibrary, caller: Caller, document: Document, first: int, last: int) -> str:
    texts: list[str] = []
    at, size = first, 0
    while at <= min(last, document.pages) or not texts:
        read = await library.pages(caller.owner, document.reg_id, at, max(at, last))
        for page in read["pages"]:
            if texts and size + len(page["content"]) > MOST:
                rest = f"{SCHEME}{quote(document.reg_id)}/pages/{page['page']}-{last}"
                return "\n\n".join([*texts, f"(This is not all: read on at {rest})"])
            texts.append(page["content"])
            size += len(page["content"])
        at = read["end_page"] + 1
    return "\n\n".join(texts)
