"""Statistics of agents and tools: counted from the journals, of one owner or of all, in slices that are kept."""

from datetime import UTC, datetime, timedelta
from typing import Any

import asyncpg
import pytest
from key_helpers import Client, admin_of, client_of, keyed

from delegating_server import answer, appears, results, task_of
from longhouse.agents.strategies.protocol import Body
from longhouse.agents.template import Template, ToolPolicy
from longhouse.api.admin import operations
from longhouse.api.watching import statistics as routes
from longhouse.api.watching.statistics import Statistics, summary
from longhouse.errors import CallerError
from longhouse.models.scripted import Say, ScriptedStatus, call, say
from longhouse.store.database import Database
from longhouse.store.lists import statistics
from longhouse.store.lists.statistics import SLICE, Count, percentile, slice_of
from longhouse.tools import BaseTool, ToolContext
from server_helpers import AGENT, Serving

LONG = "я" * 50_000
"""As the argument of a call it makes a body that is stored outside the journal."""
TITLED = Template(name="titled", title="model", tool_policy=ToolPolicy(allowlist=("keep_text", "finalanswertool")))


class KeepTool(BaseTool):
    """Keeps a text."""

    tool_name = "keep_text"
    text: str

    async def __call__(self, context: ToolContext, config: Any = None, **kwargs: Any) -> str:
        return "kept"


def play(body: Body) -> Say:
    if not body.tools:
        return say("A title")
    if task_of(body) == "fail":
        return say("", fault=ScriptedStatus(status=400, message="no"))
    steps = {
        "time": call("clocktool"),
        "break": call("clocktool", timezone="Nowhere/Land"),
        "keep": call("keep_text", text="short"),
        "long": call("keep_text", text=LONG),
    }
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


async def test_long_bodies_are_counted_as_short_ones_and_a_title_is_no_retry(
    serving: Serving, monkeypatch: Any
) -> None:
    monkeypatch.setattr(routes, "COUNTED_EVERY", 0.0)
    monkeypatch.setattr(operations, "LOOKED_EVERY", 0.0)
    async with keyed(serving, play, tools=(KeepTool,), templates=[TITLED]) as house:
        shop, admin = await client_of(house, "shop"), admin_of(house)
        top = (await shop.say("keep", model="titled"))["model"]
        assert await appears(house.db, "SELECT 1 FROM journal WHERE kind = 'Spent'")
        await shop.say("long", model=top)
        kinds = "SELECT DISTINCT kind FROM journal WHERE body_digest IS NOT NULL ORDER BY 1"
        assert [row["kind"] for row in await house.db.rows(kinds)] == ["Called", "Replied"]
        shown = await shop.got("/v1/statistics")
        assert await of_tools(shop, "/v1/statistics") == {"keep_text": (2, 0), "finalanswertool": (2, 0)}
        [row] = (await shop.got("/v1/sessions"))["data"]
        assert shown["agents"][0]["tokens"] == row["tokens"] > 0
        [model] = (await admin.got("/admin/operations"))["models"]
        assert (model["model"], model["calls"], model["retries"]) == ("gpt-4o-mini", 4, 0)


async def test_a_slice_that_is_over_is_counted_once_and_kept_though_an_older_one_fails(
    db: Database, monkeypatch: Any
) -> None:
    monkeypatch.setattr(routes, "COUNTED_EVERY", 0.0)
    asked: list[tuple[datetime, datetime]] = []
    too_old = slice_of(datetime.now(UTC) - timedelta(hours=5)).replace(minute=0)

    async def count_events(db: Database, since: datetime, until: datetime) -> list[Count]:
        asked.append((since, until))
        if since <= too_old:
            raise asyncpg.QueryCanceledError("canceling statement due to statement timeout")
        moments = (since + n * SLICE for n in range(round((until - since) / SLICE)))
        return [Count("call", moment, "o", "t", "ok", 60, 1) for moment in moments]

    monkeypatch.setattr(statistics, "count_events", count_events)
    counts = Statistics(db)
    assert 4 <= len(await counts.rows(timedelta(hours=1))) <= 7
    assert all(until - since <= timedelta(hours=1) for since, until in asked[1:])
    assert [one[0] for one in asked] == sorted((one[0] for one in asked), reverse=True), "the newest first"
    with pytest.raises(asyncpg.QueryCanceledError):
        await counts.rows()
    tried = len(asked)
    # Those who waited meanwhile, and those who come soon, do not try it again.
    with pytest.raises(CallerError, match="could not be counted just now"):
        await counts.rows(timedelta(hours=1))
    assert len(asked) == tried
    monkeypatch.setattr(routes, "NOT_AGAIN_FOR", 0.0)
    too_old = datetime.min.replace(tzinfo=UTC)
    assert len(await counts.rows()) >= 96
    [present, *older] = asked[tried:]
    assert present[1] - present[0] < 3 * SLICE
    assert max(until for _, until in older) <= slice_of(datetime.now(UTC) - timedelta(hours=4)), "the rest was kept"
    tried = len(asked)
    await counts.rows()
    assert len(asked) == tried + 1


def test_percentiles_are_read_from_buckets() -> None:
    moment = datetime(2026, 1, 31, tzinfo=UTC)
    rows = [Count("call", moment, "o", "t", "ok", bucket, times) for bucket, times in ((40, 90), (120, 9), (200, 1))]
    short, middle, long = (percentile(rows, share) for share in (0.5, 0.95, 1.0))
    assert short is not None
    assert middle is not None
    assert long is not None
    assert short < 0.1 < middle < long
    assert percentile([Count("call", moment, "o", "t", "ok", None, 5)], 0.5) is None


async def test_postgres_and_we_mean_the_same_buckets_and_slices(db: Database) -> None:
    for seconds in (0.0005, 0.02, 1.0, 61.0, 4000.0):
        bucket = await db.value(
            f"SELECT {statistics._BUCKET.format('make_interval(secs => :seconds)')}", seconds=seconds
        )
        found = percentile([Count("call", datetime.now(UTC), "o", "t", "ok", bucket, 1)], 0.5)
        assert found is not None
        assert abs(found - max(seconds, 0.001)) <= 0.06 * max(seconds, 0.001)
    now = datetime.now(UTC)
    assert await db.value("SELECT date_bin('15 minutes', :now::timestamptz, '2000-01-01Z')", now=now) == slice_of(now)
