"""`model="auto"`: the agent that fits a request is chosen here, and why is said."""

from dataclasses import dataclass
from typing import Any, Final

from longhouse.tools.directory import AgentDirectory, AgentHit

AUTO: Final = "auto"
SURE: Final = 0.35
"""How much of a request the best agent must answer to be chosen; below that, a wrong choice is likelier than a right
one, and the default template does no harm."""
LOOKED_AT: Final = 5


@dataclass(frozen=True, slots=True)
class Routed:
    """Which template was chosen, and why."""

    template: str
    why: str
    confidence: float = 0.0

    @property
    def told(self) -> dict[str, Any]:
        return {"template": self.template, "why": self.why, "confidence": round(self.confidence, 3)}


@dataclass(frozen=True, slots=True)
class Router:
    directory: AgentDirectory
    default: str
    """The template for what nobody fits."""

    async def choose(self, text: str, owner: str) -> Routed:
        found = [hit for hit in await self.directory.search(text, LOOKED_AT, owner=owner) if hit.confidence >= SURE]
        if not found:
            return Routed(self.default, "no agent fits well enough, so the default answers")
        best = found[0]
        return Routed(best.name, _why(best), best.confidence)


def _why(hit: AgentHit) -> str:
    own, ability = hit.own.score if hit.own else 0.0, hit.tool.score if hit.tool else 0.0
    if hit.tool and ability > own:
        return f"its tool {hit.tool.name} fits the request best"
    return "what it says of itself fits the request best"
