"""The demo model, used when no model is configured: it follows a short script for any task and says so."""

import re
from collections.abc import Collection, Sequence
from typing import Any, Final

import msgspec

from longhouse.agents.strategies.protocol import Body
from longhouse.journal.messages import Assistant, Message, ToolResult, User, text_of
from longhouse.models.scripted import Say, call, say

QUESTION: Final = "This is the built-in demo model. Before it plays its scene: which city are you in?"
ACTS: Final = ("clarificationtool", "clocktool")
NAME: Final = "I am the demo model of Longhouse and follow a script."
RECALL: Final = "What has the user said so far?"
SUBAGENT: Final = "I am the demo model of Longhouse, in the part of a sub-agent."
HOW_TO: Final = (
    "To talk to a real model, set LONGHOUSE_LLM_BASE_URL, LONGHOUSE_LLM_API_KEY and LONGHOUSE_LLM_MODEL "
    "and start again."
)


DOCUMENT: Final = "longhouse"
"""The document that comes with Longhouse."""


class _Found(msgspec.Struct):
    """A result of `smart_search`."""

    content: str
    source: str
    page: int


class _DemoTurn(msgspec.Struct):
    """What was said since the last final answer."""

    asked: list[str]
    """By the user."""
    told: list[str]
    """By tools, in order."""
    results: dict[str, str]
    """What each tool that was called has told last."""


def scene(body: Body) -> Say:
    """The next reply of the scene that is played for this agent."""
    system = text_of(body.messages[0].content or "")
    turn = _this_turn(body.messages)
    if b"agent_analytic" in b"".join(bytes(tool) for tool in body.tools):
        return _master(turn)
    if "You work for another agent" in system:
        return _analytic(body.messages)
    if "You answer questions from documents" in system:
        return _reader(system, turn)
    if "You write letters for the user" in system:
        return _secretary(turn)
    if "You play dice with the user" in system:
        return _player(turn)
    return _researcher(body, turn)


def _researcher(body: Body, turn: _DemoTurn) -> Say:
    """Asks one question, calls one tool and answers, in the format that the request asks for."""
    tool, arguments = _choice(turn, [name for name in ACTS if _is_offered(body, name)])
    thought = _thought(turn.results)
    if isinstance(body.tool_choice, dict):
        return call("reasoningtool", **thought)
    if not _is_offered(body, tool):
        return say(arguments["answer"])
    if bytes(body.response_format):
        function = {"tool_name_discriminator": tool, **arguments}
        return say(msgspec.json.encode({**thought, "function": function}).decode())
    return call(tool, **arguments)


def _is_offered(body: Body, tool: str) -> bool:
    """Offered as a function, or in the schema of a structured reply, which may be in the system prompt."""
    schemas = (*body.tools, body.response_format, text_of(body.messages[0].content or "").encode())
    return any(f'"{tool}"'.encode() in bytes(schema) for schema in schemas)


def _master(turn: _DemoTurn) -> Say:
    """Sends a sub-agent the user's text, asks it again, and answers with what the sub-agent remembers."""
    if not turn.told:
        return call("agent_analytic", task=f"Remember what the user said: {turn.asked[0]}")
    if len(turn.told) == 1:
        return call("agent_analytic", task=RECALL)
    remembered = turn.told[-1].removeprefix(SUBAGENT).strip()
    answer = f"I am the demo model of Longhouse and lead a sub-agent. It remembers: {remembered} {HOW_TO}"
    return call("finalanswertool", answer=answer, status="completed")


def _analytic(messages: Sequence[Message]) -> Say:
    """Answers from its history alone: all earlier tasks are in it."""
    tasks = [text_of(message.content) for message in messages if isinstance(message, User)]
    remembered = [task.removeprefix("Remember what the user said: ") for task in tasks if task != RECALL]
    answer = "; ".join(remembered) + "." if tasks[-1] == RECALL else f"I will remember: {remembered[-1]}."
    return call("finalanswertool", answer=f"{SUBAGENT} {answer}", status="completed")


def _reader(system: str, turn: _DemoTurn) -> Say:
    """Looks for the user's text in the document that comes with Longhouse, reads the page, and quotes it.

    It obeys the hint in its prompt: an outline that is in its memory is not asked for again.
    """
    asked, results = turn.asked[0], turn.results
    if "get_toc" not in results and "get_toc()" not in system:
        return call("get_toc", reg_id=DOCUMENT)
    if "smart_search" not in results:
        return call("smart_search", query=asked, reg_id=DOCUMENT, limit=3)
    best = _first_found(results["smart_search"])
    if best and "read_page_range" not in results:
        return call("read_page_range", reg_id=DOCUMENT, start_page=best.page, end_page=best.page)
    says = f"{best.source} says: {best.content}" if best else f"The document {DOCUMENT} says nothing about it."
    answer = f"{NAME} You asked: {asked!r}. {says}\n\n{HOW_TO}"
    return call("finalanswertool", answer=answer, status="completed")


def _secretary(turn: _DemoTurn) -> Say:
    """Writes one letter, which needs approval, and tells what became of it."""
    if not turn.told:
        asked = turn.asked[0]
        named = re.search(r"\bto (\w+)", asked)
        return call("lettertool", to=named[1] if named else "you", subject="From the demo model", text=asked)
    result = turn.told[-1].rstrip(".")
    answer = f"{NAME} I wrote a letter, and was told: {result}. {HOW_TO}"
    return call("finalanswertool", answer=answer, status="completed")


def _player(turn: _DemoTurn) -> Say:
    """Rolls two dice with the tool of a new project, and tells what they show."""
    if not turn.told:
        return call("roll_dice", times=2)
    answer = f"{NAME} The tool in tools.py says: {turn.told[-1]} {HOW_TO}"
    return call("finalanswertool", answer=answer, status="completed")


def _first_found(results: str) -> _Found | None:
    """The best result of a search; None for no result, and for an error."""
    try:
        return next(iter(msgspec.json.decode(results, type=list[_Found])), None)
    except msgspec.DecodeError:
        return None


def _choice(turn: _DemoTurn, offered: list[str]) -> tuple[str, dict[str, Any]]:
    if "clarificationtool" not in turn.results and "clarificationtool" in offered:
        return "clarificationtool", {"questions": [QUESTION]}
    time = turn.results.get("clocktool")
    if time is None and "clocktool" in offered:
        return "clocktool", {"timezone": "UTC"}
    first, *others = turn.asked
    parts = [
        f"{NAME} You asked: {first!r}.",
        f"You answered: {others[-1]!r}." if others else "",
        f"The clock tool says it is {time}." if time else "",
        f"This session is in Postgres now and will outlive me. {HOW_TO}",
    ]
    return "finalanswertool", {"answer": " ".join(part for part in parts if part), "status": "completed"}


def _thought(used: Collection[str]) -> dict[str, Any]:
    """The state of the script, in the fields that structured strategies expect."""
    knows = "clocktool" in used
    return {
        "reasoning_steps": ["This is a scene.", "It has three steps."],
        "current_situation": "The demo model plays its scene.",
        "plan_status": "as planned",
        "enough_data": knows,
        "remaining_steps": ["answer"] if knows else ["ask", "look at the clock", "answer"],
        "task_completed": knows,
    }


def _this_turn(messages: Sequence[Message]) -> _DemoTurn:
    messages = _since_last_answer(messages)
    calls = [one for message in messages if isinstance(message, Assistant) for one in message.tool_calls]
    told = [message for message in messages if isinstance(message, ToolResult)]
    results = {message.tool_call_id: message.content for message in told}
    return _DemoTurn(
        asked=[text_of(message.content) for message in messages if isinstance(message, User)] or [""],
        told=[message.content for message in told],
        results={one.function.name: results.get(one.id, "unknown") for one in calls},
    )


def _since_last_answer(messages: Sequence[Message]) -> Sequence[Message]:
    """The messages after the last final answer that the user replied to, without the system prompt."""
    for index in range(len(messages) - 1, -1, -1):
        message, after = messages[index], messages[index + 2 :]
        is_last = isinstance(message, Assistant) and any(
            one.function.name == "finalanswertool" for one in message.tool_calls
        )
        if is_last and any(isinstance(one, User) for one in after):
            return after
    return messages[1:]
