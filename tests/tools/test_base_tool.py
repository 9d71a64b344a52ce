"""The contract of a tool: a Pydantic model with a docstring, a name and something to do."""

from typing import Any, ClassVar, Literal

from pydantic import Field

from longhouse.tools.base import BaseTool
from longhouse.tools.toolbox import Toolbox


class WeatherTool(BaseTool):
    """Tell the weather.

    In one place at a time.
    """

    reasoning: str = Field(description="Why")
    title: str = "x"
    days: Literal[1, 3] = 1
    place: dict[str, str] = Field(default_factory=dict)

    async def __call__(self, context: Any, config: Any = None, **kwargs: Any) -> str:
        return self.title


class Named(BaseTool):
    """Ignored."""

    tool_name: ClassVar[str] = "weather.v2"
    description: ClassVar[str] = "Own words."
    effect: ClassVar[Literal["once"]] = "once"
    timeout: ClassVar[float] = 5.0
    max_output: ClassVar[int] = 10
    finishes: ClassVar[bool] = True
    asks: ClassVar[bool] = True
    inline: ClassVar[bool] = True


class Unannotated(BaseTool):
    tool_name = "plain"
    description = "Without annotations."


class Child(Named):
    """A child of a named tool."""


class Silent(BaseTool):
    pass


def test_name_and_description_come_from_the_class() -> None:
    assert WeatherTool.tool_name == "weathertool"
    assert WeatherTool.description == "Tell the weather.\n\nIn one place at a time."
    assert (Silent.tool_name, Silent.description) == ("silent", "")


def test_a_tool_may_have_its_own_name_and_description() -> None:
    assert (Named.tool_name, Named.description) == ("weather.v2", "Own words.")
    assert (Unannotated.tool_name, Unannotated.description) == ("plain", "Without annotations.")


def test_a_subclass_has_a_name_of_its_own_and_keeps_the_rest() -> None:
    assert (Child.tool_name, Child.description) == ("child", "A child of a named tool.")
    assert (Child.effect, Child.timeout) == ("once", 5.0)


def test_the_class_says_how_the_tool_behaves() -> None:
    tool = Named.described()
    assert (tool.name, tool.ref, tool.effect, tool.timeout, tool.max_output) == (
        "weather.v2", "weather.v2@1", "once", 5.0, 10,
    )  # fmt: skip
    assert (tool.inline, tool.finishes, tool.asks) == (True, True, True)
    plain = WeatherTool.described()
    assert (plain.effect, plain.timeout, plain.inline, plain.finishes, plain.asks) == (
        "read",
        60.0,
        False,
        False,
        False,
    )


def test_the_schema_is_the_fields_in_their_order_without_generated_titles() -> None:
    assert WeatherTool.described().schema == {
        "type": "object",
        "properties": {
            "reasoning": {"type": "string", "description": "Why"},
            "title": {"type": "string", "default": "x"},
            "days": {"type": "integer", "enum": [1, 3], "default": 1},
            "place": {"type": "object", "additionalProperties": {"type": "string"}},
        },
        "required": ["reasoning"],
    }
    assert list(WeatherTool.described().schema["properties"]) == ["reasoning", "title", "days", "place"]


def test_a_provider_is_told_of_a_tool_once_encoded_for_all_steps() -> None:
    tool = Named.described()
    spec = tool.spec("weather_v2")
    assert bytes(spec) == (
        b'{"type":"function","function":{"name":"weather_v2","description":"Own words.",'
        b'"parameters":{"properties":{},"type":"object"}}}'
    )
    assert tool.spec("weather_v2") is spec


def test_a_toolbox_finds_tools_by_their_names() -> None:
    toolbox = Toolbox([WeatherTool, Named])
    found = toolbox.find("weather.v2")
    assert found is not None
    assert found.description == "Own words."
    assert toolbox.find("named") is None
