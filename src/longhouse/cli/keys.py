"""`longhouse keys …`: create, list, change, rotate and revoke API keys, directly in the database."""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Annotated, Any, Final

import pydantic
import typer

from longhouse.api.admin.keys import LONGEST_OVERLAP, MOST, MOST_OF_BUDGET, ChangedKey, NewKey
from longhouse.app.store import open_existing, open_store, with_database
from longhouse.cli.one_line import minute, plain
from longhouse.cli.running import given, group, invalid_option
from longhouse.errors import SetupError
from longhouse.settings import Settings
from longhouse.store.access import keys
from longhouse.store.access.keys import Key, Role
from longhouse.store.database import Database
from longhouse.store.limits import budgets

PAGE: Final = 1_000
OPTIONS: Final = {"templates": "--template"}
"""Options that are not called like the fields of a key."""
LIMITS: Final = ("rate_limit", "max_concurrent", "sessions_per_hour", "max_running", *budgets.NAMES)
"""The limits and budgets of a key."""

Limit = Annotated[int | None, typer.Option(min=1, max=MOST)]
Budget = Annotated[int | None, typer.Option(min=1, max=MOST_OF_BUDGET, help="A budget, in days and months of UTC.")]
KeyId = Annotated[str, typer.Argument(help="The id, as `longhouse keys list` shows it.")]
Expires = Annotated[
    datetime | None, typer.Option(formats=["%Y-%m-%d", "%Y-%m-%dT%H:%M"], help="When it expires, in UTC.")
]
ForTemplate = Annotated[
    list[str] | None, typer.Option("--template", help="An agent that it may use; several may be named. Else all.")
]


async def create_key(
    settings: Settings,
    *,
    name: Annotated[str, typer.Option(help="What it is for.")],
    owner: Annotated[str, typer.Option(help="Whose sessions it sees.")],
    role: Annotated[Role, typer.Option(help="user, or admin for everything under /admin too.")] = "user",
    rate_limit: Limit = None,
    max_concurrent: Limit = None,
    sessions_per_hour: Limit = None,
    max_running: Limit = None,
    tokens_per_day: Budget = None,
    tokens_per_month: Budget = None,
    turns_per_day: Budget = None,
    turns_per_month: Budget = None,
    read_only: Annotated[bool, typer.Option("--read-only", help="It reads, and changes nothing.")] = False,
    templates: ForTemplate = None,
    expires_at: Expires = None,
) -> None:
    """Create a key. It is printed once and cannot be shown again."""
    limits = _limits(locals())
    more = _scope(templates, expires_at)
    try:
        new = NewKey(name=name, owner=owner, role=role, read_only=read_only, **limits, **more)
    except pydantic.ValidationError as error:
        raise invalid_option(error, OPTIONS) from None
    async with open_store(settings) as (db, _):
        made, secret = await keys.create(db, **new.model_dump())
    typer.echo(f"{made.id}: {_described(made)}. Keep the key, it is not shown again:", err=True)
    typer.echo(secret)


@with_database
async def list_keys(db: Database) -> None:
    """List all keys, newest first, including revoked ones."""
    before = None
    while page := await keys.listed(db, before=before, limit=PAGE):
        for key in page:
            typer.echo(f"{key.id}  {_described(key)}")
        before = (page[-1].created_at, page[-1].id)


async def change_key(
    settings: Settings,
    key_id: KeyId,
    *,
    name: Annotated[str | None, typer.Option(help="What it is for.")] = None,
    rate_limit: Limit = None,
    max_concurrent: Limit = None,
    sessions_per_hour: Limit = None,
    max_running: Limit = None,
    tokens_per_day: Budget = None,
    tokens_per_month: Budget = None,
    turns_per_day: Budget = None,
    turns_per_month: Budget = None,
    read_only: Annotated[bool | None, typer.Option(help="Whether it only reads.")] = None,
    templates: ForTemplate = None,
    expires_at: Expires = None,
    without: Annotated[
        list[str] | None, typer.Option(help="A limit, a budget, templates or expires_at that is taken away.")
    ] = None,
) -> None:
    """Change a key: sessions that wait for a budget which is raised go on."""
    limits = _limits(locals())
    more = given(name=name, read_only=read_only, **limits, **_scope(templates, expires_at))
    gone = {one.replace("-", "_"): None for one in without or ()}
    if not gone and not more:
        raise SetupError("say what to change; `longhouse keys change --help` shows what can be.")
    try:
        changes = ChangedKey(**{**more, **gone}).model_dump(exclude_unset=True)
    except pydantic.ValidationError as error:
        without_what = {field: f"--without {field.replace('_', '-')}" for field in gone}
        raise invalid_option(error, {**OPTIONS, **without_what}) from None
    async with open_existing(settings) as db:
        changed = await keys.change(db, key_id, changes)
    if changed is None:
        raise _missing(key_id)
    typer.echo(f"{changed.id}: {_described(changed)}")


@with_database
async def rotate_key(
    db: Database,
    key_id: KeyId,
    overlap: Annotated[
        int, typer.Option(min=0, max=LONGEST_OVERLAP, help="Seconds for which the old secret is valid too.")
    ] = 0,
) -> None:
    """Give a key a new secret. It is printed once; the old one is refused, at once or after --overlap."""
    rotated = await keys.rotate(db, key_id, overlap=overlap)
    if rotated is None:
        raise _missing(key_id)
    key, secret = rotated
    typer.echo(f"{key.id}: {_described(key)}. Keep the key, it is not shown again:", err=True)
    typer.echo(secret)


@with_database
async def revoke_key(db: Database, key_id: KeyId) -> None:
    """Revoke a key permanently; its open requests end within two seconds."""
    found = await keys.revoke(db, key_id)
    if not found:
        raise _missing(key_id)
    typer.echo(f"{key_id} is revoked")


def _limits(options: Mapping[str, Any]) -> dict[str, Any]:
    return {name: options[name] for name in LIMITS}


def _scope(templates: list[str] | None, expires_at: datetime | None) -> dict[str, Any]:
    return {"templates": templates or None, "expires_at": expires_at and expires_at.replace(tzinfo=UTC)}


def _missing(key_id: str) -> SetupError:
    return SetupError(f"there is no key {key_id!r}; `longhouse keys list` shows all.")


def _described(key: Key) -> str:
    limits = {name: getattr(key, name) for name in budgets.NAMES}
    parts = (
        f"{key.role} of {plain(key.owner)}, {key.name!r}, made {minute(key.created_at)}",
        f"used {minute(key.last_used_at)}" if key.last_used_at else "",
        "only reads" if key.read_only else "",
        f"may use {', '.join(key.templates)}" if key.templates is not None else "",
        *(f"{limit:,} {name.replace('_per_', ' a ')}" for name, limit in limits.items() if limit is not None),
        f"expires {minute(key.expires_at)}" if key.expires_at else "",
        f"its former secret works until {minute(key.former_until)}" if key.former_until else "",
        f"revoked {minute(key.revoked_at)}" if key.revoked_at else "",
    )
    return ", ".join(filter(None, parts))


cli = group({"create": create_key, "list": list_keys, "change": change_key, "rotate": rotate_key, "revoke": revoke_key})
