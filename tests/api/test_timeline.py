"""What happened in a session, for those who look into it: timeline, steps, export."""

import asyncio
import json
from datetime import timedelta
from typing import Any

import msgspec
import pytest
from key_helpers import Client, client_of, keyed

from delegating_server import CAST, SignTool, answer, ask, cast, in_steps, playing, question, session_of
from longhouse.api.sessions import timeline
from longhouse.journal import events
from longhouse.journal.events import Fault, Recorded
from longhouse.journal.fold import fold
from longhouse.journal.timeline import TimelineTurn, timeline_of
from longhouse.models.scripted import ScriptedStatus, call, calls, say
from longhouse.store import journals, leases
from longhouse.store.database import Database
from longhouse.store.lists.timelines import timelines_of
from old_database import OLD_JOURNALS, brought
from server_helpers import AGENT, BEGAN, House, Serving, opened, prompted, returned, started, used

TURN = {"n", "trace_id", "task", "began_at", "ended_at", "state", "answer", "steps", "waits", "takeovers"}
STEP = {"n", "began_at", "replied_at", "ended_at", "model_seconds", "retries", "text", "calls"}
CALL = {"call_id", "tool", "arguments", "began_at", "ended_at", "status", "waiting", "result", "child"}
ROW = {"n", "turn", "at", "model", "usage", "seconds", "tools", "offered", "tokens"}


async def got(house: House, path: str, **query: str) -> Any:
    async with house.http.get(path, params=query) as response:
        assert response.status == 200, await response.text()
        return await response.json()


def calls_of(shown: Any) -> list[Any]:
    return [call for turn in shown["turns"] for step in turn["steps"] for call in step["calls"]]


async def test_a_tree_is_told_to_its_owner_and_to_nobody_else(serving: Serving) -> None:
    first = calls(say("I ask. "), ask("analytic", "Count."), question("Which year?"))
    roles: dict[str, Any] = {
        "master": lambda body: answer("Three.") if "1814" in str(body.messages) else first,
        "analytic": in_steps(call("signtool", paper="x" * 3_000), call("clocktool"), answer("Three, " + "y" * 3_000)),
    }
    async with keyed(serving, cast(**roles), templates=CAST, tools=[SignTool]) as house:
        ann, bob = await client_of(house, "ann"), await client_of(house, "bob")
        top = (await ann.say("How many?", model="master"))["model"]
        child, path = await session_of(house.db, "analytic"), f"/v1/sessions/{top}"
        async with asyncio.timeout(10):
            while (await ann.got(f"/v1/sessions/{child}"))["state"] != "WAITING_FOR_APPROVAL":
                await asyncio.sleep(0.02)

        shown = await ann.got(f"{path}/timeline")
        [turn] = shown["turns"]
        [step] = turn["steps"]
        assert (set(turn), set(step), set(step["calls"][0])) == (TURN, STEP, CALL)
        assert (shown["agent"], shown["version"], shown["earlier_turns"]) == ("master", 1, 0)
        assert (turn["n"], turn["task"], turn["ended_at"]) == (1, "How many?", None)
        assert (step["text"].strip(), step["ended_at"]) == ("I ask.", None)
        delegated, asked = step["calls"]
        assert (delegated["status"], delegated["waiting"], delegated["child"]) == ("open", "agent", child)
        assert (asked["status"], asked["waiting"], asked["child"]) == ("open", "person", None)
        assert [(wait["for"], wait["to"]) for wait in turn["waits"]] == [("clarification", None)]
        [signing] = calls_of(shown["children"][child])
        assert (signing["waiting"], len(signing["arguments"])) == ("person", 2_000)

        for body in ({"answer": "1814"}, {"call_id": "analytic/1-action-0", "decision": "approve"}):
            route = "clarification" if "answer" in body else "approval"
            assert await ann.status("POST", f"{path}/{route}", body) == 202
        async with asyncio.timeout(10):
            while (await ann.got(path))["state"] != "COMPLETED":
                await asyncio.sleep(0.02)
        shown = await ann.got(f"{path}/timeline")
        [turn], below = shown["turns"], shown["children"][child]
        assert (turn["state"], turn["answer"]) == ("COMPLETED", "Three.")
        assert turn["ended_at"] >= turn["steps"][-1]["replied_at"]
        assert [wait["for"] for wait in turn["waits"]] == ["clarification", "agent"]
        assert [wait["for"] for wait in below["turns"][0]["waits"]] == ["approval"]
        assert all(wait["from"] <= wait["to"] for wait in (*turn["waits"], *below["turns"][0]["waits"]))
        assert [one["status"] for one in calls_of(below)] == ["ok", "ok", "ok"]
        assert len(calls_of(shown)[0]["result"]) == 2_000
        assert [step["n"] for step in turn["steps"]] == [1, 2]

        rows = (await ann.got(f"{path}/steps"))["data"]
        assert [(row["n"], row["turn"], set(row)) for row in rows] == [(1, 1, ROW), (2, 1, ROW)]
        assert rows[0]["tools"] == ["agent_analytic", "clarificationtool"]
        assert "agent.analytic" in rows[0]["offered"]
        assert rows[0]["usage"].keys() == {"prompt_tokens", "completion_tokens"}
        assert all(row["tokens"]["system"] > 0 and row["tokens"]["tools"] > 0 for row in rows)
        assert rows[1]["tokens"]["history"] > rows[0]["tokens"]["history"]
        assert (await ann.got(f"{path}/steps/2/request"))["tokens"] == rows[1]["tokens"]

        await exported_whole(ann, house, top, child)
        for below_it in ("timeline", "steps", "export"):
            assert (await bob.refused("GET", f"{path}/{below_it}"))[0] == 404
            assert (await Client(house).refused("GET", f"{path}/{below_it}"))[0] == 401
        for wrong in ("timeline?turns=0", "timeline?turns=201", "timeline?last=1", "steps?limit=0", "steps?before=x"):
            assert (await ann.refused("GET", f"{path}/{wrong}"))[0] == 400, wrong
        assert await ann.status("DELETE", path) == 200
        assert (await ann.refused("GET", f"{path}/timeline"))[0] == 404


async def exported_whole(ann: Client, house: House, top: str, child: str) -> None:
    """Every event of both sessions is a line, once and in order."""
    async with ann.ask("GET", f"/v1/sessions/{top}/export") as response:
        assert response.headers["content-type"] == "application/x-ndjson"
        assert response.headers["content-disposition"] == f'attachment; filename="{top}.jsonl"'
        lines = [json.loads(line) for line in (await response.text()).splitlines()]
    assert [line["session_id"] for line in lines if line["object"] == "session"] == [top, child]
    for one in (top, child):
        told = [
            (line["seq"], line["kind"]) for line in lines if line["object"] == "event" and line["session_id"] == one
        ]
        assert told == [(record.seq, events.kind_of(record.event)) for record in await house.journal(one)]


async def test_only_the_last_turns_are_told_and_counted_from_the_first(serving: Serving, monkeypatch: Any) -> None:
    monkeypatch.setattr(timeline, "WEIGHED", 2)
    roles = {"master": in_steps(ask("ann", "Go."), answer("Ok.")), "ann": in_steps(call("clocktool"), answer("Yes."))}
    async with playing(serving, roles) as house:
        top = (await house.say("one", model="master"))["model"]
        for text in ("two", "three"):
            await house.say(text, model=top)
        child, path = await session_of(house.db, "ann"), f"/v1/sessions/{top}"
        whole, last = await got(house, f"{path}/timeline"), await got(house, f"{path}/timeline", turns="1")
        assert [(turn["n"], turn["task"]) for turn in whole["turns"]] == [(1, "one"), (2, "two"), (3, "three")]
        assert (last["turns"], last["earlier_turns"]) == (whole["turns"][2:], 2)
        assert last["children"][child]["turns"] == whole["children"][child]["turns"][2:]
        assert last["children"][child]["earlier_turns"] == 2
        assert [step["n"] for step in last["turns"][0]["steps"]] == [5, 6]
        page = await got(house, f"{path}/steps", limit="4")
        assert ([row["n"] for row in page["data"]], page["has_more"], page["next"]) == ([3, 4, 5, 6], True, "3")
        assert [row["tokens"] is None for row in page["data"]] == [True, True, False, False], "composed for the last"
        page = await got(house, f"{path}/steps", limit="4", before=page["next"])
        assert ([(row["n"], row["turn"]) for row in page["data"]], page["next"]) == ([(1, 1), (2, 1)], None)
        for after, numbers, following in (("4", [5, 6], None), ("1", [3, 4, 5, 6], "3"), ("6", [], None)):
            page = await got(house, f"{path}/steps", limit="4", after=after)
            assert ([row["n"] for row in page["data"]], page["next"]) == (numbers, following)


async def test_retries_of_the_model_are_told(serving: Serving) -> None:
    lost = say("", fault=ScriptedStatus(status=503, retry_after=0.05))
    async with serving([lost, lost, answer("Done.")]) as house:
        top = (await house.say("hello"))["model"]
        [turn] = (await got(house, f"/v1/sessions/{top}/timeline"))["turns"]
        [step] = turn["steps"]
        [retry], [wait] = step["retries"], turn["waits"]
        assert (retry["reason"], wait["for"]) == ("the model call failed 2 times", "retry")
        assert (retry["at"], wait["to"]) == (wait["from"], step["replied_at"])


async def test_sessions_of_an_older_release_are_told(serving: Serving) -> None:
    async with serving() as house:
        kept = json.loads(OLD_JOURNALS.read_text())
        await brought(house.db, kept)
        for row in kept["sessions"]:
            shown = await got(house, f"/v1/sessions/{row['id']}/timeline")
            [turn] = shown["turns"]
            assert (turn["task"], turn["state"], len(turn["steps"])) == ("Дождь?", "COMPLETED", 3)
            assert "clarification" in [wait["for"] for wait in turn["waits"]]
            steps = (await got(house, f"/v1/sessions/{row['id']}/steps"))["data"]
            assert [(step["n"], step["tokens"]) for step in steps] == [(1, None), (2, None), (3, None)], (
                "its agent is gone"
            )


async def test_a_session_that_has_not_begun_has_no_turns(db: Database) -> None:
    opening = events.Opened(agent=AGENT, version=1, owner="local", conversation="c")
    await journals.open(db, "s_1", opening, prompted("Go."), task="Go.")
    found = await timelines_of(db, "s_1", 10)
    assert (found.sessions["s_1"].turns, found.sessions["s_1"].version) == ([], None)
    assert not (await timelines_of(db, "s_2", 10)).sessions


async def test_a_turn_whose_start_is_a_long_event_has_its_task(db: Database) -> None:
    opening = events.Opened(agent=AGENT, version=1, owner="local", conversation="c")
    await journals.open(db, "s_1", opening, prompted("Go."), task="Go.")
    lease = (await leases.claim(db, "s_1", "w")).lease
    assert lease is not None
    denied = tuple(f"tool_{n}" for n in range(10_000))
    new = [msgspec.structs.replace(started(2), rights=events.Rights(denied=denied))]
    session = fold([Recorded(seq=3, at=BEGAN, event=new[0])], await journals.load(db, "s_1"))
    await journals.append(db, session, new, fence=lease.fence, worker="w", at=BEGAN, rest=None)
    assert await db.value("SELECT body_digest IS NOT NULL FROM journal WHERE kind = 'Started'")
    [turn] = (await timelines_of(db, "s_1", 10)).sessions["s_1"].turns
    assert (turn.task, turn.number) == ("Go.", 1)


def told(*story: tuple[int, str, events.Event]) -> TimelineTurn:
    """The turn of these events, each with its second and its worker."""
    began: tuple[tuple[int, str, events.Event], ...] = (
        (0, "", opened()), (0, "", prompted("Go.")), (1, "w1", started(2)),
    )  # fmt: skip
    records = [
        Recorded(seq=seq, at=BEGAN + timedelta(seconds=at), event=event, worker=worker)
        for seq, (at, worker, event) in enumerate((*began, *story), 1)
    ]
    [turn] = timeline_of(records).turns
    return turn


def test_a_lost_worker_is_told_with_what_it_left_unknown() -> None:
    seen = BEGAN + timedelta(seconds=9)
    turn = told(
        (4, "w1", events.Replied(text="I pay.")), (4, "w1", used("a", tool="pay", effect="once")),
        (10, "w2", events.Resumed(worker="w2", previous="w1", seen_at=seen)),
        (20, "", events.Decided(call="a", decision="give_up", by="user")),
        (20, "", events.Returned(call="a", outcome=Fault(code="given_up", message="no"))),
        (22, "w2", events.Finished(answer="Well.")),
    )  # fmt: skip
    [takeover], [wait] = turn.takeovers, turn.waits
    assert (takeover.previous, takeover.worker, takeover.is_loss, takeover.seconds) == ("w1", "w2", True, 1.0)
    assert (wait.reason, (wait.until or BEGAN) - wait.since) == ("unknown_outcome", timedelta(seconds=10))
    assert (turn.ended, turn.steps[0].uses[0].ended_at) == ("COMPLETED", BEGAN + timedelta(seconds=20))


@pytest.mark.parametrize(
    ("resumed", "told_as"),
    [
        ((events.Resumed(worker="w2", previous="w1"),), [("w1", True, 6.0)]),
        ((events.Resumed(worker="w2", previous="w1 (interrupted)"),), [("w1", False, 6.0)]),
        ((), [("w1", False, None)]),
    ],
    ids=["lost", "interrupted", "handed over"],
)
def test_whoever_goes_on_with_a_turn_is_told(
    resumed: tuple[events.Event, ...], told_as: list[tuple[str, bool, float | None]]
) -> None:
    turn = told(
        (4, "w1", events.Replied()), (4, "w1", used("a")), (4, "w1", returned("a")),
        *((10, "w2", event) for event in resumed), (11, "w2", events.Replied()), (11, "w2", events.Finished(answer="")),
    )  # fmt: skip
    assert [(one.previous, one.is_loss, one.seconds) for one in turn.takeovers] == told_as


def test_a_worker_that_goes_on_after_a_wait_has_taken_nothing_over() -> None:
    turn = told(
        (4, "w1", events.Replied()), (4, "w1", used("a", call_kind="ask", question="?")),
        (9, "", returned("a", "yes", by="user")), (10, "w2", events.Spent(usage=events.Usage(), reason="empty")),
        (12, "w2", events.Replied()), (12, "w2", events.Cancelled(trace="t", by="user")),
        (20, "w2", events.Spent(usage=events.Usage(), title="A title")),
    )  # fmt: skip
    assert (turn.takeovers, turn.ended) == ([], "CANCELLED")
    assert [(wait.reason, wait.until) for wait in turn.waits] == [("clarification", BEGAN + timedelta(seconds=9))]
    assert [[retry.reason for retry in step.retries] for step in turn.steps] == [[], ["empty"]]
