"""Instances are kept warm and told of: every state that they pass through is on the roster, of living workers only."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any

import msgspec

from longhouse import clock
from longhouse.agents.strategies.protocol import Reply, Request, Verdict
from longhouse.agents.strategies.tool_calling import ToolCallingAgent
from longhouse.agents.template import Template, ToolPolicy
from longhouse.models.scripted import ScriptedModel, call
from longhouse.runtime.workers.instance_registry import InstanceRegistry
from longhouse.runtime.workers.instances import IDLE_FOR, InstancePool, InstanceStatus
from longhouse.store import leases, registry
from longhouse.store.database import Database
from longhouse.store.registry import RegisteredInstance
from server_helpers import AGENT, Serving, dictated, process

DONE = call("finalanswertool", answer="Done.")
TEMPLATE = Template(name="a")


class ClumsyAgent(ToolCallingAgent):
    """Has a defect: it stumbles over every tool but the one that finishes."""

    name = "ClumsyAgent"

    def interpret(self, request: Request, reply: Reply) -> Verdict:
        if any(call.name == "clocktool" for call in reply.calls):
            raise RuntimeError("a defect")
        return super().interpret(request, reply)


CLUMSY = Template(
    name="clumsy", base_agent_class="ClumsyAgent", tool_policy=ToolPolicy(allowlist=("clocktool", "finalanswertool"))
)


async def rows(db: Database, **where: Any) -> list[dict[str, Any]]:
    found = await db.rows("SELECT * FROM agent_instances ORDER BY last_used_at")
    all_rows = [{**dict(row), "metrics": msgspec.json.decode(row["metrics"])} for row in found]
    return [row for row in all_rows if all(row[name] == value for name, value in where.items())]


async def shown(db: Database, is_so: Callable[[list[dict[str, Any]]], bool]) -> list[dict[str, Any]]:
    """The roster, once it says so."""
    async with asyncio.timeout(10):
        while not is_so(found := await rows(db)):
            await asyncio.sleep(0.02)
        return found


def states(row: dict[str, Any]) -> list[str]:
    return [past["status"] for past in row["metrics"]["history"]]


def pool() -> InstancePool:
    async def model_for(template: Template) -> ScriptedModel:
        return ScriptedModel()

    return InstancePool(model_for)


async def enlisted(db: Database, worker: str) -> None:
    await db.run("INSERT INTO workers (id, lock_key, node, pid, slots) VALUES (:id, 1, 'n', 1, 1)", id=worker)


async def test_twenty_sessions_in_a_row_run_on_one_instance(serving: Serving) -> None:
    async with serving(lambda body: DONE) as house:
        ids = [(await house.say(f"hi {number}"))["model"] for number in range(20)]
        assert len(set(ids)) == 20
        served_by = {(await house.session(session_id))["instance_id"] for session_id in ids}
        assert len(served_by) == 1
        [row] = await shown(house.db, lambda found: [one["metrics"]["served"] for one in found] == [20])
        assert {row["instance_id"]} == served_by
        assert (row["template_id"], row["version"], row["status"]) == (AGENT, 1, "IDLE")
        assert (row["worker"], row["session_id"]) == (house.app.worker.id, None)
        assert states(row)[-3:] == ["BUSY", "RESETTING", "IDLE"]
        async with house.http.get("/admin/instances", params={"template": AGENT}) as response:
            [told] = (await response.json())["data"]
        assert (told["instance_id"], told["metrics"]["served"]) == (row["instance_id"], 20)


async def test_every_state_of_an_instance_is_seen_over_the_admin_api(serving: Serving, db: Database) -> None:
    async with dictated() as model, serving(llm_base_url=model.url, templates=[CLUMSY]) as house:
        saying = asyncio.create_task(house.say("hi", model="clumsy"))
        pen = await model.asked()
        [busy] = await shown(house.db, lambda found: [one["status"] for one in found] == ["BUSY"])
        assert busy["session_id"].startswith("clumsy_")
        async with house.http.get("/admin/instances", params={"status": "BUSY"}) as response:
            [told] = (await response.json())["data"]
        assert told["session_id"] == busy["session_id"]
        pen.call("finalanswertool", '{"answer": "Done."}')
        pen.end()
        await saying
        await shown(house.db, lambda found: [one["status"] for one in found] == ["IDLE"])

        saying = asyncio.create_task(house.say("hi again", model="clumsy"))
        pen = await model.asked()
        pen.call("clocktool")
        pen.end()
        assert (await saying)["error"]["code"] == "internal_error"
        [row] = await shown(house.db, lambda found: found[0]["metrics"]["failed"] == 1)
        assert states(row)[-4:] == ["BUSY", "ERROR", "RESETTING", "IDLE"]
    [gone] = await rows(db)
    assert (gone["status"], states(gone)[-1]) == ("STOPPED", "STOPPED")
    assert {status.value for status in InstanceStatus} == {*states(gone)}
    assert gone["metrics"]["stopped_at"] == gone["metrics"]["history"][-1]["at"]


async def test_an_instance_that_is_not_used_any_more_is_stopped_and_told_so(db: Database) -> None:
    warm = pool()
    roster = InstanceRegistry(db, warm, "w")
    async with warm.acquired(TEMPLATE, "s") as one:
        assert await roster.write() == 1
    assert await roster.write() == 1
    warm.retire_idle(clock.now() + 2 * IDLE_FOR)
    assert warm.instances == []
    assert await roster.write() == 1
    assert warm.stopped == []
    [row] = await rows(db)
    assert (row["instance_id"], row["status"]) == (one.id, "STOPPED")


async def test_nothing_is_written_where_nothing_has_changed(db: Database) -> None:
    warm = pool()
    roster = InstanceRegistry(db, warm, "w")
    assert await roster.write() == 0
    async with warm.acquired(TEMPLATE, "s"), warm.acquired(TEMPLATE, "t"):
        assert await roster.write() == 2
        before = await db.rows("SELECT xmin::text, ctid::text FROM agent_instances")
        assert await roster.write() == 0
        await roster.reconcile()
        assert await roster.write() == 0
        assert await db.rows("SELECT xmin::text, ctid::text FROM agent_instances") == before
    async with warm.acquired(TEMPLATE, "u"):
        assert await roster.write() == 2


async def test_a_lost_roster_is_written_again(db: Database) -> None:
    warm = pool()
    roster = InstanceRegistry(db, warm, "w")
    async with warm.acquired(TEMPLATE, "s"), warm.acquired(TEMPLATE, "t"):
        await roster.write()
        [first, _] = await rows(db)
        await db.run("DELETE FROM agent_instances WHERE instance_id = :instance_id", instance_id=first["instance_id"])
        await roster.reconcile()
        assert await roster.write() == 1
        assert {row["session_id"] for row in await rows(db)} == {"s", "t"}


async def test_the_instances_of_workers_that_are_gone_are_struck_and_those_of_the_living_are_not(db: Database) -> None:
    ours, theirs, dead = pool(), pool(), pool()
    await enlisted(db, "them")
    roster, others = InstanceRegistry(db, ours, "us"), InstanceRegistry(db, theirs, "them")
    async with ours.acquired(TEMPLATE, "s"), theirs.acquired(TEMPLATE, "t"), dead.acquired(TEMPLATE, "u"):
        for one in (roster, others, InstanceRegistry(db, dead, "the dead")):
            await one.write()
        await roster.reconcile()
        assert {row["worker"]: row["status"] for row in await rows(db)} == {
            "us": "BUSY", "them": "BUSY", "the dead": "STOPPED",
        }  # fmt: skip
        [struck] = await rows(db, worker="the dead")
        assert (struck["session_id"], states(struck)) == (None, ["IDLE", "BUSY", "STOPPED"])

        # They were thought to be gone, and are not: they say so again.
        await leases.retire(db, "them")
        await roster.reconcile()
        assert [row["status"] for row in await rows(db, worker="them")] == ["STOPPED"]
        await enlisted(db, "them")
        await others.reconcile()
        assert await others.write() == 1
        assert [row["status"] for row in await rows(db, worker="them")] == ["BUSY"]


async def test_what_stopped_long_ago_is_forgotten(db: Database) -> None:
    now = clock.now()
    entries = [
        RegisteredInstance(
            "long gone", "a", 1, "STOPPED", "n", "us", None, now, {"stopped_at": now - timedelta(minutes=61)}
        ),
        RegisteredInstance(
            "just gone", "a", 1, "STOPPED", "n", "us", None, now - timedelta(days=1), {"stopped_at": now}
        ),
        RegisteredInstance("idle", "a", 1, "IDLE", "n", "us", None, now - timedelta(days=1), {}),
    ]
    await registry.write(db, entries)
    await InstanceRegistry(db, pool(), "us").reconcile()
    assert {row["instance_id"] for row in await rows(db)} == {"just gone", "idle"}


async def test_a_roster_that_cannot_be_written_is_in_nobodys_way(serving: Serving) -> None:
    async with serving(lambda body: DONE) as house:
        await house.db.run("ALTER TABLE agent_instances RENAME TO hidden")
        for _ in range(3):
            assert (await house.say("hi"))["choices"][0]["message"]["content"] == "Done."
        await house.db.run("ALTER TABLE hidden RENAME TO agent_instances")
        await shown(house.db, lambda found: [one["metrics"]["served"] for one in found] == [3])


async def test_a_new_version_gets_an_instance_of_its_own(serving: Serving) -> None:
    async with serving(lambda body: DONE) as house:
        first = (await house.say("hi"))["model"]
        template = await house.app.catalog.templates.find(AGENT)
        assert template is not None
        await house.app.catalog.templates.publish([replace(template, allow_client_system=False)], by="a test")
        second = (await house.say("hi"))["model"]
        found = await shown(house.db, lambda found: len(found) == 2)
        assert [row["version"] for row in found] == [1, 2]
        assert [row["instance_id"] for row in found] == [
            (await house.session(session_id))["instance_id"] for session_id in (first, second)
        ]


async def test_a_killed_worker_leaves_no_instance_that_seems_to_live(dsn: str, db: Database) -> None:
    async with process(database_url=dsn) as doomed:
        assert "choices" in await doomed.say("Hello")
        await shown(db, lambda found: [one["status"] for one in found] == ["IDLE"])
        doomed.kill()
        await doomed.ended()
    async with Serving(dsn)(lambda body: DONE):
        [row] = await shown(db, lambda found: [one["status"] for one in found] == ["STOPPED"])
        assert states(row)[-1] == "STOPPED"
