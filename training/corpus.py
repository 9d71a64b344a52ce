"""Puts the rows together, without what is in data that will be tested on, and sets some aside to judge by.

    python -m training.corpus --rows data/rows --apart my/test/sets --out data/corpus

`--apart` names folders of JSON lines whose texts must not be trained on; it may be given several times. Writes
corpus.jsonl.xz and held_out.jsonl.xz: rows that no run is trained on, by which runs are compared.
"""

import argparse
import json
import lzma
import random
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import astuple
from pathlib import Path
from typing import Any, Final

from training import rows
from training.rows import CYRILLIC, HAN, Row, spaced

RUN: Final = 8
"""Words in a row that two texts share only if one was copied."""
RUN_OF_CHARACTERS: Final = 12
RUN_OF_RUSSIAN: Final = 4
SENTENCE: Final = 5
"""Words from which a whole sentence that two texts share is no chance."""
HELD_OUT: Final = {"en": 4000, "ru": 1500, "zh": 1500}
SHARE: Final = 0.05
"""Of the rows of a language, at most so many are set aside."""


class Apart:
    """What the texts of test sets are recognised by."""

    def __init__(self, texts: Iterable[str] = ()) -> None:
        self._marks: set[str] = set()
        for text in texts:
            self._marks.update(_marks(text))

    def __contains__(self, text: str) -> bool:
        return not self._marks.isdisjoint(_marks(text))


def _marks(text: str) -> Iterator[str]:
    words = re.findall(r"\w+", spaced(text) if "_" in text else text.lower())
    yield from (" ".join(words[nth : nth + RUN]) for nth in range(len(words) - RUN + 1))
    for sentence in re.split(r"[.!?\n:]", text):
        said = re.findall(r"\w+", sentence.lower())
        if len(said) >= SENTENCE:
            yield " ".join(said)
    if HAN.search(text):
        han = "".join(HAN.findall(text))
        yield from (han[nth : nth + RUN_OF_CHARACTERS] for nth in range(len(han) - RUN_OF_CHARACTERS + 1))
    if CYRILLIC.search(text):
        russian = re.findall("[а-яё]+", text.lower())
        yield from (" ".join(russian[nth : nth + RUN_OF_RUSSIAN]) for nth in range(len(russian) - RUN_OF_RUSSIAN + 1))


def texts_of(folder: Path) -> Iterator[str]:
    """Every text in the JSON lines of a folder, however deep."""
    for path in sorted(folder.rglob("*.jsonl")):
        for line in path.read_text("utf-8").splitlines():
            yield from _strings(json.loads(line)) if line.strip() else ()


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for beneath in value.values() if isinstance(value, dict) else value:
            yield from _strings(beneath)


def kept(found: Iterable[Row], apart: Apart) -> Iterator[Row]:
    return (row for row in rows.unique(found) if row.query not in apart and row.text not in apart)


def split(found: list[Row], chance: random.Random) -> tuple[list[Row], list[Row]]:
    """Rows to train on, and rows set aside. A text is on one side only, or it would be judged by what it was taught."""
    chance.shuffle(found)
    sizes = Counter(row.language for row in found)
    room = {language: min(most, int(SHARE * sizes[language])) for language, most in HELD_OUT.items()}
    aside: list[Row] = []
    for row in found:
        can_judge = row.kind == "parallel" or (row.kind == "pair" and row.language == "en")
        if can_judge and room.get(row.language, 0) > 0 and len(row.query) > 8:
            aside.append(row)
            room[row.language] -= 1
    taken = {row.query.lower() for row in aside} | {row.text.lower() for row in aside}
    chosen = set(map(id, aside))
    trained = [
        row for row in found if id(row) not in chosen and taken.isdisjoint((row.query.lower(), row.text.lower()))
    ]
    return trained, aside


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=Path, required=True)
    parser.add_argument("--apart", type=Path, action="append", default=[])
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    apart = Apart(text for folder in given.apart for text in texts_of(folder))
    lines = (line for path in sorted(given.rows.glob("*.jsonl")) for line in path.open(encoding="utf-8"))
    trained, aside = split(list(kept(rows.read(lines), apart)), random.Random(1))
    given.out.mkdir(parents=True, exist_ok=True)
    for name, part in (("corpus", trained), ("held_out", aside)):
        with lzma.open(given.out / f"{name}.jsonl.xz", "wt", encoding="utf-8") as file:
            file.writelines(json.dumps(astuple(row), ensure_ascii=False) + "\n" for row in part)
        print(name, len(part), dict(Counter(f"{row.kind} {row.language}" for row in part)))


if __name__ == "__main__":
    main()
