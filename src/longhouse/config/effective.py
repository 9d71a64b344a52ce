"""The effective configuration: settings merged with files. An environment variable wins over a file."""

import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import msgspec
from pydantic import SecretStr

from longhouse.agents.template import Template
from longhouse.config.definitions import Definition
from longhouse.config.loader import LoadedFiles, read_files
from longhouse.config.sgr_files import EVERYBODY
from longhouse.config.yaml_document import merged
from longhouse.egress import Egress
from longhouse.errors import SetupError
from longhouse.secrets import BoundSecret, Secrets
from longhouse.settings import Settings
from longhouse.tools.config import SearchConfig, ToolConfig
from longhouse.tools.mcp.config import McpServerConfig, read_servers


class Configured(msgspec.Struct, frozen=True):
    settings: Settings
    """The settings; those that the environment does not set come from the files."""
    files: LoadedFiles
    servers: tuple[McpServerConfig, ...]
    secrets: Secrets

    @property
    def addresses(self) -> tuple[str, ...]:
        """The URLs of models and proxies that the operator or a built-in template names."""
        urls = [self.settings.llm_base_url, self.settings.llm_proxy]
        urls += self.files.common.pick("llm", "base_url", "proxy").values()
        policies = [template.llm_policy for template in self.files.templates]
        urls += [url for one in policies for url in (one.base_url, one.proxy)]
        return tuple(dict.fromkeys(url for url in urls if url))

    @property
    def egress(self) -> Egress:
        """The egress rules of tools: what the operator allows, and the endpoints of tools that the files describe."""
        endpoints = (tool.runtime_binding.remote_endpoint for tool in self.files.tools.values())
        return self.webhook_egress.allowing(url for url in endpoints if url)

    @property
    def webhook_egress(self) -> Egress:
        """The egress rules of webhooks, whose addresses anybody with a key may name: what the operator allows, and not
        the endpoints of tools, which are there for those tools alone."""
        return Egress(self.settings.allow_egress)

    @property
    def model_egress(self) -> Egress:
        """The egress rules of templates: those of tools, plus the models that the operator configured."""
        return self.egress.allowing(self.addresses)

    def folders(self, field: Literal["logs_dir", "reports_dir"]) -> dict[str, Path]:
        """The folders of agents that have one of their own."""
        own = self.files.own.items()
        return {name: Path(folder) for name, one in own for folder in one.pick("execution", field).values()}

    def common(self, config: ToolConfig) -> ToolConfig:
        """The tool configuration that applies to all callers."""
        # Without the folders: they are settings too, and are merged there.
        found = _with_definition(config, self.files.common, "mcp_context_limit")
        return replace(found, tools=self.files.tool_settings.get(EVERYBODY, {}))

    def of_agents(self, config: ToolConfig) -> dict[str, ToolConfig]:
        """The tool configuration of each agent that is defined in files, with its limits."""
        configs = {}
        for template in self.files.templates:
            if own := self.files.own.get(template.name):
                found = _with_definition(config, own, "mcp_context_limit", "logs_dir", "reports_dir")
                policy = template.execution_policy
                search = replace(self._own_search(found.search, own), max_searches=policy.max_searches)
                tools = merged(found.tools, self.files.tool_settings.get(template.name, {}))
                execution = replace(
                    found.execution,
                    max_iterations=policy.max_iterations,
                    max_clarifications=policy.max_clarifications,
                )
                configs[template.name] = replace(found, search=search, execution=execution, tools=tools)
        return configs

    def _own_search(self, common: SearchConfig, own: Definition) -> SearchConfig:
        """The search service of an agent; a key of the files goes only to the address that stands beside it."""
        key, url = (own.section("search").get(name) for name in ("tavily_api_key", "tavily_api_base_url"))
        if not key and url in (None, common.tavily_api_base_url):
            return common
        url = (
            url or self.files.common.section("search").get("tavily_api_base_url") or SearchConfig().tavily_api_base_url
        )
        return replace(
            common, tavily_api_key=_key(key, "search.tavily_api_key") if key else "", tavily_api_base_url=url
        )


def configure(settings: Settings, *, templates: Iterable[Template] = (), tools: Iterable[str] = ()) -> Configured:
    """Loads the files that the settings name; `templates` are the built-in ones, `tools` the names of own tools."""
    files = read_files(
        settings.file_of("config_file"),
        settings.file_of("agents_file"),
        templates=templates,
        tools=set(tools),
        packages=settings.tool_packages,
    )
    secrets = Secrets({name: BoundSecret(_key(one.value, name), one.base_url) for name, one in files.secrets.items()})
    # MCP servers from the environment's file win by name.
    servers = {one.name: one for one in (*files.servers, *read_servers(settings.mcp_config))}
    return Configured(_filled(settings, files, secrets), files, tuple(servers.values()), secrets)


def _filled(settings: Settings, files: LoadedFiles, secrets: Secrets) -> Settings:
    folders = {"reports_dir": "reports_dir", "logs_dir": "agent_log_dir"}
    execution = files.common.pick("execution", *folders)
    values: dict[str, Any] = {
        "llm_model": files.common.section("llm").get("model"),
        "tool_packages": files.packages,
        **{folders[name]: Path(folder) for name, folder in execution.items()},
        **_model(settings, files, secrets),
        **_search(settings, files),
    }
    return settings.model_copy(
        update={name: value for name, value in values.items() if value and name not in settings.model_fields_set}
    )


def _model(settings: Settings, files: LoadedFiles, secrets: Secrets) -> Mapping[str, Any]:
    """The endpoint of the file, unless the environment sets another: the file's key is then not sent to that one."""
    if "llm_base_url" in settings.model_fields_set:
        return {}
    llm = files.common.section("llm")
    base_url, ref, key = (llm.get(name) for name in ("base_url", "api_key_ref", "api_key"))
    key = _key(key, "llm.api_key") if key else secrets.find(ref, base_url) if ref and base_url else None
    return {"llm_base_url": base_url, "llm_proxy": llm.get("proxy"), "llm_api_key": SecretStr(key) if key else None}


def _search(settings: Settings, files: LoadedFiles) -> Mapping[str, Any]:
    if "tavily_base_url" in settings.model_fields_set:
        return {}
    search = files.common.section("search")
    key = search.get("tavily_api_key") and SecretStr(_key(search["tavily_api_key"], "search.tavily_api_key"))
    return {"tavily_base_url": search.get("tavily_api_base_url"), "tavily_api_key": key}


def _with_definition(config: ToolConfig, definition: Definition, *names: str) -> ToolConfig:
    """The tool configuration with the values of a definition; other values stay."""
    search = replace(config.search, **definition.pick("search", "max_results", "content_limit"))
    own = definition.pick("execution", *names)
    execution = replace(config.execution, **own, extra={**config.execution.extra, **definition.extra})
    return replace(config, search=search, execution=execution)


def _key(text: str, where: str) -> str:
    """The key in the file; `${NAME}` refers to an environment variable."""
    named = re.fullmatch(r"\$\{(\w+)\}", text)
    if named is None:
        return text
    if not (found := os.environ.get(named[1])):
        raise SetupError(f"{where} needs the environment variable {named[1]}, which is not set.")
    return found
