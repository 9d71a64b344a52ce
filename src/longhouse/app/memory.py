"""Opens what agents remember with: documents, the ledger of interactions, and the memory of sessions."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, nullcontext

from longhouse.app.models import open_embedder
from longhouse.app.store import open_existing
from longhouse.memory.documents.library import DocumentLibrary
from longhouse.memory.ledger import Ledger
from longhouse.memory.ledger_projection import LedgerProjector
from longhouse.memory.outside import OutsideInteractions
from longhouse.memory.parts import MemoryParts
from longhouse.memory.recall import Recall, ShownFiles
from longhouse.memory.session_memory import SessionMemory
from longhouse.models.protocol import Embedder
from longhouse.runtime.bus.local import Bus
from longhouse.search.passages import PassageIndex
from longhouse.settings import Settings
from longhouse.store.database import Database
from longhouse.store.memory.memory_files import Memories


@asynccontextmanager
async def open_memory(
    settings: Settings, db: Database, bus: Bus, embedder: Embedder | None
) -> AsyncIterator[MemoryParts]:
    """Opens all of it, and keeps its index and its ledger up to date."""
    async with PassageIndex(db, embedder).working() as index, _open_ledger(settings, index, bus) as ledger:
        yield MemoryParts(library_of(settings, index), ledger, memory_of(settings, ledger))


@asynccontextmanager
async def open_library(settings: Settings) -> AsyncIterator[DocumentLibrary]:
    """Opens the documents alone, for the command line."""
    async with open_existing(settings) as db, open_embedder(settings) as embedder:
        yield library_of(settings, PassageIndex(db, embedder))


@asynccontextmanager
async def open_ledger(settings: Settings) -> AsyncIterator[Ledger]:
    """Opens the ledger alone, for the command line."""
    async with open_existing(settings) as db, open_embedder(settings) as embedder:
        yield ledger_of(settings, PassageIndex(db, embedder))


def ledger_of(settings: Settings, index: PassageIndex) -> Ledger:
    projector = LedgerProjector(index.db, index)
    return Ledger(index.db, projector, enabled=settings.conversation_memory_enabled)


def library_of(settings: Settings, index: PassageIndex) -> DocumentLibrary:
    limits = {"max_bytes": settings.documents_max_bytes, "max_documents": settings.documents_max_count}
    return DocumentLibrary(index.db, index, **limits)


@asynccontextmanager
async def _open_ledger(settings: Settings, index: PassageIndex, bus: Bus) -> AsyncIterator[Ledger]:
    """Opens the ledger of interactions, which follows the journals unless it is switched off."""
    ledger = ledger_of(settings, index)
    async with ledger.projector.running() if ledger.enabled else nullcontext():
        if ledger.enabled:
            bus.on_append.append(ledger.projector.nudge)
        yield ledger


def memory_of(settings: Settings, ledger: Ledger) -> SessionMemory:
    """What sessions remember, and how it is shown."""
    language, memories = settings.memory_language, Memories(ledger.db)
    outside = OutsideInteractions(ledger, language=language)
    recall = Recall(ledger.index, memories, language=language, fresh=ledger.catch_up)
    return SessionMemory(
        enabled=settings.memory_enabled,
        max_chunks=settings.memory_max_chunks,
        min_relevance=settings.memory_min_relevance,
        language=language,
        sources=(outside, ShownFiles(memories, language=language), recall),
        recalled=recall.items,
        interactions=outside.items,
    )
