"""What waits for a person's decision, in words: which call, with which arguments, and how to decide."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from longhouse.journal.visible_text import in_code, name_in_code, readable, readable_json

SHOWN: Final = 2_000
"""Characters of a call's arguments that are shown; the session has all of them."""


@dataclass(frozen=True, slots=True)
class Undecided:
    """A call that waits to be approved, or whose outcome nobody knows."""

    tool: str
    call: str
    arguments: str
    is_uncertain: bool
    in_chat: bool
    """May its user decide it in the chat?"""
    doubt: str = ""
    """How its answer was lost; empty where its worker was."""
    asked_by: str = ""
    """The agent beneath that made it; empty for one of the agent that the user talks to."""
    label: str = ""
    """What it is called by at the top; empty: by its id."""

    @property
    def words(self) -> str:
        """For a chat, which may render Markdown: what others wrote stands in code spans."""
        tool, doubt = name_in_code(self.tool), in_code(readable(self.doubt))
        if self.asked_by:
            question = happened(tool, doubt) if self.is_uncertain else f"May {tool} run?"
            return f"{name_in_code(self.asked_by)}: {question} Its arguments: {self._shown} ({self.name})"
        if self.is_uncertain and doubt:
            return f"It is not known whether {tool} ({self.name}) took effect: {doubt}. Did it happen?"
        if self.is_uncertain:
            return f"A worker was lost while {tool} ({self.name}) ran: please say whether it happened."
        return f"{tool} ({self.name}) needs your approval before it begins. Its arguments: {self._shown}"

    @property
    def name(self) -> str:
        """What a person calls it by, where several wait."""
        return name_in_code(self.label or self.call)

    @property
    def _shown(self) -> str:
        """The arguments as a person can trust them: what runs is what was read."""
        shown = in_code(readable_json(self.arguments[:SHOWN]))
        cut = f"… (cut here; they have {len(self.arguments)} characters)"
        return shown if self._is_whole else f"{shown}{cut}"

    @property
    def by_word(self) -> bool:
        """Does a word in the chat decide it? What nobody was shown whole is not approved by one."""
        return self.in_chat and self._is_whole

    @property
    def _is_whole(self) -> bool:
        return len(self.arguments) <= SHOWN


def happened(tool: str, doubt: str) -> str:
    """What is asked about a call that may have taken effect, in words that are shown as they are."""
    return f"Did {tool} happen? It is not known: {doubt}." if doubt else f"Did {tool} happen?"


def words_for(waiting: Sequence[Undecided], session_id: str) -> str:
    """What waits, a line for each, and how to decide."""
    route = f"POST /v1/sessions/{session_id}/approval"
    lines = [one.words for one in waiting]
    if not any(one.by_word for one in waiting):
        return "\n".join([*lines, f"Decide at {route}."])
    if len(waiting) > 1:
        return "\n".join([*lines, *_choices(waiting), f"Or decide at {route}."])
    return "\n".join([*lines, f"Answer {_answers(waiting[0])}, or decide at {route}."])


def _choices(waiting: Sequence[Undecided]) -> list[str]:
    named = [one for one in waiting if one.by_word]
    return [f"Say which one you mean, as in: {'happened' if named[0].is_uncertain else 'yes'} {named[0].name}"]


def _answers(one: Undecided) -> str:
    if one.is_uncertain:
        return "happened, did not happen or give up (произошло, не произошло, прекратить; 已发生, 未发生, 放弃)"
    return "yes or no (да, нет; 是, 否)"
