"""What processes of a fleet tell each other: hints that may be lost or repeated, since Postgres holds the truth."""

from collections.abc import Callable, Iterator, Sequence

import msgspec

from longhouse.runtime.bus.items import Fragment, Gone, JournalGrew, SubagentsChanged, Written

Relayed = JournalGrew | Fragment | SubagentsChanged | Gone | Written


class Wake(msgspec.Struct, frozen=True, tag=True):
    """The session may be runnable; for one worker that has room."""

    session_id: str
    passed_on: int = 0
    """How many workers had no room."""


class Stop(msgspec.Struct, frozen=True, tag=True):
    """A run whose lease is older than `fence` has lost the session."""

    session_id: str
    fence: int


class News(msgspec.Struct, frozen=True, tag=True):
    """For the followers of a session."""

    session_id: str
    item: Relayed


class Ask(msgspec.Struct, frozen=True, tag=True):
    """Somebody follows the session from now on: what is being written there?"""

    session_id: str


Hint = Wake | Stop | News | Ask


def joined(before: Hint, hint: Hint) -> Hint | None:
    """One hint that says what two of the same session say; None: both are needed."""
    match before, hint:
        case News(item=JournalGrew()), News(item=JournalGrew()):
            return hint
        case News(session_id, Fragment() as first), News(item=Fragment() as second) if _continues(first, second):
            text = first.text + second.text
            return News(session_id, Fragment(first.after, first.fence, first.kind, first.offset, text))
    return hint if before == hint else None


def _continues(first: Fragment, second: Fragment) -> bool:
    same = (first.after, first.fence, first.kind) == (second.after, second.fence, second.kind)
    return same and first.kind != "retry" and second.offset == first.offset + len(first.text)


def coalesced(hints: Sequence[Hint]) -> list[Hint]:
    """The hints in their order; those that follow each other in one session are one."""
    found: list[Hint] = []
    last: dict[str, int] = {}
    for hint in hints:
        nth = last.get(hint.session_id)
        whole = joined(found[nth], hint) if nth is not None else None
        if nth is not None and whole is not None:
            found[nth] = whole
        else:
            last[hint.session_id] = len(found)
            found.append(hint)
    return found


def batches(hints: Sequence[Hint], room: int, encode: Callable[[Hint], bytes]) -> Iterator[list[Hint]]:
    """The hints in as few messages as possible; one that is too long and has no text is dropped."""
    batch: list[Hint] = []
    left = room
    for hint in hints:
        for piece in _pieces(hint, room, encode):
            size = len(encode(piece)) + 1
            if size > left and batch:
                yield batch
                batch, left = [], room
            if size <= left:
                batch.append(piece)
                left -= size
    if batch:
        yield batch


def _pieces(hint: Hint, room: int, encode: Callable[[Hint], bytes]) -> Iterator[Hint]:
    """Halves a text until its pieces fit; of what was written so far, all but the beginning are fragments."""
    halves = _halves(hint) if len(encode(hint)) >= room else ()
    if not halves:
        yield hint
    for half in halves:
        yield from _pieces(half, room, encode)


def _halves(hint: Hint) -> Sequence[Hint]:
    match hint:
        case News(session_id, Fragment(after, fence, kind, offset, text)) if len(text) > 1:
            half = len(text) // 2
            parts = ((offset, text[:half]), (offset + half, text[half:]))
            return [News(session_id, Fragment(after, fence, kind, at, part)) for at, part in parts]
        case News(session_id, Written(after, fence, content, reasoning)) if content or reasoning:
            half, half_reasoning = len(content) // 2, len(reasoning) // 2
            rest = (
                Fragment(after, fence, "reasoning", half_reasoning, reasoning[half_reasoning:]),
                Fragment(after, fence, "content", half, content[half:]),
            )
            begun = Written(after, fence, content[:half], reasoning[:half_reasoning])
            return [News(session_id, begun), *(News(session_id, one) for one in rest if one.text)]
    return ()
