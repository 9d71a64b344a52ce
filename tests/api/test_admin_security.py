"""What operators put over single tools holds at once, whoever describes them, and stays."""

import asyncio
from typing import Any, ClassVar

import pytest
from key_helpers import Client, admin_of, client_of, keyed
from structlog.testing import capture_logs

from longhouse.agents.template import Template, ToolPolicy
from longhouse.agents.tool_descriptor import Allow, RateLimits, SecurityOverlay, SecurityPolicy
from longhouse.app.publish import publish_classes
from longhouse.journal.events import Fault
from longhouse.journal.messages import ToolResult
from longhouse.models.scripted import Say, call, calls
from longhouse.store.catalog.catalog import Catalog
from longhouse.store.database import Database
from longhouse.tools import BaseTool, ToolContext
from longhouse.tools.mcp.client import publish_served
from server_helpers import House, Serving

DONE = call("finalanswertool", answer="Done.")
CAREFUL = Template(
    name="careful",
    tool_policy=ToolPolicy(allowlist=("clocktool", "agent.helper", "finalanswertool"), max_risk_level="medium"),
)
HELPER = Template(name="helper", tool_policy=ToolPolicy(allowlist=("clocktool", "finalanswertool")))
SEEKER = Template(
    name="seeker", tool_policy=ToolPolicy(required=("finalanswertool",), max_risk_level="medium", max_tools_in_prompt=5)
)


async def asked(client: Client, method: str, tool: str, body: Any = None) -> tuple[int, Any]:
    async with client.ask(method, f"/admin/tools/{tool}/security_policy", body) as response:
        return response.status, await response.json() if response.status != 204 else None


def offered(house: House, nth: int = -1) -> set[str]:
    assert house.model is not None
    return {one["function"]["name"] for one in house.model.requests[nth]["tools"]}


async def offered_after(house: House, model: str = "careful") -> set[str]:
    await house.say("Look at the clock", model=model)
    return offered(house)


async def faults(house: House, session_id: str) -> list[str]:
    session = await house.folded(session_id)
    outcomes = [use.outcome for step in reversed(session.steps) for use in step.uses]
    return [outcome.code for outcome in outcomes if isinstance(outcome, Fault)]


async def test_a_policy_over_a_tool_holds_at_once_and_after_every_start(serving: Serving) -> None:
    every = {"clocktool", "agent_helper", "finalanswertool"}
    async with serving(lambda body: DONE, templates=[HELPER, CAREFUL]) as house:
        operator = Client(house)
        assert await offered_after(house) == every
        for tool in ("clocktool", "agent.helper"):
            status, held = await asked(operator, "PUT", tool, {"risk_level": "high"})
            assert (status, held["described"]["risk_level"], held["effective"]["risk_level"]) == (200, "low", "high")
            assert (held["overlay"]["risk_level"], held["overlay"]["changed_by"]) == ("high", "local")
            assert await asked(operator, "GET", tool) == (200, held)
        assert await offered_after(house) == {"finalanswertool"}
        for said, is_offered in (
            ({"allow": {"templates": ["other"]}}, False),
            ({"allow": {"templates": ["careful"]}}, True),
            ({"enabled": False}, False),
            ({"risk_level": "high"}, False),
        ):
            assert (await asked(operator, "PUT", "clocktool", said))[0] == 200
            assert ("clocktool" in await offered_after(house)) is is_offered, said
        async with house.http.get("/admin/tools/clocktool") as response:
            shown = await response.json()
        assert shown["security_policy"]["risk_level"] == "low"
        assert shown["security_overlay"]["risk_level"] == "high"
        async with house.http.get("/admin/tools?limit=200") as response:
            listed = {one["name"]: one.get("security_overlay") for one in (await response.json())["data"]}
        assert [name for name, overlay in listed.items() if overlay] == ["agent.helper", "clocktool"]
    async with serving(lambda body: DONE, templates=[HELPER, CAREFUL]) as house:
        assert await offered_after(house) == {"finalanswertool"}
        assert (await asked(Client(house), "PATCH", "agent.helper", {"risk_level": None}))[1]["overlay"] is None
        assert (await asked(Client(house), "DELETE", "clocktool"))[0] == 204
        assert await offered_after(house) == every


async def test_an_agent_that_is_switched_off_for_others_stays_off_and_answers_people(serving: Serving) -> None:
    async with serving(lambda body: DONE, templates=[HELPER, CAREFUL]) as house, serving() as other:
        assert (await asked(Client(house), "PATCH", "agent.helper", {"enabled": False}))[0] == 200
        again = {"name": "helper", "tool_policy": {"allowlist": ["clocktool"]}, "memory_policy": {"share_context": 1}}
        async with house.http.post("/admin/templates", json=again) as response:
            assert response.status == 201, await response.text()
        assert await offered_after(house) == {"clocktool", "finalanswertool"}
        assert await offered_after(house, "helper") == {"clocktool", "finalanswertool"}
        careful = {"name": "chief", "tool_policy": {"allowlist": ["agent.helper"]}}
        async with house.http.post("/admin/templates", json=careful) as response:
            assert "agent.helper is switched off" in (await response.json())["warnings"][0]
        async with asyncio.timeout(10):
            while "agent.helper" in await other.app.catalog.active_tools(["agent.helper"], "local"):
                await asyncio.sleep(0.05)  # another process follows within a moment


async def test_rate_limits_hold_for_built_in_tools_and_for_agents(serving: Serving) -> None:
    def script(body: Any) -> Say:
        if any(isinstance(message, ToolResult) for message in body.messages):
            return DONE
        is_chief = any(b"agent_helper" in bytes(raw) for raw in body.tools)
        return calls(*[call("agent_helper", task="look")] * 4) if is_chief else calls(*[call("clocktool")] * 4)

    async with serving(script, templates=[HELPER, CAREFUL]) as house:
        limit = {"rate_limits": {"per_minute": 1}}
        for tool in ("clocktool", "agent.helper"):
            assert (await asked(Client(house), "PUT", tool, limit))[1]["effective"]["rate_limits"] == {"per_minute": 1}
        chief = (await house.say("Go", model="careful"))["model"]
        child = await house.db.value("SELECT id FROM sessions WHERE agent = 'helper'")
        for session_id in (chief, child):
            refused = await faults(house, session_id)
            assert refused in (["rate_limited"] * 3, ["rate_limited"] * 2), "a minute may have ended in between"


async def test_a_tool_may_be_made_to_wait_for_a_person_if_it_can(serving: Serving) -> None:
    async with serving([call("clocktool"), DONE], templates=[HELPER, CAREFUL]) as house:
        operator = Client(house)
        assert (await asked(operator, "PATCH", "clocktool", {"needs_approval": True}))[0] == 200
        session_id = (await house.say("Go", model="careful"))["model"]
        assert (await house.session(session_id))["state"] == "WAITING_FOR_APPROVAL"
        for tool in ("finalanswertool", "clarificationtool", "reasoningtool", "collecttool", "agent.helper"):
            status, answer = await asked(operator, "PUT", tool, {"needs_approval": True})
            assert (status, answer["error"]["param"]) == (400, "needs_approval"), tool
            assert f"{tool} is called at once" in answer["error"]["message"]


async def test_what_is_searched_for_follows_the_policy_over_it(serving: Serving) -> None:
    async with serving(lambda body: DONE, templates=[SEEKER]) as house:
        assert "clocktool" in await offered_after(house, "seeker")
        for said, is_found in (
            ({"risk_level": "high"}, False),
            ({"risk_level": "medium"}, True),
            ({"enabled": False}, False),
        ):
            assert (await asked(Client(house), "PUT", "clocktool", said))[0] == 200
            assert is_found or "clocktool" not in await offered_after(house, "seeker"), (
                "also before the index has followed"
            )
            async with asyncio.timeout(20):
                while (await is_listed(house, "seeker", "clocktool")) is not is_found:
                    await asyncio.sleep(0.05)
            assert ("clocktool" in await offered_after(house, "seeker")) is is_found, said


async def is_listed(house: House, template: str, name: str) -> bool:
    """Does search find the tool for agents of this template?"""
    body = {"query": "Look at the clock", "template": template}
    async with house.http.post("/admin/tools/search", json=body) as response:
        return name in [one["name"] for one in (await response.json())["data"]]


async def test_only_operators_decide_and_every_change_leaves_a_trace(serving: Serving) -> None:
    with capture_logs() as log:
        async with keyed(serving) as house:
            ann, admin = await client_of(house, "ann"), admin_of(house)
            for method, body in (("GET", None), ("PUT", {}), ("PATCH", {"enabled": False}), ("DELETE", None)):
                status, answer = await asked(ann, method, "clocktool", body)
                assert (status, answer["error"]["code"]) == (403, "insufficient_permissions"), method
            second = await client_of(house, "ops", role="admin")
            _, held = await asked(second, "PATCH", "clocktool", {"enabled": False})
            assert held["overlay"]["changed_by"] == second.id
            assert (await asked(admin, "DELETE", "clocktool"))[0] == 204
    changes = [one for one in log if one["event"] == "security_overlay_changed"]
    assert [(one["tool"], one["by"], one["overlay"]) for one in changes] == [
        ("clocktool", second.id, {"enabled": False}),
        ("clocktool", "admin", {}),
    ]


async def test_what_cannot_be_put_over_a_tool_is_refused(serving: Serving) -> None:
    async with serving() as house:
        operator = Client(house)
        for method, body, param in (
            ("PUT", {"risk_level": "huge"}, "risk_level"),
            ("PUT", {"rate_limits": {"per_minute": 0}}, "rate_limits.per_minute"),
            ("PUT", {"colour": "red"}, "colour"),
            ("PATCH", {"enabled": "no"}, "enabled"),
            ("PATCH", {"allow": {"templates": "seeker"}}, "allow.templates"),
            ("PUT", {"allow": {"templates": ["a\x00b"]}}, None),
            ("PUT", [], None),
            ("PUT", "off", None),
        ):
            status, error = await operator.refused(method, "/admin/tools/clocktool/security_policy", body)
            assert (status, error["param"]) == (400, param), body
        for tool in ("clocktol", "server.tool", "%00", "x" * 300):
            assert (await asked(operator, "PUT", tool, {"enabled": False}))[0] == 404, tool
        assert await house.db.value("SELECT count(*) FROM security_overlays") == 0


async def test_changes_that_meet_are_all_made(serving: Serving) -> None:
    async with serving() as house:
        said: list[dict[str, Any]] = [
            {"risk_level": "medium"},
            {"rate_limits": {"per_minute": 7}},
            {"allow": {"sub_agents": False}},
            {"needs_approval": True},
            {"enabled": False},
        ]
        answers = await asyncio.gather(*(asked(Client(house), "PATCH", "clocktool", one) for one in said))
        assert [status for status, _ in answers] == [200] * 5
        _, held = await asked(Client(house), "GET", "clocktool")
        expected = {
            "risk_level": "medium",
            "allow": {"templates": None, "sub_agents": False},
            "rate_limits": {"per_minute": 7},
            "needs_approval": True,
            "enabled": False,
        }
        assert held["effective"] == expected


class Bell(BaseTool):
    """Ring."""

    tool_name: ClassVar[str] = "tower.bell"

    async def __call__(self, context: ToolContext, config: Any = None, **kwargs: Any) -> str:
        return "ding"


async def test_a_new_release_and_a_server_that_lists_again_change_nothing(db: Database) -> None:
    catalog = Catalog(db)
    bell = Bell.descriptor().tool

    async def release(description: str) -> None:
        Bell.description = description
        await publish_classes(catalog, [Bell])
        await publish_served(catalog, "bank", [type(bell)(name="bank.pay", description=description, schema={})])

    await release("Ring.")
    for name in ("tower.bell", "bank.pay"):
        await catalog.overlay(name, SecurityOverlay(risk_level="high"), seen=None, by="key_1")
    await release("Ring louder.")
    active = await catalog.active_tools(["tower.bell", "bank.pay"], "local")
    assert active == {"tower.bell": 2, "bank.pay": 2}
    found = await catalog.described(active)
    assert [one.security_policy.risk_level for one in found] == ["high", "high"]
    assert [one.description_short for one in found] == ["Ring louder."] * 2


@pytest.mark.parametrize(
    ("described", "overlay", "templates", "per_minute"),
    [
        (SecurityPolicy(), SecurityOverlay(), None, None),
        (SecurityPolicy(allow=Allow(templates=("a", "b"))), SecurityOverlay(), ("a", "b"), None),
        (SecurityPolicy(), SecurityOverlay(allow=Allow(templates=("b", "c"))), ("b", "c"), None),
        (
            SecurityPolicy(allow=Allow(templates=("a", "b"))),
            SecurityOverlay(allow=Allow(templates=("b", "c"))),
            ("b",),
            None,
        ),
        (
            SecurityPolicy(rate_limits=RateLimits(per_minute=3)),
            SecurityOverlay(rate_limits=RateLimits(per_minute=9)),
            None,
            3,
        ),
        (
            SecurityPolicy(rate_limits=RateLimits(per_minute=9)),
            SecurityOverlay(rate_limits=RateLimits(per_minute=3)),
            None,
            3,
        ),
    ],
)
def test_an_overlay_only_narrows_what_a_tool_says(
    described: SecurityPolicy, overlay: SecurityOverlay, templates: tuple[str, ...] | None, per_minute: int | None
) -> None:
    held = overlay.policy(described)
    assert (held.allow.templates, held.rate_limits.per_minute) == (templates, per_minute)
