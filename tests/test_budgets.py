"""Each package has a budget of lines. A change that needs more raises the budget in the same commit, with a reason."""

from pathlib import Path

import longhouse

ROOT = Path(longhouse.__file__).parent

BUDGETS = {
    ".": 1_890,  # what agents do, counted; trace contexts; prices of models; tools and searches of files
    "agents": 3_020,  # classes by import string
    "api": 11_440,  # forks, replays; types of all answers; metrics of agents; erasing; limits of keys; documents; lists
    "catalog": 870,  # tools of files
    "cli": 5_380,  # `replay`; `init` and `dev`; `erase`; `bench recall`, `documents`, `ledger`; the chat on terminals
    "config": 1_400,  # tools, packages and classes in files; files of SGR-Agent Core
    "integrations": 1_550,  # traces: their spans and how they are sent
    "journal": 3_190,  # branches; whose probe is asked; steps that lost workers; working memory; counters, timelines
    "memory": 5_520,  # working memory, documents, their parsers and who reads next, recall, the ledger
    "models": 1_980,  # SOCKS proxies
    "runtime": 4_690,  # drafts on recorded turns; budgets; what keeps NATS away; who is next; titles; the bus; probes
    "search": 2_040,  # passages of documents, interactions, notes, memory files; a bounded wait for vectors
    "store": 12_270,  # forks; places and permits in a fleet; counters, statistics; passages, documents, the ledger
    "tools": 5_570,  # keys of branches; results that are remembered; tools that read documents; processes of their own
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
