"""A scripted model, with replies defined in Python or JSON: for tests, docs and the demo."""

import asyncio
import itertools
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Final, Literal

import msgspec

from longhouse.agents.strategies.protocol import Body
from longhouse.errors import ProviderError, SetupError
from longhouse.journal.events import Usage
from longhouse.journal.messages import Assistant, Message, User, text_of
from longhouse.models.http.failure import is_retryable
from longhouse.models.protocol import Delta, ToolCallDelta


class _Line(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    pass


class ScriptedStatus(_Line, frozen=True, tag_field="kind", tag="status"):
    """Fault: an error status instead of the reply."""

    status: int = 500
    retry_after: float | None = None
    message: str = "The script says so."


class Hang(_Line, frozen=True, tag_field="kind", tag="hang"):
    """Fault: not a single byte is sent. In process, the timeout is raised after `seconds`, or at once."""

    seconds: float | None = None


class Cut(_Line, frozen=True, tag_field="kind", tag="cut"):
    """Fault: the connection breaks after this many deltas of the reply."""

    after: int = 1


class Garbage(_Line, frozen=True, tag_field="kind", tag="garbage"):
    """Fault: an HTML page with status 200 instead of the reply."""

    page: str = "<!doctype html><title>Bad gateway</title>"


Fault = ScriptedStatus | Hang | Cut | Garbage


class Call(_Line, frozen=True):
    """A tool call; its arguments are an object, or a string where the model should write invalid JSON."""

    name: str
    arguments: str | dict[str, Any] = "{}"

    @property
    def written(self) -> str:
        """The arguments as JSON text, keys in the script's order."""
        return self.arguments if isinstance(self.arguments, str) else msgspec.json.encode(self.arguments).decode()


class Say(_Line, frozen=True):
    """One reply: reasoning, then text, then tool calls."""

    text: str = ""
    calls: tuple[Call, ...] = ()
    reasoning: str = ""
    chunk: int = 0
    """Characters per delta; 0 sends each part of the reply in one delta."""
    delay: float = 0.0
    """Seconds between deltas."""
    fault: Fault | None = None


class Script(_Line, frozen=True):
    """Replies in order, or (`step`) by the number of assistant messages since the last user message.

    A script by step keeps no state, so many sessions can use it at once; its last reply repeats.
    """

    by: Literal["order", "step"] = "order"
    replies: tuple[Say, ...] = ()


Choose = Callable[[Body], Say]
Playable = Script | Iterable[Say] | Choose


say: Final = Say
"""A reply with this text: `say("Hello.", chunk=3)`."""


def call(name: str, /, **arguments: Any) -> Say:
    return Say(calls=(Call(name=name, arguments=arguments),))


def calls(*replies: Say) -> Say:
    """One reply that joins the texts and the calls of all given replies."""
    return Say(
        text="".join(each.text for each in replies),
        reasoning="".join(each.reasoning for each in replies),
        calls=tuple(itertools.chain.from_iterable(each.calls for each in replies)),
    )


def read_script(path: Path) -> Script:
    try:
        return msgspec.json.decode(path.read_bytes(), type=Script)
    except OSError as error:
        raise SetupError(f"the script {path} cannot be read: {error.strerror}") from error
    except msgspec.DecodeError as error:
        raise SetupError(f"the script {path} is not understood: {error}") from error


class ScriptPlayer:
    """Chooses the reply to each request: first the queued ones of `will`, then those of the script."""

    def __init__(self, script: Playable = ()) -> None:
        self._queue: list[Say] = []
        self._ids = itertools.count(1)
        self._choose: Choose = _no_reply_left
        if callable(script):
            self._choose = script
        elif not isinstance(script, Script):
            self.will(*script)
        elif script.by == "order":
            self.will(*script.replies)
        elif script.replies:
            self._choose = lambda body: script.replies[min(step_of(body.messages), len(script.replies) - 1)]

    def will(self, *replies: Say) -> None:
        """Queues replies after those already queued."""
        self._queue.extend(replies)

    def reply(self, body: Body) -> Say:
        return self._queue.pop(0) if self._queue else self._choose(body)

    def call_ids(self, reply: Say) -> list[str]:
        """New ids for the calls of a reply."""
        return [f"call_{next(self._ids)}" for _ in reply.calls]


class ScriptedModel(ScriptPlayer):
    """A model with predefined replies; faults are raised as a real endpoint's would be."""

    def __init__(self, script: Playable = (), *, remember: bool = True) -> None:
        super().__init__(script)
        self.bodies: list[Body] = []
        """The requests it received; always empty without `remember`."""
        self._remember = remember

    async def stream(self, body: Body) -> AsyncGenerator[Delta, None]:
        if self._remember:
            self.bodies.append(body)
        reply = self.reply(body)
        await _fail_early(reply.fault)
        deltas = [*deltas_of(reply, self.call_ids(reply)), Delta(usage=usage_of(body, reply))]
        cut = reply.fault.after if isinstance(reply.fault, Cut) else None
        for number, delta in enumerate(deltas[:cut]):
            if number and reply.delay:
                await asyncio.sleep(reply.delay)
            yield msgspec.structs.replace(delta, model=body.model)
        if cut is not None:
            raise ProviderError("the scripted model broke off its answer", retryable=True)


async def _fail_early(fault: Fault | None) -> None:
    match fault:
        case ScriptedStatus():
            reason = f"the scripted model answered {fault.status}: {fault.message}"
            raise ProviderError(reason, retryable=is_retryable(fault.status), retry_after=fault.retry_after)
        case Hang():
            await asyncio.sleep(fault.seconds or 0)
            raise ProviderError("the scripted model sent nothing", retryable=True)
        case Garbage():
            raise ProviderError("the scripted model sent something that is not an answer: text/html", retryable=True)


def _no_reply_left(body: Body) -> Say:
    raise ProviderError(f"the script has no reply left for {body.model!r}", retryable=False)


def step_of(messages: Sequence[Message]) -> int:
    """The number of replies since the last user message."""
    after = itertools.takewhile(lambda message: not isinstance(message, User), reversed(messages))
    return sum(isinstance(message, Assistant) for message in after)


def deltas_of(reply: Say, ids: Sequence[str]) -> list[Delta]:
    """A reply as a list of deltas, the finish reason last; `ids` are the ids of its calls."""
    size = reply.chunk
    deltas = [Delta(reasoning=part) for part in _parts(reply.reasoning, size)]
    deltas += [Delta(text=part) for part in _parts(reply.text, size)]
    for index, (made, id_) in enumerate(zip(reply.calls, ids, strict=True)):
        deltas.append(Delta(calls=(ToolCallDelta(index=index, id=id_, name=made.name),)))
        deltas += [Delta(calls=(ToolCallDelta(index=index, arguments=part),)) for part in _parts(made.written, size)]
    return [*deltas, Delta(finish="tool_calls" if reply.calls else "stop")]


def _parts(text: str, size: int) -> list[str]:
    if not text:
        return []
    return [text[start : start + size] for start in range(0, len(text), size)] if size else [text]


def usage_of(body: Body, reply: Say) -> Usage:
    """A plausible usage: one token for every four characters."""
    prompt = max(1, sum(_length(message) for message in body.messages) // 4)
    written = sum(len(made.name) + len(made.written) for made in reply.calls)
    completion = max(1, (len(reply.text) + len(reply.reasoning) + written) // 4)
    return Usage(prompt_tokens=prompt, completion_tokens=completion, total_tokens=prompt + completion)


def _length(message: Message) -> int:
    length = len(text_of(message.content))
    if isinstance(message, Assistant):
        length += sum(len(made.function.name) + len(made.function.arguments) for made in message.tool_calls)
    return length
