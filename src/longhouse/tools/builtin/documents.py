"""The four document tools: what there is to read, its table of contents, a search in it, and its pages."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Annotated, Any, ClassVar, Final, Literal

import msgspec
from pydantic import Field

from longhouse.agents.tool import Remembers
from longhouse.journal.roles import Role
from longhouse.store.memory.documents import UnknownDocument
from longhouse.tools.base import BaseTool
from longhouse.tools.context import Documents, ToolContext

ALL: Final = "*"
"""Stands for a reg_id: all documents."""
ROOM: Final = 38_000
"""Characters of a result: within the limit of all tools, which cuts anywhere, and would leave no JSON."""
MAX_PAGES: Final = 20
"""Pages of one call."""

RegId = Annotated[str, Field(description="The document's reg_id, as list_documents shows it")]
BlockType = Literal["heading", "text", "table", "list", "code"]


class DocumentCall(ABC):
    """The work of a document tool is in `use`; a refusal becomes text that begins with `Error: `."""

    tool_tags: ClassVar[tuple[str, ...]] = ("knowledge", "documents")

    async def __call__(self, context: ToolContext, config: Any = None, **kwargs: Any) -> str:
        if context.services.documents is None:
            return "Error: no documents are set up here"
        try:
            return await self.use(context.services.documents, context.owner)
        except UnknownDocument as error:
            return f"Error: {error}"

    @abstractmethod
    async def use(self, documents: Documents, owner: str) -> str:
        """What the tool reads of the documents that this owner sees."""


class ReadingCall(DocumentCall):
    """Reads one document: a remembered result of it holds as long as the document does not change."""

    reg_id: str

    async def revision(self, context: ToolContext) -> str:
        documents = context.services.documents
        named = None if self.reg_id == ALL else self.reg_id
        return await documents.revision(context.owner, named) if documents else ""


class ListDocumentsTool(DocumentCall, BaseTool):
    """List the documents that you can read: reg_id, title, number of pages."""

    tool_name: ClassVar[str] = "list_documents"
    tool_role: ClassVar[Role] = "knowledge"

    async def use(self, documents: Documents, owner: str) -> str:
        found, total = await documents.list(owner)
        shown = _fitting(found)
        if len(shown) >= total:
            return _json({"documents": shown})
        note = f"{total - len(shown)} more documents are not shown; smart_search with reg_id {ALL} finds them"
        return _json({"documents": shown, "left_out": total - len(shown), "note": note})


class GetTocTool(ReadingCall, BaseTool):
    """Show the table of contents of a document: titles, section numbers and pages."""

    tool_name: ClassVar[str] = "get_toc"
    tool_role: ClassVar[Role] = "knowledge"
    remembers: ClassVar[Remembers] = "outline"

    reg_id: RegId
    max_depth: int = Field(default=3, ge=1, le=12, description="How many levels to show")
    expand_section: str | None = Field(
        default=None, description="Show all of this section instead: its number, such as 3.2, or its title"
    )

    async def use(self, documents: Documents, owner: str) -> str:
        # A long outline is shown less deeply, so that all chapters are there.
        for depth in range(self.max_depth, 0, -1):
            toc = await documents.toc(owner, self.reg_id, max_depth=depth, expand_section=self.expand_section)
            text = _json({**toc, "max_depth": depth} if depth < self.max_depth else toc)
            if len(text) <= ROOM or self.expand_section:
                break
        if len(text) <= ROOM:
            return text
        shown = _fitting([{**item, "children": []} for item in toc["items"]])
        return _json({**toc, "items": shown, "left_out": len(toc["items"]) - len(shown)})


class SmartSearchTool(ReadingCall, BaseTool):
    """Search a document by meaning and words. Results have their page, their chapter, and a score between 0 and 1."""

    tool_name: ClassVar[str] = "smart_search"
    tool_tags: ClassVar[tuple[str, ...]] = ("knowledge", "documents", "search")
    tool_role: ClassVar[Role] = "knowledge"
    remembers: ClassVar[Remembers] = "search"

    query: str = Field(description="What to look for, in the language of the document")
    reg_id: str = Field(description="The document's reg_id, as list_documents shows it; * searches all documents")
    chapter_scope: str | None = Field(default=None, description="Search in this chapter only: its number or its title")
    limit: int = Field(default=10, ge=1, le=50)
    block_types: list[BlockType] | None = Field(default=None, description="Only blocks of these kinds")
    section_number: str | None = Field(
        default=None, description="Search in the section of this number only, such as 3.2, and below it"
    )

    async def use(self, documents: Documents, owner: str) -> str:
        found = await documents.search(
            owner,
            self.query,
            None if self.reg_id == ALL else self.reg_id,
            chapter_scope=self.chapter_scope,
            limit=self.limit,
            block_types=self.block_types,
            section_number=self.section_number,
        )
        return _json(_fitting(found))


class ReadPageRangeTool(ReadingCall, BaseTool):
    """Read pages of a document, from start_page to end_page, at most 20 in one call."""

    tool_name: ClassVar[str] = "read_page_range"
    tool_role: ClassVar[Role] = "knowledge"
    remembers: ClassVar[Remembers] = "page"

    reg_id: RegId
    start_page: int = Field(ge=1, description="The first page, from 1 on")
    end_page: int = Field(ge=1, description="The last page, included")

    async def use(self, documents: Documents, owner: str) -> str:
        if self.end_page - self.start_page >= MAX_PAGES:
            raise UnknownDocument(f"one call reads {MAX_PAGES} pages at most; read the others with another call")
        read = await documents.pages(owner, self.reg_id, self.start_page, self.end_page)
        pages = _fitting(read["pages"]) or _cut(read["pages"][:1])
        if len(pages) == len(read["pages"]):
            return _json({**read, "pages": pages})
        last = pages[-1]["page"]
        more = f"pages {last + 1} to {read['end_page']} did not fit; read them with another call"
        return _json({**read, "end_page": last, "pages": pages, "note": more})


def _json(value: Any) -> str:
    return msgspec.json.encode(value).decode()


def _fitting(items: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The first of these results, as many as there is room for."""
    shown, size = [], 0
    for item in items:
        size += len(_json(item)) + 1
        if size > ROOM:
            break
        shown.append(item)
    return shown


def _cut(pages: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """A page that is too long for one result, cut so that it fits as JSON."""
    left_out = "[the rest of this page is left out]"
    return [{**page, "content": f"{_beginning(page['content'])}\n{left_out}"} for page in pages]


def _beginning(text: str) -> str:
    most = ROOM // 2
    while len(_json(text[:most])) > ROOM // 2:
        most = most * 3 // 4
    return text[:most]


DOCUMENT_TOOLS: Final = (ListDocumentsTool, GetTocTool, SmartSearchTool, ReadPageRangeTool)
