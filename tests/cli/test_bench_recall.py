"""`longhouse bench recall` on made-up talks, as somebody would run it on their own."""

import json
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from forked_server import completed
from longhouse.cli.bench.recall import date_of, measure, read_questions, read_turns
from longhouse.errors import SetupError
from longhouse.models.embedding_table import EmbeddedEmbedder
from talks import CHINESE, ENGLISH, RUSSIAN, turns_and_questions


def written(path: Path, lines: Sequence[Any]) -> Path:
    path.write_text("".join(f"{json.dumps(line)}\n\n" for line in lines))
    return path


def run(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    done = completed("bench", "recall", *options, folder=folder)
    assert done.returncode == 0, done.stderr
    return done


def test_turns_that_hold_an_answer_are_found_and_more_with_their_neighbours(tmp_path: Path) -> None:
    turns, questions = turns_and_questions([ENGLISH], chatter=8)
    questions.append({"question": "Who?", "turns": ["D99:1"], "conversation": "nora-theo"})
    files = [
        "--turns", str(written(tmp_path / "T.jsonl", turns)), "--qa", str(written(tmp_path / "Q.jsonl", questions))
    ]  # fmt: skip
    done = run(tmp_path, *files, "--json")
    told = json.loads(done.stdout)
    assert (told["turns"], told["left_out"]) == (len(turns), 1)
    assert told["embeddings"].startswith("longhouse/table-")
    beside, alone = told["neighbours"], told["alone"]
    assert beside["queries"] == alone["queries"] == len(questions) - 1
    assert beside["r_at_10"] >= 0.72 > alone["r_at_10"] > 0.5
    assert beside["r_at_10"] > beside["r_at_5"] > 0.65
    assert beside["mrr"] > 0.5
    assert 0 < beside["p50_ms"] <= beside["p95_ms"]


def test_lines_may_use_other_names_and_a_wrong_one_is_named(tmp_path: Path) -> None:
    turns = read_turns(
        written(tmp_path / "T", [{"dia_id": 7, "content": "Hi", "role": "user", "date": "1:56 pm on 8 May, 2023"}])
    )
    assert (turns[0].id, turns[0].speaker) == ("7", "user")
    assert str(date_of(turns[0].date)) == "2023-05-08 13:56:00+00:00"
    assert date_of("some day") is None
    questions = read_questions(written(tmp_path / "Q", [{"query": "Who?", "evidence": "7"}]))
    assert (list(questions[0].turns), questions[0].conversation) == (["7"], None)
    with pytest.raises(SetupError, match="T, line 1 has no `text`"):
        read_turns(written(tmp_path / "T", [{"id": 1}]))
    with pytest.raises(SetupError, match="Q, line 3 is no JSON object"):
        read_questions(written(tmp_path / "Q", [{"question": "Who?", "turns": []}, 3]))


@pytest.mark.parametrize(
    ("turns", "said"),
    [
        ([{"id": 1, "text": ["Hi"]}], "T, line 1 has a `text` that is no text"),
        ([{"id": 1, "text": 5}], "T, line 1 has a `text` that is no text"),
        ([{"id": {"n": 1}, "text": "Hi"}], "T, line 1 has a `id` that is neither text nor a whole number"),
        ([{"id": True, "text": "Hi"}], "T, line 1 has a `id` that is neither text nor a whole number"),
        ([{"id": 1, "text": "Hi"}, {"id": "1", "text": "Ho"}], "T, line 3 has the id `1`, which an earlier line"),
        ([{"id": 1, "text": "", "conversation": "a"}] * 2, "earlier line of conversation `a` has: give each its own"),
    ],
)
def test_a_turn_that_cannot_be_read_is_named(tmp_path: Path, turns: list[Any], said: str) -> None:
    with pytest.raises(SetupError, match=said):
        read_turns(written(tmp_path / "T", turns))


def test_a_question_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(SetupError, match="Q, line 1 has a `question` that is no text"):
        read_questions(written(tmp_path / "Q", [{"question": ["Who?"], "turns": [1]}]))
    with pytest.raises(SetupError, match="Q, line 1 has a `turns` that is neither text nor a whole number"):
        read_questions(written(tmp_path / "Q", [{"question": "Who?", "turns": [None]}]))


def test_files_of_others_are_read_as_they_are_meant(tmp_path: Path) -> None:
    """They begin with a byte order mark, have turns without words, and name several turns in one text."""
    said = {"D1:1": "Olga keeps bees on the roof.", "D1:2": "", "D1:3, by Olga": "Honey is sold.", "D1:4": "A tram."}
    turns = written(tmp_path / "T", [{"id": name, "text": text} for name, text in said.items()])
    asked = ["D1:1; D1:4", ["D1:1,D1:4", "D9:9"], ["D1:1", "D1:3, by Olga"]]
    query = "Who keeps bees for honey, near a tram?"
    questions = written(tmp_path / "Q", [{"question": query, "turns": ids} for ids in asked])
    for path in (turns, questions):
        path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes().replace(b"\n", b"\r\n"))
    files = ["--turns", str(turns), "--qa", str(questions), "--embeddings", "none"]
    done = run(tmp_path, *files)
    headings, _, beside, alone = done.stdout.splitlines()[1:5]
    assert headings.replace("┃", " ").split() == ["R@1", "R@5", "R@10", "MRR", "p50", "ms", "p95", "ms", "questions"]
    for row in (beside, alone):
        cells = [cell.strip() for cell in row.strip("│").split("│")]
        assert cells[1:5] == ["50.0 %", "100.0 %", "100.0 %", "1.000"]
        assert cells[-1] == "3"
    assert "4 turns, vectors of none, words alone" in done.stdout
    assert "left out" not in done.stdout


async def test_russian_and_chinese_talks_are_found_with_their_neighbours_too(tmp_path: Path) -> None:
    turns, questions = turns_and_questions([RUSSIAN, CHINESE], chatter=4)
    said, asked = read_turns(written(tmp_path / "T", turns)), read_questions(written(tmp_path / "Q", questions))
    figures = await measure(said, asked, EmbeddedEmbedder())
    assert figures["neighbours"]["r_at_10"] > figures["alone"]["r_at_10"]
    assert figures["neighbours"]["r_at_10"] > 0.65


async def test_there_must_be_something_to_measure(tmp_path: Path) -> None:
    turns = read_turns(written(tmp_path / "T", [{"id": 1, "text": "Hi", "conversation": name} for name in "ab"]))
    nothing = read_questions(written(tmp_path / "Q", [{"question": "Who?", "turns": [2]}]))
    unclear = read_questions(written(tmp_path / "Q", [{"question": "Who?", "turns": [1]}]))
    with pytest.raises(SetupError, match="nothing to measure"):
        await measure(turns, nothing, None)
    with pytest.raises(SetupError, match="the same id"):
        await measure(turns, unclear, None)
