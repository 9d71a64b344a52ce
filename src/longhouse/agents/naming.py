"""Validates the names of tools and templates: names that look different differ, on every screen and file system."""

import re
from collections.abc import Collection, Iterable, Sequence
from typing import Final

LONGEST: Final = 128
AGENT_PREFIX: Final = "agent."
"""Prefix of the tool that calls the agent of a template: `agent.<template>`."""

SESSION_ID: Final = re.compile(r".+_[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}")
"""`<template>_<uuid4>`: a client that names such a model means the session."""

_NAME: Final = re.compile(r"[A-Za-z][A-Za-z0-9_.-]*")
_PLAIN: Final = re.compile(r"(?!\.+$)[A-Za-z0-9._:@-]{1,128}")
_BAD_PART: Final = re.compile(r"__.*|.*__|")


def name_problem(name: str, *, for_agent: bool = False) -> str | None:
    """Why a name is not valid, or None; `for_agent`: the tool of an agent, whose name begins with `agent.`."""
    if not 1 <= len(name) <= LONGEST:
        return f"a name has 1 to {LONGEST} characters"
    if not _NAME.fullmatch(name):
        return "a name begins with a letter and is made of the letters A-Z and a-z, digits, _, . and -"
    if any(_BAD_PART.fullmatch(part) for part in name.split(".")):
        return "no part of a name is empty, or begins or ends with two underscores"
    begins = key(name).startswith(AGENT_PREFIX) or key(name) == AGENT_PREFIX.rstrip(".")
    if begins and not (for_agent and name.startswith(AGENT_PREFIX)):
        return f"names that begin with {AGENT_PREFIX} belong to agents"
    if for_agent and not begins:
        return f"the tool of an agent is called {AGENT_PREFIX} and the name of its template"
    return None


def is_possible_name(name: str) -> bool:
    """Whether a look-up by this name makes sense. Postgres refuses text with a zero byte."""
    return _PLAIN.fullmatch(name) is not None


def key(name: str) -> str:
    """The lower-case key; it must be unique, since FinalAnswerTool would be mistaken for finalanswertool."""
    return name.lower()


def spelled(given: str, known: Iterable[str]) -> str | None:
    """The known name that is meant, in whichever spelling: WebSearchTool, web_search_tool, web-search, websearch."""
    # Sorted: of two names that differ in spelling alone, every process takes the same one.
    names = sorted(known)
    if given in names:
        return given
    by_letters = {letters(name): name for name in reversed(names)}
    return next((by_letters[meant] for meant in meanings(given) if meant in by_letters), None)


def letters(name: str) -> str:
    """What all spellings of a name have in common."""
    return name.replace("_", "").replace("-", "").lower()


def meanings(given: str) -> tuple[str, str]:
    """The letters of the names that somebody may mean by WebSearchTool, web_search_tool or web_search."""
    plain = letters(given)
    return plain, f"{plain}tool"


def tool_name(given: str, known: Collection[str]) -> str:
    """The name of a known tool in any of its spellings; one that is not known stays as it is."""
    return spelled(given, known) or given


class NamePatterns:
    """A list of names as in policies, where `<prefix>.*` matches all names with that prefix."""

    __slots__ = ("_listed", "_prefixes")

    def __init__(self, listed: Iterable[str]) -> None:
        self._listed = frozenset(listed)
        self._prefixes = tuple(name[:-1] for name in self._listed if name.endswith(".*"))

    def __contains__(self, name: str) -> bool:
        """Whether the list matches a name, or all names of a `<prefix>.*`."""
        return name in self._listed or name.startswith(self._prefixes)


def intersection(some: Sequence[str], others: Sequence[str]) -> tuple[str, ...]:
    """The intersection: a list that matches the names that both lists match."""
    first, second = NamePatterns(some), NamePatterns(others)
    return tuple(dict.fromkeys((*(one for one in some if one in second), *(one for one in others if one in first))))
