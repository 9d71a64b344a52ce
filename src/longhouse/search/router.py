"""Routes `model="auto"`: chooses the agent that fits a request, and gives the reason."""

from dataclasses import dataclass
from typing import Any, Final

from longhouse.search import directory
from longhouse.search.directory import AgentDirectory, AgentHit
from longhouse.search.small_talk import is_small_talk

AUTO: Final = "auto"
CANDIDATES: Final = 5


@dataclass(frozen=True, slots=True)
class Routed:
    """The chosen template, and the reason."""

    template: str
    why: str
    confidence: float = 0.0

    @property
    def as_dict(self) -> dict[str, Any]:
        return {"template": self.template, "why": self.why, "confidence": round(self.confidence, 3)}


@dataclass(frozen=True, slots=True)
class Router:
    directory: AgentDirectory
    default: str
    """The template used when no agent fits: a wrong choice would be more likely than a right one."""

    async def choose(self, text: str, owner: str) -> Routed:
        if is_small_talk(text):
            return Routed(self.default, "nothing is asked for yet, so the default answers")
        found = [hit for hit in await self.directory.search(text, CANDIDATES, owner=owner) if hit.is_sure]
        if not found:
            return Routed(self.default, "no agent fits well enough, so the default answers")
        return Routed(found[0].name, _why(found[0]), found[0].confidence)


def _why(hit: AgentHit) -> str:
    if hit.tool and directory.evidence(hit.tool) > directory.evidence(hit.own):
        return f"its tool {hit.tool.name} fits the request best"
    return "what it says of itself fits the request best"
