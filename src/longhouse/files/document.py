"""A YAML file as nodes: plain values only, with their lines, and bounded whatever is in it."""

import math
import re
from pathlib import Path
from typing import Any, Final

import yaml

from longhouse.files.mistakes import Mistakes
from longhouse.files.nodes import Node, Spot, merged

LARGEST: Final = 1_000_000
"""Bytes of a file that is read at all."""
DEEPEST: Final = 40
MOST_VALUES: Final = 50_000
"""With each alias counted as often as it is used: a few lines of aliases can stand for billions."""

TOO_DEEP: Final = f"is nested deeper than {DEEPEST} levels"
UNKEEPABLE: Final = "holds a character that no text may have"
TAGGED: Final = "has a tag (`!…`); values are plain here"

_TAG: Final = "tag:yaml.org,2002:"
_PLAIN: Final = {f"{_TAG}{name}" for name in ("int", "float", "bool", "null")}
_TEXT: Final = {f"{_TAG}{name}" for name in ("str", "timestamp", "value")}
_GATHERED: Final = {f"{_TAG}{name}" for name in ("map", "seq")}
_UNKEEPABLE: Final = re.compile("[\x00\ud800-\udfff]")


class _TooMuch(Exception):  # noqa: N818 - it says what the file is
    """More than any file of settings has."""


class _Loader(yaml.SafeLoader):  # type: ignore[misc]  # the library has no types
    """Stops at a depth that no file of settings has, long before the interpreter would."""

    depth = 0

    def compose_node(self, parent: Any, index: Any) -> Any:
        self.depth += 1
        if self.depth > DEEPEST + 2:
            raise _TooMuch(TOO_DEEP)
        node = super().compose_node(parent, index)
        self.depth -= 1
        return node


def read_document(path: Path, mistakes: Mistakes) -> Node | None:
    """The file's mapping; None where it cannot be read, which is then one of the mistakes."""
    start = Spot(path, 1)
    try:
        with path.open("rb") as file:
            content = file.read(LARGEST + 1)
        if len(content) > LARGEST:
            mistakes.add(start, f"is larger than {LARGEST} bytes")
            return None
        return _composed(content.decode("utf-8-sig"), start, mistakes)
    except OSError as error:
        mistakes.add(start, f"cannot be read: {error.strerror}")
    except UnicodeDecodeError:
        mistakes.add(start, "is not text in UTF-8")
    return None


def _composed(text: str, start: Spot, mistakes: Mistakes) -> Node | None:
    try:
        loader = _Loader(text)
        root = loader.get_single_node()
        node = Node({}, start) if root is None else _Reading(loader, start, mistakes).node(root, start, 0)
    except yaml.MarkedYAMLError as error:
        mark, begun = error.problem_mark or error.context_mark, error.context_mark
        # Only what the parser thinks: the words of the file stay out, there may be a key among them.
        context = f"{error.context} that begins in line {begun.line + 1}, " if error.context and begun else ""
        mistakes.add(Spot(start.file, mark.line + 1 if mark else 1), f"is not YAML: {context}{error.problem}")
        return None
    except yaml.reader.ReaderError as error:
        mistakes.add(Spot(start.file, text.count("\n", 0, error.position) + 1), UNKEEPABLE)
        return None
    except _TooMuch as error:
        mistakes.add(start, str(error))
        return None
    if not isinstance(node.value, dict | None):
        mistakes.add(start, "should hold fields, such as `llm:`")
        return None
    return Node(node.value or {}, start)


class _Reading:
    """From the parser's nodes to ours."""

    def __init__(self, loader: yaml.SafeLoader, start: Spot, mistakes: Mistakes) -> None:
        self._loader = loader
        self._file = start.file
        self._mistakes = mistakes
        self._values = 0

    def node(self, raw: yaml.Node, spot: Spot, depth: int) -> Node:
        self._values += 1
        if depth > DEEPEST:
            raise _TooMuch(TOO_DEEP)
        if self._values > MOST_VALUES:
            raise _TooMuch(f"holds more than {MOST_VALUES} values, aliases counted as often as they are used")
        if not isinstance(raw, yaml.ScalarNode) and raw.tag not in _GATHERED:
            self._mistakes.add(spot, TAGGED)
        if isinstance(raw, yaml.MappingNode):
            return Node(self._mapping(raw, spot, depth), spot)
        if isinstance(raw, yaml.SequenceNode):
            return Node([self._item(item, spot, nth, depth) for nth, item in enumerate(raw.value)], spot)
        return Node(self._scalar(raw, spot), spot)

    def _item(self, raw: yaml.Node, spot: Spot, nth: int, depth: int) -> Node:
        return self.node(raw, Spot(self._file, raw.start_mark.line + 1, f"{spot.field}[{nth}]"), depth + 1)

    def _mapping(self, raw: yaml.MappingNode, spot: Spot, depth: int) -> dict[str, Node]:
        found: dict[str, Node] = {}
        inherited: dict[str, Node] = {}
        for key, value in raw.value:
            at = Spot(self._file, key.start_mark.line + 1, spot.field)
            if key.tag == f"{_TAG}merge":
                inherited |= self._inherited(value, at, depth)
                continue
            name = self._loader.construct_object(key) if key.tag == f"{_TAG}str" else None
            if not isinstance(name, str):
                self._mistakes.add(at, "has a field whose name is no text; put it in quotes")
                continue
            at = at.beneath(name)
            node = self.node(value, at, depth + 1)
            if name in found:
                self._mistakes.add(at, f"is there twice, first in line {found[name].spot.line}")
                # Both are looked at, so that the mistakes of either are told.
                node = merged(node, found[name])
            found[name] = node
        return {**inherited, **found}

    def _inherited(self, value: yaml.Node, at: Spot, depth: int) -> dict[str, Node]:
        """What `<<` brings; of several mappings, the first wins."""
        found: dict[str, Node] = {}
        for one in reversed(value.value if isinstance(value, yaml.SequenceNode) else [value]):
            node = self.node(one, at, depth + 1)
            if not isinstance(node.value, dict):
                self._mistakes.add(at, "`<<` takes fields from elsewhere, and here are none")
            found |= node.items
        return found

    def _scalar(self, raw: yaml.Node, spot: Spot) -> Any:
        if raw.tag in _TEXT:
            if _UNKEEPABLE.search(raw.value):
                self._mistakes.add(spot, UNKEEPABLE)
                return ""
            return raw.value
        if raw.tag not in _PLAIN:
            self._mistakes.add(spot, TAGGED)
            return None
        try:
            value = self._loader.construct_object(raw)
        except ValueError:
            value = math.nan
        if (isinstance(value, float) and not math.isfinite(value)) or _is_huge(value):
            self._mistakes.add(spot, "is not a number to count with")
            return None
        return value


def _is_huge(value: Any) -> bool:
    """Beyond what JSON readers take for a whole number."""
    return isinstance(value, int) and abs(value) >= 2**63
