"""Search finds what fits, in words and in vectors, and never what it may not."""

from collections.abc import Sequence
from itertools import count
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from longhouse.agents.template import MultiAgentMeta, Template, ToolPolicy
from longhouse.agents.tool_descriptor import SecurityOverlay
from longhouse.errors import ProviderError
from longhouse.models.protocol import Embedder
from longhouse.search.directory import AgentDirectory
from longhouse.search.finder import NARROW, WHOLE, Finder, SearchHit, _Scored
from longhouse.search.indexer import Indexer
from longhouse.search.kept_results import KeptResults
from longhouse.store.catalog.catalog import Catalog
from longhouse.store.database import Database
from longhouse.store.search.query import SearchFilters
from search_helpers import Buckets, found, indexed, publish, tool

WEATHER = tool("get_forecast", "The weather of the next days in a city", "city")
LETTER = tool("sendLetter", "Deliver a letter by post", "recipient", "stamp_value")
TRAIN = tool("railway.timetable", "Departures of trains from a station", "station")
SOME = (WEATHER, LETTER, TRAIN)


@pytest.fixture(params=["words", "vectors"])
def embedder(request: pytest.FixtureRequest) -> Embedder | None:
    return None if request.param == "words" else Buckets()


ASKED = {
    "Will the weather be fine?": "get_forecast",
    "send a letter to my aunt": "sendLetter",
    "which stamp do I need": "sendLetter",
    "railwayTimetable": "railway.timetable",
    "when do trains depart": "railway.timetable",
}


async def test_a_tool_is_found_by_its_name_its_description_and_its_parameters(
    db: Database, embedder: Embedder | None
) -> None:
    finder = await indexed(db, *SOME, embedder=embedder)
    assert {query: (await found(finder, query))[0] for query in ASKED} == ASKED


async def test_each_leg_says_what_it_found(db: Database) -> None:
    finder = await indexed(db, *SOME, embedder=Buckets())
    best = (await finder.tools("weather of a city", SearchFilters(), 3))[0]
    assert best.name == "get_forecast"
    assert best.version == 1
    assert 0 < best.lexical <= 1
    assert best.semantic is not None
    assert 0 < best.semantic <= 1
    assert best.clause is None
    words = await indexed(db, embedder=None)
    assert (await words.tools("weather of a city", SearchFilters(), 3))[0].semantic is None


async def test_nothing_is_found_where_there_is_nothing_to_ask_or_to_find(db: Database) -> None:
    assert await found(Finder(db, None), "weather") == []
    finder = await indexed(db, *SOME)
    assert await found(finder, "") == []
    assert await found(finder, "the of a") == []
    assert await found(finder, "weather", top_k=0) == []
    assert await found(finder, "weather", allow=()) == []


async def test_another_owners_tools_are_never_ranked(db: Database, embedder: Embedder | None) -> None:
    own = tool("own_weather", "The weather in a city, for ann", owner="ann")
    theirs = [tool(f"their_weather_{n}", "The weather in a city, for bob", owner="bob") for n in range(20)]
    finder = await indexed(db, WEATHER, own, *theirs, embedder=embedder)
    assert set(await found(finder, "weather in a city for bob", caller="ann")) == {"own_weather", "get_forecast"}
    assert set(await found(finder, "weather in a city for bob", caller=None)) == {"get_forecast"}
    assert len(await found(finder, "weather in a city for bob", top_k=50, caller="bob")) == 21
    assert set(await found(finder, "weather", caller="ann", allow=("their_weather_1", "own_weather"))) == {
        "own_weather"
    }


async def test_another_owners_words_do_not_change_what_a_word_is_worth(db: Database) -> None:
    finder = await indexed(db, *SOME)
    before = await finder.tools("weather city", SearchFilters(caller="ann"), 5)
    await publish(db, *(tool(f"x{n}", "weather", owner="bob") for n in range(50)))
    await Indexer(db, None).catch_up()
    assert await finder.tools("weather city", SearchFilters(caller="ann"), 5) == before


async def test_a_tool_that_changes_hands_goes_with_all_it_says(db: Database) -> None:
    finder = await indexed(db, *SOME)
    await publish(db, tool("get_forecast", "The weather of the next days in a city", "city", owner="bob"))
    assert await found(finder, "weather", caller="ann") == []  # at once, before the index has followed
    await Indexer(db, None).catch_up()
    assert await found(finder, "weather", caller="ann") == []
    assert await found(finder, "weather", caller="bob") == ["get_forecast"]


@pytest.mark.parametrize("retire", [True, False])
async def test_an_inactive_tool_is_gone_at_once_and_stays_gone(db: Database, retire: bool) -> None:
    finder = await indexed(db, *SOME)
    await Catalog(db).tools.deactivate("get_forecast", retire=retire)
    assert await found(finder, "weather") == []
    await Indexer(db, None).catch_up()
    assert await found(finder, "weather") == []
    assert await found(finder, "letter") == ["sendLetter"]


async def test_policies_are_applied_before_ranking(db: Database) -> None:
    finder = await indexed(
        db,
        tool("weather.a", "weather", type="system", tags=("sky",)),
        tool("weather.b", "weather", risk="high", categories=("sky",)),
        tool("weather.c", "weather", templates=("meteorologist",)),
        tool("weather.d", "weather", sub_agents=False),
        tool("weatherXe", "weather", type="meta", risk="medium"),
    )

    async def names(**filters: Any) -> str:
        return "".join(sorted(name[-1] for name in await found(finder, "weather", **filters)))

    assert await names() == "abde"
    assert await names(template="meteorologist") == "abcde"
    assert await names(is_sub=True) == "abe"
    assert await names(types=("system", "meta")) == "ae"
    assert await names(tags=("sky",)) == "ab"
    assert await names(max_risk="low") == "ad"
    assert await names(max_risk="medium") == "ade"
    assert await names(deny=("weather.a",)) == "bde"
    assert await names(deny=("weather.*",)) == "e"
    assert await names(allow=("weather.*",)) == "abd"
    assert await names(allow=("weather.a", "weatherXe")) == "ae"
    assert await names(allow=("weather.a", "weatherXe"), deny=("weather.a",)) == "e"


async def test_what_is_not_permitted_takes_nobodys_place(db: Database, embedder: Embedder | None) -> None:
    """More texts than are looked at one by one; those that fit best are all forbidden."""
    crowd = [tool(f"forbidden_{n}", "weather in the city", risk="high") for n in range(2 * WHOLE)]
    rest = [tool(f"other_{n}", f"something else {n}") for n in range(NARROW)]
    modest = [tool(f"modest_{n}", f"weather among many other things that this tool can do {n}") for n in range(3)]
    finder = await indexed(db, *crowd, *rest, *modest, embedder=embedder)
    best = await found(finder, "weather city", top_k=3, max_risk="low")
    assert set(best) == {"modest_0", "modest_1", "modest_2"}
    assert await found(finder, "weather city", top_k=1, deny=("forbidden_*",), types=("meta",)) == []


async def test_reading_those_that_decide_finds_what_reading_all_would(
    db: Database, embedder: Embedder | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of many tools, those are read that can be found; some of them may not be used, and some are as good as others."""
    places, things = ("city", "station", "harbour", "village", "island"), ("weather", "letter", "train", "ship")
    many = [
        tool(
            f"tool_{n:04}",
            f"The {things[n % 4]} {n % 9} of the {places[n % 5]}, then the {things[n % 3]}",
            risk="high" if n % 50 == 3 else "low",
            templates=("postman",) if n % 40 == 7 else None,
        )
        for n in range(NARROW + 100)
    ]
    finder = await indexed(db, *many, embedder=embedder)
    questions = (
        "weather of the city 3",
        "Tell me of the trains on an island. Then send a letter 5 from the harbour of the village.",
        "ship",
        "nothing of the kind",
    )
    denied = SearchFilters(deny=tuple(one.name for one in many[::7]))
    filters = [SearchFilters(), SearchFilters(max_risk="low", template="postman"), denied]

    async def hits() -> list[list[SearchHit]]:
        finder._found = KeptResults(1)
        return [await finder.tools(asked, one, 12) for asked in questions for one in filters]

    briefly = await hits()
    monkeypatch.setattr(_Scored, "decisive", lambda self, top_k: np.arange(len(self.scores)))
    for brief, whole in zip(briefly, await hits(), strict=True):
        assert [hit.name for hit in brief] == [hit.name for hit in whole]
        assert [hit.score for hit in brief] == pytest.approx([hit.score for hit in whole], abs=1e-5)
    assert len(briefly[0]) == 12
    assert not {hit.name for hits in briefly[2::3] for hit in hits} & {*denied.deny}


async def test_among_many_a_tool_is_found_as_it_is_now_whether_it_was_indexed_since_or_not(db: Database) -> None:
    many = [tool(f"other_{n}", f"something else {n}") for n in range(NARROW + 10)]
    finder, catalog, indexer = await indexed(db, *SOME, *many), Catalog(db), Indexer(db, None)

    async def weather() -> list[tuple[str, int]]:
        return [(hit.name, hit.version) for hit in await finder.tools("weather forecast", SearchFilters(), 5)]

    assert await weather() == [("get_forecast", 1)]
    await publish(db, tool("get_forecast", "The weather of tomorrow", "city"))
    assert await weather() == [("get_forecast", 2)], "the index is behind"
    await indexer.catch_up()
    assert await weather() == [("get_forecast", 2)]
    await catalog.tools.activate("get_forecast", 1)
    assert await weather() == [("get_forecast", 1)]
    await indexer.catch_up()
    assert await weather() == [("get_forecast", 1)]
    await catalog.tools.deactivate("get_forecast")
    assert await weather() == []
    await indexer.catch_up()
    assert await weather() == []


@pytest.mark.parametrize("change", ["publish", "deactivate", "retire", "overlay", "owner"])
async def test_what_changes_while_a_question_is_embedded_is_found_as_it_is_then(db: Database, change: str) -> None:
    catalog, many = Catalog(db), [tool(f"other_{n}", f"something else {n}") for n in range(NARROW + 10)]

    class Slow(Buckets):
        is_asked = False

        async def embed(self, texts: Sequence[str]) -> npt.NDArray[np.float32]:
            if self.is_asked:
                self.is_asked = False
                await happens()
            return await super().embed(texts)

    async def happens() -> None:
        match change:
            case "publish":
                await publish(db, tool("get_forecast", "The weather of tomorrow", "city"))
            case "deactivate" | "retire":
                await catalog.tools.deactivate("get_forecast", retire=change == "retire")
            case "overlay":
                await catalog.overlay("get_forecast", SecurityOverlay(risk_level="low"), seen=None, by="ops")
            case "owner":
                await db.run("UPDATE catalog_names SET owner = 'bob' WHERE name = 'get_forecast'")
                await db.run("UPDATE catalog_generation SET generation = generation + 1 WHERE kind = 'tool'")

    embedder = Slow()
    finder = await indexed(db, *SOME, *many, embedder=embedder)
    embedder.is_asked = True
    hits = await finder.tools("the weather of the next days in a city", SearchFilters(caller="ann"), 3)
    seen = {hit.name: hit.version for hit in hits}.get("get_forecast")
    assert not embedder.is_asked
    assert seen == {"publish": 2, "overlay": 1}.get(change)


async def test_keywords_do_not_buy_a_place(db: Database) -> None:
    words = "weather city forecast rain days next letter post train station departures send get"
    stuffed = tool("best_tool", f"{words} " * 140)
    listed = tool("all_in_one", " ".join(f"{word} {word}s x{n}" for n, word in enumerate(f"{words} ".split() * 9)))
    finder = await indexed(db, *SOME, stuffed, listed, embedder=Buckets())
    assert (await found(finder, "the weather of the next days in a city"))[0] == "get_forecast"
    assert (await found(finder, "deliver a letter by post"))[0] == "sendLetter"
    assert (await found(finder, "departures of trains from a station"))[0] == "railway.timetable"


async def test_hostile_words_are_only_words(db: Database) -> None:
    odd = tool('we"ird\\{name}', "Does '; DROP TABLE search_documents; -- odd things", tags=('a"b\\c', "{x,y}", ""))
    finder = await indexed(db, odd, *SOME, embedder=Buckets())
    assert (await found(finder, "'; DROP TABLE search_documents; --"))[0] == odd.name
    assert await found(finder, "odd", tags=('a"b\\c',)) == [odd.name]
    assert await found(finder, "weather" * 5000) is not None
    assert await found(finder, "weather", allow=("%",), deny=("_*",)) == []


async def test_agents_are_found_by_what_they_say_and_by_their_tools(db: Database) -> None:
    await indexed(db, *SOME, tool("secret_radar", "Storm radar", owner="bob"))
    await Catalog(db).templates.publish(
        [
            agent("postman", "Brings what you have written", "sendLetter"),
            agent("traveller", "Plans journeys", "railway.*", "secret_radar"),
            agent("bobs", "Weather for bob", "get_forecast", owner="bob"),
            agent("talker", "Small talk and jokes"),
        ],
        by="test",
    )
    await Indexer(db, None).catch_up()
    directory = AgentDirectory(Finder(db, None))

    async def names(query: str, owner: str | None = None) -> list[str]:
        return [hit.name for hit in await directory.search(query, 3, owner=owner)]

    assert (await names("tell me jokes"))[0] == "talker"
    assert (await names("journeys"))[0] == "traveller"
    assert (await names("departures at the station"))[0] == "traveller"
    assert (await names("a stamp for my letter"))[0] == "postman"
    assert await names("storm radar", "ann") == []  # a tool that she may not see is no reason
    assert await names("weather in my city", "ann") == []
    assert await names("weather in my city", "bob") == ["bobs"]
    best = (await directory.search("departures at the station", 1))[0]
    assert best.tool is not None
    assert best.tool.name == "railway.timetable"
    assert 0 < best.confidence <= 1


def agent(name: str, capabilities: str, *tools: str, owner: str | None = None) -> Template:
    return Template(
        name=name,
        tool_policy=ToolPolicy(allowlist=tools),
        multi_agent_meta=MultiAgentMeta(capabilities=capabilities),
        owner=owner,
    )


async def test_what_was_found_before_is_found_again_until_something_changes(
    db: Database, embedder: Embedder | None
) -> None:
    """Another process changes catalog and index: the next search sees it, as if nothing had been kept."""
    finder, asked = await indexed(db, *SOME, embedder=embedder), "send a letter by post"
    elsewhere, times = Catalog(db), count()

    async def seen(**filters: Any) -> list[str]:
        kept = await found(finder, asked, **filters)
        assert kept == await found(finder, asked, **filters) == await found(Finder(db, embedder), asked, **filters)
        # Another question, which has the same tools to choose from.
        other = f"a parcel or a letter, for the time number {next(times)}"
        assert await found(finder, other, **filters) == await found(Finder(db, embedder), other, **filters)
        return kept

    assert "sendLetter" in await seen()
    assert "sendLetter" not in await seen(deny=("sendLetter",)), "other filters are another search"
    assert await found(finder, asked, top_k=0) == []
    (await finder.tools(asked, SearchFilters(), 10)).clear()
    assert "sendLetter" in await seen(), "what a caller does with its hits is its own"
    assert asked not in str(vars(finder._found)), "what people have said is not kept"
    assert finder._found._found

    await publish(db, tool("post.parcel", "Send a letter or a parcel by post"))
    assert "post.parcel" not in await seen()
    await Indexer(db, embedder).catch_up()
    assert "post.parcel" in await seen()
    await elsewhere.tools.deactivate("sendLetter")
    assert "sendLetter" not in await seen(), "before it is indexed"
    await publish(db, tool("sendLetter", "Deliver a letter by post, and by night"))
    await Indexer(db, embedder).catch_up()
    assert {hit.name: hit.version for hit in await finder.tools(asked, SearchFilters(), 10)}["sendLetter"] == 2
    await elsewhere.overlays.set("post.parcel", SecurityOverlay(risk_level="high"), seen=None, by="test")
    await Indexer(db, embedder).catch_up()
    assert "post.parcel" not in await seen(max_risk="low")


async def test_what_was_found_without_a_vector_is_not_kept(db: Database) -> None:
    class Failing(Buckets):
        fails = True

        async def embed(self, texts: Any) -> Any:
            if self.fails:
                raise ProviderError("it is away", retryable=True)
            return await super().embed(texts)

    embedder = Failing()
    await indexed(db, *SOME, embedder=Buckets())
    finder = Finder(db, embedder)
    assert (await finder.tools("send a letter", SearchFilters(), 1))[0].semantic is None
    embedder.fails = False
    finder._queries._bounded._retry_at = 0.0
    assert (await finder.tools("send a letter", SearchFilters(), 1))[0].semantic is not None
