"""Scopes of memory files: who shares them. One owner, one user with one agent, or one conversation."""

import hashlib
from typing import Final

import msgspec

from longhouse.journal.session import LOCAL_OWNER
from longhouse.store.memory_files import Scope

LONGEST_KEY: Final = 400
"""Bytes of a scope's key; a longer one is kept as its digest."""


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


def _key(*parts: str | None) -> str:
    # JSON keeps the parts apart: no name can be chosen to look like two parts.
    key = msgspec.json.encode(parts)
    return key.decode() if len(key) <= LONGEST_KEY else hashlib.sha256(key).hexdigest()
