"""The process that reads one file: from standard input to frames on standard output, within limits."""

import importlib
import json
import resource
import signal
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Final

from msgspec.structs import replace

from longhouse import confinement
from longhouse.confinement import framed
from longhouse.memory.documents import detect, draft
from longhouse.memory.documents.parsed import Format, ParsedDocument, ParseLimits, UnreadableFile

BLOCKS_PER_FRAME: Final = 100

_COMPLAINTS: Final = 1_000_000
"""Bytes this process may write to a file: there is one, for its errors."""
_HEAD: Final = 4_096
_PARSERS: Final[Mapping[Format, str]] = {
    "markdown": "longhouse.memory.documents.formats.markdown",
    "html": "longhouse.memory.documents.formats.html",
    "pdf": "longhouse.memory.documents.formats.pdf.reader",
    "docx": "longhouse.memory.documents.formats.docx",
    "text": "longhouse.memory.documents.formats.text",
}
"""Modules, each with a function `read` from the content and the limits to a draft."""


def main() -> None:
    """Says the document, or why there is none. Whatever else a parser raises ends this process: the file is damaged."""
    job = json.loads(sys.argv[1])
    limits = ParseLimits(**job["limits"])
    confine(limits)
    try:
        sent = list(frames_of(document_of(sys.stdin.buffer.read(limits.file_bytes + 1), job["name"], limits)))
    except UnreadableFile as error:
        sent = [framed(str(error))]
    except MemoryError:
        sent = [framed(f"needs more than {limits.memory_bytes // 1_000_000} MB of memory to read: split it")]
    except RecursionError:
        sent = [framed("cannot be read: it is nested too deeply")]
    for frame in sent:
        sys.stdout.buffer.write(frame)
    sys.stdout.buffer.flush()


def document_of(content: bytes, name: str, limits: ParseLimits) -> ParsedDocument:
    """The document that these bytes are."""
    kind = detect.format_of(content[:_HEAD], name)
    found: draft.DraftDocument = importlib.import_module(_PARSERS[kind]).read(content, limits)
    return draft.finish(found, name, kind, limits)


def frames_of(document: ParsedDocument) -> Iterator[bytes]:
    """The document as it is sent: in pieces, so that the server is never busy with one for long."""
    for start in range(0, len(document.blocks), BLOCKS_PER_FRAME):
        yield framed(document.blocks[start : start + BLOCKS_PER_FRAME])
    yield framed(replace(document, blocks=()))


def confine(limits: ParseLimits) -> None:
    """Limits of this process; it ends with the server, and on systems without such a signal by its own timer."""
    confinement.confine()
    signal.alarm(limits.wall_seconds + 1)
    # The soft limit says SIGXCPU, which tells the server why; the hard one only kills.
    _limit(resource.RLIMIT_CPU, limits.cpu_seconds, limits.cpu_seconds + 1)
    _limit(resource.RLIMIT_AS, limits.memory_bytes)
    _limit(resource.RLIMIT_FSIZE, _COMPLAINTS)
    _limit(resource.RLIMIT_CORE, 0)
    _limit(resource.RLIMIT_NPROC, 0)


def _limit(what: int, most: int, hard: int | None = None) -> None:
    # A system that does not know a limit, or has a stricter one, says ValueError.
    with suppress(ValueError):
        resource.setrlimit(what, (most, hard or most))


if __name__ == "__main__":
    main()
