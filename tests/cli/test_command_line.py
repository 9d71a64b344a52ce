"""The command line as a newcomer meets it: mistakes end in one sentence."""

import asyncio
import json
import os
import socket
import subprocess
import sys
import zipfile
from pathlib import Path

import msgspec
import pytest

from forked_server import completed
from longhouse import clock
from longhouse.cli.catalog import read_file
from longhouse.cli.chat.command import talk
from longhouse.errors import SetupError
from longhouse.integrations.redis.client import open_redis
from longhouse.settings import Settings
from longhouse.store.backups.backup import BackupManifest
from server_helpers import Serving, data_folder


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("LONGHOUSE_PORT", "abc", "LONGHOUSE_PORT: Input should be a valid integer"),
        ("LONGHOUSE_PORT", "99999999", "LONGHOUSE_PORT: Input should be less than or equal to 65535"),
        ("LONGHOUSE_LOG_LANGUAGE", "de", "LONGHOUSE_LOG_LANGUAGE: Input should be 'en', 'ru' or 'zh'"),
        ("LONGHOUSE_LOG_LEVEL", "verbose", "LONGHOUSE_LOG_LEVEL: Input should be 'debug', 'info'"),
    ],
)
def test_a_wrong_setting_is_named(monkeypatch: pytest.MonkeyPatch, name: str, value: str, said: str) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(SetupError, match=said):
        Settings()


@pytest.mark.parametrize(
    "address",
    [
        *("nats://me:se/sEcReT9@host:4222", "nats://me:se#sEcReT9@host", "nats://me:se?sEcReT9@host:4222"),
        *("nats://me:4222/sEcReT9@host", "nats://me:se,sEcReT9@host", "nats://[sEcReT9@host", "http://me:sEcReT9@host"),
        "nats://me:sEcReT9@host,nats://you:sEcReT9@host",
    ],
)
def test_an_address_of_nats_that_is_none_is_refused_and_not_repeated(address: str) -> None:
    with pytest.raises(SetupError, match="LONGHOUSE_NATS_URL: should ") as refused:
        Settings(nats_url=address)
    assert "sEcReT9" not in str(refused.value)
    assert refused.value.__cause__ is None
    assert Settings(nats_url="").nats_url is None
    assert Settings(nats_url="nats://me:a%2Fb@host:4222,tls://me:a%2Fb@[::1],host:4222,host").nats_url


WRITES = """
import logging, structlog
from longhouse.cli import running
from longhouse.settings import Settings
from longhouse.store.postgres.server import to_stderr

async def main(settings):
    structlog.get_logger().info("one", message="two\\nlines")
    logging.getLogger("library").warning("three")
    to_stderr("four")

running.run(Settings(), main)
"""


EMBEDDED = """
import asyncio
import structlog
from longhouse.app import open_app
from longhouse.settings import Settings

async def main():
    try:
        async with open_app(Settings(llm_base_url="no address", database_url="postgres://nobody@127.0.0.1:1/none")):
            pass
    except Exception:
        structlog.get_logger().warning("one", message="two")

asyncio.run(main())
"""


def written(program: str, most: int) -> list[bytes]:
    """What each write of a program to its log has, up to so many. As in our container, nothing is buffered."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    with ours, theirs:
        command = [sys.executable, "-c", program]
        done = subprocess.run(command, stderr=theirs.fileno(), env={**os.environ, "PYTHONUNBUFFERED": "1"}, check=False)
        assert done.returncode == 0
        theirs.close()
        ours.settimeout(10)
        return [ours.recv(65536) for _ in range(most)]


def test_each_line_that_several_processes_may_write_is_one_write() -> None:
    """A line in two pieces would have another one's in between."""
    lines = written(WRITES, 3)
    assert [line.endswith(b"\n") and line.count(b"\n") == 1 for line in lines] == [True] * 3
    assert [json.loads(line)["event"] for line in lines[:2]] == ["one", "library_log"]


def test_so_it_is_inside_a_program_of_somebody() -> None:
    [line] = written(EMBEDDED, 1)
    assert line.endswith(b"\n")
    assert b"one" in line


def test_what_is_refused_ends_in_one_sentence(tmp_path: Path) -> None:
    done = completed("serve", folder=tmp_path, LONGHOUSE_PORT="abc")
    assert done.returncode == 1
    assert done.stderr.startswith("longhouse: LONGHOUSE_PORT: ")
    assert "Traceback" not in done.stderr


async def test_who_starts_a_second_server_on_a_port_is_told_who_has_it(serving: Serving, tmp_path: Path) -> None:
    async with serving() as house:
        port = house.url.rpartition(":")[2]
        done = await asyncio.to_thread(completed, "serve", folder=tmp_path, LONGHOUSE_PORT=port)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == (
        f"longhouse: port {port} on 127.0.0.1 cannot be used (a Longhouse serves there: stop it, or use it); "
        "choose another with --port."
    )


def test_a_place_that_cannot_be_used_ends_in_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    endless = "x" * 300
    with zipfile.ZipFile(tmp_path / "house.backup", "w") as archive:
        made = msgspec.json.encode(
            BackupManifest(made_at=clock.now(), postgres="18", migrations=(), tables=(), sequences=())
        )
        archive.writestr("manifest.json", made)
    with data_folder() as house:
        assert completed("migrate", folder=tmp_path, LONGHOUSE_DATA_DIR=str(house)).returncode == 0
        for where, command in (
            (str(house), ("backup", endless)),
            (str(tmp_path / "file" / "x"), ("restore", "house.backup")),
            (str(tmp_path / endless), ("restore", "house.backup")),
            *((str(tmp_path / endless), (one,)) for one in ("doctor", "serve", "seed")),
            (str(tmp_path / endless), ("backup", "new.backup")),
            (str(tmp_path / endless), ("sessions", "list")),
        ):
            done = completed(*command, folder=tmp_path, LONGHOUSE_DATA_DIR=where)
            assert done.returncode == 1
            told = done.stdout if command == ("doctor",) else done.stderr
            assert "cannot be used (" in told or "cannot be written (" in told, told
            assert "Traceback" not in done.stderr + done.stdout
            assert "[Errno" not in done.stdout
    # A folder of something else is not made a house by a command that only looks.
    done = completed("sessions", "list", folder=tmp_path, LONGHOUSE_DATA_DIR=str(tmp_path))
    assert (done.returncode, "there is no Longhouse in" in done.stderr) == (1, True)
    assert {one.name for one in tmp_path.iterdir()} == {"file", "house.backup"}


async def test_an_address_of_redis_that_is_none_is_named() -> None:
    with pytest.raises(SetupError, match="LONGHOUSE_REDIS_URL is not an address"):
        async with open_redis("foo"):
            pass


@pytest.mark.parametrize("secret", ["pgSEC/RET", "pgSEC#RET", "pgSEC?RET", "pgSEC[RET"])
def test_an_address_of_postgres_that_is_none_tells_nothing_of_its_password(tmp_path: Path, secret: str) -> None:
    done = completed(
        "migrate", folder=tmp_path, LONGHOUSE_DATABASE_URL=f"postgresql://me:{secret}@127.0.0.1:1/longhouse"
    )
    assert done.returncode == 1
    assert done.stderr.startswith("longhouse: LONGHOUSE_DATABASE_URL is not an address such as postgresql://")
    assert "are written as %2F %23" in done.stderr
    assert "SEC" not in done.stdout + done.stderr
    assert done.stderr.count("\n") == 1


def test_who_looks_in_the_wrong_folder_is_told_so_and_leaves_no_trace(tmp_path: Path) -> None:
    done = completed("sessions", "list", folder=tmp_path)
    assert done.returncode == 1
    assert done.stderr.startswith(f"longhouse: there is no Longhouse in {tmp_path / '.longhouse'}")
    assert list(tmp_path.iterdir()) == []
    nasty = tmp_path / "a\x1b]52;c;x\x07\u202e"
    nasty.mkdir()
    done = completed("sessions", "list", folder=nasty)
    assert f"{tmp_path}/a\\u001b]52;c;x\\u0007\\u202e" in done.stderr, "the terminal obeys no sentence"


def test_a_line_that_is_not_json_is_named(tmp_path: Path) -> None:
    (tmp_path / "x.jsonl").write_text('{"name": "a"}\n{\n')
    with pytest.raises(SetupError, match=r"x\.jsonl:2 is not JSON"):
        read_file(tmp_path / "x.jsonl")


async def test_any_text_can_be_said_and_the_address_may_end_in_v1(serving: Serving, tmp_path: Path) -> None:
    async with serving() as house:
        typed = "hello [/b] world\nagain\n"
        address = f"{house.url}/v1/"
        named = ("--model", "master", "--url", address)
        done = await asyncio.to_thread(completed, "chat", *named, folder=tmp_path, typed=typed)
        assert done.returncode == 0, done.stderr
        assert done.stdout.count("you>") == 3
        assert "[/b]" in done.stdout


async def test_who_is_not_there_is_said_in_one_sentence(serving: Serving, tmp_path: Path) -> None:
    async with serving() as house:
        said = await asyncio.to_thread(
            completed, "chat", "--model", "nobody", "--url", str(house.url), folder=tmp_path, typed="hello\n"
        )
        assert said.returncode == 1
        assert "'nobody' does not exist" in said.stderr
    async with serving(admin_key="key-of-this-test-only-3fa8") as house:
        said = await asyncio.to_thread(completed, "chat", "--url", house.url, folder=tmp_path, typed="hello\n")
        assert said.stderr.strip() == (
            f"longhouse: {house.url} asks for an API key: give one with --key, or as LONGHOUSE_API_KEY."
        )
    said = await asyncio.to_thread(completed, "chat", "--url", house.url, folder=tmp_path, typed="hello\n")
    assert said.stderr.strip() == f"longhouse: Longhouse cannot be reached at {house.url}: Connection refused"
    for address in ("127.0.0.1:8400", "ftp://somewhere", "http://"):
        with pytest.raises(SetupError, match=f"'{address}' is not an address"):
            await talk(address, "master")
