"""API keys: stored and looked up by digest, shown once when created, changed, rotated, revoked for ever."""

import hashlib
import secrets
import uuid
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, Final, Literal

import msgspec

from longhouse.store.database import Database, Transaction
from longhouse.store.limits import budgets
from longhouse.store.limits.budgets import SpentBudget
from longhouse.store.lists.pages import Position, page

Role = Literal["user", "admin"]

PREFIX: Final = "lh_"
"""Makes a key recognisable wherever it appears, for example to secret scanners."""
RANDOM_BYTES: Final = 32

CHANGEABLE: Final = (
    "name", "rate_limit", "max_concurrent", "sessions_per_hour", "max_running", "tokens_per_day", "tokens_per_month",
    "turns_per_day", "turns_per_month", "read_only", "templates", "expires_at",
)  # fmt: skip
"""What may be changed of a key: whose it is and its role stay, for others may have been told of them."""
COLUMNS: Final = """
    id, name, owner, role, rate_limit, max_concurrent, sessions_per_hour, max_running, tokens_per_day, tokens_per_month,
    turns_per_day, turns_per_month, read_only, templates, expires_at, created_at, revoked_at, last_used_at,
    CASE WHEN former_until > now() THEN former_until END AS former_until
"""

# A retry with the same id finds its own row.
CREATE: Final = f"""
    INSERT INTO api_keys (id, owner, role, digest, {", ".join(CHANGEABLE)})
    VALUES (:id, :owner, :role, :digest, {", ".join(f":{name}" for name in CHANGEABLE)})
    ON CONFLICT (id) DO UPDATE SET name = EXCLUDED.name
    RETURNING {COLUMNS}
"""

FIND: Final = f"""
    SELECT {COLUMNS}, COALESCE(expires_at <= now(), false) AS is_expired, {budgets.spent_of("api_keys.id")} AS spent
    FROM api_keys
    WHERE (digest = :digest OR former_digest = :digest AND former_until > now()) AND revoked_at IS NULL
"""

BY_ID: Final = FIND.replace("(digest = :digest OR former_digest = :digest AND former_until > now())", "id = :id")

CHANGE: Final = f"UPDATE api_keys SET {{set}} WHERE id = :id AND revoked_at IS NULL RETURNING {COLUMNS}"

REVOKE: Final = "UPDATE api_keys SET revoked_at = COALESCE(revoked_at, now()) WHERE id = :id RETURNING id"

# The digest changes: what was bound to the old secret, browsers too, is not valid any more once the overlap is over. A
# retry finds its own digest.
ROTATE: Final = f"""
    UPDATE api_keys SET digest = :digest,
        former_digest = CASE WHEN :overlap::float8 > 0
            THEN CASE WHEN digest = :digest THEN former_digest ELSE digest END END,
        former_until = CASE WHEN :overlap::float8 > 0 THEN now() + make_interval(secs => :overlap) END
    WHERE id = :id AND revoked_at IS NULL RETURNING {COLUMNS}
"""

USED: Final = """
    UPDATE api_keys k SET last_used_at = used.at
    FROM unnest(:ids::text[], :times::timestamptz[]) AS used (id, at)
    WHERE k.id = used.id AND (k.last_used_at IS NULL OR k.last_used_at < used.at)
"""

IS_ANY_VALID: Final = "SELECT EXISTS (SELECT FROM api_keys WHERE revoked_at IS NULL)"

TEMPLATES_OF: Final = """
    SELECT k.templates FROM sessions s JOIN api_keys k ON k.id = s.key_id WHERE s.id = :session
"""

# What was begun with a former secret goes on to its end, also behind the overlap.
INVALID: Final = """
    SELECT asked.digest FROM unnest(:digests::text[]) AS asked (digest)
    WHERE NOT EXISTS (
        SELECT FROM api_keys WHERE (digest = asked.digest OR former_digest = asked.digest)
            AND revoked_at IS NULL AND (expires_at IS NULL OR expires_at > now())
    )
"""


class Key(msgspec.Struct, frozen=True):
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
    tokens_per_day: int | None
    """A budget, in days and months of UTC; None: no limit."""
    tokens_per_month: int | None
    turns_per_day: int | None
    turns_per_month: int | None
    read_only: bool
    templates: Sequence[str] | None
    """Those that it may use; None: all."""
    expires_at: datetime | None
    created_at: datetime
    revoked_at: datetime | None
    last_used_at: datetime | None
    """To about a minute; None: never, or not since this is recorded."""
    former_until: datetime | None
    """Until then its former secret is valid too."""


class FoundKey(msgspec.Struct, frozen=True):
    """A key that was looked up by a secret."""

    key: Key
    is_expired: bool
    spent: SpentBudget | None
    """The budget that it has used up."""


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
    **more: Any,
) -> tuple[Key, str]:
    """Creates a key; returns it with its secret, which cannot be shown again. `more`: names of `CHANGEABLE`."""
    secret = _new_secret()
    values = {**dict.fromkeys(CHANGEABLE), "read_only": False, "name": name, **more}
    identity = {"id": f"key_{uuid.uuid4().hex}", "owner": owner, "role": role, "digest": digest_of(secret)}
    [row] = await db.rows(CREATE, **identity, **values)
    return Key(*row), secret


async def with_digest(db: Database, digest: str) -> FoundKey | None:
    """The key with this digest, or with this former one while that is valid, unless it was revoked."""
    return _found(await db.row(FIND, digest=digest))


async def with_id(db: Database, key_id: str) -> FoundKey | None:
    """The key with this id, unless it was revoked."""
    return _found(await db.row(BY_ID, id=key_id))


def _found(row: Sequence[Any] | None) -> FoundKey | None:
    if row is None:
        return None
    *columns, is_expired, spent = row
    key = Key(*columns)
    return FoundKey(key, is_expired, budgets.spent_budget(spent, getattr(key, spent)) if spent else None)


async def listed(db: Database, *, before: Position | None = None, limit: int) -> list[Key]:
    """A page of keys, newest first, with revoked ones."""
    select = f"SELECT {COLUMNS} FROM api_keys"
    return [Key(*row) for row in await page(db, select, by="created_at, id", before=before, limit=limit)]


async def revoke(db: Database, key_id: str) -> bool:
    """Revokes a key; False if there is no such key."""
    if "\x00" in key_id:
        return False  # Postgres refuses NUL characters even in a look-up
    return await db.value(REVOKE, id=key_id) is not None


async def change(db: Database, key_id: str, changes: Mapping[str, Any]) -> Key | None:
    """Changes fields of a key; None if there is no such key, or it was revoked. Sessions that wait for one of its
    budgets look at it again."""
    if "\x00" in key_id:
        return None
    set_ = ", ".join(f"{name} = :{name}" for name in CHANGEABLE if name in changes) or "name = name"

    async def write(tx: Transaction) -> Key | None:
        row = await tx.row(CHANGE.format(set=set_), id=key_id, **changes)
        if row and any(name in changes for name in budgets.NAMES):
            await budgets.resume(tx, key_id)
        return Key(*row) if row else None

    return await db.together(write)


async def rotate(db: Database, key_id: str, *, overlap: float = 0.0) -> tuple[Key, str] | None:
    """Gives a key a new secret, which cannot be shown again; None if there is no such key, or it was revoked.

    `overlap`: seconds for which the former secret is valid too.
    """
    if "\x00" in key_id:
        return None
    secret = _new_secret()
    row = await db.row(ROTATE, id=key_id, digest=digest_of(secret), overlap=float(overlap))
    return (Key(*row), secret) if row else None


async def templates_of(db: Database, session_id: str) -> Sequence[str] | None:
    """The templates that the key of a session may use; None: all."""
    found: Sequence[str] | None = await db.value(TEMPLATES_OF, session=session_id)
    return found


async def record_use(db: Database, used: Mapping[str, datetime]) -> None:
    """Records when these keys were used last."""
    ids = sorted(used)  # two processes lock the rows in the same order
    await db.run(USED, ids=ids, times=[used[one] for one in ids])


async def is_any_valid(db: Database) -> bool:
    return bool(await db.value(IS_ANY_VALID))


async def invalid(db: Database, digests: Iterable[str]) -> list[str]:
    """The digests among these that no key has any more: it was revoked, has expired, or got another secret."""
    return await db.column(INVALID, digests=list(digests))
