"""Seed 002: working memory in an agent of PydanticAI, run by the real package on its own scripted model."""

import importlib
import subprocess
import sys
from typing import Any

import pytest
from pydantic_ai import Agent, ModelRetry, ToolReturn
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import AgentInfo, FunctionModel
from pydantic_ai.models.test import TestModel
from pydantic_ai.toolsets import FunctionToolset

from longhouse.memory import AgentMemory
from longhouse.memory.adapters.pydantic_ai import PydanticAIMemory

TOC = {"reg_id": "angui_2024", "items": [{"title": "第一章 总则", "page_start": 1, "children": []}]}
HINT = "# 已缓存目录\n以下规程目录已获取: angui_2024\n无需再次调用 get_toc()"
FOUND = "# 已获取的相关信息\n## [1] angui_2024 P85\n停电前应先验电。"


class Library:
    """Tools of a reader, and how often each ran."""

    def __init__(self) -> None:
        self.ran: list[str] = []
        self.tools: list[Any] = [self.get_toc, self.smart_search, self.read_page_range]

    def get_toc(self, reg_id: str) -> dict[str, Any]:
        self.ran.append("get_toc")
        return TOC

    async def smart_search(self, query: str, reg_id: str) -> list[dict[str, Any]]:
        self.ran.append("smart_search")
        return [
            {"page": 85, "content": "停电前应先验电。", "score": 0.92},
            {"page": 12, "content": "无关。", "score": 0.3},
        ]

    def read_page_range(self, reg_id: str, start_page: int, end_page: int) -> Any:
        self.ran.append("read_page_range")
        if start_page > 100:
            raise ModelRetry("The document has 100 pages.")
        return ToolReturn(return_value="第 86 页: 作业前应挂接地线。", content="see also page 87")


class Reader:
    """A model that asks for the outline unless its instructions say that it is known, then searches."""

    def __init__(self) -> None:
        self.instructions: list[str] = []

    def __call__(self, messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        known = info.instructions or ""
        self.instructions.append(known)
        if "无需再次调用 get_toc()" not in known:
            return ModelResponse(parts=[ToolCallPart("get_toc", {"reg_id": "angui_2024"})])
        if "已获取的相关信息" not in known:
            return ModelResponse(parts=[ToolCallPart("smart_search", {"query": "验电", "reg_id": "angui_2024"})])
        return ModelResponse(parts=[TextPart(known.rpartition("\n")[2])])


async def test_the_second_query_does_not_ask_for_the_outline_again() -> None:
    library, reader, memory = Library(), Reader(), PydanticAIMemory()
    agent = Agent(FunctionModel(reader), instructions="You read rules.", tools=library.tools, capabilities=[memory])
    first = await agent.run("什么时候验电?")
    assert first.output == "停电前应先验电。"
    assert library.ran == ["get_toc", "smart_search"]
    assert memory.memory.current_query == "什么时候验电?"
    assert reader.instructions == [
        "You read rules.",
        f"You read rules.\n\n{HINT}",
        f"You read rules.\n\n{HINT}\n\n{FOUND}",
    ], "made anew for each request, within one run too"

    second = await agent.run("再说一遍", message_history=first.all_messages())
    assert second.output == "停电前应先验电。"
    assert library.ran == ["get_toc", "smart_search"], "neither ran again"

    memory.reset()
    assert (memory.memory.current_query, memory.memory.relevant_chunks) == ("", [])
    await agent.run("什么时候验电?")
    assert library.ran[2:] == ["smart_search"], "the outline was kept"

    memory.reset_all()
    assert memory.memory == AgentMemory()
    await agent.run("什么时候验电?")
    assert library.ran[3:] == ["get_toc", "smart_search"]


async def test_tools_of_a_prefixed_toolset_a_stream_and_failures() -> None:
    """A result with further content is remembered by its value; what the model must try again is not remembered."""
    library = Library()
    memory = PydanticAIMemory(AgentMemory(language="en"))
    calls = [
        ToolCallPart("docs_read_page_range", {"reg_id": "angui_2024", "start_page": 999, "end_page": 999}),
        ToolCallPart("docs_read_page_range", {"reg_id": "angui_2024", "start_page": 86, "end_page": 86}),
        ToolCallPart("read_page_range_count", {}),
    ]
    seen: list[str | None] = []

    def model(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        seen.append(info.instructions)
        return ModelResponse(parts=[calls.pop(0) if calls else TextPart("done")])

    def read_page_range_count() -> str:
        return "3"

    tools = FunctionToolset(library.tools).prefixed("docs")
    agent = Agent(FunctionModel(model), toolsets=[tools], tools=[read_page_range_count], capabilities=[memory])
    async with agent.iter(["Read page 86.", "Please."]) as run:
        async for _ in run:
            pass
    page = "# Relevant information found so far\n## [1] angui_2024 P86\n第 86 页: 作业前应挂接地线。"
    assert seen == [None, None, page, page]
    assert memory.memory.current_query == "Read page 86.\nPlease."
    assert [one.relevance_score for one in memory.memory.relevant_chunks] == [0.8]


async def test_the_model_that_calls_every_tool() -> None:
    """PydanticAI's own TestModel makes arguments up."""
    library, memory = Library(), PydanticAIMemory()
    model = TestModel()
    await Agent(model, tools=library.tools, capabilities=[memory]).run("Read.")
    assert sorted(library.ran) == ["get_toc", "read_page_range", "smart_search"]
    assert memory.memory.has_cached_toc("a")
    assert [one.source for one in memory.memory.relevant_chunks] == ["a P85", "a P0"]
    assert "# 已缓存目录" in str(model.last_model_request_parameters)


@pytest.mark.parametrize(
    ("adapter", "package", "sentence"),
    [
        (
            "pydantic_ai",
            "pydantic_ai",
            "The memory adapter for PydanticAI needs its package: pip install 'pydantic-ai-slim>=2.66'.",
        ),
        (
            "claude_agent",
            "claude_agent_sdk",
            "The memory adapter for the Claude Agent SDK needs its package: pip install 'claude-agent-sdk>=0.2.182'.",
        ),
    ],
)
def test_without_its_package_an_adapter_says_what_to_install(
    adapter: str, package: str, sentence: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = f"longhouse.memory.adapters.{adapter}"
    monkeypatch.delitem(sys.modules, module, raising=False)
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ImportError) as raised:
        importlib.import_module(module)
    assert str(raised.value) == sentence


def test_the_memory_alone_loads_neither_package() -> None:
    code = "import sys, longhouse.memory.adapters; print({'pydantic_ai', 'claude_agent_sdk'} & sys.modules.keys())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "set()"
