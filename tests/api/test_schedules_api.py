"""Schedules over HTTP: whose they are, with whose rights they fire, and what is refused before anything is written."""

import asyncio
from functools import partial
from typing import Any

import pytest
from attack_helpers import refusal
from key_helpers import Client, admin_of, client_of, keyed

from longhouse.journal.events import Prompted
from longhouse.models.scripted import call
from schedule_helpers import NEVER, PATH, body, come_due, runs_of
from server_helpers import AGENT, House, Serving, launched_words

DONE = call("finalanswertool", answer="Готово.")


def done(body: Any) -> Any:
    return DONE


async def made(client: Client, **fields: Any) -> Any:
    async with client.ask("POST", PATH, body(**fields)) as response:
        answer = await response.json()
        assert response.status == 201, answer
        return answer


async def left(house: House) -> list[Any]:
    """All that is written of schedules."""
    rows = await house.db.rows("SELECT s::text AS row FROM schedules s UNION ALL SELECT r::text FROM schedule_runs r")
    return sorted(row["row"] for row in rows)


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"template": None}, "template"),
    ({"template": 5}, "template"),
    ({"template": ""}, "template"),
    ({"template": "nobody"}, "template"),
    ({"template": "auto"}, "template"),
    ({"template": f"{AGENT}@99"}, "template"),
    ({"template": f"{AGENT}@x"}, "template"),
    ({"prompt": None}, "prompt"),
    ({"prompt": ""}, "prompt"),
    ({"prompt": "я" * 100_001}, "prompt"),
    ({"prompt": ["hi"]}, "prompt"),
    ({"cron": None}, "cron"),
    ({"cron": "61 * * * *"}, "cron"),
    ({"cron": "every day"}, "cron"),
    ({"cron": "0 0 30 2 *"}, "cron"),
    ({"cron": 5}, "cron"),
    ({"at": "2031-01-01T00:00:00Z"}, "at"),
    ({"cron": None, "at": "2020-01-01T00:00:00Z"}, "at"),
    ({"cron": None, "at": "tomorrow"}, "at"),
    ({"cron": None, "at": 1_800_000_000}, "at"),
    ({"cron": None, "at": "9999-12-31T23:59:59-12:00"}, "at"),
    ({"time_zone": "Mars/Phobos"}, "time_zone"),
    ({"time_zone": "../../etc/passwd"}, "time_zone"),
    ({"time_zone": 3}, "time_zone"),
    ({"conversation_id": "a b"}, "conversation_id"),
    ({"conversation_id": "x" * 129}, "conversation_id"),
    ({"user": "u" * 513}, "user"),
    ({"metadata": {"a": 1}}, "metadata.a"),
    ({"metadata": {f"k{n}": "v" for n in range(17)}}, "metadata"),
    ({"name": "n" * 201}, "name"),
    ({"name": "two\nlines"}, "name"),
    ({"missed": "never"}, "missed"),
    ({"overlap": "kill"}, "overlap"),
    ({"paused": "yes"}, "paused"),
    ({"owner": "bob"}, "owner"),
]


async def test_what_is_wrong_is_refused_by_the_name_of_its_field_and_nothing_is_written(serving: Serving) -> None:
    async with keyed(serving, done) as house:
        ann = await client_of(house, "ann")
        for fields, param in REFUSED:
            status, error = await ann.refused("POST", PATH, body(**fields))
            assert (status in (400, 404), error["param"]) == (True, param), (fields, status, error)
        for text in (b"{", b"[]", b'{"prompt": "\\u0000"}'):
            headers = {**ann.headers, "content-type": "application/json"}
            async with house.http.post(PATH, data=text, headers=headers) as response:
                assert (await refusal(response)).param is None
        assert await left(house) == []
        one = await made(ann, name="Утро", metadata={"команда": "синяя"}, user="Анна", time_zone="Asia/Shanghai")
        before = await left(house)
        path = f"{PATH}/{one['id']}"
        changes: list[tuple[dict[str, Any], str | None]] = [
            ({**fields}, param) for fields, param in REFUSED if next(iter(fields.values())) is not None
        ]
        changes += [({"prompt": None}, "prompt"), ({"cron": None}, "cron"), ({}, None)]
        for fields, named in changes:
            if fields == {"at": "2031-01-01T00:00:00Z"}:
                continue  # it takes the place of cron
            status, error = await ann.refused("PATCH", path, fields)
            assert (status in (400, 404), error["param"]) == (True, named), (fields, status, error)
        for method, there, sent, param in (
            ("GET", f"{PATH}?limit=0", None, "limit"),
            ("GET", f"{PATH}?before=x", None, "before"),
            ("GET", f"{PATH}?what=1", None, "what"),
            ("GET", f"{path}/runs?limit=201", None, "limit"),
            ("GET", f"{path}?x=1", None, "x"),
            ("POST", f"{path}/run", {"prompt": "hi"}, "prompt"),
            ("DELETE", path, {"sure": True}, "sure"),
        ):
            status, error = await ann.refused(method, there, sent)
            assert (status, error["param"]) == (400, param), (method, there, error)
        status, error = await ann.refused("POST", f"{path}/run", None, idempotency_key="k" * 256)
        assert (status, error["param"]) == (400, "Idempotency-Key")
        for method, ending in (("GET", ""), ("PATCH", ""), ("DELETE", ""), ("POST", "/run"), ("GET", "/runs")):
            for unknown in ("sched_none", "%00", "a%2Fb", "日程"):
                sent = {"paused": True} if method == "PATCH" else None
                status, error = await ann.refused(method, f"{PATH}/{unknown}{ending}", sent)
                assert status == 404, (method, unknown, ending)
        assert await left(house) == before
        assert await house.db.value("SELECT count(*) FROM sessions") == 0


async def test_a_schedule_is_its_owners_and_fires_with_the_rights_of_its_key(serving: Serving) -> None:
    async with keyed(serving, done, max_schedules=5) as house:
        ann, bob, admin = await client_of(house, "ann"), await client_of(house, "bob"), admin_of(house)
        reader = await client_of(house, "ann", read_only=True)
        scoped = await client_of(house, "ann", templates=["somebody_else"])
        one = await made(ann, prompt="Доброе утро", metadata={"team": "蓝"}, conversation_id="m", name="Утро")
        assert (one["object"], one["state"], one["stopped_reason"]) == ("schedule", "active", None)
        assert (one["missed"], one["overlap"], one["time_zone"]) == ("once", "queue", "UTC")
        path, before = f"{PATH}/{one['id']}", await left(house)
        # Another owner sees nothing of it, nor does an admin by this way.
        for other in (bob, admin):
            assert (await other.got(PATH))["data"] == []
            for method, ending in (("GET", ""), ("PATCH", ""), ("DELETE", ""), ("POST", "/run"), ("GET", "/runs")):
                change = {"paused": True} if method == "PATCH" else None
                status, error = await other.refused(method, f"{path}{ending}", change)
                assert (status, error["code"]) == (404, "schedule_not_found")
            assert (await other.got(f"/v1/sessions?schedule={one['id']}"))["data"] == []
        # Who may only read reads; who may not use the agent changes nothing.
        assert await reader.got(path) == await scoped.got(path) == one
        assert (await reader.got(f"{path}/runs"))["data"] == []
        for client, code in ((reader, "read_only_key"), (scoped, "template_not_allowed")):
            for method, there, sent in (
                ("POST", PATH, body()),
                ("PATCH", path, {"paused": True}),
                ("PATCH", path, {"template": "somebody_else"}),
                ("POST", f"{path}/run", None),
                ("DELETE", path, None),
            ):
                status, error = await client.refused(method, there, sent)
                assert (status, error["code"]) == (403, code), (method, there)
                assert code == "read_only_key" or error["param"] == "template"
        assert await left(house) == before
        # It is paused and resumed; fired by hand, once for each key; the session knows who sent it.
        async with ann.ask("PATCH", path, {"paused": True}) as response:
            paused = await response.json()
        assert (paused["state"], paused["next_at"]) == ("paused", None)
        ran = []
        for key in ("k-1", "k-1", "k-2"):
            async with ann.ask("POST", f"{path}/run", None, idempotency_key=key) as response:
                assert response.status == 201
                ran.append(await response.json())
        assert (ran[0]["id"] == ran[1]["id"] != ran[2]["id"], ran[0]["manual"]) == (True, True)
        session_id = ran[0]["session_id"]
        prompts = [one.event for one in await house.journal(session_id) if isinstance(one.event, Prompted)]
        assert [(one.schedule, one.content) for one in prompts] == [(one["id"], ("Доброе утро",))] * 2
        assert await house.db.value("SELECT key_id FROM sessions WHERE id = :id", id=session_id) == ann.id
        async with ann.ask(
            "PATCH", path, {"paused": False, "time_zone": "Asia/Tokyo", "cron": "0 9 1 1 *"}
        ) as response:
            changed = await response.json()
        assert (changed["state"], changed["next_at"][5:]) == ("active", "01-01T00:00:00Z")
        async with ann.ask("PATCH", path, {"at": "2031-01-01T00:00:00", "conversation_id": None}) as response:
            changed = await response.json()
        assert (changed["cron"], changed["at"]) == (None, "2030-12-31T15:00:00Z")
        assert (changed["conversation_id"], changed["metadata"], changed["name"]) == (None, {"team": "蓝"}, "Утро")
        # So many, and no more; another owner has its own.
        more = [await made(ann) for _ in range(4)]
        status, error = await ann.refused("POST", PATH, body())
        assert (status, error["code"]) == (409, "too_many_schedules")
        await made(bob)
        page = await ann.got(f"{PATH}?limit=2")
        rest = await ann.got(f"{PATH}?limit=200&before={page['next']}")
        shown = [row["id"] for row in (*page["data"], *rest["data"])]
        assert shown == [row["id"] for row in (*reversed(more), one)]
        assert await ann.status("DELETE", path) == 204
        assert await ann.status("GET", path) == 404
        await _a_request_is_repeated(ann, bob)


async def _a_request_is_repeated(ann: Client, bob: Client) -> None:
    """With its key it makes one schedule, also at once and where there is no room for another."""

    async def asked(client: Client, key: str = "утро".encode().hex(), **fields: Any) -> tuple[int, Any]:
        async with client.ask("POST", PATH, body(**fields), idempotency_key=key) as response:
            shown = await response.json()
            return response.status, shown.get("error", shown)

    async def oldest_goes() -> None:
        page = await ann.got(f"{PATH}?limit=200")
        assert await ann.status("DELETE", f"{PATH}/{page['data'][-1]['id']}") == 204

    await oldest_goes()
    for key in ("spare", "утро".encode().hex()):  # where there is room for two, and for one
        answers = await asyncio.gather(*(asked(ann, key, prompt="Доброе утро") for _ in range(4)))
        answers.append(await asked(ann, key, prompt="Доброе утро"))
        assert {status for status, _ in answers} == {201}
        [first] = {shown["id"] for _, shown in answers}
    status, error = await ann.refused("POST", PATH, body())
    assert (status, error["code"]) == (409, "too_many_schedules"), "it was the last for which there was room"
    status, error = await asked(ann, prompt="早上好")
    assert (status, error["code"]) == (422, "key_reused")
    said = {"model": AGENT, "messages": [{"role": "user", "content": "Hi"}]}
    status, error = await ann.refused("POST", "/v1/chat/completions", said, idempotency_key="утро".encode().hex())
    assert (status, error["code"]) == (422, "key_reused")
    status, error = await asked(ann, "k" * 256)
    assert (status, error["param"]) == (400, "Idempotency-Key")
    assert (await asked(bob, prompt="Доброе утро"))[1]["id"] != first, "keys of another owner are others"
    assert await ann.status("DELETE", f"{PATH}/{first}") == 204
    status, again = await asked(ann, prompt="早上好")
    assert (status, again["id"] == first) == (201, False), "nothing is kept of one that is deleted"
    # It is known for a day.
    await ann.house.db.run("UPDATE requests SET at = at - interval '25 hours'")
    await oldest_goes()
    status, later = await asked(ann, prompt="Доброе утро")
    assert (status, later["id"] == again["id"]) == (201, False)


async def test_a_key_that_is_revoked_or_used_up_takes_its_schedules_with_it(serving: Serving) -> None:
    async with keyed(serving, done) as house:
        ann, other = await client_of(house, "ann"), await client_of(house, "ann")
        poor = await client_of(house, "ann", turns_per_day=1)
        slow = await client_of(house, "ann", sessions_per_hour=1)
        brief = await client_of(house, "ann")
        theirs, spent, hourly, short = [await made(one) for one in (ann, poor, slow, brief)]
        sql = "UPDATE api_keys SET expires_at = now() - interval '1 day' WHERE id = :id"
        await house.db.run(sql, id=brief.id)
        assert await admin_of(house).status("DELETE", f"/admin/keys/{ann.id}") == 204
        shown = await other.got(f"{PATH}/{theirs['id']}")
        assert (shown["state"], shown["next_at"]) == ("stopped", None), "at once, not only when it fires next"
        assert shown["stopped_reason"].startswith("The key that it fires with was revoked on 20")
        await come_due(house.db, theirs, short)
        for one, word in ((theirs, "revoked"), (short, "expired")):
            [run] = await runs_of(house.http, one, headers=other.headers)
            assert (run["state"], run["session_id"]) == ("failed", None)
            assert word in run["error"]["message"]
            assert word in (await other.got(f"{PATH}/{one['id']}"))["stopped_reason"]
        assert await house.db.value("SELECT count(*) FROM schedules WHERE next_at <= now()") == 0, (
            "it is not due for ever"
        )
        # Whoever changes it gives it its own key, and it goes on.
        async with other.ask("PATCH", f"{PATH}/{theirs['id']}", {"paused": False}) as response:
            assert ((await response.json())["state"], response.status) == ("active", 200)
        await come_due(house.db, theirs)
        fired = (await runs_of(house.http, theirs, 2, headers=other.headers))[0]
        assert fired["state"] == "fired"
        assert await house.db.value("SELECT key_id FROM sessions WHERE id = :id", id=fired["session_id"]) == other.id
        # A budget and a limit are those of a request: the run fails, and the schedule goes on.
        for one, code in ((spent, "budget_exceeded"), (hourly, "rate_limit_exceeded")):
            for number in (1, 2):
                await come_due(house.db, one)
                found = await runs_of(house.http, one, number, headers=other.headers)
                if number == 1:
                    async with asyncio.timeout(20):
                        while (await runs_of(house.http, one, headers=other.headers))[0]["outcome"] is None:
                            await asyncio.sleep(0.05)
            assert [run["state"] for run in found] == ["failed", "fired"], code
            assert found[0]["error"]["code"] == code
            assert (await other.got(f"{PATH}/{one['id']}"))["state"] == "active"
        status, error = 0, {}
        async with poor.ask("POST", f"{PATH}/{spent['id']}/run") as response:
            status, error = response.status, (await response.json())["error"]
        assert (status, error["code"]) == (429, "budget_exceeded")
        # A key that may only read since, or may use other agents, fires nothing.
        for narrower, code in (
            ({"read_only": True}, "read_only_key"),
            ({"read_only": False, "templates": ["x"]}, "template_not_allowed"),
        ):
            assert await admin_of(house).status("PATCH", f"/admin/keys/{other.id}", narrower) == 200
            before = len(await runs_of(house.http, theirs, headers=other.headers))
            await come_due(house.db, theirs)
            run = (await runs_of(house.http, theirs, before + 1, headers=other.headers))[0]
            assert (run["state"], run["error"]["code"]) == ("failed", code)


async def test_runs_without_a_session_are_bounded(serving: Serving, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("longhouse.store.automation.schedules.FORGET_OLD", FORGET_OLD)
    async with serving(done) as house:
        async with house.http.post(PATH, json=body(template=AGENT)) as response:
            one = await response.json()
        await house.db.run("UPDATE schedules SET template = 'nobody'")
        for number in range(1, 7):
            await come_due(house.db, one)
            while await house.db.value("SELECT revision FROM schedules") <= number:
                await asyncio.sleep(0.02)
        assert len(await runs_of(house.http, one, 4)) == 4


async def test_the_command_line(serving: Serving) -> None:
    async with serving(done) as house:
        place = partial(launched_words, database_url=serving.dsn)
        given = ("--template", AGENT, "--prompt", "Что нового?", "--name", "Утро")
        code, said = await place("schedules", "create", *given, "--cron", NEVER)
        assert code == 0, said
        line = said.strip().splitlines()[-1]
        schedule_id = line.split()[0]
        assert all(word in line for word in (NEVER, AGENT, "Утро", "local", "next 20"))
        for wrong, why in (
            (("--cron", "x"), "--cron"),
            (("--at", "x"), "--at"),
            ((), "cron, or at"),
            (("--cron", NEVER, "--time-zone", "Mars"), "--time-zone"),
            (("--cron", NEVER, "--key", "key_none"), "key_none"),
        ):
            code, said = await place("schedules", "create", *given, *wrong)
            assert (code, why in said, "Traceback" in said) == (1, True, False), said
        code, said = await place("schedules", "run", schedule_id)
        assert code == 0, said
        await house.until(said.strip().splitlines()[-1], "COMPLETED")
        for words, shown in (
            (("pause", schedule_id), "paused"),
            (("resume", schedule_id), "next 20"),
            (("list",), "Утро"),
            (("show", schedule_id), "fired"),
            (("delete", schedule_id), "is deleted"),
        ):
            code, said = await place("schedules", *words)
            assert (code, shown in said) == (0, True), said
        code, said = await place("schedules", "show", schedule_id)
        assert (code, "there is no schedule" in said) == (1, True)


FORGET_OLD = """
    DELETE FROM schedule_runs WHERE schedule_id = :schedule AND session_id IS NULL AND at < (
        SELECT at FROM schedule_runs WHERE schedule_id = :schedule AND session_id IS NULL
        ORDER BY at DESC OFFSET 3 LIMIT 1
    )
"""
