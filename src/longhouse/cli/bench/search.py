"""`longhouse bench search`: measures quality and speed of tool search on your own data, with the production code."""

import json
import math
import os
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from pathlib import Path
from typing import Annotated, Any, Final, Literal, TypeVar

import msgspec
import numpy as np
import typer
from rich.console import Console
from rich.table import Table

from longhouse.agents.naming import AGENT_PREFIX
from longhouse.agents.template import MultiAgentMeta, Template, ToolPolicy
from longhouse.agents.tool_descriptor import RuntimeBinding, ToolDescriptor
from longhouse.app.models import open_embedder
from longhouse.cli.running import run
from longhouse.errors import SetupError
from longhouse.models.protocol import Embedder
from longhouse.search.directory import AgentDirectory
from longhouse.search.finder import Finder
from longhouse.search.indexer import Indexer
from longhouse.settings import Settings
from longhouse.store import migrate
from longhouse.store.catalog.catalog import Catalog
from longhouse.store.database import Database, open_database
from longhouse.store.postgres import open_postgres
from longhouse.store.search.query import SearchFilters

DEPTH: Final = 50
"""Results per query that are evaluated."""
AT_ONCE: Final = 1000
SHORT: Final = 2000
WARM_UP: Final = 5

Search = Callable[[str], Awaitable[list[tuple[str, float]]]]
Embeddings = Literal["table", "endpoint", "none"]
ChosenEmbeddings = Annotated[
    Embeddings | None, typer.Option(help="What makes the vectors; without it, what a server would take.")
]
AsJson = Annotated[bool, typer.Option("--json", help="One JSON object instead of a table.")]
T = TypeVar("T")


class BenchTool(msgspec.Struct):
    tool_id: str
    name: str | None = None
    description: str | None = None
    parameters: dict[str, Any] | None = None
    agent_id: str | None = None

    @property
    def indexed_name(self) -> str:
        """The unique id; followed by the name if the id does not contain it."""
        name = self.name or ""
        return self.tool_id if name.lower() in self.tool_id.lower() else f"{self.tool_id}/{name}"


class BenchAgent(msgspec.Struct):
    agent_id: str
    description: str | None = None


class BenchQuery(msgspec.Struct):
    query: str
    relevant: list[str] | None = None
    relevant_agents: list[str] | None = None
    steps: list[str] | None = None


class Measured(msgspec.Struct):
    """The measurements of one kind of search, per query."""

    found: list[tuple[list[str], set[str]]] = msgspec.field(default_factory=list)
    seconds: list[float] = msgspec.field(default_factory=list)

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


cli = typer.Typer()


@cli.command()
def search(
    *,
    tools: Annotated[Path, typer.Option(exists=True, dir_okay=False, help="JSON lines: tool_id, description, …")],
    queries: Annotated[Path, typer.Option(exists=True, dir_okay=False, help="JSON lines: query, relevant, …")],
    agents: Annotated[Path | None, typer.Option(exists=True, dir_okay=False, help="JSON lines of agents.")] = None,
    by_step: Annotated[bool, typer.Option("--by-step", help="Search by each query's steps, best of all.")] = False,
    embeddings: ChosenEmbeddings = None,
    as_json: AsJson = False,
) -> None:
    """Index tools and agents in a temporary Postgres, and measure what search finds."""
    data = _read(tools, BenchTool), _read(queries, BenchQuery), _read(agents, BenchAgent) if agents else []

    async def main(settings: Settings) -> None:
        async with chosen_embedder(settings, embeddings) as embedder:
            figures = await measure(*data, embedder, by_step=by_step)
        if as_json:
            typer.echo(json.dumps(figures))
        else:
            Console(width=160).print(table(figures))

    run(Settings(log_level="warning"), main)


def chosen_embedder(settings: Settings, chosen: Embeddings | None) -> AbstractAsyncContextManager[Embedder | None]:
    if chosen == "none":
        return nullcontext()
    if chosen == "endpoint" and not settings.embeddings_base_url:
        raise SetupError("set LONGHOUSE_EMBEDDINGS_BASE_URL to the endpoint whose vectors are to be measured.")
    if chosen == "table":
        settings = settings.model_copy(update={"embeddings_base_url": None})
    return open_embedder(settings)


def _read(path: Path, type_: type[T]) -> list[T]:
    lines = [line for line in path.read_bytes().splitlines() if line.strip()]
    try:
        return [msgspec.json.decode(line, type=type_) for line in lines]
    except msgspec.MsgspecError as error:
        raise typer.BadParameter(f"{path}: {error}") from error


def table(figures: Mapping[str, Any]) -> Table:
    """A row for each kind of search, a column for each figure."""
    rows = {"tools": {name: value for name, value in figures.items() if name != "agents"}}
    if figures.get("agents"):
        rows["agents"] = figures["agents"]
    names = list(dict.fromkeys(name for row in rows.values() for name in row))
    made = Table()
    for name in ("", *names):
        made.add_column(name, justify="right")
    for kind, row in rows.items():
        made.add_row(kind, *(_shown(name, row.get(name)) for name in names))
    return made


def _shown(name: str, value: float | str | None) -> str:
    if value is None or isinstance(value, str):
        return value or ""
    if name in ("tools", "queries"):
        return str(value)
    return f"{value:.2f}" if name.endswith("_ms") else f"{100 * value:.1f} %"


async def measure(
    tools: Sequence[BenchTool],
    queries: Sequence[BenchQuery],
    agents: Sequence[BenchAgent],
    embedder: Embedder | None,
    *,
    by_step: bool = False,
) -> dict[str, Any]:
    """Publishes and indexes the data in a temporary Postgres, then runs all queries."""
    asked = [query for query in queries if query.relevant]
    if not asked or not tools:
        raise SetupError("there is nothing to measure: it takes tools, and queries with what is relevant to them.")
    async with temporary() as db:
        await _publish(db, tools, agents)
        await Indexer(db, embedder).catch_up()
        finder = Finder(db, embedder)
        directory = AgentDirectory(finder)
        ids = {tool.indexed_name: tool.tool_id for tool in tools}
        # Agents are tools too, but are not measured with them.
        tools_alone = SearchFilters(deny=(f"{AGENT_PREFIX}*",))

        async def find_tools(text: str) -> list[tuple[str, float]]:
            return [(ids[hit.name], hit.score) for hit in await finder.tools(text, tools_alone, DEPTH)]

        async def find_agents(text: str) -> list[tuple[str, float]]:
            return [(agent.name, agent.score) for agent in await directory.search(text, DEPTH)]

        measured = await _measured(find_tools, asked, by_step=by_step, agents=False)
        figures: dict[str, Any] = {**measured.figures(), "tools": len(tools)}
        figures["embeddings"] = embedder.name if embedder else None
        routed = [query for query in asked if query.relevant_agents]
        if agents and routed:
            measured = await _measured(find_agents, routed, by_step=by_step, agents=True)
            figures["agents"] = {**measured.figures(), "tools": len(agents)}
        return figures


@asynccontextmanager
async def temporary() -> AsyncIterator[Database]:
    """A migrated database in a Postgres that goes with the block."""
    with tempfile.TemporaryDirectory(prefix="longhouse-bench-") as folder:
        os.chmod(folder, 0o711)  # noqa: S103 - Postgres may run under another account, which needs access to the folder
        async with open_postgres(Path(folder)) as postgres, open_database(postgres.dsn) as db:
            await migrate.migrate(db, may_extend=postgres.vectors)
            yield db


async def _publish(db: Database, tools: Sequence[BenchTool], agents: Sequence[BenchAgent]) -> None:
    catalog = Catalog(db)
    named: dict[str | None, list[str]] = {}
    for tool in tools:
        named.setdefault(tool.agent_id, []).append(tool.indexed_name)
    for start in range(0, len(tools), AT_ONCE):
        await catalog.tools.publish([_descriptor(one) for one in tools[start : start + AT_ONCE]], by="bench")
    for start in range(0, len(agents), AT_ONCE):
        templates = [_template(one, named) for one in agents[start : start + AT_ONCE]]
        await catalog.templates.publish(templates, by="bench")


def _template(agent: BenchAgent, named: Mapping[str | None, Sequence[str]]) -> Template:
    return Template(
        name=agent.agent_id,
        tool_policy=ToolPolicy(allowlist=tuple(named.get(agent.agent_id, ()))),
        multi_agent_meta=MultiAgentMeta(capabilities=agent.description or ""),
    )


def _descriptor(tool: BenchTool) -> ToolDescriptor:
    given, text = tool.parameters or {}, tool.description or ""
    # Either a schema, or only its properties: then `properties` and `type` would be parameters with these names.
    is_schema = isinstance(given.get("properties"), dict) and not isinstance(given.get("type"), dict)
    return ToolDescriptor(
        name=tool.indexed_name,
        description_short=text[:SHORT],
        description_long=text if len(text) > SHORT else "",
        input_schema=given if is_schema else {"type": "object", "properties": given},
        runtime_binding=RuntimeBinding(remote_endpoint="https://tools.invalid/"),
    )


async def _measured(search: Search, queries: Sequence[BenchQuery], *, by_step: bool, agents: bool) -> Measured:
    for query in queries[:WARM_UP]:
        await search(query.query)
    measured = Measured()
    for query in queries:
        best: dict[str, float] = {}
        for text in query.steps if by_step and query.steps else [query.query]:
            begun = time.perf_counter()
            found = await search(text)
            measured.seconds.append(time.perf_counter() - begun)
            for name, score in found:
                best[name] = max(score, best.get(name, 0.0))
        ranked = sorted(best, key=lambda name: (-best[name], name))
        measured.found.append((ranked, set((query.relevant_agents if agents else query.relevant) or ())))
    return measured
