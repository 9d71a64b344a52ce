"""Postgres is full, silent, or for reading only: nothing is lost, nobody is stranded, and it goes on afterwards."""

import asyncio
import json
import os
import signal
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import asyncpg
import pytest
import structlog
from test_takeover import eventually

from longhouse.journal import events
from longhouse.models.scripted import Say, Script, call
from longhouse.models.scripted_server import serve as serve_model
from longhouse.store import journals, leases
from longhouse.store.database import Database
from longhouse.store.postgres import open_postgres
from postgres_proxy import lines
from server_helpers import AGENT, Dictated, House, Process, Serving, content, dictated, full, process, sse

DONE = call("finalanswertool", answer="done")

TROUBLES = {
    "53100": "no disk",
    "53200": "no memory",
    "57014": "a timeout",
    "55P03": "a lock's timeout",
    "40P01": "a deadlock",
}


async def test_a_disk_that_was_full_for_a_while_strands_no_session(serving: Serving) -> None:
    async with dictated() as model, serving(llm_base_url=model.url) as house:
        saying = asyncio.create_task(house.say("one"))
        pen = await model.asked()
        [(session_id, fence)] = await house.db.rows("SELECT id, fence FROM sessions")
        async with full(house.db, "journal", "INSERT"):
            pen.call("finalanswertool", '{"answer": "lost"}')
            pen.end()
            # It is tried again, and again in vain: the claim is written, what follows is not.
            await eventually(lambda: claimed_since(house.db, fence + 2))
        pen = await model.asked()
        pen.call("finalanswertool", '{"answer": "first"}')
        pen.end()
        assert content(await asyncio.wait_for(saying, 20)) == "first"

        saying = asyncio.create_task(house.say("two", model=session_id))
        pen = await model.asked()
        pen.call("finalanswertool", '{"answer": "second"}')
        pen.end()
        assert content(await asyncio.wait_for(saying, 20)) == "second"
        assert (await house.kinds(session_id)).count("Finished") == 2
        assert "Failed" not in await house.kinds(session_id)


async def test_a_postgres_in_trouble_is_no_defect_at_the_gateway(serving: Serving) -> None:
    """Whoever tries again later is served; nothing of what was refused is there."""
    body = {"model": AGENT, "messages": [{"role": "user", "content": "Are you there?"}]}
    async with serving(lambda body: call("finalanswertool", answer="here")) as house:
        with structlog.testing.capture_logs() as logs:
            for code in TROUBLES:
                async with (
                    full(house.db, "journal", "INSERT", code),
                    house.http.post("/v1/chat/completions", json=body) as response,
                ):
                    told = (await response.json())["error"]
                assert (response.status, told["type"], told["code"]) == (503, "server_error", "unavailable"), code
                assert response.headers["retry-after"] == "2"
                assert "x-should-retry" not in response.headers
        assert {one["log_level"] for one in logs if one["event"] != "request"} == {"warning"}
        assert await house.db.value("SELECT count(*) FROM sessions") == 0

        async with full(house.db, "journal", "INSERT"):
            before = await house.db.value("SELECT last_value FROM refusals")
            asking = asyncio.create_task(
                house.client.with_options(max_retries=5).chat.completions.create(
                    model=AGENT, messages=[{"role": "user", "content": "Are you there?"}]
                )
            )
            await eventually(lambda: refused(house.db, before + 1))
        answered = await asyncio.wait_for(asking, 30)
        assert answered.choices[0].message.content == "here"
        assert (await house.kinds(answered.model)).count("Prompted") == 1


WRITE_NEWER = """
    WITH moved AS (UPDATE sessions SET head = head + 1 WHERE id = :id RETURNING id, head)
    INSERT INTO journal (session_id, seq, conversation_id, trace_id, kind, body, at, append_id, nth)
    SELECT m.id, m.head, j.conversation_id, j.trace_id, 'Novelty', :body::json, now(), gen_random_uuid(), 1
    FROM moved m JOIN journal j ON j.session_id = m.id AND j.seq = m.head - 1
"""


async def test_what_a_newer_release_has_written_is_asked_for_again_and_is_no_defect(serving: Serving) -> None:
    """In the middle of a rolling upgrade: behind the same balancer is a process that can read it."""
    async with serving(lambda body: call("finalanswertool", answer="here")) as house:
        session_id = (await house.say("Hello", chat_id="c"))["model"]
        async with house.http.post("/v1/responses", json={"model": AGENT, "input": "Hi"}) as response:
            kept = await response.json()
        for one in (session_id, kept["metadata"]["session_id"]) if kept.get("metadata") else (session_id,):
            await house.db.run(WRITE_NEWER, id=one, body=json.dumps({"v": 1, "kind": "Novelty"}))
        async with house.http.get("/openapi.json") as response:
            paths = (await response.json())["paths"]
        asked: list[tuple[str, str, Any]] = [
            ("GET", path.format(session_id=session_id), None)
            for path, methods in paths.items()
            if "get" in methods and path.count("{") == path.count("{session_id}") == 1
        ]
        asked += [
            ("POST", f"/v1/sessions/{session_id}/cancel", None),
            ("POST", "/v1/chat/completions", chat("And now?", model=session_id)),
            ("POST", "/v1/chat/completions", chat("And now?", model=session_id, stream=True)),
            ("POST", "/v1/responses", {"model": session_id, "input": "Hi"}),
        ]
        with structlog.testing.capture_logs() as logs:
            statuses = {(method, path): await asked_for(house, method, path, body) for method, path, body in asked}
        assert statuses["GET", f"/v1/sessions/{session_id}/messages"] == 503
        assert statuses["POST", f"/v1/sessions/{session_id}/cancel"] == 503
        assert statuses["POST", "/v1/chat/completions"] == 503
        assert 500 not in statuses.values(), statuses
        told = [one for one in logs if one["event"] not in {"request", "session_deleted"}]
        assert [one["event"] for one in told if one["log_level"] == "error"] == ["journal_unreadable"]
        async with house.http.get("/v1/sessions") as response:
            assert response.status == 200
        assert (await house.say("Somebody else", chat_id="d"))["choices"][0]["message"]["content"] == "here"


def chat(text: str, **extra: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": text}], **extra}


async def asked_for(house: House, method: str, path: str, body: Any) -> int:
    async with asyncio.timeout(20), house.http.request(method, path, json=body) as response:
        text = await response.text()
        if response.status == 503:
            assert response.headers["retry-after"] == "2", text
            assert json.loads(text)["error"]["code"] == "unavailable"
            assert "newer release" in text
        return response.status


async def claimed_since(db: Database, fence: int) -> bool:
    return bool(await db.value("SELECT fence >= :fence FROM sessions", fence=fence))


async def refused(db: Database, times: int) -> bool:
    return bool(await db.value("SELECT is_called AND last_value >= :times FROM refusals", times=times))


async def test_a_worker_outlives_a_postgres_that_refuses_its_sweep(serving: Serving) -> None:
    async with serving(lambda body: call("finalanswertool", answer="here")) as house:
        async with full(house.db, "sessions", "UPDATE"):
            await eventually(lambda: refused(house.db, times=3))
        assert content(await asyncio.wait_for(house.say("Are you there?"), 20)) == "here"


async def test_a_postgres_that_is_for_reading_only_for_a_while_ends_nothing(dsn: str) -> None:
    """As a standby is before its promotion."""
    name = dsn.split("/")[3].split("?", maxsplit=1)[0]
    async with (
        dictated() as model,
        process(database_url=dsn, llm_base_url=model.url, lease_seconds="2") as house,
    ):
        saying = asyncio.create_task(house.say("one"))
        await model.asked()
        admin = await asyncpg.connect(dsn.replace(f"/{name}?", "/longhouse?"))
        try:
            await admin.execute(f"ALTER DATABASE {name} SET default_transaction_read_only = on")
            await admin.execute(f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{name}'")
            await eventually(lambda: any("heartbeat_late" in line for line in house.said))
            # Connections of this time stay as they are: whoever keeps them can never write.
            await admin.execute(f"ALTER DATABASE {name} RESET default_transaction_read_only")
        finally:
            await admin.close()
        answering = asyncio.create_task(answer_all(model, "done"))
        assert content(await asyncio.wait_for(saying, 20)) == "done"
        assert house.process.returncode is None
        answering.cancel()


async def test_who_is_back_first_when_all_connections_were_cut_takes_nobody_for_dead(
    serving: Serving, dsn: str, db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks, look = [], leases.suspects

    async def looked(*asked: Any) -> list[leases.Suspect]:
        looks.append(await look(*asked))
        return looks[-1]

    async with dictated() as model, process(database_url=dsn, llm_base_url=model.url) as slow:
        saying = asyncio.create_task(slow.say("one"))
        pen = await model.asked()
        async with serving(llm_base_url=model.url) as quick:
            os.kill(slow.process.pid, signal.SIGSTOP)  # a machine with much to do
            monkeypatch.setattr(leases, "suspects", looked)
            await db.rows(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                " WHERE datname = current_database() AND pid <> pg_backend_pid()"
            )
            seen = len(looks)
            await eventually(lambda: sum(one.unlocked for found in looks[seen:] for one in found) >= 3)
            os.kill(slow.process.pid, signal.SIGCONT)
            pen.call("finalanswertool", '{"answer": "done"}')
            pen.end()
            assert content(await asyncio.wait_for(saying, 20)) == "done"
            [session_id] = [row["id"] for row in await quick.db.rows("SELECT id FROM sessions")]
            assert "Resumed" not in await quick.kinds(session_id)


async def answer_all(model: Dictated, answer: str) -> None:
    """Whoever asks, and however often: on a busy machine a run may be stopped once more for want of a heartbeat."""
    while True:
        pen = await model.asked()
        pen.call("finalanswertool", json.dumps({"answer": answer}))
        pen.end()


async def test_a_process_that_was_held_up_for_half_a_lease_stops_nothing(dsn: str) -> None:
    """It could not beat, but nobody has taken its sessions: what the model was asked is not asked again."""
    async with (
        dictated() as model,
        process(database_url=dsn, llm_base_url=model.url, lease_seconds="4") as house,
    ):
        saying = asyncio.create_task(house.say("one"))
        pen = await model.asked()
        os.kill(house.process.pid, signal.SIGSTOP)
        await asyncio.sleep(3)
        os.kill(house.process.pid, signal.SIGCONT)
        await asyncio.sleep(1)  # in which it looks at its heartbeat several times
        pen.call("finalanswertool", '{"answer": "done"}')
        pen.end()
        assert content(await asyncio.wait_for(saying, 20)) == "done"
        assert not any("heartbeat_late" in line for line in house.said)


async def test_a_postgres_that_restarts_leaves_no_traceback_in_the_log(folder: Path) -> None:
    script = Script(by="step", replies=(*[Say(calls=call("clocktool").calls, chunk=1, delay=0.02)] * 5, DONE))
    async with AsyncExitStack() as stack:
        async with open_postgres(folder) as postgres:
            model = await stack.enter_async_context(serve_model(script))
            house = await stack.enter_async_context(
                process(database_url=postgres.dsn, llm_base_url=model.url, log_level="debug")
            )
            talking = [asyncio.create_task(talk(house, stream=bool(number % 2))) for number in range(4)]
            await eventually(lambda: len(model.requests) >= 8)
        await eventually(lambda: any("heartbeat_connection_lost" in line for line in house.said))
        await asyncio.sleep(1)  # everything that looks at Postgres from time to time has done so
        async with open_postgres(folder):
            assert await asyncio.wait_for(asyncio.gather(*talking), 60) == ["done"] * 4
            house.process.terminate()
            assert await house.ended() == 0
    assert [line for line in house.said if "Traceback" in line or '"level": "error"' in line] == []
    records = [line for line in house.said if "serves on" not in line]
    assert [line for line in records if not line.startswith("{")] == [], "one record a line"


async def talk(house: Process, *, stream: bool) -> str:
    """One turn; its words."""
    body = {"model": AGENT, "messages": [{"role": "user", "content": "Go"}], "stream": stream}
    async with house.http.post("/v1/chat/completions", json=body) as response:
        if not stream:
            return content(await response.json())
        told = [one.json for one in [one async for one in sse(response)] if one.data != "[DONE]"]
        assert all("choices" in one for one in told), told
        return "".join(one["choices"][0]["delta"].get("content") or "" for one in told if one["choices"])


async def test_connections_that_go_silent_are_given_up(dsn: str) -> None:
    """A failover as clouds do it: on the old connections there is no answer and no reset, new ones work."""
    async with (
        lines(dsn) as (address, between),
        dictated() as model,
        Serving(address)(llm_base_url=model.url, lease_seconds=2) as house,
    ):
        thinking = asyncio.create_task(house.say("one"))
        pen = await model.asked()
        with structlog.testing.capture_logs() as logs:
            between.fall_silent()
            pen.call("finalanswertool", '{"answer": "said into the void"}')
            pen.end()
            later = asyncio.create_task(house.say("two"))
            answering = asyncio.create_task(answer_all(model, "heard"))
            answers = await asyncio.wait_for(asyncio.gather(thinking, later), 30)
            await eventually(lambda: [one for one in logs if one["event"] == "database_connections_renewed"])
            answering.cancel()
        # The first reply is kept where a busy pool opens one more connection for it; else the model is asked again.
        assert content(answers[0]) in ("heard", "said into the void")
        assert content(answers[1]) == "heard"
        assert house.app.worker.is_alive()
        assert await house.db.value("SELECT count(*) FROM workers") == 1
        for answer in answers:
            kinds = await house.kinds(answer["model"])
            assert (kinds.count("Prompted"), kinds.count("Finished")) == (1, 1)


async def test_a_postgres_that_stands_still_for_a_while_keeps_its_connections(dsn: str) -> None:
    """New ones would be as silent; on the old ones everything that was asked is answered afterwards."""
    with structlog.testing.capture_logs() as logs:
        async with (
            lines(dsn) as (address, between),
            Serving(address)(lambda body: call("finalanswertool", answer="here"), lease_seconds=2) as house,
        ):
            pool = house.db.pool
            between.freeze()
            saying = asyncio.create_task(house.say("Are you there?"))
            await eventually(lambda: any(one.get("message") == "Postgres answers on no connection" for one in logs))
            between.thaw()
            assert content(await asyncio.wait_for(saying, 20)) == "here"
            await eventually(house.app.worker.is_alive)
            assert house.db.pool is pool
    assert not [one for one in logs if one["event"] == "database_connections_renewed" or one["log_level"] == "error"]


async def test_after_an_outage_the_first_one_back_does_not_take_the_rest_for_dead(
    dsn: str, db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked, suspects = [], leases.suspects

    async def seen(*asked: Any) -> list[leases.Suspect]:
        found = await suspects(*asked)
        looked.append(found)
        return found

    monkeypatch.setattr(leases, "suspects", seen)
    async with (
        lines(dsn) as (address, between),
        Serving(address)(lambda body: DONE, lease_seconds=2),
        db.connection() as other,
    ):
        await leases.register_worker(other, "other", node="n", pid=1, slots=1)
        between.freeze()
        # Nobody can beat for a lease.
        await eventually(lambda: is_silent(db))
        between.thaw()
        before = len(looked)
        await eventually(lambda: len(looked) >= before + 3)
        assert [one.silent for found in looked[before:] for one in found if one.worker == "other"][:3] == [True] * 3
        assert await leases.beat(other, "other"), "it is still in the table of workers"


async def is_silent(db: Database) -> bool:
    return bool(await db.value("SELECT beat_at < now() - interval '2 seconds' FROM workers WHERE id = 'other'"))


async def test_a_defect_in_the_background_ends_neither_its_loop_nor_the_process(serving: Serving) -> None:
    async with serving(lambda body: call("finalanswertool", answer="here")) as house:
        with structlog.testing.capture_logs() as logs:
            house.app.worker._running["ghost"] = None  # type: ignore[assignment]  # as no sweep expects it
            house.app.pool.stopped.append(None)  # type: ignore[arg-type]
            await eventually(lambda: {"worker_sweep", "instance_roster"} <= {one.get("task") for one in logs})
            assert {one["event"] for one in logs if "task" in one} == {"background_task_failed"}
            del house.app.worker._running["ghost"]
            house.app.pool.stopped.remove(None)  # type: ignore[arg-type]
        # The sweep is what finds a session that nobody was told of; the roster writes its instance down.
        prompted = events.Prompted(trace="t", content=("Are you there?",))
        about = events.Opened(agent=AGENT, version=1, owner="local", conversation="c")
        await journals.open(house.db, "s", about, prompted, task="Are you there?")
        await house.until("s", "COMPLETED")
        await eventually(lambda: house.db.value("SELECT EXISTS (SELECT FROM agent_instances)"))


async def test_a_postgres_that_is_only_slow_keeps_its_connections(serving: Serving) -> None:
    """What takes long, such as building an index, would otherwise begin again and again."""
    async with serving(lambda body: call("finalanswertool", answer="here"), lease_seconds=2) as house:
        pool = house.db.pool
        async with house.db.connection() as slow, slow.transaction():
            await slow.execute("SELECT FROM workers FOR UPDATE")
            await eventually(lambda: beats_in_vain(house.db))
            with structlog.testing.capture_logs() as logs:
                await eventually(lambda: any(one["event"] == "database_slow" for one in logs))
        await eventually(house.app.worker.is_alive)
        assert house.db.pool is pool
        assert content(await asyncio.wait_for(house.say("Are you there?"), 20)) == "here"


async def beats_in_vain(db: Database) -> list[int]:
    """The processes of Postgres that wait for the row of a worker."""
    rows = await db.rows(
        """
        SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'
        AND query LIKE '%workers%beat_at = now()%'
        """
    )
    return [row["pid"] for row in rows]


async def swept(db: Database) -> bool:
    """Has the sweep come round once more?"""
    return bool(await db.value("SELECT wake_at IS NULL FROM sessions"))


async def test_a_run_is_not_stopped_for_what_became_of_the_one_before_it(dsn: str) -> None:
    """The sweep asks who holds what; until it is answered, the session has rested and been claimed again."""
    async with (
        lines(dsn) as (address, between),
        dictated() as model,
        Serving(address)(llm_base_url=model.url) as house,
    ):
        asking = between.hold(b"SELECT id, fence FROM sessions")
        first = asyncio.create_task(house.say("one"))
        pen = await model.asked()
        await asyncio.wait_for(asking.came.wait(), 20)
        pen.call("finalanswertool", '{"answer": "1"}')
        pen.end()
        session_id = (await asyncio.wait_for(first, 20))["model"]
        second = asyncio.create_task(house.say("two", model=session_id))
        pen = await model.asked()
        await house.db.run("UPDATE sessions SET wake_at = now()")
        asking.may_pass.set()
        await eventually(lambda: swept(house.db))
        pen.call("finalanswertool", '{"answer": "2"}')
        pen.end()
        assert content(await asyncio.wait_for(second, 20)) == "2"
        assert "Resumed" not in await house.kinds(session_id)
