"""Tools that hang in every way hold up neither their session, nor other tools, nor a process that is to leave."""

import signal
from pathlib import Path

import pytest

from acme import acme
from longhouse.journal.events import Fault, Output
from longhouse.models.scripted import call, calls
from longhouse.models.scripted_server import serve as serve_model
from longhouse.store import journals
from longhouse.store.database import Database
from server_helpers import content, process

CLERK = {"name": "hung", "tool_policy": {"allowlist": ["stuck", "deaf", "look", "finalanswertool"]}}


async def test_eight_stuck_tools_and_a_deaf_one_hold_nobody_up(
    dsn: str, db: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = [
        calls(*[call("stuck")] * 8, call("deaf")),
        calls(call("look"), call("look")),
        call("finalanswertool", answer="All through it."),
    ]
    with acme(tmp_path, monkeypatch) as package:
        async with (
            serve_model(script) as model,
            process(database_url=dsn, llm_base_url=model.url, tool_packages=package) as house,
        ):
            for name in ("stuck", "deaf", "look"):
                binding = {"python_entrypoint": f"{package}:{name.title()}"}
                tool = {"name": name, "description_short": name, "runtime_binding": binding, "timeout": 1.0}
                tool["isolation"] = "none"  # a process of its own would be ended
                async with house.http.post("/admin/tools", json=tool) as response:
                    assert response.status == 201, await response.text()
            async with house.http.post("/admin/templates", json=CLERK) as response:
                assert response.status == 201
            answered = await house.say("Go", model="hung")
            assert content(answered) == "All through it."
            async with house.http.get("/metrics") as response:
                assert "longhouse_calls_left_behind 9.0" in await response.text()
            house.process.send_signal(signal.SIGTERM)
            # Each of them would go on for ten minutes.
            assert await house.ended(within=25) == 0
        session = await journals.load(db, answered["model"])
        used = [use for step in reversed(session.steps) for use in step.uses]
        late = [use.outcome.code for use in used[:9] if isinstance(use.outcome, Fault)]
        assert late == ["timeout"] * 9
        assert [use.outcome for use in used[9:11]] == [Output(content="seen")] * 2
        assert sum("left behind" in line for line in house.said) == 9
