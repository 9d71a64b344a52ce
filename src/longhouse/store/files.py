"""Files stored by digest: event bodies that are too long for a row, and files that users send."""

import base64
import hashlib
from collections.abc import Iterable, Sequence
from typing import Final

from longhouse.store.database import Database, Executor

PUT: Final = """
    INSERT INTO files (digest, media_type, content) VALUES (:digest, :media_type, :content)
    ON CONFLICT (digest) DO NOTHING
"""
CONTENT: Final = "SELECT content FROM files WHERE digest = :digest"
GET: Final = "SELECT digest, media_type, content FROM files WHERE digest = ANY(:digests)"
SHOWN: Final = """
    SELECT f.media_type, f.content FROM files f WHERE f.digest = :digest AND EXISTS (
        SELECT FROM journal j LEFT JOIN files long ON long.digest = j.body_digest
        WHERE j.session_id = :session AND j.kind = 'Prompted'
          AND (position('longhouse-file:' || f.digest IN j.body::text) > 0
               OR position(convert_to('longhouse-file:' || f.digest, 'UTF8') IN long.content) > 0)
    )
"""

_UNUSED: Final = """
    f.digest = ANY(:digests)
      AND NOT EXISTS (SELECT FROM journal j WHERE j.body_digest = f.digest {besides})
      AND NOT EXISTS (SELECT FROM journal j WHERE j.kind = 'Stored' AND j.body ->> 'digest' = f.digest {besides})
      AND NOT EXISTS (
          SELECT FROM journal j WHERE j.kind = 'Prompted' AND j.body::text LIKE '%longhouse-file:%'
          AND position('longhouse-file:' || f.digest IN j.body::text) > 0 {besides}
      )
      AND NOT EXISTS (
          SELECT FROM journal j JOIN files long ON long.digest = j.body_digest
          WHERE j.kind = 'Prompted' AND j.body_digest IS NOT NULL
            AND position(convert_to('longhouse-file:' || f.digest, 'UTF8') IN long.content) > 0 {besides}
      )
"""
# With `session`, deletes only if that session has been erased.
UNUSED: Final = f"""
    DELETE FROM files f WHERE {_UNUSED.format(besides="")}
      AND (:session::text IS NULL OR NOT EXISTS (SELECT FROM sessions s WHERE s.id = :session))
"""
USED_BY_THESE: Final = f"""
    SELECT count(*) FROM files f WHERE {_UNUSED.format(besides="AND j.session_id <> ALL(:ids)")}
"""


def digest_of(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


async def put(db: Executor, content: bytes, media_type: str) -> str:
    digest = digest_of(content)
    await db.run(PUT, digest=digest, media_type=media_type, content=content)
    return digest


async def content(db: Database, digest: str) -> bytes | None:
    found: bytes | None = await db.value(CONTENT, digest=digest)
    return found


async def shown(db: Database, session: str, digest: str) -> tuple[str, bytes] | None:
    """Media type and content of an image that was sent to this session."""
    row = await db.row(SHOWN, session=session, digest=digest)
    return (row["media_type"], row["content"]) if row else None


async def drop_unused(db: Executor, digests: Sequence[str], *, session: str | None = None) -> int:
    """Deletes those of these files that no journal refers to; with `session`, only if that session no longer exists.
    Returns how many.

    A file that another process stores again at the same moment, and does not refer to yet, would be deleted too.
    """
    tag = await db.run(UNUSED, digests=list(digests), session=session) if digests else "DELETE 0"
    return int(tag.rpartition(" ")[2])


async def count_used_by(db: Executor, digests: Sequence[str], ids: Sequence[str]) -> int:
    """How many of these files no other session than these refers to."""
    return int(await db.value(USED_BY_THESE, digests=list(digests), ids=list(ids))) if digests else 0


async def data_urls(db: Database, digests: Iterable[str]) -> dict[str, str]:
    """Digest -> data URL, the form in which a file is sent to a model."""
    rows = await db.rows(GET, digests=list(digests))
    return {
        row["digest"]: f"data:{row['media_type']};base64,{base64.b64encode(row['content']).decode()}" for row in rows
    }
