"""`longhouse doctor`: looks at what a house needs, and says of each thing whether it works, or how to mend it."""

import asyncio
import importlib
import os
import shutil
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final, Literal

import asyncpg
import typer

import longhouse
from longhouse.agents.entrypoints import lacking
from longhouse.app.models import open_embedder
from longhouse.cli import environment
from longhouse.cli.configured import as_served
from longhouse.cli.house import open_as_it_is
from longhouse.cli.processes.listening import is_local, missing_key, refuse_easy_key
from longhouse.cli.running import group
from longhouse.cli.upkeep.setting_up import probed
from longhouse.config.effective import Configured
from longhouse.errors import LonghouseError, SetupError
from longhouse.integrations.otlp import open_collector, problem_of
from longhouse.journal.words.visible_text import readable_lines
from longhouse.models import probe
from longhouse.redaction import redaction_of
from longhouse.settings import Settings, secrets_of
from longhouse.store import checkup, leases, migrate
from longhouse.store.access.keys import is_any_valid
from longhouse.store.catalog import catalog
from longhouse.store.checkup import RIGHTS
from longhouse.store.connections import quoted
from longhouse.store.database import PASSING, POOL_SIZE
from longhouse.store.postgres import Postgres, holds_data
from longhouse.tools.bindings import python

LEAST_FREE: Final = 2**30
"""Bytes; Postgres stops when its disk is full."""
CLOCK_DIFFERENCE: Final = 2.0
"""Seconds; deadlines, budgets of a day and expiry of keys are told by the clocks of processes."""
CONNECTIONS: Final = POOL_SIZE + 2
"""Connections of one process: its pool, a heartbeat, one that listens."""

NAMED: Final = 3
"""Tables that are named where rights are missing; more are counted."""

Level = Literal["ok", "note", "BROKEN"]


@dataclass(frozen=True, slots=True)
class Finding:
    level: Level
    about: str
    sentence: str


Check = Callable[[Configured], AsyncGenerator[Finding, None]]


async def doctor(
    settings: Settings,
    model: Annotated[
        bool, typer.Option("--model/--no-model", help="Ask the model's endpoint too: three small requests.")
    ] = True,
) -> None:
    """Look at Postgres, disk, clock, model, Redis, NATS and collector, and say what is broken and how to mend it."""
    typer.echo(f"longhouse {longhouse.__version__}")
    hide, broken = redaction_of(secrets_of(settings)).hide, 0
    # Whoever reads may have enough of it (`| head`): what was opened for the look is closed all the same.
    async with aclosing(_findings(settings, asks_model=model)) as findings:
        async for finding in findings:
            broken += finding.level == "BROKEN"
            typer.echo(f"{finding.level:<6}  {finding.about}: {readable_lines(hide(finding.sentence))}")
    if broken:
        typer.echo(f"{broken} broken: mend what is marked, and look again", err=True)
        raise typer.Exit(1)
    typer.echo("nothing is broken")


async def _findings(settings: Settings, *, asks_model: bool) -> AsyncGenerator[Finding, None]:
    for _, sentence in environment.problems(os.environ):
        yield Finding("note", "settings", sentence)
    try:
        setup = as_served(settings)
        setup.files.mistakes.refuse()
    except LonghouseError as error:
        yield Finding("BROKEN", "settings", str(error))
        return
    for finding in _processes(settings):
        yield finding
    checks: dict[str, Check] = {
        "postgres": _postgres,
        "disk": _folders,
        "model": _model,
        "embeddings": _embeddings,
        "redis": _redis,
        "nats": _nats,
        "collector": _collector,
    }
    if not asks_model:
        del checks["model"]
    for about, check in checks.items():
        try:
            async with aclosing(check(setup)) as findings:
                async for finding in findings:
                    yield finding
        except (LonghouseError, asyncpg.PostgresError, *PASSING) as error:
            yield Finding("BROKEN", about, str(error) or type(error).__name__)


# Postgres


async def _postgres(setup: Configured) -> AsyncGenerator[Finding, None]:
    settings = setup.settings
    if not settings.database_url and not holds_data(settings.data_dir):
        where = settings.data_dir.absolute()
        yield Finding("note", "postgres", f"there is no Longhouse in {where}: `longhouse serve` makes one.")
        yield _keys(settings, in_database=False)
        return
    async with open_as_it_is(settings) as (db, postgres):
        found = await checkup.examine(db)
        whose = _whose(postgres)
        yield Finding("ok", "postgres", f"version {found.version} answers, {whose}; {found.size / 2**20:,.0f} MB.")
        for one in (_rights(found), _vector(found), _clock(found), _connections(found, settings.serve_workers)):
            yield one
        if not found.may_enter or any("SELECT" in rights for rights in found.lacking.values()):
            return  # the rest cannot be read
        pending = len(await migrate.plan(db))
        yield _schema(pending, is_own=postgres is not None)
        if not pending:
            yield _workers(await leases.alive(db))
            yield _keys(settings, in_database=await is_any_valid(db))
            for finding in _packages(dict(await db.rows(catalog.ENTRYPOINTS)), settings):
                yield finding


def _whose(postgres: Postgres | None) -> str:
    if postgres is None:
        return "as LONGHOUSE_DATABASE_URL says"
    return "started for this look alone" if postgres.owned else "and another Longhouse process uses it"


def _schema(pending: int, *, is_own: bool) -> Finding:
    if not pending:
        return Finding("ok", "schema", "it is up to date.")
    if is_own:
        return Finding("note", "schema", f"{pending} pending: the next start migrates.")
    return Finding("BROKEN", "schema", f"{pending} pending: run `longhouse migrate`.")


def _workers(alive: int) -> Finding:
    if alive:
        return Finding("ok", "workers", f"{alive} at work.")
    return Finding("note", "workers", "none is at work: `longhouse serve` or `longhouse work` starts one.")


def _packages(entrypoints: Mapping[str, str], settings: Settings) -> Iterator[Finding]:
    """Names each package that active tools and agents need and that a worker started here would lack."""
    users = {lacking(place, (python.OURS, *settings.tool_packages)): name for name, place in entrypoints.items()}
    mend = "put its files where Longhouse starts, or install it; until then a worker here leaves their agents alone"
    for problem, name in users.items():
        if problem:
            yield Finding("BROKEN", "packages", f"{problem}, and {name} needs it: {mend}.")


def _keys(settings: Settings, *, in_database: bool) -> Finding:
    """Whether `longhouse serve` would listen where it is told to."""
    key = settings.admin_key.get_secret_value().strip()
    refuse_easy_key(settings.host, key)
    if not (is_local(settings.host) or key or in_database):
        raise missing_key(settings.host)
    return Finding("ok", "keys", f"`longhouse serve` may listen on {settings.host}.")


def _rights(found: checkup.Checkup) -> Finding:
    if found.is_read_only:
        message = "Postgres may only be read: name the primary, or switch default_transaction_read_only off."
        return Finding("BROKEN", "rights", message)
    role, schema = quoted(found.role), quoted(found.schema)
    if not found.may_enter:
        message = f"the role {found.role} may not use the schema {found.schema}"
        return Finding("BROKEN", "rights", f"{message}: as its owner, GRANT USAGE ON SCHEMA {schema} TO {role}.")
    if found.lacking:
        rights = ", ".join(one for one in RIGHTS if any(one in lacking for lacking in found.lacking.values()))
        names = sorted(found.lacking)
        few = len(names) <= NAMED
        message = ", ".join(names) if few else f"{len(names)} tables, as {', '.join(names[:NAMED])}"
        where = ", ".join(f"{schema}.{quoted(name)}" for name in names) if few else f"ALL TABLES IN SCHEMA {schema}"
        mend = f"as their owner, GRANT {rights} ON {where} TO {role}"
        return Finding("BROKEN", "rights", f"the role {found.role} lacks {rights} on {message}: {mend}.")
    return Finding("ok", "rights", f"the role {found.role} may read and write.")


def _vector(found: checkup.Checkup) -> Finding:
    match found.vector:
        case None:
            return Finding("note", "pgvector", "it is not there; only comparing vectors in SQL needs it.")
        case "":
            return Finding("note", "pgvector", "it is there and not used: `longhouse migrate` uses it if the role may.")
        case version:
            return Finding("ok", "pgvector", f"version {version}.")


def _clock(found: checkup.Checkup) -> Finding:
    if abs(found.seconds_ahead) <= CLOCK_DIFFERENCE:
        return Finding("ok", "clock", "it agrees with that of Postgres.")
    how = "behind" if found.seconds_ahead > 0 else "ahead of"
    message = f"this machine is {abs(found.seconds_ahead):,.1f} s {how} Postgres: set both clocks by NTP."
    return Finding("BROKEN", "clock", message)


def _connections(found: checkup.Checkup, processes: int) -> Finding:
    message, needed = f"{found.used} of {found.most} are in use", processes * CONNECTIONS
    if found.most - found.used >= needed:
        return Finding("ok", "connections", f"{message}.")
    who = "another process needs" if processes == 1 else f"{processes} more processes need"
    return Finding("note", "connections", f"{message}, and {who} up to {needed}: raise max_connections.")


def _processes(settings: Settings) -> Iterator[Finding]:
    """Told where `longhouse serve` is to start more than one."""
    number, cores = settings.serve_workers, os.cpu_count() or 1
    message = f"`longhouse serve` starts {number}, as LONGHOUSE_SERVE_WORKERS says"
    if number > cores:
        yield Finding("note", "processes", f"{message}; this machine has {cores} cores, and more gain nothing.")
    elif number > 1:
        yield Finding("ok", "processes", f"{message}.")


# What lies beside it


async def _folders(setup: Configured) -> AsyncGenerator[Finding, None]:
    settings = setup.settings
    data = None if settings.database_url else (settings.data_dir / "postgres").resolve()
    named = {
        "LONGHOUSE_DATA_DIR": data,
        "LONGHOUSE_SESSION_LOG_DIR": settings.session_log_dir,
        "LONGHOUSE_AGENT_LOG_DIR": settings.agent_log_dir,
        "LONGHOUSE_REPORTS_DIR": settings.reports_dir,
    }
    for name, folder in named.items():
        if folder:
            yield _folder(name, folder)


def _folder(name: str, folder: Path) -> Finding:
    try:
        there = next(one for one in (folder.absolute(), *folder.absolute().parents) if one.exists())
        free = shutil.disk_usage(there).free
    except OSError as error:
        told = f"{folder} of {name} cannot be used ({error.strerror}): give it to the account of Longhouse."
        return Finding("BROKEN", "disk", told)
    # The data of an embedded Postgres belongs to the account that runs it: whether it may be used is seen above.
    if name != "LONGHOUSE_DATA_DIR" and not (there.is_dir() and os.access(there, os.W_OK | os.X_OK)):
        return Finding("BROKEN", "disk", f"{there} of {name} cannot be written: give it to the account of Longhouse.")
    if free < LEAST_FREE:
        return Finding("BROKEN", "disk", f"{there} of {name} has {free / 2**20:,.0f} MB left: make room.")
    return Finding("ok", "disk", f"{there} of {name} has {free / 2**30:,.0f} GB left.")


# What is reached over the network


async def _model(setup: Configured) -> AsyncGenerator[Finding, None]:
    if not setup.settings.llm_base_url:
        yield Finding("note", "model", "none is set, the demo model answers: set LONGHOUSE_LLM_BASE_URL.")
        return
    name, findings = await probed(setup.settings, setup.settings.llm_model)
    yield Finding("ok", "model", f"{name} answers as {setup.settings.llm_model}. {' '.join(probe.advice(findings))}")


async def _embeddings(setup: Configured) -> AsyncGenerator[Finding, None]:
    async with open_embedder(setup.settings) as embedder:
        if embedder:
            await embedder.embed(["hello"])
    used = setup.settings.embeddings_base_url and setup.settings.embeddings_model
    yield Finding("ok", "embeddings", f"{used} answers." if used else "those of the built-in table.")


async def _redis(setup: Configured) -> AsyncGenerator[Finding, None]:
    if not setup.settings.redis_url:
        return
    # Only those who use it pay for the import.
    module = await asyncio.to_thread(importlib.import_module, "longhouse.integrations.redis.client")
    async with module.open_redis(setup.settings.redis_url.get_secret_value()) as client:
        try:
            await client.ping()
        except module.TROUBLE as error:
            raise SetupError(f"it does not answer ({error}): start it, or correct LONGHOUSE_REDIS_URL.") from None
    yield Finding("ok", "redis", "it answers.")


async def _nats(setup: Configured) -> AsyncGenerator[Finding, None]:
    if not setup.settings.nats_url:
        return
    module = await asyncio.to_thread(importlib.import_module, "longhouse.runtime.bus.nats")
    problem = await module.problem(setup.settings.nats_url.get_secret_value().split(","))
    if problem:
        raise SetupError(f"{problem}; start or mend it, or correct LONGHOUSE_NATS_URL.")
    yield Finding("ok", "nats", "it takes hints.")


async def _collector(setup: Configured) -> AsyncGenerator[Finding, None]:
    settings = setup.settings
    if not settings.otlp_endpoint:
        return
    async with open_collector(settings.otlp_endpoint, settings.otlp_headers.get_secret_value()) as collector:
        problem = await problem_of(collector)
    if problem:
        told = "start or mend it, or correct LONGHOUSE_OTLP_ENDPOINT and LONGHOUSE_OTLP_HEADERS"
        raise SetupError(f"{problem}: {told}.")
    yield Finding("ok", "collector", f"{collector.name} takes traces.")


cli = group({"doctor": doctor})
