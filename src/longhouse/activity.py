"""What the agents of this process have done, counted in memory by template and owner.

A step may not wait for its numbers: a call is one look-up and a few additions. Names come from users, and there is no
end of them: the first ones have a series each, all others share one.
"""

from bisect import bisect_left
from collections import defaultdict
from typing import Final

import msgspec

OTHER: Final = "other"
"""The name that stands for all owners, templates or tools beyond the first."""
MOST_OWNERS: Final = 20
MOST_TEMPLATES: Final = 100
MOST_TOOLS: Final = 200
LONGEST_NAME: Final = 100
BOUNDS: Final = (0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 900.0)
"""Upper bounds of the buckets of durations, in seconds."""


class ShownNames(dict[str, str]):
    """A name -> as it is shown: the first names that were counted, up to a number of them, and another for the rest."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self._most = most

    def __missing__(self, name: str) -> str:
        if len(self) >= self._most:
            return OTHER
        shown = self[name] = name[:LONGEST_NAME]
        return shown


class Durations(msgspec.Struct):
    """How often something happened, and how long it took."""

    buckets: list[int] = msgspec.field(default_factory=lambda: [0] * (len(BOUNDS) + 1))
    seconds: float = 0.0

    def add(self, seconds: float) -> None:
        self.buckets[bisect_left(BOUNDS, seconds)] += 1
        self.seconds += seconds


class ModelCalls(Durations):
    errors: int = 0
    retries: int = 0
    read: int = 0
    """Tokens, those from the provider's cache included."""
    cached: int = 0
    written: int = 0


class ToolCalls(Durations):
    errors: int = 0


class EndedTurns(Durations):
    states: dict[str, int] = msgspec.field(default_factory=lambda: defaultdict(int))
    """The state in which they ended -> how many."""


Who = tuple[str, str]
"""Template and owner, as they are shown."""


class ActivityCounts:
    def __init__(self, most_owners: int = MOST_OWNERS) -> None:
        """With 0, no owner is named."""
        self._owners, self._templates, self._tools = (
            ShownNames(most_owners),
            ShownNames(MOST_TEMPLATES),
            ShownNames(MOST_TOOLS),
        )
        self.models: dict[Who, ModelCalls] = defaultdict(ModelCalls)
        self.tool_calls: dict[Who, ToolCalls] = defaultdict(ToolCalls)
        self.tools: dict[str, ToolCalls] = defaultdict(ToolCalls)
        self.turns: dict[Who, EndedTurns] = defaultdict(EndedTurns)

    def model(self, template: str, owner: str) -> ModelCalls:
        return self.models[self._who(template, owner)]

    def tool_called(self, template: str, owner: str, tool: str, seconds: float, *, failed: bool) -> None:
        for calls in (self.tool_calls[self._who(template, owner)], self.tools[self._tools[tool]]):
            calls.add(seconds)
            calls.errors += failed

    def turn_ended(self, template: str, owner: str, state: str, seconds: float) -> None:
        turns = self.turns[self._who(template, owner)]
        turns.add(seconds)
        turns.states[state] += 1

    def _who(self, template: str, owner: str) -> Who:
        return self._templates[template], self._owners[owner]
