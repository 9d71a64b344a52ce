"""Memory files of agents, in scopes: of one owner, of one user with one agent, or of one conversation.

Each change is one statement under the scope's lock, made once for each call.
"""

from collections.abc import Sequence
from datetime import datetime
from typing import Final, Literal

import msgspec

from longhouse.store.database import Database, Transaction
from longhouse.store.memory.memory_scopes import Scope
from longhouse.store.search import passages

MAX_FILE: Final = 1024 * 1024
"""Bytes of one file: far more than a model can read at once, but still a small row."""

MAX_SCOPE: Final = 20 * 1024 * 1024
"""Bytes of all files of a scope: years of notes, and a thousand scopes still fit a small disk."""

MAX_ENTRIES: Final = 1_000
"""Files and directories of a scope: few enough to list whole, and to count at every change."""

LOCKS: Final = 0x6D656D6F  # "memo"
PASSAGES: Final = "file"
"""The kind of passages that files are indexed as; a file's group is its path."""

Verdict = Literal[
    "done", "repeated", "missing", "exists", "is_file", "is_directory", "parent_is_file", "not_empty", "not_found",
    "file_full", "scope_full", "too_many", "forgotten",
]  # fmt: skip
"""The result of a change; `repeated`: this call has already made it; `forgotten`: its session has been erased."""


class FileEntry(msgspec.Struct, frozen=True):
    path: str
    is_directory: bool
    size: int
    updated_at: datetime


class ScopedEntry(msgspec.Struct, frozen=True):
    """A file or directory, with the key of its scope and the call that wrote it last."""

    scope: str
    path: str
    is_directory: bool
    size: int
    updated_at: datetime
    written_by: str

    @property
    def id(self) -> str:
        """Unique among the files of an owner: neither keys nor paths contain a line break."""
        return f"{self.scope}\n{self.path}"


class FileVersion(msgspec.Struct, frozen=True):
    """A file at one moment; each change has another `version`."""

    path: str
    content: str
    version: str
    updated_at: datetime


class File(msgspec.Struct, frozen=True):
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

# Of a file that is replaced, the former writer is kept as with a change: the new text may repeat the old one.
FORMER: Final = """
    CASE
        WHEN split_part(m.written_by, ':', 1) = ANY(m.former_writers) THEN m.former_writers
        -- Lasting files have too many writers: they name those of other users alone, and a few of them.
        WHEN :passing OR cardinality(m.former_writers) < 20 AND (
            SELECT s."user" FROM sessions s WHERE s.id = split_part(m.written_by, ':', 1)
        ) IS DISTINCT FROM (SELECT s."user" FROM sessions s WHERE s.id = split_part(:key, ':', 1))
        THEN m.former_writers || split_part(m.written_by, ':', 1) ELSE m.former_writers
    END
"""


def _placing(*, refusals: str = "", on_conflict: str) -> str:
    """The statement that puts a file or a directory at a path, and its parents above it."""
    return f"""
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
        {refusals}
        WHEN EXISTS (SELECT FROM here WHERE path = ANY(:parents) AND NOT is_directory) THEN 'parent_is_file'
        WHEN (SELECT COALESCE(sum(size), 0) FROM here WHERE path <> :path) + COALESCE(octet_length(:content), 0)
             > :max_scope THEN 'scope_full'
        WHEN (SELECT count(*) FROM (SELECT path FROM here UNION SELECT path FROM new) AS all_paths) > :max_entries
            THEN 'too_many'
        ELSE 'done'
    END AS verdict
), kept AS (
    INSERT INTO memories AS m (owner, scope, path, content, written_by)
    SELECT :owner, :scope, new.path, new.content, :key FROM new, verdict WHERE verdict = 'done'
    ON CONFLICT {on_conflict}
), {NOTED}
"""


KEEP: Final = _placing(
    refusals="""
        WHEN EXISTS (SELECT FROM here WHERE path = :path AND NOT is_directory AND :content IS NULL) THEN 'is_file'
        WHEN EXISTS (SELECT FROM here WHERE path = :path AND NOT is_directory) THEN 'exists'
    """,
    on_conflict="DO NOTHING",
)
REPLACE: Final = _placing(
    on_conflict=f"""(owner, scope, path) DO UPDATE SET
        content = EXCLUDED.content, written_by = :key, updated_at = now(), former_writers = {FORMER}
        WHERE EXCLUDED.content IS NOT NULL
    """
)

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
    UPDATE memories m SET
        content = overlay(content PLACING :new FROM strpos(content, :old) FOR char_length(:old)),
        written_by = :key, updated_at = now(), former_writers = {FORMER}
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
ENTRIES: Final = """
    SELECT scope, path, content IS NULL AS is_directory, size, updated_at, written_by FROM memories
"""
ENTRY: Final = f"{ENTRIES} WHERE owner = :owner AND scope = :scope AND path = :path"
NEWEST: Final = f"""
    {ENTRIES} WHERE owner = :owner AND scope LIKE ANY(:scopes) AND (content IS NOT NULL OR :directories)
      AND (:moment::timestamptz IS NULL
           OR (updated_at, convert_to(scope || E'\\n' || path, 'UTF8')) < (:moment, convert_to(:entry, 'UTF8')))
    ORDER BY updated_at DESC, convert_to(scope || E'\\n' || path, 'UTF8') DESC LIMIT :limit
"""
INDEXED: Final = (
    f"SELECT EXISTS (SELECT FROM passages WHERE scope = :scope AND kind = '{PASSAGES}' AND source = :first)"
)
# Each change is made by a call of its own, so that the call tells versions apart. Every file has a first passage.
UNINDEXED: Final = f"""
    WITH waiting AS (
        SELECT m.path, m.content, m.written_by, m.updated_at,
               sum(m.size) OVER (ORDER BY m.updated_at DESC, m.path) - m.size AS before
        FROM memories m LEFT JOIN LATERAL (
            -- LIMIT makes it one look-up in the index for each file, whatever the planner believes about the table.
            SELECT facts ->> 'version' AS version FROM passages
            WHERE scope = :passages AND kind = '{PASSAGES}' AND source = m.path || '#0' LIMIT 1
        ) p ON true
        WHERE m.owner = :owner AND m.scope = :scope AND m.content IS NOT NULL
          AND p.version IS DISTINCT FROM m.written_by
    )
    SELECT path, content, written_by, updated_at FROM waiting WHERE before < :most ORDER BY updated_at DESC, path
"""
READ_ALL: Final = """
    SELECT path, content, written_by, updated_at FROM memories
    WHERE owner = :owner AND scope = :scope AND path = ANY(:paths) AND content IS NOT NULL
"""
VERSIONS: Final = """
    SELECT path, written_by FROM memories
    WHERE owner = :owner AND scope = :scope AND path = ANY(:paths) AND content IS NOT NULL
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
        self.db = db

    async def read(self, scope: Scope, path: str) -> File | None:
        return await self.db.read_one(File, READ, **scope.named, path=path)

    async def exists(self, scope: Scope, path: str, *, directory: bool) -> bool:
        return (directory and path == "") or bool(
            await self.db.value(EXISTS, **scope.named, path=path, directory=directory)
        )

    async def entry(self, scope: Scope, path: str) -> ScopedEntry | None:
        return await self.db.read_one(ScopedEntry, ENTRY, **scope.named, path=path)

    async def newest(
        self,
        owner: str,
        scopes: Sequence[str],
        *,
        before: tuple[datetime, str] | None,
        limit: int,
        directories: bool = False,
    ) -> list[ScopedEntry]:
        """The files of an owner in all scopes whose keys match one of these patterns, the last written first."""
        moment, entry = before or (None, "")
        where = {"owner": owner, "scopes": scopes, "directories": directories}
        return await self.db.read(ScopedEntry, NEWEST, **where, moment=moment, entry=entry, limit=limit)

    async def read_all(self, scope: Scope, paths: Sequence[str]) -> Sequence[FileVersion]:
        """Those of these files that are there."""
        return await self.db.read(FileVersion, READ_ALL, **scope.named, paths=paths)

    async def unindexed(self, scope: Scope, *, most: int) -> Sequence[FileVersion]:
        """Files that are not in the index as they are now, the newest first: about so many bytes, and at least one."""
        return await self.db.read(FileVersion, UNINDEXED, **scope.named, passages=scope.passages, most=most)

    async def list(self, scope: Scope, path: str = "") -> list[FileEntry]:
        """All files and directories below a directory, at every depth."""
        return await self.db.read(FileEntry, LIST, **scope.named, path=path)

    async def size(self, scope: Scope, path: str = "") -> int | None:
        """Bytes of a file, or of all files below a directory; None if the path does not exist."""
        size = await self.db.value(SIZE, **scope.named, path=path)
        return 0 if size is None and path == "" else size

    async def write(self, scope: Scope, path: str, content: str, *, key: str) -> Verdict:
        """Creates a file and its parent directories."""
        return await self._put(KEEP, scope, path, content, key=key)

    async def replace(self, scope: Scope, path: str, content: str, *, key: str) -> Verdict:
        """Writes the whole of a file, whether it exists or not; creates its parent directories."""
        return await self._put(REPLACE, scope, path, content, key=key, passing=scope.passing)

    async def make_dir(self, scope: Scope, path: str, *, key: str) -> Verdict:
        """Creates a directory and its parents; one that exists stays as it is."""
        return await self._put(KEEP, scope, path, None, key=key)

    async def update(self, scope: Scope, path: str, old: str, new: str, *, key: str) -> Verdict:
        """Replaces the first `old` in a file by `new`; an empty `old` matches only an empty file."""
        limits = {"max_file": MAX_FILE, "max_scope": MAX_SCOPE}
        return await self._locked(scope, CHANGE, key=key, path=path, old=old, new=new, passing=scope.passing, **limits)

    async def delete(self, scope: Scope, path: str, *, key: str) -> Verdict:
        """Deletes a file, or an empty directory."""
        return await self._locked(scope, DELETE, key=key, path=path)

    async def _put(self, sql: str, scope: Scope, path: str, content: str | None, **values: object) -> Verdict:
        if content is not None and len(content.encode()) > MAX_FILE:
            return "file_full"
        names = path.split("/")
        parents = ["/".join(names[:depth]) for depth in range(1, len(names))]
        values |= {"content": content, "parents": parents, "max_scope": MAX_SCOPE, "max_entries": MAX_ENTRIES}
        return await self._locked(scope, sql, path=path, **values)

    async def _locked(self, scope: Scope, sql: str, *, path: str, **values: object) -> Verdict:
        async def change(tx: Transaction) -> Verdict:
            # A statement sees the data as of its start, so the lock must be held before it starts.
            await tx.lock(LOCKS, scope.lock)
            verdict: Verdict = await tx.value(sql, **scope.named, path=path, **values)
            if verdict == "done" and await tx.value(INDEXED, scope=scope.passages, first=passage_source(path, 0)):
                # What the file said before is gone; what it says now is indexed when somebody searches.
                await passages.remove(tx, PASSAGES, scope=scope.passages, groups=[path])
            return verdict

        return await self.db.together(change)


def passage_source(path: str, number: int) -> str:
    """The source of a passage of a file, by its number in it."""
    return f"{path}#{number}"


async def versions(tx: Transaction, scope: Scope, paths: Sequence[str]) -> dict[str, str]:
    """Path -> the version of the file, for those that are there."""
    return dict(await tx.rows(VERSIONS, **scope.named, paths=paths))
