"""/v1/sessions: listing, reading, answering."""

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

from attack_helpers import ask, leaves_no_trace, refusal, refused

from longhouse.agents.template import Template, ToolPolicy
from longhouse.journal.events import Opened, Prompted
from longhouse.models.scripted import Hang, Say, call, calls
from longhouse.store import journals
from server_helpers import AGENT, House, Serving, content

OTHER = Template(name="other_agent", tool_policy=ToolPolicy(allowlist=("clarificationtool", "finalanswertool")))
PLAIN = Template(name=AGENT, tool_policy=ToolPolicy(allowlist=("clarificationtool", "finalanswertool", "clocktool")))

FIELDS = {
    "session_id", "template_id", "template", "version", "instance_id", "conversation_id", "trace_id", "state", "task",
    "counters", "context_snapshot", "result", "error", "created_at", "updated_at", "questions",
}  # fmt: skip
SNAPSHOT = {
    "state", "iteration", "searches_used", "clarifications_used", "searches", "sources", "execution_result",
    "current_step_reasoning",
}  # fmt: skip


async def listed(house: House, **query: str) -> list[str]:
    page = await got(house, "/v1/sessions", **query)
    assert page["object"] == "list"
    return [row["session_id"] for row in page["data"]]


async def got(house: House, path: str, **query: str) -> Any:
    async with house.http.get(path, params=query) as response:
        assert response.status == 200, await response.text()
        assert response.headers["x-request-id"].startswith("req_")
        return await response.json()


async def posted(house: House, path: str, body: Any = None) -> tuple[int, Any]:
    async with house.http.post(path, json=body) as response:
        if response.status == 409:
            assert response.headers["x-should-retry"] == "false"
        return response.status, await response.json()


async def test_sessions_are_listed_newest_first_and_filtered(serving: Serving) -> None:
    def answer_or_ask(body: Any) -> Say:
        return call("finalanswertool", answer="done") if "now" in str(body.messages[-1]) else ask()

    async with serving(answer_or_ask, templates=[PLAIN, OTHER]) as house:
        one = (await house.say("ask me", chat_id="first"))["model"]
        two = (await house.say("now", chat_id="second"))["model"]
        three = (await house.say("now", model="other_agent", chat_id="second"))["model"]
        assert await listed(house) == [three, two, one]
        assert await listed(house, state="COMPLETED") == [three, two]
        assert await listed(house, state="WAITING_FOR_CLARIFICATION") == [one]
        assert await listed(house, state="FAILED") == []
        assert await listed(house, template="other_agent") == [three]
        assert await listed(house, conversation_id="second") == [three, two]
        assert await listed(house, conversation_id="second", template=AGENT, state="COMPLETED") == [two]
        middle = (await house.session(two))["created_at"]
        assert await listed(house, since=middle) == [three, two]
        assert await listed(house, until=middle) == [one]
        elsewhere = datetime.fromisoformat(middle).astimezone(tz=None).isoformat()
        assert await listed(house, since=elsewhere) == [three, two], "any zone will do"
        assert await listed(house, since=(datetime.now(UTC) + timedelta(hours=1)).isoformat()) == []
        row = (await got(house, "/v1/sessions", limit="1"))["data"][0]
        assert {"session_id", "template", "conversation_id", "state", "task", "created_at"} <= set(row)
        assert (row["task"], row["conversation_id"], row["parent"]) == ("now", "second", None)


async def test_children_are_found_by_their_parent(serving: Serving) -> None:
    async with serving(ask) as house:
        parent = (await house.say("hi", chat_id="c"))["model"]
        opened = Opened(agent=AGENT, version=1, owner="local", conversation="c", side="sub")
        child = f"{AGENT}_00000000-0000-4000-8000-000000000000"
        await journals.open(
            house.db, child, opened, Prompted(trace="t", content=("go",), sender=AGENT), task="go", parent=parent
        )
        assert await listed(house, parent=parent) == [child]
        assert await listed(house, parent=child) == []
        assert await listed(house) == [child, parent]


async def test_a_long_list_comes_in_pages_that_stay_in_place(serving: Serving) -> None:
    async with serving(ask) as house:
        made = [(await house.say(f"number {n}"))["model"] for n in range(5)]
        # All at the same moment: the id decides, and no page loses or repeats one.
        await house.db.run(
            "UPDATE sessions SET created_at = :created_at", created_at=datetime(2026, 1, 31, 12, tzinfo=UTC)
        )
        first = await got(house, "/v1/sessions", limit="2")
        assert (len(first["data"]), first["has_more"]) == (2, True)
        await house.say("a later one")
        second = await got(house, "/v1/sessions", limit="2", before=first["next"])
        third = await got(house, "/v1/sessions", limit="2", before=second["next"])
        assert (second["has_more"], third["has_more"], third["next"]) == (True, False, None)
        seen = [row["session_id"] for page in (first, second, third) for row in page["data"]]
        assert seen == sorted(made, reverse=True)
        whole = await got(house, "/v1/sessions", limit="200")
        assert (len(whole["data"]), whole["has_more"], whole["next"]) == (6, False, None)


async def test_a_list_is_short_however_long_its_tasks_are(serving: Serving) -> None:
    async with serving(ask) as house:
        session_id = (await house.say("x" * 100_000))["model"]
        [row] = (await got(house, "/v1/sessions"))["data"]
        [agent] = (await got(house, "/agents"))["agents"]
        assert row["task"] == agent["task_messages"][0]["content"] == "x" * 1_000
        assert (await house.session(session_id))["task"] == "x" * 100_000


async def test_a_session_is_described_by_the_names_people_know(serving: Serving) -> None:
    script = [call("clocktool"), ask(), call("finalanswertool", answer="Rain in Oslo.")]
    async with serving(script) as house:
        session_id = (await house.say("Will it rain?", chat_id=42))["model"]
        waiting = await house.session(session_id)
        assert set(waiting) >= FIELDS
        assert set(waiting["context_snapshot"]) == SNAPSHOT
        assert waiting["session_id"] == session_id
        assert (waiting["template"], waiting["template_id"], waiting["version"]) == (AGENT, AGENT, 1)
        assert waiting["conversation_id"] == "42"
        assert waiting["instance_id"].startswith(AGENT)
        assert waiting["task"] == "Will it rain?"
        assert waiting["counters"] == {"iteration": 2, "searches_used": 0, "clarifications_used": 0}
        assert (waiting["result"], waiting["error"]) == (None, None)
        asked = {"call_id": "2-action-0", "agent": AGENT, "session_id": session_id, "kind": "clarification"}
        asked["name"] = "2-action-0"
        assert waiting["questions"] == [{**asked, "text": "Which city?", "deadline": None}]
        assert datetime.fromisoformat(waiting["created_at"]) <= datetime.fromisoformat(waiting["updated_at"])

        await posted(house, f"/v1/sessions/{session_id}/clarification", {"answer": "Oslo"})
        done = await house.until(session_id, "COMPLETED")
        assert (done["result"], done["error"], done["questions"]) == ("Rain in Oslo.", None, [])
        assert done["counters"] == {"iteration": 3, "searches_used": 0, "clarifications_used": 1}
        assert done["context_snapshot"]["execution_result"] == "Rain in Oslo."
        assert done["trace_id"] == waiting["trace_id"]

        history = await got(house, f"/v1/sessions/{session_id}/messages")
        assert (history["object"], history["has_more"]) == ("list", False)
        roles = [message["role"] for message in history["data"]]
        assert roles == ["user", "assistant", "tool", "assistant", "tool", "user", "assistant", "tool"]
        assert history["data"][3]["tool_calls"][0]["function"]["name"] == "clarificationtool"
        assert history["data"][4] == {"role": "tool", "tool_call_id": "2-action-0", "content": "Which city?"}
        assert history["data"][5] == {"role": "user", "content": "Oslo"}


async def test_a_failed_turn_says_why(serving: Serving) -> None:
    async with serving([call("finalanswertool", answer="It cannot be done.", status="failed")]) as house:
        session_id = (await house.say("Do it"))["model"]
        failed = await house.session(session_id)
        assert (failed["state"], failed["error"], failed["result"]) == (
            "FAILED", "It cannot be done.", "It cannot be done.",
        )  # fmt: skip


async def test_an_answer_is_accepted_once(serving: Serving) -> None:
    async with serving([ask(), call("finalanswertool", answer="Rain.")]) as house:
        session_id = (await house.say("Will it rain?"))["model"]
        path = f"/v1/sessions/{session_id}/clarification"
        status, told = await posted(house, path, {"answer": "Oslo", "call_id": "9-action-9"})
        assert (status, told["error"]["param"]) == (400, "call_id"), "that question was never asked"
        status, told = await posted(house, path, {"answer": "Oslo", "call_id": "1-action-0"})
        assert (status, told) == (202, {"session_id": session_id, "state": "RESEARCHING"})
        status, told = await posted(house, path, {"answer": "Bergen"})
        assert (status, told["error"]["type"]) == (409, "invalid_request_error")
        await house.until(session_id, "COMPLETED")
        assert (await posted(house, path, {"answer": "Bergen"}))[0] == 409
        assert "Bergen" not in str(await house.journal(session_id))


async def test_of_two_answers_at_once_one_wins(serving: Serving) -> None:
    async with serving([ask(), call("finalanswertool", answer="Rain.")]) as house:
        session_id = (await house.say("Will it rain?"))["model"]
        path = f"/v1/sessions/{session_id}/clarification"
        tries = [posted(house, path, {"answer": f"city {n}"}) for n in range(8)]
        assert sorted(status for status, _ in await asyncio.gather(*tries)) == [202] + [409] * 7
        await house.until(session_id, "COMPLETED")
        assert (await house.kinds(session_id)).count("Returned") == 2


async def test_each_of_two_questions_has_its_answer(serving: Serving) -> None:
    both = calls(call("clarificationtool", questions=["Where?"]), call("clarificationtool", questions=["When?"]))
    async with serving([both, call("finalanswertool", answer="Fine.")]) as house:
        answer = await house.say("Plan it")
        session_id = answer["model"]
        assert content(answer) == "Where?"
        path = f"/v1/sessions/{session_id}/clarification"
        assert [q["text"] for q in (await house.session(session_id))["questions"]] == ["Where?", "When?"]
        status, told = await posted(house, path, {"answer": "Tomorrow", "call_id": "1-action-1"})
        assert (status, told["state"]) == (202, "WAITING_FOR_CLARIFICATION")
        assert [q["text"] for q in (await house.session(session_id))["questions"]] == ["Where?"]
        assert (await posted(house, path, {"answer": "Oslo"}))[0] == 202
        await house.until(session_id, "COMPLETED")
        assert house.model is not None
        assert [m["content"] for m in house.model.requests[-1]["messages"][-2:]] == ["Oslo", "Tomorrow"]


async def test_our_own_routes_refuse_what_they_do_not_know(serving: Serving) -> None:
    async with serving(ask) as house:
        session_id = (await house.say("hi"))["model"]
        own = f"/v1/sessions/{session_id}"
        approval = {"call_id": "1-action-0", "decision": "happened"}
        bodies = [
            (f"{own}/clarification", {"answer": "x", "reply": "y"}, "reply"),
            (f"{own}/clarification", {"call_id": "1-action-0"}, "answer"),
            (f"{own}/clarification", {"answer": ""}, "answer"),
            (f"{own}/clarification", {"answer": ["x"]}, "answer"),
            (f"{own}/clarification", {"answer": "x", "call_id": 1}, "call_id"),
            (f"{own}/clarification", {"answer": "x" * 200_001}, "answer"),
            (f"{own}/approval", {**approval, "by": "me"}, "by"),
            (f"{own}/approval", {**approval, "decision": "maybe"}, "decision"),
            (f"{own}/approval", {"decision": "happened"}, "call_id"),
            (f"{own}/approval", {**approval, "result": 7}, "result"),
            (f"{own}/cancel", {"force": True}, "force"),
            (f"/agents/{session_id}/provide_clarification", {"clarifications": "x", "answer": "y"}, "answer"),
        ]
        async with leaves_no_trace(house):
            for path, body, param in bodies:
                found = await refused(house, body, path)
                assert (found.status, found.param) == (400, param), (path, body)
            found = await refused(house, b"force=true", f"{own}/cancel", {"content-type": "text/plain"})
            assert found.status == 415
            old = f"/agents/{session_id}/state"
            for path in ("/v1/sessions", own, f"{own}/messages", f"{own}/events", "/agents", old):
                async with house.http.get(f"{path}?colour=red") as response:
                    assert (await refusal(response)).param == "colour", path
            for path in (f"{own}/clarification", f"{own}/approval", f"{own}/cancel"):
                found = await refused(house, {"answer": "x"}, f"{path}?colour=red")
                assert (found.status, found.param) == (400, "colour")
            for method in ("PUT", "PATCH", "DELETE"):
                async with house.http.request(method, f"{own}/messages") as response:
                    assert (await refusal(response)).status == 405


async def test_a_session_that_works_can_be_read(serving: Serving) -> None:
    async with serving(lambda body: Say(fault=Hang())) as house:
        asking = asyncio.create_task(house.say("hi", chat_id="busy"))
        async with asyncio.timeout(10):
            while not (ids := await listed(house, state="RESEARCHING")):
                await asyncio.sleep(0.01)
        working = await house.session(ids[0])
        assert (working["state"], working["result"], working["questions"]) == ("RESEARCHING", None, [])
        assert (await posted(house, f"/v1/sessions/{ids[0]}/clarification", {"answer": "x"}))[0] == 409
        status, told = await posted(house, f"/v1/sessions/{ids[0]}/cancel")
        assert (status, told["state"]) == (202, "CANCELLED")
        assert (await asking)["error"]["code"] == "cancelled"
