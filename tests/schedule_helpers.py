"""What stories about schedules are told with: a moment that has come, and what became of it."""

import asyncio
from datetime import timedelta
from typing import Any

import aiohttp

from longhouse import clock
from longhouse.journal.events import Prompted
from longhouse.store import journals
from longhouse.store.database import Database
from server_helpers import AGENT

PATH = "/v1/schedules"
NEVER = "0 0 1 1 *"
"""Not while these tests run, but in the first minute of a year."""


def body(**fields: Any) -> dict[str, Any]:
    """A schedule that would be fine, with these fields changed."""
    given = {"template": AGENT, "prompt": "What is new?", "cron": NEVER, **fields}
    return {name: value for name, value in given.items() if value is not None}


def now(seconds: float = 0.0) -> str:
    return (clock.now() + timedelta(seconds=seconds)).isoformat()


async def made(http: aiohttp.ClientSession, headers: dict[str, str] | None = None, **fields: Any) -> Any:
    async with http.post(PATH, json=body(**fields), headers=headers) as response:
        answer = await response.json()
        assert response.status == 201, answer
        return answer


async def come_due(db: Database, *schedules: Any) -> None:
    """The next moment of these is now."""
    ids = [one["id"] for one in schedules]
    await db.run("UPDATE schedules SET next_at = now() - interval '1 second' WHERE id = ANY(:ids)", ids=ids)


async def runs_of(
    http: aiohttp.ClientSession, schedule: Any, number: int = 1, headers: dict[str, str] | None = None
) -> list[Any]:
    """The runs of a schedule, newest first, once there are so many."""
    async with asyncio.timeout(30):
        while True:
            async with http.get(f"{PATH}/{schedule['id']}/runs?limit=200", headers=headers) as response:
                found = (await response.json())["data"]
            if len(found) >= number:
                return list(found)
            await asyncio.sleep(0.05)


async def prompts_of(db: Database, session_id: str) -> list[Prompted]:
    return [one.event for one in await journals.read(db, session_id) if isinstance(one.event, Prompted)]
