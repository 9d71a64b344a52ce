"""The agent directory: which agents are worth asking, by what they say of themselves and by what their tools can do."""

from dataclasses import dataclass
from typing import Final

from longhouse.agents import ranking
from longhouse.store import search
from longhouse.store.search import Filters, Hit
from longhouse.tools.search import Finder

TOOLS: Final = 100
"""Tools whose agents come into question; the hundred-and-first best tool is nobody's reason."""
AGENTS: Final = 100
"""Agents that come into question by their own text."""


@dataclass(frozen=True, slots=True)
class AgentHit:
    """An agent that was found, with the reasons."""

    name: str
    version: int
    score: float
    """Between 0 and 1; ranks within one search."""
    confidence: float
    """How much of the query is answered, between 0 and 1; can be compared between searches."""
    own: Hit | None
    """By its own text."""
    tool: Hit | None
    """By the best of its tools."""


@dataclass(frozen=True, slots=True)
class AgentDirectory:
    finder: Finder

    async def search(self, query: str, top_k: int, *, owner: str | None = None) -> list[AgentHit]:
        """The best first; of somebody else's, neither agents nor tools are looked at."""
        filters, asked = Filters(caller=owner), await self.finder.query(query)
        own = await self.finder.templates(asked, filters, AGENTS)
        tools = await self.finder.tools(asked, filters, TOOLS)
        users = await search.users_of(self.finder.db, [hit.name for hit in tools], owner)
        by_text, by_tool = {hit.name: hit for hit in own}, _best_tools(tools, users)
        versions = {**{user.name: user.version for user in users}, **{hit.name: hit.version for hit in own}}
        most = max((hit.score for hit in by_tool.values()), default=1.0)
        found = [
            _agent(name, version, by_text.get(name), by_tool.get(name), most) for name, version in versions.items()
        ]
        return sorted(found, key=lambda agent: (-agent.score, agent.name))[:top_k]


def _best_tools(tools: list[Hit], users: list[search.User]) -> dict[str, Hit]:
    """Template -> the best of the tools that it names."""
    places = {hit.name: place for place, hit in enumerate(tools)}
    named = {user.name: [places[tool] for tool in user.tools if tool in places] for user in users}
    return {name: tools[min(found)] for name, found in named.items() if found}


def _agent(name: str, version: int, own: Hit | None, tool: Hit | None, most: float) -> AgentHit:
    text = own.score if own else 0.0
    ability = tool.score / most if tool else 0.0
    return AgentHit(
        name=name,
        version=version,
        score=ranking.OWN_TEXT * text + ranking.BEST_TOOL * ability,
        confidence=max(_confidence(own), _confidence(tool)),
        own=own,
        tool=tool,
    )


def _confidence(hit: Hit | None) -> float:
    return max(hit.lexical, hit.semantic or 0.0) if hit else 0.0
