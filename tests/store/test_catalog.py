"""Tools and templates in versions: added and never edited, active or not, on the way back or gone from the lists."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest
from unsteady_connection import COMMIT, unsteady

from longhouse.agents.template import LLMPolicy, PromptPack, Template, ToolPolicy
from longhouse.agents.tool_descriptor import RuntimeBinding, ToolDescriptor
from longhouse.store.catalog.catalog import Catalog
from longhouse.store.database import Database
from search_helpers import generation

BINDING = RuntimeBinding(python_entrypoint="shop.tools:Price")


def tool(name: str = "price", text: str = "Looks up a price.", **more: Any) -> ToolDescriptor:
    return ToolDescriptor(name=name, description_short=text, runtime_binding=BINDING, **more)


def remote(**more: Any) -> ToolDescriptor:
    way = RuntimeBinding(remote_endpoint="https://example.com")
    return replace(tool(text="x", **more), runtime_binding=way)


def template(text: str = "one", **more: Any) -> Template:
    return Template(**{"name": "clerk", "prompt_pack": PromptPack(system_prompt=text), **more})


@pytest.fixture
def catalog(db: Database) -> Catalog:
    return Catalog(db, model="m")


async def published(catalog: Catalog, *texts: str) -> list[int]:
    return [(await catalog.tools.publish([tool(text=text)], by="a test"))[0].version for text in texts]


async def test_each_content_is_a_version_and_the_newest_is_active(catalog: Catalog) -> None:
    assert await published(catalog, "a", "b", "c") == [1, 2, 3]
    assert await catalog.tools.active("price") == 3
    newest = await catalog.tools.find("price")
    assert newest == tool(text="c", version=3)
    assert await catalog.tools.find("price", 1) == tool(text="a", version=1)
    assert await catalog.tools.find("price", 4) is None
    assert await catalog.tools.find("cost") is None
    rows = await catalog.tools.versions("price")
    assert [(row.version, row.is_active, row.published_by) for row in rows] == [
        (3, True, "a test"), (2, False, "a test"), (1, False, "a test"),
    ]  # fmt: skip
    assert [row.version for row in await catalog.tools.versions("price", before=3, limit=1)] == [2]


async def test_the_same_content_is_the_same_version_and_becomes_active_again(catalog: Catalog) -> None:
    await published(catalog, "a", "b")
    [again] = await catalog.tools.publish([tool(text="a", version=77)], by="somebody else")
    assert (again.version, again.is_new, again.is_active) == (1, False, True)
    assert await catalog.tools.roll_back("price") == 2
    before = await generation(catalog.tools)
    [kept] = await catalog.tools.publish([tool(text="a")], by="a file", again=False)
    assert (kept.version, kept.is_new, kept.is_active) == (1, False, False)
    assert await catalog.tools.active("price") == 2
    assert await generation(catalog.tools) == before, "nothing has changed"


async def test_the_order_of_a_schemas_properties_is_content_and_is_kept(catalog: Catalog) -> None:
    """Models write their arguments in this order: reasons before choices."""
    one = {"type": "object", "properties": {"reason": {"type": "string"}, "choice": {"type": "string"}}}
    other = {"type": "object", "properties": {"choice": {"type": "string"}, "reason": {"type": "string"}}}
    [first] = await catalog.tools.publish([tool(input_schema=one)], by="a test")
    [second] = await catalog.tools.publish([tool(input_schema=other)], by="a test")
    assert (first.version, second.version, second.is_new) == (1, 2, True)
    found = await catalog.tools.find("price")
    assert found is not None
    assert found.input_schema is not None
    assert list(found.input_schema["properties"]) == ["choice", "reason"]


async def test_a_default_that_is_named_is_no_other_content(catalog: Catalog) -> None:
    await catalog.tools.publish([remote()], by="a test")
    [same] = await catalog.tools.publish([remote(timeout=60.0, tags=(), needs_approval=False)], by="a test")
    [other] = await catalog.tools.publish([remote(timeout=61.0)], by="a test")
    assert (same.version, same.is_new, other.version) == (1, False, 2)


async def test_what_is_left_to_a_class_is_other_content_than_a_default_that_is_named(catalog: Catalog) -> None:
    contents: list[dict[str, Any]] = [{}, {"timeout": 60.0}, {"needs_approval": False}]
    for version, said in enumerate(contents, 1):
        for is_new in (True, False):
            [placed] = await catalog.tools.publish([tool(**said)], by="a test")
            assert (placed.version, placed.is_new) == (version, is_new)
        assert await Catalog(catalog.db).tools.find("price", version) == tool(**said, version=version)


def test_a_content_is_known_again_by_every_release(catalog: Catalog) -> None:
    """These digests were made before a descriptor could leave anything to its class."""
    digest = catalog.tools.digest
    assert digest(remote()) == "9135f2b32799e454a2def34174cad62576369e8b2df50ff1b0874a558e324a00"
    assert digest(remote(timeout=61.0, needs_approval=True)) == (
        "ee6e4e4d5635e28683201d383c350a147eb9ea0ab044ce94d019697d6f3fa7ac"
    )
    assert digest(tool(text="x")) == "e598779d7a3893fd5a7535d08e982a7b0d751179faf76105d8f897e8e9d20ed9"


BEFORE = """{"name":"price","type":"domain","tags":[],"categories":[],"description_short":"x","description_long":"",
"input_schema":{"type":"object","properties":{}},"runtime_binding":{"python_entrypoint":"shop.tools:Price",
"remote_endpoint":null,"mcp":null,"agent":null,"api_key_ref":null},"security_policy":{"risk_level":"low",
"allow":{"templates":null,"sub_agents":true},"rate_limits":{"per_minute":null}},"effect":null,"timeout":60.0,
"max_output":5000,"needs_approval":false,"approval_timeout":86400.0}"""


async def test_a_row_of_an_older_release_leaves_its_defaults_to_the_class(catalog: Catalog) -> None:
    await catalog.tools.publish([tool(text="x", max_output=5000)], by="a test")
    await catalog.db.run("UPDATE catalog_versions SET descriptor = :descriptor", descriptor=BEFORE)
    found = await Catalog(catalog.db).tools.find("price")
    assert found == tool(text="x", max_output=5000)
    shown = await catalog.tools.version("price", 1)
    assert shown is not None
    assert (shown.descriptor["timeout"], shown.descriptor["max_output"]) == (None, 5000)
    [same] = await catalog.tools.publish([tool(text="x", max_output=5000)], by="a test")
    assert (same.version, same.is_new) == (1, False)


async def test_what_is_not_activated_waits(catalog: Catalog) -> None:
    [waiting] = await catalog.tools.publish([tool()], by="a test", activate=False)
    assert (waiting.version, waiting.is_active) == (1, False)
    assert await catalog.tools.find("price") is None
    assert await catalog.tools.names() == []
    assert [named.active for named in await catalog.tools.page(after=None, limit=10)] == [None]
    assert await catalog.tools.page(after=None, limit=10, inactive=False) == []
    assert not await catalog.tools.activate("price", 2), "there is no such version"
    assert not await catalog.tools.activate("cost", 1)
    assert await catalog.tools.activate("price", 1)
    await catalog.tools.publish([tool(text="next")], by="a test", activate=False)
    assert await catalog.tools.active("price") == 1


async def test_the_way_back_is_gone_step_by_step(catalog: Catalog) -> None:
    await published(catalog, "a", "b", "c")
    assert await catalog.tools.activate("price", 1)
    assert await catalog.tools.activate("price", 1), "no step, since it is so already"
    steps = [await catalog.tools.roll_back("price") for _ in range(5)]
    assert steps == [3, 2, 1, None, None]
    assert await catalog.tools.active("price") == 1
    await published(catalog, "b")
    assert await catalog.tools.roll_back("price") == 1
    assert await catalog.tools.roll_back("cost") is None


async def test_what_is_deactivated_comes_back_by_a_step_back(catalog: Catalog) -> None:
    await published(catalog, "a", "b")
    assert await catalog.tools.deactivate("price")
    assert await catalog.tools.deactivate("price")
    assert await catalog.tools.find("price") is None
    assert await catalog.tools.find("price", 2) is not None, "a turn that began with it keeps it"
    assert await catalog.active_tools(["price"], "ann") == {}
    assert await catalog.tools.roll_back("price") == 2
    assert await catalog.tools.roll_back("price") == 1
    assert not await catalog.tools.deactivate("cost")


async def test_what_is_retired_is_gone_from_lists_until_it_is_published_or_activated(catalog: Catalog) -> None:
    await published(catalog, "a", "b")
    assert await catalog.tools.deactivate("price", retire=True)
    assert not await catalog.tools.deactivate("price", retire=True)
    assert await catalog.tools.page(after=None, limit=10) == []
    assert await catalog.tools.named("price") is None
    assert await catalog.tools.roll_back("price") is None
    assert await catalog.tools.find("price", 1) is not None
    await catalog.tools.publish([tool(text="b")], by="a file", again=False)
    assert await catalog.tools.find("price") is None, "a file that says nothing new brings nothing back"
    assert await catalog.tools.activate("price", 1)
    assert await catalog.tools.deactivate("price", retire=True)
    assert await published(catalog, "c") == [3]
    assert await catalog.tools.names() == ["price"]


async def test_of_publishers_at_once_each_gets_its_version_and_the_same_content_one(catalog: Catalog) -> None:
    texts = [f"text {n % 10}" for n in range(40)]
    versions = await asyncio.gather(*(published(catalog, text) for text in texts))
    by_text = {text: version for text, [version] in zip(texts, versions, strict=True)}
    assert sorted(by_text.values()) == list(range(1, 11))
    assert [by_text[text] for text in texts] == [version for [version] in versions]
    rows = await catalog.tools.versions("price")
    assert sum(row.is_active for row in rows) == 1
    assert len(rows) == 10


async def test_many_are_published_at_once_or_none(catalog: Catalog) -> None:
    done = await catalog.tools.publish([tool(f"t{n:03}") for n in range(300)], by="a test")
    assert [one.version for one in done] == [1] * 300
    assert await catalog.tools.names(limit=2) == ["t000", "t001"]
    assert [named.name for named in await catalog.tools.page(after="t297", limit=9)] == ["t298", "t299"]
    assert await catalog.tools.publish([], by="a test") == []


async def test_a_name_may_be_one_owners_and_who_it_belongs_to_can_change(catalog: Catalog) -> None:
    await catalog.tools.publish([tool(owner="ann")], by="a test")
    assert await catalog.tools.names(owner="bob") == []
    assert await catalog.tools.names(owner="ann") == ["price"]
    assert await catalog.tools.find("price", owner="bob") is None
    assert await catalog.active_tools(["price"], "bob") == {}
    [same] = await catalog.tools.publish([tool()], by="a test")
    assert (same.version, same.is_new) == (1, False), "the content is as it was"
    assert await catalog.tools.find("price", owner="bob") is not None
    assert await catalog.active_tools(["price"], "bob") == {"price": 1}


async def test_a_prefix_stands_for_all_beneath_it(catalog: Catalog) -> None:
    names = ["shop.price", "shop.stock", "shopping", "shop", "zoo.open"]
    await catalog.tools.publish([tool(name) for name in names], by="a test")
    found = await catalog.active_tools(["zoo.open", "shop.*", "gone", "shopping"], "ann")
    assert list(found) == ["zoo.open", "shop.price", "shop.stock", "shopping"]


async def test_every_change_moves_the_counter_of_its_kind(catalog: Catalog) -> None:
    seen = [await generation(catalog.tools)]
    await published(catalog, "a", "b")
    for act in (
        catalog.tools.activate("price", 1),
        catalog.tools.roll_back("price"),
        catalog.tools.deactivate("price"),
        catalog.tools.deactivate("price", retire=True),
    ):
        seen.append(await generation(catalog.tools))
        await act
    seen.append(await generation(catalog.tools))
    assert seen == sorted(set(seen))
    assert await generation(catalog.templates) == 0


async def test_a_template_is_read_as_it_was_written_with_the_model_of_the_house(catalog: Catalog) -> None:
    said = template(tool_policy=ToolPolicy(required=("a",), allowlist=None), follow="pinned", owner="ann")
    await catalog.templates.publish([said], by="a test")
    found = await catalog.templates.find("clerk")
    assert found == replace(said, llm_policy=replace(LLMPolicy(), model="m"), owner=None), "a name has an owner"
    [named] = await catalog.templates.page(after=None, limit=1)
    assert named.descriptor["llm_policy"]["model"] is None, "the house's own model is not written down"


async def test_what_was_once_accepted_stays_readable(catalog: Catalog, db: Database) -> None:
    """A newer release may have renamed a field, or may refuse a value: old turns still run on old versions."""
    await catalog.templates.publish([template()], by="a test")
    await db.run(
        """UPDATE catalog_versions SET descriptor = (descriptor::jsonb || '{"mood": "good"}'
           || jsonb_build_object('prompt_pack', jsonb_build_object('system_prompt', 'old')))::json
           WHERE kind = 'template'"""
    )
    found = await Catalog(db).templates.find("clerk")
    assert found is not None
    assert found.prompt_pack == PromptPack(system_prompt="old")


async def test_a_use_is_counted_by_owner_and_minute(catalog: Catalog) -> None:
    # The minute may turn in between; never over more than one edge.
    tries = [await catalog.may_use("ann", "price", 2) for _ in range(5)]
    assert tries[:2] == [True, True]
    assert sum(tries) in (2, 3, 4)
    assert await catalog.may_use("bob", "price", 2)
    await catalog.forget_uses()
    await catalog.db.run("UPDATE tool_uses SET minute = minute - interval '3 minutes'")
    await catalog.forget_uses()
    assert await catalog.db.value("SELECT count(*) FROM tool_uses") == 0


async def test_a_change_whose_reply_is_lost_happens_once(dsn: str) -> None:
    async with unsteady(dsn) as (db, line):
        catalog = Catalog(db)
        await published(catalog, "a", "b")
        line.lose_reply(at=COMMIT)
        assert await published(catalog, "c") == [3]
        line.lose_reply(at=COMMIT)
        assert await catalog.tools.roll_back("price") == 2
        line.lose_reply(at=COMMIT)
        assert await catalog.tools.activate("price", 1)
        line.lose_reply(at=COMMIT)
        assert await catalog.tools.deactivate("price")
        assert line.cuts == 4
        assert [await catalog.tools.roll_back("price") for _ in range(4)] == [1, 2, 1, None]


async def test_a_step_back_that_is_asked_for_twice_at_once_is_one_step(catalog: Catalog) -> None:
    await published(catalog, "a", "b", "c", "d")
    steps = await asyncio.gather(*(catalog.tools.roll_back("price") for _ in range(2)))
    assert set(steps) <= {2, 3}
    assert await catalog.tools.active("price") == min(step for step in steps if step)
