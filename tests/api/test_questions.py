"""What people are asked, over all trees: listed by deadline, answered through the root, followed as a stream."""

import asyncio
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any
from urllib.parse import quote

import msgspec
from key_helpers import ADMIN, Client, admin_of, client_of

from delegating_server import answer, appears, ask, last_result, playing, question, results, task_of
from longhouse import clock
from longhouse.agents.strategies.protocol import Body
from longhouse.api.questions import QUESTION, QuestionFeed
from longhouse.journal import events
from longhouse.journal.fold import fold
from longhouse.models.scripted import Say, call, calls
from longhouse.models.scripted_server import serve as serve_model
from longhouse.store import journals, leases
from longhouse.store.database import Database
from longhouse.store.lists import questions
from longhouse.store.lists.questions import QuestionFilter
from server_helpers import LIMITS, House, Serving, Sse, plan_nodes, process, sse

HOSTILE = '</script><img src=x onerror=alert(1)> "quoted" \u202e да 是'


def signs(body: Body) -> Say:
    return last_result(body) if results(body) else call("signtool", paper=HOSTILE)


def boss(body: Body) -> Say:
    """Has a paper signed by cem, or by two at once, or asks by itself."""
    if results(body):
        return last_result(body)
    match task_of(body):
        case "Oslo":
            return answer("Rain.")
        case "ask":
            return question("Which city?")
        case "both":
            return calls(ask("ann", "Which?"), ask("cem", "Sign."))
        case "later":
            return ask("cem", "Sign.", wait=False)
        case _:
            return ask("cem", "Sign.")


def asks(body: Body) -> Say:
    return answer("told") if task_of(body) == "Oslo" else question("Which one?")


ROLES = {"master": boss, "cem": signs, "ann": asks}


async def lost_while_paying(db: Database, owner: str) -> str:
    """A session whose worker began to sign, and was never heard of again."""
    session_id, at = f"master_{uuid.uuid4()}", clock.now()
    begin = events.Opened(agent="master", version=1, owner=owner, conversation=session_id)
    await journals.open(db, session_id, begin, events.Prompted(trace="t1", content=("Pay  Ann",)), task="Pay  Ann")
    lease = (await leases.claim(db, session_id, "a worker that is gone")).lease
    assert lease is not None
    new: list[events.Event] = [
        events.Started(trace="t1", prompt=2, version=1, instance="i", limits=LIMITS, date="2026-01-31"),
        events.Replied(calls=(events.ProviderCall(id="x", name="signtool", arguments="{}"),)),
        events.Called(call="1-action-0", tool="signtool", arguments="{}", effect="once"),
    ]
    after = fold(
        (events.Recorded(seq=3 + n, at=at, event=event) for n, event in enumerate(new)),
        await journals.load(db, session_id),
    )
    await journals.append(db, after, new, fence=lease.fence, worker="a worker that is gone", at=at, rest=None)
    return session_id


async def rows(client: Client, query: str = "", path: str = "/v1/questions") -> list[Any]:
    return list((await client.got(f"{path}{query}"))["data"])


async def waits(client: Client, count: int, path: str = "/v1/questions") -> list[Any]:
    async with asyncio.timeout(10):
        while len(found := await rows(client, path=path)) != count:
            await asyncio.sleep(0.02)
        return found


async def test_all_that_is_asked_is_listed_by_deadline_and_answered_through_the_root(serving: Serving) -> None:
    async with playing(serving, ROLES, admin_key=ADMIN) as house:
        admin, ann, bob = admin_of(house), await client_of(house, "ann"), await client_of(house, "bob")
        lost = await lost_while_paying(house.db, "ann")
        asking = (await ann.say("ask", model="master"))["model"]
        titled = [events.Spent(usage=events.Usage(), title="Rain \u202e or shine")]
        await journals.note(house.db, asking, titled)
        signing = (await ann.say("Sign  the\npaper.", model="master", user="ada", chat_id="c"))["model"]
        both = (await bob.say("both", model="master"))["model"]

        first, *rest = found = await waits(ann, 3)
        assert first == {
            "root": signing, "session_id": await session_of_root(house, signing), "agent": "cem", "owner": "ann",
            "user": "ada", "conversation_id": "c", "title": "Sign the paper.", "kind": "approval",
            "call_id": "1-action-0", "name": "cem/1-action-0", "tool": "signtool", "arguments": first["arguments"],
            "is_cut": False, "text": "May signtool run?", "deadline": first["deadline"],
            "opened_at": first["opened_at"],
        }  # fmt: skip
        assert set(first) == set(QUESTION)
        assert msgspec.json.decode(first["arguments"])["paper"] == HOSTILE, "it stays JSON text"
        assert "\u202e" not in first["arguments"], "and nothing in it is invisible"
        shown = [(one["root"], one["kind"], one["text"], one["deadline"], one["name"]) for one in rest]
        assert shown == [
            (lost, "unknown_outcome", "Did signtool happen?", None, "1-action-0"),
            (asking, "clarification", "Which city?", None, "1-action-0"),
        ], "the oldest first"
        assert [(one["tool"], one["title"]) for one in rest] == [
            ("signtool", "Pay Ann"),
            (None, "Rain or shine"),
        ]
        listed = {row["session_id"]: row["title"] for row in await rows(ann, path="/v1/sessions")}
        assert {one["root"]: one["title"] for one in found} == {root: listed[root] for root in (signing, lost, asking)}

        assert {(one["root"], one["kind"]) for one in await waits(bob, 2)} == {
            (both, "approval"),
            (both, "clarification"),
        }
        everything = await rows(admin, path="/admin/questions")
        assert len(everything) == 5
        assert [one for one in everything if one["owner"] == "ann"] == found
        assert [one["deadline"] is None for one in everything] == [False, False, True, True, True]
        for query, expected in (
            ("?owner=bob", await rows(bob)),
            ("?owner=eve", []),
            ("?kind=unknown_outcome", [rest[0]]),
            ("?agent=cem&owner=ann", [first]),
            ("?agent=master&kind=approval", []),
        ):
            assert await rows(admin, query, "/admin/questions") == expected, query
        pages, following = [], ""
        for _ in range(3):
            page = await admin.got(f"/admin/questions?limit=2{following}")
            pages += page["data"]
            following = f"&before={quote(page['next'] or '')}"
        assert (pages, page["has_more"]) == (everything, False)
        for wrong in ("limit=201", "kind=other", "before=x", "before=", "owner=ann", "parent=x", "agent=%00"):
            assert (await ann.refused("GET", f"/v1/questions?{wrong}"))[0] == 400, wrong
        assert (await ann.refused("GET", "/admin/questions"))[0] == 403

        assert await rows(ann, path=f"/v1/sessions/{signing}/questions") == [first]
        assert await rows(ann, path=f"/v1/sessions/{first['session_id']}/questions") == [first], "the root is the same"
        assert (await bob.refused("GET", f"/v1/sessions/{signing}/questions"))[0] == 404

        at_deadline = clock.now() + timedelta(days=2)
        left = await questions.open_questions(house.db, QuestionFilter(limit=50), at_deadline)
        assert {one.kind for one in left} == {"clarification", "unknown_outcome"}, "past its deadline nothing is listed"

        for one in everything:
            client = ann if one["owner"] == "ann" else bob
            if one["kind"] == "clarification":
                body, route = {"answer": "Oslo", "call_id": one["name"]}, "clarification"
            else:
                decision = "approve" if one["kind"] == "approval" else "happened"
                body, route = {"call_id": one["name"], "decision": decision}, "approval"
            path = f"/v1/sessions/{one['root']}/{route}"
            assert await client.status("POST", path, body) == 202, one
        for one in everything:
            await ended(ann if one["owner"] == "ann" else bob, one["root"])
        assert await rows(admin, path="/admin/questions") == []


async def ended(client: Client, session_id: str) -> None:
    """Follows the session until it rests, which it does at its end."""
    async with client.streaming(f"/v1/sessions/{session_id}/events") as response:
        *_, last = [event async for event in sse(response)]
    assert last.event == "Finished"


async def session_of_root(house: House, root: str) -> str:
    return str(await house.db.value("SELECT child FROM delegations WHERE parent = :root", root=root))


async def test_a_question_that_the_root_does_not_wait_for_is_answered_through_it_too(serving: Serving) -> None:
    async with playing(serving, ROLES) as house:
        local = Client(house)
        root = (await house.say("later", model="master"))["model"]
        [one] = await waits(local, 1)
        assert (one["root"], one["name"]) == (root, "cem/1-action-0")
        [shown] = (await house.session(root))["questions"]
        assert (shown["name"], (await house.session(root))["state"]) == (one["name"], "COMPLETED")
        assert await rows(local, path=f"/v1/sessions/{root}/questions") == [one]
        body = {"call_id": one["name"], "decision": "deny"}
        assert await local.status("POST", f"/v1/sessions/{root}/approval", body) == 202
        assert await local.status("POST", f"/v1/sessions/{root}/approval", body) == 409
        assert await appears(house.db, "SELECT 1 FROM sessions WHERE agent = 'cem' AND state = 'COMPLETED'")


async def test_one_approval_stays_listed_while_what_was_approved_beside_it_runs(serving: Serving) -> None:
    async with playing(serving, {"master": lambda body: calls(call("signtool"), call("signtool"))}) as house:
        root = (await house.say("Go", model="master"))["model"]
        session = await house.folded(root)
        assert len(await rows(Client(house))) == 2
        # As it is between a decision and the outcome of the call, which no worker runs here.
        await house.db.run("UPDATE sessions SET holder = 'somebody else', fence = fence + 1 WHERE id = :id", id=root)
        decided = events.Decided(call="1-action-0", decision="approve", by="user")
        await journals.add(house.db, root, [decided], trace=session.trace, state="RESEARCHING")
        assert [one["call_id"] for one in await rows(Client(house))] == ["1-action-1"]


@asynccontextmanager
async def following(client: Client, path: str = "/v1/questions") -> AsyncIterator[AsyncIterator[Sse]]:
    async with client.ask("GET", path, accept="text/event-stream") as response:
        assert response.status == 200, await response.text()
        assert response.headers["content-type"].startswith("text/event-stream")
        yield sse(response)


async def told(stream: AsyncIterator[Sse], count: int) -> list[Any]:
    """The next page with so many questions."""
    async with asyncio.timeout(10):
        async for event in stream:
            assert event.event == "questions", event
            if len(found := event.json["data"]) == count:
                return list(found)
    raise AssertionError("the stream ended")


async def test_a_stream_tells_what_changes_here_and_in_other_processes(serving: Serving) -> None:
    async with playing(serving, ROLES, admin_key=ADMIN) as house, playing(serving, ROLES, admin_key=ADMIN) as other:
        ann, bob = await client_of(house, "ann"), await client_of(house, "bob")
        elsewhere = Client(other, ann.key)
        async with (
            following(ann) as mine,
            following(ann) as same,
            following(admin_of(house), "/admin/questions") as all_,
        ):
            for stream in (mine, same, all_):
                assert await told(stream, 0) == []
            feed: QuestionFeed = house.app.asgi.app.app.state.questions  # type: ignore[attr-defined]
            assert sorted(page.followers for page in feed._pages.values()) == [1, 2], "equal streams share one query"
            root = (await ann.say("ask", model="master"))["model"]
            await bob.say("ask", model="master")
            [one] = await told(mine, 1)
            assert (one["root"], await told(same, 1)) == (root, [one])
            assert len(await told(all_, 2)) == 2
            body = {"answer": "Oslo", "call_id": one["name"]}
            assert await elsewhere.status("POST", f"/v1/sessions/{root}/clarification", body) == 202
            for stream, left in ((mine, 0), (same, 0), (all_, 1)):
                assert len(await told(stream, left)) == left
            assert await admin_of(house).status("DELETE", f"/admin/keys/{ann.id}") in (200, 204)
            async with asyncio.timeout(10):
                *_, last = [event async for event in mine]
            assert (last.event, last.json["error"]["code"]) == ("error", "invalid_api_key")
        assert (await bob.refused("GET", "/v1/questions?before=x", accept="text/event-stream"))[0] == 400


async def test_a_question_outlives_a_killed_process_and_is_listed_by_the_next(dsn: str) -> None:
    def asks_once(body: Body) -> Say:
        return answer("Rain.") if task_of(body) == "Oslo" else question("Where? <b>да 是</b>")

    async with serve_model(asks_once) as model:
        async with process(database_url=dsn, llm_base_url=model.url) as house:
            session_id = (await house.say("Will it rain?"))["model"]
            house.kill()
            await house.ended()
        async with process(database_url=dsn, llm_base_url=model.url) as house:
            async with house.http.get("/v1/questions") as response:
                [one] = (await response.json())["data"]
            assert (one["root"], one["text"]) == (session_id, "Where? <b>да 是</b>")
            body = {"answer": "Oslo", "call_id": one["name"]}
            async with house.http.post(f"/v1/sessions/{session_id}/clarification", json=body) as response:
                assert response.status == 202
            await house.until(session_id, "COMPLETED")
            async with house.http.get("/v1/questions") as response:
                assert (await response.json())["data"] == []


FILL = """
    INSERT INTO sessions (id, owner, conversation_id, side, agent, head, due, state, version, trace_id, created_at,
                          updated_at)
    SELECT 's' || n, 'local', 'c' || n, 'root', 'a', 3, false,
           CASE WHEN n % 20 = 0 THEN 'WAITING_FOR_CLARIFICATION' ELSE 'COMPLETED' END, 1, 't' || n, now(), now()
    FROM generate_series(1, 10000) n
"""
FILL_JOURNAL = """
    INSERT INTO journal (session_id, seq, conversation_id, trace_id, kind, call_id, append_id, nth, body, at)
    SELECT 's' || n, seq, 'c' || n, 't' || n, kind, CASE WHEN kind = 'Called' THEN '1-action-0' END,
           gen_random_uuid(), 1, body::json, now()
    FROM generate_series(1, 10000) n CROSS JOIN (VALUES
        (1, 'Opened', '{}'), (2, 'Replied', '{}'),
        (3, 'Called', '{"call": "1-action-0", "tool": "t", "arguments": "{}", "call_kind": "ask", "question": "?"}')
    ) told (seq, kind, body)
"""


async def test_of_ten_thousand_sessions_only_those_on_the_page_are_read(db: Database) -> None:
    await db.run(FILL_JOURNAL)
    await db.run(FILL)
    await db.run("ANALYZE sessions")
    await db.run("ANALYZE journal")
    await db.run("ANALYZE asking_sessions")
    asked = QuestionFilter(owner="local", limit=51)
    found = await questions.open_questions(db, asked, clock.now())
    assert len(found) == 51
    statement = questions.OPEN.format(running=questions.RUNNING.format(also=" AND owner = :owner"), which="")
    values = {"shown": 1, "never": questions.NEVER, "now": clock.now(), "limit": 51, "owner": "local"}
    resting = list(await questions._first_sessions(db, asked, None, 51))
    assert {one.session_id for one in found} == set(resting)
    explained = await db.rows(f"EXPLAIN (ANALYZE, TIMING OFF, FORMAT JSON) {statement}", resting=resting, **values)
    nodes = plan_nodes(msgspec.json.decode(explained[0][0])[0]["Plan"])
    read = [node["Actual Rows"] * node["Actual Loops"] for node in nodes if node.get("Relation Name")]
    assert max(read) <= 200, "five hundred wait"


async def test_the_checksum_of_a_list_changes_with_its_owners_sessions_only(serving: Serving) -> None:
    async with playing(serving, ROLES, admin_key=ADMIN) as house:
        ann, bob = await client_of(house, "ann"), await client_of(house, "bob")
        await bob.say("ask", model="master")
        before = await questions.marks(house.db, ["ann", "bob"])
        session_id = (await ann.say("ask", model="master"))["model"]
        asked = await questions.marks(house.db, ["ann", "bob"])
        assert asked == {**before, "ann": asked["ann"]}
        await journals.note(house.db, session_id, [events.Noted(text="x")])
        noted = await questions.marks(house.db, ["ann", "bob"])
        assert noted["ann"] != asked["ann"]
        # A session that runs counts while one of its calls asks, and not for what it does else.
        running = "UPDATE sessions SET state = :state, due = true, holder = 'somebody else' WHERE id = :id"
        await house.db.run(running, id=session_id, state="RESEARCHING")
        assert await questions.marks(house.db, ["ann", "bob"]) == noted, "it still asks"
        told = events.Returned(call="1-action-0", outcome=events.Output(content="Oslo"))
        await journals.note(house.db, session_id, [told])
        assert await questions.marks(house.db, ["ann", "bob"]) == before, "it asks nothing, and works on"
        # Whoever changes the state, also an older process: the session is found, or is found no more.
        kept = "SELECT id FROM asking_sessions WHERE owner = 'ann'"
        assert await house.db.rows(kept) == []
        await house.db.run(running, id=session_id, state="WAITING_FOR_APPROVAL")
        assert await house.db.value(kept) == session_id
        await house.db.run("DELETE FROM sessions WHERE id = :id", id=session_id)
        assert await house.db.rows(kept) == []


MIXED_JOURNAL = """
    INSERT INTO journal (session_id, seq, conversation_id, trace_id, kind, call_id, append_id, nth, body, at)
    SELECT 'm' || n, seq, 'c', 't', kind, call, gen_random_uuid(), 1, body, now() - (n * 7 % 20) * interval '1 minute'
    FROM generate_series(1, 60) n CROSS JOIN LATERAL (
        SELECT 1, 'Replied', NULL, '{}'::json
        UNION ALL SELECT 1 + q, 'Called', q || '-action-0', json_strip_nulls(json_build_object(
            'call', q || '-action-0', 'tool', 't', 'arguments', '{}', 'approve_by',
            CASE WHEN (n + q) % 3 = 0 THEN now() + (n * 13 * q % 50 + 1) * interval '1 hour' END))
        FROM generate_series(1, 1 + n % 3) q
    ) told (seq, kind, call, body)
"""
MIXED_SESSIONS = """
    INSERT INTO sessions (id, owner, conversation_id, side, agent, head, due, state, version, trace_id, created_at,
                          updated_at)
    SELECT 'm' || n, 'local', 'c' || n, 'root', 'a', 4, false, 'WAITING_FOR_APPROVAL', 1, 't',
           now() - interval '1 day', now()
    FROM generate_series(1, 60) n
"""


async def test_pages_of_sessions_with_several_questions_are_the_list_in_order(db: Database) -> None:
    """Also where the row of a session was there before its questions, and where one of them was settled."""
    await db.run(MIXED_SESSIONS)
    await db.run(MIXED_JOURNAL)
    await db.run(
        "UPDATE sessions SET head = 5 WHERE id < 'm4'"
    )  # as an append does; the others stand where they came in
    told = events.Returned(call="1-action-0", outcome=events.Output(content="x"))
    await journals.note(db, "m8", [told])
    now = clock.now()
    whole = await questions.open_questions(db, QuestionFilter(limit=1_000), now)
    assert len(whole) == 119
    assert [one.position for one in whole] == sorted(one.position for one in whole)
    for asked in (
        QuestionFilter(limit=7),
        QuestionFilter(owner="local", limit=7),
        QuestionFilter(kind="approval", limit=2),
    ):
        pages: list[questions.OpenQuestion] = []
        while page := await questions.open_questions(db, asked, now, pages[-1].position if pages else None):
            pages += page
        assert pages == [one for one in whole if not asked.kind or one.kind == asked.kind]
