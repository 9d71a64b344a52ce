"""How a client that knows no ids is known again: by a digest of all that it and we have said.

A fingerprint is a chain: each message is hashed onto what came before it. White space does not count, since clients
strip and rejoin text; system texts do not count either, since they belong to a turn and may change with every request.
"""

import hashlib
from collections.abc import Iterable


def begin(owner: str, key: str, user: str | None, model: str) -> str:
    """The chain of a conversation in which nothing was said yet."""
    return _link("", "\x00".join([owner, key, user or "", model]))


def grown(chain: str, said: Iterable[tuple[str, str]]) -> str:
    """The chain after these (role, text) pairs."""
    for role, text in said:
        chain = _link(chain, f"{role}\x00{''.join(text.split())}")
    return chain


def _link(chain: str, text: str) -> str:
    return hashlib.sha256(f"{chain}\x00{text}".encode("utf-8", "surrogatepass")).hexdigest()
