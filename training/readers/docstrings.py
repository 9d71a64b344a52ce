"""Docstrings: the first paragraph asks, the name with the second paragraph and the arguments answers."""

import ast
import re
import warnings
from collections.abc import Iterator
from typing import Final

from training.archives import Archive
from training.rows import Row, clean, pair, spaced

MOST_OF_A_FILE: Final = 60
MOST_OF_A_PACKAGE: Final = 6000

_NOT_OURS: Final = re.compile(r"(^|/)(tests?|testing|_?vendor(ed)?|node_modules|dist|migrations)(/|$)|/test_")
_SECTION: Final = re.compile(r"\s*(:param|Args|Arguments|Parameters|Returns|>>>|\.\.)")

Documented = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


def docstrings(archive: Archive) -> Iterator[Row]:
    found = 0
    for name in archive.names:
        if name.endswith(".py") and not _NOT_OURS.search(name) and found < MOST_OF_A_PACKAGE:
            rows = list(_of_module(archive.text(name)))[:MOST_OF_A_FILE]
            found += len(rows)
            yield from rows


def _of_module(code: str) -> Iterator[Row]:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # other people's escapes
            tree = ast.parse(code)
    except (SyntaxError, ValueError):
        return
    for node in ast.walk(tree):
        if isinstance(node, Documented) and not node.name.startswith("_"):
            yield from _of_definition(node)


def _of_definition(node: Documented) -> Iterator[Row]:
    paragraphs = re.split(r"\n\s*\n", ast.get_docstring(node) or "")
    asked = clean(paragraphs[0])
    if len(asked) < 15:
        return
    more = clean(paragraphs[1])[:200] if len(paragraphs) > 1 and not _SECTION.match(paragraphs[1]) else ""
    given = (
        [] if isinstance(node, ast.ClassDef) else [one.arg for one in node.args.args if one.arg not in ("self", "cls")]
    )
    yield from pair("docstrings", asked, f"{spaced(node.name)}: {more} {' '.join(map(spaced, given))}")
