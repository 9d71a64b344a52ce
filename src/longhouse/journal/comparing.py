"""Compares what an agent said and called with what it said and called before: for replays. No I/O."""

import difflib
from collections.abc import Sequence
from typing import Final, Literal

import msgspec

from longhouse.journal.json_text import value_of

Change = Literal["same", "changed", "added", "removed"]
MOST_LINES: Final = 500
"""Lines that are compared with each other: the time for it grows with their square."""


class MadeCall(msgspec.Struct, frozen=True):
    """A call by its tool and its arguments, as the model wrote them."""

    tool: str
    arguments: str

    @property
    def key(self) -> tuple[str, bytes | str]:
        """Equal for calls that ask for the same: the order of arguments and white space do not count."""
        value = value_of(self.arguments or "{}")
        return self.tool, self.arguments if value is None else msgspec.json.encode(value, order="sorted")


class CallChange(msgspec.Struct, frozen=True, kw_only=True):
    change: Change
    tool: str
    recorded: str | None = None
    """The arguments then."""
    replayed: str | None = None
    """The arguments now."""


def call_changes(recorded: Sequence[MadeCall], replayed: Sequence[MadeCall]) -> list[CallChange]:
    """What became of each call. Calls of one tool in one place are the same call with other arguments."""
    changes: list[CallChange] = []
    matcher = difflib.SequenceMatcher(
        None, [one.key for one in recorded], [one.key for one in replayed], autojunk=False
    )
    for _, first, last, begin, end in matcher.get_opcodes():
        before, after = list(recorded[first:last]), list(replayed[begin:end])
        while before or after:
            if before and after and before[0].tool == after[0].tool:
                then, now = before.pop(0), after.pop(0)
                kind: Change = "same" if then.key == now.key else "changed"
                changes.append(CallChange(change=kind, tool=now.tool, recorded=then.arguments, replayed=now.arguments))
            elif before and (not after or before[0].tool not in {one.tool for one in after}):
                then = before.pop(0)
                changes.append(CallChange(change="removed", tool=then.tool, recorded=then.arguments))
            else:
                now = after.pop(0)
                changes.append(CallChange(change="added", tool=now.tool, replayed=now.arguments))
    return changes


def text_changes(recorded: str, replayed: str) -> list[str]:
    """The lines that differ, each behind `- ` or `+ `; none if the texts are the same."""
    if recorded == replayed:
        return []
    before, after = _without_common_ends(recorded.splitlines(), replayed.splitlines())
    changes: list[str] = []
    for first, last, begin, end in _differences(before, after):
        changes += [f"- {line}" for line in before[first:last]]
        changes += [f"+ {line}" for line in after[begin:end]]
    return changes or ["- (other white space)", "+ (other white space)"]


def _without_common_ends(before: Sequence[str], after: Sequence[str]) -> tuple[Sequence[str], Sequence[str]]:
    shorter = min(len(before), len(after))
    begin = next((nth for nth in range(shorter) if before[nth] != after[nth]), shorter)
    before, after = before[begin:], after[begin:]
    shorter -= begin
    end = next((nth for nth in range(shorter) if before[-1 - nth] != after[-1 - nth]), shorter)
    return before[: len(before) - end], after[: len(after) - end]


def _differences(before: Sequence[str], after: Sequence[str]) -> list[tuple[int, int, int, int]]:
    """Where two texts differ: first and last line in the one and in the other. Of long ones, all of it."""
    if max(len(before), len(after)) > MOST_LINES:
        return [(0, len(before), 0, len(after))]
    # Whole lines: to look for likeness within lines takes minutes for answers of a few pages.
    opcodes = difflib.SequenceMatcher(None, before, after, autojunk=False).get_opcodes()
    return [(first, last, begin, end) for kind, first, last, begin, end in opcodes if kind != "equal"]
