"""The postings of terms that were searched for before, kept while the index stays as it is.

While the state of the index stays the same, a caller sees the same shards; and while the signature of these stays the
same, so do their postings. Callers who see the same shards share what is kept: for all of these shards together, since
a posting is weighted by how rare its term is in all of them.
"""

from collections import OrderedDict
from collections.abc import Sequence
from typing import Final

from longhouse.search import scores
from longhouse.search.kept_results import KeptResults, State
from longhouse.search.scores import QueryPostings, TermPostings
from longhouse.search.shards import Shards, Signature
from longhouse.store.catalog.repository import Kind
from longhouse.store.database import Database
from longhouse.store.search import postings

MOST: Final = 8 * 2**20
"""Bytes that are kept; those of all terms of 100,000 short descriptions would be ten million, besides the overhead."""
SHARE: Final = 0.25
"""What one query adds is this part of it at most: a long text leaves room for what others ask."""
OVERHEAD: Final = 400
"""Bytes that are counted for a term besides its postings: one that no document has would be free otherwise."""
SHARDS_OVERHEAD: Final = 2_000
"""Bytes that are counted for the shards that a caller sees, and for each of them a tenth of it."""
MOST_CALLERS: Final = 1_024
"""Callers of whom it is known which shards they see; about a kilobyte each, not counted in MOST."""


class _KeptTerms:
    """The postings of some terms in the same shards; those that were used least recently come first."""

    def __init__(self, shards: Shards) -> None:
        self.shards = shards
        self.nbytes = shards.live.nbytes + SHARDS_OVERHEAD + len(shards.signature) * SHARDS_OVERHEAD // 10
        self._terms: OrderedDict[str, TermPostings] = OrderedDict()

    def among(self, terms: Sequence[str]) -> dict[str, TermPostings]:
        found = {term: self._terms[term] for term in terms if term in self._terms}
        for term in found:
            self._terms.move_to_end(term)
        return found

    def add(self, terms: Sequence[str], found: QueryPostings, most: int) -> None:
        """Keeps those of these terms that fit into so many bytes; one that no document has is known too."""
        for term in terms:
            one = found.of(term)
            size = one.nbytes + OVERHEAD
            if term not in self._terms and size <= most:
                self._terms[term] = one.copied()
                self.nbytes += size
                most -= size

    def shrink(self, most: int) -> None:
        while self._terms and self.nbytes > most:
            self.nbytes -= self._terms.popitem(last=False)[1].nbytes + OVERHEAD


class PostingsCache:
    def __init__(self, db: Database, most: int = MOST) -> None:
        self._db = db
        self._most = most
        self._signature_of = KeptResults[Signature](MOST_CALLERS)
        self._kept: OrderedDict[Signature, _KeptTerms] = OrderedDict()
        self.nbytes = 0

    async def read(self, kind: Kind, caller: str | None, terms: Sequence[str], now: State | None) -> QueryPostings:
        """The postings of these terms in all shards that the caller may see.

        `now` is the state of the index, read before; without it, nothing that is kept is used.
        """
        known = self._known(kind, caller, now)
        found = known.among(terms) if known else {}
        missing = [term for term in terms if term not in found]
        if known and not missing:
            return QueryPostings(known.shards, found)
        read = await self._read(kind, caller, missing)
        if known and read.shards.signature != known.shards.signature:
            # The index has changed meanwhile: what is kept does not belong to what was read.
            read, found, missing = await self._read(kind, caller, terms), {}, list(terms)
        if now is None:
            return read
        self._signature_of.keep((kind, caller), now, self._keep(read, missing))
        return QueryPostings(read.shards, {**read.terms, **found})

    async def _read(self, kind: Kind, caller: str | None, terms: Sequence[str]) -> QueryPostings:
        return await scores.weighted_aside(await postings.read(self._db, kind, caller, terms))

    def _known(self, kind: Kind, caller: str | None, now: State | None) -> _KeptTerms | None:
        signature = self._signature_of.get((kind, caller), now)
        if signature is None or signature not in self._kept:
            return None
        self._kept.move_to_end(signature)
        return self._kept[signature]

    def _keep(self, read: QueryPostings, terms: Sequence[str]) -> Signature:
        """Keeps what was read of these terms; drops the shards that were used least recently, then terms."""
        signature = read.shards.signature
        kept = self._kept.pop(signature, None)
        self.nbytes -= kept.nbytes if kept else 0
        kept = self._kept[signature] = kept or _KeptTerms(read.shards)
        kept.add(terms, read, int(self._most * SHARE))
        kept.shrink(self._most)
        self.nbytes += kept.nbytes
        while len(self._kept) > 1 and self.nbytes > self._most:
            self.nbytes -= self._kept.popitem(last=False)[1].nbytes
        return signature
