"""One file of many parts, for backups and capsules: a zip archive with a manifest that knows each part's digest.

It is complete or not there: it is written under another name, read back, and renamed. A part that was damaged, cut off
or exchanged is found before anything of the file is used.
"""

import fcntl
import hashlib
import os
import time
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Final, Generic, TypeVar

import msgspec

from longhouse.errors import SetupError

MANIFEST: Final = "manifest.json"
PIECE: Final = 256 * 1024
"""Bytes that are read at a time."""
MOST_MANIFEST: Final = 64 * 1024 * 1024
COMPRESSION: Final = 1
"""Half of what is written are texts, which the fastest level shrinks to a quarter."""

_DAMAGE: Final = (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError, KeyError, ValueError)
"""What reading a damaged or cut archive raises."""


class ArchivePart(msgspec.Struct, frozen=True):
    """What a manifest knows of a part: enough to tell that it is whole."""

    bytes: int
    sha256: str


M = TypeVar("M", bound=msgspec.Struct)


class PartWriter:
    """Writes one part and counts it."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._digest = hashlib.sha256()
        self.bytes = 0
        self.lines = 0

    def write(self, data: bytes) -> None:
        self._file.write(data)
        self._digest.update(data)
        self.bytes += len(data)
        self.lines += data.count(b"\n")

    @property
    def part(self) -> ArchivePart:
        return ArchivePart(self.bytes, self._digest.hexdigest())


class ArchiveWriter:
    """An archive that is being written."""

    def __init__(self, archive: zipfile.ZipFile) -> None:
        self._archive = archive
        self.parts: dict[str, ArchivePart] = {}

    @contextmanager
    def part(self, name: str) -> Iterator[PartWriter]:
        with self._archive.open(_info(name), "w", force_zip64=True) as file:
            writer = PartWriter(file)
            yield writer
        self.parts[name] = writer.part

    def put(self, name: str, data: bytes) -> None:
        with self.part(name) as part:
            part.write(data)

    def finish(self, manifest: msgspec.Struct) -> None:
        text = msgspec.json.format(msgspec.json.encode(manifest), indent=1)
        self._archive.writestr(_info(MANIFEST), text)


def _info(name: str) -> zipfile.ZipInfo:
    info = zipfile.ZipInfo(name, time.gmtime()[:6])
    info.compress_type, info.external_attr = zipfile.ZIP_DEFLATED, 0o600 << 16
    info._compresslevel = COMPRESSION  # type: ignore[attr-defined]  # `open` takes no level of its own
    return info


@contextmanager
def writing(target: Path, verify: Callable[[Path], object]) -> Iterator[ArchiveWriter]:
    """A new archive that nobody else may read. It gets its name when all of it is on disk and `verify` has read it."""
    try:
        if target.exists():
            raise SetupError(f"{target} exists already: choose another name, or move it away.")
        draft = target.with_name(f"{target.name}.partial")
        with _claimed(draft) as file:
            with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
                yield ArchiveWriter(archive)
            file.flush()
            os.fsync(file.fileno())
            verify(draft)
            draft.rename(target)
        folder = os.open(target.absolute().parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
    except OSError as error:
        raise SetupError(f"{target} cannot be written ({error.strerror or error}): choose another place.") from error


@contextmanager
def _claimed(draft: Path) -> Iterator[IO[bytes]]:
    """The empty draft; one that a killed process has left is written anew. It goes, unless it was renamed."""
    handle = os.open(draft, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    with os.fdopen(handle, "r+b") as file:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise SetupError(f"Another process writes {draft}: wait for it, or choose another name.") from None
        os.ftruncate(handle, 0)
        try:
            yield file
        finally:
            with suppress(FileNotFoundError):
                draft.unlink()


class Archive(Generic[M]):
    """An archive that is read: its manifest, and its parts."""

    def __init__(self, archive: zipfile.ZipFile, manifest: M, parts: Mapping[str, ArchivePart], path: Path) -> None:
        self._archive = archive
        self._parts = parts
        self.manifest = manifest
        self.path = path

    def pieces(self, name: str) -> Iterator[bytes]:
        """The part, piece by piece; refuses it at its end if it is not what the manifest says."""
        known, digest, size = self._parts.get(name), hashlib.sha256(), 0
        try:
            with self._archive.open(name) as file:
                while known and size <= known.bytes and (piece := file.read(PIECE)):
                    digest.update(piece)
                    size += len(piece)
                    yield piece
        except _DAMAGE as error:
            raise damaged(self.path, name) from error
        if known is None or (size, digest.hexdigest()) != (known.bytes, known.sha256):
            raise damaged(self.path, name)

    def read(self, name: str) -> bytes:
        return b"".join(self.pieces(name))

    def verify(self, look: Callable[[str, bytes], None] = lambda name, piece: None) -> None:
        """Reads every part, and shows each piece: afterwards the file is known to be whole."""
        if {*self._archive.namelist()} != {MANIFEST, *self._parts}:
            raise damaged(self.path, "its list of parts")
        for name in self._parts:
            for piece in self.pieces(name):
                look(name, piece)


class Kind(msgspec.Struct, Generic[M], frozen=True):
    """A kind of archive: how it is recognised, and what its manifest is."""

    format: str
    version: int
    what: str
    manifest: type[M]
    parts: Callable[[M], Mapping[str, ArchivePart]]


@contextmanager
def reading(path: Path, kind: Kind[M]) -> Iterator[Archive[M]]:
    """An archive of this kind. One of another kind, or of a newer version, is refused in one sentence."""
    try:
        with path.open("rb") as file, _opened(file, path, kind.what) as archive:
            yield _described(archive, path, kind)
    except OSError as error:
        raise SetupError(f"{path} cannot be read: {error.strerror or error}.") from error


def _opened(file: IO[bytes], path: Path, what: str) -> zipfile.ZipFile:
    try:
        return zipfile.ZipFile(file)
    except _DAMAGE as error:
        raise SetupError(f"{path} is no {what}, or its end is missing: take another copy of it.") from error


class _Head(msgspec.Struct):
    format: str
    format_version: int
    longhouse: str = ""


def _described(archive: zipfile.ZipFile, path: Path, kind: Kind[M]) -> Archive[M]:
    try:
        with archive.open(MANIFEST) as file:
            text = file.read(MOST_MANIFEST)
        head = msgspec.json.decode(text, type=_Head)
        if head.format != kind.format:
            raise SetupError(f"{path} is no {kind.what}, but a {head.format[:40]!r}.")
        if head.format_version > kind.version:
            raise SetupError(
                f"{path} was made by Longhouse {head.longhouse[:40]}, a newer one: use that or a later one."
            )
        manifest = msgspec.json.decode(text, type=kind.manifest)
    except (*_DAMAGE, msgspec.DecodeError) as error:
        raise damaged(path, MANIFEST) from error
    return Archive(archive, manifest, kind.parts(manifest), path)


def damaged(path: Path, part: str) -> SetupError:
    return SetupError(f"{path} is damaged ({part}), and nothing of it was used: take another copy of it.")
