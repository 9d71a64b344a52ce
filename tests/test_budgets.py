"""Each package has a budget of lines, each folder one of files, and each class a name of its own.

A change that needs more lines raises the budget in the same commit, with a reason. Names of aliases of types are not
counted.
"""

import re
from collections import Counter, defaultdict
from pathlib import Path

import longhouse

ROOT = Path(longhouse.__file__).parent

# In November 2026 four were raised for longer names and more packages to import from: api, cli, runtime, store.
BUDGETS = {
    ".": 1_760,  # texts that grow; cron and its moments; what agents do, counted; trace contexts; prices of models
    "agents": 3_790,  # tools of clients; answers in a format; classes by import string; requests that grow by pieces
    "api": 18_490,  # webhooks and schedules; Responses as real clients send them, MCP, A2A; forks and replays
    "app": 910,  # the composition root, a file for each part that it opens
    "catalog": 870,  # tools of files
    "cli": 6_780,  # the supervisor of `serve`; `webhooks`, `schedules`; `replay`, `mcp`; `init` and `dev`; `erase`
    "config": 1_450,  # mistakes in files; tools, packages and classes in files; files of SGR-Agent Core
    "integrations": 2_310,  # webhooks: what is told, and how it is sent; turns that no collector got; traces
    "journal": 3_410,  # forks; calls of clients; whose probe is asked; steps that lost workers; working memory
    "memory": 5_540,  # working memory, documents, their parsers and who reads next, recall, the ledger
    "models": 2_590,  # bounded counts; SOCKS proxies
    "runtime": 5_390,  # reservations; rehearsals; results of clients; schedules; outbox; what keeps NATS away
    "search": 2_360,  # passages of documents and memory; only candidates that decide are read; postings that are kept
    "store": 14_970,  # the pool of connections; webhooks, schedules, forks, responses; shared commits; signs of vectors
    "tools": 6_510,  # gRPC tools; tools of clients; names in any spelling; results that are remembered; documents
}

MOST_FILES = 19
"""Python files in one folder: more cannot be taken in at a glance, and some of them belong in a folder of their own."""
CLASS = re.compile(r"^ *class (\w+)\b[^\n]*[:(\[]", re.MULTILINE)
"""Where a class is defined. Sources are read as text: to parse all of them takes ten seconds of a processor."""


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
