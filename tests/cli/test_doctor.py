"""`longhouse doctor`: what works, what does not and how to mend it; beside a house that serves, and where none is."""

import asyncio
import os
import subprocess
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from bench.nats_server import nats_server

from acme import acme
from collector import collecting
from conftest import plain_role
from forked_server import completed
from longhouse import clock
from longhouse.agents.tool_descriptor import RuntimeBinding, ToolDescriptor
from longhouse.cli.upkeep.doctor import _clock
from longhouse.models.scripted import say
from longhouse.models.scripted_server import serve as serve_model
from longhouse.store import checkup
from longhouse.store.catalog.catalog import Catalog
from longhouse.store.database import Database
from redis_server import RedisServer
from server_helpers import launched_words, process

SECRET = "sEcReT9-of-this-test"


def about(told: str, what: str) -> str:
    """The line about this."""
    [line] = [line for line in told.splitlines() if line.partition("  ")[2].lstrip().startswith(f"{what}:")]
    return line


def test_where_nothing_is_started_nothing_is_broken_and_nothing_is_made(tmp_path: Path) -> None:
    done = completed("doctor", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert f"there is no Longhouse in {tmp_path / '.longhouse'}: `longhouse serve` makes one." in done.stdout
    assert "the demo model answers" in about(done.stdout, "model")
    assert done.stdout.endswith("nothing is broken\n")
    assert list(tmp_path.iterdir()) == []
    done = completed("doctor", folder=tmp_path, LONGHOUSE_HOST="0.0.0.0", LONGHOUSE_LOG_DIRR="x")
    assert done.returncode == 1
    assert "no API key is set: set LONGHOUSE_ADMIN_KEY" in done.stdout
    assert "LONGHOUSE_LOG_DIRR is no setting" in done.stdout


def test_files_that_nobody_would_serve_are_broken(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("llmm: {model: x}\nsearch: {max_results: 0}\n")
    (tmp_path / "agents.yaml").write_text("agents: {a: {base_class: SGRAgent, tools: [clock_tool, reader.*]}}")
    done = completed("doctor", "--no-model", folder=tmp_path)
    assert done.returncode == 1
    assert about(done.stdout, "settings") == "BROKEN  settings: there are 2 mistakes in the files:"
    assert "config.yaml:1: llmm: is not known; did you mean llm?" in done.stdout
    assert "config.yaml:2: search.max_results: should be greater than or equal to 1" in done.stdout
    (tmp_path / "config.yaml").write_text("")
    done = completed("doctor", "--no-model", folder=tmp_path)
    assert (done.returncode, done.stdout.splitlines()[-1]) == (0, "nothing is broken"), done.stdout


async def test_a_house_is_looked_at_while_it_serves_and_after_it_was_killed(folder: Path) -> None:
    async with process(data_dir=str(folder)) as house:
        code, told = await launched_words("doctor", data_dir=str(folder))
        assert (code, "BROKEN" in told) == (0, False), told
        assert "another Longhouse process uses it" in about(told, "postgres")
        assert about(told, "workers") == "ok      workers: 1 at work."
        async with house.http.get("/ready") as response:
            assert response.status == 200, "it is served as before"
        house.kill()
        await house.ended()
    code, told = await launched_words("doctor", data_dir=str(folder))
    assert code == 0, told
    assert "started for this look alone" in about(told, "postgres")
    assert "LONGHOUSE_DATA_DIR has" in about(told, "disk")


async def test_a_package_that_is_not_here_is_named_with_who_needs_it(
    db: Database, dsn: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with acme(tmp_path, monkeypatch) as package:
        needed = {"pay": f"{package}:Pay", "till": "till_of_shop.tools:Till", "other": "till_of_shop.tools:Other"}
        bindings = {name: RuntimeBinding(python_entrypoint=place) for name, place in needed.items()}
        tools = [ToolDescriptor(name=name, description_short="x", runtime_binding=it) for name, it in bindings.items()]
        await Catalog(db).tools.publish(tools, by="a test")
        packages: dict[str, Any] = {"database_url": dsn, "tool_packages": f"{package},till_of_shop"}
        code, told = await launched_words("doctor", "--no-model", **packages)
        assert code == 1
        assert "there is no package 'till_of_shop' here, and till needs it: put its files" in about(told, "packages")
        (tmp_path / "till_of_shop").mkdir()
        code, told = await launched_words("doctor", "--no-model", **packages)
        assert (code, "packages" in told) == (0, False), told


async def test_a_reader_who_has_enough_of_it_leaves_no_postgres_and_no_traceback_behind(folder: Path) -> None:
    looking = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "longhouse", "doctor", "--no-model"),
        env={**os.environ, "LONGHOUSE_DATA_DIR": str(folder)}, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    assert looking.stdout
    assert looking.stderr
    assert (await looking.stdout.readline()).startswith(b"longhouse ")
    looking.stdout._transport.close()  # type: ignore[attr-defined]  # as `| head -1` does
    said = await looking.stderr.read()
    assert await looking.wait() == 1
    assert (said, (folder / "postgres/postmaster.pid").exists()) == (b"", False)


async def test_what_is_reached_answers(dsn: str, server: RedisServer) -> None:
    async with nats_server() as nats, serve_model(lambda body: say("Hello.")) as model, collecting() as collector:
        places: dict[str, Any] = {
            "redis_url": server.url,
            "nats_url": nats.url,
            "llm_base_url": model.url,
            "llm_api_key": SECRET,
            "otlp_endpoint": collector.url,
            "otlp_headers": f"x-key={SECRET}",
        }
        code, told = await launched_words("doctor", database_url=dsn, **places)
        assert code == 0, told
        reached = ("model", "redis", "nats", "collector")
        for what in ("postgres", "rights", "clock", "connections", "schema", "keys", *reached):
            assert about(told, what).startswith("ok "), told
        assert (collector.headers[0]["x-key"], collector.spans) == (SECRET, {}), "it was sent nothing"
        assert "llm_policy.can" in about(told, "model"), "what the probe found"
        assert SECRET not in told
        collector.answers = [401]
        code, told = await launched_words("doctor", "--no-model", database_url=dsn, otlp_endpoint=collector.url)
        assert (code, "answered 401" in about(told, "collector")) == (1, True)
        asked = len(model.requests)
        code, told = await launched_words(
            "doctor", "--no-model", database_url=dsn, llm_base_url=model.url, serve_workers="64"
        )
        assert (code, len(model.requests)) == (0, asked)
        assert "`longhouse serve` starts 64" in about(told, "processes")
        assert "64 more processes need up to 1408" in about(told, "connections")


async def test_what_is_broken_is_said_with_what_to_do_and_without_secrets(db: Database, dsn: str) -> None:
    places: dict[str, Any] = {
        "redis_url": f"redis://:{SECRET}@127.0.0.1:1",
        "nats_url": f"nats://me:{SECRET}@127.0.0.1:1",
        "llm_base_url": "http://127.0.0.1:1/v1",
        "llm_api_key": SECRET,
        "embeddings_base_url": "http://127.0.0.1:1/v1",
        "reports_dir": "/proc/none",
        "otlp_endpoint": "http://127.0.0.1:1",
        "otlp_headers": f"authorization={SECRET}",
    }
    schema = db.schema
    async with plain_role(dsn, owner=False) as stranger:
        role = stranger.partition("://")[2].partition("@")[0]
        await db.run(f"GRANT USAGE ON SCHEMA {schema} TO {role}")
        await db.run(f"GRANT SELECT ON ALL TABLES IN SCHEMA {schema} TO {role}")
        code, told = await launched_words("doctor", database_url=stranger, **places)
    assert code == 1
    assert f"the role {role} lacks INSERT, UPDATE, DELETE, TRUNCATE on " in about(told, "rights")
    assert "correct LONGHOUSE_REDIS_URL" in about(told, "redis")
    assert about(told, "nats").startswith("BROKEN  nats: NATS is away")
    assert "correct LONGHOUSE_OTLP_ENDPOINT" in about(told, "collector")
    for what in ("rights", "redis", "nats", "model", "embeddings", "disk", "collector"):
        assert about(told, what).startswith("BROKEN"), told
    assert SECRET not in told
    assert "7 broken" in told
    code, told = await launched_words("doctor", database_url=f"postgresql://me:{SECRET}@127.0.0.1:1/longhouse")
    assert (code, SECRET in told) == (1, False)
    assert "check LONGHOUSE_DATABASE_URL" in about(told, "postgres")


async def test_rights_that_are_missing_are_granted_by_what_is_said(db: Database, dsn: str) -> None:
    await db.run("CREATE TABLE longhouse.of_another_program (x int)")
    granted = []
    async with plain_role(dsn, owner=False) as stranger:
        while True:
            code, told = await launched_words("doctor", "--no-model", database_url=stranger)
            if code == 0:
                break
            assert "1 broken" in told, told
            granted.append(about(told, "rights").partition(": as ")[2].partition(", ")[2].removesuffix("."))
            await db.run(granted[-1])
        assert about(told, "rights").startswith("ok ")
        role = stranger.partition("://")[2].partition("@")[0]
        assert granted == [
            f'GRANT USAGE ON SCHEMA "longhouse" TO "{role}"',
            f'GRANT SELECT, INSERT, UPDATE, DELETE, TRUNCATE ON ALL TABLES IN SCHEMA "longhouse" TO "{role}"',
        ]
        await db.run(f"REVOKE DELETE ON sessions FROM {role}")
        _, told = await launched_words("doctor", "--no-model", database_url=stranger)
        mended = f'as their owner, GRANT DELETE ON "longhouse"."sessions" TO "{role}".'
        assert about(told, "rights") == f"BROKEN  rights: the role {role} lacks DELETE on sessions: {mended}"


async def test_pending_migrations_are_named(db: Database, dsn: str) -> None:
    await db.run("DELETE FROM schema_migrations WHERE number = (SELECT max(number) FROM schema_migrations)")
    code, told = await launched_words("doctor", database_url=dsn)
    assert (code, about(told, "schema")) == (1, "BROKEN  schema: 1 pending: run `longhouse migrate`.")


async def test_a_clock_that_differs_from_that_of_postgres_is_noticed(
    db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert (await checkup.examine(db)).seconds_ahead == pytest.approx(0, abs=1)
    now = clock.now
    for hours, word in ((1, "ahead of"), (-1, "behind")):
        monkeypatch.setattr(clock, "now", lambda hours=hours: now() + timedelta(hours=hours))
        finding = _clock(await checkup.examine(db))
        assert finding.level == "BROKEN"
        assert f"s {word} Postgres: set both clocks by NTP." in finding.sentence
