"""Reads the stream of a model reply: accumulates its fragments and publishes them to the session's followers."""

import asyncio
from contextlib import aclosing, suppress
from typing import Any, Final, Literal

import msgspec

from longhouse.agents.requests import window
from longhouse.agents.strategies.partial_json import AnswerReader
from longhouse.agents.strategies.protocol import ANY_FORMAT, Body, Reply, Request
from longhouse.agents.strategies.structured import DISCRIMINATOR
from longhouse.agents.template import LLMPolicy
from longhouse.errors import ProviderError
from longhouse.journal.events import ProviderCall, Usage
from longhouse.journal.messages import System, User, clean, clean_json, with_files
from longhouse.journal.session import BLANK_LINE, Session
from longhouse.models.protocol import Delta, Model, ToolCallDelta, joined_extra, paid_for
from longhouse.runtime.bus.items import Fragment, GrowingDraft
from longhouse.runtime.bus.local import Bus
from longhouse.store import files
from longhouse.store.database import Database
from longhouse.time_limit import TimeLimit

MAX_REPLY: Final = 4_000_000
"""Maximum characters of one reply; a longer reply would not stop by itself."""
REPLY_WITHIN: Final = 900.0
"""Timeout of one reply in seconds, even if the connection is active."""


async def listen(
    db: Database,
    bus: Bus,
    model: Model,
    request: Request,
    *,
    session: Session,
    fence: int,
    shows_answer: bool = True,
    keeps_answer: bool = False,
) -> Reply:
    """Streams one reply to its end; without `shows_answer`, followers see the answer only after it is recorded.

    `keeps_answer`: nor do they see text that may be the answer, not even as reasoning.
    """
    draft = GrowingDraft(after=session.head, fence=fence)
    accumulated = _ReplyAccumulator(request, bus, session.id, draft, shows_answer and not keeps_answer)
    accumulated.keeps_back |= keeps_answer
    body = request.body
    if digests := window.files_in(body.messages):
        urls = await files.data_urls(db, session.id, digests)
        body = msgspec.structs.replace(body, messages=with_files(body.messages, urls))
    try:
        with TimeLimit(REPLY_WITHIN):
            async with aclosing(model.stream(body)) as deltas:
                with bus.drafting(session.id, draft):
                    async for delta in deltas:
                        accumulated.add(delta)
    except TimeoutError:
        late = ProviderError(f"the model did not end its reply within {REPLY_WITHIN:g} seconds", retryable=True)
        raise paid_for(late, accumulated.usage) from None
    except ProviderError as error:
        raise paid_for(error, accumulated.usage) from error.__cause__
    if draft.content:
        await asyncio.sleep(0)  # followers are told the last words before the reply is worked on
    return accumulated.reply()


async def asked(
    what: str,
    model: Model,
    policy: LLMPolicy,
    instructions: str,
    material: str,
    *,
    max_tokens: int | None,
    within: float,
) -> tuple[str, Usage | None]:
    """A summary or a title that the model writes to a plain request without tools, and its cost, which an error has
    too."""
    body = Body(
        model=policy.model or "",
        messages=[System(content=instructions), User(content=material)],
        temperature=policy.temperature,
        max_tokens=max_tokens,
        reasoning_effort=policy.effort,
        extra=policy.extra,
    )
    parts: list[str] = []
    usage: Usage | None = None
    try:
        async with asyncio.timeout(within), aclosing(model.stream(body)) as deltas:
            async for delta in deltas:
                parts.append(delta.text)
                usage = delta.usage or usage
    except TimeoutError:
        late = ProviderError(f"the model wrote no {what} within {within:g} seconds", retryable=True)
        raise paid_for(late, usage) from None
    except ProviderError as error:
        raise paid_for(error, usage) from error.__cause__
    return "".join(parts), usage


class _PartialCall(msgspec.Struct):
    """A tool call that is still streaming."""

    id: str = ""
    name: str = ""
    arguments: list[str] = []
    extra: Any = None
    reader: AnswerReader | None = None


def _is_formatted(request: Request) -> bool:
    """Has the client asked for a response format, such as JSON? Text before the answer would violate it."""
    if request.body.response_format is ANY_FORMAT or not request.body.tools:
        return False
    asked = msgspec.json.decode(request.body.response_format)
    return isinstance(asked, dict) and asked.get("type") != "text"


def _answering(request: Request) -> str | None:
    """The tool whose call gives the answer; None if the call would be refused or would wait for approval."""
    for tool in request.offered:
        if tool.role == "finishes" and not tool.needs_approval and request.only in (None, tool.name):
            return tool.name
    return None


class _ReplyAccumulator:
    def __init__(self, request: Request, bus: Bus, session_id: str, draft: GrowingDraft, shows_answer: bool) -> None:
        self._request = request
        self._shows_answer = shows_answer
        self._bus = bus
        self._session_id = session_id
        self._draft = draft
        self._answering = _answering(request)
        self.keeps_back = _is_formatted(request)
        """Is text held until it is known that it is not the answer?"""
        self._text: list[str] = []
        self._streamed_chars = 0
        """Number of characters of the text that are content."""
        self._held_back: list[str] = []
        """Text not published yet: it is only white space, or it may violate the requested format."""
        self._answer = ""
        """The part of the answer that was read from a call or a structured reply until it was published."""
        self._is_answer_shown = False
        """Was any of it published?"""
        self._reasoning: list[str] = []
        self._refusal: list[str] = []
        self._calls: dict[int, _PartialCall] = {}
        self._structure: AnswerReader | None = None
        """Reads the answer out of a structured reply."""
        if self._answering and request.text_is == "structure":
            self._structure = AnswerReader(("function", "answer"), given=(("function", DISCRIMINATOR), self._answering))
        self.usage: Usage | None = None
        self._finish = ""
        self._model = ""
        self._size = 0
        self._returns_reasoning = False
        self._extra: Any = None

    def add(self, delta: Delta) -> None:
        if delta.reasoning:
            self._grow(self._reasoning, delta.reasoning)
            self._publish("reasoning", delta.reasoning)
        self._returns_reasoning |= delta.returns_reasoning
        if delta.extra is not None:
            self._extra = joined_extra(self._extra, delta.extra)
        if delta.refusal:
            self._grow(self._refusal, delta.refusal)
        if delta.text:
            self._grow(self._text, delta.text)
            self._add_text(delta.text)
        for fragment in delta.calls:
            self._add_call(fragment)
        self.usage = delta.usage or self.usage
        self._finish = delta.finish or self._finish
        self._model = delta.model or self._model

    def _add_text(self, text: str) -> None:
        if self._request.text_is == "structure":
            if self._structure and (answer := self._structure.feed(text)):
                self._add_answer(answer)
        elif self._is_aside:
            self._publish("reasoning", text)
        else:
            self._held_back.append(text)
            if self.keeps_back:
                return
            self._streamed_chars += len(text)
            if self._draft.content or any(map(str.strip, self._held_back)):
                self._publish("content", self._release())

    @property
    def _is_aside(self) -> bool:
        """Is text not content here? Text after an answer is none: the recorded reply has its text before the answer."""
        if self._request.text_is == "thought" or self._answer:
            return True
        return bool(self._calls) if self.keeps_back else not self._shows_answer

    def _add_answer(self, answer: str) -> None:
        """Publishes a piece of the answer; held back while it only repeats the text before it."""
        if self._is_answer_shown:
            self._publish("content", answer)
            return
        self._answer += answer
        text = str(self._draft.content)
        if not text or not text.strip().startswith(self._answer.strip()):
            self._is_answer_shown = True
            self._publish("content", f"{BLANK_LINE if text else ''}{self._answer}")

    def _add_call(self, fragment: ToolCallDelta) -> None:
        if self.keeps_back and self._held_back:
            self._publish("reasoning", self._release())
        call = self._calls.setdefault(fragment.index, _PartialCall())
        call.id = call.id or fragment.id
        if fragment.extra is not None:
            call.extra = joined_extra(call.extra, fragment.extra)
        if fragment.name and not call.name:
            call.name = fragment.name
            is_answer = self._request.names.get(fragment.name, fragment.name) == self._answering
            if is_answer and not any(one.reader for one in self._calls.values()):
                call.reader = AnswerReader()  # of several answers the first one counts
        if fragment.arguments:
            self._grow(call.arguments, fragment.arguments)
            if call.reader and (answer := call.reader.feed(fragment.arguments)):
                self._add_answer(answer)

    def _release(self) -> str:
        """What was held back, which is not any longer."""
        text = "".join(self._held_back)
        self._held_back.clear()
        return text

    def _publish(self, kind: Literal["content", "reasoning"], text: str) -> None:
        if kind == "content" and not self._shows_answer:
            return
        text, draft = clean(text), self._draft
        written = draft.content if kind == "content" else draft.reasoning
        fragment = Fragment(draft.after, draft.fence, kind, len(written), text)
        written.add(text)
        self._bus.publish(self._session_id, fragment)

    def _grow(self, parts: list[str], text: str) -> None:
        self._size += len(text)
        if self._size > MAX_REPLY:
            raise ProviderError(f"the model's reply is longer than {MAX_REPLY} characters", retryable=False)
        parts.append(text)

    def reply(self) -> Reply:
        calls = []
        for index, call in sorted(self._calls.items()):
            arguments, extra = clean_json("".join(call.arguments)), self._opaque(call.extra)
            # By its id a call finds what goes back with it.
            id_ = clean(call.id) or (f"call_{index}" if extra else "")
            calls.append(ProviderCall(id=id_, name=clean(call.name), arguments=arguments, extra=extra))
        return Reply(
            text=clean("".join(self._text)),
            reasoning=clean("".join(self._reasoning)),
            refusal=clean("".join(self._refusal)),
            calls=tuple(calls),
            usage=self.usage,
            finish=clean(self._finish),
            model=clean(self._model),
            streamed_chars=self._streamed_chars,
            returns_reasoning=self._returns_reasoning,
            extra=self._opaque(self._extra),
        )

    def _opaque(self, extra: Any) -> str:
        """JSON text for the endpoint itself; it counts as a part of the reply."""
        if extra is None:
            return ""
        with suppress(UnicodeEncodeError):
            text = msgspec.json.encode(extra).decode()
            self._grow([], text)
            return text
        return ""
