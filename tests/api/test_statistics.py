"""Statistics of agents and tools: counted from the journals, of one owner or of all, in slices that are kept."""

from datetime import UTC, datetime, timedelta
from typing import Any

from key_helpers import Client, admin_of, client_of, keyed

from delegating_server import answer, results, task_of
from longhouse.agents.strategies.protocol import Body
from longhouse.api import statistics as routes
from longhouse.api.statistics import Statistics, summary
from longhouse.models.scripted import Say, ScriptedStatus, call, say
from longhouse.store import statistics
from longhouse.store.database import Database
from longhouse.store.statistics import Counted, percentile, slice_of
from server_helpers import AGENT, Serving


def play(body: Body) -> Say:
    if task_of(body) == "fail":
        return say("", fault=ScriptedStatus(status=400, message="no"))
    steps = {"time": call("clocktool"), "break": call("clocktool", timezone="Nowhere/Land")}
    return answer("Done.") if results(body) else steps[task_of(body)]


async def of_tools(client: Client, path: str) -> dict[str, tuple[int, int]]:
    return {one["name"]: (one["calls"], one["failed"]) for one in (await client.got(path))["tools"]}


async def test_each_owner_sees_its_own_and_an_admin_all(serving: Serving, monkeypatch: Any) -> None:
    monkeypatch.setattr(routes, "COUNTED_EVERY", 0.0)
    async with keyed(serving, play) as house:
        admin, shop, depot = admin_of(house), await client_of(house, "shop"), await client_of(house, "depot")
        nothing = await shop.got("/v1/statistics")
        assert (nothing["agents"], nothing["tools"]) == ([], [])
        for text in ("time", "time", "break", "fail"):
            await shop.say(text)
        await depot.say("time")
        [agent] = (await shop.got("/v1/statistics"))["agents"]
        assert (agent["name"], agent["turns"], agent["completed"], agent["failed"]) == (AGENT, 4, 3, 1)
        assert agent["tokens"] > 0
        assert 0 < agent["p50_seconds"] <= agent["p95_seconds"]
        tools = await of_tools(shop, "/v1/statistics?window=1h")
        assert tools == {"clocktool": (3, 1), "finalanswertool": (3, 0)}
        assert await of_tools(depot, "/v1/statistics") == {"clocktool": (1, 0), "finalanswertool": (1, 0)}
        assert (await of_tools(admin, "/admin/statistics"))["clocktool"] == (4, 1)
        assert (await of_tools(admin, "/admin/statistics?owner=depot"))["clocktool"] == (1, 0)
        assert await shop.status("GET", "/admin/statistics") == 403
        assert await shop.status("GET", "/v1/statistics?owner=depot") == 400
        assert await shop.status("GET", "/v1/statistics?window=1y") == 400
        # What happened before the window is not counted; what is erased is counted no more where it is counted again.
        await house.db.run("UPDATE journal SET at = at - interval '3 hours'")
        shifted = Statistics(house.db)
        assert summary(await shifted.rows(timedelta(hours=1))) == {"agents": [], "tools": []}
        assert len(await shifted.rows()) == len(await shifted.rows(timedelta(hours=6))) > 0


async def test_a_slice_that_is_over_is_counted_once(db: Database, monkeypatch: Any) -> None:
    monkeypatch.setattr(routes, "COUNTED_EVERY", 0.0)
    asked = []

    async def counted(db: Database, since: datetime, until: datetime) -> list[Counted]:
        asked.append(since)
        moments = (slice_of(until - timedelta(hours=nth)) for nth in (1, 2, 3))
        return [Counted("call", moment, "o", "t", "ok", 60, 1) for moment in moments if moment >= since]

    monkeypatch.setattr(statistics, "counted", counted)
    counts = Statistics(db)
    assert len(await counts.rows()) == len(await counts.rows()) == 3
    assert asked[1] - asked[0] > timedelta(hours=23)


def test_percentiles_are_read_from_buckets() -> None:
    moment = datetime(2026, 1, 31, tzinfo=UTC)
    rows = [Counted("call", moment, "o", "t", "ok", bucket, times) for bucket, times in ((40, 90), (120, 9), (200, 1))]
    short, middle, long = (percentile(rows, share) for share in (0.5, 0.95, 1.0))
    assert short is not None
    assert middle is not None
    assert long is not None
    assert short < 0.1 < middle < long
    assert percentile([Counted("call", moment, "o", "t", "ok", None, 5)], 0.5) is None


async def test_postgres_and_we_mean_the_same_buckets_and_slices(db: Database) -> None:
    for seconds in (0.0005, 0.02, 1.0, 61.0, 4000.0):
        bucket = await db.value(
            f"SELECT {statistics._BUCKET.format('make_interval(secs => :seconds)')}", seconds=seconds
        )
        found = percentile([Counted("call", datetime.now(UTC), "o", "t", "ok", bucket, 1)], 0.5)
        assert found is not None
        assert abs(found - max(seconds, 0.001)) <= 0.06 * max(seconds, 0.001)
    now = datetime.now(UTC)
    assert await db.value("SELECT date_bin('15 minutes', :now::timestamptz, '2000-01-01Z')", now=now) == slice_of(now)
