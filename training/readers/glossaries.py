"""Words and what they mean, and what people say: WordNet, sentences for assistants, small conversations."""

import json
import random
import re
from collections.abc import Iterator
from typing import Final

from training.archives import Archive
from training.rows import LONGEST_QUERY, Row, clean, pair, spaced

NAMES_KEPT: Final = 0.4
"""Of nouns that are names, so many are read: there are too many of them."""
PER_SENTENCE: Final = 3
"""Ways in which a sentence with alternatives is spoken."""


def wordnet(archive: Archive) -> Iterator[Row]:
    """The gloss asks, its lemmas answer; an example is a text of its own."""
    chance = random.Random(4)
    for name in archive.names:
        if not re.search(r"(^|/)dict/data\.(noun|verb|adj|adv)$", name):
            continue
        for line in archive.data(name).decode("latin-1").splitlines():
            if line.startswith("  ") or "|" not in line:
                continue
            head, gloss = line.split("|", 1)
            fields = head.split()
            count = int(fields[3], 16)
            lemmas = [fields[4 + 2 * nth].replace("_", " ").split("(")[0] for nth in range(count)]
            if lemmas[0][0].isupper() and chance.random() > NAMES_KEPT:
                continue
            yield from pair("wordnet", re.split(r';\s*"', gloss)[0], ", ".join(lemmas))
            for example in re.findall(r'"([^"]{15,})"', gloss)[:1]:
                yield Row("wordnet", "text", "en", example[:LONGEST_QUERY], "")


def intents(archive: Archive) -> Iterator[Row]:
    chance = random.Random(4)
    known = json.loads(archive.data("home_assistant_intents/data/en.json")) if _has_intents(archive) else {}
    for intent, said in known.get("intents", {}).items():
        for group in said.get("data", ()):
            for sentence in group.get("sentences", ()):
                for _ in range(PER_SENTENCE):
                    yield from pair("intents", _spoken(sentence, chance), spaced(intent.removeprefix("Hass")))


def _has_intents(archive: Archive) -> bool:
    return "home_assistant_intents/data/en.json" in archive


def _spoken(sentence: str, chance: random.Random) -> str:
    """One of the sentences that `[please] (turn|switch) on <name>` stands for."""
    said = re.sub(r"[<{](\w+?)(?::\w+)?[>}]", lambda found: found[1].replace("_", " "), sentence)
    for _ in range(30):
        before = said
        said = re.sub(r"\[([^\[\]()]*)\]", lambda found: chance.choice([*found[1].split("|"), ""]), said)
        said = re.sub(r"\(([^\[\]()]*)\)", lambda found: chance.choice(found[1].split("|")), said)
        if said == before:
            break
    return " ".join(said.split())


def chat(archive: Archive) -> Iterator[Row]:
    for name in archive.names:
        if re.search(r"chatterbot_corpus/data/english/.*\.ya?ml$", name):
            for said in re.findall(r"\n\s*- -? ?(.+)", archive.text(name)):
                if len(said) > 12:
                    yield Row("chat", "text", "en", clean(said)[:LONGEST_QUERY], "")
