"""Browsers that are signed in: the digest of each one's token, the key that it is bound to, and when it expires."""

import secrets
from collections.abc import Iterable
from datetime import timedelta
from typing import Final

import msgspec

from longhouse.store.access.keys import digest_of
from longhouse.store.database import Database

LIFETIME: Final = timedelta(days=7)
MOST_OF_KEY: Final = 100
"""Browsers of one key at once; with one more, the oldest is signed out."""
SWEPT: Final = 1_000
"""Expired rows that one sign-in removes at most."""
RANDOM_BYTES: Final = 32
SETTINGS_KEY: Final = "admin"
"""The key id of browsers that were signed in with the key of the settings."""

CREATE: Final = """
    INSERT INTO browser_sessions (digest, key_id, key_digest, expires_at)
    VALUES (:digest, :key_id, :key_digest, now() + :lifetime::interval)
    ON CONFLICT (digest) DO NOTHING
"""

FIND: Final = "SELECT key_id, key_digest FROM browser_sessions WHERE digest = :digest AND expires_at > now()"

DELETE: Final = "DELETE FROM browser_sessions WHERE digest = :digest"

SWEEP: Final = """
    DELETE FROM browser_sessions WHERE digest IN (
        (SELECT digest FROM browser_sessions WHERE expires_at <= now() ORDER BY expires_at LIMIT :most)
        UNION ALL
        (SELECT digest FROM browser_sessions WHERE key_id = :key_id ORDER BY created_at DESC OFFSET :most_of_key)
    )
"""

ENDED: Final = """
    SELECT asked.digest FROM unnest(:digests::text[]) AS asked(digest)
    WHERE NOT EXISTS (
        SELECT FROM browser_sessions AS browser
        WHERE browser.digest = asked.digest AND browser.expires_at > now() AND (
            browser.key_id = :settings_key
            OR EXISTS (
                SELECT FROM api_keys k WHERE (k.digest = browser.key_digest OR k.former_digest = browser.key_digest)
                    AND k.revoked_at IS NULL AND (k.expires_at IS NULL OR k.expires_at > now())
            )
        )
    )
"""


class BrowserSession(msgspec.Struct, frozen=True):
    """What a browser is bound to."""

    key_id: str
    key_digest: str


async def create(db: Database, *, key_id: str, key_digest: str) -> str:
    """Signs a browser in with a key; returns the token for its cookie, which is not stored."""
    token = secrets.token_urlsafe(RANDOM_BYTES)
    bound = bound_digest(key_id, key_digest, token)
    await db.run(CREATE, digest=digest_of(token), key_id=key_id, key_digest=bound, lifetime=LIFETIME)
    await db.run(SWEEP, most=SWEPT, key_id=key_id, most_of_key=MOST_OF_KEY)
    return token


def bound_digest(key_id: str, key_digest: str, token: str) -> str:
    """The stored digest of a browser's key. The key of the settings may be short: without the token, whoever reads the
    table could guess it from a plain digest."""
    return digest_of(f"{token}.{key_digest}") if key_id == SETTINGS_KEY else key_digest


async def find(db: Database, token: str) -> BrowserSession | None:
    """The session of this token, unless it has expired; its key may have been revoked."""
    row = await db.row(FIND, digest=digest_of(token))
    return BrowserSession(*row) if row else None


async def delete(db: Database, token: str) -> None:
    await db.run(DELETE, digest=digest_of(token))


async def ended(db: Database, digests: Iterable[str]) -> list[str]:
    """Those of these tokens' digests that sign nobody in any more."""
    rows = await db.rows(ENDED, digests=list(digests), settings_key=SETTINGS_KEY)
    return [row["digest"] for row in rows]
