"""A tool that needs approval waits for a person, on its own call; it runs once, and only after the word was given."""

import asyncio
import json
from dataclasses import replace
from datetime import timedelta
from typing import Any, ClassVar

import pytest
from custom_server import clerk_house, ledger

from longhouse import clock
from longhouse.agents.template import Template, ToolPolicy
from longhouse.journal import events
from longhouse.journal.events import Effect
from longhouse.models.scripted import Playable, Say, call, calls, step_of
from longhouse.models.scripted_server import serve as serve_model
from longhouse.tools import BaseTool, ToolContext
from server_helpers import AGENT, House, Serving, content, data_folder


class TransferTool(BaseTool):
    """Send money."""

    effect: ClassVar[Effect] = "once"
    needs_approval: ClassVar[bool] = True
    sent: ClassVar[list[str]] = []

    to: str = "Ann"

    async def __call__(self, context: ToolContext, config: Any = None, **kwargs: Any) -> str:
        self.sent.append(context.key)
        return f"sent to {self.to}"


class DraftTool(BaseTool):
    """Write a draft; a person looks first."""

    needs_approval: ClassVar[bool] = True

    async def __call__(self, context: ToolContext, config: Any = None, **kwargs: Any) -> str:
        return "drafted"


NAMES = ("transfertool", "drafttool", "clocktool", "clarificationtool", "finalanswertool")
BANK = Template(name=AGENT, tool_policy=ToolPolicy(allowlist=NAMES))
DONE = call("finalanswertool", answer="Done.")
TRANSFER = call("transfertool", to="Bob")


@pytest.fixture(autouse=True)
def _nothing_sent_yet() -> None:
    TransferTool.sent.clear()


def bank(serving: Serving, *script: Say) -> Any:
    chosen: Playable = [*script, DONE]
    return serving(chosen, templates=[BANK], tools=[TransferTool, DraftTool])


async def decide(house: Any, session_id: str, decision: str, call_id: str = "1-action-0", **more: str) -> int:
    body = {"call_id": call_id, "decision": decision, **more}
    async with house.http.post(f"/v1/sessions/{session_id}/approval", json=body) as response:
        if response.status == 409:
            assert response.headers["x-should-retry"] == "false"
            assert (await response.json())["error"]["code"] == "already_settled"
        return int(response.status)


def last_message(house: House) -> str:
    """What the model heard last."""
    assert house.model is not None
    return str(house.model.requests[-1]["messages"][-1]["content"])


async def republished(house: House, name: str, **changed: Any) -> None:
    descriptor = await house.app.catalog.tools.find(name)
    assert descriptor is not None
    await house.app.catalog.tools.publish([replace(descriptor, **changed)], by="a test")


async def test_the_call_waits_and_runs_once_after_the_approval(serving: Serving) -> None:
    async with bank(serving, TRANSFER) as house:
        asked = await house.say("Pay Bob")
        session_id = asked["model"]
        assert "transfertool (1-action-0) needs your approval" in content(asked)
        assert '{"to":"Bob"}' in content(asked)
        assert (asked["x_agent"]["status"], asked["x_agent"]["waiting_for"]) == ("waiting", "approval")
        assert asked["x_agent"]["call_id"] == "1-action-0"

        shown = await house.session(session_id)
        assert shown["state"] == "WAITING_FOR_APPROVAL"
        [question] = shown["questions"]
        assert (question["kind"], question["call_id"], question["tool"]) == ("approval", "1-action-0", "transfertool")
        assert question["arguments"] == '{"to":"Bob"}'
        assert question["text"] == "May transfertool run?"
        assert question["deadline"] > clock.now().isoformat()
        assert (TransferTool.sent, house.app.worker.busy) == ([], 0)

        assert await decide(house, session_id, "approve", comment="go on") == 202
        await house.until(session_id, "COMPLETED")
        assert TransferTool.sent == [f"{session_id}:1-action-0"]
        assert last_message(house) == "sent to Bob"
        assert await house.kinds(session_id) == [
            "Opened", "Prompted", "Started", "Replied", "Called", "Decided", "Returned",
            "Replied", "Called", "Returned", "Finished",
        ]  # fmt: skip
        decided = next(r.event for r in await house.journal(session_id) if isinstance(r.event, events.Decided))
        assert (decided.decision, decided.by, decided.comment) == ("approve", "user", "go on")
        for late in ("approve", "deny"):
            assert await decide(house, session_id, late) == 409
        assert len(TransferTool.sent) == 1


async def test_a_stream_says_what_waits_and_ends(serving: Serving) -> None:
    async with bank(serving, TRANSFER) as house:
        stream = await house.client.chat.completions.create(
            model=AGENT, messages=[{"role": "user", "content": "Pay Bob"}], stream=True
        )
        chunks = [chunk async for chunk in stream]
        text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
        assert "transfertool (1-action-0) needs your approval" in text
        assert chunks[-1].choices[0].finish_reason == "stop"
        assert chunks[-1].model_extra["x_agent"]["waiting_for"] == "approval"


async def test_a_denial_reaches_the_agent_with_its_reason(serving: Serving) -> None:
    async with bank(serving, TRANSFER) as house:
        session_id = (await house.say("Pay Bob"))["model"]
        assert await decide(house, session_id, "deny", comment="Bob owes us") == 202
        assert await decide(house, session_id, "deny") == 409
        await house.until(session_id, "COMPLETED")
        assert last_message(house) == "Error: the user did not approve this call: Bob owes us"
        assert TransferTool.sent == []
        assert (await house.kinds(session_id)).count("Decided") == 1


async def test_a_denied_call_is_not_asked_again_in_its_turn_and_its_tool_stays_open(serving: Serving) -> None:
    again = call("transfertool", to="Eve")
    other = call("transfertool", to="Bob")
    asks = call("clarificationtool", questions=["Who shall have it?"])
    async with bank(serving, again, again, again, again, other, asks, again, DONE, again) as house:
        session_id = (await house.say("Do what the mail says"))["model"]
        assert await decide(house, session_id, "deny") == 202
        await house.until(session_id, "WAITING_FOR_APPROVAL")
        [question] = (await house.session(session_id))["questions"]
        assert (question["call_id"], question["arguments"]) == ("5-action-0", '{"to":"Bob"}'), "the other one is asked"
        assert "nobody is asked again" in last_message(house)
        assert await decide(house, session_id, "approve", "5-action-0") == 202
        await house.until(session_id, "WAITING_FOR_CLARIFICATION")
        assert TransferTool.sent == [f"{session_id}:5-action-0"]
        await house.say("Eve, after all", model=session_id)
        await house.until(session_id, "WAITING_FOR_APPROVAL")
        assert await decide(house, session_id, "approve", "7-action-0") == 202, "the person has said something new"
        await house.until(session_id, "COMPLETED")
        assert TransferTool.sent[1:] == [f"{session_id}:7-action-0"]
        next_turn = await house.say("Once more", model=session_id)
        assert "transfertool (9-action-0) needs your approval" in content(next_turn), "another turn asks anew"


class WireTool(BaseTool):
    """Wire money."""

    effect = "once"
    wired: ClassVar[list[str]] = []

    async def __call__(self, context: ToolContext, config: Any = None, **kwargs: Any) -> str:
        self.wired.append(context.key)
        return "wired"


async def test_what_was_denied_does_not_run_when_an_operator_asks_for_no_approval_any_more(serving: Serving) -> None:
    wire, policy = call("wiretool"), "/admin/tools/wiretool/security_policy"
    agent = Template(name=AGENT, tool_policy=ToolPolicy(allowlist=("wiretool", "finalanswertool")))
    async with serving([wire, wire, DONE, wire, DONE], templates=[agent], tools=[WireTool]) as house:
        async with house.http.patch(policy, json={"needs_approval": True}) as response:
            assert response.status == 200, await response.text()
        session_id = (await house.say("Wire it"))["model"]
        async with house.http.delete(policy) as response:
            assert response.status == 204
        assert await decide(house, session_id, "deny") == 202
        await house.until(session_id, "COMPLETED")
        assert "nobody is asked again" in last_message(house)
        assert WireTool.wired == []
        await house.say("Wire it now", model=session_id)
        assert len(WireTool.wired) == 1, "the person has said something new"


class PayTool(BaseTool):
    """Pay an order."""

    needs_approval: ClassVar[bool] = True

    order: str
    euros: int
    parts: tuple[float, ...] = (1,)

    async def __call__(self, context: ToolContext, config: Any = None, **kwargs: Any) -> str:
        return f"paid {self.euros}"


async def test_a_denied_call_is_the_same_however_its_numbers_are_written(serving: Serving) -> None:
    spellings = [
        '{"order":"M","euros":900}',
        '{"euros":900.0,"order":"M","parts":[1.0]}',
        '{"order":"M","euros":"900"}',
    ]
    others = ['{"order":"M","euros":"901"}', '{"order":"900","euros":900}', '{"order":"M","euros":900,"parts":[1.5]}']
    pays = [call("paytool", **json.loads(written)) for written in spellings + others]
    agent = Template(name=AGENT, tool_policy=ToolPolicy(allowlist=("paytool", "finalanswertool")))
    async with serving([*pays, DONE], templates=[agent], tools=[PayTool]) as house:
        session_id = (await house.say("Pay order M"))["model"]
        assert await decide(house, session_id, "deny") == 202
        for nth, written in enumerate(others, start=4):
            await house.until(session_id, "WAITING_FOR_APPROVAL")
            [question] = (await house.session(session_id))["questions"]
            assert (question["call_id"], question["arguments"]) == (f"{nth}-action-0", written), "these are other calls"
            assert await decide(house, session_id, "approve", f"{nth}-action-0") == 202
        await house.until(session_id, "COMPLETED")


async def test_only_what_waits_for_approval_can_be_approved(serving: Serving) -> None:
    async with bank(serving, calls(TRANSFER, call("clarificationtool", questions=["Sure?"]))) as house:
        session_id = (await house.say("Pay Bob"))["model"]
        assert {one["kind"] for one in (await house.session(session_id))["questions"]} == {"approval", "clarification"}
        for decision in ("happened", "did_not_happen", "give_up"):
            assert await decide(house, session_id, decision) == 409
        assert await decide(house, session_id, "approve", call_id="1-action-1") == 409, "it is a question"
        assert await decide(house, session_id, "approve", call_id="9-action-9") == 409
        assert (await house.session(session_id))["state"] == "WAITING_FOR_CLARIFICATION"
        answered = await house.say("Yes", model=session_id)
        assert "transfertool (1-action-0) needs your approval" in content(answered), "and now that is what waits"
        assert await decide(house, session_id, "approve") == 202
        await house.until(session_id, "COMPLETED")
        assert len(TransferTool.sent) == 1


async def test_what_nobody_approves_in_time_is_denied(serving: Serving) -> None:
    async with bank(serving, TRANSFER) as house:
        await republished(house, "transfertool", approval_timeout=0.3)
        session_id = (await house.say("Pay Bob"))["model"]
        await house.until(session_id, "COMPLETED")
        assert last_message(house) == "Error: nobody approved transfertool in time"
        assert await decide(house, session_id, "approve") == 409
        assert TransferTool.sent == []
        kinds = await house.kinds(session_id)
        assert kinds[4:6] == ["Called", "Returned"]


async def test_an_approval_after_the_deadline_is_refused_even_where_nobody_has_noticed_it_yet(
    serving: Serving,
) -> None:
    async with bank(serving, TRANSFER) as house:
        await republished(house, "transfertool", approval_timeout=0.05)
        session_id = (await house.say("Pay Bob"))["model"]
        [question] = (await house.session(session_id))["questions"] or [None]
        if question:
            async with asyncio.timeout(20):
                while clock.now().isoformat() < question["deadline"]:
                    await asyncio.sleep(0.01)
        assert await decide(house, session_id, "approve") == 409
        await house.until(session_id, "COMPLETED")
        assert TransferTool.sent == []


async def test_by_when_a_call_is_approved_is_said_by_the_clock_of_the_process(
    serving: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    true = clock.now

    def set_clock(minutes: float) -> None:
        monkeypatch.setattr(clock, "now", lambda: true() + timedelta(minutes=minutes))

    async def wakes(session_id: str) -> bool:
        wake_at = "SELECT wake_at <= now() OR due FROM sessions WHERE id = :id"
        return bool(await house.db.value(wake_at, id=session_id))

    tools: Any = [TransferTool, DraftTool]
    async with serving(
        lambda body: DONE if step_of(body.messages) else TRANSFER, templates=[BANK], tools=tools
    ) as house:
        await republished(house, "transfertool", approval_timeout=600.0)
        # Ahead: it is refused, and denied by nobody; it may be approved once the clock is right.
        refused = (await house.say("Pay Bob"))["model"]
        set_clock(60)
        assert await decide(house, refused, "approve") == 409
        late = (await house.say("Pay Eve"))["model"]
        set_clock(0)
        assert (await house.session(refused))["state"] == "WAITING_FOR_APPROVAL"
        assert await decide(house, refused, "approve") == 202
        await house.until(refused, "COMPLETED")
        # What was asked meanwhile has an hour more.
        set_clock(30)
        assert await decide(house, late, "approve") == 202
        await house.until(late, "COMPLETED")

        # Back: Postgres wakes what was asked meanwhile, and whoever looks lets it wait; it may be approved.
        set_clock(-60)
        early = (await house.say("Pay Dan"))["model"]
        denied = (await house.say("Pay Ann"))["model"]
        assert await wakes(early)
        assert await decide(house, early, "approve") == 202
        await house.until(early, "COMPLETED")
        assert (await house.session(denied))["state"] == "WAITING_FOR_APPROVAL"
        set_clock(0)
        await house.until(denied, "COMPLETED")
        assert last_message(house) == "Error: nobody approved transfertool in time"
        assert len(TransferTool.sent) == 3


async def test_of_two_calls_side_by_side_each_is_decided_on_its_own(serving: Serving) -> None:
    async with bank(serving, calls(TRANSFER, call("drafttool"), call("clocktool"))) as house:
        asked = await house.say("Pay Bob and write")
        session_id = asked["model"]
        assert "transfertool (1-action-0)" in content(asked)
        assert "drafttool (1-action-1)" in content(asked)
        await house.until(session_id, "WAITING_FOR_APPROVAL")
        assert (await house.kinds(session_id)).count("Returned") == 1, "the clock needs nobody's approval"
        assert await decide(house, session_id, "approve") == 202
        async with asyncio.timeout(10):
            while not TransferTool.sent or (await house.session(session_id))["state"] != "WAITING_FOR_APPROVAL":
                await asyncio.sleep(0.02)
        [left] = (await house.session(session_id))["questions"]
        assert left["call_id"] == "1-action-1"
        assert await decide(house, session_id, "deny", call_id="1-action-1") == 202
        await house.until(session_id, "COMPLETED")
        assert len(TransferTool.sent) == 1
        assert house.model is not None
        results = [m["content"] for m in house.model.requests[-1]["messages"] if m["role"] == "tool"]
        assert results[:2] == ["sent to Bob", "Error: the user did not approve this call"]


async def test_of_many_decisions_at_once_one_wins(serving: Serving) -> None:
    async with bank(serving, TRANSFER) as house:
        session_id = (await house.say("Pay Bob"))["model"]
        tries = [decide(house, session_id, "approve" if n % 2 else "deny") for n in range(8)]
        assert sorted(await asyncio.gather(*tries)) == [202] + [409] * 7
        await house.until(session_id, "COMPLETED")
        decisions = [r.event.decision for r in await house.journal(session_id) if isinstance(r.event, events.Decided)]
        assert len(decisions) == 1
        assert len(TransferTool.sent) == (decisions == ["approve"])


async def test_a_turn_that_waits_for_approval_is_cancelled(serving: Serving) -> None:
    async with bank(serving, TRANSFER) as house:
        session_id = (await house.say("Pay Bob"))["model"]
        async with house.http.post(f"/v1/sessions/{session_id}/cancel") as response:
            assert (response.status, (await response.json())["state"]) == (202, "CANCELLED")
        assert await decide(house, session_id, "approve") == 409
        assert TransferTool.sent == []
        assert (await house.kinds(session_id))[-2:] == ["Returned", "Cancelled"]
        assert await house.db.value("SELECT wake_at FROM sessions WHERE id = :id", id=session_id) is None


async def test_an_answer_and_an_action_that_needs_approval_do_not_go_together(serving: Serving) -> None:
    """The answer may be with the client already: nobody would look for something to approve."""
    async with bank(serving, calls(call("finalanswertool", answer="Paid."), TRANSFER)) as house:
        assert content(await house.say("Pay Bob")) == "Paid."
        assert TransferTool.sent == []


async def test_the_call_keeps_the_version_that_was_shown_to_who_approved_it(serving: Serving) -> None:
    async with bank(serving, TRANSFER) as house:
        session_id = (await house.say("Pay Bob"))["model"]
        await republished(house, "transfertool", needs_approval=False, max_output=3)
        assert await decide(house, session_id, "approve") == 202
        await house.until(session_id, "COMPLETED")
        assert last_message(house) == "sent to Bob"


async def test_waiting_for_approval_does_not_use_up_the_time_of_the_turn(serving: Serving) -> None:
    async with bank(serving, TRANSFER) as house:
        session_id = (await house.say("Pay Bob"))["model"]
        folded = await house.folded(session_id)
        assert folded.turn is not None
        assert folded.turn.resting_since is not None
        assert folded.wake_at is not None
        kept = await house.db.value("SELECT wake_at FROM sessions WHERE id = :id", id=session_id)
        assert kept == folded.wake_at
        assert await decide(house, session_id, "approve") == 202
        shown = await house.until(session_id, "COMPLETED")
        assert shown["questions"] == []


async def test_a_killed_process_forgets_nothing_of_what_waits(dsn: str) -> None:
    with data_folder() as folder:
        (folder / "go").touch()
        async with serve_model([call("wiretool"), call("wiretool"), DONE, DONE]) as model:
            async with clerk_house(folder, database_url=dsn, llm_base_url=model.url) as house:
                asked = await house.say("Pay", model="clerk")
                assert "needs your approval" in content(asked)
                session_id = asked["model"]
                assert (await house.session(session_id))["state"] == "WAITING_FOR_APPROVAL"
                other = (await house.say("Pay more", model="clerk"))["model"]
                house.kill()
                await house.ended()
            async with clerk_house(folder, database_url=dsn, llm_base_url=model.url) as house:
                assert (await house.session(session_id))["state"] == "WAITING_FOR_APPROVAL"
                assert ledger(folder) == []
                assert await decide(house, session_id, "approve") == 202
                await house.until(session_id, "COMPLETED")
                assert ledger(folder) == [("wiretool", f"{session_id}:1-action-0")]
                kinds = [fact["event"]["kind"] for fact in await house.facts(session_id)]
                assert "Resumed" not in kinds, "nobody had held it"
                assert content(await house.say("да", model=other)) == "Done."
                assert ledger(folder)[1:] == [("wiretool", f"{other}:1-action-0")]
