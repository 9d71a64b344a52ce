"""Agents come from files: they work, change only when their file does, and their keys stay where they belong."""

from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from fake_tavily import tavily
from longhouse.cli.upkeep.setting_up import publish_configured
from longhouse.errors import SetupError
from longhouse.models.scripted import call
from longhouse.models.scripted_server import serve as serve_model
from longhouse.settings import Settings
from longhouse.store.catalog.catalog import Catalog
from longhouse.store.database import Database
from longhouse.tools.base import BaseTool
from longhouse.tools.context import ToolContext
from search_helpers import generation
from server_helpers import NO_FILES, Serving, content, launched_words, process

ROOT = Path(__file__).parents[2]
BROKEN = """\
agents:
  writer:
    base_class: DreamingAgent
    tools:
      - FinalAnswerTool
      - PaintTool
    execution:
      max_iterations: 0
    llm:
      temprature: 0.2
  reader:
    prompts:
      system_prompt_file: gone.txt
"""


class ShowConfigTool(BaseTool):
    """Say what the files have set."""

    async def __call__(self, context: ToolContext, config: Any = None, **kwargs: Any) -> str:
        fields = f"{config.search.max_results} {config.execution.house_style} {config.execution.max_iterations}"
        return f"{fields} {kwargs} {sorted(config.tools)}"


def written(folder: Path, **files: str) -> dict[str, Any]:
    """The settings of files that are written now: `agents="…"` is agents.yaml."""
    for name, text in files.items():
        (folder / f"{name}.yaml").write_text(text)
    return {**NO_FILES, **{f"{name}_file": folder / f"{name}.yaml" for name in files}}


@pytest.mark.parametrize("agent", ["market_researcher", "note_keeper", "quick_answers"])
async def test_the_agents_of_the_example_files_work(serving: Serving, agent: str) -> None:
    config, agents = ROOT / "config.example.yaml", ROOT / "agents.example.yaml"
    async with serving(config_file=config, agents_file=agents) as house:
        asked = await house.say("Hello", model=agent)
        assert "which city" in content(asked)
        answered = await house.say("Bergen", model=asked["model"])
        assert "You answered: 'Bergen'. The clock tool says it is 20" in content(answered)


async def test_files_that_say_the_same_change_nothing_and_changed_ones_publish_the_next_version(
    dsn: str, db: Database, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    templates, tools = Catalog(db).templates, Catalog(db).tools

    async def sown(temperature: float) -> str:
        text = f"agents: {{own: {{tools: [finalanswertool], llm: {{temperature: {temperature}}}}}}}"
        await publish_configured(Settings(database_url=dsn, **written(tmp_path, agents=text)))
        return next(line for line in capsys.readouterr().out.splitlines() if line.startswith("own "))

    assert await sown(0.1) == "own  version 1  new"
    before = await generation(templates), await generation(tools)
    assert await sown(0.1) == "own  version 1  unchanged"
    assert (await generation(templates), await generation(tools)) == before
    assert await sown(0.2) == "own  version 2  new"
    assert await templates.active("own") == 2
    assert await templates.roll_back("own") == 1
    assert await sown(0.2) == "own  version 2  unchanged, version 1 is active", "what an operator chose stays"
    assert await templates.activate("own", 2)
    assert await sown(0.1) == "own  version 1  active again", "a file that was changed back is a changed file"
    assert [one.published_by for one in await templates.versions("own")] == ["files", "files"]


async def test_what_the_program_brings_follows_config_yaml_and_returns_without_it(
    dsn: str, db: Database, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shelf = Catalog(db).templates
    await publish_configured(Settings(**NO_FILES, database_url=dsn))
    await publish_configured(Settings(database_url=dsn, **written(tmp_path, config="execution: {max_iterations: 7}")))
    changed = await shelf.find("sgr_agent")
    assert changed is not None
    assert (changed.version, changed.execution_policy.max_iterations) == (2, 7)
    await publish_configured(Settings(**NO_FILES, database_url=dsn))
    assert await shelf.active("sgr_agent") == 1
    assert "sgr_agent  version 1  active again" in capsys.readouterr().out


async def test_an_agent_that_gets_an_owner_is_seen_by_nobody_else(serving: Serving, tmp_path: Path) -> None:
    for owner, listed in (("null", True), ("alice", False), ("local", True)):
        files = written(tmp_path, agents=f"agents: {{own: {{owner: {owner}}}}}")
        async with serving(**files) as house:
            assert ("own" in [model.id async for model in house.client.models.list()]) is listed


async def test_a_broken_file_lists_five_mistakes_in_one_go(dsn: str, tmp_path: Path) -> None:
    path = tmp_path / "agents.yaml"
    path.write_text(BROKEN)
    code, said = await launched_words("seed", "--agents-file", str(path), database_url=dsn)
    lines = [line.replace(f"{tmp_path}/", "") for line in said.splitlines()]
    assert code == 1
    assert lines[0] == "longhouse: there are 5 mistakes in the files:"
    assert [line.partition(": ")[0] for line in lines[1:]] == [f"agents.yaml:{n}" for n in (3, 6, 8, 10, 13)]
    assert lines[2] == "agents.yaml:6: agents.writer.tools[1]: there is no tool 'PaintTool'"
    assert lines[3] == "agents.yaml:8: agents.writer.execution.max_iterations: should be greater than or equal to 1"
    assert lines[4] == "agents.yaml:10: agents.writer.llm.temprature: is not known; did you mean temperature?"


async def test_a_house_with_a_broken_file_does_not_open_and_publishes_none_of_it(
    serving: Serving, db: Database, tmp_path: Path
) -> None:
    given = written(tmp_path, agents=BROKEN + "  sound: {}\n")
    with pytest.raises(SetupError, match="there are 5 mistakes in the files"):
        async with serving(**given):
            raise AssertionError("it opened")
    assert await Catalog(db).templates.names() == []


async def test_each_key_goes_to_its_own_endpoint_and_nowhere_else(serving: Serving, tmp_path: Path) -> None:
    done = [call("finalanswertool", answer="Done.")]
    async with serve_model(done) as common, serve_model(done) as own:
        files = written(
            tmp_path,
            config=f"llm: {{base_url: {common.url}, api_key: sk-common-canary, model: of-all}}",
            agents=f"""
                agents:
                  plain: {{tools: [finalanswertool]}}
                  special: {{tools: [finalanswertool], llm: {{base_url: {own.url}, api_key: sk-own-canary, model: m}}}}
            """,
        )
        with capture_logs() as logs:
            async with serving(log_level="debug", **files) as house:
                assert content(await house.say("Go", model="plain")) == "Done."
                assert content(await house.say("Go", model="special")) == "Done."
                kept = await everything(house.db)
        assert [headers["authorization"] for headers in common.headers] == ["Bearer sk-common-canary"]
        assert [headers["authorization"] for headers in own.headers] == ["Bearer sk-own-canary"]
        assert [request["model"] for request in common.requests + own.requests] == ["of-all", "m"]
    assert "agents:special" in kept, "only its name is published"
    assert "canary" not in kept + str(logs)


async def test_an_agent_searches_with_the_key_and_at_the_service_of_its_own(serving: Serving, tmp_path: Path) -> None:
    script = [call("websearchtool", query="x"), call("finalanswertool", answer="Done.")]
    async with tavily() as common, tavily() as own:
        files = written(
            tmp_path,
            config=f"search: {{tavily_api_base_url: '{common.url}', tavily_api_key: tv-common-canary}}",
            agents=f"""
                agents:
                  plain: {{tools: [web_search, final_answer]}}
                  keyed: {{tools: [web_search, final_answer], search: {{tavily_api_key: tv-keyed-canary}}}}
                  apart:
                    tools: [web_search, final_answer]
                    search: {{tavily_api_base_url: '{own.url}', tavily_api_key: tv-apart-canary}}
                  boss: {{tools: [agent.apart, final_answer]}}
            """,
        )
        asks = [call("agent_apart", task="Search."), *script, call("finalanswertool", answer="Done.")]
        async with serving([*script * 3, *asks], **files) as house:
            for agent in ("plain", "keyed", "apart", "boss"):
                assert content(await house.say("Go", model=agent)) == "Done."
            assert "canary" not in await everything(house.db)
        keys = [[one.headers["Authorization"] for one in service.requests] for service in (common, own)]
        assert keys == [["Bearer tv-common-canary", "Bearer tv-keyed-canary"], ["Bearer tv-apart-canary"] * 2]


async def everything(db: Database) -> str:
    """All rows of all tables, as text."""
    tables = await db.rows("SELECT format('%I.%I', schemaname, tablename) AS name FROM pg_tables "
                           "WHERE schemaname NOT IN ('pg_catalog', 'information_schema')")  # fmt: skip
    found = [await db.rows(f"SELECT t::text AS row FROM {table['name']} t") for table in tables]
    return "\n".join(row["row"] for rows in found for row in rows)


async def test_a_proxy_is_used_for_model_calls_of_all_and_of_one_agent(serving: Serving, tmp_path: Path) -> None:
    done = [call("finalanswertool", answer="Done.")]
    async with serve_model(done) as first, serve_model(done) as second:
        files = written(
            tmp_path,
            config=f"llm: {{base_url: 'http://model.invalid/v1', proxy: '{first.url.removesuffix('/v1')}'}}",
            agents=f"""
                agents:
                  plain: {{tools: [finalanswertool]}}
                  special: {{tools: [finalanswertool], llm: {{proxy: '{second.url.removesuffix("/v1")}'}}}}
            """,
        )
        async with serving(**files) as house:
            assert content(await house.say("Go", model="plain")) == "Done."
            assert content(await house.say("Go", model="special")) == "Done."
        assert [headers["host"] for headers in first.headers + second.headers] == ["model.invalid"] * 2


async def test_tools_see_the_fields_of_the_agent_that_calls_them_and_its_log_has_its_own_folder(
    serving: Serving, tmp_path: Path
) -> None:
    script = [call("showconfigtool"), call("finalanswertool", answer="Seen.")] * 2
    files = written(
        tmp_path,
        config=f"""
            search: {{max_results: 3}}
            execution: {{house_style: plain, logs_dir: {tmp_path}/logs}}
            tools: {{show_config_tool: {{base_class: ShowConfigTool, tone: dry, key: k}}, ClockTool: {{key: other}}}}
        """,
        agents=f"""
            agents:
              one: {{tools: [ShowConfigTool, finalanswertool]}}
              other:
                tools: [show_config_tool: {{tone: warm}}, finalanswertool]
                search: {{max_results: 5}}
                execution: {{house_style: ornate, max_iterations: 4, logs_dir: {tmp_path}/other_logs}}
        """,
    )
    async with serving(script, tools=(ShowConfigTool,), **files) as house:
        assert house.model is not None
        for agent in ("one", "other"):
            await house.say("Look", model=agent)
        told = [request["messages"][-1]["content"] for request in house.model.requests[1::2]]
        assert told == [
            "3 plain 20 {'tone': 'dry', 'key': 'k'} ['showconfigtool']",
            "5 ornate 4 {'tone': 'warm', 'key': 'k'} ['showconfigtool']",
        ]
    assert [path.name.split("_")[0] for path in (tmp_path / "logs").glob("*-log.json")] == ["one"]
    assert [path.name.split("_")[0] for path in (tmp_path / "other_logs").glob("*-log.json")] == ["other"]


async def test_serve_takes_its_files_from_the_command_line_and_logging_from_its_own(dsn: str, tmp_path: Path) -> None:
    async with serve_model([call("finalanswertool", answer="From afar.")]) as model:
        written(
            tmp_path,
            config=f"llm: {{base_url: {model.url}, model: of-the-file}}",
            agents="agents: {own: {tools: [finalanswertool]}}",
            logging=f"""
                handlers: {{file: {{class: logging.FileHandler, filename: {tmp_path}/libraries.log}}}}
                loggers: {{asyncio: {{level: DEBUG, handlers: [file]}}}}
            """,
        )
        arguments = ["--config-file", str(tmp_path / "config.yaml"), "--agents-file", str(tmp_path / "agents.yaml")]
        environment = {"database_url": dsn, "logging_config": str(tmp_path / "logging.yaml")}
        async with process("serve", "--port", "0", *arguments, **environment) as house:
            assert content(await house.say("Hello", model="own")) == "From afar."
            assert not [line for line in house.said if "demo model" in line]
        assert model.requests[0]["model"] == "of-the-file"
    assert (tmp_path / "libraries.log").exists()
