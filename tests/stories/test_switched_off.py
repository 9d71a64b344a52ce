"""Switching a tool off takes it from agents, and stops nobody."""

import asyncio
from pathlib import Path
from typing import Any, ClassVar

import pytest
from structlog.testing import capture_logs
from test_approval import TRANSFER, TransferTool, bank, decide, last_message

from longhouse.agents.builtin import BUILT_IN
from longhouse.agents.template import Abilities, LLMPolicy, Template, ToolPolicy
from longhouse.errors import SetupError
from longhouse.models.scripted import call, say, step_of
from longhouse.tools import BaseTool, ToolContext
from server_helpers import NO_FILES, House, Serving, content, launched_words, process

DONE = call("finalanswertool", answer="Done.")
OWN = "agents: {own: {tools: [clocktool, createreporttool, agent.analytic, finalanswertool]}}"
WARNING = "template_tool_inactive"


def files(folder: Path, agents: str) -> dict[str, Any]:
    (folder / "agents.yaml").write_text(agents)
    return {**NO_FILES, "agents_file": folder / "agents.yaml"}


async def asked(house: House, method: str, path: str, body: Any = None) -> tuple[int, Any]:
    async with house.http.request(method, path, json=body) as response:
        return response.status, await response.json() if response.status != 204 else None


async def switch_off(house: House) -> None:
    """A tool deactivated, another one retired, an agent deactivated."""
    assert (await asked(house, "POST", "/admin/tools/clocktool/deactivate"))[0] == 200
    assert (await asked(house, "DELETE", "/admin/tools/createreporttool"))[0] == 204
    assert (await asked(house, "POST", "/admin/templates/analytic/deactivate"))[0] == 200


def offered(house: House) -> list[str]:
    assert house.model is not None
    return [one["function"]["name"] for one in house.model.requests[-1]["tools"]]


async def test_the_next_start_says_what_is_off_and_serves(serving: Serving, dsn: str, tmp_path: Path) -> None:
    async with serving() as house:
        await switch_off(house)
    given = files(tmp_path, OWN)
    with capture_logs() as log:
        async with serving(lambda body: DONE, **given) as house:
            for model in ("tool_calling_agent", "own"):
                assert content(await house.say("Go", model=model)) == "Done."
                assert not {"clocktool", "createreporttool", "agent_analytic"} & {*offered(house)}
    told = [(one["template"], one["tool"]) for one in log if one["event"] == WARNING]
    built_in = {(one.name, tool) for one in BUILT_IN for tool in one.tool_policy.named}
    off = {"clocktool", "createreporttool", "agent.analytic"}
    assert sorted(told) == sorted([pair for pair in built_in if pair[1] in off] + [("own", tool) for tool in off])
    where: dict[str, Any] = {"database_url": dsn, "agents_file": str(given["agents_file"])}
    seeding = asyncio.create_task(launched_words("seed", **where))
    async with process("work", **where) as working:
        assert any("worker ready" in line for line in working.said), working.said
        code, said = await seeding
    assert code == 0, said
    assert "own  version 1  unchanged" in said


async def test_a_tool_that_never_was_is_still_a_mistake(serving: Serving, tmp_path: Path) -> None:
    agents = "agents: {own: {tools: [clocktol, finalanswertool]}}"
    with pytest.raises(SetupError, match=r"agents.own.tools\[0\]: there is no tool 'clocktol'"):
        async with serving(**files(tmp_path, agents)):
            raise AssertionError("it started")


async def test_who_publishes_a_template_is_told_of_its_tools_that_are_off(serving: Serving) -> None:
    policy = {"required": ["clocktool"], "allowlist": ["finalanswertool", "agent.analytic", "later.*"]}
    template = {"name": "clerk", "tool_policy": policy}
    with capture_logs() as log:
        async with serving(lambda body: DONE) as house:
            first = {"name": "clerk", "version": 1, "is_active": True}
            assert await asked(house, "POST", "/admin/templates", template) == (201, first)
            await switch_off(house)
            status, answer = await asked(house, "POST", "/admin/templates", [template, {"name": "other"}])
            says = "is switched off: agents work without it until it is active again"
            warnings = [
                f"tool_policy.required[0]: clocktool {says}",
                f"tool_policy.allowlist[1]: agent.analytic {says}",
            ]
            assert (status, answer["data"]) == (
                201,
                [{**first, "warnings": warnings}, {"name": "other", "version": 1, "is_active": True}],
            )
            unknown = {"name": "clerk", "tool_policy": {**policy, "required": ["clocktol"]}}
            status, answer = await asked(house, "POST", "/admin/templates", unknown)
            assert (status, answer["error"]["param"]) == (400, "tool_policy.required[0]")
            for _ in range(2):
                assert content(await house.say("Go", model="clerk")) == "Done."
            assert offered(house) == ["finalanswertool"]
    missing = [(one["template"], one["tool"]) for one in log if one["event"] == "required_tool_missing"]
    assert missing == [("clerk@1", "clocktool")], "said once"


MANY = ["createfiletool", "readfiletool", "updatefiletool", "deletefiletool", "createdirtool", "getsizetool",
        "getlistfilestool", "gotolinktool", "clocktool", "clarificationtool", "websearchtool"]  # fmt: skip


async def test_more_required_tools_than_places_are_refused(serving: Serving, tmp_path: Path) -> None:
    async with serving() as house:
        bill = {
            "name": "bill",
            "description_short": "Bills.",
            "runtime_binding": {"remote_endpoint": "http://x.invalid"},
        }
        assert (await asked(house, "POST", "/admin/tools", bill))[0] in (200, 201)
        for base, required, beside in (
            ("ToolCallingAgent", MANY, None),
            ("ToolCallingAgent", [*MANY, "createreporttool"], "finalanswertool"),
            ("ToolCallingAgent", [*MANY, "finalanswertool"], None),
            ("SGRToolCallingAgent", MANY, "finalanswertool, reasoningtool"),
            ("SGRToolCallingAgent", [*MANY[1:], "reasoningtool", "finalanswertool"], None),
            ("ToolCallingAgent", [*MANY, "far.away"], "finalanswertool"),
            ("ToolCallingAgent", [*MANY, "bill"], "finalanswertool"),
            ("ToolCallingAgent", [*MANY, "far.*"], None),
        ):
            policy = {"required": required, "max_tools_in_prompt": 12}
            template = {"name": "clerk", "base_agent_class": base, "tool_policy": policy}
            status, answer = await asked(house, "POST", "/admin/templates", template)
            if beside is None:
                assert status in (200, 201), answer
                continue
            assert (status, answer["error"]["param"]) == (400, "tool_policy.required")
            assert answer["error"]["message"] == (
                f"Nothing is published. tool_policy.required: 13 tools (with {beside}, which its agents need) would be"
                " offered in every step, and max_tools_in_prompt is 12: require fewer, or raise it."
            )
        many = [f"far.away_{number}" for number in range(129)]
        status, answer = await asked(
            house, "POST", "/admin/templates", {"name": "c", "tool_policy": {"allowlist": many}}
        )
        assert (status, answer["error"]["param"]) == (400, "tool_policy.required")
        assert "130 tools (with finalanswertool, which its agents need) would be offered in every step" in str(answer)
        assert "and 128 is the most: name groups as server.*, or set max_tools_in_prompt" in str(answer)
        policy = {"allowlist": [*MANY, "finalanswertool"], "max_tools_in_prompt": 10}
        status, answer = await asked(house, "POST", "/admin/templates", {"name": "c", "tool_policy": policy})
        says = "12 tools are named, and max_tools_in_prompt is 10: 2 of them are left out at each step"
        assert status in (200, 201), answer
        assert says in str(answer["warnings"])
    agents = f"agents:\n  own:\n    tool_policy:\n      required: [{', '.join(MANY)}]\n      max_tools_in_prompt: 3\n"
    says = r"agents.yaml:4: agents.own.tool_policy.required\[10\]: 12 tools \(with finalanswertool"
    with pytest.raises(SetupError, match=says):
        async with serving(**files(tmp_path, agents)):
            raise AssertionError("it started")
    own = Template(name="own", tool_policy=ToolPolicy(required=("clocktool", "finalanswertool"), max_tools_in_prompt=1))
    with pytest.raises(SetupError, match="own@1: 2 tools would be offered in every step"):
        async with serving(templates=[own]):
            raise AssertionError("it started")


NEVER_ENDS = "it denies finalanswertool, and no other tool that the policy names ends a turn: no turn would ever end"


async def test_policies_that_contradict_themselves_are_refused(serving: Serving, tmp_path: Path) -> None:
    never = "is on the denylist, too: a tool that is denied is never offered"
    async with serving(lambda body: DONE) as house:
        risky = {
            "name": "risky",
            "description_short": "Breaks.",
            "runtime_binding": {"remote_endpoint": "https://x.invalid"},
        }
        risky |= {"security_policy": {"risk_level": "medium"}, "input_schema": {"type": "object"}}
        assert (await asked(house, "POST", "/admin/tools", risky))[0] == 201
        for policy, field, why in (
            (
                {"required": ["websearchtool", "clocktool"], "denylist": ["clocktool"]},
                "required[1]",
                f"clocktool {never}",
            ),
            ({"required": ["far.away"], "denylist": ["far.*"]}, "required[0]", f"far.away {never}"),
            (
                {"required": ["risky"], "max_risk_level": "low"},
                "required[0]",
                "the risk of risky is medium, and max_risk_level is low: it would never be offered",
            ),
            ({"denylist": ["finalanswertool"]}, "denylist", NEVER_ENDS),
            ({"allowlist": ["clocktool"], "denylist": ["finalanswertool"]}, "denylist", NEVER_ENDS),
        ):
            for base in ("ToolCallingAgent", "SGRToolCallingAgent", "SGRAgent"):
                template = {"name": "clerk", "base_agent_class": base, "tool_policy": policy}
                status, answer = await asked(house, "POST", "/admin/templates", template)
                assert (status, answer["error"]["param"]) == (400, f"tool_policy.{field}"), answer
                assert answer["error"]["message"] == f"Nothing is published. tool_policy.{field}: {why}."
        session = {"name": "clerk_00000000-0000-4000-8000-000000000000"}
        status, answer = await asked(house, "POST", "/admin/templates", session)
        assert (status, answer["error"]["param"]) == (400, "name")
        assert "it looks like the id of a session" in answer["error"]["message"]
        # Without any tool an agent answers in words; and a server's tool may be denied where the others are required.
        for policy in (
            {"allowlist": ["clocktool"], "denylist": ["clocktool", "finalanswertool"]},
            {"allowlist": [], "denylist": ["finalanswertool"]},
            {"required": ["far.*"], "denylist": ["far.away"]},
        ):
            status, answer = await asked(house, "POST", "/admin/templates", {"name": "clerk", "tool_policy": policy})
            assert status in (200, 201), answer
    agents = "agents:\n  own:\n    tool_policy:\n      required: [clocktool]\n      denylist: [{}]\n"
    for denied, says in (
        ("clocktool", r"agents.yaml:4: agents.own.tool_policy.required\[0\]: clocktool is on the denylist"),
        ("finalanswertool", f"agents.yaml:5: agents.own.tool_policy.denylist: {NEVER_ENDS}"),
    ):
        with pytest.raises(SetupError, match=says):
            async with serving(**files(tmp_path, agents.format(denied))):
                raise AssertionError("it started")


class ClosingTool(BaseTool):
    """Close the case and end."""

    finishes: ClassVar[bool] = True

    async def __call__(self, context: ToolContext, config: Any = None, **kwargs: Any) -> str:
        context.state, context.execution_result = "COMPLETED", "closed"
        return "closed"


@pytest.mark.parametrize("closes", [False, True], ids=["a boss who answers in words", "one with a tool of its own"])
async def test_who_denies_itself_the_final_answer_does_not_take_it_from_those_it_calls(
    serving: Serving, closes: bool
) -> None:
    names = ("agent.kid", "lettertool", *(["closingtool"] if closes else []))
    boss = Template(
        name="boss",
        tool_policy=ToolPolicy(allowlist=names, denylist=("finalanswertool", "lettertool")),
        llm_policy=LLMPolicy(can=Abilities(forced_tool_choice=closes)),
    )
    kid = Template(name="kid", tool_policy=ToolPolicy(allowlist=("clocktool", "lettertool")))
    task = call("agent_kid", task="Look at the clock.")

    def play(body: Any) -> Any:
        names = b"".join(bytes(raw) for raw in body.tools)
        if b"agent_kid" in names:
            ends = call("closingtool") if closes else say("closed")
            return ends if step_of(body.messages) else task
        return DONE if b"finalanswertool" in names else call("clocktool")

    async with serving(play, templates=[boss, kid], tools=[ClosingTool]) as house:
        assert content(await house.say("Go", model="boss")) == "closed"
        assert house.model is not None
        assert len(house.model.requests) == 3
        by_boss, by_kid, _ = ([one["function"]["name"] for one in request["tools"]] for request in house.model.requests)
        assert by_boss == ["agent_kid"] + (["closingtool"] if closes else [])
        assert by_kid == ["clocktool", "finalanswertool"], "what else is denied is denied to both"


async def test_what_waits_for_approval_does_not_begin_once_its_tool_is_off(serving: Serving) -> None:
    TransferTool.sent.clear()
    policy = "/admin/tools/transfertool/security_policy"
    async with bank(serving, TRANSFER, DONE, TRANSFER) as house:
        session_id = (await house.say("Pay Bob"))["model"]
        assert (await asked(house, "PATCH", policy, {"enabled": False}))[0] == 200
        assert await decide(house, session_id, "approve") == 202
        await house.until(session_id, "COMPLETED")
        assert last_message(house) == "Error: transfertool was switched off; nothing happened"
        assert TransferTool.sent == []
        assert "transfertool" not in offered(house)

        assert (await asked(house, "PATCH", policy, {"enabled": True}))[0] == 200
        again = (await house.say("Pay Bob"))["model"]
        assert await decide(house, again, "approve") == 202
        await house.until(again, "COMPLETED")
        assert TransferTool.sent == [f"{again}:1-action-0"]


async def test_nor_once_its_tool_is_deactivated(serving: Serving) -> None:
    TransferTool.sent.clear()
    async with bank(serving, TRANSFER, DONE, TRANSFER) as house:
        session_id = (await house.say("Pay Bob"))["model"]
        assert (await asked(house, "POST", "/admin/tools/transfertool/deactivate"))[0] == 200
        assert await decide(house, session_id, "approve") == 202
        await house.until(session_id, "COMPLETED")
        assert last_message(house) == "Error: transfertool was switched off; nothing happened"
        assert TransferTool.sent == []
        status, effects = await asked(house, "GET", f"/v1/sessions/{session_id}/effects")
        assert (status, [effect["state"] for effect in effects["data"]]) == (200, ["not_begun"])

        assert (await asked(house, "POST", "/admin/tools/transfertool/rollback"))[0] == 200
        again = (await house.say("Pay Bob"))["model"]
        assert await decide(house, again, "approve") == 202
        await house.until(again, "COMPLETED")
        assert TransferTool.sent == [f"{again}:1-action-0"]
