"""`model="auto"`: the agent that fits is chosen, and the client is told which and why."""

import asyncio
from typing import Any

import pytest
import routing_set

from longhouse.agents.builtin import BUILT_IN
from longhouse.agents.template import MultiAgentMeta, Template, ToolPolicy
from longhouse.app import TOOLS
from longhouse.app.publish import publish_classes, publish_files
from longhouse.models import embedding_table
from longhouse.models.scripted import call
from longhouse.search.directory import AgentDirectory
from longhouse.search.finder import Finder
from longhouse.search.indexer import Indexer
from longhouse.search.router import Router
from longhouse.store.catalog.catalog import Catalog
from longhouse.store.database import Database
from server_helpers import House, Serving


def agent(name: str, can: str, *tags: str) -> Template:
    policy = ToolPolicy(allowlist=("finalanswertool",))
    return Template(name=name, tool_policy=policy, multi_agent_meta=MultiAgentMeta(capabilities=can, tags=tags))


COOK = agent("cook", "Plans meals, finds recipes and writes shopping lists.", "food", "recipes")
LAWYER = agent("lawyer", "Reads contracts, explains clauses and finds legal risks.", "law", "contracts")
PLAIN = agent("sgr_tool_calling_agent", "")
TEAM = [COOK, LAWYER, PLAIN]


async def known(house: House, query: str = "explain contracts") -> None:
    """Waits until agents are found: what that needs in memory is there from then on."""
    async with asyncio.timeout(30):
        while True:
            async with house.http.post("/admin/directory/search", json={"query": query}) as response:
                found = (await response.json())["data"]
            if found and (own := found[0]["legs"]["own"]) and own["semantic"] is not None:
                return
            await asyncio.sleep(0.1)


async def asked(house: House, text: str, **extra: Any) -> tuple[str, dict[str, Any]]:
    answered = await house.say(text, model="auto", **extra)
    return answered["model"].rpartition("_")[0], answered["x_agent"]["routed"]


async def test_the_agent_that_fits_answers_and_it_is_said_why(serving: Serving) -> None:
    async with serving([call("finalanswertool", answer="ok")] * 3, templates=TEAM) as house:
        await known(house)
        assert (await house.client.models.retrieve("auto")).id == "auto"
        assert (await house.client.models.list()).data[0].id == "auto"
        for text, expected in (
            ("Which clauses of this rental contract are a legal risk?", "lawyer"),
            ("Find a recipe for dinner and write the shopping list", "cook"),
        ):
            name, routed = await asked(house, text)
            assert name == expected
            assert routed["template"] == expected
            assert routed["why"] == "what it says of itself fits the request best"
        name, routed = await asked(house, "zzzz qqqq")
        assert name == "sgr_tool_calling_agent"
        assert "default" in routed["why"]


@pytest.mark.parametrize(("has_vectors", "enough"), [(True, 0.85), (False, 0.75)], ids=["vectors", "words alone"])
async def test_most_questions_reach_the_right_agent(db: Database, has_vectors: bool, enough: float) -> None:
    """In a house as it is: the agents that come with it stand beside the twelve, and two thirds speak no English."""
    catalog, embedder = Catalog(db), embedding_table.EmbeddedEmbedder() if has_vectors else None
    await publish_classes(catalog, TOOLS)
    await publish_files(catalog, (), [*BUILT_IN, *routing_set.templates()])
    assert await Indexer(db, embedder).catch_up()
    router, rows = Router(AgentDirectory(Finder(db, embedder)), routing_set.DEFAULT), routing_set.asked()
    assert len(rows) > 100
    chosen = [(await router.choose(text, "local")).template for _, text in rows]
    wrong = [f"{text} -> {name}" for (right, text), name in zip(rows, chosen, strict=True) if name != right]
    assert len(wrong) <= (1 - enough) * len(rows), "\n".join(wrong)
    assert not [line for line in wrong if "электричек" in line or "авиабилеты" in line] or has_vectors
    for (right, text), name in zip(rows, chosen, strict=True):
        assert right != routing_set.DEFAULT or name == right, text


async def test_small_talk_goes_to_the_default(serving: Serving) -> None:
    talkers = [
        agent("cook", COOK.multi_agent_meta.capabilities),
        agent("doctor", "Ведёт дела больных. 你好，我是医生。"),
    ]
    async with serving(lambda body: call("finalanswertool", answer="ok"), templates=[PLAIN, *talkers]) as house:
        await known(house, "recipes")
        for text in ("hi", "как дела?", "你好", "Thanks a lot!", "👍"):
            name, routed = await asked(house, text)
            assert (name, routed["why"]) == (
                "sgr_tool_calling_agent",
                "nothing is asked for yet, so the default answers",
            )
        assert (await asked(house, "Hi! Which recipe shall I take for dinner?"))[0] == "cook"


async def test_a_conversation_keeps_its_agent(serving: Serving) -> None:
    async with serving([call("finalanswertool", answer="ok")] * 4, templates=TEAM) as house:
        await known(house)
        first, _ = await asked(house, "Find a recipe for dinner", chat_id="c")
        again, routed = await asked(house, "Which clauses of this contract are a legal risk?", chat_id="c")
        assert (first, again) == ("cook", "cook")
        assert routed["why"] == "it has answered in this conversation before"
        said = [{"role": "user", "content": "Explain this contract"}]
        answered = await house.say("", model="auto", messages=said)
        said += [{"role": "assistant", "content": "ok"}, {"role": "user", "content": "And a recipe?"}]
        resent = await house.say("", model="auto", messages=said)
        assert resent["model"] == answered["model"]


async def test_a_client_that_resends_everything_keeps_its_agent_when_a_better_one_comes(serving: Serving) -> None:
    async with serving(lambda body: call("finalanswertool", answer="ok"), templates=[PLAIN, LAWYER]) as house:
        await known(house)
        said = [{"role": "user", "content": "Find a recipe for dinner and write the shopping list"}]
        first = await house.say("", model="auto", messages=said)
        cook = {"name": "cook", "multi_agent_meta": {"capabilities": COOK.multi_agent_meta.capabilities}}
        async with house.http.post("/admin/templates", json=cook) as response:
            assert response.status == 201
        async with asyncio.timeout(20):
            while (await asked(house, "Which recipe shall I take for dinner?"))[0] != "cook":
                await asyncio.sleep(0.05)
        said += [{"role": "assistant", "content": "ok"}, {"role": "user", "content": "And for lunch?"}]
        again = await house.say("", model="auto", messages=said)
        assert again["model"] == first["model"]
        assert again["x_agent"]["routed"]["why"] == "it has answered in this conversation before"


async def test_a_stream_says_who_was_chosen_at_once(serving: Serving) -> None:
    async with serving([call("finalanswertool", answer="ok")], templates=TEAM) as house:
        await known(house)
        stream = await house.client.chat.completions.create(
            model="auto", stream=True, messages=[{"role": "user", "content": "recipes for dinner"}]
        )
        chunks = [chunk async for chunk in stream]
        extra = chunks[0].model_extra
        assert extra
        assert extra["x_agent"]["routed"]["template"] == "cook"
