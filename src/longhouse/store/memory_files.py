"""Memory files of agents, in scopes: of one owner, of one user with one agent, or of one conversation.

Each change is one statement under the scope's lock, made once for each call.
"""

import hashlib
from dataclasses import dataclass
from datetime import datetime
from typing import Final, Literal

import msgspec

from longhouse.journal.session import LOCAL_OWNER
from longhouse.store.database import Database

MAX_FILE: Final = 1024 * 1024
"""Bytes of one file: far more than a model can read at once, but still a small row."""

MAX_SCOPE: Final = 20 * 1024 * 1024
"""Bytes of all files of a scope: years of notes, and a thousand scopes still fit a small disk."""

MAX_ENTRIES: Final = 1_000
"""Files and directories of a scope: few enough to list whole, and to count at every change."""

LONGEST_KEY: Final = 400
"""Bytes of a scope's key; a longer one is kept as its digest."""

LOCKS: Final = 0x6D656D6F  # "memo"

Verdict = Literal[
    "done", "repeated", "missing", "exists", "is_file", "is_directory", "parent_is_file", "not_empty", "not_found",
    "file_full", "scope_full", "too_many", "forgotten",
]  # fmt: skip
"""The result of a change; `repeated`: this call has already made it; `forgotten`: its session has been erased."""


@dataclass(frozen=True, slots=True)
class Scope:
    """A set of files that is shared, and the owner that it belongs to."""

    owner: str
    key: str
    passing: bool = False
    """Does it belong to one conversation, and is it erased with that?"""

    @property
    def lock(self) -> int:
        digest = hashlib.sha256(f"{len(self.owner)}:{self.owner}{self.key}".encode()).digest()
        return int.from_bytes(digest[:4], "big", signed=True)


@dataclass(frozen=True, slots=True)
class FileEntry:
    path: str
    is_directory: bool
    size: int
    updated_at: datetime


@dataclass(frozen=True, slots=True)
class File:
    """The file or directory at a path; a directory has no content."""

    content: str | None


# In all changes the CTE `verdict` decides; the other parts of the statement write only when it is "done".
KNOWN: Final = "EXISTS (SELECT FROM memory_calls WHERE owner = :owner AND scope = :scope AND key = :key)"
# Erasure takes the same lock: it finds what was written before it, and later writes find the row in `forgotten`.
ORPHANED: Final = "EXISTS (SELECT FROM forgotten WHERE session_id = split_part(:key, ':', 1))"
HERE: Final = "SELECT path, content IS NULL AS is_directory, size FROM memories WHERE owner = :owner AND scope = :scope"
# The worker that takes over repeats a call, mostly within seconds; 30 days cover a server that was switched off.
NOTED: Final = """
    noted AS (
        INSERT INTO memory_calls (owner, scope, key) SELECT :owner, :scope, :key FROM verdict WHERE verdict = 'done'
    ), swept AS (
        DELETE FROM memory_calls WHERE owner = :owner AND scope = :scope AND at < now() - interval '30 days'
    )
    SELECT verdict FROM verdict
"""

KEEP: Final = f"""
WITH here AS (
    {HERE}
), new AS (
    SELECT :path::text AS path, :content::text AS content
    UNION ALL
    SELECT parent, NULL FROM unnest(:parents::text[]) AS parent
), verdict AS (
    SELECT CASE
        WHEN {KNOWN} THEN 'repeated'
        WHEN {ORPHANED} THEN 'forgotten'
        WHEN EXISTS (SELECT FROM here WHERE path = :path AND is_directory AND :content IS NOT NULL) THEN 'is_directory'
        WHEN EXISTS (SELECT FROM here WHERE path = :path AND NOT is_directory AND :content IS NULL) THEN 'is_file'
        WHEN EXISTS (SELECT FROM here WHERE path = :path AND NOT is_directory) THEN 'exists'
        WHEN EXISTS (SELECT FROM here WHERE path = ANY(:parents) AND NOT is_directory) THEN 'parent_is_file'
        WHEN (SELECT COALESCE(sum(size), 0) FROM here) + COALESCE(octet_length(:content), 0) > :max_scope
            THEN 'scope_full'
        WHEN (SELECT count(*) FROM (SELECT path FROM here UNION SELECT path FROM new) AS all_paths) > :max_entries
            THEN 'too_many'
        ELSE 'done'
    END AS verdict
), kept AS (
    INSERT INTO memories (owner, scope, path, content, written_by)
    SELECT :owner, :scope, new.path, new.content, :key FROM new, verdict WHERE verdict = 'done'
    ON CONFLICT DO NOTHING
), {NOTED}
"""

CHANGE: Final = f"""
WITH verdict AS (
    SELECT CASE
        WHEN {KNOWN} THEN 'repeated'
        WHEN {ORPHANED} THEN 'forgotten'
        WHEN file.owner IS NULL THEN 'missing'
        WHEN file.content IS NULL THEN 'is_directory'
        WHEN strpos(file.content, :old) = 0 OR (:old = '' AND file.content <> '') THEN 'not_found'
        WHEN file.size + grown.bytes > :max_file THEN 'file_full'
        WHEN (SELECT sum(size) FROM memories WHERE owner = :owner AND scope = :scope) + grown.bytes > :max_scope
            THEN 'scope_full'
        ELSE 'done'
    END AS verdict
    FROM (SELECT octet_length(:new::text) - octet_length(:old::text) AS bytes) AS grown
    LEFT JOIN memories AS file ON file.owner = :owner AND file.scope = :scope AND file.path = :path
), changed AS (
    UPDATE memories SET
        content = overlay(content PLACING :new FROM strpos(content, :old) FOR char_length(:old)),
        written_by = :key, updated_at = now(),
        -- Each session once, and only in scopes that erasure reads it for: lasting files have too many writers.
        former_writers = CASE
            WHEN :passing AND split_part(written_by, ':', 1) <> ALL(former_writers)
            THEN former_writers || split_part(written_by, ':', 1) ELSE former_writers
        END
    FROM verdict
    WHERE verdict = 'done' AND owner = :owner AND scope = :scope AND path = :path
), {NOTED}
"""

DELETE: Final = f"""
WITH here AS (
    {HERE}
), verdict AS (
    SELECT CASE
        WHEN {KNOWN} THEN 'repeated'
        WHEN {ORPHANED} THEN 'forgotten'
        WHEN NOT EXISTS (SELECT FROM here WHERE path = :path) THEN 'missing'
        WHEN EXISTS (SELECT FROM here WHERE starts_with(path, :path || '/')) THEN 'not_empty'
        ELSE 'done'
    END AS verdict
), deleted AS (
    DELETE FROM memories USING verdict WHERE verdict = 'done' AND owner = :owner AND scope = :scope AND path = :path
), {NOTED}
"""

READ: Final = "SELECT content FROM memories WHERE owner = :owner AND scope = :scope AND path = :path"
EXISTS: Final = """
    SELECT EXISTS (
        SELECT FROM memories WHERE owner = :owner AND scope = :scope AND path = :path AND (content IS NULL) = :directory
    )
"""
# The root contains all of a scope, and exists without a row.
LIST: Final = """
    SELECT path, content IS NULL AS is_directory, size, updated_at FROM memories
    WHERE owner = :owner AND scope = :scope AND (:path = '' OR starts_with(path, :path || '/'))
    ORDER BY path
"""
SIZE: Final = """
    SELECT sum(size) FROM memories
    WHERE owner = :owner AND scope = :scope AND (:path = '' OR path = :path OR starts_with(path, :path || '/'))
"""


class Memories:
    """The memory files of a database. Paths are normalised: `a/b.md`, and "" for the root."""

    def __init__(self, db: Database) -> None:
        self._db = db

    async def read(self, scope: Scope, path: str) -> File | None:
        row = await self._db.row(READ, owner=scope.owner, scope=scope.key, path=path)
        return File(row["content"]) if row else None

    async def exists(self, scope: Scope, path: str, *, directory: bool) -> bool:
        return (directory and path == "") or bool(
            await self._db.value(EXISTS, owner=scope.owner, scope=scope.key, path=path, directory=directory)
        )

    async def list(self, scope: Scope, path: str = "") -> list[FileEntry]:
        """All files and directories below a directory, at every depth."""
        return [FileEntry(*row) for row in await self._db.rows(LIST, owner=scope.owner, scope=scope.key, path=path)]

    async def size(self, scope: Scope, path: str = "") -> int | None:
        """Bytes of a file, or of all files below a directory; None if the path does not exist."""
        size = await self._db.value(SIZE, owner=scope.owner, scope=scope.key, path=path)
        return 0 if size is None and path == "" else size

    async def write(self, scope: Scope, path: str, content: str, *, key: str) -> Verdict:
        """Creates a file and its parent directories."""
        if len(content.encode()) > MAX_FILE:
            return "file_full"
        return await self._create(scope, path, content, key)

    async def make_dir(self, scope: Scope, path: str, *, key: str) -> Verdict:
        """Creates a directory and its parents; one that exists stays as it is."""
        return await self._create(scope, path, None, key)

    async def update(self, scope: Scope, path: str, old: str, new: str, *, key: str) -> Verdict:
        """Replaces the first `old` in a file by `new`; an empty `old` matches only an empty file."""
        limits = {"max_file": MAX_FILE, "max_scope": MAX_SCOPE}
        return await self._locked(scope, CHANGE, key=key, path=path, old=old, new=new, passing=scope.passing, **limits)

    async def delete(self, scope: Scope, path: str, *, key: str) -> Verdict:
        """Deletes a file, or an empty directory."""
        return await self._locked(scope, DELETE, key=key, path=path)

    async def _create(self, scope: Scope, path: str, content: str | None, key: str) -> Verdict:
        names = path.split("/")
        parents = ["/".join(names[:depth]) for depth in range(1, len(names))]
        values = {"path": path, "content": content, "parents": parents}
        return await self._locked(scope, KEEP, key=key, max_scope=MAX_SCOPE, max_entries=MAX_ENTRIES, **values)

    async def _locked(self, scope: Scope, sql: str, **values: object) -> Verdict:
        row = await self._db.alone((LOCKS, scope.lock), sql, owner=scope.owner, scope=scope.key, **values)
        assert row is not None
        verdict: Verdict = row["verdict"]
        return verdict


def of_owner(owner: str) -> Scope:
    return Scope(owner, _key("owner"))


def of_agent(owner: str, user: str | None, agent: str, conversation: str) -> Scope:
    """A user's scope with an agent; without a user, one conversation, since an API key may stand for many people."""
    if user and user.strip():
        return Scope(owner, _key("agent", user, agent))
    return Scope(owner, _key("agent", None, agent, conversation), passing=True)


def of_conversation(owner: str, user: str | None, conversation: str) -> Scope:
    # The local owner once did not count as a user: with the old key, the files of old conversations are found.
    return Scope(
        owner, _key("conversation", None if user == owner == LOCAL_OWNER else user, conversation), passing=True
    )


def passing(owner: str, user: str | None, agent: str, conversation: str) -> set[Scope]:
    """The scopes of a session that are deleted with its conversation, whichever scope its template uses."""
    shared = (of_agent(owner, user, agent, conversation), of_conversation(owner, user, conversation))
    return {scope for scope in shared if scope.passing}


def _key(*parts: str | None) -> str:
    # JSON keeps the parts apart: no name can be chosen to look like two parts.
    key = msgspec.json.encode(parts)
    return key.decode() if len(key) <= LONGEST_KEY else hashlib.sha256(key).hexdigest()
