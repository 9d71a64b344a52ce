"""Routes `model="auto"`: chooses the agent that fits a request, and gives the reason."""

from collections.abc import Collection
from typing import Any, Final

import msgspec

from longhouse.search import directory
from longhouse.search.directory import AgentDirectory, AgentHit
from longhouse.search.small_talk import is_small_talk

AUTO: Final = "auto"
CANDIDATES: Final = 5
MORE_CANDIDATES: Final = 50


class Routed(msgspec.Struct, frozen=True):
    """The chosen template, and the reason."""

    template: str
    why: str
    confidence: float = 0.0

    @property
    def as_dict(self) -> dict[str, Any]:
        return {"template": self.template, "why": self.why, "confidence": round(self.confidence, 3)}


class Router(msgspec.Struct, frozen=True):
    directory: AgentDirectory
    default: str
    """The template used when no agent fits: a wrong choice would be more likely than a right one."""

    async def choose(self, text: str, owner: str, *, allowed: Collection[str] | None = None) -> Routed:
        """`allowed`: the templates that the caller may use; None: all."""
        default, who = self.default, "the default"
        if allowed and default not in allowed:
            default, who = min(allowed), "the first that this key may use"
        if is_small_talk(text):
            return Routed(default, f"nothing is asked for yet, so {who} answers")
        # Among few agents of many, the fitting ones may come far behind.
        candidates = CANDIDATES if allowed is None else MORE_CANDIDATES
        hits = await self.directory.search(text, candidates, owner=owner)
        found = [hit for hit in hits if hit.is_sure and (allowed is None or hit.name in allowed)]
        if not found:
            return Routed(default, f"no agent fits well enough, so {who} answers")
        return Routed(found[0].name, _why(found[0]), found[0].confidence)


def _why(hit: AgentHit) -> str:
    if hit.tool and directory.evidence(hit.tool) > directory.evidence(hit.own):
        return f"its tool {hit.tool.name} fits the request best"
    return "what it says of itself fits the request best"
