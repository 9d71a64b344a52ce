"""llama.cpp in a process of its own, for all tests; a Postgres for each."""

import os
import select
import shutil
import subprocess
import tempfile
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from longhouse.store import migrate
from longhouse.store.database import open_database
from longhouse.store.postgres import open_postgres
from server_helpers import Serving

KEY = "sk-llama-canary"
LOADED_WITHIN = 120.0
"""Seconds; a busy machine reads the model slowly."""


@dataclass(frozen=True)
class Llama:
    url: str
    key: str = KEY


@pytest.fixture(scope="session")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Llama]:
    """The server; it ends when its standard input does, so also when we are killed."""
    said = tmp_path_factory.mktemp("llama") / "server.log"
    python = os.environ.get("MODEL_PYTHON", ".venv-model/bin/python")
    command = [python, str(Path(__file__).with_name("llama_server.py")), KEY]
    with (
        said.open("w") as log,
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True) as process,
    ):
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            ready, _, _ = select.select([process.stdout], [], [], LOADED_WITHIN)
            line = process.stdout.readline() if ready else ""
            assert " serves on " in line, said.read_text()[-2000:]
            yield Llama(url=line.split(" serves on ")[1].strip())
        finally:
            process.stdin.close()
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()


@pytest.fixture
async def serving() -> AsyncIterator[Serving]:
    """Starts Longhouses on a fresh database: `async with serving(...) as house:`."""
    folder = _folder()
    try:
        async with open_postgres(folder) as postgres:
            async with open_database(postgres.dsn) as db:
                await migrate.migrate(db, may_extend=postgres.vectors)
            yield Serving(postgres.dsn)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _folder() -> Path:
    """Postgres may run under another account, which must be able to enter."""
    folder = Path(tempfile.mkdtemp(prefix="longhouse-tests-"))
    folder.chmod(0o711)
    return folder
