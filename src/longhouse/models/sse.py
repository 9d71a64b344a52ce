"""The answer of an OpenAI-compatible endpoint, read from its bytes: server-sent events in, one Delta per read out."""

import json
from collections.abc import Iterator
from typing import Any, Final

import msgspec

from longhouse.journal.events import Usage
from longhouse.models.protocol import CallDelta, Delta

_DONE: Final = b"[DONE]"


class Unreadable(Exception):  # noqa: N818 - the endpoint's module turns it into a ProviderError
    """An event that is not a chunk of a chat completion."""

    def __init__(self, reason: str, usage: Usage | None = None) -> None:
        super().__init__(reason)
        self.usage = usage
        """What it has cost, if it says so much."""


class Refused(Exception):  # noqa: N818 - the endpoint's module turns it into a ProviderError
    """The provider's own error in place of an answer, or in the middle of one."""

    def __init__(self, error: Any) -> None:
        super().__init__()
        self.error = error


class _Function(msgspec.Struct, gc=False):
    name: str | None = None
    arguments: str | dict[str, Any] | None = None


class _Call(msgspec.Struct, gc=False):
    index: int | None = None
    id: str | None = None
    function: _Function | None = None


class _Piece(msgspec.Struct, gc=False):
    content: str | None = None
    refusal: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    tool_calls: list[_Call] | None = None


class _Choice(msgspec.Struct, gc=False):
    delta: _Piece | None = None
    message: _Piece | None = None
    finish_reason: str | None = None


class _PromptDetails(msgspec.Struct, gc=False):
    cached_tokens: int | None = None


class _Usage(msgspec.Struct, gc=False):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    total_tokens: int | None = None
    prompt_tokens_details: _PromptDetails | None = None

    def counted(self) -> Usage:
        prompt, completion = self.prompt_tokens or 0, self.completion_tokens or 0
        details = self.prompt_tokens_details
        return Usage(
            prompt_tokens=prompt,
            completion_tokens=completion,
            total_tokens=self.total_tokens or prompt + completion,
            cached_tokens=(details.cached_tokens or 0) if details else 0,
        )


class _Chunk(msgspec.Struct, gc=False):
    """A piece of a streamed answer, or a whole one: both have the same shape but for `delta` and `message`."""

    choices: list[_Choice] | None = None
    usage: _Usage | None = None
    model: str | None = None
    error: Any = None


class _Bill(msgspec.Struct, gc=False):
    usage: _Usage | None = None


_chunks: Final = msgspec.json.Decoder(_Chunk)
_NO_FUNCTION: Final = _Function()


class _Begun(msgspec.Struct):
    """A call whose fragments are arriving."""

    id: str = ""
    name: str = ""


class Calls:
    """Gives every fragment its call. Servers leave out the index, use one index for all, or repeat id and name."""

    def __init__(self) -> None:
        self._begun: list[_Begun] = []
        self._places: dict[int, int] = {}

    def fragment(self, call: _Call, position: int) -> CallDelta:
        """`position` is the fragment's place in its own chunk."""
        function = call.function or _NO_FUNCTION
        id_, name, arguments = call.id or "", function.name or "", function.arguments or ""
        if not isinstance(arguments, str):
            arguments = msgspec.json.encode(arguments).decode()
        place = self._place(call.index, id_, name, position)
        begun = self._begun[place]
        fragment = CallDelta(
            index=place, id="" if begun.id else id_, name="" if begun.name else name, arguments=arguments
        )
        begun.id, begun.name = begun.id or id_, begun.name or name
        return fragment

    def _place(self, index: int | None, id_: str, name: str, position: int) -> int:
        place = self._unnumbered(id_, name, position) if index is None else self._places.get(index)
        if place is None or self._begins(place, id_, name):
            place = len(self._begun)
            self._begun.append(_Begun())
            if index is not None:
                self._places[index] = place
        return place

    def _unnumbered(self, id_: str, name: str, position: int) -> int | None:
        for place, begun in enumerate(self._begun):
            if id_ and begun.id == id_:
                return place
        if position or not self._begun:
            return None
        other = name and not id_ and name != self._begun[-1].name
        return None if other else len(self._begun) - 1

    def _begins(self, place: int, id_: str, name: str) -> bool:
        """A new id alone does not make a new call: some servers draw one for each fragment, but name only the first."""
        known = self._begun[place].id
        return bool(name and id_ and known and id_ != known)


class Reading:
    """What one answer has said so far: cuts events out of network reads and merges the chunks of each read."""

    def __init__(self) -> None:
        self.done = False
        self.finished = False
        self._model: str | None = None
        self._calls = Calls()
        self._rest: list[bytes] = []
        self._data: list[bytes] = []

    def feed(self, read: bytes) -> Delta | None:
        """The Delta of one network read, which may begin and end anywhere, inside a character too."""
        chunks = []
        for event in self._events(read):
            if event.strip() == _DONE:
                self.done = self.finished = True
                break
            chunks.append(_decoded(event))
        return self._merged(chunks) if chunks else None

    def end(self) -> Delta | None:
        """The last event of a stream that did not end its last line; half an event is as good as none."""
        try:
            return self.feed(b"\n\n")
        except Unreadable:
            return None

    def whole(self, answer: bytes) -> Delta | None:
        """The Delta of an answer that was not streamed."""
        chunk = _decoded(answer)
        delta = self._merged([chunk])
        self.finished = bool(chunk.choices)
        return delta

    def _events(self, read: bytes) -> Iterator[bytes]:
        end = read.rfind(b"\n") + 1
        if not end:
            self._rest.append(read)
            return
        lines = b"".join((*self._rest, read[:end])) if self._rest else read[:end]
        self._rest = [read[end:]] if end < len(read) else []
        for line in lines.splitlines():
            if line.startswith(b"data:"):
                self._data.append(line[5:])
            elif not line and self._data:
                event = self._data[0] if len(self._data) == 1 else b"\n".join(self._data)
                self._data = []
                yield event

    def _merged(self, chunks: list[_Chunk]) -> Delta | None:
        text = reasoning = ""
        calls: dict[int, CallDelta] = {}
        usage = finish = None
        for chunk in chunks:
            if chunk.error is not None:
                raise Refused(chunk.error)
            if chunk.model:
                self._model = chunk.model
            if chunk.usage is not None:
                usage = chunk.usage.counted()
            if not chunk.choices:
                continue
            choice = chunk.choices[0]
            finish = choice.finish_reason or finish
            piece = choice.delta or choice.message
            if piece is None:
                continue
            text += piece.content or piece.refusal or ""
            reasoning += piece.reasoning_content or piece.reasoning or ""
            if piece.tool_calls:
                self._add(calls, piece.tool_calls)
        if finish:
            self.finished = True
        if not (text or reasoning or calls or usage or finish):
            return None
        return Delta(
            text=text, reasoning=reasoning, calls=tuple(calls.values()), usage=usage, finish=finish, model=self._model
        )

    def _add(self, calls: dict[int, CallDelta], fragments: list[_Call]) -> None:
        for position, call in enumerate(fragments):
            new = self._calls.fragment(call, position)
            old = calls.get(new.index)
            calls[new.index] = new if old is None else _joined(old, new)


def _joined(old: CallDelta, new: CallDelta) -> CallDelta:
    return CallDelta(
        index=old.index, id=old.id or new.id, name=old.name or new.name, arguments=old.arguments + new.arguments
    )


def _decoded(event: bytes) -> _Chunk:
    try:
        return _chunks.decode(event)
    except msgspec.ValidationError as error:
        raise Unreadable(str(error), _cost(event)) from error
    except ValueError:
        return _forgiven(event)
    except RecursionError as error:
        raise Unreadable("nested too deeply") from error


def _cost(event: bytes) -> Usage | None:
    """The usage alone, of an answer whose other parts are of no known shape."""
    try:
        usage = msgspec.json.decode(event, type=_Bill).usage
    except (ValueError, RecursionError):
        return None
    return usage.counted() if usage else None


def _forgiven(event: bytes) -> _Chunk:
    """Half a surrogate pair or a broken character is the engine's to mend; msgspec does not read them, json does."""
    try:
        return msgspec.convert(json.loads(event.decode(errors="replace")), _Chunk)
    except (ValueError, RecursionError) as error:
        raise Unreadable(str(error)) from error
