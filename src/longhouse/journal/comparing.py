"""Compares what an agent said and called with what it said and called before: for replays. No I/O."""

import difflib
from collections.abc import Sequence
from typing import Literal

import msgspec

from longhouse.journal.json_text import value_of

Change = Literal["same", "changed", "added", "removed"]


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
    lines = difflib.ndiff(recorded.splitlines(), replayed.splitlines())
    return [line for line in lines if line.startswith(("- ", "+ "))] or [
        "- (other white space)",
        "+ (other white space)",
    ]
