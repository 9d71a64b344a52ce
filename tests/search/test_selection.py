"""The few tools of a step, out of many: policies, strategies, caps, versions."""

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest
from msgspec import structs

from longhouse.agents.template import Availability, Rules, SelectionStrategy, Template, ToolPolicy
from longhouse.agents.tool_descriptor import ToolDescriptor
from longhouse.journal.events import Limits, Prompted, Rights, Selection
from longhouse.journal.session import Session, Turn
from longhouse.search.finder import Finder
from longhouse.search.indexer import Indexer
from longhouse.search.selection import ToolSearchService
from longhouse.store.catalog.catalog import Catalog
from longhouse.store.database import Database
from search_helpers import Buckets, indexed, publish, tool
from server_helpers import turn_of

TOPICS = ("weather", "letter", "train", "recipe", "invoice", "museum", "doctor", "garden", "concert", "library")
CROWD = [tool(f"{topic}_{n}", f"Number {n} of all that is about a {topic}") for topic in TOPICS for n in range(6)]
FINAL = tool("final", "Ends the work", type="system")
SENDER = tool("invoice_sender", "Send an invoice")


async def opened(db: Database, *more: ToolDescriptor) -> ToolSearchService:
    finder = await indexed(db, FINAL, *CROWD, *more, embedder=Buckets())
    return ToolSearchService(Catalog(db), finder)


def template(**policy: Any) -> Template:
    return Template(name="tester", tool_policy=ToolPolicy(**{"required": ("final",), **policy}))


def limits(**more: Any) -> Limits:
    return Limits(max_iterations=5, max_clarifications=1, time_budget=60, **more)


def session(task: str = "the weather", owner: str = "ann", **fields: Any) -> Session:
    turn = Turn(
        trace="t",
        prompt=1,
        version=1,
        instance="i",
        limits=limits(),
        date="",
        started_at=datetime.now(UTC),
        worked_at=datetime.now(UTC),
        prompted=Prompted(trace="t", content=(task,)),
    )
    return Session(id="s_1", agent="tester", owner=owner, conversation="c", turn=turn, **fields)


async def names_of(service: ToolSearchService, one: Template, life: Session, **more: Any) -> list[str]:
    return [found.name for found in await service.get_tools_for_step(one, life, **more)]


async def test_select_puts_the_required_first_and_cuts_to_the_cap(db: Database) -> None:
    service = await opened(db)
    found = await service.select(template(max_tools_in_prompt=5), session(), "a letter", 10, "research", ["train_3"])
    names = [one.name for one in found]
    assert names[:2] == ["final", "train_3"]
    assert len(names) == 5
    assert all(name.startswith("letter_") for name in names[2:])
    few = await service.select(template(), session(), "a letter", 2, None, [])
    assert few[0].name == "final"
    assert len(few) == 3


async def test_select_is_the_same_every_time(db: Database) -> None:
    service = await opened(db)
    first = await service.select(template(), session(), "museum or garden", 8)
    for _ in range(3):
        assert await service.select(template(), session(), "museum or garden", 8) == first


@pytest.mark.parametrize("strategy", ["static", "retrieval_per_step", "retrieval_sticky"])
@pytest.mark.parametrize("required", [("final",), tuple(f"train_{n}" for n in range(6))])
async def test_no_strategy_passes_the_cap(db: Database, strategy: SelectionStrategy, required: tuple[str, ...]) -> None:
    service = await opened(db)
    one = template(
        selection_strategy=strategy,
        max_tools_in_prompt=4,
        required=required,
        allowlist=tuple(tool.name for tool in CROWD),
    )
    names = await names_of(service, one, session())
    assert names[: len(required)] == list(required)[:4]
    assert len(names) == 4


async def test_the_step_decides_what_is_offered(db: Database) -> None:
    service = await opened(db, SENDER)
    one = template(selection_strategy="retrieval_per_step", max_tools_in_prompt=4)
    assert set((await names_of(service, one, session("my garden")))[1:]) <= {f"garden_{n}" for n in range(6)}
    thought = {"current_step_reasoning": {"remaining_steps": ["send the invoice"]}}
    assert SENDER.name in await names_of(service, one, session("my garden", context=thought))


async def test_a_set_that_stays_begins_as_it_was(db: Database) -> None:
    service = await opened(db, SENDER)
    one = template(max_tools_in_prompt=6)
    first = await names_of(service, one, session("my garden"))
    life = session("my garden", offered=tuple(f"{name}@1" for name in first))
    assert await names_of(service, one, life) == first
    thought = {"current_step_reasoning": {"remaining_steps": ["send the invoice"]}}
    after = await names_of(service, one, structs.replace(life, context=thought))
    stayed = [name for name in first if name in after]
    assert after[: len(stayed)] == stayed
    assert SENDER.name in after
    assert len(after) == 6


async def test_what_was_offered_leaves_when_it_is_not_permitted_any_more(db: Database) -> None:
    service = await opened(db)
    one = template(max_tools_in_prompt=6)
    first = await names_of(service, one, session("my garden"))
    life = session("my garden", offered=tuple(f"{name}@1" for name in first))
    gone = first[2]
    await Catalog(db).tools.deactivate(gone)
    assert gone not in await names_of(service, one, life)
    denied = template(max_tools_in_prompt=6, denylist=(first[3],))
    assert first[3] not in await names_of(service, denied, life)


async def test_what_the_agent_found_itself_is_offered(db: Database) -> None:
    service = await opened(db)
    names = await names_of(service, template(max_tools_in_prompt=4), session("my garden"), hard_require=["concert_2"])
    assert "concert_2" in names
    assert len(names) == 4


async def test_few_named_tools_need_no_search(db: Database) -> None:
    await publish(db, FINAL, *CROWD)  # nothing is indexed
    service = ToolSearchService(Catalog(db), await indexed(db, embedder=None))
    one = template(allowlist=("train_1", "letter_2", "not_there"))
    assert await names_of(service, one, session("my garden")) == ["final", "train_1", "letter_2"]


async def test_without_an_index_what_the_policy_names_is_offered(db: Database) -> None:
    await publish(db, FINAL, *CROWD)
    service = ToolSearchService(Catalog(db), Finder(db, None))
    one = template(allowlist=("garden_*", *(tool.name for tool in CROWD)), max_tools_in_prompt=3)
    assert await names_of(service, one, session("my garden")) == ["final", "weather_0", "weather_1"]


@pytest.mark.parametrize("strategy", ["retrieval_per_step", "retrieval_sticky"])
@pytest.mark.parametrize("embedder", [None, Buckets()], ids=["words", "words and vectors"])
async def test_free_places_are_filled_with_what_the_policy_names(
    db: Database, strategy: SelectionStrategy, embedder: Buckets | None
) -> None:
    shop = [tool(f"shop.{n}", f"Number {n} of what the shop does") for n in range(6)]
    service = ToolSearchService(Catalog(db), await indexed(db, FINAL, *CROWD, *shop, embedder=embedder))
    trains = tuple(f"train_{n}" for n in range(6))
    one = template(max_tools_in_prompt=9, allowlist=("shop.*", *trains), selection_strategy=strategy)
    for task in ("Запомни: меня зовут Алия", "number 3 of what the shop does", "my garden", "记住"):
        names = await names_of(service, one, session(task))
        assert set(names) >= {"final", *trains}, task
        assert sum(name.startswith("shop.") for name in names) == 2, task
    crowded = replace(one, tool_policy=replace(one.tool_policy, max_tools_in_prompt=4))
    assert set(await names_of(service, crowded, session("what the shop does"))) <= {"final", *trains}
    named = await names_of(service, crowded, session("train 5 then train 3"))
    assert {"train_3", "train_5"} < set(named), "of what is named, the best for the step"
    assert len(named) == 4


async def test_the_word_of_the_stage_decides_nothing(db: Database) -> None:
    planning = [tool(f"planner_{n}", "Plan, research and synthesize") for n in range(6)]
    service = ToolSearchService(Catalog(db), await indexed(db, FINAL, *CROWD, *planning))
    gardens = tuple(f"garden_{n}" for n in range(6))
    one = template(max_tools_in_prompt=7, allowlist=(*gardens, *(tool.name for tool in planning)))
    asking = session("привет")
    assert await names_of(service, one, asking) == ["final", *gardens]
    for stage in (None, "plan", "synthesize"):
        selected = await service.select(one, asking, "привет", 6, stage)
        assert [found.name for found in selected] == ["final", *gardens], stage


async def test_a_stage_opens_and_closes_what_rules_say_of_it(db: Database) -> None:
    service = await opened(db)
    closing = Rules(availability=(Availability(when="stage == plan", exclude=("garden_1",)),))
    one = replace(template(max_tools_in_prompt=20), rules=closing)
    for stage, is_open in (("plan", False), ("research", True)):
        found = {tool.name for tool in await service.select(one, session(), "garden", 20, stage)}
        assert ("garden_1" in found) is is_open, stage


async def test_how_the_tools_were_chosen_is_told(db: Database) -> None:
    service = await opened(db)
    trains = tuple(f"train_{n}" for n in range(6))
    one = template(max_tools_in_prompt=4, allowlist=trains)
    life = session("train 4")
    _, told = await service.choose(one, life, turn_of(life))
    assert told is not None
    assert (told.query, told.stage, told.more) == ("train 4", "plan", 0)
    assert max(told.scores, key=lambda name: told.scores[name]) == "train_4"
    assert len(told.left_out) == 3
    assert set(told.left_out) < set(trains)
    _, whole = await service.choose(template(allowlist=trains), life, turn_of(life))
    assert whole is not None
    assert whole.left_out == (), "all of it fits"
    _, static = await service.choose(
        template(max_tools_in_prompt=4, allowlist=trains, selection_strategy="static"), life, turn_of(life)
    )
    assert static == Selection(stage="plan", left_out=trains[3:])


async def test_policies_hold_whatever_the_query(db: Database) -> None:
    service = await opened(db)
    await publish(
        db,
        tool("garden_foreign", "Number 1 of all that is about a garden", owner="bob"),
        tool("garden_risky", "Number 1 of all that is about a garden", risk="high"),
        tool("garden_picky", "Number 1 of all that is about a garden", templates=("gardener",)),
        tool("garden_root", "Number 1 of all that is about a garden", sub_agents=False),
    )
    await Indexer(db, Buckets()).catch_up()
    one = template(max_tools_in_prompt=50, max_risk_level="low")
    names = {found.name for found in await service.select(one, session(), "garden", 50)}
    assert "garden_root" in names
    assert not names & {"garden_foreign", "garden_risky", "garden_picky"}
    below = {found.name for found in await service.select(one, session(side="sub"), "garden", 50)}
    assert "garden_root" not in below


@pytest.mark.parametrize("strategy", ["static", "retrieval_per_step", "retrieval_sticky"])
async def test_what_was_offered_or_found_before_does_not_pass_an_allowlist(
    db: Database, strategy: SelectionStrategy
) -> None:
    service = await opened(db)
    trains = tuple(f"train_{n}" for n in range(6))
    one = template(max_tools_in_prompt=4, allowlist=trains, selection_strategy=strategy)
    life = session("my garden", offered=("garden_1@1", "train_2@1", "final@1"))
    assert set(await names_of(service, one, life, hard_require=["concert_2", "train_5"])) <= {"final", *trains}
    selected = await service.select(one, life, "a garden", 5, None, ["concert_2"])
    assert {found.name for found in selected} <= {"final", *trains}


@pytest.mark.parametrize("strategy", ["static", "retrieval_per_step", "retrieval_sticky"])
async def test_all_of_a_server_may_be_denied_by_the_policy_or_from_above(
    db: Database, strategy: SelectionStrategy
) -> None:
    shop = [tool(f"shop.{n}", f"Number {n} of what the shop does") for n in range(8)]
    service = ToolSearchService(Catalog(db), await indexed(db, FINAL, *CROWD, *shop, embedder=Buckets()))
    life = session("what the shop does", offered=("shop.3@1", "final@1"))
    assert life.turn is not None
    below = structs.replace(life, turn=structs.replace(life.turn, rights=Rights(denied=("shop.*",))))
    for named in (("shop.1", "shop.2", "train_1"), ("shop.*", "train_1"), None):
        denied = template(denylist=("shop.*",), selection_strategy=strategy, allowlist=named)
        open_to_all = template(selection_strategy=strategy, allowlist=named)
        for one, asking in ((denied, life), (open_to_all, below)):
            names = await names_of(service, one, asking, hard_require=["shop.5"])
            assert not any(name.startswith("shop.") for name in names), (strategy, named)
            assert "final" in names
            selected = await service.select(one, asking, "the shop", 5, None, ["shop.5"])
            assert not any(found.name.startswith("shop.") for found in selected)


async def test_a_lower_cap_keeps_what_is_required(db: Database) -> None:
    service = await opened(db)
    gardens = [f"garden_{n}" for n in range(6)]
    life = session("my garden", offered=tuple(f"{name}@1" for name in (*gardens, "concert_1", "final")))
    names = await names_of(service, template(max_tools_in_prompt=4), life)
    assert "final" in names
    assert len(names) == 4


async def test_what_a_rule_closes_takes_no_place(db: Database) -> None:
    searching = tool("websearchtool", "Search the web for news of a garden")
    service = ToolSearchService(Catalog(db), await indexed(db, FINAL, searching, *CROWD, embedder=Buckets()))
    life = session("search the web for news of my garden")
    assert life.turn is not None
    spent = structs.replace(life, turn=structs.replace(life.turn, searches_used=4, limits=limits(max_searches=4)))
    one = template(max_tools_in_prompt=4)
    assert "websearchtool" in await names_of(service, one, life)
    for names in (
        await names_of(service, one, spent),
        [found.name for found in await service.select(one, spent, "search the web for news of a garden", 3)],
    ):
        assert "websearchtool" not in names
        assert len(names) == 4, "another has its place"
    assert "websearchtool" not in {found.name for found in await service.select(one, spent, "web", 20)}


@pytest.mark.parametrize("allowlist", [None, ("train_1", "concert_2", "garden_1")])
async def test_what_a_rule_keeps_open_is_offered_however_badly_it_fits(
    db: Database, allowlist: tuple[str, ...] | None
) -> None:
    service = await opened(db)
    keeping = Rules(availability=(Availability(when="iteration == 0", keep_only=("train_1", "final")),))
    one = replace(template(max_tools_in_prompt=2, allowlist=allowlist), rules=keeping)
    assert await names_of(service, one, session("number 1 of my garden")) == ["final", "train_1"]


async def test_a_turn_keeps_the_version_it_was_offered(db: Database) -> None:
    service = await opened(db)
    await publish(db, tool("garden_0", "All that is about a garden, and more"))
    await Indexer(db, Buckets()).catch_up()
    life = session("my garden")
    assert life.turn is not None
    pinned = structs.replace(life, turn=structs.replace(life.turn, pins={"garden_0": 1}))
    one = template(max_tools_in_prompt=12)
    versions = {found.name: found.version for found in await service.select(one, pinned, "garden", 12)}
    assert versions["garden_0"] == 1
    versions = {found.name: found.version for found in await service.select(one, life, "garden", 12)}
    assert versions["garden_0"] == 2
