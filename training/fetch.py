"""Fetches the packages that the table is trained on, at the versions of sources.json.

    python -m training.fetch --out data/packages [--only botocore,Django] [--git https://host/]

Needs pip and npm; with --git, also git, for sources that are no package. What is there already is not fetched again.
"""

import argparse
import json
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Final

SOURCES: Final = Path(__file__).parent / "sources.json"


@dataclass(frozen=True, slots=True)
class Source:
    registry: str
    name: str
    version: str
    licence: str
    readers: tuple[str, ...] = ()

    @property
    def folder(self) -> str:
        return f"{self.registry.lower()}/{self.name.replace('/', '+')}-{self.version}"


def sources(only: str = "") -> list[Source]:
    known = [Source(**{**one, "readers": tuple(one["readers"])}) for one in json.loads(SOURCES.read_text("utf-8"))]
    wanted = {name.strip().lower() for name in only.split(",") if name.strip()}
    return [one for one in known if not wanted or one.name.lower() in wanted]


def command(source: Source, folder: Path, git: str) -> list[str] | None:
    """What fetches it; None for a checkout where no git host is given."""
    if source.registry == "PyPI":
        wanted = f"{source.name}=={source.version}"
        # Nothing of them is run, so they need not fit this Python; nor is anything built.
        fitting = ["--ignore-requires-python", "--only-binary", ":all:"]
        return [
            sys.executable,
            "-m",
            "pip",
            "download",
            "--quiet",
            "--no-deps",
            *fitting,
            "--dest",
            str(folder),
            wanted,
        ]
    if source.registry == "npm":
        wanted = f"{source.name}@{source.version}"
        return ["npm", "pack", "--silent", "--pack-destination", str(folder), wanted]
    if not git:
        return None
    return ["git", "clone", "--quiet", "--depth", "1", f"{git.rstrip('/')}/{source.name}", str(folder / "checkout")]


def fetch(source: Source, out: Path, git: str) -> str:
    """What came of it, in a word."""
    folder = out / source.folder
    if folder.exists() and any(folder.iterdir()):
        return "there"
    run = command(source, folder, git)
    if run is None:
        return "left out"
    folder.mkdir(parents=True, exist_ok=True)
    done = subprocess.run(run, capture_output=True, text=True, check=False, cwd=out)
    if done.returncode == 0:
        return "fetched"
    shutil.rmtree(folder)
    return f"failed: {(done.stderr or done.stdout).strip().splitlines()[-1:]}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--only", default="", help="names, with commas")
    parser.add_argument("--git", default="", help="where owner/name is cloned from")
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    for source in sources(given.only):
        print(source.registry, source.name, source.version, fetch(source, given.out, given.git), flush=True)


if __name__ == "__main__":
    main()
