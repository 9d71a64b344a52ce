"""Loads config.yaml and agents.yaml, and merges them with the built-in templates."""

import importlib.util
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec

from longhouse.agents import naming
from longhouse.agents.adapters import written
from longhouse.agents.strategies.base import AgentRegistry
from longhouse.agents.strategies.tool_calling import SGRToolCallingAgent
from longhouse.agents.template import Template, with_tool_names
from longhouse.agents.tool_descriptor import RuntimeBinding, ToolDescriptor
from longhouse.catalog.validation import of_template
from longhouse.config import definitions, sgr_files
from longhouse.config.definitions import Definition, KnownNames, place_of
from longhouse.config.mistakes import FilePlace, Mistakes, validated
from longhouse.config.models import AgentsFile, ConfigFile
from longhouse.config.sgr_files import ToolSettings
from longhouse.config.yaml_document import YamlDocument, merged, read_document
from longhouse.secrets import BoundSecret, other_address_message
from longhouse.tools.mcp.config import McpServerConfig
from longhouse.validation_messages import Where


def read_files(
    config_file: Path | None,
    agents_file: Path | None,
    *,
    templates: Iterable[Template],
    tools: Collection[str],
    packages: Sequence[str] = (),
) -> "LoadedFiles":
    """Merges the files into these templates; `tools` are the names of the tools of this process, `packages` those that
    tools and agent classes may come from, in place of what the files say.

    Only a file that is not YAML is refused at once. Other mistakes are reported together with those that the catalog
    finds later.
    """
    mistakes = Mistakes()
    mistakes.read |= {path for path in (config_file, agents_file) if path}
    config, agents = (
        YamlDocument(Path("-")) if path is None else read_document(path, mistakes)
        for path in (config_file, agents_file)
    )
    if config is None or agents is None:
        mistakes.refuse()
    assert config
    assert agents
    listed = [_packages_of(document, mistakes) for document in (agents, config)]
    allowed = packages or next(filter(None, listed), ())
    settings, names = sgr_files.adapt((config, agents), tools, allowed, mistakes)
    for document, model in ((config, ConfigFile), (agents, AgentsFile)):
        for values in (document.values, *_agents_in(document).values()):
            definitions.drop_empty(values)
        document.check(model, mistakes)
    known = KnownNames({*tools, *names.values()}, allowed, names)
    return LoadedFiles(config, agents, templates, known, mistakes, tool_settings=settings)


def _agents_in(document: YamlDocument) -> dict[str, dict[str, Any]]:
    found = document.values.get("agents")
    return {name: one for name, one in found.items() if isinstance(one, dict)} if isinstance(found, dict) else {}


def _packages_of(document: YamlDocument, mistakes: Mistakes) -> tuple[str, ...]:
    """The packages that a file names. They may lie beside it: its folder is searched, after all that is installed."""
    listed = document.values.get("tool_packages")
    packages = tuple(one for one in listed if isinstance(one, str)) if isinstance(listed, list) else ()
    folder = str(document.file.absolute().parent.resolve())
    if packages and folder not in sys.path:
        sys.path.append(folder)
    for nth, package in enumerate(packages):
        top = package.partition(".")[0]
        is_here = Path(folder, f"{top}.py").is_file() or Path(folder, top, "__init__.py").is_file()
        if is_here and (other := _found_elsewhere(top, folder)):
            mistakes.add(document.place(("tool_packages", nth)), f"{other} has this name already; rename yours")
    return packages


def _found_elsewhere(top: str, folder: str) -> str | None:
    """The file that Python would import under this name, if it is not in the folder."""
    try:
        spec = importlib.util.find_spec(top)
    except (ImportError, ValueError):
        return None
    origin = spec.origin if spec else None
    return origin if origin and not Path(origin).resolve().is_relative_to(folder) else None


class LoadedFiles:
    """Merges the common part of config.yaml, the built-in templates and the part of each agent, in this order.

    Invalid templates are left out; `mistakes` has their problems, `refuse` raises them.
    """

    def __init__(
        self,
        config: YamlDocument,
        agents: YamlDocument,
        built_in: Iterable[Template],
        known: KnownNames,
        mistakes: Mistakes,
        *,
        tool_settings: ToolSettings,
    ) -> None:
        self.mistakes = mistakes
        self.read = mistakes.read
        """The files that were read, and those that they name."""
        self.packages = tuple(known.packages)
        given = tuple(built_in)
        self._built_in = {template.name: template for template in given}
        self.common = Definition(((config, ()),), {name: one for name, one in config.values.items() if name != "tools"})
        """The configuration of all agents."""
        servers = {"mcp": merged(config.values.get("mcp") or {}, agents.values.get("mcp") or {})}
        common_servers = Definition(((agents, ()), (config, ())), servers)
        self._common_servers = definitions.servers_of(common_servers, mistakes)
        self._tool_definitions = Definition.every("tools", agents, config)
        self.own = Definition.every("agents", agents, config)
        """The configuration of single agents."""
        self.tools = dict(self._own_tools())
        """The tools that the files describe, by name, without those that are invalid."""
        for name, tool in self.tools.items():
            if entrypoint := tool.runtime_binding.python_entrypoint:
                known.entrypoints.setdefault(entrypoint, name)
        agent_tools = {f"{naming.AGENT_PREFIX}{name}" for name in (*self._built_in, *self.own)}
        known = msgspec.structs.replace(known, tools={*known.tools, *self._tool_definitions, *agent_tools})
        self._known = known
        self._defaults = definitions.template_fields(self.common, {}, known, mistakes)
        self.secrets = self._common_secret()
        """API keys by the names that templates refer to, each with the URL that is configured next to it."""
        self._fields: dict[str, dict[str, Any]] = {}
        self._own_servers: dict[str, dict[str, McpServerConfig]] = {}
        self.tool_places: dict[tuple[str, str], FilePlace] = {}
        """(template, tool) -> the place in a file where the tool is named."""
        definitions.check_extra(self.common, mistakes)
        for name, agent in self.own.items():
            self._define(name, agent)
        self._check_similar_names()
        self.servers = self._all_servers()
        self._check_common()
        merged_templates = {name: self._merged(name) for name in {**self._built_in, **self.own}}
        self.touched = {name for name, one in merged_templates.items() if one != self._built_in.get(name)}
        """The names of templates that differ from the built-in ones."""
        changed = (one for name, one in merged_templates.items() if one and name in self.touched)
        # A program may bring several versions of a name: those that no file changes are all published, in order.
        self.templates = (*(one for one in given if one.name not in self.touched), *changed)
        self._add_entrypoints(known.entrypoints)
        self.tool_settings = {
            agent: {known.tool_name(tool): values for tool, values in named.items()}
            for agent, named in tool_settings.items()
        }

    @property
    def tool_names(self) -> set[str]:
        """The names of the tools that the files describe, also of invalid ones."""
        return {*self.tools, *self._tool_definitions}

    def add_tool_problem(self, name: str, where: Where, what: str) -> None:
        """Adds a mistake of a tool that the files describe, or whose class they name in the list of an agent."""
        definition = self._tool_definitions.get(name)
        named = (place for (_, tool), place in self.tool_places.items() if tool == name)
        self.mistakes.add(definition.place(*where) if definition else next(named, self.common.place()), what)

    def _own_tools(self) -> Iterator[tuple[str, ToolDescriptor]]:
        for name, definition in self._tool_definitions.items():
            self._check_name(name, definition)
            if any(place.path[:2] == ("tools", name) for place in self.mistakes):
                continue  # what else is wrong with it may follow from that
            if definition.values.get("runtime_binding") is None and "." not in name:
                self.mistakes.add(
                    definition.place(), "needs a runtime_binding: a python_entrypoint or a remote_endpoint"
                )
                continue
            # A name with a dot is `<server>.<tool>` of an MCP server, unless something else is said.
            given = {field: value for field, value in definition.values.items() if value is not None}
            values = {"description_short": "", "runtime_binding": {"mcp": name}, **given, "name": name}
            tool, problems = validated(ToolDescriptor, values)
            for path, what in problems:
                self.mistakes.add(definition.place(*path), what)
            if tool:
                yield name, tool

    def _check_name(self, name: str, definition: Definition) -> None:
        if definition.values.get("name") not in (None, name):
            self.mistakes.add(definition.place("name"), f"should be {name!r} as above it, or be left out")

    def _add_entrypoints(self, entrypoints: Mapping[str, str]) -> None:
        """Adds the tools whose classes only agents name; those are called as the class, in lower case."""
        for entrypoint, name in entrypoints.items():
            binding = RuntimeBinding(python_entrypoint=entrypoint)
            tool = self.tools.setdefault(name, ToolDescriptor(name=name, description_short="", runtime_binding=binding))
            if tool.runtime_binding != binding:
                what = f"there is another tool {name!r} already; give this one a name of its own under `tools`"
                self.add_tool_problem(name, (), what)

    def add_tool_mistake(self, template: str, tool: str, what: str) -> bool:
        """Adds a mistake at the place where a template names a tool; False where no file names it."""
        place = self.tool_places.get((template, tool))
        if place:
            self.mistakes.add(place, what)
        return place is not None

    def add_policy_mistake(self, template: Template, where: Where, what: str) -> bool:
        """Adds a mistake at a field of a template's policy; False where no file has the template."""
        agent = self.own.get(template.name)
        if agent is None:
            return False
        required = template.tool_policy.required
        path = ("required", len(required) - 1) if required and where == ("required",) else where
        self.mistakes.add(place_of(("tool_policy", *path), [agent, self.common]), what)
        return True

    def _define(self, name: str, agent: Definition) -> None:
        if problem := naming.name_problem(name):
            self.mistakes.add(agent.place(), problem)
        self._check_name(name, agent)
        reach, secrets = definitions.endpoint(name, agent, self.common, self.mistakes)
        self.secrets |= secrets
        self._fields[name] = fields = definitions.template_fields(agent, reach, self._known, self.mistakes)
        policy = fields.get("tool_policy") or {}
        for key in ("required", "allowlist"):
            for nth, tool in enumerate(policy.get(key) or ()):
                if isinstance(tool, str):
                    self.tool_places[name, tool] = place_of(("tool_policy", key, nth), [agent])
        self._own_servers[name] = definitions.servers_of(agent, self.mistakes)
        definitions.check_extra(agent, self.mistakes)

    def _common_secret(self) -> dict[str, BoundSecret]:
        if definitions.has_endpoint_mistake(self.common, self.mistakes):
            self.common.values["llm"] = None
        llm = self.common.pick("llm", "base_url", "api_key")
        return {definitions.COMMON_REF: BoundSecret(llm["api_key"], llm["base_url"])} if len(llm) == 2 else {}

    def _merged(self, name: str) -> Template | None:
        built_in, servers = self._built_in.get(name), {**self._common_servers, **self._own_servers.get(name, {})}
        if name not in self.own and not self._defaults and not servers:
            return built_in
        fields = self._defaults
        if built_in:
            # Only the values that the built-in template sets: its defaults have the lowest priority.
            fields = merged(fields, written(built_in, without={"version"}, briefly=True))
        fields = _with_servers(merged(fields, self._fields.get(name, {})), servers)
        agent = self.own.get(name)
        return self._template(name, fields, [agent, self.common] if agent else [self.common])

    def _template(self, name: str, fields: dict[str, Any], layers: Sequence[Definition]) -> Template | None:
        """The template of all layers; None where it is invalid."""
        template: Template | None
        template, problems = validated(Template, {**fields, "name": name})
        if template:
            problems = list(of_template(template))
            base_url, ref = template.llm_policy.base_url, template.llm_policy.api_key_ref or ""
            bound = self.secrets.get(ref)
            if bound and base_url and not bound.reaches(base_url):
                problems.append((("llm_policy", "api_key_ref"), other_address_message(ref)))
        for path, what in problems:
            self.mistakes.add(place_of(path, layers), what)
        if template is None:
            return None
        # Lists of tools have their names already; rules may spell them in other ways, too.
        return _with_reasoning_tool(with_tool_names(template, self._known.tool_name))

    def _check_common(self) -> None:
        """Validates the common part even if no agent inherits it."""
        if self._defaults:
            self._template("common", self._defaults, [self.common])
        llm = self.common.pick("llm", "base_url", "api_key", "api_key_ref")
        if llm and "base_url" not in llm:
            place = self.common.place("llm", min(llm))
            self.mistakes.add(place, "needs a base_url beside it: a key is sent only there")

    def _check_similar_names(self) -> None:
        """Names that differ only in case would be mistaken for each other."""
        seen = {naming.key(name): name for name in self._built_in}
        for name, agent in self.own.items():
            other = seen.setdefault(naming.key(name), name)
            if other != name:
                self.mistakes.add(agent.place(), f"is too similar to {other!r}")

    def _all_servers(self) -> tuple[McpServerConfig, ...]:
        """Server names are valid for the whole process: two agents may share one only if they mean the same server."""
        every = dict(self._common_servers)
        for name, own in self._own_servers.items():
            for server, entry in own.items():
                if every.setdefault(server, entry) != entry:
                    place = self.own[name].place("mcp", "mcpServers", server)
                    self.mistakes.add(place, f"another server is called {server!r} already")
        return tuple(every.values())


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
