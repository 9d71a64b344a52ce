"""What tests of search begin with: tools in a catalog, an index of them, and embedders that are quick to read."""

import hashlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from longhouse.agents.tool import RiskLevel
from longhouse.agents.tool_descriptor import Allow, RuntimeBinding, SecurityPolicy, ToolDescriptor
from longhouse.models.protocol import Embedder
from longhouse.search.finder import Finder
from longhouse.search.indexer import Indexer
from longhouse.search.tokenizer import terms
from longhouse.store.catalog.catalog import Catalog
from longhouse.store.catalog.repository import VersionRepository
from longhouse.store.database import Database
from longhouse.store.search.query import SearchFilters


class Buckets:
    """Each term is counted in one of a few places: texts with the same words are near to each other."""

    def __init__(self, name: str = "buckets", dimensions: int = 16) -> None:
        self.name = name
        self.dimensions = dimensions

    async def embed(self, texts: Sequence[str]) -> npt.NDArray[np.float32]:
        return np.array([self._embed(text) for text in texts], np.float32).reshape(len(texts), self.dimensions)

    def _embed(self, text: str) -> list[float]:
        vector = [0.01] * self.dimensions
        for term in terms(text):
            vector[hashlib.sha256(term.encode()).digest()[0] % self.dimensions] += 1.0
        length = sum(number * number for number in vector) ** 0.5
        return [number / length for number in vector]


async def generation(repository: VersionRepository[Any]) -> int:
    """A number that grows with every change of the catalog."""
    sql = "SELECT generation FROM catalog_generation WHERE kind = :kind"
    return int(await repository.db.value(sql, kind=repository.kind))


def tool(
    name: str,
    description: str,
    *parameters: str,
    risk: RiskLevel = "low",
    templates: tuple[str, ...] | None = None,
    sub_agents: bool = True,
    **fields: Any,
) -> ToolDescriptor:
    return ToolDescriptor(
        name=name,
        description_short=description,
        input_schema={"type": "object", "properties": {name: {"type": "string"} for name in parameters}},
        runtime_binding=RuntimeBinding(remote_endpoint="https://tools.invalid/"),
        security_policy=SecurityPolicy(risk_level=risk, allow=Allow(templates=templates, sub_agents=sub_agents)),
        **fields,
    )


async def publish(db: Database, *tools: ToolDescriptor) -> None:
    catalog = Catalog(db)
    for start in range(0, len(tools), 2000):
        await catalog.tools.publish(tools[start : start + 2000], by="test")


async def indexed(db: Database, *tools: ToolDescriptor, embedder: Embedder | None = None) -> Finder:
    await publish(db, *tools)
    assert await Indexer(db, embedder).catch_up()
    return Finder(db, embedder)


async def found(finder: Finder, query: str, top_k: int = 10, **filters: Any) -> list[str]:
    return [hit.name for hit in await finder.tools(query, SearchFilters(**filters), top_k)]
