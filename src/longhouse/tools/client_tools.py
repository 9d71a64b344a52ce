"""The functions that a client runs itself, as tools that an agent is offered beside its own."""

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Final

import msgspec

from longhouse.agents.naming import NamePatterns
from longhouse.agents.rules import OpenTools
from longhouse.agents.template import Template
from longhouse.agents.tool import Tool
from longhouse.journal.events import ClientTool, ClientTools, Fault
from longhouse.journal.messages import clean
from longhouse.tools import arguments
from longhouse.tools.arguments import Check

VERSION: Final = 0
"""Versions of the catalog begin at 1: the journal names a function of the client as `name@0`."""
NO_ARGUMENTS: Final = {"type": "object", "properties": {}}
MAX_ARGUMENTS: Final = 1_000_000
"""Maximum characters of the arguments of a call."""


@lru_cache(maxsize=512)
def tool_of(given: ClientTool) -> Tool:
    """The same tool for the same function: requests are cached by it."""
    # What it does at the client is not known here: its results are never asked for again.
    return Tool(
        name=given.name,
        description=given.description,
        schema=schema_of(given),
        version=VERSION,
        effect="once",
        role="client",
    )


def schema_of(given: ClientTool) -> dict[str, Any]:
    return msgspec.json.decode(given.parameters, type=dict[str, Any]) if given.parameters else NO_ARGUMENTS


def beside(own: Sequence[Tool], asked: ClientTools, template: Template, open_tools: OpenTools) -> list[Tool]:
    """The agent's tools and the client's that are open; if the client demands a call, only that and reasoning.

    If the agent has got a tool of the same name since the request, the agent's tool wins.
    """
    taken, denied = {tool.name for tool in own}, NamePatterns(template.tool_policy.denylist)
    given = [tool_of(one) for one in asked.tools if one.name not in taken and one.name not in denied]
    offered = open_tools.among(given)
    demanded = [tool for tool in offered if tool.name in asked.must_call]
    if demanded:
        return [*(tool for tool in own if tool.role == "reasons"), *demanded]
    return [*own, *offered]


def named(asked: ClientTools | None, name: str) -> Tool | None:
    """The client's function of this name."""
    return next((tool_of(one) for one in asked.tools if one.name == name), None) if asked else None


def fault_of(tool: Tool, written: str) -> Fault | None:
    """Why a call with these arguments is not sent to the client: what it gets fits the schema that it gave."""
    if len(written) > MAX_ARGUMENTS:
        return Fault(code="bad_arguments", message=f"the arguments are longer than {MAX_ARGUMENTS} characters")
    read = arguments.read(tool.name, written, _check(tool))
    return read if isinstance(read, Fault) else None


@lru_cache(maxsize=512)
def _check(tool: Tool) -> Check:
    try:
        return arguments.checker(tool.schema)
    except arguments.BadSchema as error:
        problem = clean(str(error))
        return lambda given: problem
