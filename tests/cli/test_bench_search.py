"""`longhouse bench search` on a handful of tools, as somebody would run it on their own."""

import json
import math
import subprocess
from pathlib import Path
from typing import Any

import msgspec
import pytest

from forked_server import completed
from longhouse.cli.bench.search import BenchQuery, BenchTool, Measured, measure, table
from longhouse.errors import SetupError

TOOLS = [
    {"tool_id": "sky::get_forecast", "description": "The weather of the next days", "agent_id": "sky"},
    {"tool_id": "sky::get_tides", "description": "High and low water at a beach", "agent_id": "sky"},
    {"tool_id": "post::send_letter", "description": "Delivers a letter", "parameters": {"stamp": {"type": "string"}}},
    {"tool_id": "rail::timetable", "description": "Departures of trains", "agent_id": "rail"},
]
AGENTS = [
    {"agent_id": "sky", "description": "Knows what comes from above"},
    {"agent_id": "rail", "description": "Knows the railway"},
]
QUERIES = [
    {
        "query": "How is the weather, and when does my train depart?",
        "steps": ["weather of the next days", "departures of trains"],
        "relevant": ["sky::get_forecast", "rail::timetable"],
        "relevant_agents": ["sky", "rail"],
    },
    {"query": "which stamp for my letter", "relevant": ["post::send_letter"]},
    {"query": "nothing is relevant to this", "relevant": []},
]


def run(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    files: dict[str, list[Any]] = {"tools": TOOLS, "queries": QUERIES, "agents": AGENTS}
    command = ["bench", "search"]
    for name, rows in files.items():
        path = folder / f"{name}.jsonl"
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        command += [f"--{name}", str(path)]
    return completed(*command, *options, folder=folder)


def test_one_object_says_how_good_and_how_fast_it_was(tmp_path: Path) -> None:
    done = run(tmp_path, "--json", "--by-step")
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["tools"] == 4
    assert told["queries"] == 2
    assert told["r_at_5"] == told["r_at_10"] == told["c_at_10"] == told["mrr"] == 1
    assert 0 < told["r_at_1"] <= 0.75
    assert 0 < told["ndcg_at_10"] <= 1
    assert 0 < told["p50_ms"] <= told["p95_ms"]
    assert told["agents"]["queries"] == 1
    assert told["agents"]["r_at_5"] == 1
    assert told["embeddings"].startswith("longhouse/table-")


def test_vectors_can_be_left_out_or_asked_for(tmp_path: Path) -> None:
    done = run(tmp_path, "--json", "--embeddings", "none")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["embeddings"] is None
    done = run(tmp_path, "--json", "--embeddings", "endpoint")
    assert done.returncode == 1
    assert "LONGHOUSE_EMBEDDINGS_BASE_URL" in done.stderr


async def test_data_may_leave_out_what_it_does_not_know() -> None:
    tools = [
        {"tool_id": "t1", "name": "get_forecast", "description": None, "parameters": None},
        {"tool_id": "t2", "name": "send_letter", "description": "", "parameters": {"properties": {"stamp": {}}}},
        {"tool_id": "t3", "name": None, "description": "Departures of trains", "agent_id": None},
    ]
    queries = [
        {"query": "forecast", "relevant": ["t1"], "steps": None, "relevant_agents": None},
        {"query": "stamp", "relevant": ["t2"]},
        {"query": "trains", "relevant": ["t3"]},
        {"query": "whatever", "relevant": None},
    ]
    given = msgspec.convert(tools, list[BenchTool]), msgspec.convert(queries, list[BenchQuery])
    assert (await measure(*given, [], None))["r_at_1"] == 1


def test_figures_are_those_of_the_textbook() -> None:
    measured = Measured(found=[(["a", "x", "b"], {"a", "b"}), (["x", "c"], {"c"})], seconds=[0.001, 0.003])
    figures = measured.figures()
    assert figures["r_at_1"] == pytest.approx((0.5 + 0) / 2)
    assert figures["r_at_5"] == figures["c_at_10"] == 1
    assert figures["mrr"] == pytest.approx((1 + 0.5) / 2)
    assert figures["ndcg_at_10"] == pytest.approx(((1 + 0.5) / (1 + 1 / math.log2(3)) + 1 / math.log2(3)) / 2)
    assert figures["p50_ms"] == pytest.approx(2)


def test_the_table_has_a_row_for_tools_and_one_for_agents() -> None:
    figures = Measured(found=[(["a"], {"a"})], seconds=[0.001]).figures()
    shown = table({**figures, "tools": 4, "embeddings": None, "agents": {**figures, "tools": 2}})
    assert shown.row_count == 2
    assert [column.header for column in shown.columns][1] == "r_at_1"


async def test_nothing_to_measure_is_said_in_a_sentence() -> None:
    with pytest.raises(SetupError, match="nothing to measure"):
        await measure([], [], [], None)
