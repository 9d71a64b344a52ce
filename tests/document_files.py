"""Files for tests of documents: a small writer of PDFs in any script, and DOCX files by hand."""

import io
import zipfile
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Drawn:
    """A text at a place of a page; the origin is the lower left corner of 595 x 842 points."""

    text: str
    x: float = 60
    y: float = 780
    size: float = 11
    bold: bool = False


@dataclass(frozen=True)
class Bookmark:
    title: str
    page: int
    level: int = 1


def flow(*lines: str | tuple[float, str], top: float = 780) -> list[Drawn]:
    """Lines below each other; a pair has its size, and more room above; an empty line ends a paragraph."""
    drawn: list[Drawn] = []
    for line in lines:
        size, text = line if isinstance(line, tuple) else (11.0, line)
        top -= size * (2.2 if isinstance(line, tuple) else 1.3)
        if text:
            drawn.append(Drawn(text, y=top, size=size))
    return drawn


def pdf(pages: Iterable[Sequence[Drawn]], bookmarks: Sequence[Bookmark] = (), title: str = "") -> bytes:
    """A PDF whose fonts say which letters they show, so that every script can be read from it."""
    objects: dict[int, bytes] = {}
    font, bold, tounicode, catalog, tree, info = 1, 4, 7, 8, 9, 10
    for number, name in ((font, b"Helvetica"), (bold, b"Helvetica-Bold")):
        objects[number] = (
            b"<</Type/Font/Subtype/Type0/BaseFont/%s/Encoding/Identity-H/DescendantFonts[%d 0 R]/ToUnicode %d 0 R>>"
            % (name, number + 1, tounicode)
        )
        objects[number + 1] = (
            b"<</Type/Font/Subtype/CIDFontType2/BaseFont/%s/CIDSystemInfo<</Registry(Adobe)/Ordering(Identity)"
            b"/Supplement 0>>/FontDescriptor %d 0 R/DW 550>>" % (name, number + 2)
        )
        objects[number + 2] = (
            b"<</Type/FontDescriptor/FontName/%s/Flags %d/FontBBox[0 -200 1000 900]/ItalicAngle 0/Ascent 800"
            b"/Descent -200/CapHeight 700/StemV %d>>"
            % (name, 262176 if number == bold else 32, 160 if number == bold else 80)
        )
    objects[tounicode] = _stream(_cmap())
    kids = []
    number = 11
    for page in pages:
        shown = b"".join(
            b"BT /F%d %g Tf 1 0 0 1 %g %g Tm <%s> Tj ET\n"
            % (2 if one.bold else 1, one.size, one.x, one.y, one.text.encode("utf-16-be").hex().encode())
            for one in page
        )
        objects[number] = (
            b"<</Type/Page/Parent %d 0 R/MediaBox[0 0 595 842]/Resources<</Font<</F1 %d 0 R/F2 %d 0 R>>>>"
            b"/Contents %d 0 R>>" % (tree, font, bold, number + 1)
        )
        objects[number + 1] = _stream(shown)
        kids.append(number)
        number += 2
    objects[tree] = b"<</Type/Pages/Count %d/Kids[%s]>>" % (len(kids), b" ".join(b"%d 0 R" % kid for kid in kids))
    objects[info] = b"<</Title %s>>" % _text(title)
    outlines = _outline(objects, number, bookmarks, kids) if bookmarks else b""
    objects[catalog] = b"<</Type/Catalog/Pages %d 0 R%s>>" % (tree, outlines)
    return written(objects, catalog, info)


def _outline(objects: dict[int, bytes], root: int, bookmarks: Sequence[Bookmark], pages: Sequence[int]) -> bytes:
    ids = [root + 1 + n for n in range(len(bookmarks))]
    parents: list[int] = []
    open_at = {0: root}
    for one, own in zip(bookmarks, ids, strict=True):
        parents.append(open_at[one.level - 1])
        open_at[one.level] = own
    for n, (one, own, parent) in enumerate(zip(bookmarks, ids, parents, strict=True)):
        links = b"/Parent %d 0 R" % parent
        later = [other for other, its in zip(ids[n + 1 :], parents[n + 1 :], strict=True) if its == parent]
        links += b"/Next %d 0 R" % later[0] if later else b""
        links += _children(own, ids, parents)
        objects[own] = b"<</Title %s%s/Dest[%d 0 R/Fit]>>" % (_text(one.title), links, pages[one.page - 1])
    objects[root] = b"<</Type/Outlines%s>>" % _children(root, ids, parents)
    return b"/Outlines %d 0 R" % root


def _children(own: int, ids: Sequence[int], parents: Sequence[int]) -> bytes:
    children = [child for child, parent in zip(ids, parents, strict=True) if parent == own]
    return b"/First %d 0 R/Last %d 0 R/Count %d" % (children[0], children[-1], len(children)) if children else b""


def written(objects: dict[int, bytes], catalog: int, info: int | None = None, extra: bytes = b"") -> bytes:
    """A PDF of these objects."""
    file = io.BytesIO()
    file.write(b"%PDF-1.7\n")
    places = {}
    for number in sorted(objects):
        places[number] = file.tell()
        file.write(b"%d 0 obj\n%s\nendobj\n" % (number, objects[number]))
    start = file.tell()
    size = max(objects) + 1
    file.write(b"xref\n0 %d\n0000000000 65535 f \n" % size)
    for number in range(1, size):
        file.write(b"%010d 00000 n \n" % places[number] if number in places else b"0000000000 65535 f \n")
    about = b"/Info %d 0 R" % info if info else b""
    file.write(
        b"trailer\n<</Size %d/Root %d 0 R%s%s>>\nstartxref\n%d\n%%%%EOF\n" % (size, catalog, about, extra, start)
    )
    return file.getvalue()


def _stream(data: bytes) -> bytes:
    packed = zlib.compress(data)
    return b"<</Length %d/Filter/FlateDecode>>stream\n%s\nendstream" % (len(packed), packed)


def _text(value: str) -> bytes:
    return b"<feff%s>" % value.encode("utf-16-be").hex().encode()


def _cmap() -> bytes:
    lines = [b"/CIDInit /ProcSet findresource begin 12 dict begin begincmap /CMapType 2 def"]
    lines.append(b"1 begincodespacerange <0000> <ffff> endcodespacerange")
    for start in range(0, 256, 64):
        lines.append(b"64 beginbfrange")
        lines += [b"<%02x00> <%02xff> <%02x00>" % (high, high, high) for high in range(start, start + 64)]
        lines.append(b"endbfrange")
    return b"\n".join((*lines, b"endcmap end end"))


_W = 'xmlns:w="http://schemas.openxmlformats.org/wordprocessingml/2006/main"'
_TYPES = (
    '<?xml version="1.0" encoding="UTF-8"?><Types xmlns="http://schemas.openxmlformats.org/package/2006/content-types">'
    '<Default Extension="rels" ContentType="application/vnd.openxmlformats-package.relationships+xml"/>'
    '<Default Extension="xml" ContentType="application/xml"/>'
    '<Override PartName="/word/document.xml" '
    'ContentType="application/vnd.openxmlformats-officedocument.wordprocessingml.document.main+xml"/></Types>'
)
_RELATIONS = (
    '<?xml version="1.0" encoding="UTF-8"?>'
    '<Relationships xmlns="http://schemas.openxmlformats.org/package/2006/relationships"><Relationship Id="rId1" '
    'Type="http://schemas.openxmlformats.org/officeDocument/2006/relationships/officeDocument" '
    'Target="word/document.xml"/></Relationships>'
)


def raw_docx(body: str, *, before: str = "", parts: dict[str, bytes] | None = None) -> bytes:
    """A DOCX whose document is this XML; `before` comes ahead of the root element."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("[Content_Types].xml", _TYPES)
        archive.writestr("_rels/.rels", _RELATIONS)
        archive.writestr(
            "word/document.xml",
            f'<?xml version="1.0" encoding="UTF-8"?>{before}<w:document {_W}><w:body>{body}</w:body></w:document>',
        )
        for name, content in (parts or {}).items():
            archive.writestr(name, content)
    return file.getvalue()
