"""The spans of a turn, made of its journal, by the GenAI conventions of OpenTelemetry: the turn, its steps, their model
calls, and the calls of tools and agents.

They hold names, numbers and ids: no text that a person, a model or a tool has written, and no arguments.
"""

from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Final

import msgspec

from longhouse import tracing
from longhouse.journal import events
from longhouse.journal.events import Fault, Recorded, Usage
from longhouse.journal.timeline import Takeover, TimelineStep, TimelineTurn, TimelineUse, timeline_of
from longhouse.store.projections import ProjectionRow

INTERNAL, CLIENT = 1, 3
PROVIDER: Final = "openai"
"""Whose protocol the model speaks: endpoints are OpenAI-compatible, whoever runs them."""
UNKNOWN_TOOL: Final = "unknown"
"""Stands for a tool that a model has invented: its name is the model's text."""
LONGEST: Final = 200
"""Characters of a name."""

Value = str | int | float | bool | tuple[str, ...]


class Moment(msgspec.Struct, frozen=True):
    """Something that happened within a span."""

    name: str
    at: datetime
    attributes: dict[str, Value]


class Span(msgspec.Struct, frozen=True):
    id: str
    parent: str
    """Empty: it is the root of its trace."""
    name: str
    began: datetime
    ended: datetime
    attributes: dict[str, Value]
    kind: int = INTERNAL
    error: str = ""
    """The code of what went wrong; empty if nothing did."""
    moments: tuple[Moment, ...] = ()


def spans_of(row: ProjectionRow, prompted: events.Prompted, records: Sequence[Recorded], parent: str) -> list[Span]:
    """The spans of the turn that begins with the first of these events; none if it has not ended. `parent`: the span of
    the client's request; a sub-agent's turn belongs to the call that asked for it."""
    turns = timeline_of(records).turns
    if not turns or not (turn := turns[0]).ended or turn.ended_at is None:
        return []
    records = [record for record in records if record.at <= turn.ended_at]
    if prompted.reply_to:
        parent = tracing.call_span(prompted.reply_to.session, prompted.reply_to.call)
    maker = _TurnSpans(row, turn, turn.ended_at)
    return [maker.turn_span(prompted, records, parent), *maker.steps(), *maker.others(records)]


def title_spans_of(row: ProjectionRow, prompt: int, records: Sequence[Recorded]) -> list[Span]:
    """The model call for the title, which is the last of these events; none if the model was not asked."""
    *_, before, record = records
    spent = record.event
    if not isinstance(spent, events.Spent) or not (spent.title or spent.usage.total_tokens):
        return []
    about = {**_chat(""), **_tokens([spent.usage])}
    about |= {"longhouse.worker": record.worker, "longhouse.purpose": "title"}
    span_id, parent = tracing.title_span(row.id, prompt), tracing.turn_span(row.id, prompt)
    return [Span(span_id, parent, _chat_name(""), before.at, record.at, about, kind=CLIENT)]


class _TurnSpans(msgspec.Struct, frozen=True):
    row: ProjectionRow
    turn: TimelineTurn
    ended_at: datetime

    @property
    def _id(self) -> str:
        return tracing.turn_span(self.row.id, self.turn.prompt)

    def turn_span(self, prompted: events.Prompted, records: Sequence[Recorded], parent: str) -> Span:
        row, turn = self.row, self.turn
        failed = next((one.event.code for one in records if isinstance(one.event, events.Failed)), "")
        used = [one.event.usage for one in records if isinstance(one.event, _PAID) and one.event.usage]
        about: dict[str, Value] = {
            "gen_ai.operation.name": "invoke_agent",
            "gen_ai.provider.name": PROVIDER,
            "gen_ai.agent.name": row.agent,
            "gen_ai.agent.version": str(turn.version),
            "gen_ai.conversation.id": row.conversation_id,
            **_tokens(used),
            "longhouse.session": row.id,
            "longhouse.owner": row.owner,
            "longhouse.trace": turn.trace,
            "longhouse.state": turn.ended,
            "longhouse.steps": len(turn.steps),
            "longhouse.depth": prompted.depth,
        }
        error = failed or ("cancelled" if turn.ended == "CANCELLED" else "")
        takeovers = tuple(map(_takeover, turn.takeovers))
        name = f"invoke_agent {row.agent}"
        return Span(self._id, parent, name, turn.began_at, self.ended_at, about, error=error, moments=takeovers)

    def steps(self) -> Iterator[Span]:
        for nth, step in enumerate(self.turn.steps):
            step_id = tracing.step_span(self.row.id, self.turn.prompt, nth)
            # A call that nobody waited for is over for the turn when the turn is.
            ends = [use.ended_at or self.ended_at for use in step.uses]
            about: dict[str, Value] = {"longhouse.step": nth + 1}
            ended = min(self.ended_at, max([step.ended_at, *ends]))
            yield Span(step_id, self._id, f"step {nth + 1}", step.began_at, ended, about)
            yield self._chat(nth, step_id, step)
            for use in step.uses:
                yield self._call(step_id, use)

    def _chat(self, nth: int, step_id: str, step: TimelineStep) -> Span:
        replied = step.replied
        about = {**_chat(replied.model), **_tokens([replied.usage] if replied.usage else [])}
        if replied.finish:
            about["gen_ai.response.finish_reasons"] = (replied.finish[:LONGEST],)
        if replied.attempts:
            about["longhouse.failed_attempts"] = replied.attempts
        about["longhouse.worker"] = step.worker
        span_id = tracing.chat_span(self.row.id, self.turn.prompt, nth)
        return Span(span_id, step_id, _chat_name(replied.model), step.began_at, step.ended_at, about, kind=CLIENT)

    def _call(self, step_id: str, use: TimelineUse) -> Span:
        called, outcome = use.called, use.outcome
        error = outcome.code[:LONGEST] if isinstance(outcome, Fault) else ""
        tool = UNKNOWN_TOOL if error == "not_offered" else called.tool[:LONGEST]
        about: dict[str, Value] = {
            "gen_ai.operation.name": "execute_tool",
            "gen_ai.tool.name": tool,
            "gen_ai.tool.call.id": called.call,
            "gen_ai.tool.type": "extension" if called.call_kind == "agent" else "function",
        }
        if use.is_remembered:
            about["longhouse.from_memory"] = True
        span_id, ended = tracing.call_span(self.row.id, called.call), use.ended_at or self.ended_at
        return Span(span_id, step_id, f"execute_tool {tool}", use.began_at, ended, about, error=error)

    def others(self, records: Sequence[Recorded]) -> Iterator[Span]:
        """Model calls that made no step: summaries of the history, and the call of which the turn has failed."""
        row, before = self.row, self.turn.began_at
        for record in records:
            match record.event:
                case events.Condensed() as summary:
                    about = {**_chat(""), **_tokens([summary.usage] if summary.usage else [])}
                    about |= {"longhouse.worker": record.worker, "longhouse.purpose": "summary"}
                    span_id = tracing.summary_span(row.id, record.seq)
                    yield Span(span_id, self._id, _chat_name(""), before, record.at, about, kind=CLIENT)
                case events.Failed(code="provider_error"):
                    nth = len(self.turn.steps)
                    step_id = tracing.step_span(row.id, self.turn.prompt, nth)
                    chat_id, error = tracing.chat_span(row.id, self.turn.prompt, nth), "provider_error"
                    step: dict[str, Value] = {"longhouse.step": nth + 1}
                    yield Span(step_id, self._id, f"step {nth + 1}", before, record.at, step, error=error)
                    about = {**_chat(""), "longhouse.worker": record.worker}
                    yield Span(chat_id, step_id, _chat_name(""), before, record.at, about, kind=CLIENT, error=error)
            before = record.at


_PAID: Final = (events.Replied, events.Condensed, events.Spent)


def _chat_name(model: str) -> str:
    return f"chat {model[:LONGEST]}".strip()


def _chat(model: str) -> dict[str, Value]:
    about: dict[str, Value] = {"gen_ai.operation.name": "chat", "gen_ai.provider.name": PROVIDER}
    return {**about, "gen_ai.response.model": model[:LONGEST]} if model else about


def _tokens(used: Sequence[Usage]) -> dict[str, Value]:
    if not used:
        return {}
    return {
        "gen_ai.usage.input_tokens": sum(one.prompt_tokens for one in used),
        "gen_ai.usage.output_tokens": sum(one.completion_tokens for one in used),
        "gen_ai.usage.cache_read.input_tokens": sum(one.cached_tokens for one in used),
    }


def _takeover(one: Takeover) -> Moment:
    about: dict[str, Value] = {"longhouse.worker": one.worker, "longhouse.previous_worker": one.previous}
    return Moment("longhouse.takeover", one.at, {**about, "longhouse.worker_lost": one.is_loss})
