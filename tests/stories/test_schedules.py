"""Schedules: prompts come by themselves, once for the whole fleet, and nothing is lost when processes are killed."""

import asyncio
from collections import Counter
from datetime import datetime, timedelta
from typing import Any

import pytest

from longhouse import clock
from longhouse.agents.strategies.protocol import Body
from longhouse.agents.template import Template
from longhouse.journal.messages import User, text_of
from longhouse.models.scripted import Say, call
from longhouse.models.scripted_server import serve as serve_model
from longhouse.runtime.cleanup.eraser import Eraser
from longhouse.runtime.inbox import Inbox
from longhouse.store.automation import schedules
from longhouse.store.database import Database
from longhouse.store.erasing.erasures import Target
from schedule_helpers import PATH, body, come_due, made, now, prompts_of, runs_of
from server_helpers import AGENT, House, Serving, process

MORNING = "Что нового сегодня утром?"
NEWS = "今天早上有什么新闻?"


def answered(body: Body) -> Say:
    """Tells all that users have said so far."""
    said = [text_of(one.content) for one in body.messages if isinstance(one, User)]
    return call("finalanswertool", answer=" | ".join(said))


async def rewound(db: Database, these: list[Any], moments: int) -> list[datetime]:
    """So many moments passed since these were made, an hour apart; the last of them five minutes ago."""
    last = clock.now().replace(second=0, microsecond=0) - timedelta(minutes=5)
    first = last - timedelta(hours=moments - 1)
    cron, ids = f"{last.minute} * * * *", [one["id"] for one in these]
    sql = "UPDATE schedules SET cron = :cron, next_at = :first WHERE id = ANY(:ids)"
    await db.run(sql, cron=cron, first=first, ids=ids)
    return [first + timedelta(hours=nth) for nth in range(moments)]


async def test_a_fleet_fires_each_schedule_once(serving: Serving) -> None:
    """Thirty schedules come due at the same moment, in three processes."""
    async with (
        serve_model(answered) as model,
        process(database_url=serving.dsn, llm_base_url=model.url) as other,
        serving(llm_base_url=model.url) as house,
        serving(llm_base_url=model.url) as third,
    ):
        half = [await made(one.http, prompt=f"{MORNING} {nth}") for nth in range(15) for one in (house, other)]
        due = [await made(house.http, prompt=NEWS, at=now(), cron=None), *half]
        await come_due(house.db, *half)
        for one in due:
            [run] = await runs_of(third.http, one)
            assert (run["state"], run["count"], run["manual"], run["error"]) == ("fired", 1, False, None)
            await third.until(run["session_id"], "COMPLETED")
            [prompt] = await prompts_of(house.db, run["session_id"])
            assert (prompt.content, prompt.schedule, prompt.user) == ((one["prompt"],), one["id"], "local")
            assert prompt.trace == run["trace_id"]
        [run] = await runs_of(house.http, due[0])
        assert (run["due_at"], run["outcome"]) == (due[0]["at"], "COMPLETED")
        # Whatever is changed in the minute after it has fired, it does not fire again.
        for change in ({"name": NEWS}, {"time_zone": "Asia/Tokyo"}, {"paused": True}, {"paused": False}):
            async with house.http.patch(f"{PATH}/{due[0]['id']}", json=change) as response:
                assert (response.status, (await response.json())["next_at"]) == (200, None), change
        async with house.http.patch(f"{PATH}/{due[0]['id']}", json={"at": due[0]["at"]}) as response:
            assert (await response.json())["error"]["param"] == "at"
        await asyncio.sleep(0.6)  # one more sweep of everybody
        assert await house.db.value("SELECT count(*) FROM sessions") == len(due)
        assert await house.db.value("SELECT count(*) FROM schedule_runs") == len(due)
        shown = await got(house, f"{PATH}/{due[0]['id']}")
        assert (shown["state"], shown["next_at"]) == ("ended", None)
        again = await got(house, f"{PATH}/{half[0]['id']}")
        assert (again["state"], again["next_at"][5:]) == ("active", "01-01T00:00:00Z")
        # Found by the schedule; nobody else's.
        listed = await got(house, f"/v1/sessions?schedule={due[0]['id']}")
        assert [row["session_id"] for row in listed["data"]] == [run["session_id"]]
        assert (await got(house, "/v1/sessions?schedule=sched_none"))["data"] == []
        assert (await got(house, f"/v1/sessions/facets?schedule={due[0]['id']}"))["sessions"] == 1


async def got(house: House, path: str) -> Any:
    async with house.http.get(path) as response:
        assert response.status == 200, await response.text()
        return await response.json()


LOCK = 4711
HELD = f"""
    CREATE FUNCTION held_up() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
        PERFORM pg_advisory_xact_lock_shared({LOCK}); RETURN NEW;
    END $$
"""
WAITS = "SELECT EXISTS (SELECT FROM pg_locks WHERE locktype = 'advisory' AND objid = 4711 AND NOT granted)"


async def test_a_process_that_is_killed_while_it_fires_has_not_fired(serving: Serving, db: Database) -> None:
    """It dies with the prompt written and not committed; and the next one dies right after its commit."""
    hangs = {"database_url": serving.dsn, "llm_base_url": "http://127.0.0.1:9/v1"}  # a model that nobody hears of
    await db.run(HELD)
    await db.run("CREATE TRIGGER held_up BEFORE INSERT ON schedule_runs FOR EACH ROW EXECUTE FUNCTION held_up()")
    async with db.connection() as connection, asyncio.timeout(60):
        await connection.execute(f"SELECT pg_advisory_lock({LOCK})")
        async with process(**hangs) as first:
            one = await made(first.http, prompt=MORNING, at=now(), cron=None, conversation_id="утро".encode().hex())
            while not await db.value(WAITS):
                await asyncio.sleep(0.02)
            assert await db.value("SELECT count(*) FROM sessions") == 0, "nobody sees what is not committed"
            first.kill()
            await first.ended()
        await connection.execute(f"SELECT pg_advisory_unlock({LOCK})")
    async with process(**hangs) as second:
        [run] = await runs_of(second.http, one)
        second.kill()
        await second.ended()
    async with serving(answered) as house:
        await house.until(run["session_id"], "COMPLETED")
        await asyncio.sleep(0.6)  # a sweep
        assert [prompt.content for prompt in await prompts_of(db, run["session_id"])] == [(MORNING,)]
        [same] = await runs_of(house.http, one)
        assert (same["id"], same["state"], same["due_at"]) == (run["id"], "fired", one["at"])
        assert await db.value("SELECT count(*) FROM sessions") == 1


async def test_a_house_that_was_away_catches_up_as_each_schedule_says(serving: Serving, db: Database) -> None:
    async with serving(works=False) as house:
        waiting = [await made(house.http, prompt=NEWS, missed=missed) for missed in ("skip", "once", "all")]
        talk = await made(house.http, prompt=MORNING, missed="all", conversation_id="mornings")
        picky = await made(house.http, prompt=MORNING, missed="all", conversation_id="picky", overlap="skip")
        late = await made(house.http, at=now(600), cron=None, missed="skip")
        assert await lag(house) == 0
        moments = [one.isoformat().replace("+00:00", "Z") for one in await rewound(db, [*waiting, talk, picky], 3)]
        assert 3 * HOUR.total_seconds() > await lag(house) > 2 * HOUR.total_seconds(), "that of the first"
    assert await db.value("SELECT count(*) FROM schedule_runs") == 0, "no worker, no firing"
    await db.run("UPDATE schedules SET at = :at, next_at = :at WHERE id = :id", at=clock.now() - HOUR, id=late["id"])
    async with serving(answered) as house:
        skip, once, each = [
            await runs_of(house.http, one, number) for one, number in zip(waiting, (1, 2, 3), strict=True)
        ]
        assert [(run["state"], run["count"], run["session_id"]) for run in skip] == [("missed", 3, None)]
        assert (skip[0]["due_at"], skip[0]["last_due_at"]) == (moments[0], moments[2])
        assert [(run["state"], run["count"], run["due_at"]) for run in once] == [
            ("fired", 1, moments[2]),
            ("missed", 2, moments[0]),
        ]
        assert [(run["state"], run["due_at"]) for run in reversed(each)] == [("fired", one) for one in moments]
        assert len({run["session_id"] for run in each}) == 3, "each has a session of its own"
        turns = await runs_of(house.http, talk, 3)
        [session_id] = {run["session_id"] for run in turns}
        async with asyncio.timeout(20):
            while [run["outcome"] for run in await runs_of(house.http, talk, 3)] != ["COMPLETED"] * 3:
                await asyncio.sleep(0.05)
        shown = await house.session(session_id)
        assert shown["result"] == f"{MORNING} | {MORNING} | {MORNING}", "it remembers the days before"
        assert Counter(run["state"] for run in await runs_of(house.http, picky, 3)) == {"fired": 1, "skipped": 2}
        [missed] = await runs_of(house.http, late)
        assert (missed["state"], (await got(house, f"{PATH}/{late['id']}"))["state"]) == ("missed", "ended")
        counted = {"fired": 8, "missed": 6, "skipped": 2, "failed": 0}
        assert (await run_counts(house), await lag(house)) == (counted, 0)
        for one in (*waiting, talk):
            ahead = datetime.fromisoformat((await got(house, f"{PATH}/{one['id']}"))["next_at"])
            assert timedelta(0) < ahead - clock.now() <= HOUR


HOUR = timedelta(hours=1)


async def metrics(house: House) -> dict[str, float]:
    async with house.http.get("/metrics") as response:
        lines = [line for line in (await response.text()).splitlines() if line.startswith("longhouse_schedule_")]
    return {name: float(value) for name, _, value in (line.partition(" ") for line in lines)}


async def lag(house: House) -> float:
    return (await metrics(house))["longhouse_schedule_lag_seconds"]


async def run_counts(house: House) -> dict[str, float]:
    """State -> moments that this process has dealt with."""
    found = {name: value for name, value in (await metrics(house)).items() if "_runs_total{" in name}
    return {name.split('"')[1]: value for name, value in found.items()}


def asks_first(body: Body) -> Say:
    """Asks a question about the first prompt; after the answer, tells all that was said."""
    said = [text_of(one.content) for one in body.messages if isinstance(one, User)]
    return call("clarificationtool", questions=["Which city?"]) if said == [MORNING] else answered(body)


async def test_a_firing_while_the_last_one_is_at_work_waits_or_is_left_out(serving: Serving) -> None:
    async with serving(asks_first) as house:
        patient = await made(house.http, prompt=MORNING, conversation_id="c1")
        picky = await made(house.http, prompt=MORNING, conversation_id="c2", overlap="skip")
        apart = await made(house.http, prompt=MORNING, overlap="skip")
        every = [patient, picky, apart]
        await come_due(house.db, *every)
        first = [(await runs_of(house.http, one))[0] for one in every]
        for run in first:
            await house.until(run["session_id"], "WAITING_FOR_CLARIFICATION")
        await come_due(house.db, *every)
        second = [(await runs_of(house.http, one, 2))[0] for one in every]
        assert [run["state"] for run in second] == ["fired", "skipped", "skipped"]
        assert second[1]["error"] == {"message": "The run before it has not ended.", "code": "overlap"}
        assert [run["outcome"] for run in second] == [None] * 3
        session_id = first[0]["session_id"]
        assert second[0]["session_id"] == session_id
        assert (await house.session(session_id))["state"] == "WAITING_FOR_CLARIFICATION", "no answer to the question"
        # A person answers; then comes the prompt that has waited.
        async with house.http.post(f"/v1/sessions/{session_id}/clarification", json={"answer": "Осло"}) as response:
            assert response.status == 202, await response.text()
        async with asyncio.timeout(20):
            while (await runs_of(house.http, patient, 2))[0]["outcome"] != "COMPLETED":
                await asyncio.sleep(0.05)
        assert (await house.session(session_id))["result"].count(MORNING) == 2
        # So many wait, and no more.
        stuck = first[1]["session_id"]
        for _ in range(10):
            async with house.http.post(f"{PATH}/{picky['id']}/run") as response:
                assert (response.status, (await response.json())["session_id"]) == (201, stuck)
        async with house.http.post(f"{PATH}/{picky['id']}/run") as response:
            assert (response.status, (await response.json())["error"]["code"]) == (429, "too_many_waiting")
        async with house.http.patch(f"{PATH}/{picky['id']}", json={"overlap": "queue"}) as response:
            assert response.status == 200
        await come_due(house.db, picky)
        last = (await runs_of(house.http, picky, 13))[0]
        assert (last["state"], last["error"]["code"]) == ("skipped", "too_many_waiting")


async def test_clocks_that_change_fire_once_a_day(serving: Serving) -> None:
    """What a person in Berlin is told of two days on which clocks change."""
    async with serving(works=False) as house:
        one = await made(house.http, cron="30 2 * * *", time_zone="Europe/Berlin")
        for cron, since, then in (
            ("30 2 * * *", "2026-03-28T12:00:00+00:00", "2026-03-29T01:00:00+00:00"),  # right after the gap
            ("30 2 * * *", "2026-10-24T12:00:00+00:00", "2026-10-25T00:30:00+00:00"),  # the first of the two
            ("30 2 * * *", "2026-10-25T00:30:00+00:00", "2026-10-26T01:30:00+00:00"),  # and not the second
            ("30 * * * *", "2026-10-25T00:30:00+00:00", "2026-10-25T01:30:00+00:00"),  # every hour is every hour
        ):
            async with house.http.patch(f"{PATH}/{one['id']}", json={"cron": cron}) as response:
                assert response.status == 200
            found = await schedules.find(house.db, one["id"], "local")
            assert found is not None
            assert found.timing.next(datetime.fromisoformat(since)) == datetime.fromisoformat(then)
        wall = await made(house.http, cron=None, at="2030-03-31T02:30:00", time_zone="Europe/Berlin")
        assert (wall["at"], wall["next_at"]) == ("2030-03-31T01:00:00Z",) * 2
        twice = await made(house.http, cron=None, at="2030-10-27T02:30:00", time_zone="Europe/Berlin")
        assert twice["at"] == "2030-10-27T00:30:00Z"
        assert (await made(house.http, cron=None, at="2030-10-27T02:30:00+01:00"))["at"] == "2030-10-27T01:30:00Z"


async def test_schedules_go_with_those_whose_they_are(serving: Serving, monkeypatch: pytest.MonkeyPatch) -> None:
    """Erased with a user, with a conversation, or by themselves; a session takes its runs with it."""
    async with serving(answered, templates=[Template(name=AGENT), Template(name="helper")]) as house:
        ann = await made(house.http, user="Анна", prompt=MORNING)
        talk = await made(house.http, conversation_id="talk")
        other = await made(house.http, user="Bob", name="stays")
        # They name nobody: one speaks in a session of Анна, one where nobody else is, and one in a session of Bob.
        for conversation, user, agent in (
            ("hers", "Анна", AGENT), ("both", "Анна", AGENT), ("both", "Bob", "helper"), ("shared", "Bob", AGENT),
            ("shared", "Анна", "helper"),
        ):  # fmt: skip
            await house.say("Привет", model=agent, user=user, metadata={"conversation_id": conversation})
        for conversation, agent in (("hers", "helper"), ("both", f"{AGENT}@1"), ("shared", AGENT)):
            await made(house.http, conversation_id=conversation, template=agent, name=conversation)
        await come_due(house.db, ann, talk, other)
        sessions = [(await runs_of(house.http, one))[0]["session_id"] for one in (ann, talk, other)]
        for session_id in sessions:
            await house.until(session_id, "COMPLETED")
        assert [one.user for one in await prompts_of(house.db, sessions[0])] == ["Анна"]
        for path, gone, of_sessions in (("/v1/users/Анна", 3, 4), ("/v1/conversations/talk", 1, 1)):
            async with house.http.delete(f"{path}?dry_run=true") as response:
                assert (await response.json())["counts"]["schedules"] == gone
            async with house.http.delete(path) as response:
                counts = (await response.json())["counts"]
                assert (response.status, counts["schedules"], counts["sessions"]) == (200, gone, of_sessions)
        left = await got(house, PATH)
        assert [one["name"] for one in left["data"]] == ["shared", "stays"]
        async with house.http.delete(f"{PATH}/{left['data'][0]['id']}") as response:
            assert response.status == 204
        async with house.http.delete(f"/v1/sessions/{sessions[2]}") as response:
            assert response.status == 200
        assert (await got(house, f"{PATH}/{other['id']}/runs"))["data"] == []
        await come_due(house.db, other)
        [run] = await runs_of(house.http, other)
        await house.until(run["session_id"], "COMPLETED")
        async with house.http.delete(f"{PATH}/{other['id']}") as response:
            assert response.status == 204
        assert await house.db.value("SELECT count(*) FROM schedule_runs") == 0
        assert (await house.session(run["session_id"]))["state"] == "COMPLETED", "what it said stays"
        # The clock of this process is wrong, and nobody cares: that of Postgres counts.
        soon, true = now(600), clock.now
        with monkeypatch.context() as patched:
            patched.setattr(clock, "now", lambda: true() + HOUR)
            once = await made(house.http, cron=None, at=soon)
            often = await made(house.http, cron="* * * * *", paused=True)
            async with house.http.patch(f"{PATH}/{often['id']}", json={"paused": False}) as response:
                often = await response.json()
            async with house.http.post(f"{PATH}/{once['id']}/run") as response:
                ran = await response.json()
            minutely = await made(house.http, cron="* * * * *")
        for shown in (often["next_at"], minutely["next_at"], once["created_at"], ran["due_at"], ran["fired_at"]):
            assert datetime.fromisoformat(shown) < true() + timedelta(minutes=2), shown
        assert once["next_at"] == once["at"]
        # An owner takes all with it.
        erased = await Eraser(Inbox(house.db, house.app.bus)).erase(Target("owner", "local"))
        assert erased.counts["schedules"] == 3
        assert (await got(house, PATH))["data"] == []


async def test_a_template_that_is_gone_fails_its_runs_and_the_schedule_goes_on(serving: Serving) -> None:
    async with serving(answered) as house:
        template = {"name": "reporter", "tool_policy": {"allowlist": ["finalanswertool"]}}
        async with house.http.post("/admin/templates", json=template) as response:
            assert response.status == 201, await response.text()
        one = await made(house.http, template="reporter")
        async with house.http.delete("/admin/templates/reporter") as response:
            assert response.status in (200, 204), await response.text()
        await come_due(house.db, one)
        [run] = await runs_of(house.http, one)
        assert (run["state"], run["session_id"], run["error"]["code"]) == ("failed", None, "model_not_found")
        assert await run_counts(house) == {"fired": 0, "missed": 0, "skipped": 0, "failed": 1}
        assert "reporter" in run["error"]["message"]
        shown = await got(house, f"{PATH}/{one['id']}")
        assert (shown["state"], shown["next_at"] is not None, shown["last_run"]) == ("active", True, run)
        async with house.http.post(f"{PATH}/{one['id']}/run") as response:
            assert (response.status, (await response.json())["error"]["param"]) == (404, "template")
        async with house.http.patch(f"{PATH}/{one['id']}", json={"template": AGENT}) as response:
            assert response.status == 200
        async with house.http.post(PATH, json=body(template="reporter")) as response:
            assert (response.status, (await response.json())["error"]["param"]) == (404, "template")
        await come_due(house.db, one)
        runs = await runs_of(house.http, one, 2)
        assert [run["state"] for run in runs] == ["fired", "failed"]
        unfired = await made(house.http)
        last = {row["id"]: row["last_run"] for row in (await got(house, PATH))["data"]}
        assert (last[unfired["id"]], last[one["id"]]["id"]) == (None, runs[0]["id"])
