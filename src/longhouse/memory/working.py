"""Working memory: the outlines and chunks that an agent has seen, as text for its system prompt.

It is given what tools returned, so nothing in it is trusted: scores, sources and texts may be anything.
"""

import logging
import math
import re
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal

import msgspec

log = logging.getLogger(__name__)

ChunkType = Literal["search_result", "page_content", "table"]
Language = Literal["en", "ru", "zh"]

MAX_CONTENT: Final = 1_000
"""Characters of one chunk: ten chunks are then about the 2,000 tokens that a prompt can spare."""
MAX_NAME: Final = 200
"""Characters of a source, a title or another name on one line."""
MAX_CHAPTERS: Final = 200
WITHIN: Final = " > "
"""Between a chapter and one within it."""
CHAPTER: Final = ("chapter", "chapter_path")

_CONTROLS: Final = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")
_BLOCK: Final = re.compile(r"[#\uff03\ufe5f]|```|~~~|<[!?/a-z]|(=+|-+)\s*$", re.IGNORECASE)
"""The start of a line that opens a heading, or a block in which the headings after it would not be headings."""
_MARK: Final = re.compile(r"[-*+•·>]|[0-9A-Za-z]{1,9}[.)、\uff0e\uff09]")
"""What may stand before a heading: the mark of a list or a quotation."""
_UNSEEN: Final = frozenset("\u115f\u1160\u2800\u3164\uffa0")
"""Letters and symbols that look like nothing."""


class _Texts(msgspec.Struct, frozen=True):
    found: str
    outlines: str
    known: str
    enough: str
    chapters: str
    nowhere: str


_TEXTS: Final[Mapping[str, _Texts]] = {
    "en": _Texts(
        found="Relevant information found so far",
        outlines="Cached outlines",
        known="The outlines of these documents are already known: ",
        enough="There is no need to call get_toc() again",
        chapters="Known chapters: ",
        nowhere="unknown source",
    ),
    "ru": _Texts(
        found="Уже найденные сведения",
        outlines="Оглавления в памяти",
        known="Оглавления этих документов уже получены: ",
        enough="Вызывать get_toc() снова не нужно",
        chapters="Известные главы: ",
        nowhere="источник неизвестен",
    ),
    "zh": _Texts(
        found="已获取的相关信息",
        outlines="已缓存目录",
        known="以下规程目录已获取: ",
        enough="无需再次调用 get_toc()",
        chapters="已知章节: ",
        nowhere="未知来源",
    ),
}


@dataclass
class ContentChunk:
    """A piece of text and where it was found."""

    content: str
    source: str
    relevance_score: float
    chunk_type: ChunkType = "search_result"
    metadata: dict[str, Any] = field(default_factory=dict)


@dataclass
class AgentMemory:
    """What one session has seen: outlines by document, and the most relevant chunks, best first."""

    toc_cache: dict[str, dict[str, Any]] = field(default_factory=dict)
    known_chapters: list[str] = field(default_factory=list)
    relevant_chunks: list[ContentChunk] = field(default_factory=list)
    current_query: str = ""
    max_chunks: int = 10
    min_relevance: float = 0.5
    language: Language = "zh"

    def __post_init__(self) -> None:
        if self.language not in _TEXTS:
            raise ValueError(f"language must be one of {', '.join(_TEXTS)}, not {self.language!r}.")
        given, self.relevant_chunks = self.relevant_chunks, []
        self._add_all(given)

    def cache_toc(self, reg_id: str, toc: dict[str, Any]) -> None:
        """Remembers the outline of a document, and the titles of its chapters."""
        self.toc_cache[reg_id] = toc
        self._learn(titles(toc))
        log.debug("[Memory] 缓存目录: %s", one_line(reg_id))

    def get_cached_toc(self, reg_id: str) -> dict[str, Any] | None:
        return self.toc_cache.get(reg_id)

    def has_cached_toc(self, reg_id: str) -> bool:
        return reg_id in self.toc_cache

    def add_chunk(self, chunk: ContentChunk) -> None:
        """Puts a chunk in its place by relevance; the least relevant one goes when there are too many.

        Of equally relevant ones the newest comes first, so that what was read last is not what is dropped. The same
        chunk is kept once, with its best score.
        """
        new = replace(chunk, content=_cut(chunk.content.strip()), relevance_score=_score(chunk.relevance_score))
        if new.relevance_score < self.min_relevance or not new.content:
            return
        others = []
        for one in self.relevant_chunks:
            if (one.content, one.source) == (new.content, new.source):
                new.relevance_score = max(new.relevance_score, one.relevance_score)
            else:
                others.append(one)
        others.insert(sum(one.relevance_score > new.relevance_score for one in others), new)
        self.relevant_chunks[:] = others[: max(0, self.max_chunks)]

    def add_search_results(self, results: Sequence[Mapping[str, Any]]) -> None:
        """Remembers the relevant ones of a search's results; unknown and missing fields are passed over."""
        found = [(_search_chunk(result), _chapters(result)) for result in results if isinstance(result, Mapping)]
        self._add_all([chunk for chunk, _ in found])
        relevant = [names for chunk, names in found if names and chunk.relevance_score >= self.min_relevance]
        self._learn(filter(None, (names[-1].strip() for names in relevant)))
        log.debug("[Memory] 添加搜索结果: %d 条", len(results))

    def add_page_content(self, content: str, source: str, relevance: float = 0.8) -> None:
        """Remembers the beginning of what was read."""
        self.add_chunk(ContentChunk(content, source, relevance, "page_content"))
        log.debug("[Memory] 添加页面内容: %s", one_line(source))

    def get_memory_context(self) -> str:
        """The chunks under their sources, for the system prompt; empty when there are none."""
        if not self.relevant_chunks:
            return ""
        texts = _TEXTS[self.language]
        lines = [f"# {texts.found}"]
        for number, chunk in enumerate(self.relevant_chunks, 1):
            lines += [f"## [{number}] {one_line(chunk.source) or texts.nowhere}", quoted(chunk.content)]
        return "\n".join(lines)

    def get_toc_cache_hint(self) -> str:
        """The same on a line of its own, to be added to a prompt with `+=`."""
        hint = self.outlines_hint()
        return f"\n{hint}" if hint else ""

    def outlines_hint(self) -> str:
        """Says which outlines are known, so that the model does not ask for them again; empty when there are none."""
        if not self.toc_cache:
            return ""
        texts = _TEXTS[self.language]
        names = ", ".join(one_line(reg_id) for reg_id in self.toc_cache)
        return f"# {texts.outlines}\n{texts.known}{names}\n{texts.enough}"

    def get_chapters_hint(self) -> str:
        """The titles of known chapters on one line; empty when there are none."""
        if not self.known_chapters:
            return ""
        return _TEXTS[self.language].chapters + "; ".join(one_line(title) for title in self.known_chapters)

    def clear_query_context(self) -> None:
        """Forgets the query and the chunks that were found for it; outlines stay."""
        self.current_query = ""
        self.relevant_chunks.clear()

    def reset(self) -> None:
        """Forgets everything."""
        self.clear_query_context()
        self.toc_cache.clear()
        self.known_chapters.clear()

    def _add_all(self, chunks: Sequence[ContentChunk]) -> None:
        """Adds chunks of one answer, the last one first: equally relevant ones then keep their order."""
        for chunk in reversed(chunks):
            self.add_chunk(chunk)

    def _learn(self, titles: Iterable[str]) -> None:
        known = set(self.known_chapters)
        for title in titles:
            if len(known) >= MAX_CHAPTERS:
                return
            if title not in known:
                known.add(title)
                self.known_chapters.append(title)


def one_line(value: object) -> str:
    """A name on one line; empty for what is no name."""
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) < 10**12:
        return str(value)
    if not isinstance(value, str):
        return ""
    return _cut(" ".join(_CONTROLS.sub(" ", value).split()), MAX_NAME)


def first_name(values: Mapping[str, Any], *keys: str) -> str:
    """The first of these fields that holds a name, on one line."""
    return next((name for key in keys if (name := one_line(values.get(key)))), "")


def first_text(values: Mapping[str, Any], *keys: str) -> str:
    """The first of these fields that holds a text."""
    return next((text for key in keys if isinstance(text := values.get(key), str) and text.strip()), "")


def source_of(reg_id: str, page: str) -> str:
    """How a place in a document is written: `angui_2024 P85`."""
    return f"{reg_id} P{page}" if page else reg_id


def _search_chunk(result: Mapping[str, Any]) -> ContentChunk:
    reg_id, page = first_name(result, "reg_id"), first_name(result, "page", "page_num", "start_page")
    chapter = one_line(WITHIN.join(_chapters(result)))
    known = {"reg_id": reg_id, "page": page, "chapter": chapter, "section_number": first_name(result, "section_number")}
    is_table = "table" in [result.get(key) for key in ("chunk_type", "block_type", "type")]
    return ContentChunk(
        content=first_text(result, "content", "snippet", "text"),
        source=first_name(result, "source") or source_of(reg_id, page),
        relevance_score=_score(result.get("score", result.get("relevance_score"))),
        chunk_type="table" if is_table else "search_result",
        metadata={key: value for key, value in known.items() if value},
    )


def _chapters(result: Mapping[str, Any]) -> list[str]:
    """The chapter and those around it, the innermost last: by its own title, as an outline has it."""
    path = result.get("chapter_path")
    if not isinstance(path, list | tuple):
        return first_name(result, *CHAPTER).split(WITHIN)
    return [name for part in path[:10] if (name := one_line(part))]


def _score(value: object) -> float:
    """A relevance between 0 and 1. What is no number counts as irrelevant."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return 0.0
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return 0.0
    return min(1.0, max(0.0, number)) if math.isfinite(number) else 0.0


def titles(toc: Mapping[str, Any]) -> Iterator[str]:
    """The titles of an outline in reading order, whatever its lists of entries are called."""
    waiting = _entries(toc)[::-1]
    while waiting:
        entry = waiting.pop()
        if title := first_name(entry, "title"):
            yield title
        waiting.extend(reversed(_entries(entry)))


def _entries(node: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    lists = [value for value in node.values() if isinstance(value, list | tuple)]
    return [entry for entries in lists for entry in entries if isinstance(entry, Mapping)]


def _cut(text: str, most: int = MAX_CONTENT) -> str:
    return text if len(text) <= most else f"{text[: most - 1].rstrip()}…"


def quoted(content: str, *, always: bool = False) -> str:
    """A chunk as it is; as a quotation `always`, or if a line could pass for a heading, or hide those after it.

    A document may hold a false source or a false memory; the headings in the prompt are ours alone.
    """
    lines = [_CONTROLS.sub(" ", line) for line in content.splitlines()]
    if not always and not any(_opens_block(line) for line in lines):
        return "\n".join(lines)
    return "\n".join(f"> {line}".rstrip() for line in lines)


def _opens_block(line: str) -> bool:
    """Whether a line could pass for a heading, or for a token that models are told roles by."""
    if "<|" in line:
        return True
    rest = _visible(line)
    while not _BLOCK.match(rest):
        mark = _MARK.match(rest)
        if mark is None:
            return False
        rest = _visible(rest[mark.end() :])
    return True


def _visible(line: str) -> str:
    """A line without the blank and invisible characters at its start."""
    return next((line[at:] for at, char in enumerate(line) if not _is_unseen(char)), "")


def _is_unseen(char: str) -> bool:
    return char.isspace() or char in _UNSEEN or unicodedata.category(char) in {"Cf", "Mn", "Me"}
