"""Who may recall what: the scope that past interactions and notes are indexed under, and found in."""

import msgspec


def recall_scope(owner: str, user: str | None, conversation: str) -> str:
    """The scope of a person; without one, of the conversation, since an API key may stand for many people.

    Without API keys every session has a user: the owner, unless its request named another.
    """
    if user and user.strip():
        return _key("person", owner, user)
    return _key("conversation", owner, conversation)


def _key(*parts: str) -> str:
    # JSON keeps the parts apart: no name can be chosen to look like two parts.
    return msgspec.json.encode(parts).decode()
