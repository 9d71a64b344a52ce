"""Parses a YAML file into plain values with their line numbers; size, depth and number of values are bounded."""

import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import yaml

from longhouse.config.mistakes import FilePlace, Mistakes
from longhouse.config.yaml_document import YamlDocument, merged, read_text
from longhouse.validation_messages import Where

LARGEST: Final = 1_000_000
"""Bytes; a larger file is not read."""
DEEPEST: Final = 40
MOST_VALUES: Final = 50_000
"""Each alias counts as often as it is used: a few lines of aliases can stand for billions of values."""

TOO_DEEP: Final = f"is nested deeper than {DEEPEST} levels"
UNKEEPABLE: Final = "contains a character that cannot be stored"
TAGGED: Final = "has a tag (`!…`); only plain values are allowed"

_TAG: Final = "tag:yaml.org,2002:"
_MERGE: Final = f"{_TAG}merge"
_PLAIN: Final = {f"{_TAG}{name}" for name in ("int", "float", "bool", "null")}
_TEXT: Final = {f"{_TAG}{name}" for name in ("str", "timestamp", "value")}
_GATHERED: Final = {f"{_TAG}{name}" for name in ("map", "seq")}
_UNKEEPABLE: Final = re.compile("[\x00\ud800-\udfff]")


def read(path: Path, mistakes: Mistakes) -> YamlDocument | None:
    """The parsed file; None where it cannot be read, which is added to the mistakes."""
    text, line = "", 1
    try:
        text = read_text(path, LARGEST)
        reader = _YamlReader(text, path, mistakes)
        root = reader.get_single_node()
        values = {} if root is None else reader.read(root, (), 1, 0)
        if isinstance(values, dict | None):
            return YamlDocument(path, values or {}, reader.lines)
        problem = "should contain fields, such as `llm:`"
    except yaml.MarkedYAMLError as error:
        mark, begun = error.problem_mark or error.context_mark, error.context_mark
        # Only the parser's own message: the file's text may contain a key.
        context = f"{error.context} that begins in line {begun.line + 1}, " if error.context and begun else ""
        problem, line = f"is not YAML: {context}{error.problem}", mark.line + 1 if mark else 1
    except yaml.reader.ReaderError as error:
        problem, line = UNKEEPABLE, text.count("\n", 0, error.position) + 1
    except ValueError as error:
        problem = str(error)
    mistakes.add(FilePlace(path, line), problem)
    return None


class _YamlReader(yaml.SafeLoader):  # type: ignore[misc]  # the library has no types
    """Composes a document and converts its nodes to plain values. ValueError where it exceeds the limits."""

    def __init__(self, text: str, file: Path, mistakes: Mistakes) -> None:
        super().__init__(text)
        self.lines: dict[Where, int] = {}
        self._file = file
        self._mistakes = mistakes
        self._values = self._depth = 0

    def compose_node(self, parent: Any, index: Any) -> Any:
        """Stops at the depth limit, long before the interpreter's recursion limit."""
        self._depth += 1
        if self._depth > DEEPEST + 2:
            raise ValueError(TOO_DEEP)
        node = super().compose_node(parent, index)
        self._depth -= 1
        return node

    def read(self, node: yaml.Node, path: Where, line: int, depth: int) -> Any:
        self._count(depth)
        self.lines[path] = line
        if isinstance(node, yaml.ScalarNode):
            return self._scalar(node, path)
        if node.tag not in _GATHERED:
            self._add_mistake(path, TAGGED)
        if isinstance(node, yaml.MappingNode):
            return self._mapping(node, path, depth)
        items = enumerate(node.value)
        return [self.read(item, (*path, nth), item.start_mark.line + 1, depth + 1) for nth, item in items]

    def _mapping(self, node: yaml.MappingNode, path: Where, depth: int) -> dict[str, Any]:
        found: dict[str, Any] = {}
        own: dict[str, int] = {}
        for key, value, is_own in self._fields(node, path, depth):
            line = key.start_mark.line + 1
            if key.tag != f"{_TAG}str" or _UNKEEPABLE.search(key.value):
                self._mistakes.add(
                    FilePlace(self._file, line, path), "has a field whose name is not text; put it in quotes"
                )
                continue
            name, at = key.value, (*path, key.value)
            inner = self.read(value, at, line, depth + 1)
            if is_own and name in own:
                self._add_mistake(at, f"is set twice, first in line {own[name]}")
                # Both values are checked, so that the mistakes of both are reported.
                inner = merged(found[name], inner)
            elif is_own:
                own[name] = line
            found[name] = inner
        return found

    def _fields(self, node: yaml.MappingNode, path: Where, depth: int) -> Iterator[tuple[yaml.Node, yaml.Node, bool]]:
        """The keys and values of a mapping, and whether they are its own. Merged fields (`<<`) come first, so that own
        fields replace them; of several merged mappings, the first wins."""
        for value in [value for key, value in node.value if key.tag == _MERGE]:
            for one in reversed(value.value if isinstance(value, yaml.SequenceNode) else [value]):
                self._count(depth + 1)
                if isinstance(one, yaml.MappingNode):
                    yield from ((key, inner, False) for key, inner, _ in self._fields(one, path, depth + 1))
                else:
                    self._add_mistake(path, "`<<` needs a mapping to take fields from")
        yield from ((key, value, True) for key, value in node.value if key.tag != _MERGE)

    def _scalar(self, node: yaml.Node, path: Where) -> Any:
        if node.tag in _TEXT:
            if _UNKEEPABLE.search(node.value):
                self._add_mistake(path, UNKEEPABLE)
                return ""
            return node.value
        if node.tag not in _PLAIN:
            self._add_mistake(path, TAGGED)
            return None
        try:
            value = self.construct_object(node)
        except ValueError:
            value = math.nan
        # JSON parsers reject integers beyond 64 bits.
        if (isinstance(value, float) and not math.isfinite(value)) or (isinstance(value, int) and abs(value) >= 2**63):
            self._add_mistake(path, "is not a finite number of at most 64 bits")
            return None
        return value

    def _count(self, depth: int) -> None:
        self._values += 1
        if depth > DEEPEST:
            raise ValueError(TOO_DEEP)
        if self._values > MOST_VALUES:
            raise ValueError(f"contains more than {MOST_VALUES} values; each use of an alias counts")

    def _add_mistake(self, path: Where, what: str) -> None:
        self._mistakes.add(FilePlace(self._file, self.lines[path], path), what)
