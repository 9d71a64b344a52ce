"""Where a probe can tell what became of a call, nobody else is asked before it has answered."""

import asyncio
from datetime import timedelta
from typing import Any, ClassVar

import pytest

from longhouse import clock
from longhouse.agents.template import ExecutionPolicy, Template, ToolPolicy
from longhouse.journal import events
from longhouse.journal.events import Effect
from longhouse.models.scripted import call
from longhouse.store import leases
from longhouse.tools import BaseTool, ToolContext
from longhouse.tools.outcomes import ToolFailed
from server_helpers import House, Serving, content, lost_after, used


class Bank(BaseTool):
    """Ask the bank."""

    key: str
    asked: ClassVar[asyncio.Event]
    open: ClassVar[asyncio.Event]
    says: ClassVar[Any]

    async def __call__(self, context: ToolContext, config: Any = None, **kwargs: Any) -> Any:
        self.asked.set()
        await self.open.wait()
        return self.says


class Pay(BaseTool):
    """Pay a bill; the first answer is lost."""

    effect: ClassVar[Effect] = "once"
    probe: ClassVar[str] = "bank"
    has_ended: ClassVar[bool]
    paid: ClassVar[list[str]]

    async def __call__(self, context: ToolContext, config: Any = None, **kwargs: Any) -> str:
        self.paid.append(context.key)
        if len(self.paid) > 1:
            return "paid"
        raise ToolFailed("the line was cut", in_doubt=True, has_ended=self.has_ended)


CLERK = Template(name="clerk", tool_policy=ToolPolicy(allowlist=("pay", "finalanswertool")))
TOLD = Template(name="told", tool_policy=CLERK.tool_policy, execution_policy=ExecutionPolicy(unknown="tell"))
HOUSE: Any = {"templates": [CLERK, TOLD], "tools": [Pay, Bank], "agent_concurrency": 2}
SCRIPT = [call("pay"), call("finalanswertool", answer="Done.")]
DONE = [call("finalanswertool", answer="Done.")]


@pytest.fixture(autouse=True)
def _bank() -> None:
    Bank.asked, Bank.open, Bank.says = asyncio.Event(), asyncio.Event(), {"happened": True, "result": {"id": 7}}
    Pay.paid, Pay.has_ended = [], False


async def asked(house: House) -> str:
    """The session whose bank is being asked, and of which nobody hears a question meanwhile."""
    await asyncio.wait_for(Bank.asked.wait(), 20)
    session_id = str(await house.db.value("SELECT id FROM sessions"))
    shown = await house.session(session_id)
    assert (shown["state"], shown["questions"]) == ("RESEARCHING", [])
    async with house.http.get("/v1/questions") as response:
        assert (await response.json())["data"] == []
    verdict = {"call_id": "1-action-0", "decision": "did_not_happen"}
    async with house.http.post(f"/v1/sessions/{session_id}/approval", json=verdict) as response:
        assert response.status in (400, 409), "it would be made twice"
    return session_id


def heard(house: House) -> list[Any]:
    """What the model was sent last."""
    assert house.model is not None
    return list(house.model.requests[-1]["messages"])


async def decisions(house: House, session_id: str) -> list[tuple[str, str, bool]]:
    told = (record.event for record in await house.journal(session_id))
    return [(one.decision, one.by.partition(":")[0], one.probed) for one in told if isinstance(one, events.Decided)]


async def test_a_chat_waits_for_the_probe_and_never_hears_a_question(serving: Serving) -> None:
    async with serving(SCRIPT, **HOUSE) as house:
        saying = asyncio.create_task(house.say("Pay.", model="clerk"))
        session_id = await asked(house)
        Bank.open.set()
        assert content(await asyncio.wait_for(saying, 20)) == "Done."
        [result] = [one["content"] for one in heard(house) if one["role"] == "tool"]
        assert result == '{"id":7}'
        [effect] = (await (await house.http.get(f"/v1/sessions/{session_id}/effects")).json())["data"]
        assert (effect["state"], effect["by"], effect["doubt"]) == ("done", "probe:bank", "the line was cut")
        assert [one[2] for one in await decisions(house, session_id)] == [True]


@pytest.mark.parametrize("says", ["perhaps", {"happened": None}])
async def test_a_person_is_asked_once_the_probe_cannot_tell(serving: Serving, says: Any) -> None:
    Bank.says = says
    async with serving(SCRIPT, **HOUSE) as house:
        saying = asyncio.create_task(house.say("Pay.", model="clerk"))
        session_id = await asked(house)
        Bank.open.set()
        assert "the line was cut. Did it happen?" in content(await asyncio.wait_for(saying, 20)).replace("`", "")
        [question] = (await house.session(session_id))["questions"]
        assert question["kind"] == "unknown_outcome"
        async with house.http.get("/v1/questions") as response:
            assert [one["text"] for one in (await response.json())["data"]] == [question["text"]]
        verdict = {"call_id": "1-action-0", "decision": "happened", "result": "paid"}
        async with house.http.post(f"/v1/sessions/{session_id}/approval", json=verdict) as response:
            assert response.status == 202
        await house.until(session_id, "COMPLETED")
        assert len(Pay.paid) == 1


async def test_an_agent_that_is_told_is_told_after_the_probe(serving: Serving) -> None:
    Bank.says = "perhaps"
    async with serving(SCRIPT, **HOUSE) as house:
        saying = asyncio.create_task(house.say("Pay.", model="told"))
        await asked(house)
        Bank.open.set()
        assert content(await asyncio.wait_for(saying, 20)) == "Done."
        assert "it is not known whether pay took effect" in str(heard(house))


async def test_a_worker_that_is_lost_while_it_asks_leaves_the_asking_to_the_next_one(serving: Serving) -> None:
    """Until three were lost: then the probe may be what takes them down, and a person is asked."""
    for workers, state in ((2, "RESEARCHING"), (3, "WAITING_FOR_APPROVAL")):
        Bank.asked.clear()
        async with serving(DONE, **HOUSE) as house:
            deadline = clock.now() + timedelta(seconds=60)
            told = used("1-action-0", tool="pay", effect="once", deadline=deadline)
            lost = [
                events.Resumed(worker=f"w{nth + 1}", previous=f"w{nth}", probed=("1-action-0",))
                for nth in range(workers - 1)
            ]
            session_id = await lost_after(house.db, "clerk", "Pay.", events.Replied(), told, *lost)
            house.app.bus.wake(session_id)
            if state == "RESEARCHING":
                assert await asked(house) == session_id
                Bank.open.set()
                await house.until(session_id, "COMPLETED")
            else:
                shown = await house.until(session_id, state)
                assert [one["kind"] for one in shown["questions"]] == ["unknown_outcome"]
                assert not Bank.asked.is_set()
            assert await leases.holder(house.db, session_id) is None
            assert Pay.paid == []
            async with house.http.delete(f"/v1/sessions/{session_id}") as response:
                assert response.status == 200


async def test_a_call_that_may_still_come_is_waited_for_without_a_question(serving: Serving) -> None:
    """Its time is over after a while: then it is made again, for whoever waited."""
    Bank.says = {"happened": False}
    async with serving(SCRIPT, **HOUSE) as house:
        saying = asyncio.create_task(house.say("Pay.", model="clerk"))
        session_id = await asked(house)
        Bank.open.set()
        async with asyncio.timeout(20):
            while await leases.holder(house.db, session_id):
                await asyncio.sleep(0.01)
        shown = await house.session(session_id)
        assert (shown["state"], shown["questions"]) == ("RESEARCHING", [])
        assert await house.db.value("SELECT wake_at > now() FROM sessions WHERE id = :id", id=session_id)
        assert not saying.done()
        async with house.http.post(f"/v1/sessions/{session_id}/cancel") as response:
            assert response.status == 202
        await saying


async def test_a_call_whose_process_has_ended_is_made_again_at_once(serving: Serving) -> None:
    Bank.says, Pay.has_ended = {"happened": False}, True
    Bank.open.set()
    async with serving(SCRIPT, **HOUSE) as house:
        assert content(await asyncio.wait_for(house.say("Pay.", model="clerk"), 20)) == "Done."
        assert len(Pay.paid) == 2
        assert len({*Pay.paid}) == 1, "under the same key"
        assert "paid" in str(heard(house))


async def test_whether_a_call_may_still_come_is_not_for_the_clock_of_a_process_to_say(
    serving: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    true, Bank.says = clock.now, {"happened": False}
    async with serving(SCRIPT, **HOUSE) as house:
        saying = asyncio.create_task(house.say("Pay.", model="clerk"))
        session_id = await asked(house)
        monkeypatch.setattr(clock, "now", lambda: true() + timedelta(hours=1))
        Bank.open.set()
        async with asyncio.timeout(20):
            while await leases.holder(house.db, session_id):
                await asyncio.sleep(0.01)
        assert await house.db.value("SELECT wake_at > now() FROM sessions WHERE id = :id", id=session_id)
        assert len(Pay.paid) == 1, "it is not made again while it may still come"
        async with house.http.post(f"/v1/sessions/{session_id}/cancel") as response:
            assert response.status == 202
        await saying
        # Nor is it waited for, and the bank asked twice a second, when its time is over.
        monkeypatch.setattr(clock, "now", lambda: true() - timedelta(hours=1))
        told = used("1-action-0", tool="pay", effect="once", deadline=true() - timedelta(seconds=1))
        late = await lost_after(house.db, "clerk", "Pay.", events.Replied(), told)
        house.app.bus.wake(late)
        await house.until(late, "COMPLETED")
        assert [one[:2] for one in await decisions(house, late)] == [("did_not_happen", "probe")]
