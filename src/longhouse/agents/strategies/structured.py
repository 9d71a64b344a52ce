"""SGRAgent: reasoning and the chosen tool in one structured reply."""

import json
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Final, Protocol

import msgspec

from longhouse.agents.json_repair import read_object
from longhouse.agents.schema.strict import closed_object, restored, strict
from longhouse.agents.strategies.base import BaseAgent
from longhouse.agents.strategies.protocol import Intent, Reply, Request, Verdict
from longhouse.agents.template import Template
from longhouse.agents.tool import Tool
from longhouse.journal.messages import clean_json
from longhouse.journal.session import Session

DISCRIMINATOR: Final = "tool_name_discriminator"

REASONING: Final[dict[str, dict[str, Any]]] = {
    "reasoning_steps": {
        "type": "array",
        "items": {"type": "string"},
        "description": "The steps of your reasoning, short",
    },
    "current_situation": {"type": "string", "description": "Where the work stands"},
    "plan_status": {"type": "string", "description": "How far the plan is done"},
    "enough_data": {"type": "boolean", "description": "Is there enough to answer?"},
    "remaining_steps": {"type": "array", "items": {"type": "string"}, "description": "What remains to be done"},
    "task_completed": {"type": "boolean", "description": "Is the task done?"},
}


class DescribedClass(Protocol):
    """The class of a tool."""

    def described(self) -> Tool: ...


class NextStepToolsBuilder:
    """Builds the schema of a step: the reasoning, then under `function` one branch for each tool."""

    @staticmethod
    def build_NextStepTools(  # noqa: N802 - the name people know
        tools: Sequence[Tool | DescribedClass], *, in_words: bool = True
    ) -> dict[str, Any]:
        """`tools` may be classes, too. `in_words`: descriptions include the bounds of arguments that a strict schema
        cannot express."""
        described = [tool if isinstance(tool, Tool) else tool.described() for tool in tools]
        return closed_object({**REASONING, "function": {"anyOf": [_branch(tool, in_words) for tool in described]}})


class SGRAgent(BaseAgent):
    def propose(self, session: Session, template: Template, offered: Sequence[Tool]) -> Request:
        if not offered:
            return self.request(session, template, offered)  # an empty union matches nothing: only text is left
        text, response_format = _union(tuple(offered), bool(session.turn and session.turn.form))
        if template.llm_policy.can.json_schema:
            return self.request(session, template, offered, response_format=response_format, text_is="structure")
        extra = f"Answer with one JSON object and nothing else. It must fit this JSON Schema:\n{text}"
        return self.request(session, template, offered, text_is="structure", extra_system=extra)

    def interpret(self, request: Request, reply: Reply) -> Verdict:
        if request.text_is == "answer":
            return Verdict(answer=reply.text)
        step = read_object(clean_json(reply.text), whole=reply.finish == "length")
        if isinstance(step, str):
            return Verdict(problem=step)
        function = step.pop("function", None)
        if not isinstance(function, dict) or not isinstance(function.get(DISCRIMINATOR), str):
            return Verdict(problem=f"it has no `function` with a `{DISCRIMINATOR}`")
        chosen: str = function.pop(DISCRIMINATOR)
        name = request.names.get(chosen, chosen)  # the prompt and the history contain names as on the wire
        tool = next((one for one in request.offered if one.name == name), None)
        arguments = json.dumps(restored(function, tool.schema) if tool else function, ensure_ascii=False)
        thought = json.dumps(step, ensure_ascii=False)
        return Verdict(intents=(Intent(tool=name, arguments=arguments),), thought=thought)


@lru_cache(maxsize=256)
def _union(tools: tuple[Tool, ...], in_words: bool) -> tuple[str, msgspec.Raw]:
    """The schema of one set of tools, as text and as a response format; built and encoded once."""
    schema = NextStepToolsBuilder.build_NextStepTools(tools, in_words=in_words)
    described = {"name": "NextStepTools", "strict": True, "schema": schema}
    response_format = msgspec.json.encode({"type": "json_schema", "json_schema": described})
    return json.dumps(schema, ensure_ascii=False), msgspec.Raw(response_format)


def _branch(tool: Tool, in_words: bool) -> dict[str, Any]:
    """The schema of a tool's arguments, with the tool's name as a constant first property."""
    arguments = strict(tool.schema, in_words=in_words)
    properties = {DISCRIMINATOR: {"type": "string", "const": tool.name}, **arguments["properties"]}
    return {"type": "object", "description": tool.description, **closed_object(properties)}
