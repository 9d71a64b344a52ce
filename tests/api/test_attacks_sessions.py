"""Attacks on sessions: places to continue from that do not exist, and sessions that belong to somebody else."""

import asyncio
import uuid
from typing import Any

from attack_helpers import CHAT, ask, chat, leaves_no_trace, refusal, refused, remains

from longhouse.journal.events import Opened, Prompted
from longhouse.store import journals
from longhouse.store.requests import RequestIdentity
from server_helpers import AGENT, House, Serving, sse

SECRET = "the launch code is 0000"


async def somebody_elses(house: House, *, conversation: str = "theirs", key: str | None = None) -> str:
    """A session of another owner that waits for an answer."""
    session_id, trace = f"{AGENT}_{uuid.uuid4()}", uuid.uuid4().hex
    opened = Opened(agent=AGENT, version=1, owner="ann", conversation=conversation)
    prompted = Prompted(trace=trace, content=(SECRET,))
    accepted = RequestIdentity(owner="ann", digest="0" * 64, key=key)
    await journals.open(house.db, session_id, opened, prompted, task=SECRET, accepted=accepted)
    house.app.bus.wake(session_id)
    async with asyncio.timeout(10):
        while (await house.folded(session_id)).state != "WAITING_FOR_CLARIFICATION" or house.app.worker.busy:
            await asyncio.sleep(0.01)
    return session_id


async def answer_of(house: House, method: str, path: str, body: Any, headers: dict[str, str]) -> tuple[int, str]:
    async with house.http.request(method, path, json=body, headers=headers) as response:
        found = await refusal(response)
        return found.status, str(found.error)


PLACES = ["-1", "1e18", "1" * 18, "9" * 30, "x", "1.0", "0x1", "1 OR 1=1", "+1", "1_0"]


async def test_a_place_to_continue_from_must_be_one_of_the_session(serving: Serving) -> None:
    async with serving(ask) as house:
        session_id = (await house.say("hi"))["model"]
        path, head = f"/v1/sessions/{session_id}/events", len(await house.journal(session_id))
        async with leaves_no_trace(house):
            for after in (*PLACES, str(head + 1)):
                async with house.http.get(path, headers={"last-event-id": after}) as response:
                    found = await refusal(response)
                    assert (found.status, found.param) == (400, "after"), after
            for after in (*PLACES, str(head + 1), " 1", "٣", "²", "１"):
                async with house.http.get(path, params={"after": after}) as response:
                    found = await refusal(response)
                    assert (found.status, found.param) == (400, "after"), after
            for name, value in (("until", "x"), ("deltas", "1"), ("offset", "1")):
                async with house.http.get(path, params={name: value}) as response:
                    assert (await refusal(response)).param == name
            async with house.http.get(path, headers={"last-event-id": "2"}) as response:
                assert [event.id async for event in sse(response)] == [str(seq) for seq in range(3, head + 1)]
            async with house.http.get(path, headers={"last-event-id": str(head)}) as response:
                assert [event async for event in sse(response)] == []


ROUTES: list[tuple[str, str, Any]] = [
    ("GET", "/v1/sessions/{}", None),
    ("GET", "/v1/sessions/{}/messages", None),
    ("GET", "/v1/sessions/{}/memory", None),
    ("GET", "/v1/sessions/{}/events", None),
    ("GET", "/v1/sessions/{}/events?after=1", None),
    ("POST", "/v1/sessions/{}/clarification", {"answer": "Oslo"}),
    ("POST", "/v1/sessions/{}/clarification", {"answer": "Oslo", "call_id": "1-action-0"}),
    ("POST", "/v1/sessions/{}/approval", {"call_id": "1-action-0", "decision": "happened"}),
    ("POST", "/v1/sessions/{}/cancel", None),
    ("GET", "/agents/{}/state", None),
    ("POST", "/agents/{}/provide_clarification", {"clarifications": "Oslo"}),
    ("GET", "/v1/models/{}", None),
    ("POST", CHAT, {}),
    ("POST", CHAT, {"stream": True}),
    ("POST", CHAT, {"metadata": {"reply_to": "1-action-0"}}),
]


async def test_a_session_of_somebody_else_is_as_good_as_none(serving: Serving) -> None:
    async with serving(ask) as house:
        theirs, unknown = await somebody_elses(house), f"{AGENT}_{uuid.uuid4()}"
        async with leaves_no_trace(house):
            for method, route, body in ROUTES:
                told = []
                for session_id in (theirs, unknown):
                    sent = chat(model=session_id, **body) if route == CHAT else body
                    headers = {"last-event-id": "1"} if "events" in route else {}
                    status, error = await answer_of(house, method, route.format(session_id), sent, headers)
                    assert status == 404, route
                    told.append(error.replace(session_id, "{id}"))
                assert told[0] == told[1], route


async def test_what_is_somebody_elses_is_in_no_list(serving: Serving) -> None:
    async with serving(ask) as house:
        theirs = await somebody_elses(house)
        row = await house.db.row("SELECT created_at FROM sessions WHERE id = :id", id=theirs)
        assert row is not None
        filters: list[dict[str, str]] = [
            {}, {"conversation_id": "theirs"}, {"template": AGENT}, {"state": "WAITING_FOR_CLARIFICATION"},
            {"since": row["created_at"].isoformat()}, {"parent": theirs},
        ]  # fmt: skip
        for query in filters:
            async with house.http.get("/v1/sessions", params=query) as response:
                assert (await response.json())["data"] == [], query
        async with house.http.get("/agents") as response:
            assert await response.json() == {"agents": [], "total": 0}
        async with house.http.get("/metrics") as response:
            assert theirs not in await response.text()


async def test_a_conversation_id_and_a_key_belong_to_their_owner(serving: Serving) -> None:
    async with serving(ask) as house:
        theirs = await somebody_elses(house, conversation="12345", key="key-1")
        before = await house.journal(theirs)
        ours = await house.say("hello", chat_id=12345)
        assert ours["model"] != theirs
        assert SECRET not in str(ours) + str(await house.session(ours["model"]))
        assert SECRET not in str(house.model and house.model.requests[-1])
        async with house.http.post(CHAT, json=chat(), headers={"idempotency-key": "key-1"}) as response:
            assert response.status == 200
            assert (await response.json())["model"] not in (theirs, ours["model"])
        resent = [{"role": "user", "content": SECRET}, {"role": "assistant", "content": "Which city?"}]
        body = chat(messages=[*resent, {"role": "user", "content": "Oslo"}])
        async with house.http.post(CHAT, json=body) as response:
            assert (await response.json())["model"] != theirs
        assert await house.journal(theirs) == before


async def test_filters_are_values_and_never_sql(serving: Serving) -> None:
    async with serving(ask) as house:
        await house.say("hi")
        await somebody_elses(house)
        before = await remains(house.db)
        for value in ("' OR '1'='1", "x'; DROP TABLE journal; --", "%", "_", "{}", "null"):
            for name in ("template", "parent"):
                async with house.http.get("/v1/sessions", params={name: value}) as response:
                    assert (response.status, (await response.json())["data"]) == (200, []), value
            for name in ("state", "since", "limit", "before"):
                async with house.http.get("/v1/sessions", params={name: value}) as response:
                    assert (await refusal(response)).param == name
        moments = (
            "0001-01-01T00:00:00+14:00",
            "9999-12-31T23:59:59-14:00",
            "2026-01-01",
            "2026-01-01T00:00:00",
            "now",
            "",
        )
        for moment in moments:
            async with house.http.get("/v1/sessions", params={"since": moment}) as response:
                assert (await refusal(response)).param == "since", moment
        cursors = ("MjAyNi0wMS0wMVQwMDowMDowMCswMDowMCAA", "MDAwMS0wMS0wMVQwMDowMDowMCsxNDowMCB4", "eA==", "é", "=", "")
        for cursor in cursors:
            async with house.http.get("/v1/sessions", params={"before": cursor}) as response:
                assert (await refusal(response)).param == "before", cursor
        for limit in ("0", "201", "-1", "1e2", "٣", "9" * 30):
            async with house.http.get("/v1/sessions", params={"limit": limit}) as response:
                assert (await refusal(response)).param == "limit", limit
        assert await remains(house.db) == before


async def test_ids_cannot_be_guessed_or_tried(serving: Serving) -> None:
    async with serving(ask) as house, leaves_no_trace(house):
        for session_id in ("1", AGENT, f"{AGENT}_", f"{AGENT}_1", "*", "%25", "..", "x" * 5_000, "{session_id}"):
            async with house.http.get(f"/v1/sessions/{session_id}/messages") as response:
                found = await refusal(response)
                assert found.status == 404, session_id
        assert (await refused(house, chat(model=f"{AGENT}_{uuid.uuid4()}"))).error["code"] == "model_not_found"
        assert (await refused(house, chat(model=f"{AGENT}@99"))).error["code"] == "model_not_found"
        assert (await refused(house, chat(model=f"{AGENT}@latest"))).error["code"] == "model_not_found"
