"""Which tools an agent has, and how they behave, is said by its template's policy and by each tool's descriptor."""

import asyncio
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from longhouse.agents.template import Availability, Rules, StageRule, Template, ToolPolicy
from longhouse.agents.tool_descriptor import Allow, RateLimits, RuntimeBinding, SecurityPolicy, ToolDescriptor
from longhouse.journal import events
from longhouse.models.scripted import Say, call, calls
from longhouse.tools import BaseTool, ToolContext
from longhouse.tools.base import entrypoint_of
from server_helpers import House, Serving, indexed

END = "finalanswertool"
DONE = call(END, answer="Done.")


class EchoTool(BaseTool):
    """Say it again."""

    text: str = "hello there"

    async def __call__(self, context: ToolContext, config: Any = None, **kwargs: Any) -> str:
        return self.text


class SlowTool(BaseTool):
    """Take for ever."""

    async def __call__(self, context: ToolContext, config: Any = None, **kwargs: Any) -> str:
        await asyncio.Event().wait()
        return "never"


def tool(name: str, cls: type[BaseTool] = EchoTool, **more: Any) -> ToolDescriptor:
    binding = RuntimeBinding(python_entrypoint=entrypoint_of(cls))
    return ToolDescriptor(**{"name": name, "description_short": name, "runtime_binding": binding, **more})


def risk(level: Any = "low", **more: Any) -> SecurityPolicy:
    return SecurityPolicy(risk_level=level, **more)


SHELF = (
    tool("plain"),
    tool("aux", type="aux"),
    tool("tagged", tags=("money",)),
    tool("sorted", categories=("money",)),
    tool("middling", security_policy=risk("medium")),
    tool("risky", security_policy=risk("high")),
    tool("picky", security_policy=risk(allow=Allow(templates=("chosen",)))),
    tool("theirs", owner="ann"),
    tool("ours", owner="local"),
    tool("shop.price"),
    tool("shop.stock"),
)
EVERYBODYS = ("plain", "aux", "tagged", "sorted", "middling", "risky", "ours")
NAMED = (*EVERYBODYS, "picky", "theirs", END)


@dataclass(frozen=True)
class Case:
    """A policy, and the tools that are offered under it beside the one that finishes."""

    about: str
    offered: tuple[str, ...]
    policy: dict[str, Any] = field(default_factory=dict)
    template: dict[str, Any] = field(default_factory=dict)


CASES = (
    Case("allowlist", EVERYBODYS),
    Case("allowlist", ("plain", "risky"), {"allowlist": ("plain", "risky", "unknown", END)}),
    Case("allowlist", ("shop.price", "shop.stock"), {"allowlist": ("shop.*", END)}),
    Case("required", ("aux", "plain"), {"required": ("aux",), "allowlist": ("plain", END)}),
    Case("required", ("aux", "plain"), {"required": ("aux", END), "allowlist": ("plain",), "tool_types": ("domain",)}),
    Case("denylist", ("plain",), {"allowlist": ("plain", "aux", END), "denylist": ("aux",)}),
    Case("denylist", ("plain",), {"required": ("aux",), "allowlist": ("plain", END), "denylist": ("aux",)}),
    Case("denylist", ("plain",), {"allowlist": ("shop.*", "plain", END), "denylist": ("shop.*",)}),
    Case("denylist", ("plain",), {"required": ("shop.price", "plain"), "allowlist": (), "denylist": ("shop.*",)}),
    Case("required", ("shop.price", "shop.stock"), {"required": ("shop.*",), "allowlist": (), "tags": ("money",)}),
    Case("tool_types", ("aux",), {"tool_types": ("aux", "system")}),
    Case("tags", ("tagged", "sorted"), {"tags": ("money", "time"), "required": (END,)}),
    Case("max_risk_level", tuple(name for name in EVERYBODYS if name != "risky"), {"max_risk_level": "medium"}),
    Case(
        "max_risk_level",
        tuple(name for name in EVERYBODYS if name not in {"risky", "middling"}),
        {"max_risk_level": "low"},
    ),
    Case("max_tools_in_prompt", ("plain", "aux"), {"required": (END,), "max_tools_in_prompt": 3}),
    Case("allow.templates", ("picky",), {"allowlist": ("picky", END)}, {"name": "chosen"}),
    Case(
        "rules.availability",
        ("plain",),
        {"allowlist": ("plain", "aux", END)},
        {"rules": Rules(availability=(Availability(when="iteration == 0", exclude=("aux",)),))},
    ),
    Case(
        "rules.availability",
        ("aux",),
        {"allowlist": ("plain", "aux", END)},
        {"rules": Rules(availability=(Availability(when="not plan_made", keep_only=("aux",)),))},
    ),
    Case(
        "rules.availability",
        ("plain", "aux"),
        {"allowlist": ("plain", "aux", END)},
        {"rules": Rules(availability=(Availability(when="plan_made", keep_only=("aux",)),))},
    ),
    Case(
        "rules.availability",
        ("plain",),
        {"allowlist": ("shop.*", "plain", END), "max_tools_in_prompt": 2},
        {"rules": Rules(availability=(Availability(when="iteration == 0", exclude=("shop.*",)),))},
    ),
    Case(
        "rules.stages",
        ("plain",),
        {"allowlist": ("plain", "aux", END)},
        {
            "rules": Rules(
                stages=(StageRule(stage="later", when="calls > 0"), StageRule(stage="early")),
                availability=(Availability(when="stage == early", exclude=("aux",)),),
            )
        },
    ),
)


async def publish(house: House, *tools: ToolDescriptor) -> None:
    await house.app.catalog.tools.publish(tools, by="a test")


def offered(house: House) -> tuple[str, ...]:
    assert house.model is not None
    names = [one["function"]["name"] for one in house.model.requests[-1].get("tools", ())]
    return tuple(name for name in names if name != END)


def heard(house: House) -> list[str]:
    """What the model was last told by tools."""
    assert house.model is not None
    return [one["content"] for one in house.model.requests[-1]["messages"] if one["role"] == "tool"]


async def test_each_policy_offers_what_it_says(serving: Serving) -> None:
    async with serving(lambda body: DONE, templates=(), tools=[EchoTool]) as house:
        await publish(house, *SHELF)
        for number, case in enumerate(CASES):
            policy = ToolPolicy(**{"allowlist": NAMED, "selection_strategy": "static", **case.policy})
            template = Template(**{"name": f"agent-{number}", "tool_policy": policy, **case.template})
            await house.app.catalog.templates.publish([template], by="a test")
            await house.say("hi", model=template.name)
            wire = tuple(name.replace(".", "_") for name in case.offered)
            assert set(offered(house)) == set(wire), f"{case.about}: {case.policy}"


async def test_own_rules_join_those_that_close_searching_and_asking_at_their_limits(serving: Serving) -> None:
    """Without any search or question, a limit of none is reached at once."""
    tools = ["websearchtool", "extractpagecontenttool", "clarificationtool", "plain", "aux"]
    own = {"availability": [{"when": "iteration == 0", "exclude": ["aux"]}]}
    spent = {"max_searches": 0, "max_clarifications": 0}
    async with serving(lambda body: DONE, templates=(), tools=[EchoTool]) as house:
        await publish(house, *SHELF)
        for said, left in (
            ({"rules": own}, {"plain"}),
            ({"rules": {**own, "replace": True}}, {*tools} - {"aux"}),
            ({"rules": {"availability": []}}, {"plain", "aux"}),
            ({"rules": {"availability": [], "replace": True}}, {*tools}),
            ({"rules": {"replace": True}}, {"plain", "aux"}),
            ({}, {"plain", "aux"}),
        ):
            body = {"name": "clerk", "tool_policy": {"allowlist": tools}, "execution_policy": spent, **said}
            async with house.http.post("/admin/templates", json=body) as response:
                assert response.status == 201, await response.text()
            await house.say("hi", model="clerk")
            assert {*offered(house)} == left, said
        async with house.http.get("/admin/templates/clerk@1") as response:
            shown = {**await response.json(), "is_active": True}
        async with house.http.put("/admin/templates/clerk", json=shown) as response:
            assert (response.status, (await response.json())["version"]) == (200, 1), "what is shown is what was said"


async def test_a_tool_may_be_closed_to_agents_that_others_call(serving: Serving) -> None:
    policy = ToolPolicy(required=("agent.helper",), allowlist=("private", "open", END))
    chief = Template(name="chief", tool_policy=policy)
    helper = Template(name="helper", tool_policy=ToolPolicy(allowlist=("private", "open", END)))

    def script(body: Any) -> Say:
        is_chief = any(b"agent_helper" in bytes(raw) for raw in body.tools)
        return call("agent_helper", task="do it") if is_chief and len(body.messages) == 2 else DONE

    async with serving(script, templates=[], tools=[EchoTool]) as house:
        await publish(house, tool("private", security_policy=risk(allow=Allow(sub_agents=False))), tool("open"))
        await house.app.catalog.templates.publish([helper, chief], by="a test")
        await house.say("hi", model="chief")
        assert house.model is not None
        sets = [{one["function"]["name"] for one in request["tools"]} - {END} for request in house.model.requests]
        assert sets[0] == {"agent_helper", "private", "open"}
        assert sets[1] == {"open"}


async def test_what_an_agent_is_denied_is_denied_to_those_it_calls(serving: Serving) -> None:
    chief = Template(name="chief", tool_policy=ToolPolicy(required=("agent.helper", END), denylist=("shop.*", "aux")))
    helper = Template(name="helper", tool_policy=ToolPolicy(allowlist=("shop.*", "aux", "plain", END)))

    def script(body: Any) -> Say:
        if any(b"agent_helper" in bytes(raw) for raw in body.tools):
            return call("agent_helper", task="do it") if len(body.messages) == 2 else DONE
        return call("shop_price") if len(body.messages) == 2 else DONE

    async with serving(script, templates=[], tools=[EchoTool]) as house:
        await publish(house, *SHELF)
        await house.app.catalog.templates.publish([helper, chief], by="a test")
        await house.say("hi", model="chief")
        assert house.model is not None
        below = [one for one in house.model.requests if "agent_helper" not in str(one["tools"])]
        assert [{tool["function"]["name"] for tool in one["tools"]} for one in below] == [{"plain", END}] * 2
        told = [one["content"] for one in below[-1]["messages"] if one["role"] == "tool"]
        assert told == ["Error: 'shop_price' is not among the tools that are open now"]


@pytest.mark.parametrize("cap", [2, 12])
async def test_a_narrower_policy_withdraws_what_an_earlier_turn_was_offered_and_has_used(
    serving: Serving, cap: int
) -> None:
    wide = ToolPolicy(required=(END,), allowlist=("risky", "plain", "aux"), max_tools_in_prompt=cap)
    narrow = replace(wide, allowlist=("plain", "aux"))
    script = [call("risky"), DONE, call("risky"), DONE]
    async with serving(script, templates=(), tools=[EchoTool]) as house:
        await publish(house, *SHELF)
        await house.app.catalog.templates.publish([Template(name="a", tool_policy=wide)], by="a test")
        await indexed(house.http)
        session_id = (await house.say("risky", model="a"))["model"]
        assert heard(house) == ["hello there"]
        await house.app.catalog.templates.publish([Template(name="a", tool_policy=narrow)], by="a test")
        await house.say("risky once more", model=session_id)
        assert heard(house)[-1] == "Error: 'risky' is not among the tools that are open now"
        assert "risky" not in offered(house)


async def test_a_tool_is_described_to_the_model_as_its_descriptor_says(serving: Serving) -> None:
    schema = {"type": "object", "properties": {"text": {"type": "string", "maxLength": 9}}, "required": ["text"]}
    template = Template(name="a", tool_policy=ToolPolicy(required=("short", "long", END)))
    async with serving(lambda body: DONE, templates=(), tools=[EchoTool]) as house:
        await publish(house, tool("short"), tool("long", description_long="In many words.", input_schema=schema))
        await house.app.catalog.templates.publish([template], by="a test")
        await house.say("hi", model="a")
        assert house.model is not None
        told = {one["function"]["name"]: one["function"] for one in house.model.requests[-1]["tools"]}
        assert told["short"]["description"] == "short"
        # Where the descriptor is silent, the class speaks.
        assert told["short"]["parameters"]["properties"] == {"text": {"default": "hello there", "type": "string"}}
        assert told["long"]["description"] == "In many words."
        assert told["long"]["parameters"] == schema


@pytest.mark.parametrize(
    ("changed", "result"),
    [
        ({}, "hello there"),
        ({"max_output": 5}, "hello\n[cut: 6 of 11 characters left out]"),
        ({"runtime_binding": RuntimeBinding(python_entrypoint=entrypoint_of(SlowTool)), "timeout": 0.05},
         "Error: it did not answer within 0.05 seconds"),
    ],
)  # fmt: skip
async def test_a_tool_runs_as_its_descriptor_says(serving: Serving, changed: dict[str, Any], result: str) -> None:
    template = Template(name="a", tool_policy=ToolPolicy(allowlist=("it", END)))
    async with serving([call("it"), DONE], templates=(), tools=[EchoTool, SlowTool]) as house:
        await publish(house, tool("it", **changed))
        await house.app.catalog.templates.publish([template], by="a test")
        await house.say("hi", model="a")
        assert heard(house) == [result]


async def test_an_owner_uses_a_tool_so_often_a_minute(serving: Serving) -> None:
    template = Template(name="a", tool_policy=ToolPolicy(allowlist=("rare", "plain", END)))
    several = calls(*[call("rare")] * 5, *[call("plain")] * 5)
    async with serving([several, DONE], templates=(), tools=[EchoTool]) as house:
        limited = risk(rate_limits=RateLimits(per_minute=2))
        await publish(house, tool("rare", security_policy=limited), tool("plain"))
        await house.app.catalog.templates.publish([template], by="a test")
        await house.say("hi", model="a")
        told = heard(house)
        refused = [one for one in told[:5] if one.startswith("Error: rare is used 2 times a minute at most")]
        assert len(refused) in (1, 2, 3), "a minute may have ended in between, but not two"
        assert told[5:] == ["hello there"] * 5


@pytest.mark.parametrize(("effect", "written"), [(None, "read"), ("idempotent", "idempotent"), ("once", "once")])
async def test_a_call_is_written_down_with_its_tools_effect(serving: Serving, effect: Any, written: str) -> None:
    template = Template(name="a", tool_policy=ToolPolicy(allowlist=("it", END)))
    async with serving([call("it"), DONE], templates=(), tools=[EchoTool]) as house:
        await publish(house, tool("it", effect=effect))
        await house.app.catalog.templates.publish([template], by="a test")
        session_id = (await house.say("hi", model="a"))["model"]
        called = [record.event for record in await house.journal(session_id) if isinstance(record.event, events.Called)]
        assert [one.effect for one in called] == [written, "read"]


async def test_a_tool_that_is_switched_off_leaves_a_running_turn(serving: Serving) -> None:
    template = Template(name="a", tool_policy=ToolPolicy(allowlist=("it", END)))

    async with serving([call("it"), call("it"), DONE], templates=(), tools=[EchoTool]) as house:
        await publish(house, tool("it", needs_approval=True))
        await house.app.catalog.templates.publish([template], by="a test")
        session_id = (await house.say("hi", model="a"))["model"]
        await house.app.catalog.tools.deactivate("it")
        decision = {"call_id": "1-action-0", "decision": "approve"}
        async with house.http.post(f"/v1/sessions/{session_id}/approval", json=decision) as response:
            assert response.status == 202
        await house.until(session_id, "COMPLETED")
        assert heard(house) == [
            "Error: it was switched off; nothing happened",
            "Error: 'it' is not among the tools that are open now",
        ]
        assert offered(house) == ()
