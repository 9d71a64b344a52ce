"""The library: files become documents with pages, an outline and passages, which agents list, search and read.

A file is added whole or not at all: its pages, its outline, its version and its passages are one transaction, in which
those of the version before leave.
"""

import asyncio
import hashlib
import os
import re
import unicodedata
import uuid
from collections.abc import Mapping, Sequence
from importlib import resources
from itertools import islice
from pathlib import Path, PurePath
from typing import IO, Any, Final, TypedDict

import msgspec

from longhouse.journal.messages import clean
from longhouse.memory.documents import outline
from longhouse.memory.documents.chunks import Chunk, chunks_of, pages_of
from longhouse.memory.documents.parsed import DocumentError, OutlineLine, ParsedDocument, ParseLimits, UnreadableFile
from longhouse.memory.documents.sandbox import ReadingQueue, opened, parse
from longhouse.memory.working import source_of
from longhouse.search.passages import Passage, PassageHit, PassageIndex
from longhouse.store.database import Database, Transaction
from longhouse.store.memory import documents
from longhouse.store.memory.documents import Change, Document, DocumentText, Section, UnknownDocument
from longhouse.store.search import passages as stored_passages

RECIPE: Final = 1
"""Raised when files are read or cut in another way: files that are added again are then read again."""
MAX_BYTES: Final = 50 * 1024 * 1024
MAX_CHUNKS: Final = 100_000
MAX_DOCUMENTS: Final = 10_000
"""Documents of one owner."""
MAX_PAGES: Final = 20
"""Pages of one call."""
MAX_RESULTS: Final = 50
LISTED: Final = 1_000
"""Documents that are listed at once; a tool says how many more there are."""
MAX_TITLE: Final = 300
DEEPEST: Final = 12
"""Levels of an outline; what is deeper counts as this deep."""

KIND: Final = "document"
SHARED: Final = "documents"
"""The scope of passages that everybody may find."""
SHIPPED: Final = ("longhouse.md", "longhouse")
"""The document that comes with Longhouse: its file, and its reg_id."""
SHIPPER: Final = "longhouse"
"""Who added it."""

_LONGEST_ID: Final = 64
_REG_ID: Final = re.compile(r"(?!\.+$)[\w.-]{1,64}")
_NO_WORD: Final = re.compile(r"\W+")


class DocumentOutcome(msgspec.Struct, frozen=True):
    """What became of a file."""

    document: Document
    change: Change


def reg_id_of(name: str) -> str:
    """The reg_id of a file: its name without the suffix, in small letters, with _ between the words.

    A name without letters and digits, or a long one, has a digest at the end.
    """
    stem = PurePath(name).stem or name
    slug = _NO_WORD.sub("_", unicodedata.normalize("NFKC", stem).lower()).strip("_")
    if slug and len(slug) <= _LONGEST_ID:
        return slug
    # Too little of the name is left to tell it from others.
    digest = hashlib.sha256(name.encode(errors="surrogatepass")).hexdigest()[:8]
    return f"{slug[: _LONGEST_ID - len(digest) - 1].strip('_') or 'document'}_{digest}"


def is_reg_id(text: str) -> bool:
    return _REG_ID.fullmatch(text) is not None


def checked_reg_id(reg_id: str) -> str:
    if not is_reg_id(reg_id):
        raise DocumentError(
            f"{reg_id[:64]!r} cannot be a reg_id: use up to 64 letters, digits, '.', '_' and '-', and not dots alone."
        )
    return reg_id


def scope_of(owner: str | None) -> str:
    """Who may find the passages of a document."""
    return SHARED if owner is None else msgspec.json.encode([SHARED, owner]).decode()


class ReadPage(TypedDict):
    page: int
    content: str


class ReadPages(TypedDict):
    reg_id: str
    start_page: int
    end_page: int
    total_pages: int
    source: str
    pages: list[ReadPage]


class DocumentLibrary:
    """The documents of a database."""

    def __init__(
        self,
        db: Database,
        passages: PassageIndex,
        *,
        max_bytes: int = MAX_BYTES,
        max_documents: int = MAX_DOCUMENTS,
    ) -> None:
        self.db = db
        self.max_bytes = max_bytes
        self.queue = ReadingQueue()
        self._max_documents = max_documents
        self._passages = passages
        self._shipping = asyncio.Lock()
        self._is_shipped = False

    async def add(
        self, file: Path | IO[bytes], name: str, *, owner: str | None = None, reg_id: str = "", by: str = "cli"
    ) -> DocumentOutcome:
        """Adds a file, or a new version of it; bytes that are known already change nothing."""
        reg_id, limits = checked_reg_id(reg_id or reg_id_of(name)), ParseLimits(file_bytes=self.max_bytes)
        digest, size = await asyncio.to_thread(_digest, file, limits)
        known = await documents.of_owner(self.db, owner, reg_id)
        if known and (known.digest, known.recipe) == (digest, RECIPE):
            return DocumentOutcome(known, "unchanged")
        if known is None:
            self._check_count(name, owner, await documents.count(self.db, owner))
        # What comes with Longhouse waits behind no file of anybody.
        async with self.queue.turn(owner if by != SHIPPER else (SHIPPER,)):
            parsed = await parse(file, name, limits=limits)
            if not digest:
                raise DocumentError(f"{name} changed while it was read; add it again.")
            text, found = await asyncio.to_thread(
                _read, parsed, name, owner=owner, reg_id=reg_id, digest=digest, size=size, added_by=by
            )
            ready = await self._passages.prepare(found)

        async def replace(tx: Transaction, old: str | None) -> None:
            if old:
                await stored_passages.remove(tx, KIND, groups=[old])
            else:
                self._check_count(name, owner, await documents.count_alone(tx, owner) - 1)
            await self._passages.store(tx, ready)

        return DocumentOutcome(*await documents.save(self.db, text, replace))

    async def text_of(self, content: bytes, name: str, *, owner: str) -> str:
        """The text of a file that is not added: one that comes with a message."""
        with self.queue.place(owner):
            async with self.queue.turn(owner):
                parsed = await parse(content, name, limits=ParseLimits(file_bytes=self.max_bytes))
        return "\n\n".join(block.text for block in parsed.blocks)

    def _check_count(self, name: str, owner: str | None, count: int) -> None:
        """Refuses one document more than an owner may have; shared ones are the operator's, and are not counted."""
        if owner is not None and count >= self._max_documents:
            raise DocumentError(
                f"{name} cannot be added: there are {count} documents of this owner, which is the limit; delete some.",
                status=409,
                code="too_many_documents",
            )

    async def remove(self, owner: str | None, reg_id: str) -> Document | None:
        """Deletes the owner's document (None: the shared one) for real: versions, pages and passages.

        Returns what it was; None if there is no such document.
        """

        async def clear(tx: Transaction, text_id: str) -> None:
            await stored_passages.remove(tx, KIND, groups=[text_id])

        return await documents.remove(self.db, owner, reg_id, clear)

    async def find(self, owner: str | None, reg_id: str) -> Document:
        """The document that an owner sees under this name; UnknownDocument names those that there are."""
        await self.ship()
        found = await documents.find(self.db, owner, reg_id)
        if found is None:
            known = ", ".join(one.reg_id for one in await documents.visible(self.db, owner, 20))
            there = f"known ones: {known}" if known else "no document was added yet"
            raise UnknownDocument(f"there is no document {reg_id[:64]!r}; {there}")
        return found

    async def visible(self, owner: str | None) -> Sequence[Document]:
        """The documents that an owner sees, by name."""
        await self.ship()
        return await documents.visible(self.db, owner, LISTED)

    async def of_all_owners(self) -> tuple[Sequence[Document], int]:
        """The first documents of all owners, by name; and how many there are."""
        await self.ship()
        return await documents.of_all_owners(self.db, LISTED), sum(await documents.counts(self.db))

    async def count(self, owner: str | None) -> int:
        """How many documents an owner sees."""
        return await documents.count_visible(self.db, owner)

    async def list(self, owner: str | None) -> tuple[list[dict[str, Any]], int]:
        """The first documents that an owner sees, as an agent reads of them; and how many there are."""
        names = ("reg_id", "title", "pages", "format", "version")
        found = [{name: getattr(one, name) for name in names} for one in await self.visible(owner)]
        return found, len(found) if len(found) < LISTED else await self.count(owner)

    async def outline(self, document: Document) -> Sequence[Section]:
        return await documents.outline(self.db, document)

    async def toc(
        self, owner: str | None, reg_id: str, *, max_depth: int = 3, expand_section: str | None = None
    ) -> dict[str, Any]:
        """The table of contents down to a depth; or all of one section, which a number or a title names."""
        document = await self.find(owner, reg_id)
        sections = await self.outline(document)
        about = {"reg_id": document.reg_id, "title": document.title, "total_pages": document.pages}
        if not expand_section:
            return {**about, "items": outline.tree(sections, max_depth)}
        within = _named(document, sections, expand_section)[0]
        return {**about, "items": outline.tree(sections, len(sections), within)}

    async def search(
        self,
        owner: str | None,
        query: str,
        reg_id: str | None = None,
        *,
        chapter_scope: str | None = None,
        limit: int = 10,
        block_types: Sequence[str] | None = None,
        section_number: str | None = None,
    ) -> Sequence[dict[str, Any]]:
        """The passages that answer a query, by the score that they tell; in one document, or in all."""
        facts = {"block_type": tuple(block_types)} if block_types else {}
        limit = min(max(1, limit), MAX_RESULTS)
        if not reg_id:
            if chapter_scope or section_number:
                raise UnknownDocument("chapters and sections are those of one document: name its reg_id")
            return await self._search_all(owner, query, limit, facts)
        hits: Sequence[PassageHit] = ()
        groups: list[str] = []
        # A version that left meanwhile has no passages any more: the next one is searched.
        while not hits and (document := await self.find(owner, reg_id)).text_id not in groups:
            if chapter_scope or section_number:
                inside = _inside(document, await self.outline(document), chapter_scope, section_number)
                facts["section"] = tuple(str(index) for index in sorted(inside))
            scopes, groups = [scope_of(document.owner)], [document.text_id]
            hits = await self._passages.search(query, scopes, kinds=[KIND], limit=limit, groups=groups, facts=facts)
        return _results([(hit, document.reg_id) for hit in hits])

    async def _search_all(
        self, owner: str | None, query: str, limit: int, facts: Mapping[str, Sequence[str]]
    ) -> Sequence[dict[str, Any]]:
        """Passages of old versions leave with them: all that are in a scope may be found."""
        await self.ship()
        hidden = await documents.hidden(self.db, owner)
        scopes = list(dict.fromkeys([SHARED, scope_of(owner)]))
        hits = await self._passages.search(query, scopes, kinds=[KIND], limit=limit, not_groups=hidden, facts=facts)
        known = await documents.of_texts(self.db, owner, [hit.group for hit in hits])
        return _results([(hit, known[hit.group].reg_id) for hit in hits if hit.group in known])

    async def pages(self, owner: str | None, reg_id: str, start_page: int, end_page: int) -> ReadPages:
        """The text of pages, both ends included."""
        document = await self.find(owner, reg_id)
        if start_page > end_page:
            raise UnknownDocument(f"start_page {start_page} comes after end_page {end_page}")
        if start_page > document.pages:
            raise UnknownDocument(
                f"the last page of {document.reg_id} is {document.pages}: there is no page {start_page}"
            )
        last = min(end_page, document.pages, start_page + MAX_PAGES - 1)
        texts = await documents.contents(self.db, document, start_page, last)
        place = str(start_page) if last == start_page else f"{start_page}-{last}"
        return {
            "reg_id": document.reg_id,
            "start_page": start_page,
            "end_page": last,
            "total_pages": document.pages,
            "source": source_of(document.reg_id, place),
            "pages": [{"page": page, "content": texts.get(page, "")} for page in range(start_page, last + 1)],
        }

    async def revision(self, owner: str | None, reg_id: str | None = None) -> str:
        """Changes whenever what an owner reads under this name does; without a name, when any document does.

        UnknownDocument if there is none, so that nothing is answered from memory in its place.
        """
        if reg_id:
            return (await self.find(owner, reg_id)).text_id
        await self.ship()
        return await documents.state(self.db, owner)

    async def ship(self) -> None:
        """Adds the document that comes with Longhouse, or its new version; one that was removed does not come back.

        Nor is one replaced that somebody added under its name. It is added when documents are first asked for: a start
        without them costs nothing.
        """
        if self._is_shipped:
            return
        async with self._shipping:
            if self._is_shipped:
                return
            filename, reg_id = SHIPPED
            with resources.as_file(resources.files("longhouse.memory.documents") / filename) as file:
                digest = hashlib.sha256(file.read_bytes()).hexdigest()
                last = await documents.shipped(self.db, reg_id)
                known = await documents.of_owner(self.db, None, reg_id)
                is_ours = known.added_by == SHIPPER if known else last is None
                if is_ours:
                    await self.add(file, filename, reg_id=reg_id, by=SHIPPER)
            if last != digest:
                await documents.mark_shipped(self.db, reg_id, digest)
            self._is_shipped = True


def _named(document: Document, sections: Sequence[Section], name: str) -> list[range]:
    if found := outline.named(sections, name):
        return found
    first = "; ".join(_heading(one) for one in sections if one.level == sections[0].level)
    there = f"its chapters: {first[:1_000]}" if first else "it has no chapters"
    raise UnknownDocument(f"{document.reg_id} has no section {name[:100]!r}; {there}")


def _inside(
    document: Document, sections: Sequence[Section], chapter_scope: str | None, section_number: str | None
) -> set[int]:
    """The entries of an outline that lie in a chapter and have a number, where these are given."""
    inside = set(range(len(sections)))
    if chapter_scope:
        inside &= {index for part in _named(document, sections, chapter_scope) for index in part}
    if section_number:
        parts = outline.numbered(sections, section_number) or _named(document, sections, section_number)
        inside &= {index for part in parts for index in part}
    return inside


def _results(hits: Sequence[tuple[PassageHit, str]]) -> list[dict[str, Any]]:
    """Passages with their documents; of those that tell the same score, in the order in which they were found."""
    return sorted((_result(*hit) for hit in hits), key=lambda result: -float(result["score"]))


def _result(hit: PassageHit, reg_id: str) -> dict[str, Any]:
    page = str(hit.facts["page"])
    return {
        "content": hit.text,
        "reg_id": reg_id,
        "page": int(page),
        "source": source_of(reg_id, page),
        "score": round(hit.told, 3),
        "chapter_path": hit.facts["chapter_path"],
        "section_number": hit.facts["section_number"],
        "block_type": hit.facts["block_type"],
    }


def _read(parsed: ParsedDocument, name: str, **known: Any) -> tuple[DocumentText, list[Passage]]:
    """A parsed file with its pages and its outline, beside what is known of it; and its passages."""
    sections = [_section(entry) for entry in parsed.outline]
    chunks = list(islice(chunks_of(parsed.blocks, outline.located(parsed.blocks, sections)), MAX_CHUNKS + 1))
    if not chunks:
        raise DocumentError(f"{name} has no text; if its pages are pictures, add a version with recognised text.")
    if len(chunks) > MAX_CHUNKS:
        raise DocumentError(f"{name} is longer than {MAX_CHUNKS} passages; split it into several files.")
    paths = outline.paths(sections)
    above = [[sections[at] for at in paths[one.section]] if one.section != outline.NOWHERE else [] for one in chunks]
    text = DocumentText(
        **known, recipe=RECIPE, filename=clean(name)[:255], text_id=uuid.uuid4().hex, format=parsed.format,
        title=clean(parsed.title) or PurePath(name).stem, pages=parsed.pages, chunks=len(chunks), outline=sections,
        contents=pages_of(parsed.blocks),
    )  # fmt: skip
    return text, [_passage(text, at, *one) for at, one in enumerate(zip(chunks, above, strict=True))]


def _section(entry: OutlineLine) -> Section:
    title = " ".join(clean(entry.title).split())[:MAX_TITLE]
    return Section(title, min(max(1, entry.level), DEEPEST), entry.page, clean(entry.number)[:MAX_TITLE])


def _heading(section: Section) -> str:
    """The title with its number, which may be a part of it already."""
    return section.title if section.title.startswith(section.number) else f"{section.number} {section.title}"


def _passage(text: DocumentText, at: int, chunk: Chunk, above: Sequence[Section]) -> Passage:
    return Passage(
        scope=scope_of(text.owner),
        kind=KIND,
        source=f"{text.text_id}/{at}",
        group=text.text_id,
        text=chunk.text,
        title=" > ".join([text.title, *map(_heading, above)]),
        thread=text.text_id,
        position=at,
        facts={
            "page": str(chunk.page),
            "section": str(chunk.section),
            "section_number": next((one.number for one in reversed(above) if one.number), ""),
            "chapter_path": [one.title for one in above],
            "block_type": chunk.kind,
        },
    )


def _digest(file: Path | IO[bytes], limits: ParseLimits) -> tuple[str, int]:
    """Digest and size of a file; an empty digest for what is refused without being read: `parse` says why."""
    try:
        with opened(file, limits) as content:
            return hashlib.file_digest(content, "sha256").hexdigest(), os.fstat(content.fileno()).st_size
    except (OSError, UnreadableFile):
        return "", 0
