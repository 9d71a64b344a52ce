"""Who is asking."""

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Caller:
    owner: str
    key: str = ""
    """The id of the API key, part of a client's fingerprint; never the key itself."""


LOCAL: Final = Caller(owner="local")
"""Without keys there is one owner."""
