"""The command `longhouse chat`: on a terminal a chat with history and live Markdown, elsewhere a plain loop."""

import getpass
import os
import sys
from collections.abc import Sequence
from typing import Annotated

import typer

from longhouse.cli.chat import plain
from longhouse.cli.chat.client import open_client
from longhouse.cli.running import run
from longhouse.journal.session import LOCAL_OWNER
from longhouse.settings import Settings

cli = typer.Typer()


@cli.command()
def chat(
    model: Annotated[
        str | None, typer.Option(help="Template or session id; LONGHOUSE_DEFAULT_TEMPLATE if none is given.")
    ] = None,
    url: Annotated[str | None, typer.Option(help="Where Longhouse serves; by default as the settings say.")] = None,
    key: Annotated[str, typer.Option(help="An API key, where one is needed.", envvar="LONGHOUSE_API_KEY")] = "",
    user: Annotated[str, typer.Option(help="Who you are; by default, with a key, your account on this machine.")] = "",
) -> None:
    """Talk to an agent in the terminal."""

    async def main(settings: Settings) -> None:
        address = url or f"http://{settings.host}:{settings.port}"
        again = [*(["--url", url] if url else []), *(["--user", user] if user else [])]
        await talk(address, model or settings.default_template, key, user, again)

    run(Settings(log_level="warning"), main)


async def talk(url: str, model: str, key: str = "", user: str = "", again: Sequence[str] = ()) -> None:
    """Talks until the person leaves, or standard input ends; `again`: the options to go on with later."""
    async with open_client(url, key, user or account(key)) as client:
        if not _is_terminal():
            await plain.talk(client, model)
            return
        # Scripts need not load what draws on terminals.
        from longhouse.cli.chat.conversation import TerminalChat  # noqa: PLC0415

        await TerminalChat(client, again).hold(model)


def account(key: str) -> str:
    """The user name: without a key the local owner; with a key, which many may share, the account on this machine."""
    try:
        return getpass.getuser() if key else LOCAL_OWNER
    except (KeyError, OSError):  # the account has no name
        return LOCAL_OWNER


def _is_terminal() -> bool:
    return sys.stdin.isatty() and sys.stdout.isatty() and os.environ.get("TERM") != "dumb"
