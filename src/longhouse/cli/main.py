"""The command line: which commands there are. What a command needs is imported when it is called."""

import importlib
import os
from typing import Annotated, Any, Final, NamedTuple

import typer
from typer.core import TyperCommand, TyperGroup

import longhouse
from longhouse.cli.loading import imports, load_fastapi, load_structlog
from longhouse.errors import LonghouseError, SetupError
from longhouse.journal.words.visible_text import readable_lines


class LazyCommand(NamedTuple):
    """A command or a group that is not loaded: the module whose `cli` has it, and its line in `longhouse --help`."""

    module: str
    help: str


COMMANDS: Final = {
    "init": LazyCommand("init", "Make a small project that runs: agents.yaml, tools.py, .env.example and a README."),
    "dev": LazyCommand(
        "processes.dev",
        "Serve a project while you work on it: its files are read again when they are saved, and what changed is said.",
    ),
    "serve": LazyCommand(
        "processes.serve",
        "Serve the API and work on sessions, with an embedded Postgres unless LONGHOUSE_DATABASE_URL is set.",
    ),
    "seed": LazyCommand(
        "upkeep.setting_up",
        "Publish the tools and agents of config.yaml and agents.yaml. What is already published makes no new version.",
    ),
    "chat": LazyCommand("chat.command", "Talk to an agent in the terminal."),
    "mcp": LazyCommand(
        "mcp", "Be an MCP server on standard input and output, with the agents of a Longhouse that serves."
    ),
    "work": LazyCommand("processes.serving", "Work on sessions without serving the API."),
    "migrate": LazyCommand("upkeep.setting_up", "Migrate the database schema to the latest version."),
    "backup": LazyCommand(
        "upkeep.backups",
        "Write everything to one file, while it serves. Keep it safe: it holds all conversations.",
    ),
    "restore": LazyCommand(
        "upkeep.backups", "Restore a backup here: in LONGHOUSE_DATA_DIR, or in LONGHOUSE_DATABASE_URL."
    ),
    "doctor": LazyCommand(
        "upkeep.doctor",
        "Look at Postgres, disk, clock, model, Redis, NATS and collector, and say what is broken and how to mend it.",
    ),
    "probe": LazyCommand(
        "upkeep.setting_up", "Find out what the model's endpoint supports, and what a template should say about it."
    ),
    "keys": LazyCommand("keys", "API keys: who may come in, for whom, and how much they may use."),
    "usage": LazyCommand("upkeep.usage", "What keys have used: turns, tokens, and what that cost."),
    "webhooks": LazyCommand("webhooks", "Webhooks: who is told of what happens in sessions, and what was sent."),
    "replay": LazyCommand(
        "sessions.replays", "Replay recorded sessions against a version of their template, before it is activated."
    ),
    "sessions": LazyCommand("sessions.commands", "Sessions: which there are, what happened in one, what it waits for."),
    "schedules": LazyCommand("schedules", "Schedules: prompts that come by themselves, by a clock."),
    "ledger": LazyCommand("upkeep.ledger", "The ledger: who said what to whom."),
    "tools": LazyCommand("catalog", "The tools of the catalog: publish them, compare them, roll them back."),
    "templates": LazyCommand("catalog", "The templates of the catalog: publish them, compare them, roll them back."),
    "documents": LazyCommand("documents", "Documents that agents read: add files, list, show, remove."),
    "erase": LazyCommand("upkeep.erase", "Erase a session, a conversation, a user, an owner or one memory, for good."),
    "bench": LazyCommand("bench.recall", "Measure parts of Longhouse on data of your own."),
}


class LazyCommands(dict[str, Any]):
    """The commands by name; each is loaded when it is first asked for."""

    def __init__(self) -> None:
        super().__init__(COMMANDS)

    def __getitem__(self, name: str) -> Any:
        if isinstance(one := super().__getitem__(name), LazyCommand):
            one = self[name] = _load(name, one)
        return one

    def get(self, name: str, default: Any = None) -> Any:
        return self[name] if name in self else default  # noqa: SIM401 - dict's own `get` would not load it


def _load(name: str, one: LazyCommand) -> Any:
    with imports():
        load_structlog()
        if one.module == "processes.serving":
            load_fastapi()
        module = importlib.import_module(f"longhouse.cli.{one.module}")
    group = typer.main.get_group(module.cli)
    command = group.commands.get(name, group)
    if isinstance(command, TyperGroup):
        command.help, command.no_args_is_help = one.help, True
    return command


class Commands(TyperGroup):
    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.commands = LazyCommands()
        self._is_listing = False

    def invoke(self, ctx: Any) -> Any:
        """Reads `.env` first; prints our own errors as one sentence, without a traceback."""
        try:
            _read_env()
            return super().invoke(ctx)
        except LonghouseError as error:
            typer.echo(f"longhouse: {readable_lines(str(error))}", err=True)
            raise typer.Exit(1) from None

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Lists the commands without loading them."""
        self._is_listing = True
        super().format_help(ctx, formatter)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        one = COMMANDS.get(cmd_name)
        return TyperCommand(cmd_name, help=one.help) if self._is_listing and one else self.commands.get(cmd_name)


def _read_env() -> None:
    """Variables of the file `.env` in this folder, for what the environment does not set."""
    if os.path.isfile(".env"):
        try:
            importlib.import_module("dotenv").load_dotenv(".env", interpolate=False)
        except (OSError, UnicodeDecodeError):
            raise SetupError("The file .env of this folder cannot be read: make it UTF-8 text, or move it.") from None


cli = typer.Typer(cls=Commands, help="A server for AI agents that live long and forget nothing.", no_args_is_help=True)


def _print_version(is_asked: bool) -> None:
    if is_asked:
        typer.echo(f"longhouse {longhouse.__version__}")
        raise typer.Exit


@cli.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", help="Tell the version and exit.", is_eager=True, callback=_print_version)
    ] = False,
) -> None:
    """A server for AI agents that live long and forget nothing."""
