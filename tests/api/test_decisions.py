"""Deciding from outside: what became of a call whose worker was lost, and whether a turn goes on at all."""

import asyncio
import uuid
from collections.abc import AsyncIterator
from typing import Any, ClassVar

import pytest
from attack_helpers import ask

from longhouse import clock
from longhouse.agents.template import Template, ToolPolicy
from longhouse.journal import events
from longhouse.journal.events import Effect
from longhouse.models.scripted import Hang, Playable, Say, call
from longhouse.store import journals, leases
from longhouse.store.database import Database
from longhouse.tools import BaseTool, ToolContext
from server_helpers import AGENT, House, Serving, content, lost_after, lost_in_a_step


class PayTool(BaseTool):
    """Pay somebody."""

    effect: ClassVar[Effect] = "once"
    paid: ClassVar[list[str]] = []

    async def __call__(self, context: ToolContext, config: Any = None, **kwargs: Any) -> str:
        self.paid.append(context.key)
        return "paid"


PAYING = Template(name=AGENT, tool_policy=ToolPolicy(allowlist=("paytool", "clarificationtool", "finalanswertool")))
DONE = call("finalanswertool", answer="Done.")


async def opened(db: Database) -> str:
    session_id = f"{AGENT}_{uuid.uuid4()}"
    begin = events.Opened(agent=AGENT, version=1, owner="local", conversation=session_id)
    prompt = events.Prompted(trace="t1", content=("Pay Ann",))
    await journals.open(db, session_id, begin, prompt, task="Pay Ann")
    return session_id


async def lost_while_paying(db: Database) -> str:
    """A session whose worker began to pay, and was never heard of again."""
    return await lost_after(
        db,
        AGENT,
        "Pay Ann",
        events.Replied(calls=(events.ProviderCall(id="x", name="paytool", arguments="{}"),)),
        events.Called(call="1-action-0", tool="paytool", arguments="{}", effect="once", deadline=clock.now()),
    )


async def posted(house: House, session_id: str, route: str, body: Any = None) -> tuple[int, Any]:
    async with house.http.post(f"/v1/sessions/{session_id}/{route}", json=body) as response:
        if response.status == 409:
            assert response.headers["x-should-retry"] == "false"
        return response.status, await response.json()


def decision(what: str, **more: str) -> dict[str, str]:
    return {"call_id": "1-action-0", "decision": what, **more}


async def test_a_lost_effect_becomes_a_question(serving: Serving, db: Database) -> None:
    session_id = await lost_while_paying(db)
    async with serving([DONE], templates=[PAYING], tools=[PayTool]) as house:
        waiting = await house.until(session_id, "WAITING_FOR_APPROVAL")
        [question] = waiting["questions"]
        assert (question["call_id"], question["kind"]) == ("1-action-0", "unknown_outcome")
        assert "paytool" in question["text"]
        assert house.model is not None
        assert house.model.requests == []
        assert (await house.kinds(session_id))[-1] == "Resumed"
        assert (await posted(house, session_id, "clarification", {"answer": "yes"}))[0] == 409, "it is no clarification"
        for what in ("approve", "deny"):
            status, told = await posted(house, session_id, "approval", decision(what))
            assert (status, told["error"]["code"]) == (409, "already_settled"), "nothing here waits to be approved"
            wanted = "Nobody knows whether paytool happened: say happened, did_not_happen or give_up."
            assert told["error"]["message"] == wanted
        status, told = await posted(house, session_id, "approval", {**decision("happened"), "call_id": "2-action-0"})
        assert (status, told["error"]["code"]) == (409, "already_settled")
        assert told["error"]["message"] == "No call 2-action-0 waits here; open: 1-action-0."
        [listed] = await questions_in(house, "/v1/questions")
        assert listed["deadline"] is question["deadline"] is None, "its own time does not count for a person"
        async with house.http.get("/metrics") as response:
            assert "longhouse_sessions_in_doubt 1.0" in await response.text()
        async with house.http.get(f"/agents/{session_id}/state") as response:
            assert (await response.json())["state"] == "waiting_for_clarification", "the seed knows no other word"
        async with house.http.get("/agents") as response:
            assert (await response.json())["agents"][0]["state"] == "waiting_for_clarification"
        async with house.http.get("/v1/sessions", params={"state": "WAITING_FOR_APPROVAL"}) as response:
            assert [row["session_id"] for row in (await response.json())["data"]] == [session_id]


@pytest.mark.parametrize(
    ("words", "made", "times"),
    [
        ("It happened.", "happened", 0),
        ("не произошло", "did_not_happen", 1),
        ("放弃", "give_up", 0),
    ],
)
async def test_what_became_of_a_call_is_said_in_the_chat(
    serving: Serving, db: Database, words: str, made: str, times: int
) -> None:
    PayTool.paid.clear()
    session_id = await lost_while_paying(db)
    async with serving([DONE], templates=[PAYING], tools=[PayTool]) as house:
        await house.until(session_id, "WAITING_FOR_APPROVAL")
        for unclear in ("And?", "yes", "no"):
            said = content(await house.say(unclear, model=session_id))
            assert "A worker was lost while paytool (1-action-0) ran: please say whether it happened." in said
            assert "Answer happened, did not happen or give up (" in said
        assert PayTool.paid == []
        assert content(await house.say(words, model=session_id)) == "Done."
        journal = [record.event for record in await house.journal(session_id)]
        assert [one.decision for one in journal if isinstance(one, events.Decided)] == [made]
        assert len(PayTool.paid) == times


@pytest.mark.parametrize(
    ("sent", "seen", "times"),
    [
        (decision("happened", result="receipt 7", comment="I looked"), "receipt 7", 0),
        (decision("happened"), "", 0),
        (decision("did_not_happen"), "paid", 1),
        (decision("give_up", comment="never mind"), "Error: nobody knows whether it happened", 0),
    ],
)
async def test_a_person_says_what_became_of_it(
    serving: Serving, db: Database, sent: dict[str, str], seen: str, times: int
) -> None:
    PayTool.paid.clear()
    session_id = await lost_while_paying(db)
    async with serving([DONE], templates=[PAYING], tools=[PayTool]) as house:
        await house.until(session_id, "WAITING_FOR_APPROVAL")
        status, told = await posted(house, session_id, "approval", sent)
        assert (status, told["session_id"]) == (202, session_id)
        await house.until(session_id, "COMPLETED")
        assert house.model is not None
        [request] = house.model.requests
        assert request["messages"][-1]["content"].startswith(seen)
        assert PayTool.paid == [f"{session_id}:1-action-0"] * times
        decided = next(r.event for r in await house.journal(session_id) if isinstance(r.event, events.Decided))
        assert (decided.decision, decided.by) == (sent["decision"], "user")
        assert decided.comment == sent.get("comment", "")
        status, told = await posted(house, session_id, "approval", sent)
        assert (status, told["error"]["message"]) == (409, "1-action-0 was answered or decided already.")


async def test_a_step_that_lost_its_workers_is_a_question_that_takes_two_decisions(
    serving: Serving, db: Database
) -> None:
    again, given_up, chatting, leaving = [await lost_in_a_step(db, AGENT, "Pay Ann") for _ in range(4)]
    async with serving(lambda body: DONE, templates=[PAYING], tools=[PayTool]) as house:
        for one in (again, given_up, chatting, leaving):
            shown = await house.until(one, "WAITING_FOR_APPROVAL")
        [question] = shown["questions"]
        text = "The worker was lost three times in this step. Try it again?"
        assert question == {
            "call_id": question["call_id"], "name": question["call_id"], "agent": AGENT, "session_id": leaving,
            "kind": "worker_lost", "text": text, "deadline": None,
        }  # fmt: skip
        listed = await questions_in(house, "/v1/questions", kind="worker_lost")
        assert {one["session_id"] for one in listed} == {again, given_up, chatting, leaving}
        assert listed == sorted(listed, key=lambda one: one["opened_at"]), "the oldest first"
        assert listed == await questions_in(house, "/admin/questions")
        assert listed == await questions_in(house, "/v1/questions")
        about = {"root": leaving, "kind": "worker_lost", "call_id": question["call_id"], "text": text, "tool": None}
        [row] = [one for one in listed if one["root"] == leaving]
        assert about.items() <= row.items()
        assert (row["arguments"], row["is_cut"], row["deadline"]) == (None, False, None)
        assert [one async for one in paged(house)] == listed
        assert await questions_in(house, "/v1/questions", kind="unknown_outcome") == []
        names = {one["session_id"]: one["name"] for one in listed}
        for what in ("approve", "deny", "happened"):
            status, told = await posted(house, again, "approval", {"call_id": names[again], "decision": what})
            assert (status, told["error"]["code"]) == (409, "already_settled"), "these are no answers to it"
            assert told["error"]["message"].endswith("in this step: say did_not_happen (try it again) or give_up.")

        trying = {"call_id": names[again], "decision": "did_not_happen"}
        assert (await posted(house, again, "approval", trying))[0] == 202
        assert (await house.until(again, "COMPLETED"))["result"] == "Done."
        assert (await posted(house, again, "approval", trying))[0] == 409, "a decision is made once"
        ending = {"call_id": names[given_up], "decision": "give_up"}
        assert (await posted(house, given_up, "approval", ending))[0] == 202
        why = (await house.until(given_up, "FAILED"))["error"]
        assert why == "this step was interrupted three times by the loss of its worker; it is not tried again"
        failed = [one.event for one in await house.journal(given_up) if isinstance(one.event, events.Failed)]
        assert [one.code for one in failed] == ["worker_lost"]
        assert (await posted(house, leaving, "cancel"))[0] == 202

        # In the chat: what is no decision is read by the agent when the step is tried again.
        for unclear in ("And?", "happened", "天气？"):
            said = content(await house.say(unclear, model=chatting))
            assert f"The worker was lost three times in this step ({names[chatting]}). Try it again?" in said
            assert "Answer try again or give up (" in said
        assert content(await house.say("Ещё раз!", model=chatting)) == "Done."
        assert house.model is not None
        requests = [[one["content"] for one in request["messages"][1:]] for request in house.model.requests]
        assert [len(one) for one in requests] == [1, 4]
        assert all(word in told for word, told in zip(("And?", "happened", "天气？"), requests[1][1:], strict=True))
        assert "step-" not in str(house.model.requests)
        assert await questions_in(house, "/v1/questions") == []
        async with house.http.get(f"/v1/sessions/{chatting}/effects") as response:
            assert (await response.json())["data"] == []


async def questions_in(house: House, path: str, **query: str) -> list[Any]:
    async with house.http.get(path, params=query) as response:
        return list((await response.json())["data"])


async def paged(house: House) -> AsyncIterator[Any]:
    """The list, one question a page."""
    query = {"limit": "1"}
    while True:
        async with house.http.get("/v1/questions", params=query) as response:
            page = await response.json()
        for one in page["data"]:
            yield one
        if page["next"] is None:
            return
        query["before"] = page["next"]


async def test_of_many_decisions_at_once_one_wins(serving: Serving, db: Database) -> None:
    session_id = await lost_while_paying(db)
    async with serving([DONE], templates=[PAYING], tools=[PayTool]) as house:
        await house.until(session_id, "WAITING_FOR_APPROVAL")
        tries = [posted(house, session_id, "approval", decision("happened", result=str(n))) for n in range(6)]
        assert sorted(status for status, _ in await asyncio.gather(*tries)) == [202] + [409] * 5
        await house.until(session_id, "COMPLETED")
        assert (await house.kinds(session_id)).count("Decided") == 1


async def test_a_lost_effect_can_be_left_behind(serving: Serving, db: Database) -> None:
    PayTool.paid.clear()
    session_id = await lost_while_paying(db)
    async with serving([DONE], templates=[PAYING], tools=[PayTool]) as house:
        await house.until(session_id, "WAITING_FOR_APPROVAL")
        assert await posted(house, session_id, "cancel") == (202, {"session_id": session_id, "state": "CANCELLED"})
        assert (await posted(house, session_id, "approval", decision("did_not_happen")))[0] == 409
        assert (await house.session(session_id))["questions"] == []
        assert PayTool.paid == []


async def test_a_running_turn_is_cancelled_and_the_next_one_runs(serving: Serving) -> None:
    def hang_or_answer(body: Any) -> Say:
        return Say(fault=Hang()) if body.messages[-1].content == "hang" else call("finalanswertool", answer="Here.")

    async with serving(hang_or_answer) as house:
        first = asyncio.create_task(house.say("hang", chat_id="c"))
        session_id = await running(house)
        second = asyncio.create_task(house.say("next", model=session_id))
        async with asyncio.timeout(10):
            while not (await house.session(session_id))["queued"]:
                await asyncio.sleep(0.01)
        assert (await posted(house, session_id, "cancel"))[0] == 202
        assert (await first)["error"]["code"] == "cancelled"
        assert (await second)["choices"][0]["message"]["content"] == "Here."
        assert (await house.session(session_id))["state"] == "COMPLETED"


async def running(house: House) -> str:
    async with asyncio.timeout(10):
        while True:
            async with house.http.get("/v1/sessions", params={"state": "RESEARCHING"}) as response:
                if rows := (await response.json())["data"]:
                    return str(rows[0]["session_id"])
            await asyncio.sleep(0.01)


async def test_a_waiting_turn_is_cancelled_with_its_question(serving: Serving) -> None:
    async with serving(ask) as house:
        session_id = (await house.say("hi"))["model"]
        assert await posted(house, session_id, "cancel", {}) == (202, {"session_id": session_id, "state": "CANCELLED"})
        assert (await posted(house, session_id, "clarification", {"answer": "late"}))[0] == 409
        kinds = await house.kinds(session_id)
        assert kinds[-2:] == ["Returned", "Cancelled"], "history stays paired"
        assert await posted(house, session_id, "cancel") == (202, {"session_id": session_id, "state": "CANCELLED"})
        assert await house.kinds(session_id) == kinds, "what rests is left alone"


async def test_a_completed_session_is_left_alone(serving: Serving) -> None:
    script: Playable = [call("finalanswertool", answer="Done.")]
    async with serving(script) as house:
        session_id = (await house.say("hi"))["model"]
        before = await house.journal(session_id)
        assert await posted(house, session_id, "cancel") == (202, {"session_id": session_id, "state": "COMPLETED"})
        assert await house.journal(session_id) == before


async def test_a_prompt_in_the_queue_is_cancelled_before_it_starts(serving: Serving, db: Database) -> None:
    session_id = await opened(db)
    async with db.connection() as connection:
        # Held by a worker that lives and does nothing.
        await leases.register_worker(connection, "slow", node="n", pid=1, slots=1)
        assert (await leases.claim(db, session_id, "slow")).lease
        async with serving(ask) as house:
            shown = await house.session(session_id)
            assert (shown["state"], shown["queued"], shown["task"]) == ("INITED", 1, None)
            status, told = await posted(house, session_id, "cancel")
            assert (status, told["state"]) == (202, "CANCELLED")
            assert await house.kinds(session_id) == ["Opened", "Prompted", "Cancelled"]
            assert (await house.session(session_id))["queued"] == 0
            assert (await posted(house, session_id, "cancel"))[0] == 202
            assert len(await house.journal(session_id)) == 3
            assert house.model is not None
            assert house.model.requests == []
