"""Operators see what search finds, and why."""

from typing import Any

from longhouse.agents.template import MultiAgentMeta, Template, ToolPolicy
from longhouse.models.scripted import call
from server_helpers import House, Serving

COOK = Template(
    name="cook",
    tool_policy=ToolPolicy(allowlist=("clocktool", "finalanswertool"), denylist=("clocktool",)),
    multi_agent_meta=MultiAgentMeta(capabilities="Plans meals and finds recipes."),
)


async def found(house: House, what: str, **body: Any) -> list[dict[str, Any]]:
    async with house.http.post(f"/admin/{what}/search", json=body) as response:
        answer = await response.json()
        assert response.status == 200, answer
        return list(answer["data"])


async def test_tools_are_ranked_with_the_score_of_each_leg(serving: Serving) -> None:
    async with serving([], templates=[COOK]) as house:
        best, *others = await found(house, "tools", query="What time is it now? Read the clock", top_k=5)
        assert best["name"] == "clocktool"
        assert best["legs"].keys() == {"lexical", "semantic", "clause"}
        assert best["legs"]["lexical"] > 0
        assert best["legs"]["semantic"] > 0
        assert best["score"] >= max(one["score"] for one in others)
        assert len(others) <= 4


async def test_a_template_sees_only_what_its_policy_permits(serving: Serving) -> None:
    async with serving([], templates=[COOK]) as house:
        names = [
            one["name"] for one in await found(house, "tools", query="Read the clock, then answer", template="cook")
        ]
        assert names == ["finalanswertool"]


async def test_agents_are_ranked_by_their_text_and_their_tools(serving: Serving) -> None:
    async with serving([], templates=[COOK]) as house:
        best = (await found(house, "directory", query="recipes for a meal"))[0]
        assert best["name"] == "cook"
        assert best["legs"]["own"]["score"] > 0
        assert 0 < best["confidence"] <= 1


async def test_what_cannot_be_searched_is_refused(serving: Serving) -> None:
    async with serving([], templates=[COOK]) as house:
        for body, status in (
            ({}, 400),
            ({"query": ""}, 400),
            ({"query": "x", "top_k": 0}, 400),
            ({"query": "x", "colour": 1}, 400),
            ({"query": "x", "template": "nobody"}, 404),
        ):
            async with house.http.post("/admin/tools/search", json=body) as response:
                assert response.status == status


async def test_what_was_published_is_found_with_the_answer_to_its_publisher(serving: Serving) -> None:
    async with serving(lambda body: call("finalanswertool", answer="Done.")) as house:
        for nth, what in enumerate(("zeppelins", "submarines", "gondolas")):
            way = {"remote_endpoint": "https://rides.invalid"}
            tool = {
                "name": f"ride_{nth}",
                "description_short": f"Books rides in {what}.",
                "runtime_binding": way,
                "input_schema": {"type": "object"},
            }
            async with house.http.post("/admin/tools", json=tool) as response:
                assert response.status == 201, await response.text()
            assert (await found(house, "tools", query=f"a ride in {what}"))[0]["name"] == f"ride_{nth}"
            meta = {"capabilities": f"Knows everything about {what}, their captains and their ropes."}
            agent = {"name": f"captain_{nth}", "multi_agent_meta": meta}
            async with house.http.post("/admin/templates", json=agent) as response:
                assert response.status == 201, await response.text()
            answered = await house.say(f"Who are the captains of {what}, and what of their ropes?", model="auto")
            assert answered["x_agent"]["routed"]["template"] == f"captain_{nth}"
            async with house.http.post(f"/admin/templates/captain_{nth}/deactivate") as response:
                assert response.status == 200
            directory = await found(house, "directory", query=f"captains of {what}")
            assert f"captain_{nth}" not in [one["name"] for one in directory]
