"""Documents: their pages, outlines and versions. What finds them are passages, which change in the same transaction."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import datetime
from typing import Final, Literal

import msgspec

from longhouse.errors import LonghouseError
from longhouse.store.database import Database, Executor, Transaction, advisory_key
from longhouse.store.lists import pages
from longhouse.store.lists.pages import Position

LOCKS: Final = 0x646F6373  # "docs"
BATCH: Final = 500
"""Pages in one statement."""

_COLUMNS: Final = """
    v.version, v.digest, v.filename, v.format, v.title, v.size, v.pages, v.chunks, v.added_by, d.added_at,
    d.id, d.owner, d.reg_id, d.text_id, v.recipe, d.changed_at
"""
SELECT: Final = f"""
    SELECT {_COLUMNS} FROM documents d JOIN document_versions v ON v.document = d.id AND v.version = d.version
"""
# What an owner added hides a shared document of the same name.
VISIBLE: Final = """
    (d.owner = :owner OR d.owner IS NULL
     AND NOT EXISTS (SELECT FROM documents own WHERE own.owner = :owner AND own.reg_id = d.reg_id))
"""
OF_OWNER: Final = f"{SELECT} WHERE d.owner IS NOT DISTINCT FROM :owner AND d.reg_id = :reg_id"
FIND: Final = f"{SELECT} WHERE {VISIBLE} AND d.reg_id = :reg_id"
VISIBLE_ONES: Final = f"{SELECT} WHERE {VISIBLE} ORDER BY d.reg_id LIMIT :limit"
ALL: Final = f"{SELECT} ORDER BY d.reg_id, d.owner NULLS FIRST LIMIT :limit"
OWNERS: Final = """
    SELECT owner FROM documents WHERE reg_id = :reg_id AND owner IS NOT NULL ORDER BY owner LIMIT :limit
"""
OF_TEXTS: Final = f"{SELECT} WHERE d.text_id = ANY(:text_ids::text[]) AND {VISIBLE}"
HIDDEN: Final = """
    SELECT shared.text_id FROM documents own
    JOIN documents shared ON shared.owner IS NULL AND shared.reg_id = own.reg_id
    WHERE own.owner = :owner
"""
COUNT: Final = "SELECT count(*) FROM documents WHERE owner IS NOT DISTINCT FROM :owner"
# Bounded, since it is asked again and again by those who watch.
COUNTS: Final = """
    SELECT count(owner) AS own, count(*) - count(owner) AS shared
    FROM (SELECT owner FROM documents ORDER BY owner, reg_id LIMIT :most::bigint) AS counted
"""
COUNT_VISIBLE: Final = f"SELECT count(*) FROM documents d WHERE {VISIBLE}"
STATE: Final = f"SELECT md5(string_agg(d.text_id, ' ' ORDER BY d.id)) FROM documents d WHERE {VISIBLE}"
OUTLINE: Final = "SELECT outline FROM documents WHERE id = :document"
PAGES: Final = """
    SELECT page, content FROM document_pages WHERE document = :document AND page BETWEEN :first AND :last ORDER BY page
"""
VERSIONS: Final = """
    SELECT version, digest, filename, format, title, size, pages, chunks, added_by, added_at
    FROM document_versions WHERE document = :document ORDER BY version DESC
"""
CREATE: Final = """
    INSERT INTO documents (owner, reg_id, version, text_id, outline)
    VALUES (:owner, :reg_id, 1, :text_id, :outline) RETURNING id
"""
CHANGE: Final = """
    UPDATE documents SET version = :version, text_id = :text_id, outline = :outline, changed_at = now()
    WHERE id = :document
"""
ADD_VERSION: Final = """
    INSERT INTO document_versions
        (document, version, digest, recipe, filename, format, title, size, pages, chunks, added_by)
    VALUES (:document, :version, :digest, :recipe, :filename, :format, :title, :size, :pages, :chunks, :added_by)
"""
CLEAR_PAGES: Final = "DELETE FROM document_pages WHERE document = :document"
ADD_PAGES: Final = """
    INSERT INTO document_pages (document, page, content)
    SELECT :document, page, content FROM unnest(:numbers::int[], :contents::text[]) AS added (page, content)
"""
REMOVE: Final = "DELETE FROM documents WHERE id = :document"
SHIPPED: Final = "SELECT digest FROM shipped_documents WHERE reg_id = :reg_id"
SHIP: Final = """
    INSERT INTO shipped_documents (reg_id, digest) VALUES (:reg_id, :digest)
    ON CONFLICT (reg_id) DO UPDATE SET digest = EXCLUDED.digest, added_at = now()
"""


class UnknownDocument(LonghouseError):  # noqa: N818 - it says what is asked for
    """There is no such document, or no such part of it; the message names those that there are."""


class DocumentVersion(msgspec.Struct, frozen=True):
    version: int
    digest: str
    filename: str
    format: str
    title: str
    size: int
    pages: int
    chunks: int
    added_by: str
    added_at: datetime


class Document(DocumentVersion, frozen=True):
    """A document and its current version, which is as old as the document."""

    id: int
    owner: str | None
    """None: everybody's."""
    reg_id: str
    text_id: str
    recipe: int
    changed_at: datetime


class Section(msgspec.Struct, frozen=True, array_like=True):
    """An entry of an outline, in reading order; `level` says how deep it is, from 1 on."""

    title: str
    level: int
    page: int
    number: str = ""


class DocumentText(msgspec.Struct, frozen=True, kw_only=True):
    """A file that was read, ready to be stored."""

    owner: str | None
    reg_id: str
    text_id: str
    digest: str
    recipe: int
    filename: str
    format: str
    title: str
    size: int
    pages: int
    chunks: int
    added_by: str
    outline: Sequence[Section]
    contents: Mapping[int, str]
    """The text of each page that has one."""


Change = Literal["added", "changed", "unchanged"]
Replace = Callable[[Transaction, str | None], Awaitable[None]]
"""Puts the new passages into the index, in the place of those of an earlier `text_id`."""
Clear = Callable[[Transaction, str], Awaitable[None]]
"""Takes the passages of a `text_id` from the index."""


async def save(db: Database, text: DocumentText, replace: Replace) -> tuple[Document, Change]:
    """Stores the text as a new document, or as a new version of one, together with its passages."""

    async def write(tx: Transaction) -> tuple[Document, Change]:
        await tx.lock(LOCKS, _lock(text.owner, text.reg_id))
        known = await of_owner(tx, text.owner, text.reg_id)
        if known and known.text_id == text.text_id:
            # This is a retry, because the answer to the commit was lost.
            return known, "added" if known.version == 1 else "changed"
        if known and (known.digest, known.recipe) == (text.digest, text.recipe):
            return known, "unchanged"
        await _write_version(tx, text, known)
        await replace(tx, known.text_id if known else None)
        saved = await of_owner(tx, text.owner, text.reg_id)
        assert saved is not None
        return saved, "changed" if known else "added"

    return await db.together(write)


async def _write_version(tx: Transaction, text: DocumentText, known: Document | None) -> None:
    outline = msgspec.json.encode(text.outline).decode()
    version = known.version + 1 if known else 1
    if known:
        document = known.id
        await tx.run(CHANGE, document=document, version=version, text_id=text.text_id, outline=outline)
        await tx.run(CLEAR_PAGES, document=document)
    else:
        document = await tx.value(CREATE, owner=text.owner, reg_id=text.reg_id, text_id=text.text_id, outline=outline)
    told = ("digest", "recipe", "filename", "format", "title", "size", "pages", "chunks", "added_by")
    await tx.run(ADD_VERSION, document=document, version=version, **{name: getattr(text, name) for name in told})
    numbers = sorted(text.contents)
    for start in range(0, len(numbers), BATCH):
        some = numbers[start : start + BATCH]
        await tx.run(ADD_PAGES, document=document, numbers=some, contents=[text.contents[page] for page in some])


async def remove(db: Database, owner: str | None, reg_id: str, clear: Clear) -> Document | None:
    """Deletes this owner's document with all its versions, its pages and its passages; returns it, if there was one."""

    async def write(tx: Transaction) -> Document | None:
        await tx.lock(LOCKS, _lock(owner, reg_id))
        known = await of_owner(tx, owner, reg_id)
        if known:
            await clear(tx, known.text_id)
            await tx.run(REMOVE, document=known.id)
        return known

    return await db.together(write)


async def of_owner(db: Executor, owner: str | None, reg_id: str) -> Document | None:
    """This owner's document, or the shared one."""
    return await db.read_one(Document, OF_OWNER, owner=owner, reg_id=reg_id)


async def find(db: Database, owner: str | None, reg_id: str) -> Document | None:
    """The document that an owner sees under this name."""
    return await db.read_one(Document, FIND, owner=owner, reg_id=reg_id)


async def visible(db: Database, owner: str | None, limit: int) -> list[Document]:
    """The documents that an owner sees, by name."""
    return await db.read(Document, VISIBLE_ONES, owner=owner, limit=limit)


async def of_all_owners(db: Database, limit: int) -> list[Document]:
    """The documents of all owners, by name."""
    return await db.read(Document, ALL, limit=limit)


async def owners(db: Database, reg_id: str, limit: int) -> list[str]:
    """Who has a document of this name, besides a shared one."""
    return await db.column(OWNERS, reg_id=reg_id, limit=limit)


async def count(db: Executor, owner: str | None) -> int:
    """How many documents an owner has added."""
    return int(await db.value(COUNT, owner=owner))


async def count_alone(tx: Transaction, owner: str | None) -> int:
    """The same under a lock: of two transactions that add the last document, the second sees the first."""
    await tx.lock(LOCKS, _lock(owner, ""))
    return await count(tx, owner)


async def counts(db: Database, most: int | None = None) -> tuple[int, int]:
    """How many documents there are of owners, and how many shared ones; no more than `most` are counted."""
    [(own, shared)] = await db.rows(COUNTS, most=most)
    return own, shared


async def count_visible(db: Database, owner: str | None) -> int:
    """How many documents an owner sees."""
    return int(await db.value(COUNT_VISIBLE, owner=owner))


async def page(db: Database, owner: str, *, before: Position | None, limit: int) -> list[Document]:
    """A page of the documents that an owner sees, those that changed last first."""
    rows = await pages.page(
        db, SELECT, by="d.changed_at, d.reg_id", before=before, limit=limit, conditions={"owner": VISIBLE}, owner=owner
    )
    return [Document(*row) for row in rows]


async def of_texts(db: Database, owner: str | None, text_ids: Sequence[str]) -> dict[str, Document]:
    """`text_id` -> the document that an owner sees with this text."""
    rows = await db.rows(OF_TEXTS, owner=owner, text_ids=list(text_ids))
    return {row["text_id"]: Document(*row) for row in rows}


async def hidden(db: Database, owner: str | None) -> list[str]:
    """The `text_id`s of shared documents that an owner does not see, because of an own one of the same name."""
    return await db.column(HIDDEN, owner=owner)


async def state(db: Database, owner: str | None) -> str:
    """Changes whenever one of the documents that an owner sees does."""
    # Never empty: that is the revision of tools that have none.
    return str(await db.value(STATE, owner=owner) or "no documents")


async def outline(db: Database, document: Document) -> list[Section]:
    found = await db.value(OUTLINE, document=document.id)
    return [] if found is None else msgspec.json.decode(found, type=list[Section])


async def contents(db: Database, document: Document, first: int, last: int) -> dict[int, str]:
    """The text of these pages, where there is one."""
    return dict(await db.rows(PAGES, document=document.id, first=first, last=last))


async def versions(db: Database, document: Document) -> list[DocumentVersion]:
    """All versions, the newest first."""
    return await db.read(DocumentVersion, VERSIONS, document=document.id)


async def shipped(db: Database, reg_id: str) -> str | None:
    """The digest of the document of a release that was last offered under this name."""
    return await db.read_one(str, SHIPPED, reg_id=reg_id)


async def mark_shipped(db: Database, reg_id: str, digest: str) -> None:
    await db.run(SHIP, reg_id=reg_id, digest=digest)


def _lock(owner: str | None, reg_id: str) -> int:
    return advisory_key(msgspec.json.encode((owner, reg_id)))
