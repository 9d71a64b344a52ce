"""What a start loads: the list of commands needs none of them, and says the same as they do."""

import subprocess
import sys
from pathlib import Path

import typer

import longhouse
from forked_server import completed
from longhouse.cli.main import COMMANDS, cli

HEAVY = ("pydantic", "fastapi", "numpy", "asyncpg", "aiohttp", "longhouse.app", "longhouse.settings", "prompt_toolkit")
PROGRAM = f"""
import sys
from typer.testing import CliRunner
from longhouse.cli.main import cli
done = CliRunner().invoke(cli, ["--help"])
assert done.exit_code == 0 and "sessions" in done.output, done.output
print([name for name in {HEAVY!r} if name in sys.modules])
"""


def test_help_loads_no_command() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_the_list_says_of_each_command_what_the_command_says() -> None:
    commands = typer.main.get_command(cli).commands  # type: ignore[attr-defined]
    assert {name: " ".join((commands[name].help or "").split()) for name in COMMANDS} == {
        name: one.help for name, one in COMMANDS.items()
    }


def test_the_version_is_told(tmp_path: Path) -> None:
    done = completed("--version", folder=tmp_path)
    assert (done.returncode, done.stdout) == (0, f"longhouse {longhouse.__version__}\n")
