"""Calls that the client runs: the ids by which it knows them."""

import hashlib
from typing import Final

PREFIX: Final = "call_"


def client_id(session: str, call: str) -> str:
    """The id of a call towards the client. Ids of calls are unique in their session only, and a client may hold the
    messages of several sessions in one list."""
    return f"{PREFIX}{hashlib.sha256(f'{session}:{call}'.encode()).hexdigest()[:32]}"
