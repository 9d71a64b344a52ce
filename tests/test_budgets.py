"""Each package has a budget of lines. A change that needs more raises the budget in the same commit, with a reason."""

from pathlib import Path

import longhouse

ROOT = Path(longhouse.__file__).parent

BUDGETS = {
    ".": 1_400,
    "agents": 2_900,
    "api": 8_390,  # limits of keys in a fleet; documents, memory files, the ledger; lists, questions; the console
    "catalog": 710,
    "cli": 3_700,  # `bench recall`, `documents` of all owners, `ledger`; the chat on terminals, acting and settling
    "config": 990,
    "integrations": 1_060,
    "journal": 2_860,  # steps that lost their workers; working memory; counters, timelines; the words that decide
    "memory": 5_490,  # working memory, documents, their parsers and who reads next, recall, the ledger
    "models": 1_850,
    "runtime": 3_760,  # who is next, by owner; titles that the model gives; the bus between processes; probes
    "search": 2_040,  # passages of documents, interactions, notes, memory files; a bounded wait for vectors
    "store": 9_140,  # places and permits in a fleet; counters, statistics; passages, documents, the ledger
    "tools": 5_400,  # results that are remembered; tools that read documents; processes of their own
}


def lines_of(package: str) -> int:
    """Lines of all Python files of a package; `.` stands for the files beside the packages."""
    files = ROOT.glob("*.py") if package == "." else (ROOT / package).rglob("*.py")
    return sum(len(file.read_text("utf-8").splitlines()) for file in files)


def test_every_package_has_a_budget() -> None:
    packages = {folder.name for folder in ROOT.iterdir() if (folder / "__init__.py").exists()}
    assert packages | {"."} == BUDGETS.keys()


def test_every_package_keeps_to_its_budget() -> None:
    over = {package: lines_of(package) - budget for package, budget in BUDGETS.items() if lines_of(package) > budget}
    assert not over, f"packages over their budget of lines, and by how many: {over}"
