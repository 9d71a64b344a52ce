"""Files stored by digest: event bodies that are too long for a row, and files that users send."""

import asyncio
import base64
import hashlib
import re
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from contextvars import ContextVar
from typing import Final

from longhouse.errors import LonghouseError
from longhouse.store.database import Executor
from longhouse.store.requests import Repeated

_MEDIA_TYPE: Final = re.compile(r"[a-z0-9][a-z0-9.+-]{0,63}/[a-z0-9][a-z0-9.+-]{0,63}")

PUT: Final = """
    INSERT INTO files (digest, media_type, content) VALUES (:digest, :media_type, :content)
    ON CONFLICT (digest) DO NOTHING
"""
# To a session exists what it holds: what others have stored is not there.
GET: Final = """
    SELECT f.digest, COALESCE(held.media_type, f.media_type) AS media_type, f.content
    FROM session_files held JOIN files f ON f.digest = held.digest
    WHERE held.session_id = :session AND held.digest = ANY(:digests)
"""
HELD: Final = """
    SELECT digest, max(media_type) AS media_type FROM (
        SELECT digest, media_type FROM session_files WHERE session_id = ANY(:ids)
        UNION ALL
        SELECT body_digest, 'application/json' FROM journal WHERE session_id = ANY(:ids) AND body_digest IS NOT NULL
    ) AS held GROUP BY digest
"""
# With `session`, deletes only if that session has been erased.
UNUSED: Final = """
    DELETE FROM files f WHERE f.digest = ANY(:digests)
      AND NOT EXISTS (SELECT FROM session_files held WHERE held.digest = f.digest)
      AND NOT EXISTS (SELECT FROM journal j WHERE j.body_digest = f.digest)
      AND (:session::text IS NULL OR NOT EXISTS (SELECT FROM sessions s WHERE s.id = :session))
"""
# How many files no other session of the owner holds than these; nobody learns who else has the same bytes.
USED_BY_THESE: Final = f"""
    SELECT count(*) FROM ({HELD}) AS theirs WHERE NOT EXISTS (
        SELECT FROM session_files held JOIN sessions s ON s.id = held.session_id
        WHERE held.digest = theirs.digest AND s.owner = :owner AND s.id <> ALL(:ids)
    ) AND NOT EXISTS (
        SELECT FROM journal j JOIN sessions s ON s.id = j.session_id
        WHERE j.body_digest = theirs.digest AND s.owner = :owner AND s.id <> ALL(:ids)
    )
"""

_STORED: Final = ContextVar[tuple[asyncio.Task[object] | None, set[str]] | None]("stored", default=None)
"""What this task has stored for its append: tasks that it starts have it too, and store for themselves."""


def safe_media_type(named: str) -> str:
    """The type of a file as a header may have it: anybody may have named it."""
    return named if _MEDIA_TYPE.fullmatch(named) else "application/octet-stream"


def digest_of(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


async def put(db: Executor, content: bytes, media_type: str) -> str:
    digest = digest_of(content)
    is_new = await db.run(PUT, digest=digest, media_type=media_type, content=content) == "INSERT 0 1"
    stored = _STORED.get()
    if is_new and stored and stored[0] is asyncio.current_task():
        stored[1].add(digest)
    return digest


@asynccontextmanager
async def for_append(db: Executor) -> AsyncIterator[None]:
    """Deletes again what is stored in here for an append that is refused, or that does not need it. After any other
    error the append may still be written."""
    stored: set[str] = set()
    refusal: Exception | None = None
    token = _STORED.set((asyncio.current_task(), stored))
    try:
        yield
    except (LonghouseError, LookupError, Repeated) as error:
        refusal = error
    finally:
        _STORED.reset(token)
    await drop_unused(db, stored)
    if refusal:
        raise refusal


async def of_session(db: Executor, session: str, digests: Iterable[str]) -> dict[str, tuple[str, bytes]]:
    """Those of these files that the session holds, by digest: media type and content."""
    rows = await db.rows(GET, session=session, digests=list(digests))
    return {digest: (media_type, content) for digest, media_type, content in rows}


async def data_urls(db: Executor, session: str, digests: Iterable[str]) -> dict[str, str]:
    """Digest -> data URL, the form in which a file of the session is sent to a model."""
    found = await of_session(db, session, digests)
    return {
        digest: f"data:{media_type};base64,{base64.b64encode(content).decode()}"
        for digest, (media_type, content) in found.items()
    }


async def held(db: Executor, ids: Sequence[str]) -> dict[str, str | None]:
    """The files that these sessions hold, long bodies too, with their media types as far as they are known."""
    return dict(await db.rows(HELD, ids=list(ids)))


async def drop_unused(db: Executor, digests: Iterable[str], *, session: str | None = None) -> None:
    """Deletes those of these files that no session holds; with `session`, only if that session no longer exists.

    A file that another process stores again at the same moment, and does not refer to yet, would be deleted too.
    """
    if digests:
        await db.run(UNUSED, digests=list(digests), session=session)
