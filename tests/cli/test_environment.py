"""Variables that set nothing are named at the start; settings that were renamed are read under both names."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from longhouse.cli import environment
from longhouse.cli.main import cli
from longhouse.settings import Settings
from server_helpers import process


def test_a_name_with_a_mistake_is_told_with_the_one_that_was_meant() -> None:
    given = {
        "LONGHOUSE_LLM_BASEURL": "sEcReT9",
        "longhouse_databse_url": "sEcReT9",
        "LONGHOUSE_ЯЗЫК": "ru",
        "LONGHOUSE_LOG_DIR": "logs",
        "LONGHOUSE_SECRET_ANY": "sEcReT9",
        "LONGHOUSE_API_KEY": "sEcReT9",
        "LONGHOUSE_PORT": "8400",
        "LONGHOUSE_HOSTT": "x",
        "PATH": "/bin",
    }
    told = [sentence for _, sentence in environment.problems(given)]
    assert told == [
        "LONGHOUSE_DATABSE_URL is no setting, and does nothing: did you mean LONGHOUSE_DATABASE_URL?",
        "LONGHOUSE_HOSTT is no setting, and does nothing: did you mean LONGHOUSE_HOST?",
        "LONGHOUSE_LLM_BASEURL is no setting, and does nothing: did you mean LONGHOUSE_LLM_BASE_URL?",
        "LONGHOUSE_LOG_DIR is called LONGHOUSE_SESSION_LOG_DIR now: the old name still works.",
        "LONGHOUSE_ЯЗЫК is no setting, and does nothing: docs/settings.md lists the settings.",
    ]


def test_an_env_file_that_is_no_text_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / ".env").write_bytes(b"\xff\xfe\x00")
    done = CliRunner().invoke(cli, ["migrate", "--check"])
    assert (done.exit_code, done.output) == (
        1, "longhouse: The file .env of this folder cannot be read: make it UTF-8 text, or move it.\n"
    )  # fmt: skip


def test_folders_of_logs_are_read_under_both_names(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for former, name in (("log_dir", "session_log_dir"), ("logs_dir", "agent_log_dir")):
        assert getattr(Settings(**{former: tmp_path}), name) == tmp_path
        monkeypatch.setenv(f"LONGHOUSE_{former.upper()}", "old")
        assert getattr(Settings(), name) == Path("old")
        assert getattr(Settings(**{name: tmp_path}), name) == tmp_path
        monkeypatch.setenv(f"LONGHOUSE_{name.upper()}", "new")
        assert getattr(Settings(), name) == Path("new"), "the present name wins"


async def test_a_process_that_stays_says_its_version_and_what_sets_nothing(dsn: str) -> None:
    async with process(database_url=dsn, databaseurl="sEcReT9", logs_dir="/tmp/none") as house:
        said = "\n".join(house.said)
        assert " serves on http://" in house.said[-1]
        assert house.said[-1].startswith("longhouse 0.")
        records = {record["event"]: record for record in map(json.loads, house.said[:-1])}
        assert "did you mean LONGHOUSE_DATABASE_URL?" in records["setting_unknown"]["message"]
        assert "LONGHOUSE_AGENT_LOG_DIR now" in records["setting_renamed"]["message"]
        assert "sEcReT9" not in said
