"""Tables of what was measured, and the machine on which."""

import os
import platform
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

console = Console(width=160)


def show(title: str, rows: Sequence[Mapping[str, Any]]) -> None:
    table = Table(title=title, title_justify="left")
    for name in rows[0]:
        table.add_column(name, justify="right")
    for row in rows:
        table.add_row(*(str(value) for value in row.values()))
    console.print(table)


def machine() -> str:
    info = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    names = [line.partition(":")[2].strip() for line in info if line.startswith("model name")]
    model = names[0] if names else platform.processor() or platform.machine()
    return f"{os.cpu_count()} cores of {model}, Python {platform.python_version()}, {datetime.now(UTC):%Y-%m-%d}"
