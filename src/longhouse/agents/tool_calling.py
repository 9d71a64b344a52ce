"""ToolCallingAgent: native function calls, several in one reply; text without a call is the answer."""

from collections.abc import Sequence

import msgspec

from longhouse.agents import window
from longhouse.agents.strategy import ANY_FORMAT, Body, Intent, Reply, Request, Verdict
from longhouse.agents.template import Template
from longhouse.agents.tool import Tool, wire_names
from longhouse.journal.events import Sampling
from longhouse.journal.session import Session, Step


class ToolCallingAgent:
    name = "ToolCallingAgent"

    def propose(self, session: Session, template: Template, offered: Sequence[Tool]) -> Request:
        assert session.turn is not None
        names = wire_names(_names(session, offered))
        policy, asked = template.llm_policy, session.turn.sampling or Sampling()
        body = Body(
            model=policy.model or "",
            messages=window.compose(session, template, offered, names),
            tools=tuple(tool.spec(names[tool.name]) for tool in offered),
            tool_choice="required" if offered else "",
            parallel_tool_calls=bool(offered),
            response_format=msgspec.Raw(asked.response_format.encode()) if asked.response_format else ANY_FORMAT,
            temperature=policy.temperature if asked.temperature is None else asked.temperature,
            top_p=asked.top_p,
            max_tokens=asked.max_tokens or policy.max_tokens,
            seed=asked.seed,
            stop=asked.stop,
        )
        return Request(
            body=body,
            names={wire: name for name, wire in names.items()},
            text_is="thought" if offered else "answer",
        )

    def interpret(self, request: Request, reply: Reply) -> Verdict:
        if not reply.calls:
            return Verdict(answer=reply.text)
        return Verdict(
            intents=tuple(
                Intent(tool=request.names.get(call.name, call.name), arguments=call.arguments, provider_id=call.id)
                for call in reply.calls
            )
        )


def _names(session: Session, offered: Sequence[Tool]) -> list[str]:
    """Every tool that the request names: those offered now and those that the history shows."""
    used = (use.tool for entry in session.transcript if isinstance(entry, Step) for use in entry.uses)
    return list(dict.fromkeys([*(tool.name for tool in offered), *used]))
