"""The pages of the documentation, and the examples on them."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGES = sorted(
    [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").rglob("*.md")],
    key=lambda page: page.relative_to(ROOT).as_posix(),
)
PORT = "8400"
"""Where the server of the examples listens."""


@dataclass(frozen=True)
class Block:
    """A fenced example."""

    page: Path
    line: int
    language: str
    code: str
    words: tuple[str, ...] = ()
    """What stands behind the language, where renderers show nothing of it: the name of a file, or `fragment`."""

    @property
    def where(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"

    @property
    def file(self) -> str | None:
        """The name of the file that the example is, where its first line says one; JSON has no such lines."""
        named = re.match(r"# (\w*\.\w+)\n", self.code)
        return named[1] if named else next((word for word in self.words if "." in word), None)

    @property
    def is_fragment(self) -> bool:
        """It is to be read, and cannot be run as it stands."""
        return "fragment" in self.words


def blocks(page: Path, *languages: str) -> list[Block]:
    """The examples of a page in these languages; all of them where none is named."""
    text = page.read_text("utf-8")
    found = re.finditer(r"^```(\w*)([^\n]*)\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    return [
        Block(page, text[: match.start()].count("\n") + 1, match[1], match[3], tuple(match[2].split()))
        for match in found
        if not languages or match[1] in languages
    ]


def runnable(page: Path, *languages: str) -> list[Block]:
    """Those that a test has to run."""
    return [block for block in blocks(page, *languages) if not block.is_fragment]


def all_blocks(*languages: str) -> Iterator[Block]:
    for page in PAGES:
        yield from blocks(page, *languages)
