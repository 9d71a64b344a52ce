"""Packages as they were fetched: wheels, tarballs and folders, read without being unpacked or run."""

import json
import re
import tarfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from email.parser import HeaderParser
from pathlib import Path
from typing import Final

PERMISSIVE: Final = re.compile(
    r"MIT|BSD|Apache|ISC|PSF|Python Software|HPND|Historical|Unlicense|public domain|CC0|CC[- ]BY[- ]4|Unicode"
    r"|Biopython|WordNet",
    re.IGNORECASE,
)
REFUSED: Final = re.compile(
    r"GPL|General Public|MPL|Mozilla|EPL|[- ]SA\b|[- ]NC\b|Commercial|proprietary|SSPL|BUSL|Business Source",
    re.IGNORECASE,
)
LARGEST: Final = 25_000_000
"""Bytes of a file that is read; larger ones are data, not text for people."""


@dataclass(slots=True)
class Archive:
    name: str
    version: str
    licence: str
    _files: dict[str, object] = field(default_factory=dict)
    _opened: zipfile.ZipFile | tarfile.TarFile | None = None

    @property
    def names(self) -> list[str]:
        return sorted(self._files)

    @property
    def is_permissive(self) -> bool:
        return bool(PERMISSIVE.search(self.licence)) and not REFUSED.search(self.licence)

    def __contains__(self, name: str) -> bool:
        return name in self._files

    def text(self, name: str) -> str:
        return self.data(name).decode("utf-8", "replace").removeprefix("\ufeff")

    def data(self, name: str) -> bytes:
        place = self._files[name]
        if isinstance(place, Path):
            return place.read_bytes()
        if isinstance(self._opened, zipfile.ZipFile):
            return self._opened.read(name)
        assert isinstance(self._opened, tarfile.TarFile)
        file = self._opened.extractfile(name)
        return file.read() if file else b""


@contextmanager
def opened(path: Path) -> Iterator[Archive]:
    """A wheel, a tarball of npm or of Python, or a folder with a LICENSE."""
    if path.is_dir():
        yield _folder(path)
    elif path.suffix == ".whl":
        with zipfile.ZipFile(path) as wheel:
            yield _wheel(wheel)
    else:
        with tarfile.open(path) as tarball:
            yield _tarball(tarball)


def _wheel(wheel: zipfile.ZipFile) -> Archive:
    files: dict[str, object] = {one.filename: one for one in wheel.infolist() if one.file_size < LARGEST}
    metadata = next(name for name in files if name.endswith(".dist-info/METADATA"))
    return _described(wheel.read(metadata).decode("utf-8", "replace"), files, wheel)


def _tarball(tarball: tarfile.TarFile) -> Archive:
    files: dict[str, object] = {one.name: one for one in tarball if one.isfile() and one.size < LARGEST}
    made = Archive("", "", "", files, tarball)
    if "package/package.json" in files:
        card = json.loads(made.text("package/package.json"))
        licence = card.get("license") or ""
        made.licence = licence if isinstance(licence, str) else str(licence.get("type", ""))
        made.name, made.version = card["name"], card["version"]
        return made
    metadata = next(name for name in sorted(files) if re.fullmatch(r"[^/]+/PKG-INFO", name))
    return _described(made.text(metadata), files, tarball)


def _described(metadata: str, files: dict[str, object], opened: zipfile.ZipFile | tarfile.TarFile) -> Archive:
    said = HeaderParser().parsestr(metadata)
    known = said.get_all("License-Expression") or [
        *(one.split(" :: ")[-1] for one in said.get_all("Classifier") or () if one.startswith("License")),
        *(one[:60] for one in said.get_all("License") or () if one.upper() != "UNKNOWN"),
    ]
    return Archive(str(said["Name"]), str(said["Version"]), "; ".join(dict.fromkeys(known)), files, opened)


def _folder(path: Path) -> Archive:
    """A checkout; its licence is what the file of that name begins with."""
    files: dict[str, object] = {
        one.relative_to(path).as_posix(): one
        for one in sorted(path.rglob("*"))
        if one.is_file() and ".git" not in one.parts and one.stat().st_size < LARGEST
    }
    licence = next((one for one in sorted(path.glob("LICENSE*")) if one.is_file()), None)
    begun = " ".join(licence.read_text(encoding="utf-8", errors="replace").split())[:200] if licence else ""
    begun = begun.replace("Creative Commons Attribution 4.0", "CC-BY-4.0").replace(
        "Attribution 4.0 International", "CC-BY-4.0"
    )
    return Archive(path.name.replace("+", "/"), "checkout", begun, files)
