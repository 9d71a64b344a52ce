"""ToolCallingAgent: native function calls, several in one reply; text without a call is the answer."""

from collections.abc import Sequence

from longhouse.agents.strategies.base import BaseAgent
from longhouse.agents.strategies.protocol import Request
from longhouse.agents.template import Template
from longhouse.agents.tool import Tool
from longhouse.journal.session import Session


class ToolCallingAgent(BaseAgent):
    def propose(self, session: Session, template: Template, offered: Sequence[Tool]) -> Request:
        return self.request(session, template, offered, tools=offered)
