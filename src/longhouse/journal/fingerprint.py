"""Fingerprints conversations, so that a client that sends no session id is matched to its session by the history.

A fingerprint is a hash chain: each message is hashed onto the chain before it. White space is ignored, since clients
strip and rejoin text. System messages are ignored too, since they belong to a turn and may change with every request.
"""

import hashlib
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from typing import Final

Said = tuple[str, str]
"""A message: its role and its text."""
MOST_SENT: Final = 4_096
"""Requests whose chain is kept: some hundred bytes each."""
PREFIX: Final = "call_"
"""Begins the ids of calls towards the client."""
_SPACES: Final = "".join(filter(str.isspace, map(chr, range(128)))).encode()


def begin(owner: str, key: str, user: str | None, model: str) -> str:
    """The chain of a conversation without messages."""
    return _link("", "\x00".join([owner, key, user or "", model]))


def grown(chain: str, messages: Iterable[Said]) -> str:
    """The chain after these messages."""
    link = chain.encode()
    for role, text in messages:
        # Most messages are ASCII: there, white space is removed many times faster.
        said = text.encode().translate(None, _SPACES) if text.isascii() else _encoded("".join(text.split()))
        link = hashlib.sha256(b"%b\x00%b\x00%b" % (link, _encoded(role), said)).hexdigest().encode()
    return link.decode()


_sent: Final[OrderedDict[tuple[str, int], str]] = OrderedDict()
"""The chains of what clients have sent, by how it begins and Python's own hash of the rest, which has a secret of the
process; not the messages themselves, in which is what people say."""


def resent(begun: str, known: Sequence[Said], new: Sequence[Said]) -> tuple[str, str]:
    """The chain of all that a request knows already, and the chain after its new messages.

    A client without a session id sends the whole conversation again with each message. What came before our last reply
    is what it sent last time: that chain is found in a fraction of the time that it takes to hash each message.
    """
    last = next((nth for nth in reversed(range(len(known))) if known[nth][0] == "assistant"), 0)
    before = _sent.get((begun, hash(tuple(known[:last])))) or grown(begun, known[:last])
    before_new = grown(before, known[last:])
    all_of_it = grown(before_new, new)
    _sent[begun, hash((*known, *new))] = all_of_it
    if len(_sent) > MOST_SENT:
        _sent.popitem(last=False)
    return before_new, all_of_it


def of_calls(ids: Iterable[str]) -> str:
    """The fingerprint of calls that the client runs: their ids alone say which session made them, whatever a client
    has changed in the texts before them."""
    return _link("calls", "\x00".join(sorted(ids)))


def client_id(session: str, call: str) -> str:
    """The id of a call towards the client. Ids of calls are unique in their session only, and a client may hold the
    messages of several sessions in one list."""
    return f"{PREFIX}{hashlib.sha256(f'{session}:{call}'.encode()).hexdigest()[:32]}"


def _link(chain: str, text: str) -> str:
    return hashlib.sha256(_encoded(f"{chain}\x00{text}")).hexdigest()


def _encoded(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")
