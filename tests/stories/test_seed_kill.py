"""`longhouse seed` is killed between the tools of its files and the agents: nothing of them came."""

import asyncio
import os
from pathlib import Path
from typing import Any

from forked_server import Forked
from longhouse.store.database import Database
from server_helpers import launched_words

FILE = """
tools:
  forecast:
    description_short: Tell the weather of {day}.
    runtime_binding: {{remote_endpoint: "https://weather.example/"}}
    effect: read
agents:
  clerk: {{tools: [forecast, final_answer], prompts: {{system_prompt_str: You know the weather of {day}.}}}}
"""
WAITING = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
CLERK = "SELECT FROM catalog_names WHERE kind = 'template' AND name = 'clerk' FOR UPDATE"
VERSIONS = "SELECT name, max(version) AS newest FROM catalog_versions WHERE name IN ('clerk', 'forecast') GROUP BY name"
ACTIVE = "SELECT name, active FROM catalog_names WHERE name IN ('clerk', 'forecast')"


async def seen(db: Database) -> tuple[dict[str, int], dict[str, int]]:
    newest = {row["name"]: row["newest"] for row in await db.rows(VERSIONS)}
    return newest, {row["name"]: row["active"] for row in await db.rows(ACTIVE)}


async def test_files_are_published_as_a_whole_even_if_the_process_is_killed(
    db: Database, dsn: str, tmp_path: Path
) -> None:
    file = tmp_path / "agents.yaml"
    given: dict[str, Any] = {"database_url": dsn, "agents_file": str(file), "config_file": ""}
    file.write_text(FILE.format(day="today"))
    code, told = await launched_words("seed", **given)
    assert code == 0, told
    first = {"clerk": 1, "forecast": 1}
    assert await seen(db) == (first, first)

    file.write_text(FILE.format(day="tomorrow"))
    async with db.pool.acquire() as connection, connection.transaction():
        # Whoever publishes the agent waits here, with the tool written and not committed.
        await connection.execute(CLERK)
        environment = {**os.environ, **{f"LONGHOUSE_{name.upper()}": value for name, value in given.items()}}
        seeding = Forked(["longhouse", "seed"], environment, None)
        output = await seeding.output()
        async with asyncio.timeout(30):
            while not await db.value(WAITING):
                await asyncio.sleep(0.02)
        seeding.kill()
        await seeding.wait()
        assert b"version" not in await output.read()
    async with asyncio.timeout(30):
        while await db.value(WAITING):
            await asyncio.sleep(0.02)
    assert await seen(db) == (first, first)

    code, told = await launched_words("seed", **given)
    assert code == 0, told
    second = {"clerk": 2, "forecast": 2}
    assert await seen(db) == (second, second)
