"""Trains tables: several seeds, each compared with the others on rows that none was trained on.

    python -m training.train --data data/corpus --seeds 3 --out runs

`--data` holds corpus.jsonl.xz, held_out.jsonl.xz, vocab.txt, pairs.npy, teacher.npz and tokenizer.json.
A GPU takes minutes; on a CPU, try `--most 20000 --steps 50`. Needs torch, transformers, tokenizers, and no Longhouse.
"""

import argparse
import json
import lzma
import math
import random
import re
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from torch.nn import functional

from training import asking, rows
from training.rows import Row
from training.teacher import DIMENSIONS as TAUGHT
from training.teacher import Teacher
from training.vocabulary import PAIR, tokenizer

DIMENSIONS: Final = 256
PREFIXES: Final = (256, 128)
"""The first so many numbers of a vector must be worth something alone."""
BATCH: Final = 4096
LONGEST: Final = 96
"""Tokens of a text that are read."""
CLUSTERS: Final = 1500
TOGETHER: Final = 24
"""Clusters of a hard batch: texts that the teacher finds alike must be told apart."""
HARD: Final = 0.5
"""The share of such batches."""
DROPPED: Final = 0.1
"""The share of tokens that are left out of a text, so that no single one decides."""
TRUTH: Final = 0.05
"""How much the true pair counts beside the teacher's opinion, which says of all pairs how near they are."""
TEMPERATURE: Final = 0.05
RATE: Final = 3e-3
WARM_UP: Final = 200
USUAL: Final = 1e-3
"""The share of all tokens from which a token counts half at the start."""

Tensor = Any
"""Of torch, which is not there where types are checked."""


@dataclass(frozen=True, slots=True)
class Items:
    """Texts that belong together, and what the teacher reads for each: for a foreign text, its English."""

    left: list[str]
    right: list[str]
    left_taught: list[str]
    right_taught: list[str]

    @classmethod
    def of(cls, corpus: Iterable[Row], vocabulary: Iterable[str], chance: random.Random) -> "Items":
        made = cls([], [], [], [])
        for word in vocabulary:
            if re.fullmatch("[a-z]{3,}", word):
                made._add(word, word, word)
        for row in corpus:
            if row.kind == "parallel":
                made._add(row.query, row.text, row.text)
            elif row.kind == "text":
                made._add(row.query, row.query, row.query)
            elif row.language == "en":
                made._add(row.query, row.text, row.query)
                asked = asking.asked(row.query, chance)
                made._add(asked, row.text, asked)
        return made

    def _add(self, left: str, right: str, left_taught: str) -> None:
        self.left.append(left)
        self.right.append(right)
        self.left_taught.append(left_taught)
        self.right_taught.append(right)


class Bags:
    """Texts as the numbers of their tokens and known pairs, one after the other."""

    def __init__(self, encoded: Sequence[Sequence[int]], device: str) -> None:
        self.lengths = torch.tensor([len(one) for one in encoded], device=device)
        self.starts = torch.cat([torch.zeros(1, dtype=torch.long, device=device), self.lengths.cumsum(0)[:-1]])
        self.flat = torch.tensor(np.concatenate([np.array(one, np.int64) for one in encoded]), device=device)

    def some(self, which: Tensor) -> tuple[Tensor, Tensor]:
        """The numbers of these texts, and where each text begins among them."""
        lengths = self.lengths[which]
        begun = lengths.cumsum(0) - lengths
        owner = torch.repeat_interleave(torch.arange(len(which), device=which.device), lengths)
        within = torch.arange(len(owner), device=which.device) - begun[owner]
        return self.flat[self.starts[which][owner] + within], begun


class Encoder:
    def __init__(self, vocabulary: Sequence[str], pairs: Any) -> None:
        self._tokens = tokenizer(vocabulary)
        self._pairs = pairs
        self._first = len(vocabulary)
        self.size = len(vocabulary) + len(pairs)

    def __call__(self, texts: Sequence[str]) -> list[list[int]]:
        """A text of which nothing is known is the unknown token."""
        found = self._tokens.encode_batch(list(texts), add_special_tokens=False)
        return [self._with_pairs(one.ids[:LONGEST]) or [1] for one in found]

    def _with_pairs(self, ids: list[int]) -> list[int]:
        if len(ids) < 2 or not len(self._pairs):
            return ids
        numbers = np.array(ids, np.int64)
        keys = numbers[:-1] * PAIR + numbers[1:]
        places = np.minimum(np.searchsorted(self._pairs, keys), len(self._pairs) - 1)
        return [*ids, *(self._first + places[self._pairs[places] == keys]).tolist()]


class Table:
    """The rows, a map from their space to the teacher's, and how sharply each prefix tells texts apart."""

    def __init__(self, begun: Tensor, outward: Tensor) -> None:
        sharp = torch.full((len(PREFIXES),), math.log(20.0), device=begun.device)
        self.rows, self.outward, self.scales = (part.requires_grad_() for part in (begun, outward, sharp))

    def summed(self, bags: Bags, which: Tensor, dropped: float = 0.0) -> Tensor:
        ids, begun = bags.some(which)
        kept = (torch.rand(len(ids), device=ids.device) >= dropped).to(self.rows.dtype)
        return functional.embedding_bag(ids, self.rows, begun, mode="sum", per_sample_weights=kept)


@dataclass(frozen=True, slots=True)
class Lesson:
    """All that a run needs and no run changes."""

    left: Bags
    right: Bags
    taught: Tensor
    left_at: Tensor
    right_at: Tensor
    clusters: Tensor
    begun: Tensor
    outward: Tensor
    judged: dict[str, tuple[Bags, Bags]]


def loss_of(table: Table, lesson: Lesson, which: Tensor) -> Tensor:
    """Near to the teacher's vectors, and near to each other as the teacher has them."""
    left, right = table.summed(lesson.left, which, DROPPED), table.summed(lesson.right, which, DROPPED)
    wanted_left, wanted_right = (
        lesson.taught[lesson.left_at[which]].float(),
        lesson.taught[lesson.right_at[which]].float(),
    )
    loss = (1 - functional.cosine_similarity(left @ table.outward, wanted_left, dim=-1)).mean()
    loss = loss + (1 - functional.cosine_similarity(right @ table.outward, wanted_right, dim=-1)).mean()
    with torch.no_grad():
        places = lesson.right_at[which]
        same = (places[:, None] == places[None]).float()  # the same text twice is no stranger to itself
        near = wanted_left @ wanted_right.T / TEMPERATURE
        targets = [
            TRUTH * part / part.sum(1, keepdim=True) + (1 - TRUTH) * of.softmax(1)
            for part, of in ((same, near), (same.T, near.T))
        ]
    for nth, size in enumerate(PREFIXES):
        scale = table.scales[nth].exp().clamp(5, 60)
        found = functional.normalize(left[:, :size], dim=-1) @ functional.normalize(right[:, :size], dim=-1).T * scale
        for target, side in zip(targets, (found, found.T), strict=True):
            loss = loss - (target * side.log_softmax(1)).sum(1).mean() / (2 * len(PREFIXES))
    return loss


def batch_of(lesson: Lesson, size: int) -> Tensor:
    """At random, or out of few clusters."""
    count, device = len(lesson.clusters), lesson.clusters.device
    if random.random() < HARD:
        chosen = lesson.clusters[torch.randint(0, count, (TOGETHER,), device=device)]
        pool = torch.isin(lesson.clusters, chosen).nonzero()[:, 0]
        return pool[torch.randperm(len(pool), device=device)[:size]]
    return torch.randint(0, count, (min(size, count),), device=device)


def trained(lesson: Lesson, seed: int, steps: int, batch: int) -> Table:
    torch.manual_seed(seed)
    random.seed(seed)
    table = Table(lesson.begun.clone(), lesson.outward.clone())
    slow = [table.outward, table.scales]
    optimizer = torch.optim.Adam([{"params": [table.rows]}, {"params": slow, "lr": 1e-3}], lr=RATE, betas=(0.9, 0.99))
    for step in range(steps):
        optimizer.param_groups[0]["lr"] = RATE * _pace(step, steps)
        loss = loss_of(table, lesson, batch_of(lesson, batch))
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        if (step + 1) % max(1, steps // 5) == 0:
            log(f"seed {seed}, step {step + 1}: loss {loss.item():.3f}", judged(table, lesson))
    return table


def _pace(step: int, steps: int) -> float:
    return min(1.0, (step + 1) / WARM_UP) * (0.49 * (1 + math.cos(math.pi * step / steps)) + 0.02)


def judged(table: Table, lesson: Lesson) -> dict[str, float]:
    """Of held-out rows, for how many the right text is among the ten nearest; by language, in percent."""
    scores = {}
    with torch.no_grad():
        for language, (left, right) in lesson.judged.items():
            every = torch.arange(len(left.lengths), device=left.lengths.device)
            asked = functional.normalize(table.summed(left, every), dim=-1)
            known = functional.normalize(table.summed(right, every), dim=-1)
            nearest = (asked @ known.T).topk(min(10, len(every)), dim=1).indices
            scores[language] = round(100 * (nearest == every[:, None]).any(1).float().mean().item(), 2)
    return scores


def clustered(vectors: Tensor, count: int, rounds: int = 12) -> Tensor:
    centres = vectors[torch.randperm(len(vectors), device=vectors.device)[:count]].clone()
    nearest = torch.zeros(len(vectors), dtype=torch.long, device=vectors.device)
    for _ in range(rounds):
        nearest = torch.cat([(part @ centres.T).argmax(1) for part in vectors.split(65_536)])
        centres = functional.normalize(torch.zeros_like(centres).index_add_(0, nearest, vectors), dim=-1)
    return nearest


def beginning(teacher: Teacher, vocabulary: Sequence[str], counts: Tensor, axes: Tensor) -> Tensor:
    """Each Latin piece as the teacher has it, frequent ones smaller; of other scripts it knows nothing."""
    vectors = teacher.vectors([piece.removeprefix("##") for piece in vocabulary]).float()
    begun = (vectors - vectors.mean(0)) @ axes
    foreign = torch.tensor([any(char >= "\u0400" for char in piece) for piece in vocabulary], device=begun.device)
    begun[foreign] *= 0.02
    begun = torch.cat([begun, torch.zeros(len(counts) - len(vocabulary), begun.shape[1], device=begun.device)])
    weights = USUAL / (USUAL + counts / counts.sum())
    begun = begun * weights[:, None]
    return begun / begun[: len(vocabulary)].std() * 0.1


def lesson_of(data: Path, device: str, most: int) -> tuple[Lesson, list[str], Any]:
    chance = random.Random(1)
    corpus, aside = read(data / "corpus.jsonl.xz"), read(data / "held_out.jsonl.xz")
    chance.shuffle(corpus)
    vocabulary = (data / "vocab.txt").read_text("utf-8").split("\n")
    items = Items.of(corpus[:most], vocabulary, chance)
    pairs = np.load(data / "pairs.npy")
    encoder, teacher = Encoder(vocabulary, pairs), Teacher(data, device)
    left, right = Bags(encoder(items.left), device), Bags(encoder(items.right), device)
    log(f"{len(items.left)} items, {encoder.size} rows")
    unique = list(dict.fromkeys([*items.left_taught, *items.right_taught]))
    place = {text: nth for nth, text in enumerate(unique)}
    taught = teacher.vectors(unique)
    log(f"the teacher has read {len(unique)} texts")
    left_at, right_at = (
        torch.tensor([place[text] for text in texts], device=device)
        for texts in (items.left_taught, items.right_taught)
    )
    sample = taught[torch.randperm(len(taught), device=device)[:200_000]].float()
    spread = sample - sample.mean(0)
    axes = torch.linalg.svd(spread.T @ spread).U[:, :DIMENSIONS]
    counts = torch.bincount(torch.cat([left.flat, right.flat]), minlength=encoder.size).float()
    lesson = Lesson(
        left=left,
        right=right,
        taught=taught,
        left_at=left_at,
        right_at=right_at,
        clusters=clustered(taught[right_at].float(), min(CLUSTERS, max(1, len(items.left) // 50))),
        begun=beginning(teacher, vocabulary, counts, axes),
        outward=axes.T.contiguous(),
        judged=_held_out(aside, encoder, device),
    )
    assert lesson.outward.shape == (DIMENSIONS, TAUGHT)
    return lesson, vocabulary, pairs


def _held_out(aside: Sequence[Row], encoder: Encoder, device: str) -> dict[str, tuple[Bags, Bags]]:
    chance, found = random.Random(2), {}
    for language in sorted({row.language for row in aside}):
        chosen = [row for row in aside if row.language == language]
        asked = [asking.asked(row.query, chance) if row.kind == "pair" else row.query for row in chosen]
        found[language] = (Bags(encoder(asked), device), Bags(encoder([row.text for row in chosen]), device))
    return found


def read(path: Path) -> list[Row]:
    with lzma.open(path, "rt", encoding="utf-8") as lines:
        return list(rows.read(lines))


def write(path: Path, table: Table, vocabulary: Sequence[str], pairs: Any) -> None:
    """Whole numbers of one byte with a scale for each row: four bits are made of them later, and lose nothing by it."""
    made = table.rows.detach().cpu().numpy()
    scales = (np.abs(made).max(axis=1) / 127).astype(np.float16)
    scales[scales == 0] = 1
    numbers = np.round(made / scales.astype(np.float32)[:, None]).clip(-127, 127).astype(np.int8)
    words = np.frombuffer("\n".join(vocabulary).encode(), np.uint8)
    np.savez_compressed(path, numbers=numbers, scales=scales, pairs=pairs, vocabulary=words)


def log(*said: object) -> None:
    print(f"{time.monotonic() - BEGUN:7.1f} s", *said, flush=True)


BEGUN: Final = time.monotonic()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=2500)
    parser.add_argument("--batch", type=int, default=BATCH)
    parser.add_argument("--most", type=int, default=10**9, help="rows that are trained on")
    given = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.backends.cuda.matmul.allow_tf32 = True
    torch.manual_seed(0)
    given.out.mkdir(parents=True, exist_ok=True)
    lesson, vocabulary, pairs = lesson_of(given.data, device, given.most)
    scores = {}
    for seed in range(1, given.seeds + 1):
        table = trained(lesson, seed, given.steps, given.batch)
        write(given.out / f"seed-{seed}.npz", table, vocabulary, pairs)
        scores[f"seed-{seed}"] = judged(table, lesson)
        (given.out / "scores.json").write_text(json.dumps(scores, indent=1) + "\n", encoding="utf-8")
        log(f"seed {seed}", scores[f"seed-{seed}"])


if __name__ == "__main__":
    main()
