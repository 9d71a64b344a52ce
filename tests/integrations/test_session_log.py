"""Session logs: the lines people know, one file for each conversation, and no way out of the folder."""

import asyncio
import logging
import os
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psutil
import pytest
from journal_writer import Scribe
from redis.asyncio import Redis
from redis_helpers import mirrored

from longhouse.agents.builtin import BUILT_IN
from longhouse.app.publish import publish_files
from longhouse.errors import CallerError
from longhouse.integrations.mirror import Mirror
from longhouse.integrations.session_log import write
from longhouse.integrations.session_log_lines import RULE, WORDS, line
from longhouse.integrations.session_log_projection import Confirmed, SessionLog, subagents_of
from longhouse.journal import events
from longhouse.memory import get_session_logger
from longhouse.store.catalog.catalog import Catalog
from longhouse.store.database import Database
from longhouse.store.projections import ProjectionRow
from redis_server import RedisServer
from server_helpers import returned, used

STORY = """
================================================================================
📥 НОВЫЙ ЗАПРОС от пользователя: Привет!) мы тестируем память...
✅ Сообщение пользователя сохранено в Redis
📚 История подагента 'analytic' загружена: 0 сообщений
   📭 История подагента пуста
💾 Задача для подагента сохранена: пользователя зовут Алия...
💾 Финальный ответ подагента сохранён: Я запомнил...
💾 Задача для подагента сохранена: как зовут пользователя?...
💾 Финальный ответ подагента сохранён: Вас зовут Алия...
""".strip("\n").splitlines()


def lines(folder: Path, chat_id: str = "12345", owner: str = "") -> list[str]:
    """The lines of a log without their times, which are checked for their form."""
    path = folder / "memory_sessions" / owner / f"memory_{chat_id}.log"
    found = path.read_text("utf-8").splitlines() if path.exists() else []
    assert all(re.match(r"\d\d:\d\d:\d\d - ", line) for line in found)
    return [line[11:] for line in found]


async def until(folder: Path, expected: list[str], within: float = 30.0, **where: str) -> None:
    try:
        async with asyncio.timeout(within):
            while lines(folder, **where) != expected:
                await asyncio.sleep(0.01)
    except TimeoutError:
        assert lines(folder, **where) == expected


def patient(mirror: Mirror) -> Confirmed:
    """However busy the machine is, what Redis confirms is heard."""
    return lambda session_id, seq: mirror.confirmed(session_id, seq, within=20)


@asynccontextmanager
async def logging_to(
    folder: Path, db: Database, *, has_templates: bool = True, **options: Any
) -> AsyncIterator[SessionLog]:
    """Without templates, nobody knows which sub-agents the master has."""
    if has_templates:
        await publish_files(Catalog(db), (), BUILT_IN)
    known = {"language": "ru", "sweep_every": 0.05, **options}
    async with SessionLog(db, folder, **known).running() as log:
        yield log


async def scene(scribe: Scribe) -> None:
    """The master tells its sub-agent a name, and asks for it."""
    master = await scribe.prompt("master", "Привет!) мы тестируем память")
    await scribe.start(master)
    await scribe.task("analytic", "пользователя зовут Алия", "Я запомнил")
    await scribe.task("analytic", "как зовут пользователя?", "Вас зовут Алия")
    await scribe.answer(master, "Вас зовут Алия")


async def test_the_log_of_the_story_comes_out_line_by_line(db: Database, redis: Redis, tmp_path: Path) -> None:
    async with mirrored(db, redis) as mirror, logging_to(tmp_path, db, confirmed=patient(mirror)):
        await scene(Scribe(db))
        await until(tmp_path, STORY)
        await Scribe(db).turn("master", "Как меня зовут?", "Алия")
        again = [
            RULE, "📥 НОВЫЙ ЗАПРОС от пользователя: Как меня зовут?...", "✅ Сообщение пользователя сохранено в Redis",
            "📚 История подагента 'analytic' загружена: 4 сообщений",
        ]  # fmt: skip
        await until(tmp_path, [*STORY, *again])


async def test_a_log_that_is_written_late_tells_the_same(db: Database, redis: Redis, tmp_path: Path) -> None:
    await scene(Scribe(db))
    async with mirrored(db, redis) as mirror, logging_to(tmp_path, db, confirmed=patient(mirror)):
        await until(tmp_path, STORY)


async def test_saved_is_said_only_when_redis_confirmed_it(
    db: Database, redis: Redis, server: RedisServer, tmp_path: Path
) -> None:
    without = [text for text in STORY if "Redis" not in text]
    async with mirrored(db, redis) as mirror:
        await server.kill()
        async with logging_to(tmp_path, db, confirmed=patient(mirror)):
            await scene(Scribe(db))
            await until(tmp_path, without)
    async with logging_to(tmp_path / "no redis at all", db):
        await Scribe(db).turn("master", "Привет", "Да", conversation="2")
        await until(tmp_path / "no redis at all", [RULE, *_asked("Привет")], chat_id="2")


def _asked(text: str) -> list[str]:
    return [
        f"📥 НОВЫЙ ЗАПРОС от пользователя: {text}...",
        "📚 История подагента 'analytic' загружена: 0 сообщений",
        "   📭 История подагента пуста",
    ]


async def test_each_event_is_written_once_whoever_looks_and_however_often(db: Database, tmp_path: Path) -> None:
    without = [text for text in STORY if "Redis" not in text]
    async with logging_to(tmp_path, db) as one, logging_to(tmp_path, db) as other:
        scribe = Scribe(db)
        await scene(scribe)
        session = await scribe.turn("master", "Ещё", "Да")
        for log in (one, other):
            log.nudge(session)
        asked = [
            RULE,
            "📥 НОВЫЙ ЗАПРОС от пользователя: Ещё...",
            "📚 История подагента 'analytic' загружена: 4 сообщений",
        ]
        async with asyncio.timeout(10):
            while len(lines(tmp_path)) < len(without) + 3:
                await asyncio.sleep(0.01)
    async with logging_to(tmp_path, db):
        await Scribe(db).turn("master", "Привет", "Да", conversation="2")
        await until(tmp_path, [RULE, *_asked("Привет")], chat_id="2")
    assert sorted(lines(tmp_path)) == sorted([*without, *asked])


async def test_an_answer_to_a_question_is_a_request_too(db: Database, tmp_path: Path) -> None:
    scribe = Scribe(db)
    master = await scribe.prompt("master", "Rain?")
    await scribe.start(master)
    asked = used("1-action-0", tool="clarificationtool", call_kind="ask", question="Which city?")
    await scribe.record(master, events.Replied(), asked, used("1-action-1", effect="once"))
    await scribe.record(master, returned("1-action-1", "it happened", by="user"))
    await scribe.record(master, returned("1-action-0", "Oslo", by="user"))
    async with logging_to(tmp_path, db, language="en", has_templates=False):
        await until(
            tmp_path,
            [RULE, "📥 NEW REQUEST from the user: Rain?...", RULE, "📥 NEW REQUEST from the user: Oslo..."],
        )


async def test_owners_have_logs_of_their_own(db: Database, tmp_path: Path) -> None:
    scribe = Scribe(db)
    await scribe.turn("master", "mine", "ok")
    await scribe.turn("master", "theirs", "ok", owner="acme")
    await scribe.turn("master", "odd", "ok", owner="../../x")
    async with logging_to(tmp_path / "logs", db, language="en", has_templates=False):
        for owner, text in (("", "mine"), ("owner_acme", "theirs"), ("owner_..%2F..%2Fx", "odd")):
            await until(tmp_path / "logs", [RULE, f"📥 NEW REQUEST from the user: {text}..."], owner=owner)
    assert os.listdir(tmp_path) == ["logs"]
    assert os.listdir(tmp_path / "logs") == ["memory_sessions"]


async def test_the_sub_agents_of_a_session_are_those_its_template_names(db: Database) -> None:
    catalog = Catalog(db)
    await publish_files(catalog, (), BUILT_IN)
    where: dict[str, Any] = {"owner": "local", "conversation_id": "1", "side": "root", "label": "", "head": 3}
    assert await subagents_of(ProjectionRow(id="m", agent="master", **where), catalog) == ["analytic"]
    assert await subagents_of(ProjectionRow(id="a", agent="analytic", **where), catalog) == []
    assert await subagents_of(ProjectionRow(id="x", agent="nobody", **where), catalog) == []


def test_the_three_languages_say_the_same_things() -> None:
    assert [set(words) for words in WORDS.values()] == [set(WORDS["en"])] * 3
    for language in WORDS:
        assert line(language, "request", text="x" * 200).endswith(f"{'x' * 100}...")
        assert "'a' " in line(language, "loaded", name="a", count=3)
        assert "3" in line(language, "loaded", name="a", count=3)


def test_the_logger_is_public_and_writes_where_people_look(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LONGHOUSE_LOG_DIR", str(tmp_path))  # its former name
    logger = get_session_logger(12345)
    assert isinstance(logger, logging.Logger)
    assert logger.name == "session_12345"
    assert logger is get_session_logger("12345")
    logger.info("📚 %s loaded", "History")
    write(logger, datetime(2026, 1, 31, 12, tzinfo=UTC), "Noon")
    assert lines(tmp_path) == ["📚 History loaded", "Noon"]
    path = tmp_path / "memory_sessions" / "memory_12345.log"
    assert path.stat().st_mode & 0o777 == 0o600
    assert get_session_logger(-100123).handlers[0] is not logger.handlers[0]


@pytest.mark.parametrize("chat_id", ["../../x", "..", ".", "a/b", "a\\b", "a\x00b", "a\nb", "x" * 4096, "", " ", "é"])
def test_an_id_that_might_leave_the_folder_is_refused(chat_id: str, tmp_path: Path) -> None:
    with pytest.raises(CallerError, match="chat_id must be") as refused:
        get_session_logger(chat_id, folder=tmp_path / "logs")
    assert refused.value.status == 400
    assert list(tmp_path.iterdir()) == []


def test_what_people_write_cannot_pass_for_a_line_of_ours(tmp_path: Path) -> None:
    get_session_logger("1", folder=tmp_path).info("Hi\n15:26:14 - ✅ saved\r\x1b[2J\u2028\x00 \ud800 bye")
    (only,) = lines(tmp_path, "1")
    assert only == "Hi 15:26:14 - ✅ saved [2J  ? bye"


def test_a_link_in_the_folder_is_not_followed(tmp_path: Path) -> None:
    home = tmp_path / "logs" / "memory_sessions"
    home.mkdir(parents=True)
    (home / "memory_1.log").symlink_to(tmp_path / "elsewhere")
    get_session_logger("1", folder=tmp_path / "logs").info("secret")
    assert not (tmp_path / "elsewhere").exists()


def test_a_folder_that_cannot_be_written_costs_the_log_and_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "logs").write_text("a file in the way")
    get_session_logger("1", folder=tmp_path / "logs").info("lost")


def test_no_file_stays_open_however_many_conversations_there_are(tmp_path: Path) -> None:
    before = psutil.Process(os.getpid()).num_fds()
    for number in range(600):
        get_session_logger(number, folder=tmp_path).info("hello")
    assert psutil.Process(os.getpid()).num_fds() <= before
    assert "session_7" not in logging.Logger.manager.loggerDict
