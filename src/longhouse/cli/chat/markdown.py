"""Markdown on a terminal while it is written: blocks that are whole are final, the last one may still change."""

import re
from typing import Final

from markdown_it import MarkdownIt
from rich.console import Console, ConsoleOptions, RenderResult
from rich.markdown import Markdown
from rich.segment import Segment

from longhouse.cli.chat.plain import harmless
from longhouse.journal.visible_text import readable

_PARSER: Final = MarkdownIt().enable("table")
_TURNS: Final = re.compile("[\u2028-\u202e\u2066-\u2069]")
"""Line ends and directions of writing that make other text read differently."""


def visible(text: str) -> str:
    """Text that changes nothing on the terminal but the place where it stands."""
    return _TURNS.sub(lambda found: readable(found[0]), harmless(text))


class SafeMarkdown:
    """Markdown whose text is made visible after it was laid out: entities such as `&#x202e;` become characters there.

    Addresses of links are printed, never sent as a sequence that hides them behind other text.
    """

    def __init__(self, text: str) -> None:
        self._text = text

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for segment in console.render(Markdown(self._text, hyperlinks=False, code_theme="ansi_dark"), options):
            if not segment.control:
                yield Segment(visible(segment.text), segment.style)


def finished(text: str) -> int:
    """How many characters at the beginning are whole blocks, which no later text can change."""
    # A line that is still written may become anything: "2" is a paragraph, "2." goes on with a list.
    lines = text.split("\n")[:-1]
    tokens = _PARSER.parse("\n".join(lines))
    starts = [token.map[0] for token in tokens if token.level == 0 and token.map and token.nesting >= 0]
    return sum(len(line) + 1 for line in lines[: starts[-1]]) if len(starts) > 1 else 0
