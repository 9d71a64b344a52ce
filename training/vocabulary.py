"""The pieces that the table has rows for: those of BERT that are of use, Russian ones, Han characters, pairs of these.

    python -m training.vocabulary --corpus data/corpus --bert data/teacher/tokenizer.json

Writes vocab.txt and pairs.npy beside the corpus. Needs the package `tokenizers`.
"""

import argparse
import json
import lzma
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt

from training import rows
from training.rows import Row

if TYPE_CHECKING:
    from tokenizers import Tokenizer

RUSSIAN: Final = 9000
HAN: Final = 3600
PAIRS: Final = 6000
RARE: Final = 20
"""A character or a pair that is there less often gets no row: it could not learn one."""
PAIR: Final = 65_536
"""As in longhouse.models.embedding_table, which a machine that only trains need not have."""

_USED: Final = re.compile(r"\[(PAD|UNK)\]|[\x21-\u024f\u0400-\u045f\u2010-\u203a\u20ac\u4e00-\u9fff]+")


def tokenizer(vocabulary: Sequence[str]) -> "Tokenizer":
    """Reads as longhouse.models.wordpiece does, in many threads."""
    from tokenizers import Tokenizer, models  # noqa: PLC0415 - not among the packages of Longhouse

    known = {piece: number for number, piece in enumerate(vocabulary)}
    return _like_bert(Tokenizer(models.WordPiece(known, unk_token="[UNK]", max_input_chars_per_word=60)))


def _like_bert(made: "Tokenizer") -> "Tokenizer":
    from tokenizers import normalizers, pre_tokenizers  # noqa: PLC0415

    made.normalizer = normalizers.BertNormalizer(lowercase=True)
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    return made


def pieces(corpus: Iterable[Row], bert: Sequence[str]) -> list[str]:
    """BERT's without those of other scripts and places that were never used, then our own."""
    used = [piece for piece in bert if _USED.fullmatch(piece) and not piece.startswith("[unused")]
    texts = [row.query.lower() for row in corpus if row.language in ("ru", "zh")]
    own = [*_russian(texts), *_characters(texts)]
    return list(dict.fromkeys([*used, *own]))


def _russian(texts: Iterable[str]) -> list[str]:
    from tokenizers import Tokenizer, models, trainers  # noqa: PLC0415

    made = _like_bert(Tokenizer(models.WordPiece(unk_token="[UNK]")))
    trainer = trainers.WordPieceTrainer(
        vocab_size=RUSSIAN, min_frequency=4, special_tokens=["[UNK]"], show_progress=False
    )
    # Cyrillic alone, so that no place goes to another script.
    made.train_from_iterator((re.sub("[^\u0400-\u045f]+", " ", text) for text in texts), trainer)
    found = sorted(made.get_vocab().items(), key=lambda one: one[1])
    return [piece for piece, _ in found if re.fullmatch("(##)?[\u0400-\u045f]+", piece)]


def _characters(texts: Iterable[str]) -> list[str]:
    counts = Counter(char for text in texts for char in text if "\u4e00" <= char <= "\u9fff")
    return [char for char, count in counts.most_common(HAN) if count >= RARE]


def pairs(corpus: Iterable[Row], vocabulary: Sequence[str], most: int = PAIRS) -> npt.NDArray[np.int64]:
    """Neighbouring Han characters that are together more often than by chance, as sorted numbers."""
    ids = {
        piece: number for number, piece in enumerate(vocabulary) if len(piece) == 1 and "\u4e00" <= piece <= "\u9fff"
    }
    alone: Counter[str] = Counter()
    together: Counter[tuple[str, str]] = Counter()
    for row in corpus:
        for text in (row.query, row.text) if row.language == "zh" else ():
            for run in re.findall("[\u4e00-\u9fff]+", text):
                alone.update(run)
                together.update(pairwise(run))
    total = alone.total()
    worth = {
        pair: count**0.8 * np.log(max(count * total / (alone[pair[0]] * alone[pair[1]]), 1.0))
        for pair, count in together.items()
        if count >= RARE and pair[0] in ids and pair[1] in ids
    }
    best = sorted(worth, key=worth.__getitem__, reverse=True)[:most]
    return np.array(sorted(ids[left] * PAIR + ids[right] for left, right in best if worth[left, right] > 0), np.int64)


def bert_pieces(path: Path) -> list[str]:
    known = json.loads(path.read_text("utf-8"))["model"]["vocab"]
    return sorted(known, key=known.__getitem__)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--corpus", type=Path, required=True)
    parser.add_argument("--bert", type=Path, required=True)
    given = parser.parse_args()
    with lzma.open(given.corpus / "corpus.jsonl.xz", "rt", encoding="utf-8") as lines:
        corpus = list(rows.read(lines))
    vocabulary = pieces(corpus, bert_pieces(given.bert))
    known = pairs(corpus, vocabulary)
    (given.corpus / "vocab.txt").write_text("\n".join(vocabulary), encoding="utf-8")
    np.save(given.corpus / "pairs.npy", known)
    print(len(vocabulary), "pieces,", len(known), "pairs")


if __name__ == "__main__":
    main()
