"""Files describe tools beside agents, and name classes by where they are; names are found in any spelling."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from file_helpers import given, sound, wrong

from longhouse.agents.strategies.base import AgentRegistry
from own_module import own_module

MODULE = """
from longhouse.agents.strategies.tool_calling import ToolCallingAgent

class PatientAgent(ToolCallingAgent):
    pass

class Unrelated:
    pass
"""


@pytest.fixture
def module(tmp_path: Path) -> Iterator[str]:
    with own_module(tmp_path, MODULE) as name:
        yield name


def test_a_tool_is_described_by_the_fields_of_its_descriptor(tmp_path: Path, module: str) -> None:
    agents = f"""
tool_packages: [{module}]
mcp: {{mcpServers: {{tickets: {{url: "http://127.0.0.1:9/mcp"}}}}}}
tools:
  pay: {{runtime_binding: {{python_entrypoint: "{module}:Pay"}}, needs_approval: true, timeout: 5.0}}
  forecast:
    description_short: Tell the weather.
    runtime_binding: {{remote_endpoint: "https://weather.example/", api_key_ref: weather}}
    effect: read
    security_policy: {{rate_limits: {{per_minute: 3}}}}
  tickets.create: {{needs_approval: true}}
agents:
  clerk: {{tools: [Pay, FORECAST, tickets.create, final_answer, "{module}:LookUp", {module}.Count]}}
"""
    found = given(tmp_path, agents=agents)
    policy = sound(found)["clerk"].tool_policy
    assert policy.allowlist == ("pay", "forecast", "tickets.create", "finalanswertool", "lookup", "count")
    assert found.packages == (module,)
    bindings = {name: one.runtime_binding for name, one in found.tools.items()}
    assert bindings["pay"].python_entrypoint == f"{module}:Pay"
    assert bindings["tickets.create"].mcp == "tickets.create"
    assert (bindings["lookup"].python_entrypoint, bindings["count"].python_entrypoint) == (
        f"{module}:LookUp", f"{module}:Count",
    )  # fmt: skip
    assert (found.tools["pay"].needs_approval, found.tools["pay"].timeout) == (True, 5.0)
    assert found.tools["forecast"].security_policy.rate_limits.per_minute == 3
    assert [server.name for server in found.servers] == ["tickets"]
    assert sys.path[-1] == str(tmp_path.resolve()), "what is installed is found first"


def test_what_is_wrong_with_a_tool_is_told_with_its_line(tmp_path: Path) -> None:
    agents = """tool_packages: [7]
tools:
  a: {runtime_binding: {grpc_endpoint: "host:1"}}
  b: {description_short: Nothing runs it.}
  c: {runtime_binding: {python_entrypoint: "x:Y", mcp: c}}
  d: {runtime_binding: {remote_endpoint: "https://d/"}, efect: read}
  e: {name: f, runtime_binding: {python_entrypoint: "x:Y"}}
  g: {runtime_binding: {python_entrypoint: 7}}
  far.away: {needs_aproval: true}
  h: {base_class: own.H, needs_approval: true}
agents: {own: {tools: [a, b]}}
"""
    first, second, *others = wrong(given(tmp_path, agents=agents), tmp_path)
    assert first == "agents.yaml:1: tool_packages[0]: should be a valid string"
    assert second.startswith("agents.yaml:3: tools.a.runtime_binding.grpc_endpoint: is not known; ")
    assert others == [
        "agents.yaml:4: tools.b: needs a runtime_binding: a python_entrypoint or a remote_endpoint",
        "agents.yaml:5: tools.c.runtime_binding: exactly one of python_entrypoint, remote_endpoint, mcp and agent is "
        "needed",
        "agents.yaml:6: tools.d.efect: is not known; did you mean effect?",
        "agents.yaml:7: tools.e.name: should be 'e' as above it, or be left out",
        "agents.yaml:8: tools.g.runtime_binding.python_entrypoint: should be a text; put it in quotes",
        "agents.yaml:9: tools.far.away.needs_aproval: is not known; did you mean needs_approval?",
        "agents.yaml:10: tools.h.needs_approval: is no setting; describe the tool under `tools`, with a "
        "runtime_binding, and say it there",
    ]


@pytest.mark.parametrize("packages", ["7", "tools", "{tools: yes}", "true"])
def test_packages_that_are_no_list_are_told(tmp_path: Path, packages: str) -> None:
    agents = f"tool_packages: {packages}\nagents: {{}}"
    assert wrong(given(tmp_path, agents=agents), tmp_path) == ["agents.yaml:1: tool_packages: should be a list"]


def test_an_agent_class_is_imported_from_an_allowed_package_and_known_by_any_spelling(
    tmp_path: Path, module: str
) -> None:
    agents = f"""
tool_packages: [{module}]
agents:
  a: {{base_class: "{module}:PatientAgent"}}
  b: {{base_class: {module}.PatientAgent}}
  c: {{base_class: sgr_tool_calling_agent}}
  d: {{base_class: toolcallingagent}}
  e: {{base_agent_class: SgrAgent}}
"""
    classes = {name: one.base_agent_class for name, one in sound(given(tmp_path, agents=agents)).items()}
    assert [classes[name] for name in "abcde"] == [
        f"{module}:PatientAgent", f"{module}:PatientAgent", "SGRToolCallingAgent", "ToolCallingAgent", "SGRAgent",
    ]  # fmt: skip
    assert AgentRegistry.get(f"{module}:PatientAgent") is sys.modules[module].PatientAgent


def test_a_class_that_may_not_or_cannot_be_imported_is_told(tmp_path: Path, module: str) -> None:
    agents = f"""tool_packages: [{module}]
agents:
  a: {{base_class: "os.path:NoAgent"}}
  b: {{base_class: "{module}:Unrelated"}}
  c: {{base_class: "{module}.sub:Agent"}}
  d: {{base_class: ToolCalingAgent}}
"""
    before = set(sys.modules)
    first, second, third, fourth = wrong(given(tmp_path, agents=agents), tmp_path)
    assert first.endswith(
        "agents.a.base_class: os.path is not in a package that tools may come from; `tool_packages` lists those"
    )
    assert second.endswith(f"agents.b.base_class: {module} has no agent class Unrelated")
    assert f"agents.c.base_class: {module}.sub cannot be imported: ModuleNotFoundError" in third
    assert fourth.endswith("; did you mean ToolCallingAgent?")
    assert set(sys.modules) - before == {module}


def test_a_class_with_the_name_of_a_built_in_one_is_told_and_takes_no_place(tmp_path: Path, module: str) -> None:
    (tmp_path / f"{module}.py").write_text(MODULE.replace("PatientAgent", "SGRAgent"))
    agents = (
        f"tool_packages: [{module}]\nagents: {{a: {{base_class: '{module}:SGRAgent'}}, b: {{base_class: SGRAgent}}}}"
    )
    [line] = wrong(given(tmp_path, agents=agents), tmp_path)
    assert line == (
        f"agents.yaml:2: agents.a.base_class: {module} cannot be imported: "
        "an agent class 'SGRAgent' comes with Longhouse; give yours another name"
    )
    assert AgentRegistry.resolve(["SGRAgent"])[0].__module__ == "longhouse.agents.strategies.structured"


def test_a_module_beside_the_files_must_not_have_the_name_of_an_installed_one(tmp_path: Path) -> None:
    (tmp_path / "yarl.py").write_text("")
    before = list(sys.path)
    try:
        [line] = wrong(given(tmp_path, agents="tool_packages: [yarl]"), tmp_path)
    finally:
        sys.path[:] = before
    assert line.startswith("agents.yaml:1: tool_packages[0]: ")
    assert line.endswith("has this name already; rename yours")


def test_a_class_of_an_allowed_package_is_named_in_the_way_of_other_files_too(tmp_path: Path, module: str) -> None:
    agents = f"""
tool_packages: [{module}]
tools:
  dice: {{base_class: {module}.RollDice, sides: 6}}
  read_file_tool: {{base_class: {module}.ReadFileTool, root: docs}}
agents:
  player: {{tools: [dice, read_file_tool, final_answer]}}
  rememberer: {{tools: [readfiletool]}}
"""
    found = given(tmp_path, agents=agents)
    assert sound(found)["player"].tool_policy.allowlist == ("rolldice", "read_file_tool", "finalanswertool")
    assert sound(found)["rememberer"].tool_policy.allowlist == ("readfiletool",), "the one that comes with the program"
    own = found.tools["read_file_tool"].runtime_binding
    assert own.python_entrypoint == f"{module}:ReadFileTool", "under the name of its entry"
    assert found.tools["rolldice"].runtime_binding.python_entrypoint == f"{module}:RollDice"
    assert found.tool_settings[""] == {"rolldice": {"sides": 6}, "read_file_tool": {"root": "docs"}}
