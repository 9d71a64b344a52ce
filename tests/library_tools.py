"""Reading tools as a library of regulations would bring them, with results that are remembered."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from longhouse.agents.strategies.protocol import Body
from longhouse.journal.messages import User, text_of
from longhouse.models.scripted import Say, call, step_of
from longhouse.tools import BaseTool, ToolContext

REG_ID = "angui_2024"
TOC = {
    "reg_id": REG_ID,
    "title": "安全规程",
    "total_pages": 120,
    "items": [{"title": "第一章 总则", "page": 1, "children": [{"title": "1.1 适用范围", "page": 2}]}],
}
FACTS: Mapping[str, tuple[int, str]] = {
    "母线": (85, "母线失压时应立即断开电源侧断路器。"),
    "breaker": (40, "A breaker is opened before its isolator."),
    "заземление": (12, "Заземление накладывают сразу после проверки отсутствия напряжения."),
}
"""Topic -> the page that tells of it, and what it says."""
DONE = call("finalanswertool", answer="Done.")


@dataclass
class Library:
    """Three tools and what they did: `runs` are the calls that really ran."""

    state: str = "v1"
    runs: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        library = self

        class Toc(BaseTool):
            """The table of contents of a regulation."""

            tool_name = "library_toc"
            remembers = "outline"
            reg_id: str
            max_depth: int = 3

            async def __call__(self, context: ToolContext, config: Any = None, **kwargs: Any) -> str:
                library.runs.append("toc")
                return json.dumps({**TOC, "state": library.state}, ensure_ascii=False)

            async def revision(self, context: ToolContext) -> str:
                return library.state

        class Search(BaseTool):
            """Search a regulation."""

            tool_name = "library_search"
            remembers = "search"
            query: str
            reg_id: str = REG_ID

            async def __call__(self, context: ToolContext, config: Any = None, **kwargs: Any) -> str:
                library.runs.append("search")
                page, text = FACTS[self.query]
                found = {"content": text, "reg_id": REG_ID, "page": page, "score": 0.9}
                weak = {"content": f"Nothing about {self.query}.", "reg_id": REG_ID, "page": 1, "score": 0.2}
                return json.dumps([found, weak], ensure_ascii=False)

        class Pages(BaseTool):
            """Read pages of a regulation."""

            tool_name = "library_pages"
            remembers = "page"
            reg_id: str = REG_ID
            start_page: int
            end_page: int

            async def __call__(self, context: ToolContext, config: Any = None, **kwargs: Any) -> str:
                library.runs.append("pages")
                text = next((text for page, text in FACTS.values() if page == self.start_page), "An empty page.")
                return json.dumps({"reg_id": REG_ID, "pages": [{"page": self.start_page, "content": f"Page: {text}"}]})

        self.tools: tuple[type[BaseTool], ...] = (Toc, Search, Pages)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(cls.tool_name for cls in self.tools)


def system_of(body: Body) -> str:
    return text_of(body.messages[0].content or "")


def topic_of(body: Body) -> str:
    """The topic of the last question."""
    asked = [text_of(one.content) for one in body.messages if isinstance(one, User)][-1]
    return next((topic for topic in FACTS if topic in asked), "")


def repeating(body: Body) -> Say:
    """A model that looks everything up in every turn, whatever it was told before."""
    topic, step = topic_of(body), step_of(body.messages)
    page = FACTS[topic][0]
    steps = (
        call("library_toc", reg_id=REG_ID),
        call("library_search", query=topic),
        call("library_pages", start_page=page, end_page=page),
    )
    return steps[step] if step < len(steps) else DONE


def obedient(body: Body) -> Say:
    """A model that looks up only what its system prompt does not tell yet, and answers from there."""
    topic, system = topic_of(body), system_of(body)
    if "get_toc()" not in system:
        return call("library_toc", reg_id=REG_ID)
    fact = FACTS[topic][1]
    return call("finalanswertool", answer=fact) if fact in system else call("library_search", query=topic)
