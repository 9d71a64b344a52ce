"""Publishes the tools and templates of this process to the catalog, and refuses those that cannot work."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Final

import structlog

from longhouse.agents.entrypoints import EntrypointError
from longhouse.agents.naming import AGENT_PREFIX
from longhouse.agents.strategies.base import AgentRegistry
from longhouse.agents.template import Template
from longhouse.agents.tool_descriptor import ToolDescriptor
from longhouse.api.auth import LOCAL
from longhouse.catalog.sources import publish_classes, publish_files
from longhouse.catalog.validation import CatalogValidator
from longhouse.config.definitions import place_of
from longhouse.config.effective import Configured
from longhouse.config.loader import LoadedFiles
from longhouse.errors import SetupError
from longhouse.store.catalog.catalog import Catalog
from longhouse.store.catalog.publish import Published
from longhouse.tools.base import BaseTool
from longhouse.tools.bindings import isolated, python
from longhouse.tools.isolation import messages
from longhouse.tools.isolation.pool import MEMORY, ProcessPool
from longhouse.tools.mcp.client import belongs
from longhouse.tools.offering import named_tools_warning, policy_problem
from longhouse.validation_messages import did_you_mean, path_text

log = structlog.get_logger()

CAP: Final = ("tool_policy", "max_tools_in_prompt")


def validator_of(setup: Configured, catalog: Catalog, processes: ProcessPool | None = None) -> CatalogValidator:
    """The validator of what may be published in this installation."""
    return CatalogValidator(
        catalog,
        egress=setup.egress,
        models=setup.model_egress,
        packages=setup.settings.tool_packages,
        secrets=setup.secrets,
        known=partial(isolated.known, processes=processes) if processes else python.described,
    )


async def publish(
    catalog: Catalog, setup: Configured, classes: Sequence[type[BaseTool]], processes: ProcessPool
) -> tuple[list[Published], list[Published]]:
    """Publishes the tools and templates of this process to the catalog: of the files everything, or nothing if one of
    them is invalid."""
    files, packages = setup.files, setup.settings.tool_packages
    await publish_classes(catalog, classes)
    tools = await _completed(catalog, files, packages, processes)
    for one in await validator_of(setup, catalog, processes).tool_problems(tools):
        if one.is_warning:
            log.warning("tool_warning", message=one.message, tool=tools[one.nth].name, field=path_text(one.where))
        else:
            files.add_tool_problem(tools[one.nth].name, one.where, one.message)
    await _check(setup, catalog)
    files.tools |= {one.name: one for one in tools}
    return await publish_files(catalog, tools, files.templates, touched=files.touched)


async def _completed(
    catalog: Catalog, files: LoadedFiles, packages: Sequence[str], processes: ProcessPool
) -> list[ToolDescriptor]:
    """The tools of files with descriptions and arguments; the problems of those that have none are noted.

    Those of a class are the class's, which is imported where it will run; those of an MCP server are what it said last.
    Both are part of the version: what an agent was shown stays as it was when the code changes.
    """
    names = [one.name for one in files.tools.values() if one.runtime_binding.mcp]
    known = await catalog.tools.shaped(names, besides="")
    found: list[ToolDescriptor] = []
    for name, tool in files.tools.items():
        own = known.get(name)
        try:
            if tool.runtime_binding.python_entrypoint:
                own = await _own(tool, packages, processes)
        except EntrypointError as error:
            files.add_tool_problem(name, ("runtime_binding", "python_entrypoint"), str(error))
            continue
        if own:
            schema = own.input_schema if tool.input_schema is None else tool.input_schema
            text = tool.description_short or own.description_short
            tool = replace(tool, description_short=text, input_schema=schema)  # noqa: PLW2901 - completed
        if not tool.description_short and not tool.runtime_binding.mcp:
            files.add_tool_problem(name, ("description_short",), "is needed: it is what the model reads of the tool")
        found.append(tool)
    return found


async def _own(tool: ToolDescriptor, packages: Sequence[str], processes: ProcessPool) -> ToolDescriptor:
    """How the class of a tool describes itself."""
    entrypoint = tool.runtime_binding.python_entrypoint or ""
    if python.isolation_of(tool) == "none":
        return python.load(entrypoint, packages).descriptor()
    if problem := python.check(entrypoint, packages):
        raise EntrypointError(problem)
    limits = messages.ProcessLimits(tool.max_memory or MEMORY, tool.cpu_time or 0.0)
    return isolated.own_descriptor(await processes.describe(entrypoint, tool.name, limits))


async def _check(setup: Configured, catalog: Catalog) -> None:
    """Refuses templates that name unknown tools or agent classes; one error lists all of them.

    What stands in a file is noted with its line; the rest, of templates in code, is listed here.
    """
    files = setup.files
    wrong = await _unknown_tools(setup, catalog)
    for name, one in files.tools.items():
        if one.runtime_binding.mcp and not belongs(name, setup.servers):
            files.add_tool_problem(name, (), "no MCP server of this name is configured: its tools are <server>.<tool>")
    for template in files.templates:
        _warn_of_missing_key(setup, template)
        wrong += [f"{template.ref}: {field} has no {what}" for field, what in template.prompt_pack.gaps.items()]
        if AgentRegistry.get(template.base_agent_class) is None:
            wrong.append(f"{template.ref}: no agent class {template.base_agent_class!r}")
        elif found := await policy_problem(catalog, template, LOCAL.owner):
            where, problem = found
            if not files.add_policy_mistake(template, where, problem):
                wrong.append(f"{template.ref}: {problem}")
        elif warning := named_tools_warning(template):
            own = files.own.get(template.name)
            place = place_of(CAP, [own]) if own else template.ref
            log.warning("listed_tools_left_out", message=f"{place}: {warning}", template=template.name)
    files.mistakes.refuse()
    if wrong:
        raise SetupError(f"Some templates cannot work as they are: {'; '.join(wrong)}.")


async def _unknown_tools(setup: Configured, catalog: Catalog) -> list[str]:
    """The tools that templates in code name and that do not exist; those that files name are noted there.

    Tools of MCP servers may come and go, and tools that an operator has deactivated count as known.
    """
    files, unknown = setup.files, []
    named = {(one.name, tool) for one in files.templates for tool in one.tool_policy.named} | files.tool_places.keys()
    tools = {tool for _, tool in named}
    agents = {f"{AGENT_PREFIX}{name}" for name in {*files.own, *(template.name for template in files.templates)}}
    active = await catalog.active_tools(tools, LOCAL.owner)
    inactive = await catalog.switched_off(tools - active.keys() - files.tool_names, LOCAL.owner)
    known = {*active, *agents, *files.tool_names}
    every = {*known, *await catalog.tools.names(owner=LOCAL.owner)} if tools - known else known
    for name, tool in sorted(named):
        if tool in inactive:
            message = "A template names a tool that is switched off."
            log.warning("template_tool_inactive", message=message, template=name, tool=tool)
        elif tool in known or belongs(tool, setup.servers):
            continue
        elif not files.add_tool_mistake(name, tool, f"there is no tool {tool!r}{did_you_mean(tool, every, 0.7)}"):
            unknown.append(f"{name}@1: no tool {tool!r}")
    return unknown


def _warn_of_missing_key(setup: Configured, template: Template) -> None:
    """Only a warning: other agents work without this secret, and another process may have it."""
    llm = template.llm_policy
    problem = setup.secrets.problem(llm.api_key_ref, llm.base_url) if llm.api_key_ref and llm.base_url else None
    if problem:
        message = "An agent has no key for its model."
        log.warning("model_key_missing", message=message, template=template.name, reason=problem)
