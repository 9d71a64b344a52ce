"""The agent directory: finds agents by their own descriptions and by what their tools can do."""

from typing import Final

import msgspec
from msgspec.structs import replace

from longhouse.search import ranking
from longhouse.search.document import DESCRIPTIVE_TYPES
from longhouse.search.finder import Finder, SearchHit
from longhouse.store.search import query as search
from longhouse.store.search.query import SearchFilters

CANDIDATES: Final = 100
"""Agents that are candidates by their own text, and tools whose agents are: a lower rank is no reason to choose one."""


class AgentHit(msgspec.Struct, frozen=True):
    """An agent found by a search, with the evidence."""

    name: str
    version: int
    score: float
    """Between 0 and 1; comparable only within one search."""
    own: SearchHit | None
    """The hit by its own text."""
    tool: SearchHit | None
    """The hit by its best tool."""

    @property
    def confidence(self) -> float:
        """How much of the query is covered, between 0 and 1; comparable between searches."""
        return max((max(hit.lexical, hit.semantic or 0.0) for hit in self._hits), default=0.0)

    @property
    def is_sure(self) -> bool:
        """Whether words or vectors pass their threshold; each has its own, so that words alone can decide."""
        return any(
            hit.lexical >= ranking.ENOUGH_WORDS or (hit.semantic or 0.0) >= ranking.ENOUGH_MEANING for hit in self._hits
        )

    @property
    def _hits(self) -> list[SearchHit]:
        return [hit for hit in (self.own, self.tool) if hit]


class AgentDirectory(msgspec.Struct, frozen=True):
    finder: Finder

    async def search(self, query: str, top_k: int, *, owner: str | None = None) -> list[AgentHit]:
        """The best agents first; agents and tools of other owners are left out."""
        filters, asked = SearchFilters(caller=owner), await self.finder.query(query)
        own = await self.finder.find("template", asked, filters, CANDIDATES)
        # Tools that call agents are left out: what an agent can do counts for it, not for those that may call it.
        tools = await self.finder.tools(asked, replace(filters, types=DESCRIPTIVE_TYPES), CANDIDATES)
        users = await search.users_of(self.finder.db, [hit.name for hit in tools], owner)
        return ranked(own, tools, users)[:top_k]


def ranked(own: list[SearchHit], tools: list[SearchHit], users: list[search.ToolUser]) -> list[AgentHit]:
    """Agents ranked by the evidence of their text and of their best tool, on one scale."""
    by_text, by_name = {hit.name: hit for hit in own}, {hit.name: hit for hit in tools}
    named = {user.name: [by_name[tool] for tool in user.tools if tool in by_name] for user in users}
    by_tool = {name: max(hits, key=evidence) for name, hits in named.items() if hits}
    versions = {**{user.name: user.version for user in users}, **{hit.name: hit.version for hit in own}}
    most = max(map(evidence, (*by_text.values(), *by_tool.values())), default=0.0)
    found = (_agent(name, version, by_text.get(name), by_tool.get(name), most) for name, version in versions.items())
    return sorted((agent for agent in found if agent.score > 0), key=lambda agent: (-agent.score, agent.name))


def _agent(name: str, version: int, own: SearchHit | None, tool: SearchHit | None, most: float) -> AgentHit:
    text = evidence(own)
    ability = max(evidence(tool), text)  # an agent without tools is judged by its text alone
    score = (ranking.OWN_TEXT * text + ranking.BEST_TOOL * ability) / most if most > 0 else 0.0
    return AgentHit(name, version, score, own, tool)


def evidence(hit: SearchHit | None) -> float:
    """The absolute evidence for a hit, independent of the other hits: the best of bad tools is still a bad one."""
    return ranking.WORDS * hit.lexical + max(hit.semantic or 0.0, 0.0) if hit else 0.0
