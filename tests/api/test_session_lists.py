"""What lists tell of sessions: titles, counters, what is found in them, and how many there are of which kind."""

import asyncio
import json
from datetime import timedelta
from typing import Any

import msgspec
import pytest
from key_helpers import admin_of, client_of, keyed

from delegating_server import Role, answer, ask, in_steps, playing, question, session_of, task_of
from longhouse.agents.strategies.protocol import Body
from longhouse.agents.template import Template, ToolPolicy
from longhouse.api.admin import docs
from longhouse.journal import events
from longhouse.journal.counters import Counters
from longhouse.journal.events import Fault, Recorded
from longhouse.journal.fold import blank, fold
from longhouse.models.scripted import Hang, Say, ScriptedStatus, call, calls, say
from longhouse.store import journals, sessions
from longhouse.store.database import Database
from longhouse.store.lists import session_counters, session_lists
from longhouse.tools import BaseTool, ToolContext
from old_database import OLD_JOURNALS, brought
from server_helpers import AGENT, BEGAN, House, Serving, opened, plan_nodes, prompted, returned, started, used

LONG = "Wie viel\tregnet es\nin Bergen \u202eund\x07 warum, wenn man die Nachbarn fragt, gerade dort mehr als anderswo?"


class BreakTool(BaseTool):
    """Breaks."""

    tool_name = "breaker"

    async def __call__(self, context: ToolContext, config: Any = None, **kwargs: Any) -> str:
        raise RuntimeError("it broke")


async def got(house: House, path: str, **query: str) -> Any:
    async with house.http.get(path, params=query) as response:
        assert response.status == 200, await response.text()
        return await response.json()


async def listed(house: House, **query: str) -> dict[str, Any]:
    return {row["session_id"]: row for row in (await got(house, "/v1/sessions", **query))["data"]}


def once_told(before: Say, after: Say) -> Role:
    """One reply until the year was told, then the other."""
    return lambda body: after if "1814" in str(body.messages) else before


async def test_a_tree_is_counted_as_it_grows(serving: Serving) -> None:
    roles: dict[str, Any] = {
        "master": once_told(calls(ask("analytic", "Count."), question("Which year?")), answer("Three.")),
        "analytic": in_steps(call("signtool"), answer("Three.")),
    }
    async with playing(serving, roles) as house:
        top = (await house.say(LONG, model="master"))["model"]
        child = await session_of(house.db, "analytic")
        await house.until(child, "WAITING_FOR_APPROVAL")
        rows = await listed(house)
        shown = rows[top]
        assert shown["title"] == "Wie viel regnet es in Bergen und warum, wenn man die Nachbarn fragt, gerade…"
        assert (shown["turns"], shown["steps"], shown["questions"], shown["error"]) == (1, 1, 2, None)
        assert (rows[child]["title"], rows[child]["questions"], rows[child]["parent"]) == ("Count.", 1, top)
        assert shown["waiting_seconds"] > 0

        async def post(path: str, **body: str) -> None:
            async with house.http.post(f"/v1/sessions/{top}/{path}", json=body) as response:
                assert response.status == 202, await response.text()

        await post("clarification", answer="1814")
        assert (await listed(house))[top]["questions"] == 1, "the sub-agent still asks"
        assert (await listed(house))[top]["state"] == "WAITING_FOR_APPROVAL"
        await post("approval", call_id="analytic/1-action-0", decision="deny")
        whole = await house.until(top, "COMPLETED")
        rows = await listed(house)
        shown, session = rows[top], await house.folded(top)
        assert (shown["questions"], shown["steps"], shown["tokens"]) == (0, 2, whole["usage"]["total_tokens"])
        assert (rows[child]["steps"], whole["title"]) == (2, shown["title"])
        assert session.turn
        assert shown["waiting_seconds"] == round(session.turn.waited, 3)
        # What was counted step by step is what is counted at once.
        await house.db.run("DELETE FROM session_counters")
        assert await listed(house) == rows
        # A second turn is added to the first one, and lists what it was asked under the same title.
        await house.say("Again?", model=top)
        again = (await listed(house))[top]
        assert (again["turns"], again["task"], again["title"]) == (2, "Again?", shown["title"])
        # An erased session leaves nothing, whoever erases it: an older process knows the session's row alone.
        await house.db.run("DELETE FROM sessions WHERE id = :id", id=child)
        async with house.http.delete(f"/v1/sessions/{top}") as response:
            assert response.status == 200
        assert await house.db.value("SELECT count(*) FROM session_counters") == 0


async def test_failed_and_cancelled_turns_are_told(serving: Serving) -> None:
    def play(body: Body) -> Say:
        match task_of(body):
            case "fail":
                return say("", fault=ScriptedStatus(status=400, message="no"))
            case "hang":
                return say("", fault=Hang())
        return answer("Done.")

    async with serving(play) as house:
        top = (await house.say("hello", chat_id="c"))["model"]
        await house.say("fail", model=top)
        failed = (await listed(house))[top]
        assert (failed["state"], failed["turns"], failed["title"]) == ("FAILED", 2, "hello")
        assert failed["error"] == (await house.session(top))["error"]
        asking = asyncio.create_task(house.say("hang", model=top))
        await house.until(top, "RESEARCHING")
        first = (await listed(house))[top]
        async with house.http.post(f"/v1/sessions/{top}/cancel") as response:
            assert response.status == 202
        await asking
        cancelled = (await listed(house))[top]
        assert (first["error"], cancelled["state"], cancelled["turns"]) == (None, "CANCELLED", 3)
        assert cancelled["work_seconds"] >= first["work_seconds"]
        assert (await listed(house))[top]["work_seconds"] == cancelled["work_seconds"], "its clock stands still"


async def test_sessions_are_found_by_their_words_and_their_failing_tools(serving: Serving) -> None:
    def play(body: Body) -> Say:
        return in_steps(call("breaker"), call("nosuchtool"), answer("Done."))(body)

    texts = ("Сколько ДОЖДЯ в Бергене?", "北京的天气怎么样？", "Straße nach Oslo")
    policy = ToolPolicy(allowlist=("breaker", "finalanswertool"))
    async with keyed(serving, play, tools=[BreakTool], templates=[Template(name=AGENT, tool_policy=policy)]) as house:
        ann, bob, admin = await client_of(house, "ann"), await client_of(house, "bob"), admin_of(house)
        ids = [(await ann.say(text))["model"] for text in texts]
        other = (await bob.say("Дождя нет"))["model"]

        async def found(who: Any, asked: str, path: str = "/v1/sessions") -> list[str]:
            return [row["session_id"] for row in (await who.got(f"{path}?{asked}"))["data"]]

        assert await found(ann, "q=дождя") == [ids[0]]
        assert await found(ann, "q=БЕРГЕН") == [ids[0]]
        assert await found(ann, "q=天气") == [ids[1]]
        assert await found(ann, "q=STRASSE") == [ids[2]]
        assert await found(ann, f"q={ids[1][-8:].upper()}") == [ids[1]]
        assert await found(ann, "q=дождя&template=sgr_agent") == []
        assert await found(ann, "q=%25") == []
        assert await found(admin, "q=дождя", "/admin/sessions") == [other, ids[0]]
        assert await found(admin, "q=дождя&owner=ann", "/admin/sessions") == [ids[0]]
        assert await found(ann, "tool=breaker&limit=2") == [ids[2], ids[1]]
        page = await ann.got("/v1/sessions?tool=breaker&limit=2")
        assert await found(ann, f"tool=breaker&before={page['next']}") == [ids[0]]
        assert await found(ann, "tool=nosuchtool") == [], "the model's mistake, and no tool's"
        assert await found(ann, "tool=break") == []

        counts = await ann.got("/v1/sessions/facets")
        assert counts == {
            "sessions": 3, "is_complete": True, "states": {"COMPLETED": 3}, "agents": {AGENT: 3},
            "failing_tools": {"breaker": 3},
        }  # fmt: skip
        assert (await ann.got("/v1/sessions/facets?q=oslo"))["sessions"] == 1
        assert (await ann.got("/v1/sessions/facets?q=nothing"))["failing_tools"] == {}
        everything = await admin.got("/admin/sessions/facets")
        assert set(everything) == set(docs.FACETS)
        assert everything["owners"] == {"ann": 3, "bob": 1}
        assert (await admin.got("/admin/sessions/facets?owner=bob&q=дождя"))["owners"] == {"bob": 1}
        for wrong in ("q=", "limit=3", "owner=bob", f"q={'x' * 201}", "state=x", "q=a&q=b"):
            assert (await ann.refused("GET", f"/v1/sessions/facets?{wrong}"))[0] == 400, wrong
        assert (await ann.refused("GET", "/admin/sessions/facets"))[0] == 403
        # What is gone is found no more, and an owner never sees another's.
        assert await ann.status("DELETE", f"/v1/sessions/{ids[0]}") == 200
        assert await found(ann, "q=дождя") == []
        assert await found(bob, "tool=breaker") == [other]


async def test_facets_cover_the_newest_and_are_counted_once_for_all_who_ask_the_same(
    serving: Serving, monkeypatch: Any
) -> None:
    async with serving([answer("Done.")] * 9) as house:
        for text in ("rain", "snow", "rain again"):
            await house.say(text)
        monkeypatch.setattr(session_lists, "SEARCHED", 2)
        counts = await asyncio.gather(*(got(house, "/v1/sessions/facets") for _ in range(3)))
        assert [(one["sessions"], one["is_complete"]) for one in counts] == [(2, False)] * 3
        assert (await got(house, "/v1/sessions/facets", q="rain"))["sessions"] == 1, "the other one is too old"
        assert len(await listed(house, q="rain")) == 1
        assert len(await listed(house)) == 3
        newest = (await house.say("snow again"))["model"]
        assert list(await listed(house, q="snow")) == [newest], "a search finds what was just said"
        assert await got(house, "/v1/sessions/facets") == counts[0]
        monkeypatch.setattr(session_lists, "SEARCHED", 9)
        monkeypatch.setattr(session_lists, "SHARED_FOR", -1.0)
        shared = session_lists._shared[house.db]
        for one in shared.values():
            one.until = 0.0
        for number in (4, 5):
            assert (await got(house, "/v1/sessions/facets"))["sessions"] == number
            await house.say("more")


async def test_sessions_of_an_older_release_are_counted_and_newer_events_are_left_alone(serving: Serving) -> None:
    async with serving() as house:
        await brought(house.db, json.loads(OLD_JOURNALS.read_text()))
        rows = list((await listed(house, q="дождь")).values())
        assert [(row["title"], row["turns"], row["steps"], row["questions"]) for row in rows] == [
            ("Дождь?", 1, 3, 0)
        ] * 3
        first = rows[0]["session_id"]
        newer = """INSERT INTO journal (session_id, seq, conversation_id, kind, append_id, nth, body, at)
                   SELECT id, head + 1, conversation_id, 'Replied', gen_random_uuid(), 1,
                          '{"v":99,"kind":"Replied"}', now() FROM sessions WHERE id = :id"""
        await house.db.run(newer, id=first)
        await house.db.run("UPDATE sessions SET head = head + 1 WHERE id = :id", id=first)
        again = await listed(house)
        assert (again[first]["steps"], len(again)) == (3, 3), "what a newer process wrote does not take the list away"


async def test_a_long_journal_is_counted_page_by_page(serving: Serving, monkeypatch: Any) -> None:
    monkeypatch.setattr(session_counters, "PAGE", 4)
    monkeypatch.setattr(session_counters, "BATCH", 2)
    async with serving([answer("Done.")] * 9) as house:
        ids = [(await house.say(f"number {n}"))["model"] for n in range(3)]
        for one in ids:
            await house.say("once more", model=one)
            await house.say("and again", model=one)
        rows = await listed(house)
        assert [(rows[one]["turns"], rows[one]["steps"]) for one in ids] == [(3, 3)] * 3
        heads = await house.db.rows(
            "SELECT c.head = s.head AS is_level FROM session_counters c JOIN sessions s ON s.id = session_id"
        )
        assert [row["is_level"] for row in heads] == [True] * 3


def test_time_is_divided_as_the_session_itself_divides_it() -> None:
    """Work, a question, an approval, a sub-agent that worked half its time, a prompt that is cancelled, a failure."""
    story: list[tuple[int, events.Event]] = [
        (0, opened()), (0, prompted("Go.")), (1, started(2)), (4, events.Replied()),
        (4, used("a", call_kind="ask", question="?")), (10, prompted("Later.", trace="u")), (14, returned("a", "x")),
        (16, events.Replied(usage=events.Usage(total_tokens=7))),
        (16, used("b", call_kind="agent", tool="agent.ann")),
        (26, returned("b", spent=events.Usage(total_tokens=5), seconds=4.0)),
        (27, events.Replied()), (27, used("c", tool="pay", approve_by=BEGAN + timedelta(hours=1))),
        (30, events.Decided(call="c", decision="approve", by="user")),
        (31, events.Returned(call="c", outcome=Fault(code="tool_failed", message="no"))),
        (32, events.Spent(usage=events.Usage(total_tokens=3), reason="empty")),
        (33, events.Cancelled(trace="u", by="user")), (40, events.Failed(reason="no more")),
        (50, events.Spent(usage=events.Usage(total_tokens=1), title="A \u202etitle\n")),
    ]  # fmt: skip
    records = [
        Recorded(seq=seq, at=BEGAN + timedelta(seconds=at), event=event) for seq, (at, event) in enumerate(story, 1)
    ]
    counters = Counters()
    for record in records:
        counters.add(record)
        turn = fold(records[: record.seq], blank("s")).turn
        assert counters.waiting_seconds == (turn.waited if turn else 0), record
    assert (counters.waiting_seconds, counters.work_seconds) == (10 + 6 + 3, 39 - 19)
    assert (counters.tokens, counters.failed_tools, counters.error) == (16, ("pay",), "no more")
    assert (counters.shown_title, counters.first_words, counters.questions) == ("A title", "Go.", 0)


async def test_a_reader_and_an_erasure_do_not_disturb_each_other(serving: Serving) -> None:
    async with serving([answer("Done.")] * 20) as house:
        ids = [(await house.say(f"number {n}"))["model"] for n in range(8)]
        heads = {one: (await journals.load(house.db, one)).head for one in ids}

        async def erase(one: str) -> int:
            async with house.http.delete(f"/v1/sessions/{one}") as response:
                return response.status

        reads = [session_counters.counted(house.db, heads) for _ in range(4)]
        done = await asyncio.gather(*map(erase, ids[::2]), *reads)
        assert list(done[:4]) == [200] * 4
        kept = await house.db.rows("SELECT session_id FROM session_counters ORDER BY 1")
        assert [row["session_id"] for row in kept] == sorted(ids[1::2])


FINISHED = """
    INSERT INTO sessions (id, owner, conversation_id, side, agent, head, due, version, state, created_at, updated_at)
    SELECT 's' || n, 'local', 'c' || n, 'root', 'a', 2, false, 1, 'COMPLETED', now() - n * interval '1 second', now()
    FROM generate_series(1, 10000) n
"""


@pytest.mark.parametrize("owner", ["local", None])
async def test_of_ten_thousand_sessions_only_those_in_the_state_are_read(
    db: Database, owner: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    await db.run(FINISHED)
    await db.run("UPDATE sessions SET state = 'FAILED' WHERE id IN ('s17', 's9000')")
    await db.run("ANALYZE sessions")
    asked: list[tuple[str, dict[str, Any]]] = []
    ask = Database.rows

    async def rows(self: Database, sql: str, **values: Any) -> Any:
        asked.append((sql, values))
        return await ask(self, sql, **values)

    monkeypatch.setattr(Database, "rows", rows)
    for _ in range(8):  # after five, Postgres may keep a plan that fits any state
        found = await sessions.sessions(db, owner=owner, limit=51, state="FAILED")
    assert [one.id for one in found] == ["s17", "s9000"]
    sql, values = asked[-1]
    [explained] = await db.rows(f"EXPLAIN (ANALYZE, TIMING OFF, FORMAT JSON) {sql}", **values)
    [read] = [node for node in plan_nodes(msgspec.json.decode(explained[0])[0]["Plan"]) if node.get("Relation Name")]
    assert (read["Actual Rows"], read.get("Rows Removed by Filter", 0)) == (2, 0)
