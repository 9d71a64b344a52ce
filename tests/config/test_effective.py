"""Settings and files together: the environment wins, and a key goes only to the address that it was given for."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from longhouse.config.effective import Configured, configure
from longhouse.errors import SetupError
from longhouse.settings import Settings
from longhouse.tools.config import SearchConfig, ToolConfig

CONFIG = """
llm: {base_url: "http://file/v1", api_key: sk-file, model: of-the-file, proxy: "http://proxy:1"}
search: {tavily_api_key: tv-file, tavily_api_base_url: "http://search", max_results: 3, content_limit: 90}
execution: {reports_dir: file_reports, logs_dir: file_logs, mcp_context_limit: 70, house_style: plain}
"""
AGENTS = """
agents:
  own:
    search: {max_results: 5, max_searches: 1}
    execution: {reports_dir: own_reports, logs_dir: own_logs, max_iterations: 6, own_field: 1}
"""


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def configured(**environment: Any) -> Configured:
    Path("config.yaml").write_text(CONFIG)
    Path("agents.yaml").write_text(AGENTS)
    found = configure(Settings(**environment))
    found.files.mistakes.refuse()
    return found


def model_of(found: Configured) -> tuple[str | None, str, str, str | None]:
    settings = found.settings
    return settings.llm_base_url, settings.llm_api_key.get_secret_value(), settings.llm_model, settings.llm_proxy


def test_the_usual_files_are_read_if_they_are_there() -> None:
    assert configure(Settings()).settings.llm_base_url is None
    found = configured()
    assert model_of(found) == ("http://file/v1", "sk-file", "of-the-file", "http://proxy:1")
    assert found.settings.tavily_api_key.get_secret_value() == "tv-file"
    assert found.settings.tavily_base_url == "http://search"
    assert (found.settings.reports_dir, found.settings.agent_log_dir) == (Path("file_reports"), Path("file_logs"))


def test_a_file_that_is_named_has_to_be_there_and_an_empty_name_is_none() -> None:
    with pytest.raises(SetupError, match=r"gone\.yaml:1: cannot be read"):
        configure(Settings(config_file=Path("gone.yaml")))
    assert configured(config_file="", agents_file="").files.templates == ()


def test_variables_win_over_the_file_one_by_one() -> None:
    found = configured(llm_model="of-the-environment", llm_api_key="sk-environment", agent_log_dir="logs")
    assert model_of(found) == ("http://file/v1", "sk-environment", "of-the-environment", "http://proxy:1")
    assert found.settings.agent_log_dir == Path("logs")


def test_a_key_of_the_file_never_goes_to_an_address_of_the_environment() -> None:
    found = configured(llm_base_url="http://environment/v1", tavily_base_url="http://other")
    assert model_of(found) == ("http://environment/v1", "", "of-the-file", None)
    assert found.settings.tavily_api_key.get_secret_value() == ""


def test_the_key_of_all_may_be_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LONGHOUSE_SECRET_VAULT", "sk-vault")
    Path("config.yaml").write_text("llm: {base_url: 'http://file/v1', api_key_ref: vault}")
    assert model_of(configure(Settings()))[:2] == ("http://file/v1", "sk-vault")


def test_a_key_may_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    Path("config.yaml").write_text(
        "llm: {base_url: 'http://file/v1', api_key: '${MY_KEY}'}\nsearch: {tavily_api_key: '${MY_SEARCH}'}"
    )
    with pytest.raises(SetupError, match="environment variable MY_KEY, which is not set"):
        configure(Settings())
    monkeypatch.setenv("MY_KEY", "sk-mine")
    monkeypatch.setenv("MY_SEARCH", "tvly-mine")
    found = configure(Settings())
    assert model_of(found)[1] == "sk-mine"
    assert found.settings.tavily_api_key.get_secret_value() == "tvly-mine"
    assert found.secrets.find("config:llm", "http://file/v1") == "sk-mine"


def test_tools_see_what_the_files_say_for_all_and_for_the_agent_that_calls_them() -> None:
    found = configured()
    common = found.common(ToolConfig())
    assert (common.search.max_results, common.search.content_limit) == (3, 90)
    assert (common.execution.mcp_context_limit, common.execution.house_style) == (70, "plain")
    own = found.of_agents(common)["own"]
    assert (own.search.max_results, own.search.max_searches, own.search.content_limit) == (5, 1, 90)
    assert (own.execution.reports_dir, own.execution.max_iterations) == ("own_reports", 6)
    assert (own.execution.house_style, own.execution.own_field) == ("plain", 1)
    assert found.folders("logs_dir") == {"own": Path("own_logs")}
    with pytest.raises(AttributeError, match="no 'own_field' among"):
        _ = common.execution.own_field


def test_servers_of_the_environment_s_file_win_name_by_name() -> None:
    Path("mcp.json").write_text('{"mcpServers": {"one": {"command": "theirs"}}}')
    Path("config.yaml").write_text("mcp: {mcpServers: {one: {command: ours}, two: {command: ours}}}")
    found = configure(Settings(mcp_config=Path("mcp.json")))
    assert [(server.name, server.entry.command) for server in found.servers] == [("one", "theirs"), ("two", "ours")]


def test_an_agent_may_have_a_search_service_and_a_key_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_SEARCH", "tv-mine")
    Path("config.yaml").write_text(CONFIG)
    Path("agents.yaml").write_text("""
agents:
  plain: {}
  keyed: {search: {tavily_api_key: "${MY_SEARCH}", tavily_api_base_url: ""}}
  elsewhere: {search: {tavily_api_base_url: "http://own"}}
  both: {search: {tavily_api_base_url: "http://own", tavily_api_key: tv-own}}
""")
    setup = configure(Settings())
    setup.files.mistakes.refuse()
    shared = replace(SearchConfig(), tavily_api_key="tv-file", tavily_api_base_url="http://search")
    found = {name: one.search for name, one in setup.of_agents(ToolConfig(search=shared)).items()}
    assert {name: (one.tavily_api_base_url, one.tavily_api_key) for name, one in found.items()} == {
        "plain": ("http://search", "tv-file"),
        "keyed": ("http://search", "tv-mine"),
        "elsewhere": ("http://own", ""),
        "both": ("http://own", "tv-own"),
    }, "the key of all goes to no other address"


def test_empty_texts_and_variables_set_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LONGHOUSE_LLM_MODEL", "")
    monkeypatch.setenv("LONGHOUSE_LLM_BASE_URL", "")
    monkeypatch.setenv("LONGHOUSE_PORT", "")
    found = configured()
    assert model_of(found) == ("http://file/v1", "sk-file", "of-the-file", "http://proxy:1")
    Path("config.yaml").write_text("""
llm: {base_url: "", api_key: "", proxy: "", model: ""}
search: {tavily_api_key: "", tavily_api_base_url: ""}
execution: {logs_dir: "", reports_dir: "", for_tools: ""}
""")
    found = configure(Settings())
    found.files.mistakes.refuse()
    assert model_of(found) == (None, "", "gpt-4o-mini", None)
    assert (found.settings.agent_log_dir, found.settings.port) == (None, 8400)
    assert found.common(ToolConfig()).execution.for_tools == "", "what only tools know goes to them as it is"
