"""Working memory for agents of the Claude Agent SDK: `ClaudeAgentMemory().query(prompt=…, options=…)`."""

from collections.abc import AsyncGenerator
from dataclasses import replace
from typing import Any, Final, cast

from longhouse.memory.tool_results import remember_call
from longhouse.memory.working import AgentMemory

try:
    import claude_agent_sdk as sdk
    from claude_agent_sdk import ClaudeAgentOptions, ClaudeSDKClient, ToolResultBlock, ToolUseBlock
except ImportError as error:
    raise ImportError(
        "The memory adapter for the Claude Agent SDK needs its package: pip install 'claude-agent-sdk>=0.2.182'."
    ) from error

_APPEND: Final = "append-system-prompt"


class ClaudeAgentMemory:
    """The memory of one conversation: fed by the messages of its queries, shown at the end of the system prompt.

    The SDK hands the system prompt over when a query starts, so each query gets options of its own.
    """

    def __init__(self, memory: AgentMemory | None = None) -> None:
        self.memory = AgentMemory() if memory is None else memory
        self._calls: dict[str, ToolUseBlock] = {}

    async def query(
        self, *, prompt: str, options: ClaudeAgentOptions | None = None, transport: sdk.Transport | None = None
    ) -> AsyncGenerator[sdk.Message, None]:
        """One question and its messages, with the memory in the prompt; the messages feed the memory as they pass."""
        self.memory.current_query = prompt
        prepared = self.build_options(options or ClaudeAgentOptions())
        # Not the SDK's own `query()`: who stops reading in the middle would leave Claude Code running for a while.
        async with ClaudeSDKClient(prepared, transport) as client:
            await client.query(prompt)
            async for message in client.receive_response():
                self.process(message)
                yield message

    def build_system_prompt(self, base: str = "") -> str:
        """The prompt, then which outlines are known, then the chunks: what changes comes last."""
        parts = [base, self.memory.outlines_hint(), self.memory.get_memory_context()]
        return "\n\n".join(part for part in parts if part)

    def build_options(self, options: ClaudeAgentOptions) -> ClaudeAgentOptions:
        """Options whose system prompt ends with the memory, whichever of the SDK's forms the prompt has."""
        prompt: Any = options.system_prompt
        if prompt is None or isinstance(prompt, str):
            return replace(options, system_prompt=self.build_system_prompt(prompt or "") or None)
        if prompt.get("type") == "file":
            # The file is read by Claude Code itself; what comes after it has an option of its own.
            after = self.build_system_prompt(options.extra_args.get(_APPEND) or "")
            return replace(options, extra_args=options.extra_args | ({_APPEND: after} if after else {}))
        field = "prompt" if prompt.get("type") == "custom" else "append"
        text = self.build_system_prompt(prompt.get(field) or "")
        return replace(options, system_prompt=cast("Any", {**prompt, field: text} if text else prompt))

    def process(self, message: sdk.Message) -> None:
        """Takes from a message the calls of tools, and their results."""
        if isinstance(message, sdk.ResultMessage):
            self._calls.clear()
        if not isinstance(message, sdk.AssistantMessage | sdk.UserMessage) or isinstance(message.content, str):
            return
        # What a sub-agent reads is not in the context of this agent, which would be told that it knows it.
        if message.parent_tool_use_id is not None:
            return
        for block in message.content:
            if isinstance(block, ToolUseBlock):
                self._calls[block.id] = block
            elif isinstance(block, ToolResultBlock):
                self._remember(block)

    def reset(self) -> None:
        """Forgets the query and its chunks; outlines stay."""
        self._calls.clear()
        self.memory.clear_query_context()

    def reset_all(self) -> None:
        """Forgets everything."""
        self.reset()
        self.memory.reset()

    def _remember(self, result: ToolResultBlock) -> None:
        call = self._calls.pop(result.tool_use_id, None)
        if call is not None and not result.is_error:
            remember_call(self.memory, call.name, call.input, result.content)
