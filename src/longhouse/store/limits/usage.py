"""What keys and owners have used: counted with the appends that say so, and kept by days of UTC."""

import functools
from collections.abc import Iterable
from datetime import date
from typing import Final

import msgspec
from msgspec.structs import asdict, astuple

from longhouse.journal import events
from longhouse.journal.events import Event, Usage
from longhouse.store.database import Database
from longhouse.store.rows import Rows

AT_ONCE: Final = 20_000
"""Rows that are added to the days at once."""


class Used(msgspec.Struct):
    """What was used of one model."""

    turns: int = 0
    """Turns that a client has asked for; those that agents ask of others are parts of them."""
    replies: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    """Those of `prompt_tokens` that the model's cache knew."""
    completion_tokens: int = 0
    total_tokens: int = 0

    def add(self, other: "Used | Usage") -> None:
        if isinstance(other, Used):
            self.turns += other.turns
            self.replies += other.replies
        self.prompt_tokens += other.prompt_tokens
        self.cached_tokens += other.cached_tokens
        self.completion_tokens += other.completion_tokens
        self.total_tokens += other.total_tokens


_COUNTS: Final = ", ".join(Used.__struct_fields__)
_SUMS: Final = ", ".join(f"sum({name})::bigint AS {name}" for name in Used.__struct_fields__)

COLUMNS: Final = {"model": "text", **dict.fromkeys(Used.__struct_fields__, "bigint")}
_USED: Final = Rows("used", **COLUMNS)
_NOTHING: Final = (None, *astuple(Used()))
# A part of the append's statement.
_WRITE: Final = f"""
    INSERT INTO usage_lately (key_id, owner, model, {_COUNTS})
    SELECT COALESCE(moved.key_id, ''), moved.owner, {{model}},
           {", ".join(f"used.{name}" for name in Used.__struct_fields__)}
    FROM moved, {{used}}
"""
# Replies that were discarded, summaries and titles name no model: they are by that of the session's last reply. The
# search for it makes a plan that Postgres would rather make anew each time, so it stands only where it is needed.
_MODEL: Final = """CASE WHEN used.model <> '' OR used.total_tokens = 0 THEN used.model ELSE COALESCE((
               SELECT j.body ->> 'model' FROM journal j
               WHERE j.session_id = moved.id AND j.kind = 'Replied' ORDER BY j.seq DESC LIMIT 1
           ), '') END"""
WRITE: Final = _WRITE.format(model=_MODEL, used=_USED.in_arrays)
# A part of the statement that appends to several sessions.
WRITE_TOGETHER: Final = f"""
    INSERT INTO usage_lately (key_id, owner, model, {_COUNTS})
    SELECT COALESCE(key_id, ''), owner, {", ".join(COLUMNS)} FROM moved WHERE model IS NOT NULL
"""
CHARGE: Final = f"""
    INSERT INTO usage_lately (key_id, owner, model, {_COUNTS})
    VALUES (:key, :owner, :model, {", ".join(f":{name}" for name in Used.__struct_fields__)})
"""
# Two processes may do it at once: the second one waits for the first, finds its rows gone, and takes what is left.
ROLL_UP: Final = f"""
WITH taken AS (
    DELETE FROM usage_lately WHERE ctid = ANY(ARRAY(SELECT ctid FROM usage_lately LIMIT {AT_ONCE})) RETURNING *
)
INSERT INTO usage_days AS d (key_id, day, owner, model, {_COUNTS})
SELECT key_id, (at AT TIME ZONE 'UTC')::date AS day, owner, model, {_SUMS} FROM taken
GROUP BY 1, 2, 3, 4 ORDER BY 1, 2, 3, 4
ON CONFLICT (key_id, day, owner, model) DO UPDATE SET
    {", ".join(f"{name} = d.{name} + EXCLUDED.{name}" for name in Used.__struct_fields__)}
"""
FOUND: Final = f"""
    SELECT u.key_id, COALESCE(k.name, ''), u.owner, u.model, u.day, {_SUMS} FROM (
        SELECT key_id, owner, model, day, {_COUNTS} FROM usage_days
        WHERE (:owner::text IS NULL OR owner = :owner) AND (:key::text IS NULL OR key_id = :key)
          AND day BETWEEN :since AND :until
        UNION ALL
        SELECT key_id, owner, model, (at AT TIME ZONE 'UTC')::date, {_COUNTS} FROM usage_lately
        WHERE (:owner::text IS NULL OR owner = :owner) AND (:key::text IS NULL OR key_id = :key)
          AND (at AT TIME ZONE 'UTC')::date BETWEEN :since AND :until
    ) u LEFT JOIN api_keys k ON k.id = u.key_id
    GROUP BY 1, 2, 3, 4, 5 ORDER BY 5, 3, 1, 4
"""


class UsedOnDay(msgspec.Struct, frozen=True):
    key_id: str
    """Empty: no keys were set."""
    key_name: str
    owner: str
    model: str
    """Empty: the model did not say its name."""
    day: date
    used: Used


def used_by(new: Iterable[Event], *, is_users: bool) -> dict[str, Used]:
    """Model -> what these events say was used; empty: a model that is not named. Results of sub-agents carry what was
    counted in their own sessions. `is_users`: a client has asked for the turn, not another agent."""
    found: dict[str, Used] = {}
    for event in new:
        match event:
            case events.Started() if is_users:
                _of(found, "").turns += 1
            case events.Replied():
                used = _of(found, event.model)
                used.replies += 1
                if event.usage:
                    used.add(event.usage)
            case events.Spent() | events.Condensed() if event.usage and event.usage.total_tokens:
                _of(found, "").add(event.usage)
    return found


def write_of(used: dict[str, Used]) -> str:
    """The part of the append's statement that counts this; empty: there is nothing to count."""
    if not used:
        return ""
    return _write_of(len(used), is_named=_is_named(used))


def counted_together(used: dict[str, Used]) -> tuple[str | int | None, ...] | None:
    """The values of `COLUMNS`; None: there is more to count than they can say."""
    if not used:
        return _NOTHING
    return _rows(used)[0] if len(used) == 1 and _is_named(used) else None


def _is_named(used: dict[str, Used]) -> bool:
    """Whether all tokens are of models that are named."""
    return "" not in used or not used[""].total_tokens


@functools.cache
def _write_of(count: int, *, is_named: bool) -> str:
    return _WRITE.format(model="used.model" if is_named else _MODEL, used=_USED.source(count))


def values(used: dict[str, Used]) -> dict[str, object]:
    """The parameters of `write_of`."""
    return _USED.values(_rows(used))


def columns(used: dict[str, Used]) -> dict[str, object]:
    """The parameters of `WRITE`."""
    return _USED.arrays(_rows(used))


def _rows(used: dict[str, Used]) -> list[tuple[str | int, ...]]:
    return [(model, *astuple(one)) for model, one in used.items()]


def _of(found: dict[str, Used], model: str) -> Used:
    return found.setdefault(model, Used())


async def charge(db: Database, *, key: str, owner: str, model: str, usage: Usage | Used, replies: int = 1) -> None:
    """Counts what was used outside any journal, as by a replay, and so many replies more. Not sent twice: nobody is
    charged for one reply twice."""
    used = Used(replies=replies)
    used.add(usage)
    await db.once(CHARGE, key=key, owner=owner, model=model, **asdict(used))


async def roll_up(db: Database) -> None:
    """Adds what was written lately to the days: sums stay short."""
    await db.run(ROLL_UP)


async def found(
    db: Database, *, since: date, until: date, owner: str | None = None, key: str | None = None
) -> list[UsedOnDay]:
    """What was used on these days, the last included, of one owner or of all."""
    rows = await db.rows(FOUND, since=since, until=until, owner=owner, key=key)
    return [UsedOnDay(key, name, whose, model, day, Used(*used)) for key, name, whose, model, day, *used in rows]
