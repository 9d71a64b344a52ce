"""What agents remember with, as it is opened together: documents, the ledger, and the memory of sessions."""

from typing import Final

import msgspec

from longhouse.memory.documents.library import DocumentLibrary
from longhouse.memory.ledger import Ledger
from longhouse.memory.session_memory import SessionMemory
from longhouse.store.memory import documents
from longhouse.store.search import passages

MOST_COUNTED: Final = 100_000
"""Rows of a table that are counted for one look at the metrics."""


class MemoryCounts(msgspec.Struct, frozen=True):
    """What is stored of memory; of each, no more than `MOST_COUNTED` are counted."""

    own_documents: int
    shared_documents: int
    passages_without_vectors: int


class MemoryParts(msgspec.Struct, frozen=True):
    documents: DocumentLibrary
    ledger: Ledger
    sessions: SessionMemory

    @property
    def sessions_behind(self) -> int | None:
        """Sessions with events that the ledger lacked when it last looked; None if it is switched off."""
        return self.ledger.projector.behind if self.ledger.enabled else None

    async def counts(self) -> MemoryCounts:
        """Counts what is stored, at a bounded cost however much there is."""
        own, shared = await documents.counts(self.ledger.db, MOST_COUNTED)
        return MemoryCounts(own, shared, await passages.count_without_vectors(self.ledger.db, MOST_COUNTED))
