"""Builds the agent log of SGR-Agent Core from the journal: reasoning and tool calls, step by step."""

from collections.abc import Iterable, Iterator
from datetime import datetime
from typing import Any

import msgspec

from longhouse.agents.template import Template
from longhouse.journal import events
from longhouse.journal.events import Called, Outcome, Output, Recorded
from longhouse.journal.messages import text_of


def agent_log(session_id: str, recorded: Iterable[Recorded], template: Template | None) -> dict[str, Any]:
    """The log of a whole session; `template` is that of its last turn, None if it no longer exists."""
    writer = _Writer()
    log = [entry for record in recorded for entry in writer.write(record)]
    model_config = {}
    if template:
        # Keys are no part of a template, and the proxy is left out.
        policy = template.llm_policy
        model_config = {"model": policy.model, "max_tokens": policy.max_tokens, "temperature": policy.temperature}
    toolkit = list(template.tool_policy.named) if template else []
    return {"id": session_id, "model_config": model_config, "task": writer.task, "toolkit": toolkit, "log": log}


class _Writer:
    """Follows the journal and yields the log entries of each event."""

    def __init__(self) -> None:
        self.task: str | None = None
        """The first task; later ones are entries of the log."""
        self._step = 0
        self._has_thought = False
        self._prompts: dict[int, events.Prompted] = {}
        self._called: dict[str, tuple[int, Called]] = {}

    def write(self, record: Recorded) -> Iterator[dict[str, Any]]:
        event, at = record.event, record.at
        match event:
            case events.Prompted(aside=True):
                yield _entry(self._step, at, "task", task="\n\n".join(text_of(one) for one in event.content))
            case events.Prompted():
                self._prompts[record.seq] = event
            case events.Started():
                yield from self._begin(self._prompts.pop(event.prompt), at)
            case events.Replied():
                yield from self._reply(event, at)
            case events.Called():
                self._called[event.call] = (self._step, event)
            case events.Returned():
                yield _used(*self._called.pop(event.call), event.outcome, at)
            case events.Condensed():
                yield _entry(self._step, at, "condensed", summary=event.summary)
            case events.Finished():
                yield _entry(self._step, at, "finished", answer=event.answer)
            case events.Failed():
                yield _entry(self._step, at, "failed", error=event.reason, code=event.code)
            case events.Cancelled():
                yield _entry(self._step, at, "cancelled", by=event.by)

    def _begin(self, prompt: events.Prompted, at: datetime) -> Iterator[dict[str, Any]]:
        self._has_thought = False
        task = "\n\n".join(text_of(content) for content in prompt.content)
        if self.task is None:
            self.task = task
        else:
            yield _entry(self._step, at, "task", task=task)

    def _reply(self, event: events.Replied, at: datetime) -> Iterator[dict[str, Any]]:
        # An action belongs to the step of the reasoning before it.
        self._step += 0 if event.phase == "action" and self._has_thought else 1
        self._has_thought = event.phase == "reasoning"
        if event.thought:
            yield _entry(self._step, at, "reasoning", agent_reasoning=_value(event.thought))
        elif thought := event.reasoning or (event.text if event.calls or self._has_thought else ""):
            yield _entry(self._step, at, "reasoning", agent_reasoning=thought)


def _used(step: int, called: Called, outcome: Outcome, at: datetime) -> dict[str, Any]:
    arguments = _value(called.arguments)
    if called.role == "reasons" and isinstance(outcome, Output):
        return _entry(step, at, "reasoning", agent_reasoning=arguments)
    result = outcome.content if isinstance(outcome, Output) else f"Error: {outcome.message}"
    used = {"tool_name": called.tool, "agent_tool_context": arguments}
    if called.call_kind == "ask" and isinstance(outcome, Output):
        asked = {**used, "agent_tool_execution_result": called.question}
        return _entry(step, at, "clarification", **asked, clarification=result)
    return _entry(step, at, "tool_execution", **used, agent_tool_execution_result=result)


def _entry(step: int, at: datetime, kind: str, **more: Any) -> dict[str, Any]:
    return {"step_number": step, "timestamp": at.isoformat(), "step_type": kind, **more}


def _value(text: str) -> Any:
    """Decodes JSON; text that is not JSON is returned as it is."""
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError):
        return text
