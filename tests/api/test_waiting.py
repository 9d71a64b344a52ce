"""The sub-agents of a session: how they are shown, and the state that their questions give to those above."""

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any

import pytest

from delegating_server import CAST, SignTool, answer, ask, in_steps, playing, question, results, session_of
from longhouse.api.sessions.tree_reader import SubagentEvent, TreeReader, subagent_events
from longhouse.journal import events
from longhouse.journal.events import Recorded
from longhouse.models.scripted import Say, call
from longhouse.runtime.bus.items import SubagentsChanged
from longhouse.store.delegation import tree
from longhouse.store.delegation.tree import Node, Root
from server_helpers import BEGAN, House, Serving, dictated, prompted, returned, sse, started, used

AGENT = Node(
    top="master_1", id="analytic_1", agent="analytic", label="", state="RESEARCHING", head=99, due=False, wake_at=None,
    holder=None, depths={"t": 2}, first=1,
)  # fmt: skip
CHAIN: dict[str, Any] = {"master": in_steps(ask("ann", "Go on.")), "ann": in_steps(ask("ben", "Go on."))}
SIGN = call("signtool")


def recorded(new: Sequence[events.Event], *, trace: str = "t", since: int = 0) -> list[Recorded]:
    return [
        Recorded(seq=since + nth, at=BEGAN + timedelta(seconds=nth), event=event, trace=trace)
        for nth, event in enumerate(new, 1)
    ]


def shown_events(records: Sequence[Recorded]) -> list[Any]:
    return [one.shown for one in subagent_events(records, AGENT, {}, "c", {})]


async def roles(reader: TreeReader) -> list[str]:
    """The roles in the events of sub-agents."""
    return [one.shown["role"] for one in await reader.since([]) if isinstance(one, SubagentEvent) and one.shown]


def test_each_event_is_told_with_who_where_and_when() -> None:
    [one] = shown_events(recorded([prompted("Count.")]))
    assert one == {
        "event": "subagent_delegation", "role": "subagent_delegation", "task": "Count.", "agent": "analytic",
        "subagent_name": "analytic", "session_id": "analytic_1", "depth": 2, "conversation_id": "c", "chat_id": "c",
        "trace_id": "t", "timestamp": (BEGAN + timedelta(seconds=1)).timestamp(),
    }  # fmt: skip


def test_how_an_agent_thinks_and_hands_in_its_answer_is_not_work() -> None:
    thought = events.Replied(thought='{"plan": 1}', text="")
    final = used("2-action-0", tool="finalanswertool")
    found = shown_events(
        recorded([
            started(1), events.Replied(phase="reasoning"), used("1-reasoning", tool="reasoningtool"),
            returned("1-reasoning"), thought, used("1-action-0"), returned("1-action-0", "noon"),
            events.Replied(), final, returned("2-action-0"), events.Finished(answer="Noon."),
        ])
    )  # fmt: skip
    assert [one and one["role"] for one in found] == [
        None, None, None, None, "subagent_assistant_with_tools", "subagent_tool", "subagent_tool_result",
        None, None, None, "subagent_completion",
    ]  # fmt: skip
    assert found[4]["content"] == "", "structured reasoning is not what the agent said"


def test_a_persons_answer_is_no_result_of_a_tool_but_a_settled_call_has_one() -> None:
    ask_ = used("1-action-0", tool="clarificationtool", call_kind="ask", question="Which?")
    pay = used("1-action-1", tool="paytool", effect="once")
    *_, heard, settled = shown_events(
        recorded([events.Replied(), ask_, pay, returned("1-action-0", by="user"), returned("1-action-1", by="user")])
    )
    assert heard is None
    assert (settled["role"], settled["name"]) == ("subagent_tool_result", "paytool")


@pytest.mark.parametrize(
    ("end", "said"),
    [
        (events.Finished(answer="Three."), ("Three.", "completed")),
        (events.Failed(reason="too deep"), ("too deep", "failed")),
        (events.Cancelled(trace="t", by="user"), ("", "cancelled")),
    ],
)
def test_every_end_is_a_completion(end: events.Event, said: tuple[str, str]) -> None:
    [one] = shown_events(recorded([end]))
    assert (one["role"], one["response"], one["status"]) == ("subagent_completion", *said)


def test_what_an_agent_does_for_others_is_passed_over() -> None:
    ours = recorded([prompted("Ours."), events.Replied()])
    others = recorded([events.Replied(), used("7-action-0")], trace="other", since=2)
    calls = recorded([used("8-action-0")], since=4)
    assert [one and one["role"] for one in shown_events([*ours, *others, *calls])] == [
        "subagent_delegation", "subagent_assistant_with_tools", None, None, "subagent_tool"
    ]  # fmt: skip


async def test_the_events_of_one_agent_keep_their_order_whatever_the_clocks_say(serving: Serving) -> None:
    async with playing(serving, {"master": in_steps(ask("ann", "Go."), answer("Ok.")), "ann": _looks}) as house:
        root = (await house.say("Go.", model="master"))["model"]
        trace = (await house.session(root))["trace_id"]
        ann = await session_of(house.db, "ann")
        session = await house.folded(root)
        before = await roles(TreeReader.of_turn(house.db, session, trace, {}))
        assert before[0] == "subagent_delegation"
        await house.db.run("UPDATE journal SET at = :at::timestamptz - seq * interval '1 hour' WHERE session_id = :id",
                           id=ann, at=datetime(2026, 1, 31, tzinfo=UTC))  # fmt: skip
        reader = TreeReader.of_turn(house.db, session, trace, {})
        assert await roles(reader) == before
        assert await roles(reader) == []
        reader.head -= 1
        assert await reader.since([SubagentsChanged()]) == []
        assert reader.held, "what it leads to may be among the sub-agents"
        last = (await house.journal(root))[-1]
        assert await reader.since([last]) == [SubagentsChanged(), last]


def _looks(body: Any) -> Say:
    return in_steps(call("clocktool"), answer("Noon."))(body)


async def test_many_ways_to_the_same_agent_are_one_node_each(serving: Serving) -> None:
    async with serving() as house:
        # Ten calls from each of four agents to the next: ten thousand ways to the last.
        names = ["a", "b", "c", "d", "e"]
        for name in (*names, "x"):
            await house.db.run(
                "INSERT INTO sessions (id, agent, owner, conversation_id, side, head, due, version, created_at,"
                " updated_at) VALUES (:id, :id, 'local', 'c', 'sub', 1, false, 1, now(), now())", id=name
            )  # fmt: skip
        for parent, child in pairwise(names):
            await house.db.run(
                "INSERT INTO delegations (parent, call, child, prompt, trace)"
                " SELECT :parent, n::text, :child, n, 't' FROM generate_series(1, 10) n", parent=parent, child=child
            )  # fmt: skip
        roots = [Root("a", "a", None)]
        nodes = await tree.nodes(house.db, roots)
        assert [(node.id, dict(node.depths), node.first) for node in nodes] == [
            ("a", {}, 0), ("b", {"t": 1}, 1), ("c", {"t": 2}, 1), ("d", {"t": 3}, 1), ("e", {"t": 4}, 1),
        ]  # fmt: skip
        seen = {"a": 1, "b": 1, "c": 1, "d": 0}
        assert [node.id for node in await tree.nodes(house.db, roots, seen_heads=seen)] == ["d", "e"]
        assert not any(node.can_move for node in await tree.nodes(house.db, roots, open_only=True))
        await house.db.run("UPDATE sessions SET wake_at = now() + interval '1 hour' WHERE id = 'e'")
        at_work = [node.id for node in await tree.nodes(house.db, roots, open_only=True) if node.can_move]
        assert at_work == ["e"], "a provider in trouble is waited out"
        # The last has called the first, and somebody else for others.
        await house.db.run("INSERT INTO delegations (parent, call, child, prompt, trace) VALUES"
                           " ('e', '1', 'a', 1, 't'), ('e', '2', 'x', 1, 'other')")  # fmt: skip
        found = {node.id: dict(node.depths) for node in await tree.nodes(house.db, roots)}
        assert found == {"a": {"t": 5}, "b": {"t": 1}, "c": {"t": 2}, "d": {"t": 3}, "e": {"t": 4}}
        assert await tree.ever_called(house.db, "a") == {*names, "x"}


async def test_a_reply_is_never_read_without_its_calls(serving: Serving) -> None:
    async with playing(serving, {"master": in_steps(ask("ann", "Go."), answer("Ok.")), "ann": _looks}) as house:
        root = (await house.say("Go.", model="master"))["model"]
        ann = await session_of(house.db, "ann")
        whole = {session: await house.journal(session) for session in (root, ann)}
        spans = {session: (0, len(records)) for session, records in whole.items()}
        cut = set()
        for limit in range(3, sum(map(len, whole.values())) + 2):
            found = await tree.read(house.db, spans, limit)
            for session, records in found.items():
                rest = whole[session][len(records) :]
                assert [*records, *rest] == whole[session]
                assert not (isinstance(records[-1].event, events.Replied) and isinstance(rest[0].event, events.Called))
                cut.add(bool(rest))
        assert cut == {True, False}


# The state of those above


async def got(house: House, path: str) -> Any:
    async with house.http.get(path) as response:
        assert response.status == 200, await response.text()
        return await response.json()


async def states(house: House, session_id: str) -> dict[str, str]:
    """A session's state wherever it is shown."""
    lists = {path: (await got(house, path))["data"] for path in ("/v1/sessions", "/admin/sessions")}
    found = {path: row["state"] for path, rows in lists.items() for row in rows if row["session_id"] == session_id}
    agents = (await got(house, "/agents"))["agents"]
    own = await house.session(session_id)
    return {
        **found,
        "/agents": next(row["state"].upper() for row in agents if row["agent_id"] == session_id),
        "/agents/{id}/state": (await got(house, f"/agents/{session_id}/state"))["state"].upper(),
        "/v1/sessions/{id}": own["state"],
        "snapshot": own["context_snapshot"]["state"],
    }


async def test_a_question_far_beneath_shows_in_every_list(serving: Serving) -> None:
    async with playing(serving, {**CHAIN, "ben": in_steps(question("Which?"))}) as house:
        root = (await house.say("Go.", model="master"))["model"]
        for session_id in (root, await session_of(house.db, "ann"), await session_of(house.db, "ben")):
            assert set((await states(house, session_id)).values()) == {"WAITING_FOR_CLARIFICATION"}


async def test_a_question_far_beneath_is_answered_on_the_old_path_too(serving: Serving) -> None:
    def passes_on(body: Any) -> Say:
        return answer(found[-1]) if (found := results(body)) else ask("ben", "Go on.")

    def ben(body: Any) -> Say:
        return answer("Rain in Oslo.") if "Oslo" in str(body.messages) else question("Which city?")

    async with playing(serving, {"master": passes_on, "ben": ben}) as house:
        root = (await house.say("Will it rain?", model="master"))["model"]
        path = f"/agents/{root}/provide_clarification"
        async with asyncio.timeout(30), house.http.post(path, json={"clarifications": "Oslo"}) as response:
            chunks = [event.json async for event in sse(response) if event.data != "[DONE]"]
        assert "".join(chunk["choices"][0]["delta"].get("content") or "" for chunk in chunks) == "Rain in Oslo."
        assert set((await states(house, root)).values()) == {"COMPLETED"}
        async with house.http.post(path, json={"clarifications": "Bergen"}) as response:
            assert response.status == 409


async def test_an_approval_far_beneath_shows_in_every_list_and_as_a_question_on_the_old_paths(serving: Serving) -> None:
    async with playing(serving, {**CHAIN, "ben": in_steps(SIGN)}) as house:
        root = (await house.say("Go.", model="master"))["model"]
        found = await states(house, root)
        old = {found.pop("/agents"), found.pop("/agents/{id}/state")}
        assert (set(found.values()), old) == ({"WAITING_FOR_APPROVAL"}, {"WAITING_FOR_CLARIFICATION"})


async def test_a_question_of_an_agent_that_an_earlier_turn_has_asked_shows_too(serving: Serving) -> None:
    """The first turn goes on with a handle, the second collects it."""

    def master(body: Any) -> Say:
        collects = in_steps(call("collecttool", handle="1-action-0"))
        goes_on = in_steps(ask("ben", "Ask.", wait=False), answer("Under way."))
        return collects(body) if "Collect." in str(body.messages) else goes_on(body)

    async with playing(serving, {"master": master, "ben": in_steps(question("Which?"))}) as house:
        root = (await house.say("Go.", model="master"))["model"]
        await house.until(await session_of(house.db, "ben"), "WAITING_FOR_CLARIFICATION")
        assert set((await states(house, root)).values()) == {"COMPLETED"}
        await house.say("Collect.", model=root)
        assert set((await states(house, root)).values()) == {"WAITING_FOR_CLARIFICATION"}


async def test_a_session_whose_agents_work_waits_for_them(serving: Serving) -> None:
    async with dictated() as model, serving(llm_base_url=model.url, templates=CAST, tools=[SignTool]) as house:
        asking = asyncio.create_task(house.say("Go.", model="master"))
        pen = await model.asked()
        pen.call("agent_ann", '{"task": "Go on."}')
        pen.end()
        pen = await model.asked()
        found = await states(house, await session_of(house.db, "master", "root"))
        old = {found.pop("/agents"), found.pop("/agents/{id}/state")}
        assert (set(found.values()), old) == ({"WAITING_FOR_AGENT"}, {"RESEARCHING"})
        for said in ("Done.", "All done."):
            pen.call("finalanswertool", f'{{"answer": "{said}"}}')
            pen.end()
            pen = await model.asked() if said == "Done." else pen
        assert (await asking)["choices"][0]["message"]["content"] == "All done."
