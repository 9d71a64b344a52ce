"""Builds the context window: a session as the messages of a model request, within a token budget.

Calls with arguments that no server could parse are rewritten as valid JSON. What is left out depends only on the
session and its template, so the same request can be reproduced from the journal.
"""

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import dropwhile
from typing import Final, assert_never

import msgspec

from longhouse.agents.requests import pieces, tokens
from longhouse.agents.requests.pieces import RequestPart, Window
from longhouse.agents.template import AVAILABLE_TOOLS, CLARIFICATIONS, TASK, Template, render
from longhouse.agents.tool import Tool
from longhouse.journal import conversation
from longhouse.journal.events import Fault, Output
from longhouse.journal.json_text import object_of, with_valid_arguments
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
from longhouse.journal.messages import files_in as in_messages
from longhouse.journal.session import Session, Turn
from longhouse.journal.transcript import Entry, ImportedMessages, PromptEntry, Step, Summary, Use

FORM: Final = 1
"""The current version of request composition; a turn keeps the form it started with, so its requests can be reproduced.
In form 0, prompts without a placeholder lost the task or the answer, an answer had no date, an agent whose prompts
contain no date got none, and strict schemas did not describe their bounds."""
SHAPED: Final = 2
"""The form of turns whose client asked for a response format: their requests say it in words too."""
ROOM: Final = 0.7
"""A window over its budget is cut to this fraction of it. The next cut is then many steps away, and until then each
request starts with the same prefix as the one before, so the provider's prompt cache keeps working."""
LEAST: Final = 400
"""Characters; shorter results and arguments stay, since a stub would save almost nothing."""
SHORT: Final = 100
"""Maximum characters of an argument that stays when longer ones of the same call are left out."""
SUB_WINDOW: Final = 50
"""Messages of earlier turns that a sub-agent is shown, unless its template says otherwise."""


def size_of(messages: Sequence[Message]) -> int:
    """The estimated tokens of a request's messages; those of a long history are not counted again."""
    if isinstance(messages, Window) and messages.parts is not None:
        return messages.tokens
    return tokens.total(messages)


def files_in(messages: Sequence[Message]) -> set[str]:
    """The digests of all files that a request's messages refer to."""
    parts = messages.parts if isinstance(messages, Window) else None
    return set().union(*[part.files for part in parts]) if parts is not None else in_messages(messages)


def compose(
    session: Session,
    turn: Turn,
    template: Template,
    offered: Sequence[Tool],
    wire_names: Mapping[str, str],
    *,
    extra_system: str = "",
    found: pieces.Found | None = None,
) -> Sequence[Message]:
    """System prompt, then the transcript; if it is too long, the oldest results and long arguments are left out.

    `found`: the session's transcript in pieces, where the caller has them already.
    """
    found = pieces.of(session.transcript) if found is None else found
    system = _system(turn, template, _listed(template, offered, wire_names), extra_system, session.recall)
    is_whole = not session.deleted and not pieces.has_summary(found)
    transcript = session.transcript if is_whole else conversation.shown(session)
    earlier, present = _split(session, transcript, template, wire_names)
    now = pieces.composed(
        found if present is session.transcript else pieces.of(present),
        template.prompt_pack,
        wire_names,
        session.asked,
        lambda entry: _messages(entry, template, wire_names, session.asked),
    )
    budget = template.llm_policy.context_tokens
    window = Window(system, [RequestPart(earlier), *now] if earlier else now)
    if window.tokens <= budget:
        # A transcript only grows: if it fits now, it was never cut before.
        return window
    blocks = [_Block(earlier, {}), *(_block(entry, template, wire_names, session.asked) for entry in present)]
    return [system, *_fitted(blocks, tokens.of(system), budget)]


def _listed(template: Template, offered: Sequence[Tool], names: Mapping[str, str]) -> str:
    """The tools in words, for a system prompt that asks for them."""
    if AVAILABLE_TOOLS not in template.prompt_pack.system_prompt:
        return ""
    return "\n".join(f"{n}. {names[tool.name]}: {tool.description}" for n, tool in enumerate(offered, start=1))


def _split(
    session: Session, transcript: Sequence[Entry], template: Template, names: Mapping[str, str]
) -> tuple[list[Message], Sequence[Entry]]:
    """Earlier turns as plain messages, if their number is limited, and the entries that are shown in full."""
    most = template.memory_policy.context_window
    if most is None and session.side == "root":
        return [], transcript
    began = max((entry.seq for entry in transcript if isinstance(entry, PromptEntry)), default=0)
    earlier = [entry for entry in transcript if entry.seq < began or isinstance(entry, ImportedMessages)]
    messages = [
        (entry, message)
        for entry in earlier
        for message in conversation.messages_with_calls(entry, names, session.asked)
    ]
    # A summary replaces everything before it, so it does not count against the limit of messages.
    summed = [message for entry, message in messages if isinstance(entry, Summary)]
    others = (message for entry, message in messages if not isinstance(entry, Summary))
    newest = deque(others, SUB_WINDOW if most is None else most)
    shown = dropwhile(lambda message: isinstance(message, ToolResult), newest)  # without the results of calls left out
    present = [entry for entry in transcript if entry.seq >= began and not isinstance(entry, ImportedMessages)]
    return [*summed, *shown], present


def history(session: Session, template: Template) -> Iterator[Message]:
    """The whole transcript, except what a summary replaces."""
    for entry in conversation.shown(session):
        yield from _messages(entry, template, {}, session.asked)


class _Block(msgspec.Struct, frozen=True):
    """The messages of one entry, and by index the stubs that may replace some of them."""

    messages: list[Message]
    stubs: dict[int, Message]
    is_thought: bool = False
    """Reasoning between results and the action that follows from them."""


def _block(entry: Entry, template: Template, names: Mapping[str, str], asked: str) -> _Block:
    messages = list(_messages(entry, template, names, asked))
    if not isinstance(entry, Step):
        return _Block(messages, {})
    stubs = {place: stub for place, message in enumerate(messages) if (stub := _stub(entry, message, names))}
    return _Block(messages, stubs, is_thought=is_thought(entry))


def stubbed(step: Step, template: Template, asked: str) -> list[Message]:
    """The messages of a step, replaced by stubs where possible."""
    block = _block(step, template, {}, asked)
    return [block.stubs.get(place, message) for place, message in enumerate(block.messages)]


def is_thought(step: Step) -> bool:
    """Whether a step contains only reasoning about earlier results."""
    return all(use.role == "reasons" for use in step.uses)


def _stub(step: Step, message: Message, names: Mapping[str, str]) -> Message | None:
    """The stub that may replace a message of a step; None if it would save nothing, or the message must stay."""
    uses = {use.call: use for use in step.uses}
    match message:
        case Assistant() if not step.answer:  # an answer is delivered in the arguments of a call
            calls = tuple(call if uses[call.id].question else _cut_call(call) for call in message.tool_calls)
            return msgspec.structs.replace(message, tool_calls=calls) if calls != message.tool_calls else None
        case ToolResult() if len(message.content) >= LEAST and not uses[message.tool_call_id].question:
            return _cut_result(uses[message.tool_call_id], message, names)
        case _:
            return None


def _cut_call(call: ToolCall) -> ToolCall:
    """A call without its long arguments: the name of a written file stays, its content does not."""
    given = object_of(call.function.arguments) if len(call.function.arguments) >= LEAST else None
    if given is None:
        return call
    sizes = {name: len(msgspec.json.encode(value).decode()) for name, value in given.items()}
    kept = {name: value if sizes[name] <= SHORT else _left_out(sizes[name]) for name, value in given.items()}
    arguments = msgspec.json.encode(kept).decode()
    if len(arguments) >= LEAST:
        arguments = msgspec.json.encode({"arguments": _left_out(len(call.function.arguments))}).decode()
    return msgspec.structs.replace(call, function=Function(name=call.function.name, arguments=arguments))


def _left_out(size: int) -> str:
    return f"[left out: {size} characters]"


def _cut_result(use: Use, result: ToolResult, names: Mapping[str, str]) -> ToolResult:
    # A call with side effects must not be repeated only to read its result again.
    again = "; call it again if you need it" if use.effect == "read" else ""
    name = names.get(use.tool, use.tool)
    content = f"[result of {name} left out: {len(result.content)} characters{again}]"
    return ToolResult(tool_call_id=result.tool_call_id, content=content)


def _fitted(blocks: Sequence[_Block], used: int, budget: int) -> Iterator[Message]:
    """The blocks' messages; if they exceed the budget, the oldest results and arguments are replaced by stubs.

    The transcript is processed in the order in which it grew, so every request has the same cuts as those before it.
    The calls and results of the last step, which the model has not acted on yet, are never left out.
    """
    whole: deque[tuple[int, int]] = deque()
    cut: set[tuple[int, int]] = set()
    fresh = 0
    for nth, block in enumerate(blocks):
        fresh = fresh if block.is_thought else nth
        used += tokens.total(block.messages)
        whole.extend((nth, place) for place in block.stubs)
        if used <= budget:
            continue
        while used > ROOM * budget and whole and whole[0][0] < fresh:
            oldest, place = whole.popleft()
            used -= tokens.of(blocks[oldest].messages[place]) - tokens.of(blocks[oldest].stubs[place])
            cut.add((oldest, place))
    for nth, block in enumerate(blocks):
        for place, message in enumerate(block.messages):
            yield block.stubs[place] if (nth, place) in cut else message


def _messages(entry: Entry, template: Template, names: Mapping[str, str], asked: str) -> Iterable[Message]:
    match entry:
        case Step():
            return with_valid_arguments(_step(entry, template, names, asked))
        case PromptEntry():
            return [User(content=_task(entry, template))]
        case ImportedMessages():
            return with_valid_arguments(entry.messages)
        case Summary():
            return conversation.dialogue_messages(entry)
        case _:
            assert_never(entry)


@lru_cache(maxsize=64)
def _rendered(system_prompt: str, date: str) -> str:
    """A prompt that lists no tools. Kept, since each step needs it; there are no words of users or clients in it."""
    return render(system_prompt, current_date=date, available_tools="")


def _system(turn: Turn, template: Template, available_tools: str, extra: str, recall: str) -> System:
    prompt = template.prompt_pack.system_prompt
    if available_tools:
        text = render(prompt, current_date=turn.date, available_tools=available_tools)
    else:
        text = _rendered(prompt, turn.date)
    if turn.prompted.system and template.allow_client_system:
        text = f"{text}\n\n{turn.prompted.system}"
    if turn.prompted.shared:
        shared = conversation.as_dicts(turn.prompted.shared)
        lines = "\n".join(f"{message['role']}: {message['content']}" for message in shared)
        text = f"{text}\n\nWhat was said to the agent that asks you:\n{lines}"
    if extra:
        text = f"{text}\n\n{extra}"
    if turn.form and not template.prompt_pack.names_the_date:
        # At the end: the text before it is the same every day, which prompt caches need.
        text = f"{text}\n\nToday is {turn.date}.".lstrip()
    if recall:
        # Behind everything that stays the same from step to step.
        text = f"{text}\n\n{recall}".lstrip()
    return System(content=text)


def _task(prompt: PromptEntry, template: Template) -> Content:
    pattern = template.prompt_pack.initial_user_request
    if prompt.form:
        pattern = _complete(pattern, TASK)
    if isinstance(prompt.content, str):
        return render(pattern, task=prompt.content, current_date=prompt.date)
    return tuple(
        TextPart(text=render(pattern, task=part.text, current_date=prompt.date)) if isinstance(part, TextPart) else part
        for part in prompt.content
    )


def _answer(use: Use, answer: str, template: Template) -> str:
    pattern = template.prompt_pack.clarification_response
    if not use.date:
        return render(pattern, clarifications=answer)
    return render(_complete(pattern, CLARIFICATIONS), clarifications=answer, current_date=use.date)


def _complete(pattern: str, placeholder: str) -> str:
    """The prompt, with its placeholder added if missing; such prompts cannot be published now, but older ones exist."""
    return pattern if placeholder in pattern else f"{pattern}\n\n{placeholder}".lstrip()


def _step(step: Step, template: Template, names: Mapping[str, str], asked: str) -> list[Message]:
    """The assistant's message, one result for each call in the order of the calls, then the answers of people."""
    content = step.text or (None if step.uses else "")
    messages: list[Message] = [conversation.calling(step, step.uses, content, names, asked)]
    if step.problem:
        trouble = f"Your last reply could not be read: {step.problem}. Reply again in the form asked for."
        messages.append(User(content=trouble))
    for use in step.uses:
        messages.append(ToolResult(tool_call_id=use.call, content=_result(use)))
    for use in step.uses:
        if use.question and isinstance(use.outcome, Output):
            messages.append(User(content=_answer(use, use.outcome.content, template)))
    for aside in step.asides:
        messages.append(User(content=aside))
    return messages


def _result(use: Use) -> str:
    """The content of the tool message: for a question, the question itself; its answer follows as a user message."""
    if use.question and not isinstance(use.outcome, Fault):
        return use.question
    return conversation.result(use.outcome) if use.outcome else "Error: not answered yet"
