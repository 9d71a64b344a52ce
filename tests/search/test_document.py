"""A descriptor as search reads it."""

import msgspec

from longhouse.agents.tool_descriptor import RISKS
from longhouse.search import document
from longhouse.search.document import TemplateFacts, ToolFacts

SCHEMA = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "description": "Where it may rain"},
        "days": {"type": "array", "items": {"type": "object", "properties": {"daylight": {"type": "string"}}}},
        "odd": True,
    },
}


def test_a_tool_is_its_name_its_words_and_its_parameters() -> None:
    read = document.of_tool(
        ToolFacts(
            name="sky.getForecast",
            description_short="The weather",
            description_long="The weather of the next days",
            tags=("outdoor",),
            categories=("planning",),
            input_schema=SCHEMA,
        )
    )
    assert {"sky", "forecast", "weather", "next", "outdoor", "plan", "citi", "rain", "daylight"} <= read.weights.keys()
    assert read.gist == "get forecast: The weather city days daylight odd"
    assert read.tags == ("outdoor", "planning")


def test_a_long_description_that_goes_on_from_the_short_one_counts_once() -> None:
    once = document.of_tool(ToolFacts(name="x", description_short="The weather"))
    twice = document.of_tool(ToolFacts(name="x", description_short="The weather", description_long="The weather"))
    assert once.weights == twice.weights


def test_an_unknown_risk_is_a_high_one() -> None:
    said = msgspec.json.encode({"name": "x", "security_policy": {"risk_level": "extreme"}, "unknown": [1, 2]})
    assert document.of_tool(msgspec.json.decode(said, type=ToolFacts)).risk == RISKS.index("high")


def test_a_template_is_also_what_its_tools_can_do() -> None:
    said = {"name": "helper", "tool_policy": {"required": ["final"], "allowlist": ["sky.*"]}, "multi_agent_meta": {}}
    facts = msgspec.convert(said, TemplateFacts)
    assert facts.named_tools == ("final", "sky.*")
    tools = [ToolFacts(name=f"sky.t{n}", description_short=f"The weather number{n}") for n in range(100)]
    read = document.of_template(facts, tools, [tool.name for tool in tools])
    assert "weather" in read.weights
    assert "number39" in read.weights
    assert "number40" not in read.weights
    assert read.tools[-1] == "sky.t99"
