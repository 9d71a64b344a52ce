"""API keys: stored and looked up by digest, shown once when created, revoked for ever."""

import hashlib
import secrets
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Final, Literal

from longhouse.store.database import Database
from longhouse.store.pages import Position, page

Role = Literal["user", "admin"]

PREFIX: Final = "lh_"
"""Makes a key recognisable wherever it appears, for example to secret scanners."""
RANDOM_BYTES: Final = 32

COLUMNS: Final = """
    id, name, owner, role, rate_limit, max_concurrent, sessions_per_hour, max_running, created_at, revoked_at,
    last_used_at
"""

# A retry with the same id finds its own row.
CREATE: Final = f"""
    INSERT INTO api_keys (id, name, owner, role, digest, rate_limit, max_concurrent, sessions_per_hour, max_running)
    VALUES (:id, :name, :owner, :role, :digest, :rate_limit, :max_concurrent, :sessions_per_hour, :max_running)
    ON CONFLICT (id) DO UPDATE SET name = EXCLUDED.name
    RETURNING {COLUMNS}
"""

FIND: Final = f"SELECT {COLUMNS} FROM api_keys WHERE digest = :digest AND revoked_at IS NULL"

REVOKE: Final = "UPDATE api_keys SET revoked_at = COALESCE(revoked_at, now()) WHERE id = :id RETURNING id"

# The digest changes: what was bound to the old secret, browsers too, is not valid any more.
ROTATE: Final = f"UPDATE api_keys SET digest = :digest WHERE id = :id AND revoked_at IS NULL RETURNING {COLUMNS}"

USED: Final = """
    UPDATE api_keys k SET last_used_at = used.at
    FROM unnest(:ids::text[], :times::timestamptz[]) AS used (id, at)
    WHERE k.id = used.id AND (k.last_used_at IS NULL OR k.last_used_at < used.at)
"""

IS_ANY_VALID: Final = "SELECT EXISTS (SELECT FROM api_keys WHERE revoked_at IS NULL)"

INVALID: Final = """
    SELECT asked.digest FROM unnest(:digests::text[]) AS asked (digest)
    WHERE NOT EXISTS (SELECT FROM api_keys WHERE digest = asked.digest AND revoked_at IS NULL)
"""


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
    max_running: int | None
    """None here, and in the settings too: any number."""
    created_at: datetime
    revoked_at: datetime | None
    last_used_at: datetime | None
    """To about a minute; None: never, or not since this is recorded."""


def digest_of(secret: str) -> str:
    """The stored form of a key. A key is long and random, so a plain digest cannot be reversed."""
    return hashlib.sha256(secret.encode(errors="surrogateescape")).hexdigest()


def _new_secret() -> str:
    return PREFIX + secrets.token_urlsafe(RANDOM_BYTES)


async def create(
    db: Database,
    *,
    name: str,
    owner: str,
    role: Role,
    rate_limit: int | None = None,
    max_concurrent: int | None = None,
    sessions_per_hour: int | None = None,
    max_running: int | None = None,
) -> tuple[Key, str]:
    """Creates a key; returns it with its secret, which cannot be shown again."""
    secret = _new_secret()
    row = await db.row(
        CREATE,
        id=f"key_{uuid.uuid4().hex}",
        name=name,
        owner=owner,
        role=role,
        digest=digest_of(secret),
        rate_limit=rate_limit,
        max_concurrent=max_concurrent,
        sessions_per_hour=sessions_per_hour,
        max_running=max_running,
    )
    assert row is not None
    return Key(*row), secret


async def find(db: Database, secret: str) -> Key | None:
    """The key with this secret, unless it was revoked."""
    return await with_digest(db, digest_of(secret))


async def with_digest(db: Database, digest: str) -> Key | None:
    """The key with this digest, unless it was revoked."""
    row = await db.row(FIND, digest=digest)
    return Key(*row) if row else None


async def listed(db: Database, *, before: Position | None = None, limit: int) -> list[Key]:
    """A page of keys, newest first, with revoked ones."""
    select = f"SELECT {COLUMNS} FROM api_keys"
    return [Key(*row) for row in await page(db, select, by="created_at, id", before=before, limit=limit)]


async def revoke(db: Database, key_id: str) -> bool:
    """Revokes a key; False if there is no such key."""
    if "\x00" in key_id:
        return False  # Postgres refuses NUL characters even in a look-up
    return await db.value(REVOKE, id=key_id) is not None


async def rotate(db: Database, key_id: str) -> tuple[Key, str] | None:
    """Gives a key a new secret, which cannot be shown again; None if there is no such key, or it was revoked."""
    if "\x00" in key_id:
        return None
    secret = _new_secret()
    row = await db.row(ROTATE, id=key_id, digest=digest_of(secret))
    return (Key(*row), secret) if row else None


async def record_use(db: Database, used: Mapping[str, datetime]) -> None:
    """Records when these keys were used last."""
    ids = sorted(used)  # two processes lock the rows in the same order
    await db.run(USED, ids=ids, times=[used[one] for one in ids])


async def is_any_valid(db: Database) -> bool:
    return bool(await db.value(IS_ANY_VALID))


async def invalid(db: Database, digests: Iterable[str]) -> list[str]:
    """The digests among these that no key has any more: it was revoked, or got another secret."""
    return [row["digest"] for row in await db.rows(INVALID, digests=list(digests))]
