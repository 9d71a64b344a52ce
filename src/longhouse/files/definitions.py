"""An agent's definition as a file has it, turned into a template."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Final

import structlog

from longhouse.agents.base import AgentRegistry
from longhouse.agents.hybrid import REASONING, SGRToolCallingAgent
from longhouse.agents.names import name_problem
from longhouse.agents.template import Template
from longhouse.files.endpoints import placed
from longhouse.files.mistakes import Mistakes, checked, unknown
from longhouse.files.nodes import Node, Spot, merged
from longhouse.files.sections import SEARCHING, SECTIONS, Said, said_of, section, template_of
from longhouse.secrets import Bound
from longhouse.tools.admission import of_template

log = structlog.get_logger()

TEMPLATE: Final = frozenset(one.name for one in fields(Template)) - {"name", "version"}
KEYS: Final = frozenset({"name", "base_class", "tools", *SECTIONS, *TEMPLATE})
TOOL_LISTS: Final = ("required", "allowlist", "denylist")


@dataclass(frozen=True, slots=True)
class Defined:
    """One agent: its template so far, what stays in the process, and its keys."""

    name: str
    node: Node
    said: Said
    secrets: Mapping[str, Bound]


def define(name: str, definition: Node, common: Node, tools: Collection[str], mistakes: Mistakes) -> Defined:
    """`common` is the `llm` of all agents, `tools` are the names of this process's own tools."""
    if not isinstance(definition.value, dict | None):
        mistakes.add(definition.spot, "should hold fields of its own")
    definition = Node(definition.items, definition.spot)
    _check_names(name, definition, mistakes)
    for odd, node in definition.without(KEYS).items.items():
        mistakes.add(node.spot, "is given by the catalog" if odd == "version" else unknown(odd, KEYS))
    for node in section(definition, "search", mistakes).only(SEARCHING).items.values():
        mistakes.add(node.spot, "belongs in config.yaml: one service searches for all agents")
    endpoint = placed(section(definition, "llm", mistakes), common, name, mistakes)
    sections = template_of(definition, mistakes)
    policy = merged(sections.get("llm_policy") or Node({}, definition.spot), Node(endpoint.policy, definition.spot))
    fields_of = {**sections.items, **({"llm_policy": policy} if policy.items else {}), **_renamed(definition)}
    node = merged(Node(fields_of, definition.spot), definition.only(TEMPLATE))
    node = _classed(_spelled(node, tools), mistakes)
    return Defined(name, node, said_of(definition, mistakes), endpoint.secrets)


def complete(name: str, node: Node, servers: Collection[str], mistakes: Mistakes) -> Template | None:
    """The template of all layers; None where something in it is wrong."""
    node = _with_servers(merged(node, Node({"name": Node(name, node.spot)}, node.spot)), servers)
    template: Template | None = checked(Template, node, mistakes)
    for where, what in of_template(template) if template else ():
        mistakes.add(node.find(where), what)
    if template and _thinks_first(template):
        named = (REASONING, *(template.tool_policy.allowlist or ()))
        template = replace(template, tool_policy=replace(template.tool_policy, allowlist=named))
    return template


def tool_spots(node: Node) -> dict[str, Spot]:
    """Where each tool is named that has to be there."""
    policy = node.get("tool_policy")
    lists = [policy.get(key) for key in ("required", "allowlist")] if policy else []
    return {
        one.value: one.spot
        for found in lists
        if found and isinstance(found.value, list)
        for one in found.value
        if isinstance(one.value, str)
    }


def _check_names(name: str, definition: Node, mistakes: Mistakes) -> None:
    if problem := name_problem(name):
        mistakes.add(definition.spot, problem)
    own = definition.get("name")
    if own and own.value != name:
        mistakes.add(own.spot, f"should be {name!r} as above it, or be left out")


def _renamed(definition: Node) -> dict[str, Node]:
    """`base_class` and `tools` under the names that templates have for them."""
    found, tools = {}, definition.get("tools")
    if (base := definition.get("base_class")) and base.value is not None:
        found["base_agent_class"] = base
    if tools and tools.value is not None:
        found["tool_policy"] = Node({"allowlist": tools}, tools.spot)
    return found


def _classed(node: Node, mistakes: Mistakes) -> Node:
    """With the agent class as it is registered. Nothing is imported for it: of a path, only the last part counts."""
    base = node.get("base_agent_class")
    if base is None or not isinstance(base.value, str):
        return node
    given = base.value.rpartition(".")[2].rpartition(":")[2]
    newer = AgentRegistry.newer(given)
    if newer:
        log.warning(f"{given} is deprecated; use {newer}", place=str(base.spot))
    known = [cls.name for cls in AgentRegistry.list_items()]
    if (newer or given) not in known:
        mistakes.add(base.spot, f"there is no agent class {base.value!r}; known: {', '.join(sorted(known))}")
    return merged(node, Node({"base_agent_class": Node(newer or given, base.spot)}, node.spot))


def _spelled(node: Node, tools: Collection[str]) -> Node:
    """With tools under their own names, however they are written: WebSearchTool, web_search_tool, web_search."""
    policy = node.get("tool_policy")
    lists = policy.only(TOOL_LISTS).items if policy else {}
    mapped = {key: Node(_each(found.value, tools), found.spot) for key, found in lists.items()}
    if not policy or not mapped:
        return node
    return merged(node, Node({"tool_policy": Node(mapped, policy.spot)}, node.spot))


def _each(value: Any, tools: Collection[str]) -> Any:
    if not isinstance(value, list):
        return value
    return [Node(tool_name(one.value, tools), one.spot) if isinstance(one.value, str) else one for one in value]


def tool_name(given: str, tools: Collection[str]) -> str:
    plain = given.replace("_", "").lower()
    return next((name for name in (given, plain, f"{plain}tool") if name in tools), given)


def _with_servers(node: Node, servers: Collection[str]) -> Node:
    """With all tools of the servers of which the agent names none itself."""
    policy = node.get("tool_policy")
    allowed = policy.get("allowlist") if policy else None
    if policy is None or allowed is None or not isinstance(allowed.value, list):
        return node
    there = [str(one.value) for one in allowed.value]
    more = [name for name in servers if not any(one.startswith(f"{name}.") for one in there)]
    every = [*allowed.value, *(Node(f"{name}.*", allowed.spot) for name in more)]
    return merged(node, Node({"tool_policy": Node({"allowlist": Node(every, allowed.spot)}, policy.spot)}, node.spot))


def _thinks_first(template: Template) -> bool:
    """Does its class begin with a thought, for which its list of tools has none?"""
    cls = AgentRegistry.get(template.base_agent_class)
    thinks = cls is not None and issubclass(cls, SGRToolCallingAgent)
    policy = template.tool_policy
    return thinks and policy.allowlist is not None and REASONING not in policy.named
