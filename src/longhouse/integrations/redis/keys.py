"""Names of Redis keys, and how they keep the keys of different owners apart."""

import re
from typing import Final
from urllib.parse import quote

LOCAL: Final = "local"
"""The owner whose keys and logs have no prefix."""
CHAT_ID: Final = re.compile(r"(?!\.+$)[A-Za-z0-9._:@-]{1,128}")
"""The allowed form of a client's conversation id."""


def chat_key(chat_id: int | str, owner: str = LOCAL) -> str:
    return f"{_prefix(owner)}chat_history:{chat_id}"


def history_key(chat_id: int | str) -> str:
    """The key that a caller names: a string is the full key, a number is a chat id."""
    return chat_id if isinstance(chat_id, str) else chat_key(chat_id)


def subagent_key(name: str, chat_id: int | str, owner: str = LOCAL, label: str = "") -> str:
    key = f"{_prefix(owner)}subagent:{name}:{chat_id}"
    return f"{key}/{label}" if label else key


def plain_owner(owner: str) -> str:
    """An owner as part of a key or a path: without slashes, and unique for each owner."""
    return quote(owner, safe="@:")


def _prefix(owner: str) -> str:
    return "" if owner == LOCAL else f"{plain_owner(owner)}/"
