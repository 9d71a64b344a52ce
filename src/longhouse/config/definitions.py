"""Converts the files' sections for one agent, or for all, into template fields, secrets and tool configuration."""

import difflib
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, Final

import msgspec
import structlog

from longhouse.agents import entrypoints, naming
from longhouse.agents.entrypoints import EntrypointError
from longhouse.agents.strategies.base import AgentRegistry
from longhouse.agents.template import ExecutionPolicy, Template, ToolPolicy
from longhouse.config.mistakes import FilePlace, Mistakes
from longhouse.config.models import Execution
from longhouse.config.yaml_document import YamlDocument, merged, read_text
from longhouse.errors import SetupError
from longhouse.secrets import BoundSecret
from longhouse.tools.mcp.config import McpServerConfig, read_server
from longhouse.validation_messages import Where, did_you_mean

log = structlog.get_logger()

COMMON_REF: Final = "config:llm"
"""The name by which agents refer to the common key; it is sent only to the URL that is configured next to it."""
PROMPTS: Final = ("system_prompt", "initial_user_request", "clarification_response")
LARGEST_PROMPT: Final = 400_000
"""Bytes of a prompt file; a prompt has at most 100,000 characters."""

_REACH: Final = ("base_url", "api_key", "api_key_ref", "proxy")
_BUDGETS: Final = tuple(one.name for one in fields(ExecutionPolicy))
_TOOL_POLICY: Final = tuple(one.name for one in fields(ToolPolicy))
_EXECUTION: Final = tuple(one.name for one in fields(Execution))
_TEMPLATE: Final = tuple(one.name for one in fields(Template) if one.name not in ("name", "version"))
_TOOL_LISTS: Final = ("required", "allowlist", "denylist")


class Definition(msgspec.Struct, frozen=True):
    """Sections and fields of an agent, merged from several files; `places` lists the highest priority first."""

    places: tuple[tuple[YamlDocument, Where], ...]
    values: dict[str, Any]

    @classmethod
    def every(cls, section: str, *documents: YamlDocument) -> dict[str, "Definition"]:
        """The agents or the tools of these documents, the highest priority first, by name."""
        names = [name for document in reversed(documents) for name in document.values.get(section) or ()]
        found: dict[str, Definition] = {}
        for name in names:
            path = (section, name)
            places = tuple((one, path) for one in documents if path in one.lines)
            values: dict[str, Any] = {}
            for document, _ in reversed(places):
                values = merged(values, (document.values[section] or {}).get(name) or {})
            found[name] = cls(places, values)
        return found

    def section(self, name: str) -> dict[str, Any]:
        return self.values.get(name) or {}

    def find(self, *path: int | str) -> FilePlace | None:
        found = (
            document.place((*above, *path)) for document, above in self.places if (*above, *path) in document.lines
        )
        return next(found, None)

    def place(self, *path: int | str) -> FilePlace:
        document, above = self.places[0]
        return self.find(*path) or document.place((*above, *path))

    def pick(self, section: str, *names: str) -> dict[str, Any]:
        """The values that a section sets for these fields."""
        return {name: value for name, value in _only(self.section(section), names).items() if value is not None}

    @property
    def extra(self) -> dict[str, Any]:
        """Fields of `execution` that only tools know."""
        return _without(self.section("execution"), _EXECUTION)


def place_of(path: Where, definitions: Collection[Definition]) -> FilePlace:
    """The place of a template's field in the files, under any of its names."""
    found = (one.find(*spelled) for one in definitions for spelled in _spellings(path))
    return next(filter(None, found), next(iter(definitions)).place(*path))


def _spellings(path: Where) -> Iterator[Where]:
    yield () if path == ("name",) else path
    match path:
        case ("base_agent_class",):
            yield ("base_class",)
        case ("llm_policy", *rest):
            yield ("llm", *rest)
            if rest == ["api_key_ref"]:
                yield ("llm", "api_key")
        case ("execution_policy", *rest):
            yield from (("execution", *rest), ("search", *rest))
        case ("prompt_pack", kind):
            yield from (("prompts", f"{kind}_str"), ("prompts", f"{kind}_file"))
        case ("tool_policy", "allowlist", *rest):
            yield ("tools", *rest)


class KnownNames(msgspec.Struct, frozen=True):
    """What files may name: the tools of the process and of the files, and packages of tools and agent classes."""

    tools: Collection[str]
    packages: Sequence[str] = ()
    entrypoints: dict[str, str] = msgspec.field(default_factory=dict)
    """Entrypoint -> the name of its tool; those that only the list of an agent names are added when they are met."""

    def tool_name(self, given: Any) -> Any:
        """The name of a tool in any of its spellings (WebSearchTool, web_search_tool, web_search), or of a class."""
        if entrypoint := entrypoints.spelled(str(given), self.packages):
            return self.entrypoints.setdefault(entrypoint, entrypoints.class_name(entrypoint).lower())
        return naming.spelled(str(given), self.tools) or given

    def class_name(self, given: str) -> str:
        """The name under which an agent class is registered, which is imported if that is needed.

        Of a path outside of the packages only the last part counts: it is how other programs name our classes.
        """
        entrypoint, name = entrypoints.spelled(given, self.packages), re.split("[.:]", given)[-1]
        problem = entrypoints.check(entrypoint, self.packages) if entrypoint else None
        if entrypoint and not problem:
            AgentRegistry.load(entrypoint, self.packages)
            return entrypoint
        known = sorted({cls.name for cls in AgentRegistry.list_items()})
        if found := naming.spelled(name, (*known, *AgentRegistry.old_names)):
            return found
        near = did_you_mean(name, known, 0.7)
        raise EntrypointError(problem or f"there is no agent class {given!r}; known: {', '.join(known)}{near}")


def template_fields(
    definition: Definition, reach: Mapping[str, Any], known: KnownNames, mistakes: Mistakes
) -> dict[str, Any]:
    """The sections as template fields; a value under the template's own field name wins."""
    llm, search, execution = (definition.section(name) for name in ("llm", "search", "execution"))
    named = definition.values.get("tools")
    policies = {
        "llm_policy": {**_without(llm, (*_REACH, "model")), **reach},
        "execution_policy": {**_only(search, ["max_searches"]), **_only(execution, _BUDGETS)},
        "prompt_pack": _prompts(definition, mistakes),
        "tool_policy": {} if named is None else {"allowlist": named},
        "base_agent_class": definition.values.get("base_class"),
    }
    own = _only(definition.values, _TEMPLATE)
    found: dict[str, Any] = merged({key: one for key, one in policies.items() if one}, own)
    if base := found.pop("base_agent_class", None):
        place = place_of(("base_agent_class",), [definition])
        try:
            found["base_agent_class"] = _newest(known.class_name(base), place)
        except EntrypointError as error:
            mistakes.add(place, str(error))
    if policy := found.get("tool_policy"):
        lists = {key: [known.tool_name(one) for one in policy[key]] for key in _TOOL_LISTS if policy.get(key)}
        found["tool_policy"] = {**policy, **lists}
    return found


def _newest(name: str, place: FilePlace) -> str:
    newer = AgentRegistry.newer(name)
    if newer:
        log.warning("deprecated_agent_class", message=f"{name} is deprecated; use {newer}", place=str(place))
    return newer or name


def endpoint(
    name: str, definition: Definition, common: Definition, mistakes: Mistakes
) -> tuple[dict[str, Any], dict[str, BoundSecret]]:
    """The model endpoint of an agent as LLM policy fields, and its key; without a base URL, the common endpoint."""
    llm, shared = definition.section("llm"), common.section("llm")
    policy = _only(llm, ["model"])
    own = {key: llm[key] for key in _REACH if key in llm and (llm[key] is not None or key == "proxy")}
    if not own or has_endpoint_mistake(definition, mistakes):
        return policy, {}
    base_url = own.get("base_url") or shared.get("base_url")
    if base_url is None:
        if not has_endpoint_mistake(common, mistakes):
            place = definition.place("llm", next(key for key in llm if key in own))
            mistakes.add(place, "needs a base_url beside it, or in the `llm` of config.yaml")
        return policy, {}
    policy["base_url"] = base_url
    ref, secrets = own.get("api_key_ref"), {}
    if key := own.get("api_key"):
        if ref:
            mistakes.add(definition.place("llm", "api_key_ref"), "is set together with api_key; set only one of them")
        ref = f"agents:{name}"
        secrets[ref] = BoundSecret(key, base_url)
    elif ref is None and base_url == shared.get("base_url"):
        ref = COMMON_REF if shared.get("api_key") else shared.get("api_key_ref")
    reach = {"api_key_ref": ref, "proxy": own.get("proxy", shared.get("proxy"))}
    return {**policy, **{key: one for key, one in reach.items() if one or key in own}}, secrets


def drop_empty(values: dict[str, Any]) -> None:
    """Takes empty texts out of the sections: they mean none, as in files that a program has filled in."""
    if values.get("base_class") == "":
        del values["base_class"]
    for name in ("llm", "search", "execution", "prompts"):
        section = values.get(name)
        if not isinstance(section, dict):
            continue
        for key in [key for key, value in section.items() if value == ""]:
            if key == "proxy":
                section[key] = None  # none, whatever all agents have
            elif name != "execution" or key in _EXECUTION:
                del section[key]


def has_endpoint_mistake(definition: Definition, mistakes: Mistakes) -> bool:
    """Whether part of the endpoint is invalid. It is then ignored, so that a key never goes to an unintended URL."""
    return any(definition.place("llm", key) in mistakes for key in _REACH)


def check_extra(definition: Definition, mistakes: Mistakes) -> None:
    """Unknown fields of `execution` are passed to tools: of a likely typo it warns, and those of another section are
    mistakes."""
    for name in definition.extra:
        place = definition.place("execution", name)
        if name in _TOOL_POLICY:
            mistakes.add(place, "belongs to the tool_policy of an agent")
        elif near := difflib.get_close_matches(name, _EXECUTION, n=1, cutoff=0.75):
            message = f"An unknown field is passed to tools; did you mean {near[0]}?"
            log.warning("unknown_execution_field", message=message, place=str(place), similar=near[0])


def servers_of(definition: Definition, mistakes: Mistakes) -> dict[str, McpServerConfig]:
    found = {}
    for name, entry in definition.pick("mcp", "mcpServers").get("mcpServers", {}).items():
        try:
            if entry is not None:  # an invalid one was set to None
                found[name] = read_server(name, entry)
        except SetupError as error:
            mistakes.add(definition.place("mcp", "mcpServers", name), str(error).rstrip("."))
    return found


def _prompts(definition: Definition, mistakes: Mistakes) -> dict[str, str]:
    """The prompt pack: inline text, or a file next to the YAML file; the text wins."""
    section, found = definition.section("prompts"), {}
    for kind in PROMPTS:
        text, file = section.get(f"{kind}_str"), section.get(f"{kind}_file")
        if text is None and file:
            place = definition.place("prompts", f"{kind}_file")
            mistakes.read.add(place.file.absolute().parent / file)
            text = _prompt_file(file, place, mistakes)
        if text is not None:
            found[kind] = text
    return found


def _prompt_file(name: str, place: FilePlace, mistakes: Mistakes) -> str | None:
    """The text of a prompt file. A relative path must stay in the folder of the YAML file or below: prompts are
    published, and a link or a `..` could make others read what nobody meant. An absolute path says what is meant."""
    folder = place.file.absolute().parent.resolve()
    try:
        path = (folder / name).resolve()
        if not Path(name).is_absolute() and not path.is_relative_to(folder):
            mistakes.add(
                place, f"should be a file in the folder of {place.file.name}, or below it, or an absolute path"
            )
        elif not path.is_file():
            mistakes.add(place, "names a file that is not there")
        elif "\x00" in (text := read_text(path, LARGEST_PROMPT)):
            mistakes.add(place, "names a file that is not text")
        else:
            return text
    except OSError as error:
        mistakes.add(place, f"names a file that cannot be read: {error.strerror}")
    except ValueError as error:
        mistakes.add(place, f"names a file that {error}")
    return None


def _only(values: Mapping[str, Any], names: Collection[str]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if name in names}


def _without(values: Mapping[str, Any], names: Collection[str]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if name not in names}
