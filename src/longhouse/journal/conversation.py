"""Converts a session's transcript to chat messages: tasks as `user`, answers as `assistant`, tool calls between them.

No prompt is rendered here. Reasoning calls and the call that delivers the answer are left out. Other programs, and the
agent itself in a later turn, read the session in this form.
"""

from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final, assert_never

import msgspec

from longhouse.journal.events import Outcome, Output
from longhouse.journal.json_text import with_valid_arguments
from longhouse.journal.messages import (
    Assistant,
    Function,
    Message,
    System,
    ToolCall,
    ToolResult,
    User,
    opaque,
    text_of,
)
from longhouse.journal.roles import FORM
from longhouse.journal.session import Session
from longhouse.journal.transcript import Entry, ImportedMessages, PromptEntry, Step, Summary, Use

ONLY_IMAGES: Final = "[image]"


def messages_of(session: Session) -> list[dict[str, Any]]:
    """The whole history as JSON, tool calls included: the memory of a sub-agent."""
    return as_dicts([message for entry in shown(session) for message in messages_with_calls(entry)])


def dialogue_of(session: Session) -> list[dict[str, Any]]:
    """The messages between user and agent, without the tool calls in between."""
    return as_dicts([message for entry in undeleted(session) for message in dialogue_messages(entry)])


def shown(session: Session) -> list[Entry]:
    """The transcript without the steps that a summary replaces, which are kept only for the rules of their turn, and
    without turns that were deleted."""
    upto = max([entry.seq for entry in session.transcript if type(entry) is Summary], default=0)
    return [entry for entry in undeleted(session) if entry.seq > upto or type(entry) is not Step]


def undeleted(session: Session) -> Sequence[Entry]:
    """The transcript without the turns that were deleted from the ledger; one that runs is shown until it ends."""
    if not session.deleted:
        return session.transcript
    began = [entry.seq for entry in session.transcript if isinstance(entry, PromptEntry)]
    present = began[-1] if began and session.running_turn else None
    entries, is_deleted = list[Entry](), False
    for entry in session.transcript:
        if isinstance(entry, PromptEntry | ImportedMessages):
            is_deleted = entry.seq in session.deleted and entry.seq != present
        if not is_deleted or isinstance(entry, Summary):
            entries.append(entry)
    return entries


def messages_with_calls(
    entry: Entry, names: Mapping[str, str] = MappingProxyType({}), asked: str = ""
) -> Iterator[Message]:
    """The messages of one entry; calls appear once all calls of the step have returned, so each has its result."""
    return with_valid_arguments(_messages_with_calls(entry, names, asked))


def _messages_with_calls(entry: Entry, names: Mapping[str, str], asked: str) -> Iterator[Message]:
    if isinstance(entry, Step):
        real = [use for use in entry.uses if use.role not in FORM and not use.question]
        if real and all(use.outcome for use in real):
            yield calling(entry, real, None if entry.thought else entry.text or None, names, asked)
            yield from (ToolResult(tool_call_id=use.call, content=result(use.outcome)) for use in real if use.outcome)
    yield from dialogue_messages(entry)


def dialogue_messages(entry: Entry) -> Iterator[Message]:
    """The messages of one entry between user and agent: prompts, questions and their answers, the final answer."""
    match entry:
        case PromptEntry():
            yield User(content=entry.content)
        case ImportedMessages():
            yield from (message for message in entry.messages if not isinstance(message, System))
        case Summary():
            yield User(content=f"Summary of the conversation so far:\n{entry.text}")
        case Step():
            yield from _asked(entry.uses)
            yield from (User(content=aside) for aside in entry.asides)
            if entry.answer:
                yield Assistant(content=entry.answer)
        case _:
            assert_never(entry)


def as_dicts(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """The messages as JSON, each with `role` and text `content`; a tool result also has the tool's name."""
    shown: list[dict[str, Any]] = []
    names: dict[str, str] = {}
    for message in messages:
        fields: dict[str, Any] = msgspec.to_builtins(message)
        fields.pop("content", None)
        text = text_of(message.content)
        if isinstance(message, User) and message.content and not text:
            text = ONLY_IMAGES
        elif isinstance(message, Assistant) and message.tool_calls:
            names.update({call.id: call.function.name for call in message.tool_calls})
            fields["tool_calls"] = list(fields["tool_calls"])
        elif isinstance(message, ToolResult) and (name := names.get(message.tool_call_id)):
            fields["name"] = name
        shown.append({"role": fields.pop("role"), "content": text, **fields})
    return shown


def _asked(uses: Sequence[Use]) -> Iterator[Message]:
    """Questions as assistant messages, their answers as user messages."""
    for use in uses:
        if use.question:
            yield Assistant(content=use.question)
            if isinstance(use.outcome, Output):
                yield User(content=use.outcome.content)


def calling(step: Step, uses: Sequence[Use], content: str | None, names: Mapping[str, str], asked: str) -> Assistant:
    """The message that makes these calls of a step, under the tools' names on the wire. Who wrote it gets its thinking
    back, if it is `asked` again."""
    gets_back = bool(uses and asked) and step.source == asked
    calls = []
    for use in uses:
        function = Function(name=names.get(use.tool, use.tool), arguments=use.arguments)
        extra = opaque(use.extra) if gets_back else msgspec.UNSET
        calls.append(ToolCall(id=use.call, function=function, extra_content=extra))
    message = Assistant(content=content, tool_calls=tuple(calls))
    if gets_back:
        extra = opaque(step.extra)
        message = msgspec.structs.replace(message, reasoning_content=step.reasoning or None, extra_content=extra)
    return message


def result(outcome: Outcome) -> str:
    """The content of the tool message."""
    return outcome.content if isinstance(outcome, Output) else f"Error: {outcome.message}"
