"""Folds what was noted of reading calls into a session's working memory. Everything in it is bounded."""

from collections.abc import Iterable, Sequence
from typing import Final

from msgspec.structs import replace

from longhouse.journal.events import Cleanable, Noted, NotedChunk
from longhouse.journal.session import Read, ReadSource, WorkingMemory

MAX_QUERY: Final = 1_000
MAX_CHUNKS: Final = 100
"""More than any template shows: those beyond are the least relevant."""
MAX_CHAPTERS: Final = 200
MAX_READS: Final = 64
MAX_READ_CHARS: Final = 1_000_000
"""Of all results together."""
MAX_INTERACTIONS: Final = 1_000
MAX_ARGUMENTS: Final = 10_000
"""Characters of the arguments by which a tool is asked whether what it read is current. What a longer call has read is
not remembered: nobody could say when it changes."""


def noted(memory: WorkingMemory, note: Noted, seq: int, *, arguments: str = "", content: str = "") -> WorkingMemory:
    """Working memory with one note; `arguments` and `content` are those of the noted call and of its result."""
    if note.about == "outdated":
        return without(memory, [note.key])
    if note.about == "interaction":
        ids = (*(one for one in memory.interactions if one != note.subject), note.subject)
        return replace(memory, interactions=ids[-MAX_INTERACTIONS:])
    if note.revision and len(arguments) > MAX_ARGUMENTS:
        return memory
    if (before := memory.sources.get(note.key)) and before.revision != note.revision:
        memory = without(memory, [note.key])
    outlines = memory.outlines
    if note.subject:
        others = {reg_id: key for reg_id, key in outlines.items() if reg_id != note.subject}
        outlines = dict([*others.items(), (note.subject, note.key)][-MAX_READS:])
    reads = memory.reads
    if note.key and content:
        read = Read(call=note.call, content=content, revision=note.revision, seq=seq)
        others_read = {key: one for key, one in reads.items() if key != note.key}
        reads = _bounded({**others_read, note.key: read}, set(outlines.values()))
    chunks = merged(memory.chunks, (replace(chunk, key=note.key) for chunk in note.chunks))
    sources = memory.sources
    if note.key and note.revision:
        source = ReadSource(tool=note.tool, arguments=arguments, revision=note.revision, chapters=note.chapters)
        sources = {**sources, note.key: source}
    kept = {*outlines.values(), *(chunk.key for chunk in chunks)}
    return replace(
        memory,
        outlines=outlines,
        chapters=tuple(dict.fromkeys((*memory.chapters, *note.chapters)))[:MAX_CHAPTERS],
        chunks=chunks,
        reads=reads,
        sources={key: source for key, source in sources.items() if key in kept},
    )


def without(memory: WorkingMemory, keys: Iterable[str]) -> WorkingMemory:
    """Working memory without what these calls have read."""
    gone = {*keys} - {""}
    if not gone:
        return memory
    sources = {key: source for key, source in memory.sources.items() if key not in gone}
    left = {title for source in sources.values() for title in source.chapters}
    lost = {title for key in gone & memory.sources.keys() for title in memory.sources[key].chapters} - left
    return replace(
        memory,
        outlines={reg_id: key for reg_id, key in memory.outlines.items() if key not in gone},
        chapters=tuple(title for title in memory.chapters if title not in lost),
        chunks=tuple(chunk for chunk in memory.chunks if chunk.key not in gone),
        reads={key: read for key, read in memory.reads.items() if key not in gone},
        sources=sources,
    )


def since(memory: WorkingMemory, seq: int) -> WorkingMemory:
    """Working memory with what was read after this event, and the interactions from outside."""
    reads = {key: read for key, read in memory.reads.items() if read.seq > seq}
    sources = {key: source for key, source in memory.sources.items() if key in reads}
    return replace(
        memory,
        outlines={reg_id: key for reg_id, key in memory.outlines.items() if key in reads},
        chapters=tuple(dict.fromkeys(title for source in sources.values() for title in source.chapters)),
        chunks=tuple(chunk for chunk in memory.chunks if chunk.key in reads),
        reads=reads,
        sources=sources,
    )


def cleaned(memory: WorkingMemory, parts: Sequence[Cleanable]) -> WorkingMemory:
    """Working memory at a new turn that resets these parts. Interactions from outside are not what the agent read."""
    if "working_memory" in parts:
        return WorkingMemory(interactions=memory.interactions)
    if "query_context" in parts:
        kept = set(memory.outlines.values())
        reads = {key: read for key, read in memory.reads.items() if key in kept}
        sources = {key: source for key, source in memory.sources.items() if key in kept}
        return replace(memory, query="", chunks=(), reads=reads, sources=sources)
    return memory


def merged(chunks: Sequence[NotedChunk], new: Iterable[NotedChunk]) -> tuple[NotedChunk, ...]:
    """The chunks by relevance, with new ones before equally relevant old ones; each once, with its best score."""
    kept = list(chunks)
    for chunk in reversed(list(new)):
        same = [one for one in kept if _is_same(one, chunk)]
        score = max([chunk.relevance_score, *(one.relevance_score for one in same)])
        kept = [one for one in kept if one not in same]
        kept.insert(sum(one.relevance_score > score for one in kept), replace(chunk, relevance_score=score))
    return tuple(kept[:MAX_CHUNKS])


def _is_same(one: NotedChunk, other: NotedChunk) -> bool:
    """Whether both are the same text; a page that was read again replaces what it was before."""
    if one.source != other.source:
        return False
    return one.content == other.content or one.chunk_type == other.chunk_type == "page_content"


def _bounded(reads: dict[str, Read], outlines: set[str]) -> dict[str, Read]:
    """The newest results that fit; outlines stay longest."""
    size = sum(len(read.content) for read in reads.values())
    leaving = iter([*(key for key in reads if key not in outlines), *(key for key in reads if key in outlines)])
    while len(reads) > MAX_READS or size > MAX_READ_CHARS:
        size -= len(reads.pop(next(leaving)).content)
    return reads
