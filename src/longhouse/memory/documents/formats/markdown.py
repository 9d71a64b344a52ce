"""Markdown: rendered to HTML and read as that, so that what HTML hides is hidden here too."""

import re
from typing import Final

from markdown_it import MarkdownIt

from longhouse.memory.documents import clean
from longhouse.memory.documents.draft import DraftDocument
from longhouse.memory.documents.formats import html, text
from longhouse.memory.documents.parsed import ParseLimits

_FRONT_MATTER: Final = re.compile(r"---[ \t]*\n(.{0,20000}?)\n(?:---|\.\.\.)[ \t]*(?:\n|\Z)", re.DOTALL)
_TITLE: Final = re.compile(r"^title:[ \t]*(.+)$", re.MULTILINE)


def read(content: bytes, limits: ParseLimits) -> DraftDocument:
    """Headings, paragraphs, lists, tables and code."""
    source = clean.cleaned(text.decoded(content))
    front = _FRONT_MATTER.match(source)
    named = front and _TITLE.search(front[1])
    body = source[front.end() :] if front else source
    rendered = (
        MarkdownIt("commonmark", {"html": True, "maxNesting": 100}).enable(["table", "strikethrough"]).render(body)
    )
    # An element, so that a file of bare text is a page too.
    draft = html.draft_of(f"<body>{rendered}</body>")
    return DraftDocument(draft.blocks, title=named[1].strip(" \"'") if named else draft.title)
