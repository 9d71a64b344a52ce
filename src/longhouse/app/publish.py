"""Publishes the tools and templates of this process to the catalog, and refuses those that cannot work."""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final

import structlog

from longhouse.agents.entrypoints import EntrypointError
from longhouse.agents.naming import AGENT_PREFIX
from longhouse.agents.strategies.base import AgentRegistry
from longhouse.agents.template import Template
from longhouse.agents.tool_descriptor import DEFAULTS, ToolDescriptor
from longhouse.api.auth import LOCAL
from longhouse.catalog.validation import CatalogValidator
from longhouse.config.definitions import place_of
from longhouse.config.effective import Configured
from longhouse.config.loader import LoadedFiles
from longhouse.errors import SetupError
from longhouse.store.catalog.catalog import BUILT_IN, FILES, Catalog
from longhouse.store.catalog.publish import LOCK, Published, PublishTerms
from longhouse.store.catalog.repository import NEVER, T, VersionRepository
from longhouse.store.database import Transaction
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


# Content that was published before changes nothing.


async def publish_classes(catalog: Catalog, classes: Iterable[type[BaseTool]]) -> None:
    given = [_without_defaults(cls.descriptor()) for cls in classes]
    if await catalog.tools.has(given):
        return  # nothing would change, as at nearly every start
    terms = PublishTerms(over=(BUILT_IN,), keep_owner={one.name for one in given})
    await catalog.tools.publish(given, by=BUILT_IN, again=False, terms=terms)


def _without_defaults(own: ToolDescriptor) -> ToolDescriptor:
    """The descriptor without default values: the class provides them, and earlier releases published this form."""
    unset: dict[str, Any] = {name: None for name, value in DEFAULTS.items() if getattr(own, name) == value}
    return replace(own, **unset)


async def publish_files(
    catalog: Catalog, tools: Sequence[ToolDescriptor], templates: Sequence[Template], *, touched: Collection[str] = ()
) -> tuple[list[Published], list[Published]]:
    """Publishes the tools of files, and the templates, in one transaction: agents never come without their tools.

    `touched`: the templates that files have defined or changed; the others are built in."""

    async def publish(tx: Transaction) -> tuple[list[Published], list[Published]]:
        await tx.lock(*LOCK)
        done = await _publish_changed(catalog.tools, tools, {one.name for one in tools}, tx)
        return done, await _publish_changed(catalog.templates, templates, touched, tx)

    return await catalog.db.together(publish)


async def _publish_changed(
    repository: VersionRepository[T], given: Sequence[T], touched: Collection[str], tx: Transaction
) -> list[Published]:
    """Publishes what files and the program bring.

    What differs from the last one of the files becomes active, even if an earlier version was the same. What is
    unchanged leaves the catalog alone, whatever version is active now. What the program brings replaces only versions
    that were published by files or by the program.
    """
    last = await repository.last_by([one.name for one in given], (BUILT_IN, FILES), tx)
    before = [last.get(one.name, NEVER) for one in given]
    anew = [was.digest != repository.digest(one) for one, was in zip(given, before, strict=True)]
    changed = [
        is_anew or one.owner not in (None, was.owner) for one, was, is_anew in zip(given, before, anew, strict=True)
    ]
    if not any(changed):
        return [Published(was.name, was.version, was.is_active, is_new=False) for was in before]
    groups: dict[tuple[str, bool, bool], list[T]] = {}
    for one, was, is_anew, is_changed in zip(given, before, anew, changed, strict=True):
        by = FILES if one.name in touched else BUILT_IN
        key = (by, is_changed and FILES in (by, was.published_by), by == FILES and is_anew)
        groups.setdefault(key, []).append(one)
    published: dict[str, Published] = {}
    for (by, again, over_all), group in groups.items():
        # Neither files nor the program can make a name public: they can only name its owner.
        terms = PublishTerms(
            over=None if over_all else (BUILT_IN, FILES), keep_owner={one.name for one in group if one.owner is None}
        )
        done = await repository.publish(group, by=by, again=again, terms=terms, tx=tx)
        published |= {one.name: one for one in done}
    return [published[one.name] for one in given]
