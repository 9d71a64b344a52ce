"""What a start loads: the list of commands needs none of them, and says the same as they do."""

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import typer

import longhouse
from forked_server import completed
from longhouse.cli.main import COMMANDS, cli
from longhouse.models.embedding_table import EmbeddedEmbedder
from longhouse.search.indexer import Indexer
from longhouse.store.database import Database

HEAVY = ("pydantic", "fastapi", "numpy", "asyncpg", "aiohttp", "longhouse.app", "longhouse.settings", "prompt_toolkit")
PROGRAM = f"""
import sys
from typer.testing import CliRunner
from longhouse.cli.main import cli
done = CliRunner().invoke(cli, ["--help"])
assert done.exit_code == 0 and "sessions" in done.output, done.output
print([name for name in {HEAVY!r} if name in sys.modules])
"""

LATER = (
    *("numpy", "redis", "nats", "grpc", "fastmcp", "mcp", "httpx2", "lxml", "docx", "pypdfium2", "chardet"),
    *("markdown_it", "prompt_toolkit", "longhouse.cli.processes.supervisor", "longhouse.cli.chat"),
    *("rich", "email_validator", "pydantic.v1", "jsonschema", "yaml", "tarfile", "pydantic_settings"),
)
"""What a house loads when it is first needed; much of it most houses never need."""
IDLE = f"""
import asyncio, os, sys
from longhouse.cli.loading import load_fastapi, load_structlog
load_structlog()
load_fastapi()
from fastapi.openapi.models import Operation
from pydantic import BaseModel
from longhouse.api.server import ROUTERS
from longhouse.cli.processes import serve, serving
from longhouse.settings import Settings
from longhouse.app import open_app

async def main():
    async with open_app(Settings(database_url=os.environ["DSN"])):
        await asyncio.sleep(1.2)  # each background task had its turn
        print([name for name in {LATER!r} if name in sys.modules])
        routes = [one for router in ROUTERS for one in router.routes]
        print(len(routes) > 180, [one.path for one in routes if one.__dict__["_is_made"]])
        print(Operation.__pydantic_complete__, Settings.__pydantic_complete__, "defer_build" in BaseModel.model_config)

asyncio.run(main())
"""
DESCRIBED = """
import sys
if sys.argv[1:]:
    from longhouse.cli.loading import load_fastapi, load_structlog
    load_structlog()
    load_fastapi()
import msgspec
from fastapi import FastAPI
from longhouse.api.http import openapi_schema
from longhouse.api.server import ROUTERS
app = FastAPI(title="Longhouse")
for one in ROUTERS:
    app.router.routes += one.routes
print(sorted(one for one in ("email_validator", "rich") if one in sys.modules))
print(msgspec.json.encode(openapi_schema.document(app), order="deterministic").decode())
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
    module = subprocess.run(
        [sys.executable, "-m", "longhouse", "--version"], capture_output=True, text=True, check=True
    )
    assert module.stdout == done.stdout


async def test_an_idle_house_has_loaded_nothing_that_waits_for_its_first_use(db: Database) -> None:
    """Of a house that was there before: a new one writes its tools to the index of the search."""
    for nth in range(2):
        if nth:
            async with Indexer(db, EmbeddedEmbedder()).working() as indexer:
                await indexer.catch_up()
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", IDLE), env={**os.environ, "DSN": db.dsn}, stdout=asyncio.subprocess.PIPE
        )
        said, _ = await process.communicate()
        assert process.returncode == 0
    assert said.decode().splitlines() == ["[]", "True []", "False True False"]


def test_what_a_start_leaves_out_changes_nothing_in_the_document_of_the_api() -> None:
    whole, lean = (
        subprocess.run([sys.executable, "-c", DESCRIBED, *also], capture_output=True, text=True, check=True).stdout
        for also in ((), ("lean",))
    )
    assert whole.startswith("['email_validator', 'rich']\n")
    assert lean.startswith("[]\n")
    assert lean.partition("\n")[2] == whole.partition("\n")[2]
    assert len(lean) > 200_000
