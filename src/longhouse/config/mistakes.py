"""Collects the mistakes in configuration files, so that all of them are reported at once."""

from collections.abc import Collection
from pathlib import Path
from typing import Any, Final

import msgspec
import pydantic

from longhouse.agents.adapters import adapter_of
from longhouse.errors import SetupError
from longhouse.validation_messages import Where, explain, path_text

WORDS: Final = {
    "dataclass_type": "should contain fields of its own",
    "dict_type": "should contain fields of its own",
    "tuple_type": "should be a list",
    "list_type": "should be a list",
}


class FilePlace(msgspec.Struct, frozen=True):
    """A place in a file: file, line and path of the field."""

    file: Path
    line: int
    path: Where = ()

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {path_text(self.path)}".removesuffix(": ")


class FileError(SetupError):
    """There are mistakes in the files; `read` are those that were read, and those that they name."""

    def __init__(self, message: str, read: Collection[Path]) -> None:
        super().__init__(message)
        self.read = read


class Mistakes(dict[FilePlace, str]):
    def __init__(self) -> None:
        super().__init__()
        self.read: set[Path] = set()
        """The files that were read, and those that they name."""

    def add(self, place: FilePlace, what: str) -> None:
        """Keeps the first mistake of each place: later ones follow from it, or come from agents that inherit it."""
        self.setdefault(place, what)

    def refuse(self) -> None:
        """Raises all mistakes in the order of the files, one line each; a section comes after the fields in it."""
        if not self:
            return
        ordered = sorted(self, key=lambda place: (str(place.file), place.line, f"{place}\uffff"))
        lines = [f"{place}: {self[place]}" for place in ordered]
        many = "is one mistake" if len(lines) == 1 else f"are {len(lines)} mistakes"
        raise FileError("\n".join([f"there {many} in the files:", *lines]), self.read)


def validated(model: Any, values: dict[str, Any]) -> tuple[Any, list[tuple[Where, str]]]:
    """The values as this model, None where they are invalid; and every problem."""
    try:
        # Through JSON, where lists stay lists and a string is no number.
        return adapter_of(model).validate_json(msgspec.json.encode(values), strict=True), []
    except pydantic.ValidationError as error:
        problems = explain(error, model=model, words=WORDS)
        return None, [(path, what.removeprefix("Input ")) for path, what in problems]
