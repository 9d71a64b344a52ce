"""What a passage is found and filtered by: its terms and their weights, and the text that is embedded."""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, Final

from longhouse.search import ranking

GIST: Final = 2000
"""Characters that are embedded; the vector of a longer text would be too general."""
LONGEST_FACT: Final = 100
"""A longer fact is filtered by its digest: an index entry has its limits."""


def weights(text: str, title: str, context: str, group: str, facts: Mapping[str, Any]) -> dict[str, float]:
    """The weights of a passage's terms; what it is filtered by are terms too."""
    filters = dict.fromkeys((*group_terms([group]), *_facts_terms(facts)), 1.0)
    return ranking.passage_weights(text, title, context) | filters


def gist(kind: str, title: str, text: str) -> str:
    """The text to embed. A turn is embedded without its speaker, or short turns would be near that name."""
    return (f"{title}: {text}" if title and kind != "interaction" else text)[:GIST]


def group_terms(groups: Sequence[str]) -> list[str]:
    return [fact_term("", group) for group in groups]


def _facts_terms(facts: Mapping[str, Any]) -> Iterator[str]:
    for name, value in facts.items():
        for one in value if isinstance(value, list) else [value]:
            if isinstance(one, str | int | float):
                yield fact_term(name, one)


def fact_term(name: str, value: object) -> str:
    """A fact as a term, which no word of a text is: filters are postings like any other."""
    shown = str(value).lower() if isinstance(value, bool) else str(value)
    term = clean(f"={name}={shown}")
    return term if len(term) <= LONGEST_FACT else f"={hashlib.sha256(term.encode()).hexdigest()}"


def clean(text: str) -> str:
    """The text without what Postgres refuses: the character zero, and halves of pairs of UTF-16."""
    return text.replace("\0", "\ufffd").encode("utf-8", "replace").decode()


def clean_value(value: Any) -> Any:
    match value:
        case str():
            return clean(value)
        case Mapping():
            return {clean(str(name)): clean_value(one) for name, one in value.items()}
        case list() | tuple():
            return [clean_value(one) for one in value]
        case datetime():
            return value.isoformat()
        case _:
            return value
