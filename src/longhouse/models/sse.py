"""Parses the response of an OpenAI-compatible endpoint: server-sent events in, one Delta per network read out."""

import json
from typing import Any, Final

import msgspec

from longhouse.journal.events import Usage
from longhouse.models.protocol import Delta, ToolCallDelta, joined_extra

_DONE: Final = b"[DONE]"
MOST_TOKENS: Final = 10**12
"""Tokens of one reply that are believed."""
LONGEST_NAME: Final = 200
"""Characters of a model's name: what was used is kept by it."""


class UnreadableEvent(Exception):  # noqa: N818 - the endpoint's module turns it into a ProviderError
    """An event that is not a chunk of a chat completion."""

    def __init__(self, reason: str, usage: Usage | None = None) -> None:
        super().__init__(reason)
        self.usage = usage
        """The tokens used, where the event says so."""


class StreamRefused(Exception):  # noqa: N818 - the endpoint's module turns it into a ProviderError
    """The provider sent an error in place of an answer, or in the middle of one."""

    def __init__(self, error: Any) -> None:
        super().__init__()
        self.error = error


class _Function(msgspec.Struct, gc=False):
    name: str | None = None
    arguments: str | dict[str, Any] | None = None


class _CallFragment(msgspec.Struct, gc=False):
    index: int | None = None
    id: str | None = None
    function: _Function | None = None
    extra_content: Any = None


class _WireDelta(msgspec.Struct, gc=False):
    content: str | None = None
    refusal: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    extra_content: Any = None
    tool_calls: list[_CallFragment] | None = None


class _Choice(msgspec.Struct, gc=False):
    delta: _WireDelta | None = None
    message: _WireDelta | None = None
    finish_reason: str | None = None


class _TokenDetails(msgspec.Struct, gc=False):
    cached_tokens: int | None = None
    reasoning_tokens: int | None = None


class _Usage(msgspec.Struct, gc=False):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    total_tokens: int | None = None
    prompt_tokens_details: _TokenDetails | None = None
    completion_tokens_details: _TokenDetails | None = None

    def counted(self) -> Usage:
        prompt, completion = _count(self.prompt_tokens), _count(self.completion_tokens)
        details, written = self.prompt_tokens_details, self.completion_tokens_details
        return Usage(
            prompt_tokens=prompt,
            completion_tokens=completion,
            total_tokens=_count(self.total_tokens) or prompt + completion,
            cached_tokens=_count(details.cached_tokens) if details else 0,
            reasoning_tokens=_count(written.reasoning_tokens) if written else 0,
        )


def _count(tokens: int | None) -> int:
    """A number that can be counted: budgets are not filled up by negative ones, and sums fit a column."""
    return min(max(tokens or 0, 0), MOST_TOKENS)


class _Chunk(msgspec.Struct, gc=False):
    """A chunk of a streamed answer, or a whole answer: they differ only in `delta` and `message`."""

    choices: list[_Choice] | None = None
    usage: _Usage | None = None
    model: str | None = None
    error: Any = None


class _UsageOnly(msgspec.Struct, gc=False):
    usage: _Usage | None = None


_chunks: Final = msgspec.json.Decoder(_Chunk)
_NO_FUNCTION: Final = _Function()


class _StreamedCall(msgspec.Struct):
    """A tool call whose fragments are still arriving."""

    id: str = ""
    name: str = ""


class Calls:
    """Assigns each fragment to its call. Some servers omit the index, reuse one index, or repeat id and name."""

    def __init__(self) -> None:
        self._partial: list[_StreamedCall] = []
        self._places: dict[int, int] = {}

    def fragment(self, call: _CallFragment, position: int) -> ToolCallDelta:
        """`position` is the index of the fragment within its own chunk."""
        function = call.function or _NO_FUNCTION
        id_, name, arguments = call.id or "", function.name or "", function.arguments or ""
        if not isinstance(arguments, str):
            arguments = msgspec.json.encode(arguments).decode()
        place = self._place(call.index, id_, name, position)
        partial = self._partial[place]
        fragment = ToolCallDelta(
            index=place,
            id="" if partial.id else id_,
            name="" if partial.name else name,
            arguments=arguments,
            extra=call.extra_content,
        )
        partial.id, partial.name = partial.id or id_, partial.name or name
        return fragment

    def _place(self, index: int | None, id_: str, name: str, position: int) -> int:
        place = self._unnumbered(id_, name, position) if index is None else self._places.get(index)
        known = "" if place is None else self._partial[place].id
        # A new id alone starts no new call: some servers send a new id with each fragment, but a name only once.
        if place is None or (name and id_ and known and id_ != known):
            place = len(self._partial)
            self._partial.append(_StreamedCall())
            if index is not None:
                self._places[index] = place
        return place

    def _unnumbered(self, id_: str, name: str, position: int) -> int | None:
        for place, partial in enumerate(self._partial):
            if id_ and partial.id == id_:
                return place
        if position or not self._partial:
            return None
        other = name and not id_ and name != self._partial[-1].name
        return None if other else len(self._partial) - 1


class StreamReader:
    """The parser state of one answer: splits network reads into events and merges the chunks of each read."""

    def __init__(self) -> None:
        self.done = False
        self.finished = False
        self._model: str | None = None
        self._calls = Calls()
        self._rest: list[bytes] = []
        self._data: list[bytes] = []

    def feed(self, read: bytes) -> Delta | None:
        """The Delta of one network read, which may start and end anywhere, even inside a character."""
        chunks = []
        for event in self._events(read):
            if event.strip() == _DONE:
                self.done = self.finished = True
                break
            try:
                chunks.append(_chunks.decode(event))
            except (ValueError, RecursionError):
                chunks.append(_decoded(event))
        return self._merged(chunks) if chunks else None

    def end(self) -> Delta | None:
        """The last event of a stream without a final newline; an incomplete event is ignored."""
        try:
            return self.feed(b"\n\n")
        except UnreadableEvent:
            return None

    def whole(self, answer: bytes) -> Delta | None:
        """The Delta of an answer that was not streamed."""
        chunk = _decoded(answer)
        delta = self._merged([chunk])
        self.finished = bool(chunk.choices)
        return delta

    def _events(self, read: bytes) -> list[bytes]:
        end = read.rfind(b"\n") + 1
        if not end:
            self._rest.append(read)
            return []
        lines = b"".join((*self._rest, read[:end])) if self._rest else read[:end]
        self._rest = [read[end:]] if end < len(read) else []
        events = []
        for line in lines.splitlines():
            if line.startswith(b"data:"):
                self._data.append(line[5:])
            elif not line and self._data:
                events.append(self._data[0] if len(self._data) == 1 else b"\n".join(self._data))
                self._data = []
        return events

    def _merged(self, chunks: list[_Chunk]) -> Delta | None:
        text = reasoning = refusal = ""
        returns_reasoning = False
        calls: dict[int, ToolCallDelta] = {}
        usage = finish = extra = None
        for chunk in chunks:
            if chunk.error is not None:
                raise StreamRefused(chunk.error)
            if chunk.model:
                self._model = chunk.model[:LONGEST_NAME]
            if chunk.usage is not None:
                usage = chunk.usage.counted()
            if not chunk.choices:
                continue
            choice = chunk.choices[0]
            finish = choice.finish_reason or finish
            piece = choice.delta or choice.message
            if piece is None:
                continue
            text += piece.content or ""
            refusal += piece.refusal or ""
            reasoning += piece.reasoning_content or piece.reasoning or ""
            returns_reasoning |= bool(piece.reasoning_content)
            if piece.extra_content is not None:
                extra = joined_extra(extra, piece.extra_content)
            if piece.tool_calls:
                self._add(calls, piece.tool_calls)
        if finish:
            self.finished = True
        if not (text or reasoning or refusal or calls or usage or finish or extra):
            return None
        return Delta(
            text=text,
            reasoning=reasoning,
            returns_reasoning=returns_reasoning,
            refusal=refusal,
            extra=extra,
            calls=tuple(calls.values()),
            usage=usage,
            finish=finish,
            model=self._model,
        )

    def _add(self, calls: dict[int, ToolCallDelta], fragments: list[_CallFragment]) -> None:
        for position, call in enumerate(fragments):
            new = self._calls.fragment(call, position)
            old = calls.get(new.index)
            calls[new.index] = new if old is None else _joined(old, new)


def _joined(old: ToolCallDelta, new: ToolCallDelta) -> ToolCallDelta:
    return ToolCallDelta(
        index=old.index,
        id=old.id or new.id,
        name=old.name or new.name,
        arguments=old.arguments + new.arguments,
        extra=old.extra if new.extra is None else joined_extra(old.extra, new.extra),
    )


def _decoded(event: bytes) -> _Chunk:
    try:
        return _chunks.decode(event)
    except msgspec.ValidationError as error:
        raise UnreadableEvent(str(error), _usage_of(event)) from error
    except ValueError:
        return _decoded_leniently(event)
    except RecursionError as error:
        raise UnreadableEvent("nested too deeply") from error


def _usage_of(event: bytes) -> Usage | None:
    """The usage alone, from an answer whose other fields cannot be decoded."""
    try:
        usage = msgspec.json.decode(event, type=_UsageOnly).usage
    except (ValueError, RecursionError):
        return None
    return usage.counted() if usage else None


def _decoded_leniently(event: bytes) -> _Chunk:
    """Decodes lone surrogates and invalid UTF-8, which msgspec rejects and json accepts; the engine cleans the text."""
    try:
        return msgspec.convert(json.loads(event.decode(errors="replace")), _Chunk)
    except (ValueError, RecursionError) as error:
        raise UnreadableEvent(str(error)) from error
