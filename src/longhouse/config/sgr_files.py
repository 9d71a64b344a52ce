"""Reads files of SGR-Agent Core 0.7: what they say in another way is translated before the files are checked.

Settings of tools stand in lists of tools and in a section `tools`; classes of agents and tools are named by their
paths. What has no counterpart here is left out with a warning.
"""

import difflib
from collections.abc import Collection, Sequence
from dataclasses import fields
from typing import Any, Final

import msgspec
import structlog

from longhouse.agents import entrypoints
from longhouse.agents.naming import tool_name
from longhouse.agents.strategies.base import AgentRegistry
from longhouse.agents.tool_descriptor import ToolDescriptor
from longhouse.config.mistakes import FilePlace, Mistakes
from longhouse.config.models import ConfigFile, SearchSection
from longhouse.config.yaml_document import YamlDocument
from longhouse.validation_messages import Where

log = structlog.get_logger()

SLIP: Final = 0.75
"""How similar a name is to a known one if it is a slip."""
EVERYBODY: Final = ""
"""Stands for all agents."""
PACKAGE: Final = "sgr_agent_core"
CLASSES: Final = {
    "DialogAgent": "SGRToolCallingAgent",
    "IronAgent": "SGRAgent",
    "ProgressiveDiscoveryAgent": "SGRToolCallingAgent",
    "SGRFileAgent": "ToolCallingAgent",
}
"""Agent classes of SGR-Agent Core and of its examples -> the strategy that takes their part."""
SAME_TOOLS: Final = {"answertool": "finalanswertool"}
"""Their answer that keeps the conversation open: here every answer does."""
PLACEHOLDERS: Final = {
    "initial_user_request_str": ("{user_request}", "{task}"),
    "clarification_response_str": ("{clarification_needed}", "{clarifications}"),
}
SEARCH_TOOLS: Final = ("websearchtool", "extractpagecontenttool")
SEARCH_FIELDS: Final = {
    "api_key": "tavily_api_key",
    "api_base_url": "tavily_api_base_url",
    **{one.name: one.name for one in fields(SearchSection)},
}
"""Settings of the search tools -> fields of the section `search`."""
OF_ENGINE: Final = ("api_key", "api_base_url")
LEFT_OUT: Final = ("langfuse", "skills")
"""Sections of an agent that nothing here reads."""
THEIRS: Final = ("auth", *LEFT_OUT)
"""Sections that files of other products have, and whose misspelt names are told."""
FOR_TOOLS: Final = ("working_directory",)
"""Fields of an agent that its tools read: they go where all such fields are, to `execution`."""
NEVER_SETTINGS: Final = ("effect", "needs_approval", "runtime_binding", "security_policy")
"""Fields of descriptors: as a setting of a tool each of them would do nothing, and somebody would rely on it."""

_SECTIONS: Final = tuple(one.name for one in fields(ConfigFile))
_OF_DESCRIPTORS: Final = frozenset(one.name for one in fields(ToolDescriptor))

ToolSettings = dict[str, dict[str, dict[str, Any]]]
"""Agent -> tool -> the settings that it is called with."""


def adapt(
    documents: Sequence[YamlDocument], tools: Collection[str], packages: Sequence[str], mistakes: Mistakes
) -> tuple[ToolSettings, dict[str, str]]:
    """Translates the documents in place. Returns the settings of tools, and entrypoints with the names of their tools,
    where those are not the names of the classes. Later documents win; the first one says what all agents share."""
    adapter = _Adapter(tools, packages, mistakes)
    for document in documents:
        adapter.leave_out(document)
        adapter.adapt_tools(document, documents[0].values)
    for document in documents:
        agents = document.values.get("agents")
        for name, agent in agents.items() if isinstance(agents, dict) else ():
            if isinstance(agent, dict):
                adapter.adapt_agent(document, name, agent)
    return adapter.settings, adapter.names


class _EntryPlace(msgspec.Struct, frozen=True):
    """Where a tool is named: its path, and that of the sections that its settings belong to."""

    document: YamlDocument
    home: Where
    path: Where

    @property
    def file(self) -> FilePlace:
        return self.document.place(self.path)


class _Adapter:
    def __init__(self, tools: Collection[str], packages: Sequence[str], mistakes: Mistakes) -> None:
        self._known, self._packages, self._mistakes = tools, packages, mistakes
        self._named: dict[str, str | None] = {}
        """Names in the sections `tools` -> the tools that they stand for; None: a tool that is not here."""
        self.settings: ToolSettings = {}
        self.names: dict[str, str] = {}

    def leave_out(self, document: YamlDocument) -> None:
        """Sections of other products are no mistake, unless they look like a slip."""
        for name in [name for name in document.values if name not in _SECTIONS]:
            if name == "mcpServers":  # as in the files of other MCP clients
                self._mistakes.add(document.place((name,)), "belongs into a section `mcp`: put that above it")
                del document.values[name]
            elif not _is_misspelt(name):
                message = f"{name} is no section of Longhouse, and is not read: {', '.join(_SECTIONS)} are."
                _warn("unknown_section", message, document.place((name,)))
                del document.values[name]

    def adapt_tools(self, document: YamlDocument, shared: dict[str, Any]) -> None:
        section = document.values.get("tools")
        if not isinstance(section, dict):
            return
        left = {}
        for name, entry in section.items():
            if isinstance(entry, dict | None) and self._is_of_sgr(name, entry or {}):
                self._define(_EntryPlace(document, (), ("tools", name)), shared, EVERYBODY, name, dict(entry or {}))
            else:
                left[name] = entry
        document.values["tools"] = left
        if not left:
            del document.values["tools"]

    def adapt_agent(self, document: YamlDocument, name: str, agent: dict[str, Any]) -> None:
        path = ("agents", name)
        for section in filter(agent.__contains__, LEFT_OUT):
            _warn("unknown_section", "A section of another product is not read.", document.place((*path, section)))
            del agent[section]
        for field in filter(agent.__contains__, FOR_TOOLS):
            _move(_EntryPlace(document, path, path), field, agent.pop(field), agent, ("execution", field))
        if isinstance(agent.get("base_class"), str):
            agent["base_class"] = _strategy(agent["base_class"], document.place((*path, "base_class")))
        prompts = agent.get("prompts")
        if isinstance(prompts, dict):
            _replace_placeholders(prompts, document, (*path, "prompts"))
        if isinstance(agent.get("tools"), list):
            agent["tools"] = self._listed(document, name, agent)

    def _listed(self, document: YamlDocument, name: str, agent: dict[str, Any]) -> list[Any]:
        """The tools of an agent by their names; `{tool: {…}}` has settings beside its name."""
        path, found, lines = ("agents", name, "tools"), [], []
        for nth, item in enumerate(agent["tools"]):
            given, entry = next(iter(item.items())) if isinstance(item, dict) and len(item) == 1 else (item, None)
            if isinstance(given, str) and isinstance(entry, dict | None):
                place = _EntryPlace(document, ("agents", name), (*path, nth, given))
                item = self._define(place, agent, name, given, dict(entry or {}))  # noqa: PLW2901 - its name
                if item is None:
                    continue
            found.append(item)
            lines.append(document.place((*path, nth)).line)
        document.lines.update({(*path, nth): line for nth, line in enumerate(lines)})
        return found

    def _define(
        self, place: _EntryPlace, above: dict[str, Any], agent: str, name: str, entry: dict[str, Any]
    ) -> str | None:
        """The tool that a name stands for, whose settings are kept; None for one that is not here."""
        base = entry.pop("base_class", None)
        if base is not None or name not in self._named:
            tool = self._tool(name, base if isinstance(base, str) else None)
            if tool is None:
                message = f"The class of {name} is not here: agents work without it; tool_packages lists packages."
                _warn("tool_class_missing", message, place.file)
            elif entrypoints.class_name(tool).lower() in self._known:
                self.names[tool] = name  # the name of the class is that of a tool of ours
            if agent == EVERYBODY:
                self._named[name] = tool
        else:
            tool = self._named[name]
        for field in entry:
            # Not a slip of `effect`: short words are alike too easily.
            if field in NEVER_SETTINGS or _is_slip(field, NEVER_SETTINGS[1:]):
                what = "is no setting; describe the tool under `tools`, with a runtime_binding, and say it there"
                self._mistakes.add(place.document.place((*place.path, field)), what)
        if tool in SEARCH_TOOLS:
            entry = _search_settings(place, above, entry)
        if tool is not None and entry:
            self.settings.setdefault(agent, {}).setdefault(tool, {}).update(entry)
        return tool

    def _is_of_sgr(self, name: str, entry: dict[str, Any]) -> bool:
        """Whether a tool is described as SGR-Agent Core does it: by its class and its settings."""
        if "base_class" in entry or _OF_DESCRIPTORS & entry.keys():
            return "base_class" in entry
        return tool_name(name, self._known) in self._known or not any(_is_slip(one, _OF_DESCRIPTORS) for one in entry)

    def _tool(self, name: str, base: str | None) -> str | None:
        if base is not None:
            entrypoint = entrypoints.spelled(base, self._packages)
            if entrypoint and entrypoints.check(entrypoint, self._packages) is None:
                return entrypoint
            if base.replace(":", ".").partition(".")[0] not in (base, PACKAGE):
                return None
            name = _last(base)
        found = tool_name(name, {*self._known, *SAME_TOOLS})
        found = SAME_TOOLS.get(found, found)
        return found if base is None or found in self._known else None


def _strategy(given: str, place: FilePlace) -> str:
    """The class that takes the part of one of SGR-Agent Core; any other stays as it is."""
    name, known = _last(given), {cls.name for cls in AgentRegistry.list_items()}
    plain = name.removeprefix("Research").removesuffix("NoReporting")
    ours = CLASSES.get(plain, plain)
    if name in known or ours not in known:
        return given
    _warn("foreign_agent_class", f"{name} is a class of SGR-Agent Core; {ours} takes its part.", place)
    return ours


def _replace_placeholders(prompts: dict[str, Any], document: YamlDocument, path: Where) -> None:
    for field, (theirs, ours) in PLACEHOLDERS.items():
        if isinstance(text := prompts.get(field), str) and ours not in text and theirs in text:
            _warn("unknown_placeholder", f"{theirs} is read as {ours}.", document.place((*path, field)))
            prompts[field] = text.replace(theirs, ours)


def _search_settings(place: _EntryPlace, above: dict[str, Any], entry: dict[str, Any]) -> dict[str, Any]:
    """Moves the settings of a search tool to the section `search` beside it; returns the others."""
    engine = entry.pop("engine", "tavily")
    if engine != "tavily":
        _warn("unknown_search_engine", f"There is no search by {engine}, only by tavily.", place.file)
        entry = {name: value for name, value in entry.items() if name not in OF_ENGINE}
    for name in [name for name in entry if name in SEARCH_FIELDS]:
        _move(place, name, entry.pop(name), above, ("search", SEARCH_FIELDS[name]))
    return entry


def _move(place: _EntryPlace, name: str, value: Any, above: dict[str, Any], to: tuple[str, str]) -> None:
    """Sets a field of a section, unless the file sets it; mistakes in it are told where it stands."""
    section, field = to
    there = above.get(section) or {}
    if isinstance(there, dict) and field not in there:
        above[section] = {**there, field: value}
        lines, at, line = place.document.lines, (*place.home, section), place.document.place((*place.path, name)).line
        lines |= {(*at, field): line, at: lines.get(at, line)}


def _last(path: str) -> str:
    """The class that a path names."""
    return path.replace(":", ".").rpartition(".")[2]


def _is_misspelt(section: str) -> bool:
    """Whether it looks like one of our sections, or has the letters of one of ours or of theirs in another order: short
    names are not alike enough otherwise (`mpc`, `auht`)."""
    others = {*_SECTIONS, *THEIRS} - {section}
    return sorted(section.lower()) in map(sorted, others) or _is_slip(section, _SECTIONS, SLIP)


def _is_slip(name: str, known: Collection[str], cutoff: float = 0.85) -> bool:
    return bool(difflib.get_close_matches(name, known, n=1, cutoff=cutoff))


def _warn(key: str, message: str, place: FilePlace) -> None:
    log.warning(key, message=message, place=str(place))
