"""Who shares which files: the scope of an owner, of a user with an agent, and of one conversation alone."""

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
    """Without a user, one key may stand for many people: only the conversation is shared."""
    if user and user.strip():
        return Scope(owner, _key("agent", user, agent))
    return Scope(owner, _key("agent", None, agent, conversation), passing=True)


def of_conversation(owner: str, user: str | None, conversation: str) -> Scope:
    # As it was before the owner counted as a user: the files of old conversations are found.
    return Scope(
        owner, _key("conversation", None if user == owner == LOCAL_OWNER else user, conversation), passing=True
    )


def passing(owner: str, user: str | None, agent: str, conversation: str) -> set[Scope]:
    """Those of a session's scopes, whatever its template says, that end with the conversation."""
    shared = (of_agent(owner, user, agent, conversation), of_conversation(owner, user, conversation))
    return {scope for scope in shared if scope.passing}


def _key(*parts: str | None) -> str:
    # JSON, so that no name can be made to look like two.
    key = msgspec.json.encode(parts)
    return key.decode() if len(key) <= LONGEST_KEY else hashlib.sha256(key).hexdigest()
