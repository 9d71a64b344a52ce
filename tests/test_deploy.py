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
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import yaml

from longhouse.api import monitoring
from longhouse.cli.main import COMMANDS
from longhouse.settings import RENAMED, Settings, variable_of
from pages import ROOT
from server_helpers import Serving

DEPLOY = ROOT / "deploy"
UNITS = sorted((DEPLOY / "systemd").glob("*.service"))
FILES = [ROOT / "Dockerfile", ROOT / "compose.yaml", ROOT / "docs" / "deployment.md", *DEPLOY.rglob("*.*")]
PROGRAM = "/opt/longhouse/bin/longhouse"


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


def test_what_the_units_start_is_there() -> None:
    for unit in UNITS:
        started = re.findall(r"^Exec\w+=(.*)$", unit.read_text("utf-8"), re.MULTILINE)
        for line in started:
            program, command, *_ = shlex.split(line)
            assert (program, command in COMMANDS) == (PROGRAM, True), line
    assert {unit.name for unit in UNITS} == {"longhouse.service", "longhouse-worker@.service"}


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
