"""Seed 002 after a kill -9: the process that takes over knows what the killed one has read."""

import asyncio
import json
from pathlib import Path
from typing import Any

from reading_server import LIBRARY, READER

from library_tools import FACTS, REG_ID
from longhouse.journal.events import Noted, Resumed, Returned
from server_helpers import Pen, Serving, dictated, launched

HINT = f"# Cached outlines\nThe outlines of these documents are already known: {REG_ID}"


def use(pen: Pen, tool: str, **arguments: str) -> None:
    pen.call(tool, json.dumps(arguments, ensure_ascii=False))
    pen.end()


async def test_what_a_killed_process_has_read_is_known_to_the_next(dsn: str, serving: Serving) -> None:
    program = str(Path(__file__).with_name("reading_server.py"))
    async with dictated() as model:
        async with launched(program, database_url=dsn, llm_base_url=model.url) as killed:
            saying = asyncio.create_task(killed.say("What of the breaker?", model=READER.name))
            use(await model.asked(), "library_toc", reg_id=REG_ID)
            use(await model.asked(), "library_search", query="breaker")
            await model.asked()  # the process dies while the model thinks
            killed.kill()
            await killed.ended()
            await asyncio.gather(saying, return_exceptions=True)
        setup: dict[str, Any] = {"templates": [READER], "tools": LIBRARY.tools, "llm_base_url": model.url}
        async with serving(**setup) as house:
            pen = await model.asked()
            system = pen.body["messages"][0]["content"]
            assert (HINT in system, FACTS["breaker"][1] in system) == (True, True)
            use(pen, "library_toc", reg_id=REG_ID)
            use(await model.asked(), "library_search", query="breaker")
            use(await model.asked(), "finalanswertool", answer="Opened first.")
            session_id = str(await house.db.value("SELECT id FROM sessions"))
            assert (await house.until(session_id, "COMPLETED"))["result"] == "Opened first."
            told = [record.event for record in await house.journal(session_id)]
            async with house.http.get(f"/v1/sessions/{session_id}/timeline") as response:
                [turn] = (await response.json())["turns"]
    assert [one.by for one in told if isinstance(one, Returned)] == ["", "", "memory", "memory", ""]
    assert (
        sum(isinstance(one, Noted) for one in told),
        sum(isinstance(one, Resumed) and one.is_loss for one in told),
    ) == (2, 1)
    assert LIBRARY.runs == [], "nothing was read again in this process"
    [takeover] = turn["takeovers"]
    assert (takeover["is_loss"], takeover["to"]) == (True, house.app.worker.id)
    assert takeover["seconds"] >= 0
    calls = [call for step in turn["steps"] for call in step["calls"]]
    assert [call["status"] for call in calls] == ["ok", "ok", "memory", "memory", "ok"]
