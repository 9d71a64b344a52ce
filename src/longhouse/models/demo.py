"""The model that answers when none is set: it plays a short scene for any task, and says that it is the demo."""

from collections.abc import Sequence
from typing import Final

from longhouse.agents.strategy import Body
from longhouse.journal.messages import Assistant, Message, ToolResult, User, text_of
from longhouse.models.scripted import Say, call

QUESTION: Final = "This is the built-in demo model. Before it plays its scene: which city are you in?"
HOW_TO: Final = (
    "To talk to a real model, set LONGHOUSE_LLM_BASE_URL, LONGHOUSE_LLM_API_KEY and LONGHOUSE_LLM_MODEL "
    "and start again."
)


def scene(body: Body) -> Say:
    """Asks one question, uses one tool, answers."""
    turn = _this_turn(body.messages)
    used = [one.function.name for message in turn if isinstance(message, Assistant) for one in message.tool_calls]
    if "clarificationtool" not in used:
        return call("clarificationtool", questions=[QUESTION])
    if "clocktool" not in used:
        return call("clocktool", timezone="UTC")
    said = [text_of(message.content) for message in turn if isinstance(message, User)]
    time = next((message.content for message in reversed(turn) if isinstance(message, ToolResult)), "unknown")
    answer = (
        f"I am the demo model of Longhouse and follow a script. You asked: {said[0]!r}. You answered: {said[-1]!r}. "
        f"The clock tool says it is {time}. This session is in Postgres now and will outlive me. {HOW_TO}"
    )
    return call("finalanswertool", answer=answer, status="completed")


def _this_turn(messages: Sequence[Message]) -> Sequence[Message]:
    """The messages since the last final answer, without the system prompt."""
    for index in range(len(messages) - 1, -1, -1):
        message = messages[index]
        if isinstance(message, Assistant) and any(one.function.name == "finalanswertool" for one in message.tool_calls):
            return messages[index + 2 :]
    return messages[1:]
