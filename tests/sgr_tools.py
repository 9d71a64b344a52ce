"""Tools as people bring them from SGR-Agent Core: in such a file nothing but the imports has to change."""

# ruff: noqa: ASYNC230, DTZ005

from __future__ import annotations

import json
import os
from datetime import datetime
from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import BaseModel, Field

from longhouse.tools import AgentStatesEnum, BaseTool, SearchResult, SourceData, TavilySearchService

if TYPE_CHECKING:
    from longhouse.tools import AgentConfig, AgentContext, ResearchContext

OAK, ELM = "https://trees.example/oak", "https://trees.example/elm"
SHELF = {OAK: ("Oak", "The oak grows slowly."), ELM: (None, "The elm likes water.")}


class ShelfSearchTool(BaseTool):
    """Look for pages on the shelf."""

    reasoning: str = Field(default="", description="What for")
    query: str = Field(description="A word")

    async def __call__(self, context: AgentContext, config: AgentConfig, **_) -> str:
        hits = [(url, title) for url, (title, text) in SHELF.items() if self.query in text]
        found = [
            SourceData(number=number, title=title, url=url, snippet=SHELF[url][1][:7])
            for number, (url, title) in enumerate(hits[: config.search.max_results], len(context.sources) + 1)
        ]
        for source in found:
            context.sources[source.url] = source
        context.searches.append(SearchResult(query=self.query, answer=None, citations=found, timestamp=datetime.now()))
        context.searches_used += 1
        return "\n".join([str(context.searches[-1]), *(f"{source} ({source.snippet})" for source in found)])


class ShelfReadTool(BaseTool):
    """Read pages of the shelf."""

    urls: list[str] = Field(min_length=1)

    async def __call__(self, context: ResearchContext, config: AgentConfig, **_) -> str:
        said = []
        for url in self.urls:
            page = SourceData(number=0, title=url.rsplit("/", 1)[-1], url=url, full_content=SHELF[url][1])
            page.char_count = len(page.full_content)
            if url in context.sources:
                known = context.sources[url]
                known.full_content = page.full_content
                known.char_count = page.char_count
            else:
                page.number = len(context.sources) + 1
                context.sources[url] = page
            source = context.sources[url]
            said.append(f"{source}\n{source.full_content[: config.search.content_limit]} ({source.char_count})")
        return "\n\n".join(said)


class FarShelfTool(BaseTool):
    """Look for pages on a shelf far away, and read them."""

    query: str
    is_read: bool = False

    async def __call__(self, context: AgentContext, config: AgentConfig, **_) -> str:
        self._service = TavilySearchService(config.search)
        found = await self._service.search(query=self.query, max_results=2, include_raw_content=self.is_read)
        found = TavilySearchService.rearrange_sources(found, starting_number=len(context.sources) + 1)
        for source in found:
            context.sources[source.url] = source
        again = await self._service.extract(urls=[source.url for source in found])
        return "\n".join(f"{one} {one.char_count}" for one in (*found, *again))


class ShelfReportTool(BaseTool):
    """Write down what was found."""

    title: str
    content: str

    async def __call__(self, context: AgentContext, config: AgentConfig, **_) -> str:
        folder, path = config.execution.reports_dir, None
        if folder:
            os.makedirs(folder, exist_ok=True)
            path = os.path.join(folder, f"{self.title}.md")
            listed = "\n".join(str(source) for source in context.sources.values())
            with open(path, "w", encoding="utf-8") as file:
                file.write(f"# {self.title}\n\n{self.content}\n\n## Sources\n\n{listed}\n")
        return json.dumps({"title": self.title, "sources_count": len(context.sources), "filepath": path})


class EagerReportTool(BaseTool):
    """Write down what was found, without asking whether there is a place for it."""

    tool_name: ClassVar[str] = "eagerreport"

    async def __call__(self, context: AgentContext, config: AgentConfig, **_) -> str:
        os.makedirs(config.execution.reports_dir, exist_ok=True)
        return "\n".join(os.listdir(config.execution.reports_dir))


class ModelNameTool(BaseTool):
    """Say which model is asked."""

    async def __call__(self, context: AgentContext, config: AgentConfig, **_) -> str:
        return f"{config.llm.model}, {config.llm.max_tokens} tokens at {config.llm.temperature}"


class Tally(BaseModel):
    count: int = 0
    names: list[str] = Field(default_factory=list)


class TallyTool(BaseTool):
    """Count names."""

    name: str

    async def __call__(self, context: AgentContext, config: AgentConfig, **_) -> str:
        if context.custom_context is None:
            context.custom_context = Tally()
        context.custom_context.count += 1
        context.custom_context.names.append(self.name)
        return f"{context.custom_context.count}: {', '.join(context.custom_context.names)}"


class PlanNoteTool(BaseTool):
    """Say what is left to do."""

    async def __call__(self, context: AgentContext, config: AgentConfig, **_) -> str:
        reasoning = context.current_step_reasoning
        return "; ".join(reasoning.remaining_steps) if reasoning else "no plan"


class ShelfAnswerTool(BaseTool):
    """Give the answer."""

    answer: str
    status: Literal[AgentStatesEnum.COMPLETED, AgentStatesEnum.FAILED] = Field(description="How it went")

    async def __call__(self, context: AgentContext, config: AgentConfig, **_) -> str:
        assert context.state == AgentStatesEnum.RESEARCHING
        assert context.state not in AgentStatesEnum.FINISH_STATES.value
        context.state = self.status
        context.execution_result = self.answer
        return self.model_dump_json(indent=2)


EVERY = (
    ShelfSearchTool, ShelfReadTool, FarShelfTool, ShelfReportTool, EagerReportTool, ModelNameTool, TallyTool,
    PlanNoteTool, ShelfAnswerTool,
)  # fmt: skip
