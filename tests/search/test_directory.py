"""The directory ranks agents by what speaks for them, and by nothing else."""

import pytest

from longhouse.agents.template import MultiAgentMeta, PromptPack, Template, ToolPolicy
from longhouse.app.publish import publish_classes
from longhouse.models import embedding_table
from longhouse.models.protocol import Embedder
from longhouse.search.directory import AgentDirectory, AgentHit
from longhouse.search.finder import Finder
from longhouse.search.indexer import Indexer
from longhouse.store.catalog.catalog import Catalog
from longhouse.store.database import Database
from longhouse.tools.builtin.clock import ClockTool
from longhouse.tools.builtin.dialogue import ClarificationTool, FinalAnswerTool
from search_helpers import publish, tool


@pytest.fixture(params=["words", "words and vectors"])
async def embedder(request: pytest.FixtureRequest) -> Embedder | None:
    return None if request.param == "words" else embedding_table.EmbeddedEmbedder()


def agent(name: str, can: str, *tools: str, prompt: str = "You are an agent.") -> Template:
    policy, meta = ToolPolicy(allowlist=tools), MultiAgentMeta(capabilities=can)
    return Template(name=name, tool_policy=policy, multi_agent_meta=meta, prompt_pack=PromptPack(system_prompt=prompt))


async def house(db: Database, embedder: Embedder | None, *templates: Template) -> AgentDirectory:
    await publish_classes(Catalog(db), (FinalAnswerTool, ClarificationTool, ClockTool))
    await publish(
        db,
        tool("units.convert", "Converts litres, miles and degrees", "from_unit", "to_unit"),
        tool("rail.timetable", "Departures of trains from a station", "station"),
    )
    await Catalog(db).templates.publish(templates, by="test")
    assert await Indexer(db, embedder).catch_up()
    return AgentDirectory(Finder(db, embedder))


async def found(directory: AgentDirectory, query: str) -> list[AgentHit]:
    return await directory.search(query, 10)


async def test_a_tool_that_does_not_fit_is_no_reason(db: Database, embedder: Embedder | None) -> None:
    directory = await house(
        db,
        embedder,
        agent("lawyer", "Reads contracts, explains clauses and finds legal risks."),
        agent("clerk", "Files papers.", "units.convert"),
        agent("talker", "Chats.", "finalanswertool", "clarificationtool", "clocktool"),
    )
    for query in (
        "Which clauses of this contract are a legal risk?",
        "Is there a legal risk in what I asked, in degrees from one to ten?",
    ):
        best = (await found(directory, query))[0]
        assert (best.name, best.tool) == ("lawyer", None), query
        assert best.is_sure


async def test_a_tool_that_fits_still_is_one(db: Database, embedder: Embedder | None) -> None:
    directory = await house(
        db,
        embedder,
        agent("lawyer", "Reads contracts, explains clauses and finds legal risks."),
        agent("porter", "Helps guests.", "rail.timetable"),
    )
    best = (await found(directory, "departures of trains from the main station"))[0]
    assert best.name == "porter"
    assert best.tool is not None
    assert best.tool.name == "rail.timetable"


async def test_what_an_agent_can_do_speaks_for_it_and_not_for_who_may_call_it(
    db: Database, embedder: Embedder | None
) -> None:
    directory = await house(
        db,
        embedder,
        agent("head", "Leads a team.", "agent.lawyer", "agent.cook", "finalanswertool"),
        agent("lawyer", "Reads contracts, explains clauses and finds legal risks."),
        agent("cook", "Plans meals and finds recipes."),
    )
    for query, expected in (
        ("Which clauses of this contract are a legal risk?", "lawyer"),
        ("Find a recipe for dinner", "cook"),
    ):
        hits = {hit.name: hit for hit in await found(directory, query)}
        assert next(iter(hits)) == expected
        if "head" in hits:
            assert hits["head"].tool is None
            assert not hits["head"].is_sure


async def test_of_many_agents_with_the_same_tools_the_words_of_these_say_nothing(
    db: Database, embedder: Embedder | None
) -> None:
    """Every agent can ask for a clarification and give a final answer."""
    directory = await house(
        db,
        embedder,
        agent("recruiter", "Hires people: writes vacancies and prepares questions for interviews."),
        agent("talker", "Chats.", "finalanswertool", "clarificationtool"),
    )
    for query in ("Ask the user a clarifying question", "Which questions should I ask in the interview?"):
        hits = await found(directory, query)
        assert not [hit.name for hit in hits if hit.tool], query
    assert hits[0].name == "recruiter"


async def test_an_agent_that_says_nothing_of_itself_is_found_by_its_prompt(
    db: Database, embedder: Embedder | None
) -> None:
    directory = await house(
        db,
        embedder,
        agent("b7", "", prompt="You are a gardener. You know when to sow tomatoes and how to treat sick roses."),
        agent("b8", "", prompt="You are a tax adviser. You fill in declarations."),
        Template(name="plain"),
    )
    assert [hit.name for hit in await found(directory, "When do I sow tomatoes?") if hit.is_sure] == ["b7"]
    assert "plain" not in [hit.name for hit in await found(directory, "works step by step with tools")]
