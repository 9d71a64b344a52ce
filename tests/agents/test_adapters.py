"""What is written of templates and tools: byte for byte as Pydantic would, which wrote all that is stored."""

from dataclasses import replace
from typing import Any

import msgspec
import pytest

from longhouse.agents.adapters import adapter_of, written
from longhouse.agents.builtin import BUILT_IN
from longhouse.agents.template import (
    DEFAULT_AVAILABILITY,
    Abilities,
    Availability,
    ExecutionPolicy,
    LLMPolicy,
    MemoryPolicy,
    MultiAgentMeta,
    PromptPack,
    ResetPolicy,
    Rules,
    StageRule,
    Streaming,
    Template,
    ToolPolicy,
)
from longhouse.agents.tool_descriptor import Allow, RateLimits, RuntimeBinding, SecurityPolicy, ToolDescriptor
from longhouse.app.builtin import TOOLS

ADDED = {"version", "owner"}
REMOTE = RuntimeBinding(remote_endpoint="https://погода.example/v1", api_key_ref="key")
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "город": {"type": ["string", "null"], "default": None},
        "n": {"enum": [1, 2.5, True], "minimum": -0.0},
    },
    "required": [],
}
WHOLE = Template(
    name="клерк",
    version=7,
    owner="ann",
    base_agent_class="SGRAgent",
    prompt_pack=PromptPack(system_prompt="今天是 {current_date} “\u2028”", clarification_response="{clarifications}"),
    llm_policy=LLMPolicy(temperature=0, max_tokens=None, can=Abilities(json_schema=False), streaming=Streaming()),
    execution_policy=ExecutionPolicy(time_budget=60, stop_conditions=("iteration > 2",), unknown="tell"),
    tool_policy=ToolPolicy(required=("a",), allowlist=(), tool_types=("domain",)),
    rules=Rules(availability=(*DEFAULT_AVAILABILITY, Availability(when="enough_data", exclude=("b",))), stages=()),
    reset_policy=ResetPolicy(clean=("query_context",), keep=()),
    memory_policy=MemoryPolicy(min_relevance=1, show=("люди/аня.md",), collect=()),
    multi_agent_meta=MultiAgentMeta(capabilities="все", tags=("x", "y")),
)
TEMPLATES = (
    *BUILT_IN,
    WHOLE,
    replace(WHOLE, rules=Rules(replace=True, availability=(), stages=(StageRule(stage="план"),)), title="model"),
    Template(name="plain"),
    Template(name="recalls", memory_policy=MemoryPolicy(recall=True)),
    Template(name="defaults", execution_policy=ExecutionPolicy(), rules=Rules(availability=DEFAULT_AVAILABILITY)),
)
DESCRIPTORS = (
    *(cls.descriptor() for cls in TOOLS),
    ToolDescriptor(name="weather", description_short="Погода", runtime_binding=REMOTE, input_schema=SCHEMA, timeout=5),
    ToolDescriptor(
        name="pay",
        description_short="",
        runtime_binding=RuntimeBinding(agent="clerk"),
        tags=("money", "钱"),
        security_policy=SecurityPolicy("high", Allow(templates=(), sub_agents=False), RateLimits(per_minute=1)),
        needs_approval=False,
        input_schema={},
        approval_timeout=86_400,
        owner="bob",
    ),
)


@pytest.mark.parametrize(("kind", "every"), [(Template, TEMPLATES), (ToolDescriptor, DESCRIPTORS)])
def test_whatever_is_written_is_what_pydantic_wrote(kind: type[Any], every: tuple[Any, ...]) -> None:
    dumped = adapter_of(kind).dump_python
    for one in every:
        for without in (ADDED, {"version"}, set[str]()):
            whole = dumped(one, mode="json", exclude=without)
            assert msgspec.json.encode(written(one, without=without)) == msgspec.json.encode(whole)
            brief = dumped(one, mode="json", exclude=without, exclude_defaults=True)
            assert msgspec.json.encode(written(one, without=without, briefly=True)) == msgspec.json.encode(brief)
    assert written(every[-1], briefly=True) != written(every[-1])
