"""Writes trained rows as a table that Longhouse reads: four bits a number, one scale a row, words as a text file.

python -m training.pack --runs runs --out table

takes the run that is best on the rows set aside; every language counts alike.
"""

import argparse
import hashlib
import json
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from longhouse.models.embedding_table import PAIR, unpacked
from longhouse.models.wordpiece import words
from longhouse.search.tokenizer import STOP_CHARACTERS, STOP_WORDS

Rows = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Trained:
    """A row for each piece of the vocabulary, then one for each known pair of neighbours, whose numbers are sorted."""

    vocabulary: Sequence[str]
    pairs: npt.NDArray[np.int64]
    rows: Rows


@dataclass(frozen=True, slots=True)
class Packed:
    numbers: npt.NDArray[np.uint8]
    scales: npt.NDArray[np.float16]

    @property
    def rows(self) -> Rows:
        """As the program reads them."""
        return unpacked(self.numbers).astype(np.float32) * self.scales.astype(np.float32)[:, None]


def pack(rows: Rows) -> Packed:
    """Each row's largest number becomes 7 or -7; a row of zeros stays one."""
    scales = (np.abs(rows).max(axis=1, initial=0) / 7).astype(np.float16)
    scales[scales == 0] = 1
    whole = np.round(rows / scales.astype(np.float32)[:, None]).clip(-7, 7).astype(np.int16) + 8
    return Packed((whole[:, 0::2] | whole[:, 1::2] << 4).astype(np.uint8), scales)


def silenced(trained: Trained) -> Rows:
    """The rows without those of words that say nothing: in a sum they are noise, and small texts drown in it."""
    ids = {piece: number for number, piece in enumerate(trained.vocabulary)}
    grammar = {ids[char] for char in STOP_CHARACTERS if char in ids}
    said = (words(word) for word in STOP_WORDS)
    silent = {ids[pieces[0]] for pieces in said if len(pieces) == 1 and pieces[0] in ids}
    silent |= {number for piece, number in ids.items() if _is_sign(piece)} | grammar
    first = len(trained.vocabulary)
    silent |= {
        first + nth
        for nth, (left, right) in enumerate(divmod(pair, PAIR) for pair in trained.pairs.tolist())
        if left in grammar and right in grammar
    }
    rows = trained.rows.copy()
    rows[sorted(silent)] = 0
    return rows


def _is_sign(piece: str) -> bool:
    return len(piece) == 1 and unicodedata.category(piece)[0] in "PS"


def read(path: Path) -> Trained:
    with np.load(path) as arrays:
        vocabulary = arrays["vocabulary"].tobytes().decode().split("\n")
        rows = arrays["numbers"].astype(np.float32) * arrays["scales"].astype(np.float32)[:, None]
        return Trained(vocabulary, arrays["pairs"].astype(np.int64), rows)


def write(trained: Trained, folder: Path, name: str) -> str:
    """Writes the three files of a table; returns its name, which ends with what is in it."""
    assert len(trained.vocabulary) + len(trained.pairs) == len(trained.rows), "each piece and each pair has one row"
    packed = pack(silenced(trained))
    folder.mkdir(parents=True, exist_ok=True)
    np.savez(folder / "table.npz", q=packed.numbers, s=packed.scales, pairs=trained.pairs)
    (folder / "vocab.txt").write_text("\n".join(trained.vocabulary), encoding="utf-8")
    named = f"{name}-{_digest(folder)}"
    card = {"name": named, "dimensions": trained.rows.shape[1]}
    (folder / "table.json").write_text(json.dumps(card) + "\n", encoding="utf-8")
    return named


def _digest(folder: Path) -> str:
    """Of what vectors are made of; not of the archive, which remembers when it was written."""
    digest = hashlib.sha256((folder / "vocab.txt").read_bytes())
    with np.load(folder / "table.npz") as arrays:
        for key in ("q", "s", "pairs"):
            digest.update(arrays[key].tobytes())
    return digest.hexdigest()[:8]


def best(runs: Path) -> Path:
    """The run with the highest mean over the languages; scores.json is what training has written."""
    scores: dict[str, dict[str, float]] = json.loads((runs / "scores.json").read_text("utf-8"))
    chosen = max(scores, key=lambda run: sum(scores[run].values()) / len(scores[run]))
    return runs / f"{chosen}.npz"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=Path, required=True, help="the folder that training.train has written")
    parser.add_argument("--out", type=Path, required=True, help="a folder for the table")
    parser.add_argument("--name", default="table")
    given = parser.parse_args()
    chosen = best(given.runs)
    print(chosen.stem, "->", write(read(chosen), given.out, given.name))


if __name__ == "__main__":
    main()
