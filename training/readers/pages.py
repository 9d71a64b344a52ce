"""Pages in Markdown, out of checkouts: commands with examples, and the same page in several languages."""

import re
from collections.abc import Iterator
from typing import Final

from training.archives import Archive
from training.rows import Row, clean, first_sentence, pair, parallel, spaced

RATIOS: Final = {"ru": (0.6, 2.2), "zh": (0.12, 0.9)}
"""How long a translation is beside its English; what is far off is not its translation."""
MOST_OF_A_PAGE: Final = 60
LONGEST: Final = 420

_HEAD: Final = re.compile(r"(?m)^> (?!.*https?://)(.+)$")
_EXAMPLE: Final = re.compile(r"(?m)^- (.+)\n\n`(.+)`")
_FRONT: Final = re.compile(r"\A\ufeff?---.*?\n---\s*", re.DOTALL)
_CODE: Final = re.compile(r"```.*?```|<!--.*?-->", re.DOTALL)


def tldr(archive: Archive) -> Iterator[Row]:
    for name in archive.names:
        if not re.match(r"pages/.*\.md$", name):
            continue
        heads, examples = _command(archive.text(name))
        command, about = spaced(name.split("/")[-1][:-3]), " ".join(heads)
        yield from pair("tldr", first_sentence(about), f"{command}: {' '.join(said for said, _ in examples[:4])[:300]}")
        for said, _ in examples[:6]:
            yield from pair("tldr", said, f"{command}: {about[:250]}")
        for language in ("ru", "zh"):
            other = f"pages.{language}{name[5:]}"
            if other in archive:
                yield from _translated(language, _command(archive.text(other)), (heads, examples))


Page = tuple[list[str], list[tuple[str, str]]]


def _command(text: str) -> Page:
    examples = [(clean(re.sub(r"[\[\]]", "", said)).rstrip(":"), _bare(code)) for said, code in _EXAMPLE.findall(text)]
    return [clean(line) for line in _HEAD.findall(text)], examples


def _bare(code: str) -> str:
    """A command without what was translated of it."""
    return re.sub(r"\{\{.*?\}\}|\W|[а-яё\u4e00-\u9fff]", "", code)


def _translated(language: str, foreign: Page, english: Page) -> Iterator[Row]:
    for said, meant in zip(foreign[0], english[0], strict=False):
        yield from parallel("tldr", language, said, meant)
    by_code = {code: said for said, code in english[1]}
    for said, code in foreign[1]:
        yield from parallel("tldr", language, said, by_code.get(code))


def documents(archive: Archive) -> Iterator[Row]:
    """`docs/en/…` beside `docs/ru/…` and `docs/zh/…`; paragraphs belong together where both pages have as many."""
    for name in archive.names:
        if not re.search(r"(^|/)en/.*\.md$", name):
            continue
        for language in ("ru", "zh"):
            other = re.sub(r"(^|/)en/", rf"\1{language}/", name, count=1)
            if other in archive:
                yield from _aligned(language, _sections(archive.text(other)), _sections(archive.text(name)))


def _sections(text: str) -> list[list[str]]:
    plain = _CODE.sub("", _FRONT.sub("", text))
    return [
        [block.strip() for block in re.split(r"\n\s*\n|\n(?=\s*(?:[-*]|\d+\.) )", section) if block.strip()]
        for section in re.split(r"(?m)^#{1,6} ", plain)
    ]


def _aligned(language: str, foreign: list[list[str]], english: list[list[str]]) -> Iterator[Row]:
    least, most = RATIOS[language]
    found = 0
    for said, meant in zip(foreign, english, strict=False) if len(foreign) == len(english) else ():
        for one, other in zip(said, meant, strict=False) if len(said) == len(meant) else ():
            if found < MOST_OF_A_PAGE and least < len(one) / len(other) < most and len(one) < LONGEST:
                found += 1
                yield from parallel("documents", language, re.sub(r"^\W+", "", one), re.sub(r"^\W+", "", other))
