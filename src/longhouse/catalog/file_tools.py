"""Tools of files, completed by what their classes say of themselves."""

from collections.abc import Sequence
from dataclasses import replace

from longhouse.agents.entrypoints import EntrypointError
from longhouse.agents.tool_descriptor import ToolDescriptor
from longhouse.catalog.drafts import Problem
from longhouse.store.catalog.catalog import Catalog
from longhouse.tools.bindings import isolated, python
from longhouse.tools.isolation import messages
from longhouse.tools.isolation.pool import MEMORY, ProcessPool


async def completed(
    catalog: Catalog, tools: Sequence[ToolDescriptor], packages: Sequence[str], processes: ProcessPool
) -> tuple[list[ToolDescriptor], list[Problem]]:
    """The tools with descriptions and arguments, and the problems of those that have none.

    Those of a class are the class's, which is imported where it will run; those of an MCP server are what it said last.
    Both are part of the version: what an agent was shown stays as it was when the code changes.
    """
    known = await catalog.tools.shaped([one.name for one in tools if one.runtime_binding.mcp], besides="")
    found: list[ToolDescriptor] = []
    problems: list[Problem] = []
    for nth, tool in enumerate(tools):
        own = known.get(tool.name)
        try:
            if tool.runtime_binding.python_entrypoint:
                own = await _own(tool, packages, processes)
        except EntrypointError as error:
            problems.append(Problem(nth, ("runtime_binding", "python_entrypoint"), str(error)))
            continue
        if own:
            schema = own.input_schema if tool.input_schema is None else tool.input_schema
            text = tool.description_short or own.description_short
            tool = replace(tool, description_short=text, input_schema=schema)  # noqa: PLW2901 - completed
        if not tool.description_short and not tool.runtime_binding.mcp:
            problems.append(Problem(nth, ("description_short",), "is needed: it is what the model reads of the tool"))
        found.append(tool)
    return found, problems


async def _own(tool: ToolDescriptor, packages: Sequence[str], processes: ProcessPool) -> ToolDescriptor:
    """How the class of a tool describes itself."""
    entrypoint = tool.runtime_binding.python_entrypoint or ""
    if python.isolation_of(tool) == "none":
        return python.load(entrypoint, packages).descriptor()
    if problem := python.check(entrypoint, packages):
        raise EntrypointError(problem)
    limits = messages.ProcessLimits(tool.max_memory or MEMORY, tool.cpu_time or 0.0)
    return isolated.own_descriptor(await processes.describe(entrypoint, tool.name, limits))
