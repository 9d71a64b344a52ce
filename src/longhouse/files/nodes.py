"""Values and where they stand: what is merged and moved still knows the file, the line and the field it came from."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class Spot:
    """A place in a file, as a person finds it."""

    file: Path
    line: int
    field: str = ""

    def beneath(self, *names: str | int) -> "Spot":
        """The field of this name, of which nothing stands in the file."""
        return Spot(self.file, self.line, ".".join([*filter(None, [self.field]), *map(str, names)]))

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.field}".removesuffix(": ")


@dataclass(frozen=True, slots=True)
class Node:
    """A value with its place. The values of mappings and sequences are nodes themselves."""

    value: Any
    spot: Spot

    @property
    def items(self) -> "dict[str, Node]":
        """What a mapping holds; nothing, where this is none."""
        return self.value if isinstance(self.value, dict) else {}

    @property
    def plain(self) -> Any:
        if isinstance(self.value, dict):
            return {key: node.plain for key, node in self.value.items()}
        return [node.plain for node in self.value] if isinstance(self.value, list) else self.value

    def get(self, name: str) -> "Node | None":
        return self.items.get(name)

    def without(self, names: Iterable[str]) -> "Node":
        left = {key: node for key, node in self.items.items() if key not in {*names}}
        return Node(left, self.spot)

    def only(self, names: Iterable[str]) -> "Node":
        return Node({name: self.items[name] for name in names if name in self.items}, self.spot)

    def find(self, path: Sequence[str | int]) -> Spot:
        """The place of what this path leads to, or of what is nearest above it."""
        at: Node = self
        for nth, step in enumerate(path):
            inner: Node | None = None
            if isinstance(at.value, dict):
                inner = at.value.get(step)
            elif isinstance(at.value, list) and isinstance(step, int) and step < len(at.value):
                inner = at.value[step]
            if inner is None:
                return at.spot.beneath(*path[nth:])
            at = inner
        return at.spot


def planted(value: Any, spot: Spot) -> Node:
    """A plain value, all of it at one place."""
    if isinstance(value, dict):
        return Node({key: planted(inner, spot.beneath(key)) for key, inner in value.items()}, spot)
    if isinstance(value, list | tuple):
        return Node([planted(inner, spot) for inner in value], spot)
    return Node(value, spot)


def merged(low: Node, high: Node) -> Node:
    """Mappings are laid over each other, field by field; anything else replaces what was there."""
    if not isinstance(low.value, dict) or not isinstance(high.value, dict):
        return high
    both = {key: merged(low.value[key], node) if key in low.value else node for key, node in high.value.items()}
    return Node({**low.value, **both}, high.spot)
