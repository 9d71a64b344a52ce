"""Each package has a budget of lines. A change that needs more raises the budget in the same commit, with a reason."""

from pathlib import Path

import longhouse

ROOT = Path(longhouse.__file__).parent

BUDGETS = {
    ".": 1_520,  # prices of models; the address of NATS is checked
    "agents": 2_900,
    "api": 10_690,  # types of all answers; erasing; limits of keys; documents, memory, the ledger; lists; the console
    "catalog": 765,
    "cli": 4_380,  # `erase`; `bench recall`, `documents`, `ledger`; the chat on terminals, acting and settling
    "config": 990,
    "integrations": 1_070,
    "journal": 2_930,  # whose probe is asked; steps that lost workers; working memory; counters, timelines
    "memory": 5_510,  # working memory, documents, their parsers and who reads next, recall, the ledger
    "models": 1_850,
    "runtime": 4_190,  # budgets; what keeps NATS away, long drafts; who is next, by owner; titles; the bus; probes
    "search": 2_040,  # passages of documents, interactions, notes, memory files; a bounded wait for vectors
    "store": 11_510,  # places and permits in a fleet, its counts; counters, statistics; passages, documents, the ledger
    "tools": 5_460,  # results that are remembered; tools that read documents; processes of their own
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
