"""Looks up what came along with imported sessions."""

from typing import Final

import msgspec

from longhouse.store.capsules.format import CapsuleManifest
from longhouse.store.catalog.repository import Kind as CatalogKind
from longhouse.store.database import Database

CAPSULE_OF: Final = "SELECT capsule FROM sessions WHERE id = :session"
DESCRIPTOR: Final = """
    SELECT descriptor FROM capsule_versions
    WHERE capsule = :capsule AND kind = :kind AND name = :name AND version = :version
"""
MANIFEST: Final = "SELECT manifest FROM capsules WHERE id = :capsule"
TEXT: Final = "SELECT text FROM capsule_texts WHERE session_id = :session AND seq = :seq"


async def capsule_of(db: Database, session_id: str) -> str | None:
    """The capsule that a session came in; None for a session of this house."""
    found: str | None = await db.value(CAPSULE_OF, session=session_id)
    return found


async def manifest_of(db: Database, capsule: str) -> CapsuleManifest:
    """The manifest with which the capsule was imported."""
    return msgspec.json.decode(await db.value(MANIFEST, capsule=capsule), type=CapsuleManifest)


async def descriptor(db: Database, capsule: str, kind: CatalogKind, name: str, version: int) -> str | None:
    """A template or a tool as the capsule has it."""
    return await db.read_one(str, DESCRIPTOR, capsule=capsule, kind=kind, name=name, version=version)


async def remembered(db: Database, session_id: str, seq: int) -> str:
    """What the request before this reply showed from memory."""
    return str(await db.value(TEXT, session=session_id, seq=seq) or "")
