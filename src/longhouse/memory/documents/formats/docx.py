"""DOCX: headings, paragraphs, lists with their numbers, and tables. Deleted and hidden text does not become text."""

import io
import re
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from typing import Any, Final

import docx
import msgspec
from docx.document import Document
from docx.opc.constants import RELATIONSHIP_TYPE
from docx.opc.exceptions import OpcError
from docx.oxml.ns import qn
from lxml import etree

from longhouse.memory.documents import clean, detect
from longhouse.memory.documents.draft import DraftDocument
from longhouse.memory.documents.formats import tables
from longhouse.memory.documents.parsed import Block, ParseLimits, UnreadableFile

_MAX_PARTS: Final = 10_000
_MAX_SPAN: Final = 50
_DAMAGED: Final = "is a damaged DOCX: open it and save it again"
_P, _TBL, _TR, _TC, _R = qn("w:p"), qn("w:tbl"), qn("w:tr"), qn("w:tc"), qn("w:r")
_VAL: Final = qn("w:val")
_GONE: Final = frozenset(
    {
        *(qn("w:del"), qn("w:moveFrom"), qn("w:pPr"), qn("w:rPr"), qn("w:instrText"), qn("w:delText"), qn("w:sectPr")),
        "{http://schemas.openxmlformats.org/markup-compatibility/2006}Fallback",
    }
)
_BREAKS: Final[Mapping[str, str]] = {qn("w:tab"): " ", qn("w:br"): "\n", qn("w:cr"): "\n", qn("w:noBreakHyphen"): "-"}


def read(content: bytes, limits: ParseLimits) -> DraftDocument:
    """The body of the document."""
    _check_archive(content, limits)
    try:
        document = docx.Document(io.BytesIO(content))
        title = _title(document)
        numbering = _Numbering.of(document)
    # What a package raises whose parts are missing, cut or not what they say.
    except (
        OpcError,
        zipfile.BadZipFile,
        etree.XMLSyntaxError,
        zlib.error,
        KeyError,
        ValueError,
        AttributeError,
        OSError,
    ):
        raise UnreadableFile(_DAMAGED) from None
    if document.element.getroottree().docinfo.internalDTD is not None:
        raise UnreadableFile("declares XML entities, which no DOCX does: open it and save it again")
    blocks = list(_DocumentBody(numbering).blocks(document.element.body))
    first = next((block.text for block in blocks if block.kind == "heading"), "")
    return DraftDocument(blocks, title=title or first)


def _check_archive(content: bytes, limits: ParseLimits) -> None:
    """Refuses files that are no DOCX or declare too much content; no part is read beyond its declared size."""
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            parts = archive.infolist()
    except (zipfile.BadZipFile, ValueError, NotImplementedError, OSError):
        raise UnreadableFile(_DAMAGED) from None
    names = {part.filename for part in parts}
    if "[Content_Types].xml" not in names or not any(name.startswith("word/") for name in names):
        raise UnreadableFile(f"has a format that cannot be read: {detect.KNOWN}")
    if any(part.flag_bits & 1 for part in parts):
        raise UnreadableFile("is protected by a password: save it without one")
    unpacked = sum(part.file_size for part in parts)
    if unpacked > limits.unpacked_bytes or len(parts) > _MAX_PARTS:
        most = f"a DOCX may have {limits.unpacked_bytes // 1_000_000} MB in {_MAX_PARTS} parts"
        raise UnreadableFile(f"unpacks to {unpacked / 1e6:,.1f} MB in {len(parts)} parts, and {most}")


def _title(document: Document) -> str:
    # Not `document.core_properties`: that makes up a title where there is none.
    try:
        part = document.part.package.part_related_by(RELATIONSHIP_TYPE.CORE_PROPERTIES)
    except KeyError:
        return ""
    return clean.one_line(part.core_properties.title or "")


class _ListLevel(msgspec.Struct):
    """How one level of a list is numbered."""

    numbered: bool = True
    text: str = ""
    start: int = 1


class _Style(msgspec.Struct):
    level: int = 0
    """Of a heading."""
    number: tuple[str, int] | None = None
    contents: bool = False
    """Whether it is a line of the table of contents that Word writes: the headings say the same."""


class _Numbering(msgspec.Struct):
    """Styles and lists of a document, and how far each list has counted."""

    styles: Mapping[str, _Style]
    lists: Mapping[str, tuple[str, Mapping[int, _ListLevel]]]
    """For each list its template, which counts, and its levels."""
    counts: dict[str, dict[int, int]] = msgspec.field(default_factory=dict)

    @classmethod
    def of(cls, document: Document) -> "_Numbering":
        return cls(styles=_styles(document.styles.element), lists=_lists(_numbering_part(document)))

    def label(self, number: tuple[str, int]) -> str:
        """The number of the next item of a list, `- ` without one; empty for an unknown list."""
        name, depth = number
        template, levels = self.lists.get(name, ("", {}))
        level = levels.get(depth)
        if level is None:
            return ""
        if not level.numbered:
            return "-"
        counts = self.counts.setdefault(template, {})
        counts[depth] = counts.get(depth, level.start - 1) + 1
        for deeper in [one for one in counts if one > depth]:
            del counts[deeper]
        return re.sub(r"%([1-9])", lambda found: self._count(counts, levels, int(found[1]) - 1), level.text)[:40]

    @staticmethod
    def _count(counts: Mapping[int, int], levels: Mapping[int, _ListLevel], depth: int) -> str:
        return str(counts.get(depth, levels[depth].start if depth in levels else 1))


def _styles(root: Any) -> dict[str, _Style]:
    found = {style.get(qn("w:styleId")): style for style in root.iterchildren(qn("w:style"))}
    return {name: _style(style, found) for name, style in found.items() if name}


def _style(style: Any, all_styles: Mapping[str | None, Any]) -> _Style:
    """What a style says, and those it is based on."""
    result = _Style()
    seen: set[str | None] = set()
    while style is not None and style.get(qn("w:styleId")) not in seen:
        seen.add(style.get(qn("w:styleId")))
        name, properties = (_value(style, "w:name") or "").lower(), style.find(qn("w:pPr"))
        result.level = result.level or _named_level(name) or _own_level(properties)
        result.contents = result.contents or re.fullmatch(r"toc ([1-9]|heading)", name) is not None
        result.number = result.number or _number(properties)
        style = all_styles.get(_value(style, "w:basedOn"))
    return result


def _named_level(name: str) -> int:
    if name == "title":
        return 1
    found = re.fullmatch(r"heading ([1-9])", name)
    return min(6, int(found[1])) if found else 0


def _numbering_part(document: Document) -> Any:
    try:
        part: Any = document.part.part_related_by(RELATIONSHIP_TYPE.NUMBERING)
    except KeyError:
        return None
    return part.element


def _lists(root: Any) -> dict[str, tuple[str, Mapping[int, _ListLevel]]]:
    if root is None:
        return {}
    templates: dict[str, dict[int, _ListLevel]] = {}
    for template in root.iterchildren(qn("w:abstractNum")):
        levels = {_depth(level.get(qn("w:ilvl"))): _level(level) for level in template.iterchildren(qn("w:lvl"))}
        templates[template.get(qn("w:abstractNumId")) or ""] = levels
    lists: dict[str, tuple[str, Mapping[int, _ListLevel]]] = {}
    for one in root.iterchildren(qn("w:num")):
        template = _value(one, "w:abstractNumId") or ""
        # A list that begins anew has its own count.
        own = one.get(qn("w:numId")) if one.find(f".//{qn('w:startOverride')}") is not None else ""
        lists[one.get(qn("w:numId")) or ""] = (f"{template}/{own}", templates.get(template, {}))
    return lists


def _level(level: Any) -> _ListLevel:
    start = _value(level, "w:start") or "1"
    return _ListLevel(
        numbered=_value(level, "w:numFmt") not in ("bullet", "none", None),
        text=_value(level, "w:lvlText") or "",
        start=int(start) if re.fullmatch(r"\d{1,6}", start) else 1,
    )


def _depth(value: str | None) -> int:
    return int(value) if value and re.fullmatch(r"[0-8]", value) else 0


def _number(properties: Any) -> tuple[str, int] | None:
    """List and depth of a paragraph; list 0 means none."""
    name = _value(properties, "w:numPr", "w:numId")
    return (name, _depth(_value(properties, "w:numPr", "w:ilvl"))) if name else None


def _value(element: Any, *path: str) -> str | None:
    """The value of the element at this path below another."""
    for step in path:
        element = element.find(qn(step)) if element is not None else None
    return element.get(_VAL) if element is not None else None


class _DocumentBody:
    """The blocks of a document's body, in order."""

    def __init__(self, numbering: _Numbering) -> None:
        self.numbering = numbering
        self.items: list[str] = []

    def blocks(self, body: Any) -> Iterator[Block]:
        """Paragraphs and tables, also those inside of content controls and insertions."""
        for element in _inner(body):
            block = self._paragraph(element) if element.tag == _P else _table(element)
            if block is not None:
                yield from self._list()
                yield block
        yield from self._list()

    def _list(self) -> Iterator[Block]:
        if self.items:
            yield Block("list", "\n".join(self.items))
            self.items = []

    def _paragraph(self, paragraph: Any) -> Block | None:
        """A heading or a text; an item of a list is kept until the list ends."""
        text = clean.squeezed(_text(paragraph))
        properties = paragraph.find(qn("w:pPr"))
        style = self.numbering.styles.get(_value(properties, "w:pStyle") or "", _Style())
        if not text or style.contents:
            return None
        number = _number(properties) or style.number
        label = self.numbering.label(number) if number else ""
        level = _own_level(properties) or style.level
        if level:
            return Block("heading", text if label in ("", "-") else f"{label} {text}", level=level)
        if label and number:
            self.items.append("  " * number[1] + f"{label} {text}".replace("\n", " "))
            return None
        return Block("text", text)


def _own_level(properties: Any) -> int:
    outline = _value(properties, "w:outlineLvl")
    return int(outline) + 1 if outline and outline in "012345" else 0


def _inner(body: Any) -> Iterator[Any]:
    stack = list(reversed(body))
    while stack:
        element = stack.pop()
        if element.tag in (_P, _TBL):
            yield element
        elif isinstance(element.tag, str) and element.tag not in _GONE:
            stack.extend(reversed(element))


def _text(element: Any) -> str:
    """The text that is shown; the XML is nested at most 256 deep, its parser sees to that."""
    parts: list[str] = []
    for child in element:
        if not isinstance(child.tag, str) or child.tag in _GONE:
            continue
        if child.tag == _R and _is_hidden(child):
            continue
        if child.tag == qn("w:t"):
            parts.append(child.text or "")
        elif child.tag in _BREAKS:
            parts.append(_BREAKS[child.tag])
        else:
            parts.append(_text(child))
            if child.tag == _P:
                parts.append("\n")
    return "".join(parts)


def _is_hidden(run: Any) -> bool:
    mark = run.find(f"{qn('w:rPr')}/{qn('w:vanish')}")
    return mark is not None and mark.get(_VAL) not in ("0", "false", "off")


def _table(table: Any) -> Block | None:
    rows: list[list[str]] = []
    for row in table.iterchildren(_TR):
        rows.append(_row(_cells_of(row), rows[-1] if rows else []))
    rows = [row for row in rows if any(row)]
    if not rows:
        return None
    if max(map(len, rows)) == 1:
        return Block("text", "\n".join(row[0] for row in rows))
    return Block("table", tables.markdown(rows))


def _cells_of(row: Any) -> Iterator[Any]:
    for child in row:
        if child.tag == _TC:
            yield child
        elif child.tag == qn("w:sdt"):
            yield from child.iterfind(f"{qn('w:sdtContent')}/{_TC}")


def _row(cells: Iterator[Any], above: list[str]) -> list[str]:
    """A row of a table; a cell that goes on from above has the same text."""
    row: list[str] = []
    for cell in cells:
        properties = cell.find(qn("w:tcPr"))
        merged = properties.find(qn("w:vMerge")) if properties is not None else None
        text = clean.one_line(_text(cell))
        if merged is not None and merged.get(_VAL) != "restart" and len(row) < len(above):
            text = above[len(row)]
        span = _value(properties, "w:gridSpan") or "1"
        row += [text, *[""] * (min(_MAX_SPAN, int(span)) - 1 if re.fullmatch(r"\d{1,4}", span) else 0)]
    return row
