"""Search queries in SQL: documents that the filters permit, and documents at given places of the index."""

from collections.abc import Sequence
from typing import Final

import asyncpg
import msgspec

from longhouse.agents.tool import RiskLevel
from longhouse.agents.tool_descriptor import RISKS
from longhouse.store.catalog.repository import Kind
from longhouse.store.database import Database
from longhouse.store.search import postings

# The index is a moment behind the catalog, so the catalog decides what is active now. LIMIT keeps the planner from
# starting at the catalog, as it would after many were published at once.
NOW: Final = """
    CROSS JOIN LATERAL (
        SELECT active FROM catalog_names n
        WHERE n.kind = d.kind AND n.name = d.name AND (n.owner IS NULL OR n.owner = :caller) LIMIT 1
    ) n
"""
# At the catalog's generation, each document is of the version that is active; one snapshot tells both.
CURRENT: Final = """
    (SELECT s.generation = g.generation FROM search_state s JOIN catalog_generation g ON g.kind = s.kind
     WHERE s.kind = '{kind}')
"""
AT: Final = f"""
    CROSS JOIN LATERAL (
        SELECT * FROM search_documents d
        WHERE d.shard = (c.place / {postings.SLOTS})::int AND d.slot = (c.place % {postings.SLOTS})::int LIMIT 1
    ) d
"""

USERS: Final = """
    SELECT d.name, n.active AS version, d.tools FROM search_documents d
    JOIN catalog_names n ON n.kind = 'template' AND n.name = d.name AND n.active IS NOT NULL AND n.retired_at IS NULL
    WHERE d.kind = 'template' AND d.tools && :tools::text[]
      AND (d.owner IS NULL OR d.owner = :caller) AND (n.owner IS NULL OR n.owner = :caller)
    ORDER BY d.name
"""


class SearchFilters(msgspec.Struct, frozen=True):
    """The caller, and the conditions that a found tool or template must meet."""

    caller: str | None = None
    """An owner; None sees only public entries."""
    allow: tuple[str, ...] | None = None
    """Permitted names, or `<prefix>.*`; None: all."""
    deny: tuple[str, ...] = ()
    types: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()
    max_risk: RiskLevel = "high"
    template: str | None = None
    """The template of the agent that searches."""
    is_sub: bool = False

    def conditions(self) -> tuple[list[str], dict[str, object]]:
        """SQL conditions on a document `d`, and their values. Only the filters in use: each costs time per document."""
        held = [
            "(d.owner IS NULL OR d.owner = :caller::text)",
            "(d.templates IS NULL OR :template::text = ANY(d.templates))",
        ]
        values: dict[str, object] = {"caller": self.caller, "template": self.template}
        if self.allow is not None:
            held.append("(d.name = ANY(:allowed::text[]) OR d.name LIKE ANY(:allowed_patterns::text[]))")
            values["allowed"], values["allowed_patterns"] = split(self.allow)
        if self.deny:
            held.append("NOT (d.name = ANY(:denied::text[]) OR d.name LIKE ANY(:denied_patterns::text[]))")
            values["denied"], values["denied_patterns"] = split(self.deny)
        if self.types:
            held.append("d.type = ANY(:types::text[])")
            values["types"] = list(self.types)
        if self.tags:
            held.append("d.tags && :tags::text[]")
            values["tags"] = list(self.tags)
        if self.max_risk != "high":
            held.append(f"d.risk <= {RISKS.index(self.max_risk):d}")
        if self.is_sub:
            held.append("d.sub_agents")
        return held, values


async def some(db: Database, kind: Kind, filters: SearchFilters, limit: int) -> Sequence[asyncpg.Record]:
    """At most `limit` permitted documents, in no order."""
    held, values = filters.conditions()
    return await db.rows(f"{_select(kind, 'search_documents d', held)} LIMIT {limit:d}", **values)


async def permitted(db: Database, kind: Kind, filters: SearchFilters) -> Sequence[asyncpg.Record]:
    """The shards and slots of all permitted documents."""
    held, values = filters.conditions()
    where = " AND ".join([f"d.kind = '{kind}'", *held])
    return await db.rows(f"SELECT d.shard, d.slot FROM search_documents d WHERE {where}", **values)


async def at(
    db: Database, kind: Kind, filters: SearchFilters, places: Sequence[int], *, by_index: bool = False
) -> Sequence[asyncpg.Record]:
    """The permitted documents at these places. `by_index`: by what the index says alone, which takes half the time;
    none at all while it is behind the catalog."""
    held, values = filters.conditions()
    sql = _select(kind, f"unnest(:places::bigint[]) AS c (place) {AT}", held, by_index=by_index)
    return await db.rows(sql, places=places, **values)


def _select(kind: Kind, candidates: str, held: Sequence[str], *, by_index: bool = False) -> str:
    version, now, known = ("d.version", "", CURRENT) if by_index else ("n.active", NOW, "n.active IS NOT NULL")
    return f"""
        SELECT d.name, {version} AS version, d.shard, d.slot
        FROM {candidates} {now}
        WHERE {" AND ".join([f"d.kind = '{kind}'", known.format(kind=kind), *held])}
    """


class ToolUser(msgspec.Struct, frozen=True):
    """A template that names tools."""

    name: str
    version: int
    tools: Sequence[str]


async def users_of(db: Database, tools: Sequence[str], caller: str | None) -> list[ToolUser]:
    """The templates that name any of these tools."""
    return await db.read(ToolUser, USERS, caller=caller, tools=list(tools))


def split(names: Sequence[str]) -> tuple[list[str], list[str]]:
    """Plain names, and a LIKE pattern for each `<prefix>.*`."""
    plain = [name for name in names if not name.endswith(".*")]
    prefixes = [name[:-1] for name in names if name.endswith(".*")]
    escaped = [prefix.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_") for prefix in prefixes]
    return plain, [f"{prefix}%" for prefix in escaped]
