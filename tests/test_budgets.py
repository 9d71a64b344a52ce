"""Each package has a budget of tokens, each folder one of files, and each class a name of its own.

Size is counted in tokens of code, without comments, docstrings and layout: nothing is won by fuller lines. The sum only
falls; a change that needs more finds it elsewhere. Names of aliases of types are not counted.
"""

import re
import tokenize
from collections import Counter, defaultdict
from functools import cache
from pathlib import Path

import longhouse

ROOT = Path(longhouse.__file__).parent

BUDGETS = {
    ".": 11_528,
    "agents": 28_087,
    "api": 132_438,
    "app": 8_418,
    "catalog": 6_557,
    "cli": 48_407,
    "config": 11_793,
    "integrations": 17_377,
    "journal": 23_996,
    "memory": 40_331,
    "models": 18_103,
    "runtime": 41_447,
    "search": 17_890,
    "store": 84_014,
    "tools": 47_217,
}

MOST_FILES = 19
"""Python files in one folder: more cannot be taken in at a glance, and some of them belong in a folder of their own."""
CLASS = re.compile(r"^ *class (\w+)\b[^\n]*[:(\[]", re.MULTILINE)
"""Where a class is defined. Sources are read as text: to parse all of them takes ten seconds of a processor."""
LAYOUT = {tokenize.ENCODING, tokenize.COMMENT, tokenize.NL, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}


def tokens_in(file: Path) -> int:
    """The tokens of a file's code; a statement that is nothing but a text is a docstring."""
    count, statement = 0, list[int]()
    with file.open("rb") as source:
        for token in tokenize.tokenize(source.readline):
            if token.type in LAYOUT:
                continue
            if token.type != tokenize.NEWLINE:
                statement.append(token.type)
                continue
            if any(kind != tokenize.STRING for kind in statement):
                count += len(statement)
            statement = []
    return count


@cache
def sizes() -> Counter[str]:
    """The tokens of each package; `.` stands for the files beside the packages."""
    found = Counter[str]()
    for file in ROOT.rglob("*.py"):
        place = file.relative_to(ROOT)
        found[place.parts[0] if len(place.parts) > 1 else "."] += tokens_in(file)
    return found


def test_every_package_has_a_budget_and_keeps_to_it() -> None:
    assert sizes().keys() == BUDGETS.keys()
    over = {package: size - BUDGETS[package] for package, size in sizes().items() if size > BUDGETS[package]}
    assert not over, f"packages over their budget of tokens, and by how many: {over}"


def test_no_folder_is_too_full() -> None:
    files = Counter(str(file.parent.relative_to(ROOT)) for file in ROOT.rglob("*.py"))
    assert files["store"] > 1
    full = {folder: count for folder, count in files.items() if count > MOST_FILES}
    assert not full, f"folders with more than {MOST_FILES} Python files: {full}"


def test_every_class_has_a_name_of_its_own() -> None:
    homes = defaultdict(list)
    for file in ROOT.rglob("*.py"):
        for name in CLASS.findall(file.read_text("utf-8")):
            homes[name].append(str(file.relative_to(ROOT)))
    assert len(homes) > 500
    shared = {name: files for name, files in homes.items() if len(files) > 1}
    assert not shared, f"names that say two things, and where: {shared}"
