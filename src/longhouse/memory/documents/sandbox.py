"""Reads a file in a process of its own, within limits: the server never runs a parser on what people send.

Owners take turns, so that one who adds many files keeps nobody from adding one.
"""

import asyncio
import io
import json
import os
import signal
import stat
import sys
import tempfile
from collections import Counter
from collections.abc import AsyncIterator, Hashable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import IO, Final
from weakref import WeakKeyDictionary

import msgspec
import structlog
from msgspec.structs import replace

from longhouse import confinement
from longhouse.errors import CallerError
from longhouse.memory.documents.parsed import Block, DocumentError, Frame, ParsedDocument, ParseLimits, UnreadableFile

log = structlog.get_logger(__name__)

AT_ONCE: Final = 2
"""Files that one server reads at the same time: each takes a core, and its process may take its whole memory."""
PLACES: Final = 8
"""Uploads of one owner that one server takes at the same time: one is read, the others wait."""
RETRY_AFTER: Final = 5
WORKER: Final = "longhouse.memory.documents.worker"
COMMAND: Final[tuple[str, ...]] = (sys.executable, "-P", "-m", WORKER)
_DEFAULTS: Final = ParseLimits()
_TOO_LONG: Final = frozenset({-signal.SIGXCPU, -signal.SIGALRM})
# What a Python outside the usual places needs to start; secrets of the server stay here.
_KEPT_VARIABLES: Final = ("PATH", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH")

_frames: Final[msgspec.msgpack.Decoder[Frame]] = msgspec.msgpack.Decoder(Frame)
_slots: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Semaphore] = WeakKeyDictionary()


class ReadingQueue:
    """Lets files of different owners be read at the same time, of one owner one by one; who waits longest is next."""

    def __init__(self) -> None:
        self._slots = asyncio.Semaphore(AT_ONCE)
        self._turns: dict[Hashable, asyncio.Lock] = {}
        self._waiting: Counter[Hashable] = Counter()
        self._uploads: Counter[str | None] = Counter()

    @contextmanager
    def place(self, owner: str | None) -> Iterator[None]:
        """A place for one upload, from its first byte on; raises if the owner has all that one may have."""
        if self._uploads[owner] >= PLACES:
            raise CallerError(
                f"{PLACES} files are being added for you already, which is the limit: send this one when one is done.",
                status=429,
                kind="rate_limit_error",
                code="rate_limit_exceeded",
                retry_after=RETRY_AFTER,
            )
        self._uploads[owner] += 1
        try:
            yield
        finally:
            self._uploads[owner] -= 1
            if not self._uploads[owner]:
                del self._uploads[owner]

    @asynccontextmanager
    async def turn(self, owner: Hashable) -> AsyncIterator[None]:
        """A time in which nothing else of this owner is read."""
        turn = self._turns.setdefault(owner, asyncio.Lock())
        self._waiting[owner] += 1
        try:
            async with turn, self._slots:
                yield
        finally:
            self._waiting[owner] -= 1
            if not self._waiting[owner]:
                del self._waiting[owner], self._turns[owner]


async def parse(content: bytes | Path | IO[bytes], name: str, *, limits: ParseLimits = _DEFAULTS) -> ParsedDocument:
    """The pages, blocks and outline of a file; `DocumentError` if it cannot be read or costs too much.

    An open file is read from its beginning, and stays open. `name` is what errors call the file, and its end may tell
    the format.
    """
    slot = _slots.setdefault(asyncio.get_running_loop(), asyncio.Semaphore(AT_ONCE))
    try:
        async with slot:
            source = await asyncio.to_thread(_source, content, limits)
            with source:
                return await _parse(source, name, limits)
    except UnreadableFile as error:
        raise DocumentError(f"{shown(name)} {error}.", code="invalid_document", param="file") from error


def shown(name: str) -> str:
    """A name on one line of a message, whatever it holds."""
    return "".join(sign if sign.isprintable() else "\N{REPLACEMENT CHARACTER}" for sign in name)[-200:] or "The file"


def _source(content: bytes | Path | IO[bytes], limits: ParseLimits) -> IO[bytes]:
    if not isinstance(content, bytes):
        return opened(content, limits)
    _check_size(len(content), limits)
    source = tempfile.TemporaryFile()  # noqa: SIM115 - the caller closes it
    source.write(content)
    source.seek(0)
    return source


def opened(file: Path | IO[bytes], limits: ParseLimits) -> io.FileIO:
    """A file to be read from its beginning; one that was open before stays open when this one is closed."""
    try:
        descriptor = _descriptor(file)
    except (OSError, ValueError) as error:
        raise UnreadableFile(f"cannot be opened: {getattr(error, 'strerror', None) or error}") from error
    state = os.fstat(descriptor)
    try:
        # Reading from a pipe or a device might never end.
        if not stat.S_ISREG(state.st_mode):
            raise UnreadableFile("is not a regular file: a folder, a pipe or a device cannot be added")
        _check_size(state.st_size, limits)
        os.lseek(descriptor, 0, os.SEEK_SET)
    except UnreadableFile:
        os.close(descriptor)
        raise
    return io.FileIO(descriptor)


def _descriptor(file: Path | IO[bytes]) -> int:
    if isinstance(file, Path):
        # Without O_NONBLOCK, opening a pipe waits for its writer.
        return os.open(file, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    file.flush()
    return os.dup(file.fileno())


def _check_size(size: int, limits: ParseLimits) -> None:
    if size > limits.file_bytes:
        raise UnreadableFile(f"has {_amount(size)}, and a document may have {_amount(limits.file_bytes)}: split it")


def _amount(size: int) -> str:
    return f"{size:,} bytes" if size < 100_000 else f"{size / 1e6:,.1f} MB"


async def _parse(source: IO[bytes], name: str, limits: ParseLimits) -> ParsedDocument:
    with tempfile.TemporaryFile() as complaints:
        try:
            async with asyncio.timeout(limits.wall_seconds), _reader(source, name, limits, complaints) as process:
                document = await _received(process, limits)
                status = await process.wait()
        except TimeoutError:
            raise UnreadableFile(_too_long(limits.wall_seconds)) from None
        if document:
            return document
        complaints.seek(-min(complaints.seek(0, os.SEEK_END), 2_000), os.SEEK_END)
        last = complaints.read().decode(errors="replace").strip().rpartition("\n")[2]
        message = "a document cannot be read"
        log.warning("document_parser_failed", message=message, document=shown(name), status=status, reason=last)
        if status in _TOO_LONG:
            raise UnreadableFile(_too_long(limits.cpu_seconds))
        most = limits.memory_bytes // 1_000_000
        raise UnreadableFile(f"cannot be read: it is damaged, or needs more than {most} MB of memory")


def _too_long(seconds: int) -> str:
    return f"takes more than {seconds} seconds to read: split it, or save it in a simpler form"


@asynccontextmanager
async def _reader(
    source: IO[bytes], name: str, limits: ParseLimits, complaints: IO[bytes]
) -> AsyncIterator[asyncio.subprocess.Process]:
    """The process that reads the file; it has ended when the block ends."""
    process = await asyncio.create_subprocess_exec(
        *COMMAND,
        json.dumps({"name": name, "limits": asdict(limits)}),
        env=confinement.environment(_KEPT_VARIABLES),
        cwd="/",
        stdin=source,
        stdout=asyncio.subprocess.PIPE,
        stderr=complaints,
        start_new_session=True,
    )
    assert process.stdout
    try:
        yield process
    finally:
        confinement.end_group(process.pid)
        # A process counts as ended when its output was read to the end.
        while await process.stdout.read(1 << 20):
            pass
        await process.wait()


async def _received(process: asyncio.subprocess.Process, limits: ParseLimits) -> ParsedDocument | None:
    """The document, frame by frame, so that other requests are served in between; None if its end never came."""
    assert process.stdout
    blocks: list[Block] = []
    # What is around the texts: names of fields, pages, levels.
    left = 3 * limits.output_bytes
    while True:
        try:
            size = confinement.length_of(await process.stdout.readexactly(confinement.HEADER))
            left -= size
            if left < 0:
                raise UnreadableFile(f"holds more than {limits.output_bytes // 1_000_000} MB of text: split it")
            frame = _frames.decode(await process.stdout.readexactly(size))
        except asyncio.IncompleteReadError:
            return None
        match frame:
            case list():
                blocks += frame
            case str():
                raise UnreadableFile(frame)
            case ParsedDocument():
                return replace(frame, blocks=tuple(blocks))
