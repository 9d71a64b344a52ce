"""The sections that config.yaml and agents share: what they say of a template, and what of its surroundings."""

import difflib
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Final

import structlog

from longhouse.agents.template import ExecutionPolicy
from longhouse.errors import SetupError
from longhouse.files.mistakes import Mistakes, checked, unknown
from longhouse.files.nodes import Node, merged
from longhouse.files.prompt_files import prompt_pack
from longhouse.files.shapes import Endpoint, Finding, McpSection, Searching, Surroundings
from longhouse.tools.mcp_config import McpServer, read_server

log = structlog.get_logger()

SECTIONS: Final = ("llm", "search", "execution", "prompts", "mcp")
ENDPOINT: Final = tuple(one.name for one in fields(Endpoint))
SEARCHING: Final = tuple(one.name for one in fields(Searching))
FINDING: Final = tuple(one.name for one in fields(Finding))
SURROUNDINGS: Final = ("mcp_context_limit", "logs_dir", "reports_dir")
BUDGETS: Final = tuple(one.name for one in fields(ExecutionPolicy))


@dataclass(frozen=True, slots=True)
class Said:
    """What a definition says beside its template; it stays in this process."""

    finding: Finding = field(default_factory=Finding)
    surroundings: Surroundings = field(default_factory=Surroundings)
    servers: Mapping[str, McpServer] = field(default_factory=dict)


def section(definition: Node, name: str, mistakes: Mistakes) -> Node:
    """A section with its fields; one that is empty or not there has none."""
    found = definition.get(name)
    if found is None or found.value is None:
        return Node({}, found.spot if found else definition.spot)
    if not isinstance(found.value, dict):
        mistakes.add(found.spot, "should hold fields of its own")
    return Node(found.items, found.spot)


def template_of(definition: Node, mistakes: Mistakes) -> Node:
    """What the sections say of a template, under the template's own names."""
    llm, search = section(definition, "llm", mistakes), section(definition, "search", mistakes)
    budgets = section(definition, "execution", mistakes).only(BUDGETS)
    prompts = section(definition, "prompts", mistakes)
    parts = {
        "llm_policy": llm.without(ENDPOINT),
        "execution_policy": merged(search.only(["max_searches"]), budgets),
        "prompt_pack": prompt_pack(prompts, mistakes),
    }
    return Node({name: part for name, part in parts.items() if part.items}, definition.spot)


def said_of(definition: Node, mistakes: Mistakes, environ: Mapping[str, str] = os.environ) -> Said:
    search = section(definition, "search", mistakes).without([*SEARCHING, "max_searches"])
    for name, node in search.without(FINDING).items.items():
        mistakes.add(node.spot, unknown(name, [*FINDING, *SEARCHING, "max_searches"]))
    finding = checked(Finding, search.only(FINDING), mistakes) or Finding()
    return Said(finding, _surroundings(definition, mistakes), _servers(definition, mistakes, environ))


def _surroundings(definition: Node, mistakes: Mistakes) -> Surroundings:
    execution = section(definition, "execution", mistakes).without(BUDGETS)
    extra = execution.without(SURROUNDINGS)
    for name, node in extra.items.items():
        # It may be meant for a tool; if it is a slip, somebody will look for its effect.
        if near := difflib.get_close_matches(name, [*BUDGETS, *SURROUNDINGS], n=1, cutoff=0.85):
            log.warning("a field that is not known goes to tools", place=str(node.spot), similar=near[0])
    said = Node({**execution.only(SURROUNDINGS).items, "extra": extra}, execution.spot)
    surroundings: Surroundings | None = checked(Surroundings, said, mistakes)
    return surroundings or Surroundings()


def _servers(definition: Node, mistakes: Mistakes, environ: Mapping[str, str]) -> dict[str, McpServer]:
    mcp = section(definition, "mcp", mistakes)
    if checked(McpSection, mcp, mistakes) is None:
        return {}
    found = {}
    for name, node in section(mcp, "mcpServers", mistakes).items.items():
        try:
            found[name] = read_server(name, node.plain, environ)
        except SetupError as error:
            mistakes.add(node.spot, str(error).rstrip("."))
    return found
