"""What a request shows of working memory: by the settings and the template's policy, within its tokens."""

from typing import Any

import pytest
from msgspec.structs import replace
from pydantic import TypeAdapter, ValidationError

from longhouse.agents.requests import tokens
from longhouse.agents.strategies.base import BaseAgent
from longhouse.agents.strategies.structured import SGRAgent
from longhouse.agents.strategies.tool_calling import SGRToolCallingAgent, ToolCallingAgent
from longhouse.agents.template import MemoryPolicy, Template
from longhouse.journal import events
from longhouse.journal.messages import text_of
from longhouse.journal.session import Session, Turn
from longhouse.memory.session_memory import Remembered, SessionMemory
from longhouse.settings import Settings
from longhouse.tools.builtin.dialogue import FinalAnswerTool
from longhouse.tools.builtin.planning import ReasoningTool
from server_helpers import folded, opened, prompted, returned, started, turn_of, used

CALL = "1-action-0"
RESULTS = [f'{{"content": "fact {nth}", "source": "doc P{nth}", "score": {score}}}' for nth, score in
           enumerate((0.95, 0.8, 0.6, 0.3), 1)]  # fmt: skip


def session_with(memory: SessionMemory, template: Template) -> Session:
    """A session that has read an outline and searched once."""
    begun = folded(opened(), prompted("x"), started(2), events.Replied(), used(CALL))
    outline = memory.noted(CALL, "outline", '{"reg_id": "doc"}', '[{"title": "One"}]', template)
    found = memory.noted(CALL, "search", "{}", f"[{','.join(RESULTS)}]", template)
    assert outline
    assert found
    return folded(returned(CALL), outline, found, session=begun)


async def shown(memory: SessionMemory, **policy: Any) -> str:
    template = Template(name="a", memory_policy=MemoryPolicy(**policy))
    session = session_with(memory, template)
    text, ids = await memory.text_for(session, turn_of(session), template)
    assert (tokens.estimate(text) <= template.memory_policy.max_tokens, ids) == (True, ())
    return text


async def test_each_field_of_the_policy_changes_what_is_shown() -> None:
    whole = await shown(SessionMemory())
    assert [f"fact {nth}" in whole for nth in (1, 2, 3, 4)] == [True, True, True, False]
    assert "fact 2" not in await shown(SessionMemory(), max_chunks=1)
    assert "fact" not in await shown(SessionMemory(), max_chunks=0)
    assert "fact 4" in await shown(SessionMemory(), min_relevance=0.1)
    assert "fact 2" not in await shown(SessionMemory(), min_relevance=0.9)
    assert await shown(SessionMemory(), max_tokens=0) == ""
    assert await shown(SessionMemory(), enabled=False) == ""


async def test_ten_chunks_of_half_relevance_are_shown_unless_somebody_says_otherwise() -> None:
    memory, template = SessionMemory(), Template(name="a")
    settings = Settings()
    assert (memory.max_chunks, memory.min_relevance) == (settings.memory_max_chunks, settings.memory_min_relevance)
    found = [f'{{"content": "fact {nth}", "source": "doc P1", "score": {0.5 - nth % 2 / 100}}}' for nth in range(24)]
    note = memory.noted(CALL, "search", "{}", f"[{','.join(found)}]", template)
    assert note
    assert [chunk.content for chunk in note.chunks] == [f"fact {nth}" for nth in range(0, 20, 2)]
    page = memory.noted(CALL, "page", "{}", "Text of a page.", template)
    assert page
    assert [(chunk.chunk_type, chunk.relevance_score) for chunk in page.chunks] == [("page_content", 0.8)]


async def test_settings_hold_where_the_policy_says_nothing() -> None:
    assert "fact 2" not in await shown(SessionMemory(max_chunks=1))
    assert "fact 3" in await shown(SessionMemory(max_chunks=1), max_chunks=3)
    assert "fact 4" in await shown(SessionMemory(min_relevance=0.2))
    assert await shown(SessionMemory(enabled=False)) == ""
    russian = await shown(SessionMemory(language="ru"))
    assert russian.startswith("# Оглавления в памяти\nОглавления этих документов уже получены: doc")
    assert "# 已获取的相关信息\n## [1] doc P1\nfact 1\n## [2] doc P2\nfact 2" in await shown(
        SessionMemory(language="zh")
    )
    chosen = Settings(memory_enabled="false", memory_max_chunks="3", memory_min_relevance="0.7", memory_language="zh")
    assert (chosen.memory_enabled, chosen.memory_max_chunks, chosen.memory_min_relevance) == (False, 3, 0.7)
    default = Settings()
    assert (default.memory_enabled, default.memory_max_chunks, default.memory_min_relevance) == (True, 10, 0.5)
    assert (default.memory_language, default.conversation_memory_enabled) == ("en", True)


async def test_within_few_tokens_the_least_relevant_chunks_go_first() -> None:
    whole = await shown(SessionMemory())
    fitting = [await shown(SessionMemory(), max_tokens=most) for most in range(tokens.estimate(whole) + 2)]
    kept = [[nth for nth in (1, 2, 3) if f"fact {nth}" in text] for text in fitting]
    assert [*dict.fromkeys(map(tuple, kept))] == [(), (1,), (1, 2), (1, 2, 3)]
    hints = ["# Cached outlines" in text for text in fitting]
    assert hints == sorted(hints)
    assert all("get_toc" in text for text in fitting if "# Cached outlines" in text), "it is there whole or not at all"


@pytest.mark.parametrize("strategy", [ToolCallingAgent, SGRAgent, SGRToolCallingAgent])
def test_every_way_to_think_shows_it_at_the_very_end_of_the_system_prompt(strategy: type[BaseAgent]) -> None:
    session = folded(opened(), prompted("x", system="Be brief."), started(2))
    offered = [ReasoningTool.described(), FinalAnswerTool.described()]
    plain, shown = (
        strategy().propose(one, Template(name="a"), offered).body.messages
        for one in (session, replace(session, recall="# Remembered"))
    )
    assert text_of(shown[0].content or "") == f"{text_of(plain[0].content or '')}\n\n# Remembered"
    assert shown[1:] == plain[1:]


class Long:
    """A source with more to say than fits."""

    def __init__(self, name: str = "item", most: int = 1_000) -> None:
        self.name, self.most = name, most

    async def text_for(self, session: Session, turn: Turn, template: Template, room: int | None = None) -> Remembered:
        lines = [f"# Recalled {self.name}"]
        for nth in range(self.most):
            if tokens.estimate("\n".join([*lines, f"{self.name} {nth}"])) > (room or 0):
                break
            lines.append(f"{self.name} {nth}")
        shown = len(lines) - 1
        return ("\n".join(lines), tuple(f"{self.name}:{nth}" for nth in range(shown))) if shown else ("", ())


async def test_other_sources_get_the_room_that_is_left_and_come_before_chunks() -> None:
    template = Template(name="a", memory_policy=MemoryPolicy(max_tokens=100))
    memory = SessionMemory(sources=(Long("file", 5), Long(), Long("late")))
    session = session_with(memory, template)
    text, ids = await memory.text_for(session, turn_of(session), template)
    assert tokens.estimate(text) <= 100
    assert ("# Cached outlines" in text, "item 5\n" in text, "fact" in text) == (True, True, False)
    assert ids == tuple(line.replace(" ", ":") for line in text.splitlines() if line.startswith(("file ", "item ")))
    assert text.count("item ") > 5
    assert "late:0" not in ids, "what is not shown is not recorded"
    blank = folded(opened(), prompted("x"), started(2))
    assert (await memory.text_for(blank, turn_of(blank), template))[0].startswith("# Recalled file\nfile 0\n")


async def test_the_hint_is_there_only_with_the_outline_or_its_chapters() -> None:
    memory, session = SessionMemory(), session_with(SessionMemory(), Template(name="a"))
    chapters = tuple(f"{nth} Chapter of many" for nth in range(100))
    hidden = replace(session, transcript=(), memory=replace(session.memory, chapters=chapters, chunks=()))
    lengths = set()
    for most in range(800):
        template = Template(name="a", memory_policy=MemoryPolicy(max_tokens=most))
        text, _ = await memory.text_for(hidden, turn_of(hidden), template)
        assert tokens.estimate(text) <= most
        assert ("get_toc" in text) == ("0 Chapter of many" in text)
        titles = [one for one in text.partition("Known chapters: ")[2].split("; ") if one]
        shown = [one for one in titles if one != "…"]
        assert shown == [*chapters[: len(shown)]], "cut between titles"
        assert (titles != shown) == (0 < len(shown) < len(chapters))
        lengths.add(len(shown))
    assert lengths == set(range(101))


@pytest.mark.parametrize(
    "wrong",
    [{"max_chunks": 101}, {"min_relevance": 1.5}, {"recall": 51}, {"collect": ["mail"]}, {"show": [""]},
     {"max_tokens": -1}, {"shows": []}],
)  # fmt: skip
def test_a_policy_that_cannot_hold_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        TypeAdapter(Template).validate_python({"name": "a", "memory_policy": wrong})
