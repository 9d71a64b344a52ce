"""config.yaml and agents.yaml become templates: global values, then what the program brings, then the agent."""

from pathlib import Path

from file_helpers import NAMES, given, sound, wrong
from structlog.testing import capture_logs

from longhouse.agents.builtin import BUILT_IN, RESEARCH_PROMPT
from longhouse.config.loader import read_files


def test_without_files_nothing_is_changed() -> None:
    found = read_files(None, None, templates=BUILT_IN, tools=NAMES)
    assert found.templates == BUILT_IN
    assert found.touched == set()


def test_global_lies_beneath_what_the_program_brings_which_lies_beneath_the_agent(tmp_path: Path) -> None:
    config = """
        llm: {temperature: 0.1, max_tokens: 500}
        search: {max_searches: 7}
        execution: {max_iterations: 9, max_clarifications: 2}
        prompts: {system_prompt_str: Common., clarification_response_str: "They say: {clarifications}"}
    """
    agents = """
        agents:
          sgr_agent:
            llm: {max_tokens: 100}
            execution: {max_iterations: 3}
          own:
            base_class: SGRAgent
            tools: [finalanswertool]
            execution: {max_searches: 1, time_budget: 30}
    """
    found = given(tmp_path, config, agents)
    templates = sound(found)
    laid, own, other = templates["sgr_agent"], templates["own"], templates["tool_calling_agent"]
    assert (laid.llm_policy.temperature, laid.llm_policy.max_tokens) == (0.1, 100)
    assert (laid.execution_policy.max_iterations, laid.execution_policy.max_searches) == (3, 7)
    assert laid.prompt_pack.system_prompt == RESEARCH_PROMPT, "what the program says of it wins over what is global"
    assert laid.prompt_pack.clarification_response == "They say: {clarifications}"
    assert laid.tool_policy == BUILT_IN[0].tool_policy
    assert (own.prompt_pack.system_prompt, own.base_agent_class) == ("Common.", "SGRAgent")
    assert (own.execution_policy.max_iterations, own.execution_policy.max_clarifications) == (9, 2)
    assert (own.execution_policy.max_searches, own.execution_policy.time_budget) == (1, 30.0)
    assert other.execution_policy.max_iterations == 9
    assert found.touched == templates.keys()


def test_every_field_of_a_template_may_be_said_under_its_own_name(tmp_path: Path) -> None:
    agents = """
        agents:
          own:
            name: own
            base_agent_class: SGRAgent
            prompt_pack: {system_prompt: Hello.}
            llm_policy: {context_tokens: 900}
            llm: {streaming: {reasoning: false}}
            execution_policy: {token_budget: 5}
            tools: [clocktool]
            tool_policy: {denylist: [WebSearchTool], required: [final_answer], max_tools_in_prompt: 3}
            rules: {availability: [{when: "iteration >= 2", exclude: [clocktool]}]}
            reset_policy: {clean: [context]}
            memory_policy: {scope: owner}
            multi_agent_meta: {capabilities: Nothing much., tags: [small]}
            follow: pinned
            allow_client_system: false
            owner: alice
    """
    own = sound(given(tmp_path, agents=agents))["own"]
    assert (own.base_agent_class, own.prompt_pack.system_prompt) == ("SGRAgent", "Hello.")
    assert (own.llm_policy.context_tokens, own.llm_policy.streaming.reasoning) == (900, False)
    assert own.execution_policy.token_budget == 5
    assert (own.tool_policy.allowlist, own.tool_policy.denylist) == (("clocktool",), ("websearchtool",))
    assert (own.tool_policy.required, own.tool_policy.max_tools_in_prompt) == (("finalanswertool",), 3)
    assert own.rules.availability[0].exclude == ("clocktool",)
    assert (own.reset_policy.clean, own.memory_policy.scope) == (("context",), "owner")
    assert (own.multi_agent_meta.tags, own.follow) == (("small",), "pinned")
    assert (own.allow_client_system, own.owner) == (False, "alice")


def test_tools_are_found_however_they_are_spelled_and_others_stay_as_they_are(tmp_path: Path) -> None:
    tools = "[WebSearchTool, create_report_tool, clock, finalanswertool, tickets.create, lookup_order]"
    own = sound(given(tmp_path, agents=f"agents: {{own: {{tools: {tools}}}}}"))["own"]
    assert own.tool_policy.allowlist == (
        "websearchtool", "createreporttool", "clocktool", "finalanswertool", "tickets.create", "lookup_order",
    )  # fmt: skip


def test_rules_may_spell_tools_as_lists_of_tools_do(tmp_path: Path) -> None:
    rules = "{replace: true, availability: [{when: plan_made, exclude: [GeneratePlanTool, web_search, Other]}]}"
    templates = sound(given(tmp_path, agents=f"agents: {{planner: {{rules: {rules}}}}}"))
    assert templates["planner"].rules.availability[0].exclude == ("generateplantool", "websearchtool", "Other")


def test_an_agent_that_thinks_first_gets_the_tool_for_it(tmp_path: Path) -> None:
    agents = "agents: {own: {base_class: SGRToolCallingAgent, tools: [FinalAnswerTool]}}"
    assert sound(given(tmp_path, agents=agents))["own"].tool_policy.allowlist == ("reasoningtool", "finalanswertool")


def test_old_class_names_are_accepted_with_one_warning_and_paths_import_nothing(tmp_path: Path) -> None:
    agents = """
agents:
  old: {base_class: SGRAutoToolCallingAgent}
  path: {base_class: nowhere.to.be.found.SGRAgent}
"""
    with capture_logs() as logs:
        templates = sound(given(tmp_path, agents=agents))
    assert [(one["event"], one["message"]) for one in logs] == [
        ("deprecated_agent_class", "SGRAutoToolCallingAgent is deprecated; use SGRToolCallingAgent")
    ]
    assert str(logs[0]["place"]).endswith("agents.yaml:3: agents.old.base_class")
    assert templates["old"].base_agent_class == "SGRToolCallingAgent"
    assert templates["path"].base_agent_class == "SGRAgent"


def test_agents_may_stand_in_config_yaml_and_the_other_file_is_laid_over_them(tmp_path: Path) -> None:
    config = "agents: {own: {base_class: SGRAgent, execution: {max_iterations: 3, max_searches: 1}}}"
    own = sound(given(tmp_path, config, "agents: {own: {execution: {max_iterations: 4}}}"))["own"]
    assert (own.base_agent_class, own.execution_policy.max_iterations) == ("SGRAgent", 4)
    assert own.execution_policy.max_searches == 1


def test_prompts_come_from_texts_and_files_beside_the_yaml_file(tmp_path: Path) -> None:
    (tmp_path / "prompts").mkdir()
    (tmp_path / "prompts" / "system.txt").write_text("From a file, {current_date}.")
    agents = """
        agents:
          both: {prompts: {system_prompt_str: In place., system_prompt_file: prompts/system.txt}}
          file: {prompts: {system_prompt_file: prompts/system.txt, initial_user_request_str: "Do: {task}"}}
          empty: {prompts: {system_prompt_str: "", system_prompt_file: FOLDER/prompts/system.txt}}
    """.replace("FOLDER", str(tmp_path))
    templates = sound(given(tmp_path, "prompts: {system_prompt_str: Common.}", agents))
    assert templates["both"].prompt_pack.system_prompt == "In place."
    assert templates["file"].prompt_pack.system_prompt == "From a file, {current_date}.", "nearer than what is common"
    assert templates["file"].prompt_pack.initial_user_request == "Do: {task}"
    assert templates["empty"].prompt_pack.system_prompt == "From a file, {current_date}.", "an absolute path is meant"


def test_prompt_files_lie_beneath_the_folder_of_the_yaml_file(tmp_path: Path) -> None:
    folder = tmp_path / "inner"
    folder.mkdir()
    (tmp_path / "secret.txt").write_text("canary")
    (folder / "link.txt").symlink_to(tmp_path / "secret.txt")
    (folder / "bytes.txt").write_bytes(b"\xff\xfe\x00")
    agents = f"""agents:
  a: {{prompts: {{system_prompt_file: ../secret.txt}}}}
  b: {{prompts: {{system_prompt_file: {tmp_path}/gone.txt}}}}
  c: {{prompts: {{system_prompt_file: link.txt}}}}
  d: {{prompts: {{system_prompt_file: gone.txt}}}}
  e: {{prompts: {{system_prompt_file: bytes.txt}}}}
  f: {{prompts: {{system_prompt: Hello.}}}}
  g: {{prompts: {{system_prompt_file: "x\\0y"}}}}
"""
    outside = "should be a file in the folder of agents.yaml, or below it, or an absolute path"
    assert wrong(given(folder, agents=agents), folder) == [
        f"agents.yaml:2: agents.a.prompts.system_prompt_file: {outside}",
        "agents.yaml:3: agents.b.prompts.system_prompt_file: names a file that is not there",
        f"agents.yaml:4: agents.c.prompts.system_prompt_file: {outside}",
        "agents.yaml:5: agents.d.prompts.system_prompt_file: names a file that is not there",
        "agents.yaml:6: agents.e.prompts.system_prompt_file: names a file that is not text in UTF-8",
        "agents.yaml:7: agents.f.prompts.system_prompt: is not known; did you mean system_prompt_str?",
        "agents.yaml:8: agents.g.prompts.system_prompt_file: contains a character that cannot be stored",
    ]


def test_servers_are_of_the_process_and_their_tools_of_the_agents_that_have_them(tmp_path: Path) -> None:
    config = "mcp: {mcpServers: {files: {command: /bin/true}}}"
    agents = """
        agents:
          all: {tools: [finalanswertool]}
          some: {tools: [files.read, finalanswertool], mcp: {mcpServers: {more: {url: "http://127.0.0.1:9/mcp"}}}}
    """
    found = given(tmp_path, config, agents)
    templates = sound(found)
    assert [server.name for server in found.servers] == ["files", "more"]
    assert templates["all"].tool_policy.allowlist == ("finalanswertool", "files.*")
    assert templates["some"].tool_policy.allowlist == ("files.read", "finalanswertool", "more.*")
    assert (templates["sgr_agent"].tool_policy.allowlist or ())[-1] == "files.*"


def test_two_agents_share_the_name_of_a_server_only_if_they_mean_the_same(tmp_path: Path) -> None:
    agents = """agents:
  a: {mcp: {mcpServers: {s: {command: one}}}}
  b: {mcp: {mcpServers: {s: {command: one, description: The same, type: stdio}}}}
  c: {mcp: {mcpServers: {s: {command: two}, "no name": {}}}}
"""
    assert wrong(given(tmp_path, agents=agents), tmp_path) == [
        "agents.yaml:4: agents.c.mcp.mcpServers.no name: the MCP server 'no name' needs another name: letters, digits, "
        "_ and -, at most 64, and not 'agent'",
        "agents.yaml:4: agents.c.mcp.mcpServers.s: another server is called 's' already",
    ]


def test_a_field_that_only_tools_know_is_kept_and_one_that_looks_like_a_slip_is_told(tmp_path: Path) -> None:
    with capture_logs() as logs:
        found = given(tmp_path, "execution: {house_style: plain, max_iterashuns: 5, nested: {a: [1]}}")
    sound(found)
    assert found.common.extra == {"house_style": "plain", "max_iterashuns": 5, "nested": {"a": [1]}}
    assert [(one["event"], one["similar"]) for one in logs] == [("unknown_execution_field", "max_iterations")]
