"""Keeps what requests are made of: a request begins with the messages of the one before it, which are neither composed
nor encoded again.

A transcript only grows at its end. It is taken in pieces: runs of `RUN` entries from its beginning, then one by one. A
piece is known by its entries, which are frozen, and lives only as long as each of them.
"""

import hashlib
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, MutableSequence, Sequence
from functools import cached_property
from operator import call, is_
from typing import Any, Final, overload
from weakref import ref

import msgspec

from longhouse.agents.requests import tokens
from longhouse.agents.template import PromptPack
from longhouse.journal.messages import Message, files_in
from longhouse.journal.transcript import Entry, Step, Summary

_encode: Final = msgspec.json.Encoder().encode
RUN: Final = 32
"""Entries of a whole piece: fewer make many pieces of a long transcript, more are composed anew when one changes."""
MOST_BEGINNINGS: Final = 64
"""Beginnings of requests whose hash is kept; not the texts themselves, in which is what people have said."""


class RequestPart:
    """Messages of a request that stand together, made once."""

    def __init__(self, messages: list[Message]) -> None:
        self.messages = messages
        self.tokens = tokens.total(messages)
        self.files = files_in(messages)
        self.hashed: tuple[Any, Any] | None = None
        """The hash of all before it, and with it."""

    @cached_property
    def json(self) -> bytes:
        """As it stands in a list, a comma before each message."""
        return b"," + _encode(self.messages)[1:-1] if self.messages else b""


class TranscriptPiece:
    """Some entries of a transcript that follow each other."""

    def __init__(self, entries: Sequence[Entry], forget: Callable[[object], object]) -> None:
        self.refs = [ref(entry, forget) for entry in entries]
        tools: dict[str, None] = {}
        self.upto = 0
        for entry in entries:
            if type(entry) is Step:
                tools |= dict.fromkeys([use.tool for use in entry.uses])
            elif type(entry) is Summary:
                self.upto = max(self.upto, entry.seq)
        self.tools = tuple(tools)
        self.part: RequestPart | None = None
        self.prompts: PromptPack | None = None
        self.names: Mapping[str, str] | None = None
        """The prompts and the names of tools that its part was composed under."""
        self.asked = ""
        """Who was asked."""

    def is_of(self, entries: Sequence[Entry]) -> bool:
        """Whether these are its entries. Checked each time: an end that was missed would show what others said."""
        return all(map(is_, map(call, self.refs), entries))

    def is_named(self, names: Mapping[str, str]) -> bool:
        """Whether its tools have the names under which its part was composed."""
        known = self.names
        return known is not None and all(known.get(one) == names.get(one) for one in self.tools)


_pieces: Final[dict[tuple[int, ...], TranscriptPiece]] = {}
"""By the ids of its entries; the end of any of them removes it, so no id is another's."""


Found = Sequence[tuple[Sequence[Entry], TranscriptPiece]]
"""A transcript in pieces."""


def of(transcript: Sequence[Entry]) -> Found:
    """A transcript in pieces: found once for a request, since each of its entries is looked at."""
    whole = len(transcript) // RUN * RUN
    found = [_piece(transcript[start : start + RUN]) for start in range(0, whole, RUN)]
    for entry in transcript[whole:]:
        one, key = (entry,), (id(entry),)
        piece = _pieces.get(key)
        found.append((one, piece if piece and piece.refs[0]() is entry else _new(key, one)))
    return found


def _piece(entries: Sequence[Entry]) -> tuple[Sequence[Entry], TranscriptPiece]:
    key = tuple(map(id, entries))
    piece = _pieces.get(key)
    if piece is None or not piece.is_of(entries):
        piece = _new(key, entries)
        for one in key:  # what was kept of its entries one by one is in it
            _pieces.pop((one,), None)
    return entries, piece


def _new(key: tuple[int, ...], entries: Sequence[Entry]) -> TranscriptPiece:
    piece = _pieces[key] = TranscriptPiece(entries, lambda _: _pieces.pop(key, None))
    return piece


def size_of(transcript: Sequence[Entry]) -> int:
    """The size of a transcript as JSON; of pieces that are composed, that of their messages."""
    return sum(
        [len(piece.part.json if piece.part else msgspec.json.encode(entries)) for entries, piece in of(transcript)]
    )


def tools_used(found: Found) -> frozenset[str]:
    return frozenset([tool for _, piece in found for tool in piece.tools])


def has_summary(found: Found) -> bool:
    for _, piece in found:  # noqa: SIM110 - a generator would be resumed for each piece, in each step
        if piece.upto:
            return True
    return False


def composed(
    found: Found,
    prompts: PromptPack,
    names: Mapping[str, str],
    asked: str,
    messages: Callable[[Entry], Iterable[Message]],
) -> list[RequestPart]:
    """The messages of a transcript under these prompts and names of tools, for the one who is asked."""
    parts = []
    for entries, piece in found:
        part, is_known = piece.part, piece.prompts is prompts and piece.asked == asked
        if part is None or not is_known or not (piece.names is names or piece.is_named(names)):
            part = piece.part = RequestPart([message for entry in entries for message in messages(entry)])
        piece.prompts, piece.names, piece.asked = prompts, names, asked
        parts.append(part)
    return parts


class Window(MutableSequence[Message]):
    """The messages of a request. It is sent from the parts that they come from: they are listed only where somebody
    looks at them."""

    def __init__(self, first: Message, parts: Sequence[RequestPart]) -> None:
        self._first = first
        self._parts = parts
        self.tokens = tokens.of(first) + sum([part.tokens for part in parts])
        """Tokens as composed: a strategy may have changed the messages since."""

    @cached_property
    def _messages(self) -> list[Message]:
        return self._composed()

    def _composed(self) -> list[Message]:
        return [self._first, *(message for part in self._parts for message in part.messages)]

    @property
    def parts(self) -> Sequence[RequestPart] | None:
        """None where a strategy has changed the messages since."""
        is_seen = "_messages" in self.__dict__
        return None if is_seen and self._messages != self._composed() else self._parts

    @property
    def first(self) -> bytes:
        return _encode(self._first)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Window | list) and self._messages == list(other)

    __hash__ = None  # type: ignore[assignment]  # it may be changed, like a list

    def __len__(self) -> int:
        return len(self._messages)

    @overload
    def __getitem__(self, place: int) -> Message: ...
    @overload
    def __getitem__(self, place: slice) -> list[Message]: ...
    def __getitem__(self, place: int | slice) -> Message | list[Message]:
        return self._messages[place]

    def __setitem__(self, place: Any, value: Any) -> None:
        self._messages[place] = value

    def __delitem__(self, place: int | slice) -> None:
        del self._messages[place]

    def insert(self, place: int, value: Message) -> None:
        self._messages.insert(place, value)

    # Custom strategies add lists to it: it was a list.
    def __add__(self, others: Sequence[Message]) -> list[Message]:
        return [*self._messages, *others]

    def __radd__(self, others: Sequence[Message]) -> list[Message]:
        return [*others, *self._messages]


_beginnings: Final[OrderedDict[tuple[int, int], Any]] = OrderedDict()
"""Their hashes, by length and Python's hash, which nobody outside of this process can foresee: to know a beginning by
its SHA-256 takes ten times as long, at each step."""


def digest(beginning: bytes, parts: Iterable[RequestPart], end: bytes) -> str:
    """The SHA-256 of all of these, continued from the hash of a beginning that is known."""
    sha = _begun(beginning)
    for part in parts:
        if part.hashed is None or part.hashed[0] is not sha:
            part.hashed = (sha, _continued(sha, part.json))
        sha = part.hashed[1]
    return str(_continued(sha, end).hexdigest())


def _begun(beginning: bytes) -> Any:
    key = len(beginning), hash(beginning)
    sha = _beginnings.get(key)
    if sha is None:
        sha = _beginnings[key] = hashlib.sha256(beginning)
    _beginnings.move_to_end(key)
    if len(_beginnings) > MOST_BEGINNINGS:
        _beginnings.popitem(last=False)
    return sha


def _continued(sha: Any, data: bytes) -> Any:
    sha = sha.copy()
    sha.update(data)
    return sha
