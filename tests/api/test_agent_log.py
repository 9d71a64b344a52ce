"""The agent log as users of SGR-Agent Core know it: over HTTP, and as a file."""

import asyncio
import stat
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest

from longhouse.agents.template import LLMPolicy, Template, ToolPolicy
from longhouse.integrations.agent_log import agent_log, file_name
from longhouse.journal import events
from longhouse.journal.events import Recorded
from longhouse.models.scripted import ScriptedStatus, call, calls, say
from server_helpers import BEGAN, House, Serving, opened, prompted, returned, started, used

TEMPLATE = Template(
    name="logger",
    tool_policy=ToolPolicy(allowlist=("clarificationtool", "clocktool", "finalanswertool")),
    llm_policy=LLMPolicy(temperature=0.2),
)
HYBRID = replace(
    TEMPLATE,
    base_agent_class="SGRToolCallingAgent",
    tool_policy=ToolPolicy(allowlist=("reasoningtool", *TEMPLATE.tool_policy.named)),
)
THOUGHT = {"reasoning_steps": ["a", "b"], "current_situation": "s", "plan_status": "p", "enough_data": True,
           "remaining_steps": ["r"], "task_completed": False}  # fmt: skip


async def log_of(house: House, session_id: str) -> Any:
    async with house.http.get(f"/v1/sessions/{session_id}/log") as response:
        assert response.status == 200
        return await response.json()


def plain(log: Any) -> list[Any]:
    """The entries without their timestamps, which must be ISO 8601 with a zone."""
    assert all(datetime.fromisoformat(entry["timestamp"]).tzinfo for entry in log["log"])
    return [{key: value for key, value in entry.items() if key != "timestamp"} for entry in log["log"]]


def made(step: int, tool: str, arguments: Any, result: str) -> dict[str, Any]:
    return {"step_number": step, "step_type": "tool_execution", "tool_name": tool, "agent_tool_context": arguments,
            "agent_tool_execution_result": result}  # fmt: skip


def written(*new: events.Event) -> list[Recorded]:
    return [Recorded(seq=nth, at=BEGAN, event=event) for nth, event in enumerate(new, start=1)]


async def test_the_log_has_its_names_its_steps_and_no_secrets(serving: Serving) -> None:
    script = [
        call("clarificationtool", questions=["Which city?"]),
        calls(say("Let me see."), call("clocktool", zone="nowhere")),
        call("finalanswertool", answer="Rain."),
        call("finalanswertool", answer="Sun."),
    ]
    async with serving(script, templates=[TEMPLATE]) as house:
        session_id = (await house.say("Will it rain?", model="logger"))["model"]
        await house.say("Oslo", model=session_id)
        await house.say("And tomorrow?", model=session_id)
        log = await log_of(house, session_id)
        assert list(log) == ["id", "model_config", "task", "toolkit", "log"]
        assert (log["id"], log["task"]) == (session_id, "Will it rain?")
        assert log["model_config"] == {"model": "gpt-4o-mini", "max_tokens": 8000, "temperature": 0.2}
        assert log["toolkit"] == list(TEMPLATE.tool_policy.named)
        assert "sk-test-canary" not in msgspec.json.encode(log).decode()
        first, thought, tried, said, finished, task, said_again, finished_again = plain(log)
        assert first == {
            "step_number": 1, "step_type": "clarification", "tool_name": "clarificationtool",
            "agent_tool_context": {"questions": ["Which city?"]}, "agent_tool_execution_result": "Which city?",
            "clarification": "Oslo",
        }  # fmt: skip
        assert thought == {"step_number": 2, "step_type": "reasoning", "agent_reasoning": "Let me see."}
        assert (tried["step_number"], tried["tool_name"]) == (2, "clocktool")
        assert (said["step_number"], said["agent_tool_context"]) == (3, {"answer": "Rain."})
        assert finished == {"step_number": 3, "step_type": "finished", "answer": "Rain."}
        assert task == {"step_number": 3, "step_type": "task", "task": "And tomorrow?"}
        assert (said_again["step_number"], finished_again["answer"]) == (4, "Sun.")


async def test_a_thought_and_its_action_are_one_step(serving: Serving) -> None:
    script = [
        call("reasoningtool", **THOUGHT), call("clocktool"),
        call("reasoningtool", **THOUGHT), call("finalanswertool", answer="Noon."),
    ]  # fmt: skip
    async with serving(script, templates=[HYBRID]) as house:
        session_id = (await house.say("What time is it?", model="logger"))["model"]
        entries = plain(await log_of(house, session_id))
        reasoned = {"step_type": "reasoning", "agent_reasoning": THOUGHT}
        assert [entry["step_number"] for entry in entries] == [1, 1, 2, 2, 2]
        assert entries[0] == {"step_number": 1, **reasoned}
        assert list(entries[0]["agent_reasoning"]) == list(THOUGHT)
        assert entries[2] == {"step_number": 2, **reasoned}


def test_failures_faults_and_odd_arguments_are_in_the_log() -> None:
    fault = events.Returned(call="1-action-0", outcome=events.Fault(code="tool_failed", message="it broke"))
    new = (
        opened(), prompted("Go"), started(2), events.Replied(),
        used("1-action-0", arguments="{not json"), used("1-action-1"),
        returned("1-action-1", "second"), fault, events.Condensed(upto=1, summary="s"),
        events.Failed(reason="no luck", code="provider_error"), events.Cancelled(trace="t2", by="user"),
    )  # fmt: skip
    log = agent_log("x", written(*new), None)
    assert (log["model_config"], log["toolkit"], log["task"]) == ({}, [], "Go")
    assert plain(log) == [
        made(1, "clocktool", {}, "second"),
        made(1, "clocktool", "{not json", "Error: it broke"),
        {"step_number": 1, "step_type": "condensed", "summary": "s"},
        {"step_number": 1, "step_type": "failed", "error": "no luck", "code": "provider_error"},
        {"step_number": 1, "step_type": "cancelled", "by": "user"},
    ]


def test_a_session_without_a_turn_has_an_empty_log() -> None:
    assert agent_log("x", written(opened(), prompted("Go")), TEMPLATE)["log"] == []


async def test_an_unknown_session_has_no_log(serving: Serving) -> None:
    async with serving([]) as house, house.http.get("/v1/sessions/nobody_1/log") as response:
        assert response.status == 404


async def test_the_log_is_a_file_after_each_turn(serving: Serving, tmp_path: Path) -> None:
    folder = tmp_path / "deep" / "logs"
    refused = say("", fault=ScriptedStatus(status=400, message="No."))
    script = [call("clarificationtool", questions=["Which?"]), call("finalanswertool", answer="Привет."), refused]
    async with serving(script, templates=[TEMPLATE], agent_log_dir=folder) as house:
        session_id = (await house.say("Hello", model="logger"))["model"]
        await house.until(session_id, "WAITING_FOR_CLARIFICATION")
        await house.say("That one", model=session_id)
        file = folder / f"{session_id}-log.json"
        await until_written(house, session_id, file)
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        assert "Привет." in file.read_text()
        await house.say("Again", model=session_id)
        await until_written(house, session_id, file)
        assert msgspec.json.decode(file.read_bytes())["log"][-1]["step_type"] == "failed"
        assert list(folder.iterdir()) == [file]


async def until_written(house: House, session_id: str, file: Path) -> None:
    """Waits until the file says what the route says."""
    log = await log_of(house, session_id)
    async with asyncio.timeout(10):
        while said(file) != log:
            await asyncio.sleep(0.01)


def said(file: Path) -> Any:
    return msgspec.json.decode(file.read_bytes()) if file.exists() else None


async def test_a_folder_that_cannot_be_written_to_costs_the_log_only(serving: Serving, tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("a file")
    async with serving(
        [call("finalanswertool", answer="One."), call("finalanswertool", answer="Two.")],
        templates=[TEMPLATE],
        agent_log_dir=tmp_path / "taken",
    ) as house:
        session_id = (await house.say("Hello", model="logger"))["model"]
        answered = await house.say("Again", model=session_id)
        assert answered["choices"][0]["message"]["content"] == "Two."
        assert (await house.session(session_id))["state"] == "COMPLETED"


@pytest.mark.parametrize(
    "session_id", ["../../etc/passwd", "/etc/passwd", "..", ".", "a/b", "a\\b", "", "a\nb", "x" * 400, "агент_1", ".x"]
)
def test_a_file_name_never_leaves_its_folder(session_id: str, tmp_path: Path) -> None:
    name = file_name(session_id)
    assert (tmp_path / name).resolve().parent == tmp_path.resolve()
    assert name.isascii()
    assert name.isprintable()
    assert len(name) <= 255
    assert not name.startswith(".")
    assert name.endswith("-log.json")


def test_different_sessions_have_different_files() -> None:
    ids = ["a/b", "a_b", "a\\b", "agent_1", "agent_2", "агент", "x" * 400, "x" * 401]
    assert len({file_name(session_id) for session_id in ids}) == len(ids)
    assert file_name("sgr_agent_1b4e28ba-2fa1-11d2-883f-0016d3cca427").startswith("sgr_agent_1b4e28ba-2fa1-11d2-883f")


def test_the_log_names_the_model_that_answered() -> None:
    """The template may name another by now, or none: then its model is whichever is the default today."""
    said = [events.Replied(model="one-that-was", text="Hm."), events.Replied(model="gpt-of-then"), events.Replied()]
    told = written(opened(), prompted("Go"), started(2), *said)
    today = replace(TEMPLATE, llm_policy=replace(TEMPLATE.llm_policy, model="gpt-of-today"))
    assert agent_log("s", told, today)["model_config"]["model"] == "gpt-of-then"
    assert agent_log("s", told[:3], today)["model_config"]["model"] == "gpt-of-today", "nobody has answered yet"
