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

    @property
    def where(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"

    @property
    def file(self) -> str | None:
        """The name of the file that the example is, where its first line says one."""
        named = re.match(r"# (\w+\.py)\n", self.code)
        return named[1] if named else None


def blocks(page: Path, *languages: str) -> list[Block]:
    text = page.read_text("utf-8")
    found = re.finditer(r"^```(\w+)\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    return [
        Block(page, text[: match.start()].count("\n") + 1, match[1], match[2])
        for match in found
        if match[1] in languages
    ]


def all_blocks(*languages: str) -> Iterator[Block]:
    for page in PAGES:
        yield from blocks(page, *languages)
