"""The format of a capsule: what its parts are, and how one is recognised and checked."""

from contextlib import AbstractContextManager
from datetime import datetime
from pathlib import Path
from typing import Final

import msgspec

import longhouse
from longhouse.errors import SetupError
from longhouse.journal import events
from longhouse.journal.fold import FOLD_VERSION
from longhouse.journal.session import State
from longhouse.store.backups import archive
from longhouse.store.backups.archive import Archive, ArchivePart, Kind
from longhouse.store.catalog.repository import Kind as CatalogKind

FORMAT: Final = "longhouse-capsule"
VERSION: Final = 1
MOST_BYTES: Final = 2 * 2**30
"""Of all parts: a capsule may come from anybody."""
MOST_FILE: Final = 512 * 2**20


class SessionLine(msgspec.Struct, frozen=True, kw_only=True):
    """A session's row."""

    id: str
    owner: str
    user: str | None
    conversation_id: str
    side: events.Side
    agent: str
    label: str
    parent: str | None
    head: int
    state: State
    version: int
    trace_id: str | None
    task: str | None
    created_at: datetime
    updated_at: datetime


class EventLine(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An event, with the text of its body as the journal has it."""

    session_id: str
    seq: int
    at: datetime
    trace_id: str | None = None
    worker: str | None = None
    fence: int | None = None
    body: msgspec.Raw
    body_digest: str | None = None
    """The file that has the body, where it is too long for a row."""


class DelegationLine(msgspec.Struct, frozen=True, kw_only=True):
    parent: str
    call: str
    child: str
    prompt: int
    trace: str
    outcome: msgspec.Raw
    """`null` while the agent is at it."""
    at: datetime
    awaits: tuple[str, ...]


class VersionLine(msgspec.Struct, frozen=True, kw_only=True):
    """A template or a tool, in a version that the sessions were made with."""

    kind: CatalogKind
    name: str
    version: int
    descriptor: msgspec.Raw


class TextLine(msgspec.Struct, frozen=True, kw_only=True):
    session_id: str
    seq: int
    """Of the reply to the request that showed it."""
    text: str


class Replayed(msgspec.Struct, frozen=True, kw_only=True):
    """What a session comes to when its journal is folded, and how many of its requests could be composed again."""

    id: str
    state: str
    head: int
    fold: str
    """The digest of the folded session."""
    requests: int
    same: int
    """Requests that are the same, byte for byte."""


class CapsuleManifest(msgspec.Struct, frozen=True, kw_only=True):
    format: str = FORMAT
    format_version: int = VERSION
    longhouse: str = longhouse.__version__
    fold_version: int = FOLD_VERSION
    made_at: datetime
    session: str
    sessions: tuple[Replayed, ...]
    files: dict[str, str]
    """Digest -> media type."""
    parts: dict[str, ArchivePart]


KIND: Final = Kind(FORMAT, VERSION, "capsule of a session", CapsuleManifest, lambda manifest: manifest.parts)


def line(value: msgspec.Struct) -> bytes:
    return msgspec.json.encode(value) + b"\n"


def reading(path: Path) -> AbstractContextManager[Archive[CapsuleManifest]]:
    return archive.reading(path, KIND)


def verify(path: Path) -> CapsuleManifest:
    """Reads the whole file; refuses one that is not whole, or larger than a session can be."""
    with reading(path) as capsule:
        parts = capsule.manifest.parts
        if sum(part.bytes for part in parts.values()) > MOST_BYTES or any(
            part.bytes > MOST_FILE for part in parts.values()
        ):
            raise SetupError(f"{path} is too large: a capsule has {MOST_BYTES // 2**30} GB at most.")
        capsule.verify()
        return capsule.manifest
