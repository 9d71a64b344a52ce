"""Seed 002: working memory around the Claude Agent SDK, on its own message classes and its own control protocol."""

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import claude_agent_sdk as sdk
import pytest
from claude_agent_sdk import ClaudeAgentOptions, ClaudeSDKClient, Transport

from longhouse.memory import AgentMemory
from longhouse.memory.adapters.claude_agent import ClaudeAgentMemory

TOC = {"reg_id": "angui_2024", "items": [{"title": "第一章 总则", "page_start": 1, "children": []}]}
RESULTS = {
    "results": [
        {"reg_id": "angui_2024", "page": 85, "content": "停电前应先验电。", "score": 0.92},
        {"reg_id": "angui_2024", "page": 12, "content": "无关。", "score": 0.3},
    ]
}
HINT = "# 已缓存目录\n以下规程目录已获取: angui_2024\n无需再次调用 get_toc()"
FOUND = (
    "# 已获取的相关信息\n## [1] angui_2024 P85\n停电前应先验电。\n## [2] angui_2024 P86\n第 86 页: 作业前应挂接地线。"
)
END = {
    "type": "result", "subtype": "success", "duration_ms": 1, "duration_api_ms": 1, "is_error": False, "num_turns": 1,
    "session_id": "s", "result": "done",
}  # fmt: skip


def call(number: int, tool: str, parent: str | None = None, **arguments: Any) -> dict[str, Any]:
    block = {"type": "tool_use", "id": f"toolu_{number}", "name": tool, "input": arguments}
    message = {"role": "assistant", "model": "claude", "content": [{"type": "text", "text": "Let me look."}, block]}
    return {"type": "assistant", "message": message, "parent_tool_use_id": parent}


def result(number: int, content: Any, parent: str | None = None, is_error: bool | None = None) -> dict[str, Any]:
    block = {"type": "tool_result", "tool_use_id": f"toolu_{number}", "content": content, "is_error": is_error}
    return {"type": "user", "message": {"role": "user", "content": [block]}, "parent_tool_use_id": parent}


def text(value: Any) -> list[dict[str, Any]]:
    """A result as MCP servers give it."""
    return [{"type": "text", "text": value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)}]


READING = [
    call(1, "mcp__grid__get_toc", reg_id="angui_2024"),
    result(1, text(TOC)),
    call(2, "mcp__grid__smart_search", query="验电", reg_id="angui_2024"),
    call(3, "mcp__grid__read_page_range", reg_id="angui_2024", start_page=86, end_page=86),
    result(3, "第 86 页: 作业前应挂接地线。"),
    result(2, text(RESULTS)),
    # What must not be remembered: a failure, a sub-agent's reading, another tool, a result nobody asked for.
    call(4, "mcp__grid__read_page_range", reg_id="angui_2024", start_page=999, end_page=999),
    result(4, "There is no page 999.", is_error=True),
    call(5, "mcp__grid__get_toc", "toolu_0", reg_id="other"),
    result(5, text(TOC), "toolu_0"),
    call(6, "Read", file_path="/etc/hosts"),
    result(6, "127.0.0.1 localhost"),
    result(7, text(TOC)),
    {"type": "user", "message": {"role": "user", "content": "Go on."}, "parent_tool_use_id": None},
    END,
]


class ScriptedTransport(Transport):
    """Plays Claude Code: each prompt is answered with the next part of the script."""

    def __init__(self, *script: list[dict[str, Any]]) -> None:
        self.script = list(script)
        self.prompts: list[str] = []
        self._answers: asyncio.Queue[dict[str, Any] | None] = asyncio.Queue()

    async def connect(self) -> None: ...

    async def write(self, data: str) -> None:
        message = json.loads(data)
        if message["type"] == "control_request":
            response = {"subtype": "success", "request_id": message["request_id"], "response": {}}
            self._answers.put_nowait({"type": "control_response", "response": response})
        elif message["type"] == "user":
            self.prompts.append(message["message"]["content"])
            for answer in self.script.pop(0):
                self._answers.put_nowait(answer)

    async def read_messages(self) -> AsyncIterator[dict[str, Any]]:
        while (answer := await self._answers.get()) is not None:
            yield answer

    async def close(self) -> None:
        self._answers.put_nowait(None)

    def is_ready(self) -> bool:
        return True

    async def end_input(self) -> None:
        self._answers.put_nowait(None)


async def read_on(memory: ClaudeAgentMemory, prompt: str, script: list[dict[str, Any]]) -> list[sdk.Message]:
    transport = ScriptedTransport(script)
    messages = [message async for message in memory.query(prompt=prompt, transport=transport)]
    assert transport.prompts == [prompt]
    return messages


async def test_messages_of_a_query_feed_the_memory_and_its_next_prompt_has_it() -> None:
    memory = ClaudeAgentMemory()
    assert memory.build_system_prompt("You read rules.") == "You read rules."
    messages = await read_on(memory, "什么时候验电?", READING)
    assert [type(message) for message in messages[:2]] == [sdk.AssistantMessage, sdk.UserMessage]
    assert isinstance(messages[-1], sdk.ResultMessage)
    assert len(messages) == len(READING), "all of them reach the caller"
    assert memory.memory.current_query == "什么时候验电?"
    assert list(memory.memory.toc_cache) == ["angui_2024"]
    assert memory.build_system_prompt("You read rules.") == f"You read rules.\n\n{HINT}\n\n{FOUND}"

    await read_on(memory, "再说一遍", [END])
    assert memory.build_system_prompt() == f"{HINT}\n\n{FOUND}", "it lasts over queries"

    memory.reset()
    assert (memory.memory.current_query, memory.memory.relevant_chunks) == ("", [])
    assert memory.build_system_prompt("You read rules.") == f"You read rules.\n\n{HINT}"
    memory.reset_all()
    assert memory.memory == AgentMemory()


async def test_the_messages_of_a_client_that_stays_connected_feed_it_too() -> None:
    memory = ClaudeAgentMemory(AgentMemory(language="ru"))
    # The first turn was interrupted: its call has no result, and a later call may have the same id.
    interrupted = [call(1, "get_toc", reg_id="old"), END]
    again = [call(1, "smart_search", query="x", reg_id="angui_2024"), result(1, json.dumps(RESULTS)), END]
    async with ClaudeSDKClient(transport=ScriptedTransport(interrupted, again)) as client:
        for prompt in ("Оглавление", "Проверка напряжения"):
            await client.query(prompt)
            async for message in client.receive_response():
                memory.process(message)
    assert memory.build_system_prompt() == "# Уже найденные сведения\n## [1] angui_2024 P85\n停电前应先验电。"


async def test_who_stops_in_the_middle_keeps_what_was_read_so_far() -> None:
    memory = ClaudeAgentMemory()
    messages = memory.query(prompt="Read.", transport=ScriptedTransport(READING))
    async for message in messages:
        if isinstance(message, sdk.UserMessage):
            break
    await messages.aclose()
    assert (list(memory.memory.toc_cache), memory.memory.relevant_chunks) == (["angui_2024"], [])


@pytest.mark.parametrize(
    ("given", "prepared"),
    [
        (None, HINT),
        ("You read rules.", f"You read rules.\n\n{HINT}"),
        ({"type": "custom", "prompt": "Read."}, {"type": "custom", "prompt": f"Read.\n\n{HINT}"}),
        ({"type": "preset", "preset": "claude_code"}, {"type": "preset", "preset": "claude_code", "append": HINT}),
        (
            {"type": "preset", "preset": "claude_code", "append": "Read."},
            {"type": "preset", "preset": "claude_code", "append": f"Read.\n\n{HINT}"},
        ),
    ],
)
def test_every_form_of_a_system_prompt_ends_with_the_memory(given: Any, prepared: Any) -> None:
    memory = ClaudeAgentMemory()
    options = ClaudeAgentOptions(system_prompt=given, model="opus")
    assert memory.build_options(options) == options, "nothing is known yet"
    memory.memory.cache_toc("angui_2024", TOC)
    assert memory.build_options(options) == ClaudeAgentOptions(system_prompt=prepared, model="opus")
    assert options.system_prompt == given, "the caller's options stay as they were"


CLI = """#!{python}
import json, sys
with open({seen!r}, "a") as seen:
    print(json.dumps(sys.argv[1:]), file=seen)
for line in sys.stdin:
    message = json.loads(line)
    if message["type"] == "control_request":
        response = {{"subtype": "success", "request_id": message["request_id"], "response": {{}}}}
        print(json.dumps({{"type": "control_response", "response": response}}), flush=True)
    else:
        for answer in {answers!r}:
            print(json.dumps(answer), flush=True)
"""
"""A program in the place of Claude Code: it writes down with which arguments it was started."""


async def test_the_memory_arrives_where_claude_code_reads_its_prompt(tmp_path: Path) -> None:
    program, seen, file = tmp_path / "claude", tmp_path / "seen.jsonl", tmp_path / "prompt.md"
    program.write_text(CLI.format(python=sys.executable, seen=str(seen), answers=READING), "utf-8")
    program.chmod(0o700)
    memory = ClaudeAgentMemory()
    for prompt in ("You read rules.", "You read rules.", {"type": "file", "path": str(file)}):
        options = ClaudeAgentOptions(cli_path=program, system_prompt=prompt)  # type: ignore[arg-type]
        async for _ in memory.query(prompt="什么时候验电?", options=options):
            pass
    first, second, third = (json.loads(line) for line in seen.read_text("utf-8").splitlines())
    assert first[first.index("--system-prompt") + 1] == "You read rules."
    assert second[second.index("--system-prompt") + 1] == f"You read rules.\n\n{HINT}\n\n{FOUND}"
    assert third[third.index("--system-prompt-file") + 1] == str(file)
    assert third[third.index("--append-system-prompt") + 1] == f"{HINT}\n\n{FOUND}"
