"""Files of SGR-Agent Core 0.7 load as they are: these have the sections and forms of its six examples."""

from pathlib import Path

import pytest
from file_helpers import given, sound, wrong
from structlog.testing import capture_logs

from longhouse.config.effective import configure
from longhouse.settings import Settings
from longhouse.tools.config import ToolConfig

CONFIG = """\
llm: {api_key: sk-of-the-file, base_url: "https://models.example/v1", model: gpt-4o-mini, max_tokens: 8000}
langfuse: {enabled: false}
acp: {agent: researcher}
execution: {max_clarifications: 3, max_iterations: 10, streaming_generator: openai, logs_dir: logs}
mcp: {mcpServers: {}}
tools:
  my_tool:
    base_class: path.to.my.tools.CustomTool
  read_file_tool: {base_class: "tools.ReadFileTool"}
  other_tool: {base_class: no_such_class}
  thinker: {base_class: "sgr_agent_core.tools.ReasoningTool"}
  web_search_tool: {engine: tavily, api_key: tvly-of-the-file, max_results: 12, max_searches: 6}
  extract_page_content_tool:
    tavily_api_key: tvly-of-the-file
    content_limit: 1500
  clock_tool: {zone: Oslo, style: plain}
  final_answer_tool:
  answer_tool: {}
agents:
  researcher:
    base_class: "sgr_agent_core.agents.sgr_agent.SGRAgent"
    tools: [web_search_tool, my_tool, other_tool, thinker, clock_tool, final_answer_tool]
  file_agent:
    base_class: "sgr_file_agent.SGRFileAgent"
    execution: {max_searches: 0}
    working_directory: "."
    langfuse: true
    tools: [final_answer_tool, read_file_tool]
  dialog_agent:
    base_class: "agents.ResearchDialogAgent"
    tools: [reasoning_tool, answer_tool]
"""
AGENTS = """\
agents:
  researcher:
    tools:
      - web_search_tool:
          max_results: 15
          max_searches: 7
      - extract_page_content_tool: {content_limit: 2000}
      - clock_tool: {zone: Bergen}
      - final_answer_tool: null
  inline:
    base_class: SGRAgent
    prompts:
      initial_user_request_str: "Asked: {user_request}"
      clarification_response_str: "On {clarification_needed}"
    tools: [final_answer_tool]
"""


def test_what_its_files_say_in_their_own_way_is_understood(tmp_path: Path) -> None:
    with capture_logs() as logs:
        found = given(tmp_path, CONFIG, AGENTS)
        templates = sound(found)
    researcher, reader = templates["researcher"], templates["file_agent"]
    assert (researcher.base_agent_class, reader.base_agent_class) == ("SGRAgent", "ToolCallingAgent")
    assert researcher.tool_policy.allowlist == (
        "websearchtool", "extractpagecontenttool", "clocktool", "finalanswertool",
    )  # fmt: skip
    assert reader.tool_policy.allowlist == ("finalanswertool",), "not the tool of ours that has the same name"
    assert templates["dialog_agent"].base_agent_class == "SGRToolCallingAgent"
    assert templates["dialog_agent"].tool_policy.allowlist == ("reasoningtool", "finalanswertool")
    limits = [one.execution_policy.max_searches for one in (researcher, reader, templates["inline"])]
    assert limits == [7, 0, 6]
    prompts = templates["inline"].prompt_pack
    assert (prompts.initial_user_request, prompts.clarification_response) == ("Asked: {task}", "On {clarifications}")
    assert found.own["file_agent"].extra == {"working_directory": "."}
    told = [(one["event"], str(one["place"]).rpartition("/")[2]) for one in logs]
    assert told == [
        ("unknown_section", "config.yaml:2: langfuse"),
        ("unknown_section", "config.yaml:3: acp"),
        ("tool_class_missing", "config.yaml:7: tools.my_tool"),
        ("tool_class_missing", "config.yaml:9: tools.read_file_tool"),
        ("tool_class_missing", "config.yaml:10: tools.other_tool"),
        ("unknown_section", "config.yaml:27: agents.file_agent.langfuse"),
        ("foreign_agent_class", "config.yaml:24: agents.file_agent.base_class"),
        ("foreign_agent_class", "config.yaml:30: agents.dialog_agent.base_class"),
        ("unknown_placeholder", "agents.yaml:13: agents.inline.prompts.initial_user_request_str"),
        ("unknown_placeholder", "agents.yaml:14: agents.inline.prompts.clarification_response_str"),
    ]
    assert "of-the-file" not in str(logs)


def test_settings_reach_the_search_service_and_the_tools(tmp_path: Path) -> None:
    for name, text in (("config", CONFIG), ("agents", AGENTS)):
        (tmp_path / f"{name}.yaml").write_text(text)
    names = ["websearchtool", "extractpagecontenttool", "clocktool", "finalanswertool", "reasoningtool"]
    files = {"config_file": tmp_path / "config.yaml", "agents_file": tmp_path / "agents.yaml"}
    found = configure(Settings(**files), tools=names)
    assert found.settings.tavily_api_key.get_secret_value() == "tvly-of-the-file"
    common = found.common(ToolConfig())
    assert (common.search.max_results, common.search.content_limit) == (12, 1500)
    own = found.of_agents(common)["researcher"]
    assert (own.search.max_results, own.search.content_limit, own.search.max_searches) == (15, 2000, 7)
    assert common.tools == {"clocktool": {"zone": "Oslo", "style": "plain"}}
    assert own.tools == {"clocktool": {"zone": "Bergen", "style": "plain"}}
    assert own.for_tool("finalanswertool").tools == {}
    assert "tvly-of-the-file" not in repr(own)


@pytest.mark.parametrize(
    ("agents", "said"),
    [
        ("a: {base_class: agents.ResearchPainter}", "there is no agent class"),
        ("a: {tools: [clock_tool: 7]}", "should be a valid string"),
        ("a: {tools: [{clock_tool: {}, letter_tool: {}}]}", "should be a valid string"),
        ("a: {tools: [web_search_tool: {max_results: 0}]}", "greater than or equal to 1"),
        ("a: {tools: [clock_tool, null]}", "should be a valid string"),
        ("a: {colour: red}", "is not known"),
        ("a: {tools: [clock_tool: {needs_approval: true}]}", "needs_approval: is no setting; describe the tool under"),
        ("a: {tools: [clock_tool: {zone: Oslo, need_approval: true}]}", "need_approval: is no setting; "),
    ],
)
def test_what_is_wrong_is_still_told_where_it_stands(tmp_path: Path, agents: str, said: str) -> None:
    [told] = wrong(given(tmp_path, "", f"agents:\n  {agents}\n"), tmp_path)
    assert told.startswith("agents.yaml:2: agents.a.")
    assert said in told


def test_tools_may_be_set_up_beside_the_agents(tmp_path: Path) -> None:
    agents = "tools: {web_search_tool: {max_results: 5, max_searches: 2}, clock_tool: {zone: Oslo}}\nagents: {a: {}}"
    found = given(tmp_path, "search: {max_results: 3}", agents)
    assert sound(found)["a"].execution_policy.max_searches == 2
    assert found.common.section("search") == {"max_results": 3, "max_searches": 2}
    assert found.tool_settings == {"": {"clocktool": {"zone": "Oslo"}}}


def test_servers_that_were_copied_from_another_client_are_not_passed_over(tmp_path: Path) -> None:
    agents = "agents: {a: {}}\nmcpServers: {tickets: {command: tickets}}"
    line = "agents.yaml:2: mcpServers: belongs into a section `mcp`: put that above it"
    assert wrong(given(tmp_path, agents=agents), tmp_path) == [line]


@pytest.mark.parametrize("name", ["auht", "tolos", "llmm", "LLM", "agnets", "promtps", "mpc", "pmc", "skilsl"])
def test_a_section_whose_name_is_misspelt_is_a_mistake(tmp_path: Path, name: str) -> None:
    [told] = wrong(given(tmp_path, f"llm: {{}}\n{name}: {{}}\n"), tmp_path)
    assert told.startswith(f"config.yaml:2: {name}: is not known; ")


def test_a_section_of_another_product_is_told_with_those_that_are_read(tmp_path: Path) -> None:
    theirs = ["auth", "oauth", "acp", "langfuse", "skills", "logging", "server", "database", "telemetry", "redis"]
    with capture_logs() as logs:
        sound(given(tmp_path, "".join(f"{name}: {{}}\n" for name in theirs)))
    read = "agents, tools, tool_packages, mcp, llm, search, execution, prompts"
    assert [one["message"] for one in logs] == [
        f"{name} is no section of Longhouse, and is not read: {read} are." for name in theirs
    ]


def test_a_search_that_is_not_here_gives_its_key_to_nobody(tmp_path: Path) -> None:
    with capture_logs() as logs:
        found = given(tmp_path, "tools: {web_search_tool: {engine: brave, api_key: k, max_results: 3}}\nserach: {}\n")
    assert found.common.section("search") == {"max_results": 3}
    assert [one["event"] for one in logs] == ["unknown_search_engine"]
    assert wrong(found, tmp_path) == ["config.yaml:2: serach: is not known; did you mean search?"]
