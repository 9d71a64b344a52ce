"""Background task that keeps the search index up to date with the catalog; one process at a time writes it."""

import asyncio
import hashlib
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager, suppress
from typing import Any, Final, TypeVar

import msgspec
import structlog
from msgspec.structs import replace

from longhouse import arrays, background
from longhouse.errors import ProviderError
from longhouse.models.protocol import Embedder
from longhouse.search import document
from longhouse.search.bounded_embedder import space_of
from longhouse.search.document import TemplateFacts, ToolFacts
from longhouse.store.catalog import overlays
from longhouse.store.catalog.catalog import active_versions
from longhouse.store.catalog.repository import Kind
from longhouse.store.database import Database
from longhouse.store.search import index
from longhouse.store.search.index import IndexEntry
from longhouse.store.search.vectors import Space

log = structlog.get_logger()

EVERY: Final = 1.0
"""Seconds between polls of the catalog's change counter; a nudge starts the next poll at once."""
FIRST_AFTER: Final = 5.0
"""Seconds from the start of a process to its first poll, unless a search or a publish comes earlier."""
READY_WITHIN: Final = 3.0
"""Timeout in seconds of the first search's wait for the index, and of a publisher's."""
LOOK_AFTER: Final = 0.02
"""Seconds between a publisher's looks at the index, which another process may be writing."""
BATCH: Final = 1000
"""Tools in one transaction: it takes a tenth of a second, then others have their turn."""
RETRY_AFTER: Final = 30.0
"""Seconds before a failed embedding model is tried again; words are indexed meanwhile."""

F = TypeVar("F", ToolFacts, TemplateFacts)
_TOOL: Final = msgspec.json.Decoder(ToolFacts)
_TEMPLATE: Final = msgspec.json.Decoder(TemplateFacts)


class Indexer:
    def __init__(self, db: Database, embedder: Embedder | None, *, every: float = EVERY) -> None:
        self.db = db
        self.embedder = embedder
        self._every = every
        # Nobody may ask for long; whoever asks is not kept waiting for this.
        self._wait = FIRST_AFTER
        self._nudged = asyncio.Event()
        self._caught_up = asyncio.Event()
        self._retry_at = 0.0
        self._has_recipe = False
        self._has_led = self._follows = self._has_waited = False

    @asynccontextmanager
    async def working(self) -> AsyncIterator["Indexer"]:
        """Runs in the background while the block lasts."""
        async with background.running("search_index", self._poll):
            yield self

    async def _poll(self) -> None:
        """Waits for a nudge or its time, and catches up. Should that fail, the catalog still says what is lacking."""
        # Not `wait_for`: Python 3.11's forgets a cancellation that comes together with what it waits for.
        with suppress(TimeoutError):
            async with asyncio.timeout(background.until_tick(self._wait)):
                await self._nudged.wait()
        self._wait = self._every
        self._nudged.clear()
        if await self.catch_up():
            self._caught_up.set()

    async def ready(self) -> None:
        """The first search waits until the index is built, but only for a while: a large index is used as it grows."""
        if self._caught_up.is_set() or self._has_waited:
            return
        self._has_waited = True
        self.nudge()
        with suppress(TimeoutError):
            async with asyncio.timeout(READY_WITHIN):
                await self._caught_up.wait()

    async def reached(self) -> None:
        """Waits until searches find what was published, whoever indexes it; only for a while, as many take long."""
        with suppress(TimeoutError):
            async with asyncio.timeout(READY_WITHIN):
                while await index.behind(self.db, None):
                    self.nudge()
                    await asyncio.sleep(LOOK_AFTER)

    def nudge(self) -> None:
        """Starts the next poll now, because something was published."""
        self._nudged.set()

    async def catch_up(self) -> bool:
        """Brings the index up to date with the catalog; False where another process is doing so."""
        space = await self._space_unless_following(await self._space())
        self._has_recipe = self._has_recipe or await index.recipe(self.db) == document.RECIPE
        if self._has_recipe and not await index.behind(self.db, space.model if space else None):
            return True
        async with self.db.sole(index.SOLE_WRITER) as may_write:
            if may_write:
                if not self._has_recipe and await index.recipe(self.db) != document.RECIPE:
                    # Another release built this index with a different method.
                    await index.empty(self.db)
                    await index.write_recipe(self.db, document.RECIPE)
                self._has_recipe = True
                try:
                    await self._catch_up(space)
                except ProviderError as error:
                    self._wait_for_model(error)
                    await self._catch_up(None)
            return may_write

    async def _space_unless_following(self, space: Space | None) -> Space | None:
        """Two processes with different models would re-embed everything for ever: the one that started last leads."""
        if space and self._has_led and not self._follows:
            leading = await index.leading_model(self.db)
            self._follows = leading not in (None, space.model)
            if self._follows:
                message = "Another process uses another embedding model; here, tools are found by words alone."
                log.warning("embedding_model_differs", message=message)
        return None if self._follows else space

    async def _catch_up(self, space: Space | None) -> None:
        await arrays.loaded()
        model = space.model if space else None
        behind = await index.behind(self.db, model)
        if "tool" in behind:
            await self._index_tools(space)
            await index.reached(self.db, "tool", behind["tool"], model)
        if behind:  # a template is also found by its tools
            await self._index_templates(space)
            if "template" in behind:
                await index.reached(self.db, "template", behind["template"], model)
        self._has_led = self._has_led or space is not None
        await self._tidy(space)

    async def _index_tools(self, space: Space | None) -> None:
        model = space.model if space else None
        await index.remove_gone(self.db, "tool")
        todo = await index.count_lacking(self.db, model)
        done = 0
        async with aclosing(_lacking(self.db, model)) as batches:
            async for entries in batches:
                await self._write("tool", entries, space)
                done += len(entries)
                log.info("tools_indexed", done=done, of=todo)
        if todo >= BATCH:
            await index.update_statistics(self.db)

    async def _index_templates(self, space: Space | None) -> None:
        await index.remove_gone(self.db, "template")
        entries = []
        for row in await index.templates(self.db):
            facts = _facts("template", _TEMPLATE, row)
            # Names before patterns: a template is described by its first tools.
            named = sorted(facts.named_tools, key=lambda name: name.endswith(".*"))
            tools = await active_versions(self.db, named, row["owner"], document.MOST_NAMED)
            digest = _digest(row, tools)
            model = space.model if space else None
            indexed = (row["digest"], row["indexed_owner"], row["model"] if space else None)
            if row["is_crowded"] or indexed != (digest, row["owner"], model):
                first = dict(list(tools.items())[: document.MOST_TOOLS])
                known = [_facts("tool", _TOOL, tool) for tool in await index.descriptors(self.db, first)]
                built = document.of_template(facts, known, list(tools))
                entries.append(IndexEntry(row["name"], row["version"], row["owner"], built, digest=digest))
        for start in range(0, len(entries), BATCH):
            await self._write("template", entries[start : start + BATCH], space)

    async def _write(self, kind: Kind, entries: Sequence[IndexEntry], space: Space | None) -> None:
        """Writes documents, with their vectors where there is an embedding model."""
        if space and self.embedder:
            vectors = await self.embedder.embed([entry.document.gist for entry in entries])
            entries = [replace(entry, vector=vector) for entry, vector in zip(entries, vectors, strict=True)]
        await index.write(self.db, kind, entries, space)

    async def _tidy(self, space: Space | None) -> None:
        """Moves the remaining documents out of crowded shards, and deletes empty shards."""
        for shard in await index.crowded(self.db, space):
            rows = await index.in_shard(self.db, shard)
            for start in range(0, len(rows), BATCH):
                await self._write("tool", await _entries(self.db, rows[start : start + BATCH]), space)
        await index.sweep(self.db)

    def _wait_for_model(self, error: ProviderError) -> None:
        message = "The embedding model failed; new documents are found by words alone."
        log.warning("embedding_failed", message=message, error=str(error))
        self._retry_at = asyncio.get_running_loop().time() + RETRY_AFTER

    async def _space(self) -> Space | None:
        """The vector space of the embedding model; None without a model, or while it fails."""
        if self.embedder is None or asyncio.get_running_loop().time() < self._retry_at:
            return None
        try:
            return await space_of(self.db, self.embedder)
        except ProviderError as error:
            self._wait_for_model(error)
            return None


async def _lacking(db: Database, model: int | None) -> AsyncGenerator[Sequence[IndexEntry], None]:
    """Tools that the index lacks, in batches by name; each batch is read while the previous one is written."""

    async def read(after: str) -> Sequence[IndexEntry]:
        return await _entries(db, await index.lacking(db, model, after=after, limit=BATCH))

    coming = asyncio.create_task(read(""))
    try:
        while batch := await coming:
            coming = asyncio.create_task(read(batch[-1].name))
            yield batch
    finally:
        coming.cancel()
        await asyncio.wait((coming,))


async def _entries(db: Database, rows: Sequence[Any]) -> Sequence[IndexEntry]:
    """The documents of tools, built in a thread, so that sessions go on meanwhile."""
    overlaid = await overlays.some(db, [row["name"] for row in rows]) if rows else {}

    def entry(row: Any) -> IndexEntry:
        text = document.of_tool(_facts("tool", _TOOL, row), overlaid.get(row["name"], document.AS_DESCRIBED))
        return IndexEntry(row["name"], row["version"], row["owner"], text)

    return await asyncio.to_thread(lambda: [entry(row) for row in rows])


def _facts(kind: Kind, decoder: msgspec.json.Decoder[F], row: Any) -> F:
    try:
        return decoder.decode(row["descriptor"])
    except msgspec.MsgspecError as error:
        # One unreadable descriptor must not prevent the indexing of the others.
        message = f"A {kind}'s descriptor cannot be read; the {kind} is found by its name alone."
        log.warning("descriptor_unreadable", message=message, **{kind: row["name"]}, error=str(error))
        return decoder.type(name=row["name"])


def _digest(template: Any, tools: Mapping[str, int]) -> str:
    made_from = [f"{template['name']}@{template['version']}", *(f"tool {name}@{nth}" for name, nth in tools.items())]
    return hashlib.sha256("\n".join(made_from).encode()).hexdigest()
