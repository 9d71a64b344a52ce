"""Bytes under their digest: what is too big for a row, and what people send."""

import base64
import hashlib
from collections.abc import Iterable

from longhouse.store.database import Asked, Database

PUT = "INSERT INTO files (digest, media_type, content) VALUES ($1, $2, $3) ON CONFLICT (digest) DO NOTHING"
CONTENT = "SELECT content FROM files WHERE digest = $1"
GET = "SELECT digest, media_type, content FROM files WHERE digest = ANY($1)"


def digest_of(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


async def put(db: Asked, content: bytes, media_type: str) -> str:
    digest = digest_of(content)
    await db.run(PUT, digest, media_type, content)
    return digest


async def content(db: Database, digest: str) -> bytes | None:
    found: bytes | None = await db.value(CONTENT, digest)
    return found


async def data_urls(db: Database, digests: Iterable[str]) -> dict[str, str]:
    """Digest -> data URL, the form in which a model is shown a file."""
    rows = await db.rows(GET, list(digests))
    return {
        row["digest"]: f"data:{row['media_type']};base64,{base64.b64encode(row['content']).decode()}" for row in rows
    }
