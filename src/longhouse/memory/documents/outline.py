"""Outlines of documents: as a tree, sections found by number or title, and the section of each block."""

import unicodedata
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Final, TypedDict

from longhouse.memory.documents.parsed import Block
from longhouse.store.memory.documents import Section

NOWHERE: Final = -1
"""The section of a text before the first heading."""
LOOK_AHEAD: Final = 50
"""Entries of an outline among which a heading is looked for."""


class OutlineEntry(TypedDict):
    title: str
    section_number: str
    level: int
    page: int
    children: list["OutlineEntry"]


def tree(sections: Sequence[Section], max_depth: int, within: range | None = None) -> list[OutlineEntry]:
    """The entries with their children, down to a depth; of one section and what is below it if `within` is given."""
    items: list[OutlineEntry] = []
    shown: dict[int, OutlineEntry] = {}
    inside = within or range(len(sections))
    for index, path in enumerate(paths(sections)):
        above = [at for at in path[:-1] if at in inside]
        if index not in inside or len(above) >= max_depth:
            continue
        section = sections[index]
        shown[index] = entry = OutlineEntry(
            title=section.title, section_number=section.number, level=section.level, page=section.page, children=[]
        )
        (shown[above[-1]]["children"] if above else items).append(entry)
    return items


def paths(sections: Sequence[Section]) -> list[tuple[int, ...]]:
    """Of each entry: the entries that it stands in, the outermost first, and itself."""
    found: list[tuple[int, ...]] = []
    above: list[int] = []
    for at, section in enumerate(sections):
        while above and sections[above[-1]].level >= section.level:
            above.pop()
        above.append(at)
        found.append(tuple(above))
    return found


def numbered(sections: Sequence[Section], number: str) -> list[range]:
    """The sections of this number, each with what is below it: `3.2` is also 3.2.1."""
    wanted = _number(number)
    if not wanted:
        return []
    numbers = [_number(section.number) for section in sections]
    found = [at for at, known in enumerate(numbers) if known == wanted]
    return [_whole(sections, at) for at in found] or [
        range(at, at + 1) for at, known in enumerate(numbers) if known.startswith(f"{wanted}.")
    ]


def named(sections: Sequence[Section], name: str) -> list[range]:
    """The sections that a person or a model means by a name: a number, a title, both, or a part of a title."""
    if found := numbered(sections, name):
        return found
    wanted = _plain(name)
    if not wanted:
        return []
    titles = [_forms(section) for section in sections]
    exact = [at for at, forms in enumerate(titles) if wanted in forms]
    partly = exact or [at for at, forms in enumerate(titles) if any(wanted in form for form in forms)]
    return [_whole(sections, at) for at in partly]


def _forms(section: Section) -> tuple[str, ...]:
    """How a section may be called: its title with its number and without it."""
    number, title = _plain(section.number), _plain(section.title)
    bare = title.removeprefix(number).lstrip(" .:") if number else title
    return title, bare or title, f"{number} {bare}".strip()


@lru_cache(maxsize=4 * LOOK_AHEAD)
def _heads(section: Section) -> frozenset[str]:
    """How its heading may read. Each block is compared with those that may come next, over and over."""
    return frozenset((*_forms(section), _plain(f"{section.number}. {section.title}")))


def _whole(sections: Sequence[Section], at: int) -> range:
    """A section and all below it."""
    level = sections[at].level
    end = next((other for other in range(at + 1, len(sections)) if sections[other].level <= level), len(sections))
    return range(at, end)


def _plain(text: str) -> str:
    return " ".join(unicodedata.normalize("NFKC", text).casefold().split())


def _number(text: str) -> str:
    return _plain(text).strip(" .§")


def located(blocks: Sequence[Block], sections: Sequence[Section]) -> Iterator[int]:
    """The section of each block, in order.

    Outlines may come from bookmarks, which know pages only: a block belongs to the last entry of an earlier page, or to
    the entry of its own page whose title it is.
    """
    titles = [_plain(section.title) for section in sections]
    here = NOWHERE
    for block in blocks:
        while here + 1 < len(sections) and sections[here + 1].page < block.page:
            here += 1
        here = _heading(block, sections, titles, here)
        yield here


def _heading(block: Block, sections: Sequence[Section], titles: Sequence[str], here: int) -> int:
    """The entry that this block is the heading of; else the one before."""
    first = _plain(block.text.partition("\n")[0][:300])
    if not first:
        return here
    for at in range(here + 1, min(here + 1 + LOOK_AHEAD, len(sections))):
        if sections[at].page > block.page:
            break
        title = titles[at]
        if title and (first == title or _is_title(block, first, title, sections[at])):
            return at
    return here


def _is_title(block: Block, first: str, title: str, section: Section) -> bool:
    """Is it the title with its number in front, or in a heading with something else around it?"""
    if first in _heads(section):
        return True
    return block.kind == "heading" and (title.endswith(first) or first.endswith(title))
