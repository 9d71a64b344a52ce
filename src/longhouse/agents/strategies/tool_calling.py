"""ToolCallingAgent: native function calls, several in one reply; text without a call is the answer.

SGRToolCallingAgent: first a forced reasoning call, then a call of the tool that follows from it.
"""

from collections.abc import Sequence

from longhouse.agents.strategies.base import BaseAgent
from longhouse.agents.strategies.protocol import Reply, Request, Verdict
from longhouse.agents.template import Template
from longhouse.agents.tool import Tool
from longhouse.journal.events import Output
from longhouse.journal.roles import tools_of
from longhouse.journal.session import Session
from longhouse.journal.transcript import Step


class ToolCallingAgent(BaseAgent):
    def propose(self, session: Session, template: Template, offered: Sequence[Tool]) -> Request:
        return self.request(session, template, offered, tools=offered)


class SGRToolCallingAgent(BaseAgent):
    """The journal says which phase is next: after a thought comes an action, after anything else a thought."""

    needs = tools_of("reasons")

    def propose(self, session: Session, template: Template, offered: Sequence[Tool]) -> Request:
        reasoning = [tool for tool in offered if tool.role == "reasons"]
        if not reasoning or has_thought(session):
            return self.request(session, template, offered, tools=offered, phase="action")
        # The same tools in both phases, so that the provider's prompt cache keeps working; if the endpoint cannot force
        # a tool, only the reasoning tool is sent.
        tools = offered if template.llm_policy.can.forced_tool_choice else reasoning
        return self.request(
            session, template, offered, tools=tools, force=reasoning[0].name, text_is="thought", phase="reasoning"
        )

    def interpret(self, request: Request, reply: Reply) -> Verdict:
        if request.phase == "reasoning" and not reply.calls and reply.text.strip():
            return Verdict(thought=reply.text)
        return super().interpret(request, reply)


def has_thought(session: Session) -> bool:
    """Whether the last step was valid reasoning."""
    last = session.transcript[-1] if session.transcript else None
    if not isinstance(last, Step) or last.phase != "reasoning":
        return False
    return not last.uses or any(use.role == "reasons" and isinstance(use.outcome, Output) for use in last.uses)
