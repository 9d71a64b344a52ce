"""What the harness did and what its clients saw, in memory and as JSON lines."""

import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import msgspec

Driver = Literal["retrying", "keyed", "bare"]
"""How a client sends: with the SDK's retry count, with an Idempotency-Key, or with neither."""


@dataclass
class Message:
    """One message of a user, which a client has sent as often as it had to."""

    token: str
    """Unique words in its text."""
    driver: Driver
    posts: int = 0
    acknowledged: bool = False
    """Headers with 2xx were seen."""
    session_ids: set[str] = field(default_factory=set)
    """The sessions that answers have named."""


@dataclass(frozen=True)
class Loss:
    """A process that was killed, or frozen until `until`."""

    pid: int
    kind: Literal["killed", "frozen"]
    at: float
    until: float = 0.0


@dataclass(frozen=True)
class Answered:
    """An answer to a question over its route, and the status that came back."""

    session_id: str
    call_id: str
    text: str
    status: int


@dataclass(frozen=True)
class Streamed:
    """A fact that a follower got: the id it can be resumed from, and the event."""

    id: int
    seq: int
    event: Any


@dataclass
class History:
    file: Path | None = None
    messages: dict[str, Message] = field(default_factory=dict)
    answers: list[Answered] = field(default_factory=list)
    reused_keys: list[tuple[str, int]] = field(default_factory=list)
    """Keys that were sent again with another body, and the status that came back."""
    streams: dict[str, list[Streamed]] = field(default_factory=dict)
    """Session -> everything that its follower got, over all its connections."""
    losses: list[Loss] = field(default_factory=list)
    troubles: list[tuple[float, float]] = field(default_factory=list)
    """From when until when Postgres was away or cut its connections."""
    kills: Counter[str] = field(default_factory=Counter)
    points: Counter[str] = field(default_factory=Counter)
    sessions: Counter[str] = field(default_factory=Counter)
    """Sessions that clients have begun, by kind."""
    reconnects: int = 0
    defects: list[str] = field(default_factory=list)
    """What no fault explains."""
    seen: list[bytes] = field(default_factory=list)
    """Bytes of streams that held a secret."""
    held: dict[str, str] = field(default_factory=dict)
    """Session -> question, of sessions that waited through all the faults."""
    unaccepted: list[str] = field(default_factory=list)
    """Sessions at rest in which a next turn did not come to its end."""

    def message(self, token: str, driver: Driver) -> Message:
        return self.messages.setdefault(token, Message(token, driver))

    def log(self, event: str, **fields: Any) -> None:
        if self.file:
            line = msgspec.json.encode({"at": time.time(), "event": event, **fields})
            with self.file.open("ab") as lines:
                lines.write(line + b"\n")
