"""`longhouse tools …` and `longhouse templates …`: catalog commands that work directly on the database."""

from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any, Final

import msgspec
import typer

from longhouse.agents.adapters import adapter_of
from longhouse.agents.entrypoints import EntrypointError
from longhouse.agents.tool import Tool
from longhouse.agents.tool_descriptor import RuntimeBinding, ToolDescriptor
from longhouse.app.publish import validator_of
from longhouse.app.store import open_existing
from longhouse.catalog.diff import differences, merge
from longhouse.catalog.service import CatalogService
from longhouse.catalog.validation import CatalogValidator, probe_problem
from longhouse.cli.configured import as_served
from longhouse.cli.running import Main, given, group
from longhouse.config.effective import Configured, configure
from longhouse.egress import TOOLS as TOOL_SCHEMES
from longhouse.errors import CallerError, LonghouseError, SetupError
from longhouse.settings import Settings, comma_list
from longhouse.store.catalog.catalog import Catalog
from longhouse.store.catalog.publish import LAST
from longhouse.store.catalog.repository import Kind
from longhouse.tools.arguments import schema_problem
from longhouse.tools.bindings import isolated, python
from longhouse.tools.isolation.pool import ProcessPool
from longhouse.tools.mcp.client import Away, belongs, open_mcp
from longhouse.tools.toolbox import Toolbox

BY: Final = "command line"
"""The publisher recorded for these commands."""
BATCH: Final = 1_000
PAGE: Final = 1_000

Name = Annotated[str, typer.Argument(help="The name.")]
Number = Annotated[int, typer.Argument(help="The number of a version.", min=1, max=LAST)]


def commands(kind: Kind) -> typer.Typer:
    mains: dict[str, Main] = {
        "list": list_all,
        "show": show,
        "versions": list_versions,
        "diff": compare,
        "publish": publish,
        "activate": activate,
        "rollback": roll_back,
        "deactivate": deactivate,
        "retire": retire,
    }
    if kind == "template":
        return group(mains, kind=kind)
    cli = group({**mains, "policy": policy, "describe": describe, "check": check}, kind=kind)
    cli.command()(proto)
    return cli


@asynccontextmanager
async def _opened(settings: Settings, kind: Kind) -> AsyncIterator[tuple[CatalogService, Catalog]]:
    async with open_existing(settings) as db:
        catalog = Catalog(db, model=settings.llm_model)
        try:
            yield CatalogService(catalog, kind, CatalogValidator(catalog), tool_of=partial(_tool_of, settings)), catalog
        except CallerError as error:
            if error.status != 404:
                raise
            raise SetupError(f"{error} `longhouse {kind}s list` shows what is there.") from None


async def _tool_of(settings: Settings, descriptor: ToolDescriptor) -> Tool | None:
    """A tool as its class says, which is imported where a call would run; None, and why on stderr, if it cannot be."""
    if descriptor.runtime_binding.python_entrypoint is None:
        return descriptor.tool
    async with ProcessPool(environment=settings.tool_environment).running() as processes:
        try:
            return await _described(descriptor, configure(settings), processes)
        except LonghouseError as error:
            typer.echo(f"{descriptor.name} cannot be asked what its class says: {error}", err=True)
            return None


async def list_all(
    settings: Settings,
    kind: Kind,
    *,
    inactive: Annotated[bool, typer.Option(help="Also those that are not active.")] = True,
) -> None:
    """List the names, each with its active version."""
    async with _opened(settings, kind) as (service, _):
        after: str | None = None
        while page := await service.repository.page(after=after, limit=PAGE, inactive=inactive):
            for one in page:
                version = f"{one.name}@{one.active}" if one.active else f"{one.name}, not active, latest @{one.latest}"
                words = one.descriptor.get("description_short") or one.descriptor.get("base_agent_class", "")
                typer.echo(f"{version}  {' '.join(str(words).split())[:80]}")
            after = page[-1].name


async def show(
    settings: Settings, kind: Kind, name: Annotated[str, typer.Argument(help="A name, or name@version.")]
) -> None:
    """Print a descriptor as JSON: the active version, or the one you name."""
    plain, at, number = name.partition("@")
    if at and not (number.isascii() and number.isdecimal() and len(number) < 10):
        raise SetupError("write name@version with the number of a version.")
    async with _opened(settings, kind) as (service, _):
        found = await service.version(plain, int(number) if at else None)
        [held] = await service.held([found])
    _print_json({**found.descriptor, "version": found.version, **held})


async def list_versions(settings: Settings, kind: Kind, name: Name) -> None:
    """List the versions of a name, newest first."""
    async with _opened(settings, kind) as (service, _):
        await service.version(name, 1)
        before: int | None = None
        while page := await service.repository.versions(name, before=before, limit=PAGE):
            for one in page:
                active = ", active" if one.is_active else ""
                when = f"{one.published_at:%Y-%m-%d %H:%M}"
                typer.echo(f"{one.name}@{one.version}  published {when} by {one.published_by}{active}")
            before = page[-1].version


async def compare(settings: Settings, kind: Kind, name: Name, older: Number, newer: Number) -> None:
    """Print the differences between two versions."""
    async with _opened(settings, kind) as (service, _):
        before, after = await service.version(name, older), await service.version(name, newer)
    for one in differences(before.descriptor, after.descriptor):
        old, new = msgspec.json.encode(one.before).decode(), msgspec.json.encode(one.after).decode()
        typer.echo(f"{one.path}: {old} -> {new}")


async def publish(
    settings: Settings,
    kind: Kind,
    file: Annotated[Path, typer.Argument(help="JSON: one descriptor or a list; or JSONL: one on each line.")],
    *,
    activate: Annotated[bool, typer.Option(help="Make what is published active.")] = True,
) -> None:
    """Publish descriptors from a file. Unchanged content makes no new version.

    What is stored of a tool with a python_entrypoint is printed whole.
    """
    sent, new = read_file(file), 0
    async with _opened(settings, kind) as (_, catalog):
        # Configuration files are read too: their keys and models apply here as they do for the server.
        service = CatalogService(catalog, kind, validator_of(configure(settings), catalog))
        for start in range(0, len(sent), BATCH):
            batch = sent[start : start + BATCH]
            published = await service.publish(batch, by=BY, activate=activate)
            with_class = _with_class(batch)
            for one in published:
                new += one.is_new
                state = "" if one.is_active else ", not active"
                typer.echo(f"{one.name}@{one.version}{'' if one.is_new else ', unchanged'}{state}")
                if one.name in with_class:
                    stored = await service.version(one.name, one.version)
                    _print_json({**stored.descriptor, "version": stored.version})
                for warning in one.warnings:
                    typer.echo(f"{one.name}: {warning}", err=True)
    typer.echo(f"{new} new, {len(sent) - new} unchanged", err=True)


async def activate(settings: Settings, kind: Kind, name: Name, version: Number) -> None:
    """Make a version active."""
    async with _opened(settings, kind) as (service, _):
        await service.activate(name, version)
    typer.echo(f"{name}@{version} is active")


async def roll_back(settings: Settings, kind: Kind, name: Name) -> None:
    """Make the previously active version active again."""
    async with _opened(settings, kind) as (service, _):
        placed = await service.roll_back(name)
    typer.echo(f"{name}@{placed['version']} is active")


async def deactivate(settings: Settings, kind: Kind, name: Name) -> None:
    """Make no version active; a rollback restores the last one."""
    async with _opened(settings, kind) as (service, _):
        await service.deactivate(name)
    typer.echo(f"{name} is not active any more")


async def retire(settings: Settings, kind: Kind, name: Name) -> None:
    """Remove a name from lists and from use; turns that began with it keep it."""
    async with _opened(settings, kind) as (service, _):
        await service.deactivate(name, retire=True)
    typer.echo(f"{name} is retired")


async def policy(
    settings: Settings,
    name: Name,
    *,
    risk_level: Annotated[str | None, typer.Option(help="low, medium or high.")] = None,
    per_minute: Annotated[int | None, typer.Option(help="Calls of one owner in a minute.", min=1)] = None,
    templates: Annotated[str | None, typer.Option(help="The only ones that may use it, with commas.")] = None,
    sub_agents: Annotated[bool | None, typer.Option(help="May agents use it that others have called?")] = None,
    needs_approval: Annotated[bool | None, typer.Option(help="Do its calls wait for a person?")] = None,
    enabled: Annotated[bool | None, typer.Option("--on/--off", help="Is it offered at all?")] = None,
    clear: Annotated[bool, typer.Option(help="First remove the earlier override.")] = False,
) -> None:
    """Show a tool's effective security policy, or override it, whoever published the tool."""
    allowed = None if templates is None else comma_list(templates)
    patch = given(
        risk_level=risk_level,
        allow=given(templates=allowed, sub_agents=sub_agents) or None,
        rate_limits=given(per_minute=per_minute) or None,
        needs_approval=needs_approval,
        enabled=enabled,
    )
    async with _opened(settings, "tool") as (service, _):
        if patch or clear:
            await service.decide(name, lambda before: merge({} if clear else before, patch), by=BY)
        _print_json(await service.policy_of(name))


async def describe(
    settings: Settings, place: Annotated[str, typer.Argument(help="A class, as package.module:ClassName.")]
) -> None:
    """Print the complete descriptor of a class, ready to publish."""
    own = python.load(place, configure(settings).settings.tool_packages).descriptor()
    whole = replace(own, runtime_binding=RuntimeBinding(python_entrypoint=place))
    _print_json(adapter_of(ToolDescriptor).dump_python(whole, mode="json", exclude={"version"}, exclude_none=True))


async def check(settings: Settings) -> None:
    """Check whether every active tool can be used here; exit code 1 if one cannot."""
    setup = as_served(settings)
    served, wrong, tools = Toolbox([]), 0, 0
    async with (
        open_existing(setup.settings) as db,
        open_mcp(setup.servers, served) as away,
        ProcessPool(environment=settings.tool_environment).running() as processes,
    ):
        catalog = Catalog(db)
        after: str | None = None
        while page := await catalog.tools.page(after=after, limit=PAGE, inactive=False):
            for tool in await catalog.tools.several({one.name: one.active for one in page if one.active}):
                found = [*await _class_problems(tool, setup, processes), *_problems(tool, setup, served, away)]
                if (agent := tool.runtime_binding.agent) and await catalog.templates.active(agent) is None:
                    found.append(f"there is no active agent {agent!r}")
                probe = None if found else (await _described(tool, setup, processes)).probe
                asks = probe and await probe_problem(catalog, probe, tool.owner)
                for problem in [*found, f"its probe: {asks}"] if asks else found:
                    typer.echo(f"{tool.ref}: {problem}")
                wrong, tools = wrong + bool(found), tools + 1
            after = page[-1].name
    if wrong:
        raise SetupError(f"{wrong} of {tools} active tools cannot be used here.")
    typer.echo(f"all {tools} active tools can be used here")


def proto() -> None:
    """Print the .proto of the service that gRPC tools offer, to generate servers from."""
    typer.echo(files("longhouse.tools.grpc").joinpath("tool.proto").read_text("utf-8"), nl=False)


async def _class_problems(tool: ToolDescriptor, setup: Configured, processes: ProcessPool) -> list[str]:
    """The problems of a tool with its class, which is imported where a call would run."""
    if tool.runtime_binding.python_entrypoint is None:
        return []
    try:
        described = await _described(tool, setup, processes)
    except EntrypointError as error:
        return [python.fault_of(tool, error).message]
    says = schema_problem(described.schema)
    return [f"the schema of its class: {says}"] if says else []


async def _described(tool: ToolDescriptor, setup: Configured, processes: ProcessPool) -> Tool:
    if tool.runtime_binding.python_entrypoint is None:
        return tool.tool
    packages = setup.settings.tool_packages
    if python.isolation_of(tool) == "process":
        return await isolated.described(tool, packages, processes)
    return python.class_of(tool, packages).described(tool)


def _problems(tool: ToolDescriptor, setup: Configured, served: Toolbox, away: Away) -> Iterator[str]:
    """The problems that a call would have, as sentences. `served` has the tools that the MCP servers list now."""
    if tool.input_schema is not None and (says := schema_problem(tool.input_schema)):
        yield f"input_schema: {says}"
    way = tool.runtime_binding
    if url := way.remote_endpoint:
        says = setup.egress.problem(url, TOOL_SCHEMES)
        if says or (way.api_key_ref is not None and (says := setup.secrets.problem(way.api_key_ref, url))):
            yield says
    if way.mcp is not None and not served.find(tool.name):
        server = next((one.name for one in setup.servers if belongs(tool.name, [one])), None)
        if server is None:
            yield "no MCP server that is configured here brings it"
        elif server in (unreachable := away()):
            yield f"the MCP server {server!r} cannot be reached: {unreachable[server]}"
        else:
            yield f"the MCP server {server!r} does not offer it"


def _with_class(published: Iterable[dict[str, Any]]) -> set[str]:
    """The names of those that a class runs, of descriptors that were accepted."""
    bound = ((one["name"], one.get("runtime_binding")) for one in published)
    return {name for name, binding in bound if binding and binding.get("python_entrypoint")}


def _print_json(value: Any) -> None:
    typer.echo(msgspec.json.format(msgspec.json.encode(value)).decode())


def read_file(file: Path) -> list[Any]:
    """The descriptors of a file: one, a list, or one per line."""
    try:
        content = file.read_bytes()
    except OSError as error:
        raise SetupError(f"{file} cannot be read: {error.strerror}.") from None
    if file.suffix == ".jsonl":
        lines = enumerate(content.splitlines(), 1)
        return [_decoded(line, f"{file}:{number} is not JSON") for number, line in lines if line.strip()]
    value = _decoded(content, f"{file} is not JSON (name a file with one descriptor a line .jsonl)")
    return value if isinstance(value, list) else [value]


def _decoded(content: bytes, complaint: str) -> Any:
    try:
        return msgspec.json.decode(content)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise SetupError(f"{complaint}: {error}.") from None


cli = typer.Typer()
cli.add_typer(commands("tool"), name="tools")
cli.add_typer(commands("template"), name="templates")
