"""API keys: stored and looked up by digest, shown once when created, revoked for ever."""

import hashlib
import secrets
import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final, Literal

from longhouse.store.database import Database

Role = Literal["user", "admin"]

PREFIX: Final = "lh_"
"""Makes a key recognisable wherever it appears, for example to secret scanners."""
RANDOM_BYTES: Final = 32

COLUMNS: Final = "id, name, owner, role, rate_limit, max_concurrent, sessions_per_hour, created_at, revoked_at"

# A retry with the same id finds its own row.
CREATE: Final = f"""
    INSERT INTO api_keys (id, name, owner, role, digest, rate_limit, max_concurrent, sessions_per_hour)
    VALUES ($1, $2, $3, $4, $5, $6, $7, $8)
    ON CONFLICT (id) DO UPDATE SET name = EXCLUDED.name
    RETURNING {COLUMNS}
"""

FIND: Final = f"SELECT {COLUMNS} FROM api_keys WHERE digest = $1 AND revoked_at IS NULL"

LIST: Final = f"""
    SELECT {COLUMNS} FROM api_keys
    WHERE $1::timestamptz IS NULL OR (created_at, id) < ($1, $2)
    ORDER BY created_at DESC, id DESC LIMIT $3
"""

REVOKE: Final = "UPDATE api_keys SET revoked_at = COALESCE(revoked_at, now()) WHERE id = $1 RETURNING id"

IS_ANY_VALID: Final = "SELECT EXISTS (SELECT FROM api_keys WHERE revoked_at IS NULL)"

REVOKED: Final = "SELECT id FROM api_keys WHERE id = ANY($1::text[]) AND revoked_at IS NOT NULL"


@dataclass(frozen=True, slots=True)
class Key:
    """An API key as lists show it: without the secret and its digest."""

    id: str
    name: str
    owner: str
    role: Role
    rate_limit: int | None
    """Requests per minute; None: the default of the settings, as for the other limits."""
    max_concurrent: int | None
    sessions_per_hour: int | None
    created_at: datetime
    revoked_at: datetime | None


def digest_of(secret: str) -> str:
    """The stored form of a key. A key is long and random, so a plain digest cannot be reversed."""
    return hashlib.sha256(secret.encode(errors="surrogateescape")).hexdigest()


async def create(
    db: Database,
    *,
    name: str,
    owner: str,
    role: Role,
    rate_limit: int | None = None,
    max_concurrent: int | None = None,
    sessions_per_hour: int | None = None,
) -> tuple[Key, str]:
    """Creates a key; returns it with its secret, which cannot be shown again."""
    secret = PREFIX + secrets.token_urlsafe(RANDOM_BYTES)
    row = await db.row(
        CREATE,
        f"key_{uuid.uuid4().hex}",
        name,
        owner,
        role,
        digest_of(secret),
        rate_limit,
        max_concurrent,
        sessions_per_hour,
    )
    assert row is not None
    return Key(*row), secret


async def find(db: Database, secret: str) -> Key | None:
    """The key with this secret, unless it was revoked."""
    row = await db.row(FIND, digest_of(secret))
    return Key(*row) if row else None


async def listed(db: Database, *, before: tuple[datetime, str] | None = None, limit: int) -> Sequence[Key]:
    """A page of keys, newest first, with revoked ones; `before` is the last row of the previous page."""
    rows = await db.rows(LIST, before[0] if before else None, before[1] if before else None, limit)
    return [Key(*row) for row in rows]


async def revoke(db: Database, key_id: str) -> bool:
    """Revokes a key; False if there is no such key."""
    if "\x00" in key_id:
        return False  # Postgres refuses NUL characters even in a look-up
    return await db.value(REVOKE, key_id) is not None


async def is_any_valid(db: Database) -> bool:
    return bool(await db.value(IS_ANY_VALID))


async def revoked(db: Database, key_ids: Iterable[str]) -> list[str]:
    """The ids among these that belong to revoked keys."""
    return [row["id"] for row in await db.rows(REVOKED, list(key_ids))]
