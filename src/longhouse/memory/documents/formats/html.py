"""HTML: what a person would see of it. Scripts, styles, comments and hidden parts never become text."""

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from lxml import etree
from lxml.html import HtmlElement, HTMLParser, document_fromstring

from longhouse.memory.documents import clean
from longhouse.memory.documents.draft import DraftDocument
from longhouse.memory.documents.formats import tables, text
from longhouse.memory.documents.parsed import Block, ParseLimits, UnreadableFile

_UNSEEN: Final = frozenset((
    "script", "style", "template", "noscript", "iframe", "frame", "object", "embed", "applet", "svg", "canvas", "audio",
    "video", "map", "nav", "select", "option", "datalist", "textarea", "input", "button", "meter", "progress", "link",
    "meta", "base", "param", "source", "track",
))  # fmt: skip
_BLOCKS: Final = frozenset((
    "address", "article", "aside", "blockquote", "body", "caption", "center", "dd", "details", "dialog", "dir", "div",
    "dl", "dt", "fieldset", "figcaption", "figure", "footer", "form", "header", "hr", "html", "legend", "li", "main",
    "menu", "ol", "p", "pre", "section", "summary", "table", "tbody", "td", "tfoot", "th", "thead", "tr", "ul",
))  # fmt: skip
_HEADINGS: Final[Mapping[str, int]] = {f"h{level}": level for level in range(1, 7)}
_LISTS: Final = frozenset({"ul", "ol", "menu", "dir"})
_LAYOUT: Final = (*_HEADINGS, "table")
_HIDING: Final = re.compile(
    r"display:none|visibility:(hidden|collapse)|opacity:0(\.0*)?(;|!|$)|font-size:0(\.0*)?(px|pt|em|rem|%)?(;|!|$)"
)
_RULE: Final = re.compile(r"([^{}]+)\{([^{}]*)\}")
_SIMPLE_SELECTOR: Final = re.compile(r"([a-z][a-z0-9]*)?([.#])([\w-]+)", re.IGNORECASE)
_CHARSET: Final = re.compile(rb"""<meta[^>]{0,200}?charset\s*=\s*["']?\s*([\w.:-]{1,40})""", re.IGNORECASE)
_XML_ENCODING: Final = re.compile(rb"""\s*<\?xml[^>]{0,100}?encoding\s*=\s*["']([\w.:-]{1,40})""")
_PROLOGUE: Final = re.compile(r"\s*(?:<\?xml[^>]*>\s*)?(?:<!doctype[^>\[]*\[.*?\]\s*>)?", re.IGNORECASE | re.DOTALL)
_WHITESPACE: Final = re.compile(r"[ \t\n\r\f]+")
_MAX_SPAN: Final = 50


def read(content: bytes, limits: ParseLimits) -> DraftDocument:
    """Headings, paragraphs, lists, tables and code of a page."""
    return draft_of(_decoded(content))


def draft_of(source: str) -> DraftDocument:
    """The same of text."""
    root = _parsed(clean.cleaned(source))
    titles = [clean.one_line(title.text_content()) for title in root.iter("title")]
    for head in list(root.iter("head")):
        head.getparent().remove(head)
    blocks = _PageReader().read(root)
    top = next((block.text for block in blocks if block.kind == "heading" and block.level == 1), "")
    return DraftDocument(blocks, title=next(filter(None, titles), "") or top)


def _decoded(content: bytes) -> str:
    if content.startswith((b"\xef\xbb\xbf", b"\xff\xfe", b"\xfe\xff")):
        return text.decoded(content)
    found = _CHARSET.search(content[:8192]) or _XML_ENCODING.match(content[:1024])
    encoding = found[1].decode().lower() if found else ""
    # What was just found as ASCII is not in UTF-16, whatever it says.
    encoding = "utf-8" if encoding.startswith("utf-16") else encoding
    return text.declared(content, encoding) if encoding else text.decoded(content)


def _parsed(source: str) -> HtmlElement:
    # A declaration of entities is no HTML: nothing in it is expanded.
    source = _PROLOGUE.sub("", source, count=1)
    # Not `huge_tree`: the parser's own bounds on depth and size stay.
    parser = HTMLParser(encoding="utf-8", no_network=True, remove_comments=True, remove_pis=True)
    try:
        root = document_fromstring(source.encode(), parser=parser)
    except etree.ParserError:
        raise UnreadableFile("holds no text: nothing of it could be found later") from None
    if any(error.type == etree.ErrorTypes.ERR_RESOURCE_LIMIT for error in parser.error_log):
        raise UnreadableFile("cannot be read: it is nested too deeply, or a part of it is too long")
    hiding = _hiding_selectors(root)
    for element in [one for one in root.iter() if _is_hidden(one, hiding)]:
        if element.getparent() is not None:
            element.drop_tree()
    return root


def _hiding_selectors(root: HtmlElement) -> frozenset[tuple[str, str, str]]:
    """Classes and ids that the page's own style sheets hide: (tag or nothing, `.` or `#`, name)."""
    hidden: set[tuple[str, str, str]] = set()
    for sheet in root.iter("style"):
        for selectors, body in _RULE.findall(sheet.text_content()[:1_000_000]):
            if _HIDING.search(_bare(body)):
                found = (_SIMPLE_SELECTOR.fullmatch(one.strip()) for one in selectors.split(","))
                hidden |= {((one[1] or "").lower(), one[2], one[3]) for one in found if one}
    return frozenset(hidden)


def _bare(style: str) -> str:
    return re.sub(r"\s+|/\*.*?\*/", "", style.lower())


def _is_hidden(element: Any, hiding: frozenset[tuple[str, str, str]]) -> bool:
    if not isinstance(element.tag, str):
        return True
    get = element.get
    if element.tag in _UNSEEN or get("hidden") is not None or (get("aria-hidden") or "").lower() == "true":
        return True
    if element.tag == "dialog" and get("open") is None:
        return True
    if (style := get("style")) and _HIDING.search(_bare(style)):
        return True
    names = [(".", name) for name in (get("class") or "").split()] + [("#", get("id") or "")]
    return bool(hiding) and any((tag, *name) in hiding for tag in ("", element.tag) for name in names)


class _PageReader:
    """Walks a page once, and collects its blocks. Not by recursion: pages are nested as their author likes."""

    def __init__(self) -> None:
        self.blocks: list[Block] = []
        self.words: list[str] = []
        """The text since the last block."""
        self.links: list[int] = []
        self.lists: list[int | None] = []
        """For each open list the number of its last item; None for a list without numbers."""
        self.items: list[str] = []
        self.marker = ""

    def read(self, root: HtmlElement) -> list[Block]:
        """All blocks of the page, in order."""
        walk = etree.iterwalk(root, events=("start", "end"))
        for event, element in walk:
            if event == "end":
                self._end(element)
                if element is not root:
                    self.words.append(element.tail or "")
            elif self._whole(element):
                walk.skip_subtree()
            else:
                self._start(element)
        self._flush()
        self._end_lists()
        return self.blocks

    def _whole(self, element: HtmlElement) -> bool:
        """Takes an element with all that is in it, if it is a block of its own."""
        tag = element.tag
        if tag in _HEADINGS:
            self._flush()
            self._end_lists()
            title = clean.one_line(element.text_content()).rstrip("¶# ")
            self.blocks.append(Block("heading", title, level=_HEADINGS[tag]))
        elif tag == "pre":
            self._flush()
            self._add(_code(element))
        elif tag == "table" and not self.lists and (rows := _rows(element)):
            self._flush()
            self.blocks.append(Block("table", tables.markdown(rows)))
        else:
            return False
        return True

    def _start(self, element: HtmlElement) -> None:
        tag = element.tag
        if tag in _BLOCKS:
            self._flush()
        if tag in _LISTS:
            self.lists.append(_first_number(element) if tag == "ol" else None)
        elif tag == "li":
            self._next_item()
        elif tag == "br":
            self.words.append("\x0b")
        elif tag == "img":
            self.words.append(f" {element.get('alt') or ''} ")
        elif tag == "code":
            self.words.append("`")
        elif tag == "a":
            self.links.append(len(self.words))
        elif tag in ("td", "th"):
            self.words.append(" ")
        self.words.append(element.text or "")

    def _end(self, element: HtmlElement) -> None:
        tag = element.tag
        if tag in _BLOCKS:
            self._flush()
        if tag in _LISTS and self.lists:
            self.lists.pop()
            if not self.lists:
                self._end_lists()
        elif tag == "code":
            self.words.append("`")
        elif tag == "a" and self.links:
            self._end_link(self.links.pop(), element.get("href") or "")

    def _end_link(self, start: int, target: str) -> None:
        """Keeps where a link leads, if that is another place and a reader could not tell it from the text."""
        shown = "".join(self.words[start:]).strip()
        if shown and re.match(r"https?://\S+$", target) and target.rstrip("/") != shown.rstrip("/"):
            self.words[start:] = [f"[{shown}]({target})"]

    def _next_item(self) -> None:
        if not self.lists:
            self.marker = "- "
            return
        number = self.lists[-1]
        if number is not None:
            self.lists[-1] = number + 1
        sign = "- " if number is None else f"{number}. "
        self.marker = "  " * min(len(self.lists) - 1, 8) + sign

    def _flush(self) -> None:
        """Ends the paragraph. In a list it is an item, or the rest of one."""
        joined = clean.squeezed(_WHITESPACE.sub(_space, "".join(self.words)).replace("\x0b", "\n"))
        self.words, self.links = [], []
        if joined:
            self._add(Block("text", joined))

    def _add(self, block: Block) -> None:
        if not self.lists and not self.marker:
            self.blocks.append(block)
            return
        indent = " " * len(self.marker) if self.marker else "  " * min(len(self.lists), 8)
        self.items.append(self.marker + block.text.replace("\n", "\n" + indent) if self.marker else indent + block.text)
        self.marker = ""
        if not self.lists:
            self._end_lists()

    def _end_lists(self) -> None:
        if self.items:
            self.blocks.append(Block("list", "\n".join(self.items)))
        self.lists, self.items, self.marker = [], [], ""


def _space(found: re.Match[str]) -> str:
    """Chinese lines that were broken in the source are joined without a space."""
    if "\n" not in found[0] or not (found.start() and found.end() < len(found.string)):
        return " "
    return clean.joint(found.string[found.start() - 1], found.string[found.end()])


def _first_number(element: HtmlElement) -> int:
    start = element.get("start") or "1"
    return int(start) if re.fullmatch(r"\d{1,9}", start) else 1


def _code(element: HtmlElement) -> Block:
    """Code between fences that the code itself does not hold."""
    source = element.text_content().strip("\n").rstrip()
    if not source:
        return Block("text", "")
    names = " ".join(one.get("class") or "" for one in element.iter("pre", "code"))
    language = re.search(r"\blang(?:uage)?-([\w+#-]{1,30})", names)
    longest = max((len(run) for run in re.findall("`+", source)), default=0)
    fence = "`" * max(3, longest + 1)
    return Block("code", f"{fence}{language[1] if language else ''}\n{source}\n{fence}")


def _rows(table: HtmlElement) -> list[list[str]]:
    """The cells of a table, or nothing if it only arranges the page: it holds headings or tables, or has one column."""
    if next(table.iterdescendants(*_LAYOUT), None) is not None:
        return []
    rows = tables.spanned(_cells(row) for row in table.iter("tr"))
    return rows if max(map(len, rows), default=0) > 1 else []


def _cells(row: HtmlElement) -> Iterator[tuple[str, int, int]]:
    for cell in row.iterchildren("td", "th"):
        yield _cell_text(cell), _span(cell, "colspan"), _span(cell, "rowspan")


def _cell_text(cell: HtmlElement) -> str:
    parts: list[str] = []
    for event, element in etree.iterwalk(cell, events=("start", "end")):
        if event == "start":
            parts += (" " if element.tag in _BLOCKS or element.tag == "br" else "", element.text or "")
        elif element is not cell:
            parts += (" " if element.tag in _BLOCKS else "", element.tail or "")
    return clean.one_line("".join(parts))


def _span(cell: HtmlElement, name: str) -> int:
    value = cell.get(name) or "1"
    return min(_MAX_SPAN, max(1, int(value))) if re.fullmatch(r"\d{1,4}", value) else 1
