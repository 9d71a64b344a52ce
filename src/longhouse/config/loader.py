"""Loads config.yaml and agents.yaml, and merges them with the built-in templates."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from longhouse.agents import naming
from longhouse.agents.strategies.base import AgentRegistry
from longhouse.agents.strategies.hybrid import SGRToolCallingAgent
from longhouse.agents.template import Template
from longhouse.catalog.validation import of_template
from longhouse.config import definitions
from longhouse.config.definitions import Definition, place_of
from longhouse.config.mistakes import FilePlace, Mistakes, validated
from longhouse.config.models import AgentsFile, ConfigFile
from longhouse.config.yaml_document import YamlDocument, merged, read_document
from longhouse.secrets import Bound, elsewhere
from longhouse.tools.mcp.config import McpServer

_TEMPLATE: TypeAdapter[Template] = TypeAdapter(Template)


@dataclass(frozen=True, slots=True)
class LoadedFiles:
    """The content of the files. Invalid templates are left out; `mistakes` has their problems, `refuse` raises them."""

    templates: tuple[Template, ...]
    touched: frozenset[str] = frozenset()
    """The names of templates that differ from the built-in ones."""
    common: Definition = field(default=Definition((), {}), repr=False)
    """The configuration of all agents."""
    own: Mapping[str, Definition] = field(default_factory=dict, repr=False)
    """The configuration of single agents."""
    servers: tuple[McpServer, ...] = ()
    secrets: Mapping[str, Bound] = field(default_factory=dict, repr=False)
    """API keys by the names that templates refer to, each with the URL that is configured next to it."""
    tool_spots: Mapping[tuple[str, str], FilePlace] = field(default_factory=dict)
    """(template, tool) -> the place in a file where the tool is named."""
    mistakes: Mistakes = field(default_factory=Mistakes)

    def complain(self, template: str, tool: str, what: str) -> bool:
        """Adds a mistake at the place where a template names a tool; False where no file names it."""
        place = self.tool_spots.get((template, tool))
        if place:
            self.mistakes.add(place, what)
        return place is not None


def read_files(
    config_file: Path | None, agents_file: Path | None, *, templates: Iterable[Template], tools: Collection[str]
) -> LoadedFiles:
    """Merges the files into these templates; `tools` are the names of the tools of this process.

    Only a file that is not YAML is refused at once. Other mistakes are reported together with those that the catalog
    finds later.
    """
    if config_file is None and agents_file is None:
        return LoadedFiles(tuple(templates))
    mistakes = Mistakes()
    config, agents = (
        YamlDocument(Path("-")) if path is None else read_document(path, mistakes)
        for path in (config_file, agents_file)
    )
    if config is None or agents is None:
        mistakes.refuse()
    assert config is not None
    assert agents is not None
    config.check(ConfigFile, mistakes)
    agents.check(AgentsFile, mistakes)
    return _FilesLoader(config, agents, templates, tools, mistakes).given()


class _FilesLoader:
    """Merges the common part of config.yaml, the built-in templates and the part of each agent, in this order."""

    def __init__(
        self,
        config: YamlDocument,
        agents: YamlDocument,
        brought: Iterable[Template],
        tools: Collection[str],
        found: Mistakes,
    ) -> None:
        self._mistakes = found
        self._brought = {template.name: template for template in brought}
        self._common = Definition(((config, ()),), config.values)
        self._defaults = definitions.template_fields(self._common, {}, tools, found)
        self._servers = definitions.servers_of(self._common, found)
        self._secrets = self._common_secret()
        self._agents: dict[str, Definition] = {}
        self._fields: dict[str, dict[str, Any]] = {}
        self._own_servers: dict[str, dict[str, McpServer]] = {}
        definitions.warn_of_slips(self._common)
        for name in {**(config.values.get("agents") or {}), **(agents.values.get("agents") or {})}:
            self._define(name, Definition.of_agent(name, agents, config), tools)

    def _define(self, name: str, agent: Definition, tools: Collection[str]) -> None:
        if problem := naming.name_problem(name):
            self._mistakes.add(agent.place(), problem)
        if (own := agent.values.get("name")) is not None and own != name:
            self._mistakes.add(agent.place("name"), f"should be {name!r} as above it, or be left out")
        reach, secrets = definitions.endpoint(name, agent, self._common, self._mistakes)
        self._secrets |= secrets
        self._agents[name] = agent
        self._fields[name] = definitions.template_fields(agent, reach, tools, self._mistakes)
        self._own_servers[name] = definitions.servers_of(agent, self._mistakes)
        definitions.warn_of_slips(agent)

    def _common_secret(self) -> dict[str, Bound]:
        if definitions.is_wrong_in_part(self._common, self._mistakes):
            self._common.values["llm"] = None
        llm = self._common.said("llm", "base_url", "api_key")
        return {definitions.COMMON_REF: Bound(llm["api_key"], llm["base_url"])} if len(llm) == 2 else {}

    def given(self) -> LoadedFiles:
        self._check_likeness()
        servers = self._every_server()
        self._check_common()
        built = {name: self._built(name) for name in {**self._brought, **self._agents}}
        return LoadedFiles(
            templates=tuple(template for template in built.values() if template),
            touched=frozenset(name for name, template in built.items() if template != self._brought.get(name)),
            common=self._common,
            own=self._agents,
            servers=tuple(servers.values()),
            secrets=self._secrets,
            tool_spots={(name, tool): place for name in self._agents for tool, place in self._tools(name).items()},
            mistakes=self._mistakes,
        )

    def _built(self, name: str) -> Template | None:
        brought, servers = self._brought.get(name), {**self._servers, **self._own_servers.get(name, {})}
        if name not in self._agents and not self._defaults and not servers:
            return brought
        fields = self._defaults
        if brought:
            # Only the values that the built-in template sets: its defaults have the lowest priority.
            spoken = _TEMPLATE.dump_python(brought, mode="json", exclude_defaults=True, exclude={"version"})
            fields = merged(fields, spoken)
        fields = _with_servers(merged(fields, self._fields.get(name, {})), servers)
        agent = self._agents.get(name)
        return self._template(name, fields, [agent, self._common] if agent else [self._common])

    def _template(self, name: str, fields: dict[str, Any], layers: Sequence[Definition]) -> Template | None:
        """The template of all layers; None where it is invalid."""
        template: Template | None
        template, problems = validated(Template, {**fields, "name": name})
        if template:
            problems = list(of_template(template))
            base_url, ref = template.llm_policy.base_url, template.llm_policy.api_key_ref or ""
            bound = self._secrets.get(ref)
            if bound and base_url and not bound.reaches(base_url):
                problems.append((("llm_policy", "api_key_ref"), elsewhere(ref)))
        for path, what in problems:
            self._mistakes.add(place_of(path, layers), what)
        return _with_reasoning_tool(template) if template else None

    def _tools(self, name: str) -> dict[str, FilePlace]:
        """The place of each tool that must exist."""
        policy = self._fields[name].get("tool_policy") or {}
        return {
            tool: place_of(("tool_policy", key, nth), [self._agents[name]])
            for key in ("required", "allowlist")
            for nth, tool in enumerate(policy.get(key) or ())
            if isinstance(tool, str)
        }

    def _check_common(self) -> None:
        """Validates the common part even if no agent inherits it."""
        self._template("common", self._defaults, [self._common])
        llm = self._common.said("llm", "base_url", "api_key", "api_key_ref")
        if llm and "base_url" not in llm:
            place = self._common.place("llm", min(llm))
            self._mistakes.add(place, "needs a base_url beside it: a key is sent only there")

    def _check_likeness(self) -> None:
        """Names that differ only in case would be mistaken for each other."""
        seen = {naming.key(name): name for name in self._brought}
        for name, agent in self._agents.items():
            other = seen.setdefault(naming.key(name), name)
            if other != name:
                self._mistakes.add(agent.place(), f"is too similar to {other!r}")

    def _every_server(self) -> dict[str, McpServer]:
        """Server names are valid for the whole process: two agents may share one only if they mean the same server."""
        every = dict(self._servers)
        for name, own in self._own_servers.items():
            for server, entry in own.items():
                if every.setdefault(server, entry) != entry:
                    place = self._agents[name].place("mcp", "mcpServers", server)
                    self._mistakes.add(place, f"another server is called {server!r} already")
        return every


def _with_servers(fields: dict[str, Any], servers: Collection[str]) -> dict[str, Any]:
    """Adds all tools of each server of which the agent names no tool itself."""
    allowed = (fields.get("tool_policy") or {}).get("allowlist")
    if allowed is None:
        return fields
    more = [f"{name}.*" for name in servers if not any(str(one).startswith(f"{name}.") for one in allowed)]
    return {**fields, "tool_policy": {**fields["tool_policy"], "allowlist": [*allowed, *more]}}


def _with_reasoning_tool(template: Template) -> Template:
    """Adds the reasoning tool where the agent class starts with it and the allowlist lacks it."""
    cls, policy = AgentRegistry.get(template.base_agent_class), template.tool_policy
    thinks = cls is not None and issubclass(cls, SGRToolCallingAgent)
    needed = [name for name in SGRToolCallingAgent.needs if name not in policy.named]
    if not thinks or policy.allowlist is None or not needed:
        return template
    return replace(template, tool_policy=replace(policy, allowlist=(*needed, *policy.allowlist)))
