"""The scopes of memory files: whose files a session reaches, and the keys that name them in Postgres."""

import hashlib
import re
from collections.abc import Iterator, Sequence
from typing import Any, Final

import msgspec

from longhouse.agents.template import MemoryScope
from longhouse.journal.session import LOCAL_OWNER
from longhouse.store.database import advisory_key

LONGEST_KEY: Final = 400
"""Bytes of a scope's key; a longer one is kept as its digest."""


class Scope(msgspec.Struct, frozen=True):
    """A set of files that is shared, and the owner that it belongs to."""

    owner: str
    key: str
    passing: bool = False
    """Does it belong to one conversation, and is it erased with that?"""

    @property
    def named(self) -> dict[str, str]:
        """The values by which statements name it."""
        return {"owner": self.owner, "scope": self.key}

    @property
    def lock(self) -> int:
        return advisory_key(f"{len(self.owner)}:{self.owner}{self.key}".encode())

    @property
    def passages(self) -> str:
        """The scope under which passages of its files are indexed."""
        return msgspec.json.encode(("files", self.owner, self.key)).decode()


def scope_for(kind: str, owner: str, user: str | None, agent: str, conversation: str) -> Scope:
    """The scope that a template with this `memory_policy.scope` uses; raises `ValueError` if there is no such kind."""
    match kind:
        case "owner":
            return of_owner(owner)
        case "agent":
            return of_agent(owner, user, agent, conversation)
        case "conversation":
            return of_conversation(owner, user, conversation)
    raise ValueError(f"{kind!r} is not a scope")


def of_owner(owner: str) -> Scope:
    return Scope(owner, _key("owner"))


def of_agent(owner: str, user: str | None, agent: str, conversation: str) -> Scope:
    """A user's scope with an agent; without a user, one conversation, since an API key may stand for many people."""
    if user and user.strip():
        return Scope(owner, _key("agent", user, agent))
    return Scope(owner, _key("agent", None, agent, conversation), passing=True)


def of_conversation(owner: str, user: str | None, conversation: str) -> Scope:
    # The local owner once did not count as a user: with the old key, the files of old conversations are found.
    return Scope(
        owner, _key("conversation", None if user == owner == LOCAL_OWNER else user, conversation), passing=True
    )


def passing(owner: str, user: str | None, agent: str, conversation: str) -> set[Scope]:
    """The scopes of a session that are deleted with its conversation, whichever scope its template uses."""
    shared = (of_agent(owner, user, agent, conversation), of_conversation(owner, user, conversation))
    return {scope for scope in shared if scope.passing}


def reachable(
    owner: str, user: str | None, *, agent: str | None, conversation: str | None
) -> Iterator[tuple[MemoryScope, str]]:
    """Patterns for the keys of all scopes that sessions of this user can reach, with the kind of each.

    Without an agent, those of all agents; without a conversation, of all conversations of a user. Without a user, the
    conversations of an owner may be of many people, and none is reached unless it is named.
    """
    yield "owner", _pattern("owner")
    has_user = bool(user and user.strip())
    if has_user:
        yield "agent", _pattern("agent", user, agent or _ANY)
    elif conversation:
        yield "agent", _pattern("agent", None, agent or _ANY, conversation)
    if has_user or conversation:
        named = None if user == owner == LOCAL_OWNER else user
        yield "conversation", _pattern("conversation", named, conversation or _ANY)


def of_user(owner: str, user: str, agents: Sequence[str]) -> tuple[list[str], list[str]]:
    """Patterns for the keys of all scopes of a user, and the keys with these agents that are kept as digests.

    Scopes of a conversation that name no user are those of its sessions, whoever the user is.
    """
    is_named = not user == owner == LOCAL_OWNER
    patterns = [_pattern("agent", user, _ANY), *([_pattern("conversation", user, _ANY)] if is_named else [])]
    return patterns, [key for agent in agents if not (key := _key("agent", user, agent)).startswith("[")]


def of_whole_conversation(conversation: str) -> list[str]:
    """Patterns for the keys of all scopes that belong to a conversation, whichever users and agents they name."""
    return [
        _pattern("agent", None, _ANY, conversation),
        _pattern("conversation", None, conversation),
        _pattern("conversation", _ANY, conversation),
    ]


class ScopeNames(msgspec.Struct, frozen=True):
    """What a scope's key says of it."""

    scope: MemoryScope
    user: str | None = None
    agent: str | None = None
    conversation: str | None = None


def names_of(key: str) -> ScopeNames | None:
    """What the key of a scope says of it; None for one that is kept as a digest."""
    if not key.startswith("["):
        return None
    match msgspec.json.decode(key):
        case ["owner"]:
            return ScopeNames("owner")
        case ["agent", user, agent]:
            return ScopeNames("agent", user, agent)
        case ["agent", None, agent, conversation]:
            return ScopeNames("agent", None, agent, conversation)
        case ["conversation", user, conversation]:
            return ScopeNames("conversation", user, None, conversation)
    return None


_ANY: Final = object()


def _pattern(*parts: Any) -> str:
    """A pattern for LIKE: the key of these parts, with `_ANY` for any text in a place."""
    texts = ['"%"' if part is _ANY else _literal(msgspec.json.encode(part).decode()) for part in parts]
    whole = f"[{','.join(texts)}]"
    return whole if _ANY in parts else _literal(_key(*parts))


def _literal(text: str) -> str:
    return re.sub(r"([%_\\])", r"\\\1", text)


def _key(*parts: str | None) -> str:
    # JSON keeps the parts apart: no name can be chosen to look like two parts.
    key = msgspec.json.encode(parts)
    return key.decode() if len(key) <= LONGEST_KEY else hashlib.sha256(key).hexdigest()
