"""`longhouse keys …`: create, list and revoke API keys, directly in the database."""

from typing import Annotated, Final

import pydantic
import typer

from longhouse.api.admin.keys import MOST, NewKey
from longhouse.app import open_store
from longhouse.cli.running import add_commands
from longhouse.errors import SetupError
from longhouse.settings import Settings
from longhouse.store import keys
from longhouse.store.keys import Key, Role
from longhouse.validation_messages import explain

PAGE: Final = 1_000

Limit = Annotated[int | None, typer.Option(min=1, max=MOST)]


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
) -> None:
    """Create a key. It is printed once and cannot be shown again."""
    limits = {"rate_limit": rate_limit, "max_concurrent": max_concurrent, "sessions_per_hour": sessions_per_hour}
    try:
        new = NewKey(name=name, owner=owner, role=role, max_running=max_running, **limits)
    except pydantic.ValidationError as error:
        where, problem = explain(error)[0]
        raise SetupError(f"--{where[0]}: {problem}.") from None
    async with open_store(settings) as (db, _):
        made, secret = await keys.create(db, **new.model_dump())
    typer.echo(f"{made.id}: {_described(made)}. Keep the key, it is not shown again:", err=True)
    typer.echo(secret)


async def list_keys(settings: Settings) -> None:
    """List all keys, newest first, including revoked ones."""
    async with open_store(settings, create=False) as (db, _):
        before = None
        while page := await keys.listed(db, before=before, limit=PAGE):
            for key in page:
                typer.echo(f"{key.id}  {_described(key)}")
            before = (page[-1].created_at, page[-1].id)


async def revoke_key(
    settings: Settings, key_id: Annotated[str, typer.Argument(help="The id, as `longhouse keys list` shows it.")]
) -> None:
    """Revoke a key permanently; its open requests end within two seconds."""
    async with open_store(settings, create=False) as (db, _):
        found = await keys.revoke(db, key_id)
    if not found:
        raise SetupError(f"there is no key {key_id!r}; `longhouse keys list` shows all.")
    typer.echo(f"{key_id} is revoked")


def _described(key: Key) -> str:
    ended = f", revoked {key.revoked_at:%Y-%m-%d %H:%M}" if key.revoked_at else ""
    return f"{key.role} of {key.owner}, {key.name!r}, made {key.created_at:%Y-%m-%d %H:%M}{ended}"


cli = typer.Typer(help="API keys: who may come in, for whom, and how much they may use.", no_args_is_help=True)
add_commands(cli, {"create": create_key, "list": list_keys, "revoke": revoke_key})
