"""A file of tools from SGR-Agent Core, with only its imports changed, does a whole research here."""

import json
from pathlib import Path
from typing import Any

import pytest

from longhouse.agents.template import LLMPolicy, Template, ToolPolicy
from longhouse.journal.events import Returned
from longhouse.models.scripted import call, say
from server_helpers import House, Serving
from sgr_tools import ELM, EVERY, OAK

TEMPLATE = Template(
    name="librarian",
    llm_policy=LLMPolicy(model="small-model", temperature=0.1),
    tool_policy=ToolPolicy(allowlist=tuple(one.tool_name for one in EVERY)),
)


def results(house: House) -> list[str]:
    """What tools said, as the model was told it in its last request."""
    assert house.model is not None
    return [message["content"] for message in house.model.requests[-1]["messages"] if message["role"] == "tool"]


async def test_a_research_with_such_tools_survives_its_process(serving: Serving, tmp_path: Path) -> None:
    here: dict[str, Any] = {"templates": [TEMPLATE], "tools": EVERY, "reports_dir": tmp_path / "reports"}
    first = [
        call("shelfsearchtool", query="The"),
        call("shelfreadtool", urls=[ELM]),
        call("tallytool", name="Ann"),
        call("modelnametool"),
        call("shelfanswertool", answer="Elms like water [2].", status="completed"),
    ]
    async with serving(first, **here) as house:
        answer = await house.say("What do elms like?", model="librarian")
        assert answer["choices"][0]["message"]["content"] == "Elms like water [2]."
        assert results(house) == [
            f"Search: 'The' (2 sources)\n[1] Oak - {OAK} (The oak)\n[2] Untitled - {ELM} (The elm)",
            f"[2] Untitled - {ELM}\nThe elm likes water. (20)",
            "1: Ann",
            "small-model, 8000 tokens at 0.1",
        ]
        session_id = answer["model"]
        shown = await house.session(session_id)
        assert shown["state"] == "COMPLETED"
        assert shown["context_snapshot"]["sources"][ELM] == {
            "number": 2, "title": None, "url": ELM, "snippet": "The elm", "full_content": "The elm likes water.",
            "char_count": 20,
        }  # fmt: skip
        await plainly_journaled(house, session_id)

    second = [
        call("tallytool", name="Bo"),
        call("shelfreporttool", title="Trees", content="Elms like water [2]."),
        call("shelfanswertool", answer="It is written.", status="completed"),
    ]
    async with serving(second, **here) as house:
        answer = await house.say("Write it down.", model=session_id)
        assert answer["choices"][0]["message"]["content"] == "It is written."
        assert results(house)[-2] == "2: Ann, Bo"
        assert json.loads(results(house)[-1])["sources_count"] == 2
    written = (tmp_path / "reports" / "Trees.md").read_text()
    assert written.endswith(f"## Sources\n\n[1] Oak - {OAK}\n[2] Untitled - {ELM}\n")


async def plainly_journaled(house: House, session_id: str) -> None:
    facts = [one.event for one in await house.journal(session_id) if isinstance(one.event, Returned)]
    kept: dict[str, Any] = {}
    for fact in facts:
        assert json.loads(json.dumps([fact.writes, fact.adds])) == [fact.writes, fact.adds]
        kept |= fact.writes
    assert kept == {"state": "COMPLETED", "execution_result": "Elms like water [2]."}


@pytest.mark.parametrize("strategy", ["ToolCallingAgent", "SGRAgent", "SGRToolCallingAgent"])
async def test_a_tool_that_sets_the_state_ends_the_turn_in_every_strategy(serving: Serving, strategy: str) -> None:
    template = Template(name="librarian", base_agent_class=strategy, tool_policy=TEMPLATE.tool_policy)
    thought = {
        "reasoning_steps": ["look"], "current_situation": "known", "plan_status": "done", "enough_data": True,
        "remaining_steps": [], "task_completed": True,
    }  # fmt: skip
    end = {"answer": "There is no such tree.", "status": "failed"}
    script = {
        "ToolCallingAgent": [call("shelfanswertool", **end)],
        "SGRAgent": [say(json.dumps({**thought, "function": {"tool_name_discriminator": "shelfanswertool", **end}}))],
        "SGRToolCallingAgent": [call("reasoningtool", **thought), call("shelfanswertool", **end)],
    }[strategy]
    async with serving(script, templates=[template], tools=EVERY) as house:
        answer = await house.say("Find it.", model="librarian")
        assert answer["choices"][0]["message"]["content"] == "There is no such tree."
        assert (await house.session(answer["model"]))["state"] == "FAILED"
