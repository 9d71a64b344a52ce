"""Which format a file has: what its first bytes say, then its name."""

import re
from pathlib import PurePosixPath
from typing import Final

from longhouse.memory.documents.parsed import Format, UnreadableFile

SUFFIXES: Final[dict[str, Format]] = {
    ".md": "markdown",
    ".markdown": "markdown",
    ".html": "html",
    ".htm": "html",
    ".xhtml": "html",
    ".pdf": "pdf",
    ".docx": "docx",
    ".txt": "text",
    ".text": "text",
    ".log": "text",
    ".rst": "text",
}
"""The ends of names that are read."""
KNOWN: Final = "Longhouse reads Markdown (.md), HTML, PDF, DOCX and plain text (.txt)"

_OFFICE: Final = b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1"
_OTHERS: Final = (
    b"\x89PNG", b"\xff\xd8\xff", b"GIF8", b"\x1f\x8b", b"BZh", b"7z\xbc\xaf", b"\xfd7zXZ", b"Rar!", b"\x7fELF",
    b"MZ\x90", b"RIFF", b"ID3", b"OggS", b"SQLite format 3", b"{\\rtf",
)  # fmt: skip
_HTML: Final = re.compile(
    rb"\s*(?:<!--.*?-->\s*|<\?xml[^>]*>\s*)*<(?:!doctype\s+html|html)\b", re.IGNORECASE | re.DOTALL
)


def format_of(head: bytes, name: str) -> Format:
    """The format of a file that begins with these bytes."""
    if not head:
        raise UnreadableFile("is empty")
    suffix = PurePosixPath(name.replace("\\", "/")).suffix.lower()
    if head.startswith(_OFFICE):
        raise UnreadableFile("is an old or a protected Office file: save it as .docx without a password")
    if b"%PDF-" in head[:1024]:
        return "pdf"
    if head.startswith(b"PK\x03\x04"):
        return "docx"
    if head.startswith(_OTHERS) or (suffix and suffix not in SUFFIXES):
        raise UnreadableFile(f"has a format that cannot be read: {KNOWN}")
    if suffix in (".pdf", ".docx"):
        raise UnreadableFile(
            f"is not a {suffix[1:].upper()} file, whatever its name says: it is damaged, or it has another format"
        )
    if not suffix:
        return "html" if _HTML.match(head) else "text"
    return SUFFIXES[suffix]
