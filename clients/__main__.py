"""Runs every client through every scenario, and prints who passed; exits with 1 if one failed."""

import argparse
import asyncio
import json
import logging
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import structlog
import uvloop

from clients.house import House, open_house
from clients.model import SCENARIOS

ROOT: Final = Path(__file__).parent
VENV: Final = ROOT.parent / ".venv-clients"
PATIENCE: Final = 600.0
"""Seconds for all scenarios of one client."""
PYTHON: Final = ("openai_package", "agents_sdk", "langchain_chat")
JAVASCRIPT: Final = ("openai_package", "agents_sdk", "ai_sdk")
MARKS: Final = {"passed": "PASS", "failed": "FAIL", "lacks": "-", "": "FAIL"}


@dataclass
class Run:
    """What one client program said."""

    client: str
    results: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    problem: str = ""
    """Why the program itself failed."""

    def mark(self, scenario: str) -> str:
        return MARKS[str(self.results.get(scenario, {}).get("result", ""))]

    @property
    def has_failed(self) -> bool:
        return bool(self.problem) or any(self.mark(name) == "FAIL" for name in SCENARIOS)


async def run(house: House, key: str, command: Sequence[str], name: str) -> Run:
    environment = {
        **os.environ,
        "OPENAI_BASE_URL": f"{house.url}/v1",
        "OPENAI_API_KEY": key,
        # Nothing of what the clients do is told to anybody else.
        "OPENAI_AGENTS_DISABLE_TRACING": "1",
        "LANGSMITH_TRACING": "false",
        "AI_SDK_TELEMETRY_DISABLED": "1",
    }
    process = await asyncio.create_subprocess_exec(
        *command, env=environment, cwd=ROOT.parent, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
    )
    told = Run(name)
    try:
        async with asyncio.timeout(PATIENCE):
            await _follow(house, process, told)
            if code := await process.wait():
                told.problem = f"it ended with {code}"
    except TimeoutError:
        told.problem = f"it had not ended after {PATIENCE:g} seconds"
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    return told


async def _follow(house: House, process: asyncio.subprocess.Process, told: Run) -> None:
    """Reads the lines of a program, and does what it asks for."""
    assert process.stdout is not None
    assert process.stdin is not None
    while raw := await process.stdout.readline():
        line = json.loads(raw)
        if "client" in line:
            told.client = line["client"]
        elif "scenario" in line:
            told.results[line["scenario"]] = line
        elif line["wants"] == "slowness":
            house.model.is_slow = True
        elif line["wants"] == "kill":
            await house.kill()
            await house.start()
        if "wants" in line:
            process.stdin.write(b"done\n")
            await process.stdin.drain()


def commands(only: Sequence[str]) -> dict[str, list[str]]:
    python = {f"python/{name}": [str(VENV / "bin/python"), "-m", f"clients.python.{name}"] for name in PYTHON}
    node = str(VENV / "bin/node")
    javascript = {f"javascript/{name}": [node, str(ROOT / f"javascript/{name}.mjs")] for name in JAVASCRIPT}
    return {name: command for name, command in (python | javascript).items() if not only or name in only}


def table(runs: Sequence[Run]) -> str:
    rows = [["client", *SCENARIOS], *([run.client, *(run.mark(name) for name in SCENARIOS)] for run in runs)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    return "\n".join(lines)


async def main(only: Sequence[str]) -> int:
    async with open_house() as house:
        key = await house.new_key()
        runs = [await run(house, key, command, name) for name, command in commands(only).items()]
    for one in runs:
        for name, result in one.results.items():
            if why := result.get("why"):
                print(f"{one.client}, {name}: {why}")
        if one.problem:
            print(f"{one.client}: {one.problem}")
    print(table(runs), flush=True)
    return 1 if not runs or any(one.has_failed for one in runs) else 0


if __name__ == "__main__":
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    parser = argparse.ArgumentParser(prog="python -m clients", description=__doc__)
    parser.add_argument("only", nargs="*", help="such as javascript/ai_sdk; all without")
    sys.exit(uvloop.run(main(parser.parse_args().only)))
