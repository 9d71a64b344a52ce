"""Golden transcripts: one research task in each of the three ways to think, word for word.

Each file in `tests/golden` holds what the model was sent at every step and what the journal says afterwards.
`LONGHOUSE_WRITE_GOLDEN=1 pytest tests/stories/test_golden.py` writes them anew; read the difference before you keep it.
"""

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest
from strategy_replies import offered, written

from fake_tavily import KEY, hit, tavily
from longhouse.agents.builtin import BUILT_IN
from longhouse.journal import events
from server_helpers import House, Serving, content

GOLDEN = Path(__file__).parents[1] / "golden"

TASK = "Write a short report on rain in my city."
RAIN, COAST = "https://rain.example.org/bergen", "https://coast.example.org/clouds"
FOUND = {
    "annual rainfall Norway cities": [
        hit(RAIN, "Rain in Bergen", "It rains on 240 days of a year."),
        hit(COAST, "Clouds of the coast", "Mountains hold the clouds."),
    ]
}
PAGES = {RAIN: "Bergen has 2,495 mm of rain a year, on 240 days."}
BEFORE = (
    ("generateplantool", {
        "reasoning": "Facts first.",
        "research_goal": "How much it rains",
        "planned_steps": ["search", "read", "ask for the city", "report"],
        "search_strategies": ["statistics"],
    }),
    ("websearchtool", {"query": "annual rainfall Norway cities", "max_results": 5}),
    ("extractpagecontenttool", {"urls": [RAIN]}),
    ("clarificationtool", {"questions": ["Which city is yours?"], "assumptions": ["Bergen"]}),
)  # fmt: skip
AFTER = (
    ("createreporttool", {"title": "Rain in Bergen", "content": "It rains on 240 days: 2,495 mm [1]."}),
    ("finalanswertool", {"answer": "The report is written: 2,495 mm a year [1].", "status": "completed"}),
)
AGENTS = {one.name: one.base_agent_class for one in BUILT_IN if "research" in one.multi_agent_meta.tags}

PLACEHOLDERS = (
    # A session or an instance: the template's name, then a random id. Other random ids (traces) stand alone.
    (r"\b\w+_agent_[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}", "<session>"),
    (r"\b\w+_agent-[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}", "<instance>"),
    (r"\b[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}", "<id>"),
    (r"\b[0-9a-f]{32}\b", "<id>"),
    # Digests: of a request (it names the session), of a report (its name has a digest of the call's key), of a chain.
    (r"\b[0-9a-f]{64}\b", "<digest>"),
    (r"-[0-9a-f]{8}\.md\b", "-<digest>.md"),
    # Moments, then days.
    (r"\b\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?(?:Z|\+00:00)", "<time>"),
    (r"\b\d{4}-\d\d-\d\d\b", "<date>"),
)


def settled(value: Any) -> Any:
    """A JSON value with all that must differ from run to run replaced by a name for it; nothing else is touched."""
    text = json.dumps(value, ensure_ascii=False)
    for pattern, name in PLACEHOLDERS:
        text = re.sub(pattern, name, text)
    return json.loads(text)


def steps(requests: list[Any]) -> list[dict[str, Any]]:
    """Each request by what it adds to the one before: how many leading messages are the same, and all that follow."""
    told: list[dict[str, Any]] = []
    before: list[Any] = []
    for request in requests:
        messages = request.pop("messages")
        same = next(
            (n for n, (old, new) in enumerate(zip(before, messages, strict=False)) if old != new),
            min(len(before), len(messages)),
        )
        told.append({**shown(request), "keeps": same, "adds": messages[same:]})
        before = messages
    return told


def shown(request: dict[str, Any]) -> dict[str, Any]:
    """The request beside its messages; of tools and of a union's branches the names, their schemas are tested apart."""
    names = offered(request)
    if "tools" in request:
        return {**request, "tools": names}
    return {**request, "response_format": {request["response_format"]["json_schema"]["name"]: names}}


async def composed_again(house: House, session_id: str, count: int) -> list[Any]:
    """The messages of each step, as the journal gives them back."""
    composed = []
    for number in range(1, count + 1):
        async with house.http.get(f"/v1/sessions/{session_id}/steps/{number}/request") as response:
            step = await response.json()
            assert step["matches"], step
            composed.append(step["request"]["messages"])
    return composed


@pytest.mark.parametrize("agent", AGENTS)
async def test_a_research_task_is_told_word_for_word(serving: Serving, agent: str) -> None:
    async with tavily(FOUND, PAGES) as stand_in:
        setup: dict[str, Any] = {"tavily_base_url": stand_in.url, "tavily_api_key": KEY}
        async with serving(written(AGENTS[agent], *BEFORE), **setup) as house:
            asked = await house.say(TASK, model=agent)
            assert content(asked) == "Which city is yours?"
            assert house.model is not None
            requests = house.model.requests
        async with serving(written(AGENTS[agent], *AFTER), **setup) as house:
            answered = await house.say("Bergen", model=asked["model"])
            assert content(answered) == "The report is written: 2,495 mm a year [1]."
            assert house.model is not None
            requests += house.model.requests
            journal = [json.loads(events.encode(record.event)) for record in await house.journal(asked["model"])]
            sent = [request["messages"] for request in requests]
            assert await composed_again(house, asked["model"], len(sent)) == sent
        assert [one.path for one in stand_in.requests] == ["/search", "/extract"]
    golden, path = settled({"steps": steps(requests), "journal": journal}), GOLDEN / f"{agent}.json"
    text = json.dumps(golden, indent=1, ensure_ascii=False) + "\n"
    if os.environ.get("LONGHOUSE_WRITE_GOLDEN"):
        path.write_text(text, "utf-8")
    expected = json.loads(path.read_text("utf-8"))
    assert golden["steps"] == expected["steps"]
    assert golden["journal"] == expected["journal"]
    assert text == path.read_text("utf-8"), "keys come in the same order too"
