"""Markdown on a terminal while it is written: blocks that are whole are final, the last one may still change."""

from collections.abc import Iterable
from typing import Final

from markdown_it import MarkdownIt
from markdown_it.token import Token
from rich.console import Console, ConsoleOptions, RenderResult
from rich.markdown import Markdown
from rich.segment import Segment
from rich.text import Text

from longhouse.journal.words.visible_text import readable_lines

COLUMNS: Final = 50
CELLS: Final = 2_000
"""Of a table that is laid out, at most: a few kilobytes can ask for a million cells, and Rich takes its time."""
PARSED: Final = 30_000
"""Cells that a text could ask for, before it is parsed at all."""
# HTML is text here: Rich leaves its tokens out.
_PARSER: Final = MarkdownIt("commonmark", {"html": False}).enable(["strikethrough", "table"])


class SafeMarkdown:
    """Markdown whose text is made visible after it was laid out: entities such as `&#x202e;` become characters there.

    Addresses of links are printed, never sent as a sequence that hides them behind other text. What cannot be laid out
    is printed as it was written.
    """

    def __init__(self, text: str) -> None:
        self._text = text

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for segment in console.render(self._laid_out(), options):
            if not segment.control:
                yield Segment(readable_lines(segment.text), segment.style)

    def _laid_out(self) -> Markdown | Text:
        if not _is_wide(self._text):
            drawn = Markdown("", hyperlinks=False, code_theme="ansi_dark")
            drawn.parsed = _PARSER.parse(self._text)
            if not _is_deep(drawn.parsed) and _cells(drawn.parsed) <= CELLS:
                return drawn
        return Text(self._text)


def finished(text: str) -> int:
    """How many characters at the beginning are whole blocks, which no later text can change."""
    # A line that is still written may become anything: "2" is a paragraph, "2." goes on with a list.
    lines = text.split("\n")[:-1]
    if _is_wide(text):
        return 0
    tokens = _PARSER.parse("\n".join(lines))
    starts = [token.map[0] for token in tokens if token.level == 0 and token.map and token.nesting >= 0]
    return sum(len(line) + 1 for line in lines[: starts[-1]]) if len(starts) > 1 else 0


def _is_wide(text: str) -> bool:
    """Whether its tables could have so many cells that parsing them takes long: each line below a heading is a row."""
    lines = text.split("\n")
    most = max(line.count("|") for line in lines)
    return most > COLUMNS or most * len(lines) > PARSED


def _cells(tokens: Iterable[Token]) -> int:
    return sum(token.type in ("th_open", "td_open") for token in tokens)


def _is_deep(tokens: Iterable[Token]) -> bool:
    """Whether the text is nested so deep that the parser leaves the innermost out."""
    return any(token.level >= _PARSER.options.maxNesting - 1 for token in tokens)
