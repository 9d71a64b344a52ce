"""What a session remembers: the notes on what its tools returned, and the text of it for the next request."""

from bisect import bisect_right
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Protocol

import msgspec

from longhouse.agents.requests import tokens
from longhouse.agents.template import Template
from longhouse.agents.tool import Remembers
from longhouse.journal import conversation
from longhouse.journal.events import Noted, NotedChunk
from longhouse.journal.json_text import object_of
from longhouse.journal.session import Session, Turn, WorkingMemory
from longhouse.journal.transcript import Step
from longhouse.memory import tool_results
from longhouse.memory.working import AgentMemory, ContentChunk, Language

Remembered = tuple[str, tuple[str, ...]]
"""Text for a request, and the ids of items in it that are recorded with the reply."""
NOTHING: Remembered = ("", ())


class TextSource(Protocol):
    """A part of what is remembered, beside working memory: recalled items, shown files, interactions from outside."""

    async def text_for(self, session: Session, turn: Turn, template: Template, room: int) -> Remembered:
        """The text for the next request, and the ids of the items in it, which its reply records (`Replied.recalled`).

        The text has at most `room` tokens. Both are empty if there is nothing to show. While `turn.iteration` is 0 the
        turn has no reply yet, and a source may search; in later requests, and when a request is composed again, it
        shows the items of `turn.recalled` and no others.
        """
        ...


ItemsOf = Callable[[Session, Sequence[str]], Awaitable[Sequence[dict[str, Any]]]]
"""Items by their ids, each with at least `id`, as a client sees them; ids that are gone are left out."""


async def only_ids(session: Session, ids: Sequence[str]) -> Sequence[dict[str, Any]]:
    return [{"id": one} for one in ids]


class SessionMemory(msgspec.Struct, frozen=True, kw_only=True):
    """Notes and shows what sessions remember, by the settings and the policy of each template."""

    enabled: bool = True
    max_chunks: int = 10
    min_relevance: float = 0.5
    language: Language = "en"
    sources: tuple[TextSource, ...] = ()
    """Shown after working memory, in this order."""
    recalled: ItemsOf = only_ids
    interactions: ItemsOf = only_ids

    def is_on(self, template: Template) -> bool:
        """Whether results of reading tools are remembered."""
        return self.enabled and template.memory_policy.enabled

    def noted(self, call: str, about: Remembers, arguments: str, content: str, template: Template) -> Noted | None:
        """The note on a result; None if it reports a failure. Its key and revision are the caller's to add."""
        if not about or tool_results.is_failure(content):
            return None
        scratch = self._blank(template)
        tool_results.remember(scratch, about, object_of(arguments) or {}, content)
        return Noted(
            about=about,
            call=call,
            subject=next(iter(scratch.toc_cache), ""),
            chapters=tuple(scratch.known_chapters),
            chunks=msgspec.convert(scratch.relevant_chunks, tuple[NotedChunk, ...], from_attributes=True),
        )

    def working(self, memory: WorkingMemory, template: Template) -> AgentMemory:
        """Working memory as the template's requests show it; outlines are known by name."""
        working = self._blank(template)
        working.current_query = memory.query
        working.known_chapters = list(memory.chapters)
        working.toc_cache = {reg_id: {} for reg_id in memory.outlines}
        shown = (chunk for chunk in memory.chunks if chunk.relevance_score >= working.min_relevance)
        working.relevant_chunks = [_content_chunk(chunk) for chunk in shown][: working.max_chunks]
        return working

    async def text_for(self, session: Session, turn: Turn, template: Template) -> Remembered:
        """What is remembered, for the end of the next request's system prompt, within the template's token limit.

        The least relevant chunks give way to the rest.
        """
        room, is_empty = template.memory_policy.max_tokens, session.memory.is_empty
        if not room or (is_empty and not self.sources):
            return NOTHING
        hint = context = ""
        is_on = not is_empty and self.is_on(template)
        if is_on:
            hint = self._outlines(session, template, room)
        texts: list[str] = []
        ids: list[str] = []
        left = room - tokens.estimate(hint) - 1
        for source in self.sources:
            text, items = await source.text_for(session, turn, template, left)
            if text:
                ids += items
                texts.append(text)
                left -= tokens.estimate(text) + 1
        if is_on:
            context = _chunks(self.working(session.memory, template), left)
        elif not texts:
            return NOTHING
        return "\n\n".join(part for part in (hint, context, *texts) if part), tuple(ids)

    def _outlines(self, session: Session, template: Template, room: int) -> str:
        """The hint on known outlines; with their chapters, if the model does not see the outlines any more.

        Empty if it does not fit: nobody is told not to ask for an outline that is not shown.
        """
        memory = session.memory
        if not memory.outlines:
            return ""
        working = self.working(memory, template)
        hint = working.outlines_hint()
        seen = {use.call for entry in conversation.shown(session) if isinstance(entry, Step) for use in entry.uses}
        reads = (memory.reads.get(key) for key in memory.outlines.values())
        if all(read and read.call in seen for read in reads):
            return hint if tokens.estimate(hint) <= room else ""
        return _with_chapters(hint, working, room)

    def _blank(self, template: Template) -> AgentMemory:
        policy = template.memory_policy
        return AgentMemory(
            max_chunks=self.max_chunks if policy.max_chunks is None else policy.max_chunks,
            min_relevance=self.min_relevance if policy.min_relevance is None else policy.min_relevance,
            language=self.language,
        )


def cut(text: str, room: int) -> str:
    """The beginning of a text that fits into these tokens."""
    if tokens.estimate(text) <= room:
        return text
    return f"{text.encode()[: max(0, room * tokens.BYTES - 3)].decode(errors='ignore').rstrip()}…"


def _with_chapters(hint: str, working: AgentMemory, room: int) -> str:
    """The hint, and the first of the known chapters that fit into these tokens; empty if not one does."""
    titles = working.known_chapters

    def text(count: int) -> str:
        working.known_chapters = titles[:count]
        return f"{hint}\n{working.get_chapters_hint()}{'; …' if count < len(titles) else ''}"

    return _longest(text, len(titles), room)


def _chunks(working: AgentMemory, room: int) -> str:
    """The most relevant chunks that fit into these tokens."""
    chunks = working.relevant_chunks

    def context(count: int) -> str:
        working.relevant_chunks = chunks[:count]
        return working.get_memory_context()

    return _longest(context, len(chunks), room)


def _longest(text: Callable[[int], str], most: int, room: int) -> str:
    """The text with as many of its items as fit into these tokens; empty if not one does."""
    whole = text(most)
    if tokens.estimate(whole) <= room:
        return whole
    count = bisect_right(range(1, most), room, key=lambda count: tokens.estimate(text(count)))
    return text(count) if count else ""


def _content_chunk(chunk: NotedChunk) -> ContentChunk:
    shown = msgspec.structs.asdict(chunk)
    del shown["key"]
    return ContentChunk(**shown)
