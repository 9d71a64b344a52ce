"""`longhouse bench search`: how good and how fast tool search is on data of one's own, by the product's own code."""

import asyncio
import json
import math
import tempfile
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Final

import msgspec
import numpy as np
import typer
from rich.console import Console
from rich.table import Table

from longhouse.agents.descriptor import RuntimeBinding, ToolDescriptor
from longhouse.agents.template import MultiAgentMeta, Template, ToolPolicy
from longhouse.errors import SetupError
from longhouse.models import embedded
from longhouse.runtime.indexer import Indexer
from longhouse.settings import Settings
from longhouse.store import migrate
from longhouse.store.catalog import Catalog
from longhouse.store.database import Database, open_database
from longhouse.store.embedded import open_postgres
from longhouse.store.search import Filters
from longhouse.tools.directory import AgentDirectory
from longhouse.tools.search import Finder

DEPTH: Final = 50
"""Results that are looked at."""
AT_ONCE: Final = 1000
SHORT: Final = 2000
WARM_UP: Final = 5

Run = Callable[[Settings, Callable[[], Coroutine[Any, Any, None]]], None]
Look = Callable[[str], Awaitable[list[tuple[str, float]]]]
File = Annotated[Path, typer.Option(exists=True, dir_okay=False, readable=True)]


class BenchTool(msgspec.Struct):
    tool_id: str
    name: str = ""
    description: str = ""
    parameters: dict[str, Any] | None = None
    agent_id: str | None = None


class BenchAgent(msgspec.Struct):
    agent_id: str
    description: str = ""


class BenchQuery(msgspec.Struct):
    query: str
    relevant: list[str] = []
    relevant_agents: list[str] = []
    steps: list[str] = []


@dataclass(slots=True)
class Measured:
    """The figures of one kind of search, query by query."""

    found: list[tuple[list[str], set[str]]] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)

    def figures(self) -> dict[str, float]:
        each = [_figures(ranked, relevant) for ranked, relevant in self.found]
        means = {name: sum(one[name] for one in each) / len(each) for name in each[0]}
        p50, p95 = np.percentile(self.seconds, [50, 95])
        return {**means, "p50_ms": float(p50) * 1000, "p95_ms": float(p95) * 1000, "queries": len(each)}


def _figures(ranked: Sequence[str], relevant: set[str]) -> dict[str, float]:
    first = {k: relevant.intersection(ranked[:k]) for k in (1, 5, 10)}
    gain = sum(1 / math.log2(place + 2) for place, name in enumerate(ranked[:10]) if name in relevant)
    best = sum(1 / math.log2(place + 2) for place in range(min(10, len(relevant))))
    return {
        **{f"r_at_{k}": len(found) / len(relevant) for k, found in first.items()},
        "c_at_10": float(first[10] == relevant),
        "ndcg_at_10": gain / best,
        "mrr": next((1 / (place + 1) for place, name in enumerate(ranked) if name in relevant), 0.0),
    }


def commands(run: Run) -> typer.Typer:
    cli = typer.Typer(help="Measure parts of Longhouse on data of your own.", no_args_is_help=True)

    @cli.callback()
    def bench() -> None:
        """Measure parts of Longhouse on data of your own."""

    @cli.command()
    def search(
        *,
        tools: Annotated[Path, typer.Option(exists=True, dir_okay=False, help="JSON lines: tool_id, description, …")],
        queries: Annotated[Path, typer.Option(exists=True, dir_okay=False, help="JSON lines: query, relevant, …")],
        agents: Annotated[Path | None, typer.Option(exists=True, dir_okay=False, help="JSON lines of agents.")] = None,
        by_step: Annotated[bool, typer.Option("--by-step", help="Search by each query's steps, best of all.")] = False,
        as_json: Annotated[bool, typer.Option("--json", help="One JSON object instead of a table.")] = False,
    ) -> None:
        """Index tools and agents in a Postgres made for it, and measure what search finds."""
        given = Given(
            _read(tools, BenchTool), _read(queries, BenchQuery), _read(agents, BenchAgent) if agents else [], by_step
        )
        run(Settings(log_level="warning"), lambda: _told(given, as_json=as_json))

    return cli


@dataclass(frozen=True, slots=True)
class Given:
    tools: list[BenchTool]
    queries: list[BenchQuery]
    agents: list[BenchAgent]
    by_step: bool


def _read[T](path: Path, type_: type[T]) -> list[T]:
    lines = [line for line in path.read_bytes().splitlines() if line.strip()]
    try:
        return [msgspec.json.decode(line, type=type_) for line in lines]
    except msgspec.MsgspecError as error:
        raise typer.BadParameter(f"{path}: {error}") from error
