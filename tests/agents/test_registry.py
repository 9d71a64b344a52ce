"""Agents and tools are known by name from the moment they are defined."""

import subprocess
import sys

import pytest

from longhouse.agents.strategies.base import AgentRegistry, BaseAgent
from longhouse.agents.strategies.structured import SGRAgent
from longhouse.agents.strategies.tool_calling import SGRToolCallingAgent
from longhouse.errors import SetupError
from longhouse.tools import BaseTool, FinalAnswerTool
from longhouse.tools.base import ToolRegistry


def test_a_subclass_registers_under_its_name() -> None:
    class Dreamer(BaseAgent):
        """Thinks in dreams."""

    class Sleeper(BaseAgent):
        name = "deep_sleeper"

    class NapTool(BaseTool):
        """Sleep."""

    assert AgentRegistry.get("Dreamer") is Dreamer
    assert AgentRegistry.get("deep_sleeper") is Sleeper
    assert ToolRegistry.get("naptool") is NapTool
    assert Dreamer in AgentRegistry.list_items()
    assert AgentRegistry.resolve(["SGRAgent", "Dreamer"]) == [SGRAgent, Dreamer]
    with pytest.raises(KeyError, match="Nobody"):
        AgentRegistry.resolve(["SGRAgent", "Nobody"])


@pytest.mark.parametrize("taken", ["SGRAgent", "SGRAutoToolCallingAgent", "SgrAgent", "sgrautotoolcallingagent"])
def test_a_class_of_yours_does_not_take_the_place_of_a_built_in_one(taken: str) -> None:
    before = AgentRegistry.list_items()
    with pytest.raises(SetupError) as refused:
        type("Mine", (SGRAgent,), {"name": taken})
    assert str(refused.value) == f"an agent class {taken!r} comes with Longhouse; give yours another name"
    assert AgentRegistry.list_items() == before


def test_old_names_are_accepted_with_a_warning() -> None:
    with pytest.warns(DeprecationWarning, match="use SGRToolCallingAgent"):
        assert AgentRegistry.get("SGRAutoToolCallingAgent") is SGRToolCallingAgent
    with pytest.warns(DeprecationWarning, match="use SGRAgent"):
        assert AgentRegistry.get("SGRSOToolCallingAgent") is SGRAgent


def test_names_are_found_in_any_case_of_letters_as_in_sgr_agent_core() -> None:
    assert ToolRegistry.get("FinalAnswerTool") is FinalAnswerTool
    assert ToolRegistry.get("WebSearchTool") is ToolRegistry.get("websearchtool")
    assert AgentRegistry.get("sgragent") is SGRAgent
    assert AgentRegistry.resolve(["SGRAGENT", "sgrToolCallingAgent"]) == [SGRAgent, SGRToolCallingAgent]
    with pytest.warns(DeprecationWarning, match="use SGRAgent"):
        assert AgentRegistry.get("sgrsotoolcallingagent") is SGRAgent

    class Loud(BaseAgent):
        """Registered under two names, and listed once."""

    AgentRegistry.register(Loud, name="Very.Loud")
    AgentRegistry.register(Loud, name="LOUD")
    assert AgentRegistry.get("very.loud") is AgentRegistry.get("loud") is Loud
    assert AgentRegistry.list_items().count(Loud) == 1


def test_registering_by_hand_and_as_a_decorator() -> None:
    class StrayTool(BaseTool):
        """Strays."""

    ToolRegistry.register(StrayTool, name="stray")
    assert ToolRegistry.get("stray") is StrayTool

    @AgentRegistry.register(name="decorated")
    class Decorated(BaseAgent):
        """Known by two names."""

    assert AgentRegistry.get("decorated") is Decorated


def test_the_registries_are_filled_after_their_import_alone() -> None:
    code = """
from longhouse.agents import AgentRegistry
from longhouse.tools import FinalAnswerTool, ToolRegistry

print(sorted(cls.name for cls in AgentRegistry.list_items()))
print(AgentRegistry.get("SGRAgent").name, ToolRegistry.resolve(["clocktool"])[0].tool_name)
tools = ToolRegistry.list_items()
from longhouse.agents.strategies.structured import NextStepToolsBuilder

schema = NextStepToolsBuilder.build_NextStepTools([FinalAnswerTool])
print(schema["properties"]["function"]["anyOf"][0]["properties"]["tool_name_discriminator"]["const"])
from longhouse.app import TOOLS

print(set(tools) == set(TOOLS))
print(sorted(cls.name for cls in AgentRegistry.list_items()))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    agents = "['SGRAgent', 'SGRToolCallingAgent', 'ToolCallingAgent']"
    assert done.stdout.splitlines() == [agents, "SGRAgent clocktool", "finalanswertool", "True", agents], done.stderr


def test_a_built_in_name_is_taken_also_where_nobody_has_imported_its_class() -> None:
    code = "from longhouse.agents import BaseAgent\ntype('SGRAgent', (BaseAgent,), {})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert "an agent class 'SGRAgent' comes with Longhouse; give yours another name" in done.stderr
