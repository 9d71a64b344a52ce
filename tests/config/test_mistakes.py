"""Every mistake is told at once, with its file, its line and its field."""

from pathlib import Path

from file_helpers import given, wrong

BROKEN = """\
agents:
  writer:
    base_class: DreamingAgent
    execution:
      max_iterations: many
    llm:
      temprature: 0.2
  Writer:
    colour: red
    rules:
      availability:
        - when: iteration is large
"""


def test_all_mistakes_are_told_in_the_order_of_the_files(tmp_path: Path) -> None:
    config = "llm:\n  temperature: 9\nserach: {}\nsearch:\n  max_results: 0\n"
    found = wrong(given(tmp_path, config, BROKEN), tmp_path)
    known = "SGRAgent, SGRToolCallingAgent, ToolCallingAgent"
    assert found[0].startswith("agents.yaml:3: agents.writer.base_class: there is no agent class 'DreamingAgent'")
    assert all(name in found[0] for name in known.split(", "))
    assert found[1:4] == [
        "agents.yaml:5: agents.writer.execution.max_iterations: should be a valid integer",
        "agents.yaml:7: agents.writer.llm.temprature: is not known; did you mean temperature?",
        "agents.yaml:8: agents.Writer: is too similar to 'writer'",
    ]
    assert found[4].startswith("agents.yaml:9: agents.Writer.colour: is not known; known here: ")
    assert found[5].startswith("agents.yaml:12: agents.Writer.rules.availability[0].when: ")
    assert found[6:] == [
        "config.yaml:2: llm.temperature: should be less than or equal to 2",
        "config.yaml:3: serach: is not known; did you mean search?",
        "config.yaml:5: search.max_results: should be greater than or equal to 1",
    ]


def test_a_field_of_the_tool_policy_is_a_mistake_where_unknown_fields_go_to_tools(
    tmp_path: Path,
) -> None:
    agents = "agents:\n  a:\n    execution: {max_tools_in_prompt: 12, house_style: plain}\n"
    belongs = "belongs to the tool_policy of an agent"
    assert wrong(given(tmp_path, "execution: {denylist: [clocktool]}", agents), tmp_path) == [
        f"agents.yaml:3: agents.a.execution.max_tools_in_prompt: {belongs}",
        f"config.yaml:1: execution.denylist: {belongs}",
    ]


def test_what_all_agents_inherit_is_told_once_and_also_without_agents(tmp_path: Path) -> None:
    line = ["config.yaml:1: execution.max_iterations: should be greater than or equal to 1"]
    assert wrong(given(tmp_path, "execution: {max_iterations: 0}"), tmp_path) == line
    assert wrong(given(tmp_path, "execution: {max_iterations: 0}", templates=()), tmp_path) == line


def test_sections_and_agents_that_are_no_mappings_are_told(tmp_path: Path) -> None:
    config = "llm: gpt\nexecution:\nprompts: [a]\nmcp: {servers: {}}\n"
    agents = "agents:\n  a: nothing\n  b:\n  c: {tools: WebSearchTool, llm: 7}\n  d e: {}\n  f: {name: g, version: 2}\n"
    agents += "  auto: {}\n"
    assert wrong(given(tmp_path, config, agents), tmp_path) == [
        "agents.yaml:2: agents.a: should contain fields of its own",
        "agents.yaml:4: agents.c.llm: should contain fields of its own",
        "agents.yaml:4: agents.c.tools: should be a list",
        "agents.yaml:5: agents.d e: a name begins with a letter and is made of the letters A-Z and a-z, digits, _, . "
        "and -",
        "agents.yaml:6: agents.f.name: should be 'f' as above it, or be left out",
        "agents.yaml:6: agents.f.version: is set by the catalog",
        "agents.yaml:7: agents.auto: auto lets the server choose an agent; use another name",
        "config.yaml:1: llm: should contain fields of its own",
        "config.yaml:3: prompts: should contain fields of its own",
        "config.yaml:4: mcp.servers: is not known; did you mean mcpServers?",
    ]
