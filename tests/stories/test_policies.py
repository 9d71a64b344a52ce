"""Every field of a policy changes what happens, somewhere in a test; a field that did nothing would be a lie."""

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args, get_type_hints

import pytest

from longhouse.agents import template, tool_descriptor
from longhouse.agents.template import Template
from longhouse.agents.tool_descriptor import ToolDescriptor

TESTS = Path(__file__).parents[1]
TOOLS = "stories/test_policies_tools.py"
LIMITS = "stories/test_policies_limits.py"
VERSIONS = "stories/test_versions.py"
STRATEGIES = "stories/test_strategies.py"
ACTIVITY = "stories/test_tool_activity.py"
DELEGATION = "stories/test_delegation_limits.py"
APPROVAL = "stories/test_approval.py"
REMEMBERED = "memory/test_session_memory.py"

COVERED = {
    "Template.name": LIMITS,
    "Template.version": VERSIONS,
    "Template.base_agent_class": LIMITS,
    "Template.prompt_pack": LIMITS,
    "Template.llm_policy": LIMITS,
    "Template.execution_policy": LIMITS,
    "Template.tool_policy": TOOLS,
    "Template.rules": TOOLS,
    "Template.reset_policy": LIMITS,
    "Template.memory_policy": "api/test_owners.py",
    "Template.multi_agent_meta": "search/test_finder.py",
    "Template.follow": VERSIONS,
    "Template.allow_client_system": LIMITS,
    "Template.allow_client_tools": "stories/test_client_tools.py",
    "Template.title": "api/test_titles.py",
    "Template.owner": LIMITS,
    "PromptPack.system_prompt": LIMITS,
    "PromptPack.initial_user_request": LIMITS,
    "PromptPack.clarification_response": LIMITS,
    "LLMPolicy.base_url": LIMITS,
    "LLMPolicy.api_key_ref": LIMITS,
    "LLMPolicy.proxy": LIMITS,
    "LLMPolicy.model": LIMITS,
    "LLMPolicy.temperature": LIMITS,
    "LLMPolicy.max_tokens": LIMITS,
    "LLMPolicy.effort": "stories/test_thinking.py",
    "LLMPolicy.extra": "stories/test_thinking.py",
    "LLMPolicy.context_tokens": "agents/test_window_budget.py",
    "LLMPolicy.can": STRATEGIES,
    "LLMPolicy.streaming": ACTIVITY,
    "Abilities.forced_tool_choice": STRATEGIES,
    "Abilities.parallel_tool_calls": STRATEGIES,
    "Abilities.json_schema": STRATEGIES,
    "Streaming.reasoning": ACTIVITY,
    "Streaming.tool_activity": ACTIVITY,
    "ExecutionPolicy.max_iterations": LIMITS,
    "ExecutionPolicy.max_clarifications": LIMITS,
    "ExecutionPolicy.max_searches": LIMITS,
    "ExecutionPolicy.max_running": "stories/test_fairness.py",
    "ExecutionPolicy.time_budget": LIMITS,
    "ExecutionPolicy.tool_budget": LIMITS,
    "ExecutionPolicy.token_budget": LIMITS,
    "ExecutionPolicy.stop_conditions": LIMITS,
    "ExecutionPolicy.max_depth": DELEGATION,
    "ExecutionPolicy.must_delegate": DELEGATION,
    "ExecutionPolicy.approve_in_chat": "stories/test_approval_in_chat.py",
    "ExecutionPolicy.unknown": "runtime/test_engine_hold.py",
    "ToolPolicy.required": TOOLS,
    "ToolPolicy.allowlist": TOOLS,
    "ToolPolicy.denylist": TOOLS,
    "ToolPolicy.tool_types": TOOLS,
    "ToolPolicy.tags": TOOLS,
    "ToolPolicy.max_risk_level": TOOLS,
    "ToolPolicy.max_tools_in_prompt": TOOLS,
    "ToolPolicy.selection_strategy": "search/test_selection.py",
    "Availability.when": TOOLS,
    "Availability.keep_only": TOOLS,
    "Availability.exclude": TOOLS,
    "StageRule.stage": TOOLS,
    "StageRule.when": TOOLS,
    "Rules.availability": TOOLS,
    "Rules.replace": TOOLS,
    "Rules.stages": TOOLS,
    "ResetPolicy.clean": LIMITS,
    "ResetPolicy.keep": LIMITS,
    "MemoryPolicy.scope": "api/test_owners.py",
    "MemoryPolicy.context_window": LIMITS,
    "MemoryPolicy.max_history": "stories/test_aliya.py",
    "MemoryPolicy.share_context": DELEGATION,
    "MemoryPolicy.enabled": REMEMBERED,
    "MemoryPolicy.max_chunks": REMEMBERED,
    "MemoryPolicy.min_relevance": REMEMBERED,
    "MemoryPolicy.max_tokens": REMEMBERED,
    "MemoryPolicy.recall": "memory/test_recall.py",
    "MemoryPolicy.show": "memory/test_recall.py",
    "MemoryPolicy.collect": "runtime/test_engine_memory.py",
    "MultiAgentMeta.capabilities": "search/test_finder.py",
    "MultiAgentMeta.tags": "search/test_finder.py",
    "ToolDescriptor.name": TOOLS,
    "ToolDescriptor.version": VERSIONS,
    "ToolDescriptor.type": TOOLS,
    "ToolDescriptor.tags": TOOLS,
    "ToolDescriptor.categories": TOOLS,
    "ToolDescriptor.description_short": TOOLS,
    "ToolDescriptor.description_long": TOOLS,
    "ToolDescriptor.input_schema": TOOLS,
    "ToolDescriptor.runtime_binding": TOOLS,
    "ToolDescriptor.security_policy": TOOLS,
    "ToolDescriptor.effect": TOOLS,
    "ToolDescriptor.timeout": TOOLS,
    "ToolDescriptor.max_output": TOOLS,
    "ToolDescriptor.needs_approval": APPROVAL,
    "ToolDescriptor.approval_timeout": APPROVAL,
    "ToolDescriptor.owner": TOOLS,
    "ToolDescriptor.remembers": "stories/test_remote_tools.py",
    "ToolDescriptor.probe": "stories/test_kill.py",
    "ToolDescriptor.isolation": "stories/test_isolation.py",
    "ToolDescriptor.max_memory": "stories/test_isolation.py",
    "ToolDescriptor.cpu_time": "stories/test_isolation.py",
    "ToolDescriptor.serve_over_mcp": "api/test_mcp_server.py",
    "RuntimeBinding.python_entrypoint": TOOLS,
    "RuntimeBinding.remote_endpoint": "api/test_admin_tools.py",
    "RuntimeBinding.mcp": "stories/test_mcp_tools.py",
    "RuntimeBinding.agent": TOOLS,
    "RuntimeBinding.api_key_ref": "tools/test_http_binding.py",
    "SecurityPolicy.risk_level": TOOLS,
    "SecurityPolicy.allow": TOOLS,
    "SecurityPolicy.rate_limits": TOOLS,
    "Allow.templates": TOOLS,
    "Allow.sub_agents": TOOLS,
    "RateLimits.per_minute": TOOLS,
}
"""Each field, and the tests in which changing it changes what happens."""


def fields_of(cls: type) -> Iterator[str]:
    """The fields of a dataclass and of all that it is made of."""
    module = template if cls.__module__ == template.__name__ else tool_descriptor
    hints = get_type_hints(cls, vars(module))
    for one in dataclasses.fields(cls):
        yield f"{cls.__name__}.{one.name}"
        for inner in parts_of(hints[one.name]):
            yield from fields_of(inner)


def parts_of(hint: Any) -> Iterator[type]:
    if dataclasses.is_dataclass(hint) and isinstance(hint, type):
        yield hint
    for argument in get_args(hint):
        yield from parts_of(argument)


FIELDS = sorted({*fields_of(Template), *fields_of(ToolDescriptor)})


def test_every_field_has_its_test_and_no_test_is_for_a_field_that_is_gone() -> None:
    assert sorted(COVERED) == FIELDS


@pytest.mark.parametrize("field", COVERED)
def test_the_test_of_a_field_is_there_and_speaks_of_it(field: str) -> None:
    text = (TESTS / COVERED[field]).read_text()
    assert "test_" in text
    name = field.rpartition(".")[2]
    assert name in text, f"{COVERED[field]} does not mention {name}"
