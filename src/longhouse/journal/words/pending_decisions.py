"""Describes what waits for a person's approval or decision: which call, its arguments, and how to decide."""

from collections.abc import Sequence
from typing import Final

import msgspec

from longhouse.journal.words.visible_text import in_code, name_in_code, readable, readable_json

SHOWN: Final = 2_000
"""Characters of a call's arguments that are shown; the session holds all of them."""


class Undecided(msgspec.Struct, frozen=True):
    """A call that waits for approval, or whose outcome is unknown; or a step that lost its workers."""

    tool: str
    call: str
    arguments: str
    is_uncertain: bool
    in_chat: bool
    """Whether the user may decide it in the chat."""
    is_step: bool = False
    """It is no call but a step: its workers were lost, and nothing in it may have taken effect."""
    takes_workers: bool = False
    """It took three workers down: it is tried again, or given up."""
    doubt: str = ""
    """How its result was lost; empty if its worker was lost."""
    asked_by: str = ""
    """The sub-agent that made the call; empty for the agent that the user talks to."""
    label: str = ""
    """Its name in the root session's chat; empty: its id."""

    @property
    def words(self) -> str:
        """The text for a chat, which may render Markdown: text from others is put in code spans."""
        if self.is_step:
            asker = f"{name_in_code(self.asked_by)}: " if self.asked_by else ""
            return f"{asker}The worker was lost three times in this step ({self.name}). Try it again?"
        tool, doubt = name_in_code(self.tool), in_code(readable(self.doubt))
        if self.takes_workers:
            asker = f"{name_in_code(self.asked_by)}: " if self.asked_by else ""
            return f"{asker}{took_workers(f'{tool} ({self.name})')} Its arguments: {self._shown}"
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
        """The name by which a person refers to it when several wait."""
        return name_in_code(self.label or self.call)

    @property
    def _shown(self) -> str:
        """The arguments with invisible characters escaped: the person reads what will run."""
        shown = in_code(readable_json(self.arguments[:SHOWN]))
        cut = f"… (cut here; they have {len(self.arguments)} characters)"
        return shown if self._is_whole else f"{shown}{cut}"

    @property
    def may_be_decided_in_chat(self) -> bool:
        """Whether a chat message can decide it. Calls that were not shown in full cannot be approved in the chat."""
        return self.in_chat and self._is_whole

    @property
    def _is_whole(self) -> bool:
        return len(self.arguments) <= SHOWN


def took_workers(tool: str) -> str:
    """The question about a call that took three workers down, as plain text that is shown unchanged."""
    return f"{tool} took three workers down, one after another. Try it again?"


def happened(tool: str, doubt: str) -> str:
    """The question about a call that may have taken effect, as plain text that is shown unchanged."""
    return f"Did {tool} happen? It is not known: {doubt}." if doubt else f"Did {tool} happen?"


def decision_text(waiting: Sequence[Undecided], session_id: str, address: str = "") -> str:
    """The waiting calls, one line each, and how to decide: at the address, or else at the route."""
    place = address or f"POST /v1/sessions/{session_id}/approval"
    lines = [one.words for one in waiting]
    if not any(one.may_be_decided_in_chat for one in waiting):
        return "\n".join([*lines, f"Decide at {place}."])
    if len(waiting) > 1:
        return "\n".join([*lines, *_choices(waiting), f"Or decide at {place}."])
    return "\n".join([*lines, f"Answer {_answers(waiting[0])}, or decide at {place}."])


def _choices(waiting: Sequence[Undecided]) -> list[str]:
    named = [one for one in waiting if one.may_be_decided_in_chat]
    first = named[0]
    word = "try again" if first.is_step or first.takes_workers else "happened" if first.is_uncertain else "yes"
    return [f"Say which one you mean, as in: {word} {first.name}"]


def _answers(one: Undecided) -> str:
    if one.is_step or one.takes_workers:
        return "try again or give up (повторить, прекратить; 重试, 放弃)"
    if one.is_uncertain:
        return "happened, did not happen or give up (произошло, не произошло, прекратить; 已发生, 未发生, 放弃)"
    return "yes or no (да, нет; 是, 否)"
