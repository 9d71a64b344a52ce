"""A YAML file as plain values with their line numbers."""

import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from longhouse.config.mistakes import FilePlace, Mistakes, validated
from longhouse.validation_messages import Where


class YamlDocument(msgspec.Struct):
    file: Path
    values: dict[str, Any] = msgspec.field(default_factory=dict)
    lines: dict[Where, int] = msgspec.field(default_factory=dict)
    """Path of a value -> its line."""

    def place(self, path: Where) -> FilePlace:
        """The place of the value, or of its nearest parent."""
        above = (path[:length] for length in range(len(path), -1, -1))
        return FilePlace(self.file, next((self.lines[one] for one in above if one in self.lines), 1), path)

    def check(self, model: type[Any], mistakes: Mistakes) -> None:
        """Validates against the model and adds the mistakes. An invalid field is then treated as not set."""
        for path, what in validated(model, self.values)[1] if self.values else ():
            problem, above = what, self.values
            for step in path[:-1]:
                above = above[step]  # type: ignore[index]
            if isinstance(above, dict):
                if what == "should be a valid string" and isinstance(above.get(str(path[-1])), bool | int | float):
                    problem = "should be a text; put it in quotes"
                above[str(path[-1])] = None
            mistakes.add(self.place(path), problem)


def read_text(path: Path, largest: int) -> str:
    """The text of a file of at most so many bytes. ValueError says why it cannot be read."""
    try:
        with path.open("rb") as file:
            content = file.read(largest + 1)
        if len(content) <= largest:
            return content.decode("utf-8-sig")
    except OSError as error:
        raise ValueError(f"cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ValueError("is not text in UTF-8") from None
    raise ValueError(f"is larger than {largest} bytes")


def read_document(path: Path, mistakes: Mistakes) -> YamlDocument | None:
    """The parsed file; None where it cannot be read, which is added to the mistakes. The parser is loaded with the
    first file: many houses have none."""
    read: Callable[[Path, Mistakes], YamlDocument | None] = importlib.import_module("longhouse.config.yaml_reader").read
    return read(path, mistakes)


def merged(low: Any, high: Any) -> Any:
    """Deep merge: mappings are merged field by field; any other value replaces the lower one."""
    if not isinstance(low, dict) or not isinstance(high, dict):
        return high
    return {**low, **{key: merged(low[key], value) if key in low else value for key, value in high.items()}}
