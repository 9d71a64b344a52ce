"""A session as the messages that a model sees."""

from collections.abc import Iterator, Sequence
from typing import assert_never

from longhouse.agents.template import Template, render
from longhouse.agents.tool import Tool
from longhouse.journal.events import Fault, Outcome, Output
from longhouse.journal.messages import (
    Assistant,
    Content,
    Function,
    Message,
    System,
    TextPart,
    ToolCall,
    ToolResult,
    User,
)
from longhouse.journal.session import Heard, Session, Step, Summary, Told, Turn, Use


def compose(session: Session, template: Template, offered: Sequence[Tool], wire_names: dict[str, str]) -> list[Message]:
    """System prompt, then the whole transcript; tool names as the provider knows them."""
    assert session.turn is not None
    lines = (f"{n}. {wire_names[tool.name]}: {tool.description}" for n, tool in enumerate(offered, start=1))
    return [_system(session.turn, template, "\n".join(lines)), *history(session, template, wire_names)]


def history(session: Session, template: Template, wire_names: dict[str, str] | None = None) -> Iterator[Message]:
    names = wire_names or {}
    for entry in session.transcript:
        match entry:
            case Heard():
                yield User(content=_task(entry, template))
            case Step():
                yield from _step(entry, template, names)
            case Told():
                yield from entry.messages
            case Summary():
                yield User(content=f"Summary of the conversation so far:\n{entry.text}")
            case _:
                assert_never(entry)


def _system(turn: Turn, template: Template, available_tools: str) -> System:
    text = render(template.prompt_pack.system_prompt, current_date=turn.date, available_tools=available_tools)
    if turn.system and template.allow_client_system:
        text = f"{text}\n\n{turn.system}"
    return System(content=text)


def _task(heard: Heard, template: Template) -> Content:
    pattern = template.prompt_pack.initial_user_request
    if isinstance(heard.content, str):
        return render(pattern, task=heard.content, current_date=heard.date)
    return tuple(
        TextPart(text=render(pattern, task=part.text, current_date=heard.date)) if isinstance(part, TextPart) else part
        for part in heard.content
    )


def _step(step: Step, template: Template, names: dict[str, str]) -> Iterator[Message]:
    """The assistant's message, one result for each call in the order of the calls, then what people answered."""
    calls = tuple(
        ToolCall(id=use.call, function=Function(name=names.get(use.tool, use.tool), arguments=use.arguments))
        for use in step.uses
    )
    yield Assistant(content=step.text or (None if calls else ""), tool_calls=calls)
    for use in step.uses:
        yield ToolResult(tool_call_id=use.call, content=_result(use))
    for use in step.uses:
        if use.question and isinstance(use.outcome, Output):
            answer = render(template.prompt_pack.clarification_response, clarifications=use.outcome.content)
            yield User(content=answer)


def _result(use: Use) -> str:
    """What the tool message says: for a question, the question itself; its answer follows as the user's message."""
    if use.question and not isinstance(use.outcome, Fault):
        return use.question
    return _words(use.outcome) if use.outcome else "Error: not answered yet"


def _words(outcome: Outcome) -> str:
    return outcome.content if isinstance(outcome, Output) else f"Error: {outcome.message}"
