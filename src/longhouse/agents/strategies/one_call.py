"""OneCallAgent: makes the call that its prompt names and answers with the result. No model is asked.

A client that calls a tool directly opens a session of this agent: so the call is in a journal, happens once, waits for
approval where it needs one, and obeys the limits and policies of its tool.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

import msgspec

from longhouse.agents.strategies.base import BaseAgent
from longhouse.agents.strategies.protocol import Request
from longhouse.agents.template import ExecutionPolicy, LLMPolicy, MemoryPolicy, PromptPack, Template, ToolPolicy
from longhouse.agents.tool import Tool
from longhouse.journal.events import Fault, Outcome, ProviderCall
from longhouse.journal.messages import User
from longhouse.journal.roles import tools_of
from longhouse.journal.session import Session, Turn

FINISH: Final = tools_of("finishes")[0]


class WantedCall(msgspec.Struct, frozen=True):
    """The prompt: a tool, and its arguments."""

    tool: str
    arguments: dict[str, Any] = msgspec.field(default_factory=dict)


class EchoedReply(msgspec.Struct, frozen=True):
    """What the agent is to do next, as a request tells it to `models/echo.py`."""

    calls: tuple[ProviderCall, ...] = ()
    text: str = ""


class OneCallAgent(BaseAgent):
    asks_model = False

    def propose(self, session: Session, template: Template, offered: Sequence[Tool]) -> Request:
        request = self.request(session, template, offered, tools=offered)
        names = {name: wire for wire, name in request.names.items()}
        told = msgspec.json.encode(_next(session, names)).decode()
        return replace(request, body=msgspec.structs.replace(request.body, messages=(User(content=told),)))


ONE_CALL: Final = Template(
    # No template that is published can have this name: names begin with a letter.
    name="_tool",
    base_agent_class=OneCallAgent.name,
    prompt_pack=PromptPack(system_prompt="Make the call."),
    llm_policy=LLMPolicy(model="none", context_tokens=100_000_000),
    execution_policy=ExecutionPolicy(max_iterations=3, time_budget=86_400.0),
    tool_policy=ToolPolicy(allowlist=(), selection_strategy="static"),
    memory_policy=MemoryPolicy(enabled=False),
)
"""The template of such sessions. The catalog knows it, and lists it nowhere."""


def wanted(turn: Turn) -> WantedCall | None:
    """The call that a prompt names; None if it names none."""
    try:
        return msgspec.json.decode(turn.task, type=WantedCall)
    except (msgspec.MsgspecError, UnicodeError):
        return None


def _next(session: Session, names: dict[str, str]) -> EchoedReply:
    call = wanted(session.latest_turn)
    if call is None or call.tool not in names:
        what = f"there is no tool {call.tool[:100]!r} that may be called directly" if call else "the prompt is no call"
        return _ended(names, Fault(code="not_offered", message=what))
    uses = [use for step in session.steps for use in step.uses if use.tool == call.tool]
    if uses and uses[-1].outcome is not None:
        return _ended(names, uses[-1].outcome)
    arguments = msgspec.json.encode(call.arguments).decode()
    return EchoedReply(calls=(ProviderCall(id="call_1", name=names[call.tool], arguments=arguments),))


def _ended(names: dict[str, str], outcome: Outcome) -> EchoedReply:
    """Ends the turn with the outcome; without the tool for that, with its text."""
    is_fault = isinstance(outcome, Fault)
    text = outcome.message if isinstance(outcome, Fault) else outcome.content
    if FINISH not in names:
        return EchoedReply(text=text or "(no result)")
    arguments = {"answer": text, "status": "failed" if is_fault else "completed"}
    told = msgspec.json.encode(arguments).decode()
    return EchoedReply(calls=(ProviderCall(id="call_2", name=names[FINISH], arguments=told),))
