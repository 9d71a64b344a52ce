"""A tool that is published by the name of its class: what the class says of itself holds, whatever is left unsaid."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
from custom_server import ledger
from structlog.testing import capture_logs
from test_takeover import eventually

from acme import acme
from longhouse.agents.strategies.protocol import Body
from longhouse.journal.messages import ToolResult
from longhouse.models.scripted import Say, call
from longhouse.models.scripted_server import serve as serve_model
from server_helpers import House, Process, Serving, content, process

PAYER = {"name": "payer", "tool_policy": {"allowlist": ["pay", "finalanswertool"]}}
BOSS = {"name": "boss", "tool_policy": {"allowlist": ["agent.payer", "finalanswertool"]}}


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    with acme(tmp_path, monkeypatch) as name:
        yield name


def silent(package: str, **said: Any) -> dict[str, Any]:
    """A descriptor of the class, with what is said beside its name."""
    binding = {"python_entrypoint": f"{package}:Pay"}
    return {"name": "pay", "description_short": "Pay a bill.", "runtime_binding": binding, **said}


def firm(body: Body) -> Say:
    """The boss has the payer pay; both end with what they were told."""
    results = [message.content for message in body.messages if isinstance(message, ToolResult)]
    if results:
        return call("finalanswertool", answer=results[-1])
    if b'"agent_payer"' in b"".join(bytes(spec) for spec in body.tools):
        return call("agent.payer", task="Pay it.")
    return call("pay", amount=7)


async def put(there: House | Process, path: str, given: dict[str, Any], method: str = "POST") -> tuple[int, Any]:
    async with there.http.request(method, path, json=given) as response:
        return response.status, await response.json()


def offered(request: Any) -> dict[str, Any]:
    return {one["function"]["name"]: one["function"]["parameters"] for one in request.get("tools", [])}


async def decided(there: House | Process, session_id: str, call_id: str, decision: str, **more: str) -> int:
    path = f"/v1/sessions/{session_id}/approval"
    status, _ = await put(there, path, {"call_id": call_id, "decision": decision, **more})
    return status


async def test_a_class_keeps_its_word_over_a_kill_and_beneath_another_agent(
    serving: Serving, dsn: str, tmp_path: Path, package: str
) -> None:
    async with serve_model(firm) as model:
        settings: dict[str, Any] = {"llm_base_url": model.url, "tool_packages": package}
        async with process(database_url=dsn, **settings) as first:
            for path, given in (("tools", silent(package)), ("templates", PAYER), ("templates", BOSS)):
                assert (await put(first, f"/admin/{path}", given))[0] == 201
            asked = await first.say("Pay the bill.", model="boss")
            root = asked["model"]
            assert "May pay run?" in content(asked)
            # The model was shown what the class takes, though the descriptor says nothing of it.
            [schema] = [offered(one)["pay"] for one in model.requests if "pay" in offered(one)]
            assert schema["properties"]["amount"]["minimum"] == 1
            assert schema["required"] == ["amount"]
            assert ledger(tmp_path) == [], "nothing begins without approval"

            [question] = (await first.session(root))["questions"]
            assert (question["kind"], question["agent"]) == ("approval", "payer")
            assert await decided(first, root, question["call_id"], "approve") == 202
            await eventually(lambda: len(ledger(tmp_path)) == 1)
            first.kill()
            await first.ended()
        (tmp_path / "go").touch()
        async with serving(**settings) as second:
            await second.until(root, "WAITING_FOR_APPROVAL")
            [question] = (await second.session(root))["questions"]
            assert (question["kind"], question["tool"]) == ("unknown_outcome", "pay")
            assert len(ledger(tmp_path)) == 1, "it was not begun again"
            assert await decided(second, root, question["call_id"], "happened", result="paid 7, says the bank") == 202
            assert (await second.until(root, "COMPLETED"))["result"].endswith("paid 7, says the bank")
            assert len(ledger(tmp_path)) == 1


async def test_a_descriptor_that_takes_care_away_is_refused_in_words(serving: Serving, package: str) -> None:
    says = (
        "the class says once, and a descriptor cannot make that read; leave effect out",
        "the class needs approval, and a descriptor cannot take that away; leave needs_approval out",
    )
    script = [call("pay", amount=7), call("finalanswertool", answer="no")]
    async with serving(script, tool_packages=package) as house:
        assert house.model is not None
        # Nobody has imported the class: publishing looks at the text only.
        assert (await put(house, "/admin/tools", silent(package, effect="read")))[0] == 201
        assert (await put(house, "/admin/templates", PAYER))[0] == 201
        with capture_logs() as logs:
            answered = await house.say("Pay.", model="payer")
        assert "pay" not in offered(house.model.requests[0]), "it is not offered"
        assert content(answered) == "no"
        [warned] = [one for one in logs if one["event"] == "tool_refused"]
        assert warned["tool"] == "pay@1"
        assert warned["reason"] == f"pay cannot be used: effect: {says[0]}"
        # Now that the class is known here, publishing says it at once.
        for said, field, reason in (("effect", "effect", says[0]), ("needs_approval", "needs_approval", says[1])):
            weaker = {"effect": "read"} if said == "effect" else {"needs_approval": False}
            status, body = await put(house, "/admin/tools", silent(package, **weaker))
            assert (status, body["error"]["param"]) == (400, field)
            assert reason in body["error"]["message"]
        # More care than the class asks for may be said, and so may what is no matter of care.
        stricter = silent(package, effect="once", needs_approval=True, timeout=1.0)
        assert (await put(house, "/admin/tools", stricter))[0] == 201


async def test_what_is_left_to_the_class_stays_so_when_a_descriptor_is_read_and_sent_back(
    serving: Serving, package: str
) -> None:
    async with serving([], tool_packages=package) as house:
        assert (await put(house, "/admin/tools", silent(package)))[0] == 201
        _, shown = await put(house, "/admin/tools/pay", {}, "GET")
        left = ("input_schema", "effect", "timeout", "max_output", "needs_approval")
        assert [shown[name] for name in left] == [None] * 5
        status, placed = await put(house, "/admin/tools/pay", shown, "PUT")
        assert (status, placed["version"]) == (200, 1)
        _, placed = await put(house, "/admin/tools/pay", {"timeout": 60.0}, "PATCH")
        assert placed["version"] == 2, "said, it is said, also where it is what holds elsewhere"
        _, placed = await put(house, "/admin/tools/pay", {"timeout": None}, "PATCH")
        assert placed["version"] == 1
        found = await house.app.catalog.tools.find("pay", 2)
        assert found is not None
        assert (found.timeout, found.max_output) == (60.0, None)
        # A release that knows nothing of this reads the same row, as it has always read them.
        row = msgspec.json.decode(
            await house.db.value("SELECT descriptor FROM catalog_versions WHERE name = 'pay' AND version = 1")
        )
        assert (row["timeout"], row["max_output"], row["needs_approval"]) == (60.0, 40_000, False)
        assert row["input_schema"] == {"type": "object", "properties": {}}


async def test_a_class_that_is_not_there_yet_counts_as_one_that_asks_for_the_most(
    serving: Serving, tmp_path: Path, package: str
) -> None:
    module = tmp_path / f"{package}.py"
    text = module.read_text()
    module.write_text("raise RuntimeError('half installed')")
    script = [call("pay", amount=7), call("finalanswertool", answer="It cannot be done."), call("pay", amount=7)]
    async with serving(script, tool_packages=package) as house:
        assert house.model is not None
        for path, given in (("tools", silent(package)), ("templates", PAYER)):
            assert (await put(house, f"/admin/{path}", given))[0] == 201
        descriptor = await house.app.catalog.tools.find("pay")
        assert descriptor is not None
        for said in (descriptor, replace(descriptor, effect="read", needs_approval=False)):
            assert (said.tool.effect, said.tool.needs_approval) == ("once", True)
        # Its call is not put before a person in vain: it is told at once why it cannot be made.
        assert content(await house.say("Pay.", model="payer")) == "It cannot be done."
        told = house.model.requests[1]["messages"][-1]["content"]
        assert "pay cannot be used: " in told
        assert "half installed" in told
        module.write_text(text)
        assert "needs your approval" in content(await house.say("Pay.", model="payer"))
