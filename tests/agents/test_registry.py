"""Agents and tools are known by name from the moment they are defined."""

import pytest

from longhouse.agents.strategies.base import AgentRegistry, BaseAgent
from longhouse.agents.strategies.hybrid import SGRToolCallingAgent
from longhouse.agents.strategies.structured import SGRAgent
from longhouse.errors import SetupError
from longhouse.tools import BaseTool
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


@pytest.mark.parametrize("taken", ["SGRAgent", "SGRAutoToolCallingAgent"])
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


def test_registering_by_hand_and_as_a_decorator() -> None:
    class StrayTool(BaseTool):
        """Strays."""

    ToolRegistry.register(StrayTool, name="stray")
    assert ToolRegistry.get("stray") is StrayTool

    @AgentRegistry.register(name="decorated")
    class Decorated(BaseAgent):
        """Known by two names."""

    assert AgentRegistry.get("decorated") is Decorated
