"""Fingerprints conversations, so that a client that sends no session id is matched to its session by the history.

A fingerprint is a hash chain: each message is hashed onto the chain before it. White space is ignored, since clients
strip and rejoin text. System messages are ignored too, since they belong to a turn and may change with every request.
"""

import hashlib
from collections.abc import Iterable
from typing import Final

_SPACES: Final = "".join(filter(str.isspace, map(chr, range(128)))).encode()


def begin(owner: str, key: str, user: str | None, model: str) -> str:
    """The chain of a conversation without messages."""
    return _link("", "\x00".join([owner, key, user or "", model]))


def grown(chain: str, messages: Iterable[tuple[str, str]]) -> str:
    """The chain after these (role, text) pairs."""
    link = chain.encode()
    for role, text in messages:
        # Most messages are ASCII: there, white space is removed many times faster.
        said = text.encode().translate(None, _SPACES) if text.isascii() else _encoded("".join(text.split()))
        link = hashlib.sha256(b"%b\x00%b\x00%b" % (link, _encoded(role), said)).hexdigest().encode()
    return link.decode()


def of_calls(ids: Iterable[str]) -> str:
    """The fingerprint of calls that the client runs: their ids alone say which session made them, whatever a client
    has changed in the texts before them."""
    return _link("calls", "\x00".join(sorted(ids)))


def _link(chain: str, text: str) -> str:
    return hashlib.sha256(_encoded(f"{chain}\x00{text}")).hexdigest()


def _encoded(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")
