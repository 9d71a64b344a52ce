"""What files say for tools, laid over the `config` that every tool is called with."""

from dataclasses import fields, replace
from typing import Any

from longhouse.agents.template import ExecutionPolicy
from longhouse.files.sections import Said
from longhouse.tools.config import ToolConfig


def laid_over(config: ToolConfig, said: Said) -> ToolConfig:
    """What is not said stays as it is."""
    search = replace(config.search, **_said(said.finding))
    around = {**_said(said.surroundings), "extra": {**config.execution.extra, **said.surroundings.extra}}
    return replace(config, search=search, execution=replace(config.execution, **around))


def limited(config: ToolConfig, policy: ExecutionPolicy) -> ToolConfig:
    """With the limits of one agent, for tools that look at them."""
    execution = replace(
        config.execution, max_iterations=policy.max_iterations, max_clarifications=policy.max_clarifications
    )
    return replace(config, search=replace(config.search, max_searches=policy.max_searches), execution=execution)


def _said(section: Any) -> dict[str, Any]:
    values = {one.name: getattr(section, one.name) for one in fields(section) if one.name != "extra"}
    return {name: value for name, value in values.items() if value is not None}
