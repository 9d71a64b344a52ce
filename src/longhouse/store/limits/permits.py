"""What keys may use, counted for all gateways together: permits, which they take in blocks, and open requests."""

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from longhouse.store.database import Database

FRESH: Final = "3 seconds"
"""A gateway that has not told its open requests for so long is gone, and so are they."""

_SIZE: Final = ":size::float8"
_LEVEL: Final = f"""least({_SIZE}, p.left_over
    + greatest(0, extract(epoch FROM now() - p.filled_at)::float8) * {_SIZE} / :seconds::float8)"""
# Blocks become smaller as permits become few: what lies unused with one gateway would be missing at another.
_BLOCK: Final = "least(:block::float8, floor({level}), greatest(1, floor({level} / 4)))::integer"
TAKE: Final = f"""
    INSERT INTO key_permits AS p (key_id, kind, left_over, granted, filled_at)
    VALUES (:key, :kind, {_SIZE} - {_BLOCK.format(level=_SIZE)}, {_BLOCK.format(level=_SIZE)}, now())
    ON CONFLICT (key_id, kind) DO UPDATE SET
        left_over = {_LEVEL} - {_BLOCK.format(level=_LEVEL)}, granted = {_BLOCK.format(level=_LEVEL)},
        filled_at = greatest(now(), least(p.filled_at, now() + interval '1 minute'))
    RETURNING granted, left_over
"""
GIVE_BACK: Final = """
    UPDATE key_permits SET left_over = left_over + :number::float8 WHERE key_id = :key AND kind = :kind
"""
TELL_OPEN: Final = f"""
WITH told AS (
    INSERT INTO open_requests (gateway, key_id, open, at)
    SELECT :gateway, o.key_id, o.open, now()
    FROM unnest(:keys::text[], :open::integer[]) AS o (key_id, open) ORDER BY o.key_id
    ON CONFLICT (key_id, gateway) DO UPDATE SET open = EXCLUDED.open, at = EXCLUDED.at
)
SELECT r.key_id, sum(r.open)::integer AS others FROM open_requests r
WHERE r.key_id = ANY(:keys) AND r.gateway <> :gateway AND r.at > now() - interval '{FRESH}' GROUP BY r.key_id
"""
USED: Final = f"""
    SELECT k.id, COALESCE(r.open, 0)::integer AS open,
           (SELECT count(*)::integer FROM places l JOIN sessions s ON s.id = l.session_id
            WHERE l.held = 'key:' || k.id AND s.due) AS running,
           (SELECT left_over + extract(epoch FROM now() - filled_at)::float8 * k.rate / 60 FROM key_permits
            WHERE key_id = k.id AND kind = 'requests') AS requests,
           (SELECT left_over + extract(epoch FROM now() - filled_at)::float8 * k.hourly / 3600 FROM key_permits
            WHERE key_id = k.id AND kind = 'sessions') AS sessions
    FROM unnest(:ids::text[], :rates::integer[], :hourlies::integer[]) AS k (id, rate, hourly)
    LEFT JOIN (
        SELECT key_id, sum(open) AS open FROM open_requests
        WHERE key_id = ANY(:ids) AND gateway <> :gateway AND at > now() - interval '{FRESH}' GROUP BY key_id
    ) r ON r.key_id = k.id
"""
FORGET: Final = "DELETE FROM open_requests WHERE at < now() - interval '1 minute'"


class Granted(msgspec.Struct, frozen=True):
    permits: int
    left: float
    """What is left for all gateways."""


class KeyUse(msgspec.Struct, frozen=True):
    """What of a key's limits is used, without what the gateway that asks knows better."""

    open: int
    running: int
    requests_left: float | None
    """None: all of them."""
    sessions_left: float | None


async def take(db: Database, key_id: str, kind: str, *, size: int, seconds: float, block: int) -> Granted:
    """Takes a block of permits from a bucket that holds `size` and fills evenly within `seconds`."""
    values = {"key": key_id, "kind": kind, "size": float(size), "seconds": seconds, "block": float(block)}
    [row] = await db.rows(TAKE, **values)
    return Granted(row["granted"], row["left_over"])


async def give_back(db: Database, key_id: str, kind: str, number: int) -> None:
    """Gives permits back, without retries: a repeat would give back more than was taken."""
    await db.once(GIVE_BACK, key=key_id, kind=kind, number=float(number))


async def report_open(db: Database, gateway: str, opened: Mapping[str, int]) -> dict[str, int]:
    """Tells how many requests of these keys are open at this gateway; key -> how many are at the others."""
    rows = await db.rows(TELL_OPEN, gateway=gateway, keys=list(opened), open=list(opened.values()))
    return {row["key_id"]: row["others"] for row in rows}


async def used(
    db: Database, gateway: str, ids: Sequence[str], *, rates: Sequence[int], hourlies: Sequence[int]
) -> dict[str, KeyUse]:
    """Key -> what of its limits is used; `rates` and `hourlies` are its requests a minute and sessions an hour."""
    rows = await db.rows(USED, gateway=gateway, ids=list(ids), rates=list(rates), hourlies=list(hourlies))
    return {row["id"]: KeyUse(*row[1:]) for row in rows}


async def forget(db: Database) -> None:
    """Deletes what gateways told that are gone."""
    await db.run(FORGET)
