"""What a file becomes: blocks with their pages, and an outline."""

from dataclasses import dataclass
from typing import Literal

import msgspec

from longhouse.errors import CallerError

BlockKind = Literal["heading", "text", "table", "list", "code"]
Format = Literal["markdown", "html", "pdf", "docx", "text"]


class Block(msgspec.Struct, frozen=True):
    """A heading, a paragraph, a table, a list or a piece of code, as Markdown; the text of a heading has no `#`."""

    kind: BlockKind
    text: str
    page: int = 0
    """The first page is 1; 0: its file has none of its own, and they are not cut yet."""
    level: int = 0
    """1 to 6 for a heading."""
    number: str = ""
    """The section number of a heading: `3.2.1`; `3` for 第三章 and for Chapter III."""


@dataclass(frozen=True, slots=True)
class OutlineLine:
    """A line of the table of contents."""

    title: str
    level: int
    page: int
    number: str = ""


class ParsedDocument(msgspec.Struct, frozen=True):
    """A file that was read whole."""

    title: str
    format: Format
    pages: int
    blocks: tuple[Block, ...]
    outline: tuple[OutlineLine, ...]


Frame = list[Block] | ParsedDocument | str
"""What the process that reads a file says: its next blocks, at the end all but the blocks; or why it cannot be read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ParseLimits:
    """What one file may cost; whatever is over is refused with a sentence."""

    file_bytes: int = 50_000_000
    unpacked_bytes: int = 200_000_000
    """Of the parts of a DOCX together."""
    output_bytes: int = 32_000_000
    """Of the text that is found, as UTF-8."""
    pages: int = 10_000
    memory_bytes: int = 1_500_000_000
    """The address space of the process that reads the file."""
    blocks: int = 500_000
    """Of paragraphs, headings, lists, tables: what is done with a document costs something for each."""
    cpu_seconds: int = 30
    wall_seconds: int = 120


class DocumentError(CallerError):
    """A file cannot be added; the message is one sentence that names it and says what to do."""


class UnreadableFile(Exception):  # noqa: N818 - it says what the file is
    """What is wrong with a file, as the rest of a sentence that begins with its name."""
