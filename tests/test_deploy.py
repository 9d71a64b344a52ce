"""The files for putting it into service can be read, and name settings, commands, paths and routes that are there.

There is no Docker here: an image is not built.
"""

import asyncio
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import yaml

from longhouse.api.watching import monitoring
from longhouse.cli.main import COMMANDS
from longhouse.settings import RENAMED, Settings, variable_of
from longhouse.store.backups import backup
from longhouse.store.database import Database
from pages import ROOT
from server_helpers import Serving

DEPLOY = ROOT / "deploy"
UNITS = sorted((DEPLOY / "systemd").glob("*.service"))
FILES = [ROOT / "Dockerfile", ROOT / "compose.yaml", ROOT / "docs" / "deployment.md", *DEPLOY.rglob("*.*")]
PROGRAM = "/opt/longhouse/bin/longhouse"
BACKUP = DEPLOY / "systemd" / "longhouse-backup.service"
BACKUPS = "/var/backups/longhouse"


def instructions() -> list[tuple[str, str]]:
    """The instructions of the Dockerfile, each on one line."""
    text = re.sub(r"^#.*\n", "", (ROOT / "Dockerfile").read_text("utf-8"), flags=re.MULTILINE)
    lines = text.replace("\\\n", " ").splitlines()
    return [(word, rest.strip()) for word, _, rest in (line.partition(" ") for line in lines if line.strip())]


def composed() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((ROOT / "compose.yaml").read_text("utf-8"))
    return found


def health_check() -> list[str]:
    [check] = [rest for word, rest in instructions() if word == "HEALTHCHECK"]
    command: list[str] = json.loads(check.partition("CMD ")[2])
    return command


def test_every_setting_that_is_named_is_one_and_has_its_present_name() -> None:
    known = {variable_of(name) for name in Settings.model_fields}
    former = {variable_of(name) for name in RENAMED}
    for file in FILES:
        named = set(re.findall(r"LONGHOUSE_[A-Z_]+[A-Z]", file.read_text("utf-8")))
        assert named <= known, (file.name, named - known)
        assert not named & former
    assert any("LONGHOUSE_TRUSTED_PROXIES" in file.read_text("utf-8") for file in FILES)


def test_the_image_is_made_of_what_is_there_and_is_not_root() -> None:
    made = instructions()
    bases = [rest.split()[0] for word, rest in made if word == "FROM"]
    assert len(bases) == 2
    assert all(re.fullmatch(r"python:3\.11-slim", base) for base in bases), "of no registry that is named"
    for _, rest in (one for one in made if one[0] == "COPY" and "--from" not in one[1]):
        *sources, _target = rest.split()
        assert all((ROOT / source).exists() for source in sources), rest
        shown = [line[1:] for line in (ROOT / ".dockerignore").read_text("utf-8").splitlines() if line.startswith("!")]
        assert all(source in shown for source in sources), f".dockerignore hides {sources}"
    users = [rest for word, rest in made if word == "USER"]
    assert users == ["longhouse"]
    assert dict(made)["ENTRYPOINT"] == '["longhouse"]'
    assert json.loads(dict(made)["CMD"])[0] in COMMANDS


def test_the_services_run_commands_that_are_there_and_wait_for_each_other() -> None:
    services = composed()["services"]
    ours = {name: one for name, one in services.items() if one["image"] == "longhouse"}
    assert {name: one["command"][0] for name, one in ours.items()} == {
        "migrate": "migrate",
        "longhouse": "serve",
        "worker": "work",
    }
    assert {one["command"][0] for one in ours.values()} <= COMMANDS.keys()
    for one in services.values():
        assert set(one.get("depends_on", ())) <= services.keys()
        volumes = {entry.partition(":")[0] for entry in one.get("volumes", ())}
        assert volumes <= composed()["volumes"].keys()
        assert "/" not in one["image"].partition(":")[0].removeprefix("pgvector/"), "of no registry that is named"
    assert {name for name, one in services.items() if one.get("profiles") == [name]} == {"redis", "nats"}
    assert services["longhouse"]["ports"] == ["127.0.0.1:8400:8400"], "a proxy stands before it"
    [address] = {one["environment"]["LONGHOUSE_DATABASE_URL"] for one in ours.values()}
    url = urlsplit(re.sub(r"\$\{[^}]*\}", "secret", address))
    assert (url.hostname, url.username, url.path) == ("postgres", "longhouse", "/longhouse")
    needed = set(re.findall(r"\$\{(\w+):\?", (ROOT / "compose.yaml").read_text("utf-8")))
    given = re.findall(r"^#?(\w+)=", (DEPLOY / "compose.env.example").read_text("utf-8"), re.MULTILINE)
    assert needed <= set(given)


def started_by(unit: Path) -> list[list[str]]:
    """The commands of a unit, as systemd runs them."""
    lines = re.findall(r"^Exec\w+=(.*)$", unit.read_text("utf-8"), re.MULTILINE)
    return [shlex.split(line.replace("%%", "%").replace("$$", "$")) for line in lines]


def test_what_the_units_start_is_there() -> None:
    for unit in UNITS:
        for program, command, *_ in started_by(unit) if unit != BACKUP else ():
            assert (program, command in COMMANDS) == (PROGRAM, True), unit.name
    assert {unit.name for unit in UNITS} == {"longhouse.service", "longhouse-worker@.service", BACKUP.name}
    assert (BACKUP.with_suffix(".timer")).is_file()
    assert "\nTimeoutStartSec=infinity\n" in (DEPLOY / "systemd" / "longhouse.service").read_text("utf-8")


async def test_the_unit_for_backups_writes_one_and_removes_old_ones(dsn: str, db: Database, tmp_path: Path) -> None:
    # The program is the one that is tested, the folder one of ours.
    program = tmp_path / "longhouse"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m longhouse "$@"\n')
    program.chmod(0o755)
    folder = tmp_path / "backups"
    commands = [[part.replace(PROGRAM, str(program)).replace(BACKUPS, str(folder)) for part in command]
                for command in started_by(BACKUP)]  # fmt: skip
    environment = {**os.environ, "LONGHOUSE_DATABASE_URL": dsn}
    old, recent = folder / "old.backup", folder / "recent.backup"

    async def run(*command: str) -> int:
        process = await asyncio.create_subprocess_exec(*command, env=environment, cwd=tmp_path)
        return await process.wait()

    make, back_up, remove = commands
    assert await run(*make) == 0
    assert folder.stat().st_mode & 0o777 == 0o700
    for file, days in ((old, 16), (recent, 13)):
        file.write_text("")
        os.utime(file, (time.time() - days * 86_400,) * 2)
    assert await run(*back_up) == 0
    assert await run(*remove) == 0
    [written] = {*folder.iterdir()} - {recent}
    assert re.fullmatch(r"\d{4}-\d\d-\d\d-\d{6}\.backup", written.name)
    assert backup.verify(written).rows_of("sessions") == 0


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed")
def test_systemd_finds_nothing_wrong_with_the_units(tmp_path: Path) -> None:
    for unit in UNITS:
        # It looks whether the program is there.
        text = unit.read_text("utf-8").replace(PROGRAM, str(Path(sys.executable).resolve()))
        (tmp_path / unit.name).write_text(text, "utf-8")
    named = [str(tmp_path / unit.name.replace("@.", "@1.")) for unit in UNITS]
    (tmp_path / "longhouse-worker@1.service").symlink_to(tmp_path / "longhouse-worker@.service")
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", "--recursive-errors=no", *named],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")


def test_the_examples_for_proxies_say_who_asks_and_hold_nothing_back() -> None:
    nginx, caddy = ((DEPLOY / "proxy" / name).read_text("utf-8") for name in ("nginx.conf", "Caddyfile"))
    for text in (nginx, caddy):
        bare = re.sub("#.*", "", text)
        assert bare.count("{") == bare.count("}")
        assert f"127.0.0.1:{Settings.model_fields['port'].default}" in bare
    for line in ("Host $http_host", "X-Forwarded-For $proxy_add_x_forwarded_for", "X-Forwarded-Proto $scheme"):
        assert f"proxy_set_header {line};" in nginx
    assert "proxy_buffering off;" in nginx
    megabytes = re.search(r"client_max_body_size (\d+)m;", nginx)
    assert megabytes is not None
    assert int(megabytes[1]) * 2**20 > Settings.model_fields["documents_max_bytes"].default


async def test_the_health_check_passes_while_a_server_answers_and_no_longer(serving: Serving) -> None:
    program, *arguments = health_check()
    assert program == "python"
    assert any(f"{route}'" in arguments[-1] for route in monitoring.PATHS)

    async def checked(port: int) -> int:
        env = {**os.environ, "LONGHOUSE_PORT": str(port)}
        process = await asyncio.create_subprocess_exec(
            sys.executable, *arguments, env=env, stderr=asyncio.subprocess.DEVNULL
        )
        return await process.wait()

    async with serving() as house:
        port = urlsplit(house.url).port or 0
        assert await checked(port) == 0
    assert await checked(port) == 1
