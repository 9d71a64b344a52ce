"""On which terms versions are added: over whose, from what was seen, whose they stay, apart from look-alikes."""

import asyncio
from functools import partial
from typing import Any

import pytest
from unsteady_connection import COMMIT, unsteady

from longhouse.agents.template import MultiAgentMeta, Template
from longhouse.agents.tool_descriptor import RuntimeBinding, ToolDescriptor
from longhouse.journal.events import Fault
from longhouse.store.catalog.catalog import Catalog
from longhouse.store.catalog.publish import ConcurrentChange, PublishTerms, retry_on_change
from longhouse.store.database import Database
from longhouse.store.erasing import erasures
from longhouse.tools.bindings.base import Binding
from longhouse.tools.toolbox import Toolbox
from search_helpers import generation

OURS = PublishTerms(over=("us",))


def tool(name: str = "price", text: str = "Looks up a price.", **more: Any) -> ToolDescriptor:
    binding = RuntimeBinding(remote_endpoint="https://shop.example/")
    return ToolDescriptor(name=name, description_short=text, runtime_binding=binding, **more)


def template(can: str = "", **more: Any) -> Template:
    return Template(**{"name": "clerk", "multi_agent_meta": MultiAgentMeta(capabilities=can), **more})


@pytest.fixture
def catalog(db: Database) -> Catalog:
    return Catalog(db)


async def publish(
    catalog: Catalog, text: str, by: str = "us", terms: PublishTerms = OURS, **more: Any
) -> tuple[int, bool]:
    [one] = await catalog.tools.publish([tool(text=text)], by=by, terms=terms, **more)
    return one.version, one.is_active


async def test_what_gives_way_to_its_own_publisher_waits_behind_anybody_elses(catalog: Catalog) -> None:
    assert await publish(catalog, "one") == (1, True)
    assert await publish(catalog, "two") == (2, True)
    assert await publish(catalog, "theirs", by="them", terms=PublishTerms()) == (3, True)
    assert await publish(catalog, "three") == (4, False)
    assert await publish(catalog, "one", again=True) == (1, False)
    assert await catalog.tools.active("price") == 3
    await catalog.tools.activate("price", 4)
    assert await publish(catalog, "four") == (5, True)
    assert await catalog.tools.roll_back("price") == 4


async def test_what_is_deactivated_or_retired_stays_so(catalog: Catalog) -> None:
    await publish(catalog, "one")
    await catalog.tools.deactivate("price")
    assert await publish(catalog, "two") == (2, False)
    assert await catalog.tools.active("price") is None
    await catalog.tools.deactivate("price", retire=True)
    assert await publish(catalog, "three") == (3, False)
    assert await catalog.tools.named("price") is None
    assert await publish(catalog, "three", by="them", terms=PublishTerms()) == (3, True)


async def test_a_change_of_what_others_have_changed_meanwhile_is_outrun_as_a_whole(catalog: Catalog) -> None:
    await publish(catalog, "one")
    seen = PublishTerms(seen={"price": 1})
    assert await publish(catalog, "two", terms=seen) == (2, True)
    before = await generation(catalog.tools)
    with pytest.raises(ConcurrentChange):
        await catalog.tools.publish([tool("cost"), tool(text="three")], by="us", terms=seen)
    assert await catalog.tools.named("cost") is None
    assert len(await catalog.tools.versions("price")) == 2
    assert await generation(catalog.tools) == before
    await catalog.tools.deactivate("price")
    assert await publish(catalog, "three", terms=PublishTerms(seen={"price": 2})) == (3, True), (
        "the latest where none is"
    )
    await catalog.tools.deactivate("price", retire=True)
    with pytest.raises(ConcurrentChange):
        await publish(catalog, "four", terms=PublishTerms(seen={"price": 3}))


async def test_of_changes_at_once_none_is_lost(catalog: Catalog) -> None:
    await catalog.tools.publish([tool()], by="us")

    async def add(tag: str) -> None:
        found = await catalog.tools.find("price")
        assert found is not None
        changed = tool(tags=(*found.tags, tag))
        await catalog.tools.publish([changed], by="us", terms=PublishTerms(seen={"price": found.version}))

    tags = [f"tag {n}" for n in range(5)]
    await asyncio.gather(*(retry_on_change(partial(add, tag)) for tag in tags))
    found = await catalog.tools.find("price")
    assert found is not None
    assert sorted(found.tags) == tags


async def test_who_is_always_outrun_is_told_so_in_the_end(catalog: Catalog) -> None:
    await catalog.tools.publish([tool()], by="us")
    with pytest.raises(ConcurrentChange) as error:
        await retry_on_change(lambda: publish(catalog, "two", terms=PublishTerms(seen={"price": 7})))
    assert (error.value.status, error.value.code) == (409, "changed_meanwhile")


async def test_names_that_differ_in_case_alone_never_come_side_by_side(catalog: Catalog) -> None:
    names = ["price", "Price", "PRICE", "pricE"]
    apart = PublishTerms(apart=True)
    told = await asyncio.gather(
        *(catalog.tools.publish([tool(name)], by="us", terms=apart) for name in names), return_exceptions=True
    )
    assert [type(one) for one in told].count(ConcurrentChange) == 3
    [there] = await catalog.tools.names()
    [same] = await catalog.tools.publish([tool(there, "next")], by="us", terms=apart)
    assert same.version == 2


async def test_a_name_stays_whose_it_is_until_another_owner_is_named(catalog: Catalog) -> None:
    shelf, kept = catalog.tools, PublishTerms(keep_owner=["price"])
    await shelf.publish([tool(owner="ann")], by="us", terms=kept)
    await shelf.publish([tool(text="two")], by="us", terms=kept)
    await shelf.publish([tool(text="draft", owner="bob")], by="us", activate=False)
    assert await shelf.names(owner="bob") == []
    named = await shelf.named("price")
    assert named is not None
    assert (named.owner, named.descriptor["owner"]) == ("ann", "ann")
    await shelf.publish([tool(text="two", owner="bob")], by="us")
    for one in await shelf.versions("price"):
        assert one.descriptor["owner"] == "bob", "whose it is is said of the name, and so of every version"
    assert await shelf.names(owner="ann") == []
    await shelf.publish([tool(text="three")], by="us")
    assert await shelf.names(owner="ann") == ["price"]


async def test_the_tool_of_an_agent_is_whose_the_agent_is(catalog: Catalog) -> None:
    async def owner() -> str | None:
        named = await catalog.tools.named("agent.clerk")
        assert named is not None
        return named.owner

    await catalog.templates.publish([template()], by="us")
    await catalog.templates.publish([template(owner="ann")], by="us")
    assert await owner() == "ann"
    await catalog.templates.publish([template("Writes.")], by="us", terms=PublishTerms(keep_owner=["clerk"]))
    assert await owner() == "ann"
    await catalog.templates.roll_back("clerk")
    assert await owner() == "ann"
    await catalog.templates.activate("clerk", 2)
    assert await owner() == "ann"
    await catalog.templates.publish([template()], by="us")
    assert await owner() is None


async def test_the_tool_of_an_agent_stays_deactivated_unless_somebody_moves_the_agent(catalog: Catalog) -> None:
    await catalog.templates.publish([template()], by="us", terms=OURS)
    await catalog.tools.deactivate("agent.clerk")
    await catalog.templates.publish([template("Writes.")], by="us", terms=OURS)
    assert await catalog.templates.active("clerk") == 2
    assert await catalog.tools.active("agent.clerk") is None
    await catalog.templates.publish([template("Writes.")], by="us", activate=False)
    assert await catalog.tools.active("agent.clerk") is None
    await catalog.templates.activate("clerk", 2)
    assert await catalog.tools.active("agent.clerk") is not None


async def test_a_change_whose_reply_is_lost_finds_itself_again(dsn: str) -> None:
    async with unsteady(dsn) as (db, line):
        catalog = Catalog(db)
        await publish(catalog, "one")

        async def change() -> tuple[int, bool]:
            seen = await catalog.tools.active("price")
            assert seen is not None
            return await publish(catalog, "two", terms=PublishTerms(seen={"price": seen}))

        line.lose_reply(at=COMMIT)
        assert await retry_on_change(change) == (2, True)
        assert line.cuts == 1


async def test_what_was_erased_with_its_owner_is_never_taken_for_what_others_publish_under_its_name(
    catalog: Catalog, db: Database
) -> None:
    async def bound(descriptor: ToolDescriptor) -> Binding:
        return Binding(descriptor.tool, lambda arguments: Fault(code="none", message=""))

    await catalog.tools.publish([tool("kept")], by="us")
    await publish(catalog, "Ann's.", terms=PublishTerms())
    await catalog.tools.publish([tool(text="Ann's, better.", owner="ann")], by="us")
    await catalog.templates.publish([template("Ann's secrets.", owner="ann")], by="us")
    others = Catalog(db), Toolbox([], catalog=catalog, binder=bound)
    for version in (1, 2):
        assert await others[1].resolve("price", version)
    for process in (catalog, others[0]):
        assert await process.templates.find("clerk", owner="ann")

    assert await erasures.forget_owner(db, "ann") == {"tools": 2, "templates": 1, "webhooks": 0}
    [bobs] = await catalog.tools.publish([tool(text="Bob's.", owner="bob")], by="us")
    await catalog.templates.publish([template("Bob's.", owner="bob")], by="us")
    found = await others[1].active("price", "bob")
    assert found is not None
    assert (found.description, found.version) == ("Bob's.", bobs.version)
    for process in (catalog, others[0]):
        clerk = await process.templates.find("clerk", owner="bob")
        assert clerk is not None
        assert clerk.multi_agent_meta.capabilities == "Bob's."
        assert await process.templates.named("clerk")
    assert bobs.version == 3, "sessions that work with one of the two before find neither it nor another's"
    [kept] = await catalog.tools.publish([tool("kept", "Better.")], by="us")
    assert kept.version == 2, "who was there before goes on as before"
    assert await erasures.forget_owner(db, "bob") == {"tools": 2, "templates": 1, "webhooks": 0}
    [again] = await catalog.tools.publish([tool(text="Bob's.")], by="us")
    assert again.version == 4
