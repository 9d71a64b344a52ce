"""Memory files of agents. Each change is one statement under the scope's lock, made once for each call."""

import hashlib
from dataclasses import dataclass
from datetime import datetime
from typing import Final, Literal

from longhouse.store.database import Database

MAX_FILE: Final = 1024 * 1024
"""Bytes of one file: far more than a model can read at once, but still a small row."""

MAX_SCOPE: Final = 20 * 1024 * 1024
"""Bytes of all files of a scope: years of notes, and a thousand scopes still fit a small disk."""

MAX_ENTRIES: Final = 1_000
"""Files and directories of a scope: few enough to list whole, and to count at every change."""

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


# In all changes $1 is the owner, $2 the scope, $3 the key of the call. The CTE `verdict` decides; the other parts of
# the statement write only when it is "done".
KNOWN: Final = "EXISTS (SELECT FROM memory_calls WHERE owner = $1 AND scope = $2 AND key = $3)"
# Erasure takes the same lock: it finds what was written before it, and later writes find the row in `forgotten`.
ORPHANED: Final = "EXISTS (SELECT FROM forgotten WHERE session_id = split_part($3, ':', 1))"
HERE: Final = "SELECT path, content IS NULL AS is_directory, size FROM memories WHERE owner = $1 AND scope = $2"
# The worker that takes over repeats a call, mostly within seconds; 30 days cover a server that was switched off.
NOTED: Final = """
    noted AS (
        INSERT INTO memory_calls (owner, scope, key) SELECT $1, $2, $3 FROM verdict WHERE verdict = 'done'
    ), swept AS (
        DELETE FROM memory_calls WHERE owner = $1 AND scope = $2 AND at < now() - interval '30 days'
    )
    SELECT verdict FROM verdict
"""

KEEP: Final = f"""
WITH here AS (
    {HERE}
), new AS (
    SELECT $4::text AS path, $5::text AS content
    UNION ALL
    SELECT parent, NULL FROM unnest($6::text[]) AS parent
), verdict AS (
    SELECT CASE
        WHEN {KNOWN} THEN 'repeated'
        WHEN {ORPHANED} THEN 'forgotten'
        WHEN EXISTS (SELECT FROM here WHERE path = $4 AND is_directory AND $5 IS NOT NULL) THEN 'is_directory'
        WHEN EXISTS (SELECT FROM here WHERE path = $4 AND NOT is_directory AND $5 IS NULL) THEN 'is_file'
        WHEN EXISTS (SELECT FROM here WHERE path = $4 AND NOT is_directory) THEN 'exists'
        WHEN EXISTS (SELECT FROM here WHERE path = ANY($6) AND NOT is_directory) THEN 'parent_is_file'
        WHEN (SELECT COALESCE(sum(size), 0) FROM here) + COALESCE(octet_length($5), 0) > $7 THEN 'scope_full'
        WHEN (SELECT count(*) FROM (SELECT path FROM here UNION SELECT path FROM new) AS all_paths) > $8 THEN 'too_many'
        ELSE 'done'
    END AS verdict
), kept AS (
    INSERT INTO memories (owner, scope, path, content, written_by)
    SELECT $1, $2, new.path, new.content, $3 FROM new, verdict WHERE verdict = 'done'
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
        WHEN strpos(file.content, $5) = 0 OR ($5 = '' AND file.content <> '') THEN 'not_found'
        WHEN file.size + grown.bytes > $7 THEN 'file_full'
        WHEN (SELECT sum(size) FROM memories WHERE owner = $1 AND scope = $2) + grown.bytes > $8 THEN 'scope_full'
        ELSE 'done'
    END AS verdict
    FROM (SELECT octet_length($6::text) - octet_length($5::text) AS bytes) AS grown
    LEFT JOIN memories AS file ON file.owner = $1 AND file.scope = $2 AND file.path = $4
), changed AS (
    UPDATE memories SET
        content = overlay(content PLACING $6 FROM strpos(content, $5) FOR char_length($5)),
        written_by = $3, updated_at = now(),
        -- Each session once, and only in scopes that erasure reads it for: lasting files have too many writers.
        former_writers = CASE
            WHEN $9 AND split_part(written_by, ':', 1) <> ALL(former_writers)
            THEN former_writers || split_part(written_by, ':', 1) ELSE former_writers
        END
    FROM verdict
    WHERE verdict = 'done' AND owner = $1 AND scope = $2 AND path = $4
), {NOTED}
"""

DELETE: Final = f"""
WITH here AS (
    {HERE}
), verdict AS (
    SELECT CASE
        WHEN {KNOWN} THEN 'repeated'
        WHEN {ORPHANED} THEN 'forgotten'
        WHEN NOT EXISTS (SELECT FROM here WHERE path = $4) THEN 'missing'
        WHEN EXISTS (SELECT FROM here WHERE starts_with(path, $4 || '/')) THEN 'not_empty'
        ELSE 'done'
    END AS verdict
), deleted AS (
    DELETE FROM memories USING verdict WHERE verdict = 'done' AND owner = $1 AND scope = $2 AND path = $4
), {NOTED}
"""

READ: Final = "SELECT content FROM memories WHERE owner = $1 AND scope = $2 AND path = $3"
EXISTS: Final = """
    SELECT EXISTS (
        SELECT FROM memories WHERE owner = $1 AND scope = $2 AND path = $3 AND (content IS NULL) = $4
    )
"""
# The root contains all of a scope, and exists without a row.
LIST: Final = """
    SELECT path, content IS NULL AS is_directory, size, updated_at FROM memories
    WHERE owner = $1 AND scope = $2 AND ($3 = '' OR starts_with(path, $3 || '/'))
    ORDER BY path
"""
SIZE: Final = """
    SELECT sum(size) FROM memories
    WHERE owner = $1 AND scope = $2 AND ($3 = '' OR path = $3 OR starts_with(path, $3 || '/'))
"""


class Memories:
    """The memory files of a database. Paths are normalised: `a/b.md`, and "" for the root."""

    def __init__(self, db: Database) -> None:
        self._db = db

    async def read(self, scope: Scope, path: str) -> File | None:
        row = await self._db.row(READ, scope.owner, scope.key, path)
        return File(row["content"]) if row else None

    async def exists(self, scope: Scope, path: str, *, directory: bool) -> bool:
        return (directory and path == "") or bool(await self._db.value(EXISTS, scope.owner, scope.key, path, directory))

    async def list(self, scope: Scope, path: str = "") -> list[FileEntry]:
        """All files and directories below a directory, at every depth."""
        return [FileEntry(*row) for row in await self._db.rows(LIST, scope.owner, scope.key, path)]

    async def size(self, scope: Scope, path: str = "") -> int | None:
        """Bytes of a file, or of all files below a directory; None if the path does not exist."""
        size = await self._db.value(SIZE, scope.owner, scope.key, path)
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
        return await self._locked(scope, CHANGE, key, path, old, new, MAX_FILE, MAX_SCOPE, scope.passing)

    async def delete(self, scope: Scope, path: str, *, key: str) -> Verdict:
        """Deletes a file, or an empty directory."""
        return await self._locked(scope, DELETE, key, path)

    async def _create(self, scope: Scope, path: str, content: str | None, key: str) -> Verdict:
        return await self._locked(scope, KEEP, key, path, content, _parents(path), MAX_SCOPE, MAX_ENTRIES)

    async def _locked(self, scope: Scope, sql: str, *args: object) -> Verdict:
        row = await self._db.alone((LOCKS, scope.lock), sql, scope.owner, scope.key, *args)
        assert row is not None
        verdict: Verdict = row["verdict"]
        return verdict


def _parents(path: str) -> list[str]:
    names = path.split("/")
    return ["/".join(names[:depth]) for depth in range(1, len(names))]
