"""Budgets of keys: a session whose key has used one up waits without a worker, until it is raised or full again."""

import asyncio
import re
from datetime import UTC, datetime
from typing import Any

import msgspec
from attack_helpers import CHAT, chat
from key_helpers import Client, admin_of, client_of, keyed

from delegating_server import agent, cast, in_steps
from delegating_server import ask as delegate
from longhouse.agents.builtin import BUILT_IN
from longhouse.cli import keys as key_commands
from longhouse.cli.upkeep import usage as usage_commands
from longhouse.journal import events
from longhouse.models.scripted import call
from longhouse.prices import parse
from longhouse.settings import Settings
from longhouse.store.access import keys
from longhouse.store.limits import budgets, usage
from server_helpers import AGENT, Serving, content, sse

STEPS = in_steps(call("clocktool"), call("finalanswertool", answer="Готово."))
"""Two model calls, with a tool between."""
YESTERDAY = "UPDATE {} SET {} WHERE key_id = :key"


async def change(client: Client, **changes: Any) -> Any:
    async with admin_of(client.house).ask("PATCH", f"/admin/keys/{client.id}", changes) as response:
        assert response.status == 200, await response.text()
        return await response.json()


async def over_budget(client: Client, body: Any) -> Any:
    """The refusal that says when the budget is full again."""
    async with client.ask("POST", CHAT, body) as response:
        error = (await response.json())["error"]
        assert (response.status, error["code"], error["type"]) == (429, "budget_exceeded", "insufficient_quota"), error
        assert int(response.headers["retry-after"]) > 0
        return error["message"]


async def test_a_budget_reached_in_mid_session_is_raised_and_the_session_goes_on(serving: Serving) -> None:
    async with keyed(serving, STEPS) as house:
        ann, other = await client_of(house, "ann", tokens_per_day=1), await client_of(house, "ann")
        said = await over_budget(ann, chat(chat_id="c"))
        assert re.match(
            r"This key has used up its budget of 1 tokens a day, which is full again on \S+ 00:00 UTC", said
        )
        assert "goes on by itself" in said
        [row] = (await other.got("/v1/sessions"))["data"]
        path = f"/v1/sessions/{row['session_id']}"
        shown = await other.got(path)
        assert shown["paused"]["budget"] == "tokens_per_day"
        assert shown["paused"]["reason"].removesuffix(".") in said
        # The step that began was finished, and no other one begun; nobody holds the session.
        kinds = await house.kinds(row["session_id"])
        assert kinds[2:] == ["Started", "Replied", "Called", "Returned"]
        held = "SELECT holder, due, wake_at > now() AS is_later FROM sessions"
        assert tuple((await house.db.rows(held))[0]) == (None, False, True)
        # What is new is refused before anything is recorded; what the owner has can be read.
        assert "full again on" in await over_budget(ann, chat(chat_id="d"))
        assert len((await ann.got("/v1/sessions"))["data"]) == 1
        # Raised, but not by enough: it waits on. Raised again: it answers.
        await change(ann, tokens_per_day=2)
        async with ann.streaming(f"{path}/events?after=now&until=never") as stream:
            assert (await change(ann, tokens_per_day=1_000_000))["tokens_per_day"] == 1_000_000
            async with asyncio.timeout(20):
                told = [one.event async for one in _until(stream, "Finished")]
        assert told[-1] == "Finished"
        facts = await house.journal(row["session_id"])
        waits = [one.event for one in facts if isinstance(one.event, events.Spent)]
        assert waits, "the time in which it waited is no time of work"
        assert all(one.waited > 0 for one in waits)
        turn = (await house.folded(row["session_id"])).turn
        assert turn is not None
        assert turn.waited >= waits[0].waited
        assert (await ann.got(path))["paused"] is None
        assert content(await ann.say("again", chat_id="c")) == "Готово."


async def _until(stream: Any, kind: str) -> Any:
    async for one in sse(stream):
        yield one
        if one.event == kind:
            return


async def test_a_paused_session_goes_on_by_itself_in_another_process_when_the_day_turns(serving: Serving) -> None:
    async with keyed(serving, STEPS) as house:
        ann = await client_of(house, "ann", tokens_per_day=1, tokens_per_month=1_000_000)
        async with ann.streaming(CHAT, chat(stream=True)) as stream:
            told = [one.json async for one in sse(stream)]
        assert told[-1]["error"]["code"] == "budget_exceeded", "a stream ends with the reason"
        session_id = told[0]["model"]
        async with ann.ask("POST", f"/v1/sessions/{session_id}/cancel") as response:
            assert response.status == 202
        assert (await ann.got(f"/v1/sessions/{session_id}"))["state"] == "CANCELLED", "one that waits can be cancelled"
    async with keyed(serving, STEPS, works=False) as house:
        ann = Client(house, ann.key, ann.id)
        await change(ann, tokens_per_day=None)
        # A prompt is accepted while there is a budget; there is none any more when its turn would begin.
        asked = asyncio.create_task(ann.say("later", chat_id="later"))
        async with asyncio.timeout(20):
            while not await house.db.value("SELECT count(*) FROM sessions WHERE task = 'later'"):
                await asyncio.sleep(0.01)
        await keys.change(house.db, ann.id, {"tokens_per_day": 1})
        async with keyed(serving, STEPS) as worker:
            async with asyncio.timeout(20):
                assert (await asked)["error"]["code"] == "budget_exceeded", "its client hears of it in another process"
            assert worker.model is not None
            assert not worker.model.requests
            # Midnight: what was used belongs to yesterday, and the budget is full.
            await usage.roll_up(house.db)
            await house.db.run(YESTERDAY.format("usage_days", "day = day - 1"), key=ann.id)
            await house.db.run("UPDATE sessions SET wake_at = now() WHERE paused IS NOT NULL")
            async with asyncio.timeout(20):
                while not worker.model.requests:
                    await asyncio.sleep(0.01)


async def test_sub_agents_count_for_the_key_of_their_root_and_turns_are_the_clients(serving: Serving) -> None:
    roles = {
        "master": in_steps(delegate("ann", "数一数"), call("finalanswertool", answer="好")),
        "ann": in_steps(call("finalanswertool", answer="一")),
    }
    plain = ("finalanswertool",)
    templates = (*BUILT_IN, agent("master", calls=("ann",), tools=plain), agent("ann", calls=(), tools=plain))
    async with keyed(serving, cast(**roles), templates=templates) as house:
        shop, depot = await client_of(house, "shop", turns_per_day=1), await client_of(house, "depot")
        assert content(await shop.say("go", model="master")) == "好", "the turn that began is not stopped"
        assert "budget of 1 turns a day" in await over_budget(shop, chat(model="master"))
        told = await shop.got("/v1/usage")
        assert (told["total"]["turns"], told["total"]["replies"]) == (1, 3)
        assert [(one["key"], one["name"]) for one in told["keys"]] == [(shop.id, "shop's")]
        assert told["budgets"][0] | {"full_at": ""} == {
            "budget": "turns_per_day", "limit": 1, "used": 1, "full_at": "",
        }  # fmt: skip
        # A budget that a sub-agent reaches: its root waits too, and both go on.
        await change(shop, turns_per_day=None, tokens_per_month=told["total"]["total_tokens"] + 1)
        said = await over_budget(shop, chat(model="master"))
        assert "tokens a month, which is full again on" in said
        [root] = [one for one in (await shop.got("/v1/sessions"))["data"] if one["state"] == "WAITING_FOR_AGENT"]
        assert (await shop.got(f"/v1/sessions/{root['session_id']}"))["paused"]["budget"] == "tokens_per_month"
        await keys.change(house.db, shop.id, {"tokens_per_month": None})
        async with asyncio.timeout(20):
            while (await shop.got(f"/v1/sessions/{root['session_id']}"))["state"] != "COMPLETED":
                await asyncio.sleep(0.02)
        # Nobody else's usage is shown; an admin sees all, and the key of the settings is bound by nothing.
        assert (await depot.got("/v1/usage"))["total"]["total_tokens"] == 0
        assert await depot.status("GET", "/admin/usage") == 403
        assert content(await admin_of(house).say("go", model="master")) == "好"
        everybody = await admin_of(house).got("/admin/usage")
        assert {one["owner"] for one in everybody["owners"]} == {"shop", "local"}
        assert [one["name"] for one in everybody["keys"] if one["owner"] == "local"] == ["LONGHOUSE_ADMIN_KEY"]
        of_shop = await admin_of(house).got("/admin/usage?owner=shop")
        assert of_shop["total"] == (await shop.got("/v1/usage"))["total"]


async def test_usage_adds_up_has_a_price_and_is_told_on_the_command_line(
    serving: Serving, dsn: str, capsys: Any
) -> None:
    async with keyed(serving, in_steps(call("finalanswertool", answer="ok"))) as house:
        ann = await client_of(house, "ann")
        await ann.say("hi")
        before = await ann.got("/v1/usage")
        await asyncio.gather(usage.roll_up(house.db), usage.roll_up(house.db))
        assert await house.db.value("SELECT count(*) FROM usage_lately") == 0
        assert (await ann.got("/v1/usage"))["keys"] == before["keys"], "the same, wherever it is written"
        row = (await admin_of(house).got("/admin/keys"))["data"][0]
        assert (row["used"]["turns_per_day"], row["used"]["tokens_per_month"]) == (1, before["total"]["total_tokens"])
        [model] = before["models"]
        assert (before["total"]["cost"], before["unpriced"]) == (None, [model["model"]])
        for query in ("since=2026-02-01&until=2026-01-01", "since=2020-01-01"):
            assert await ann.status("GET", f"/v1/usage?{query}") == 400
        assert (await ann.got("/v1/usage?since=2020-01-01&until=2020-01-31"))["days"] == []
    settings = Settings(database_url=dsn, prices=f"{model['model']}=1/2,other=0/0", currency="EUR")
    capsys.readouterr()
    await usage_commands.show_usage(settings, as_json=True)
    told = msgspec.json.decode(capsys.readouterr().out)
    cost = (model["prompt_tokens"] + 2 * model["completion_tokens"]) / 1_000_000
    assert (told["currency"], told["total"]["cost"], told["unpriced"]) == ("EUR", round(cost, 6), [])
    for by in ("key", "owner", "model", "day"):
        await usage_commands.show_usage(settings, by=by)
        assert f"{before['total']['total_tokens']:,}" in capsys.readouterr().out
    await usage_commands.show_usage(settings, owner="nobody")
    assert "nothing was used" in capsys.readouterr().out
    await key_commands.change_key(settings, ann.id, tokens_per_day=7, templates=[AGENT])
    assert f"may use {AGENT}, 7 tokens a day" in capsys.readouterr().out
    await key_commands.change_key(settings, ann.id, without=["tokens-per-day"])
    assert "tokens a day" not in capsys.readouterr().out


async def test_exactly_so_many_turns_begin_however_many_ask_at_once(serving: Serving) -> None:
    async with keyed(serving, works=False) as house, keyed(serving, works=False) as other:
        ann = await client_of(house, "ann", turns_per_day=3)
        there = Client(other, ann.key, ann.id)

        async def begun(client: Client, text: str, key: str = "") -> tuple[int, Any]:
            body = {"model": AGENT, "input": text, "background": True}
            async with client.ask(
                "POST", "/v1/responses", body, **({"idempotency_key": key} if key else {})
            ) as response:
                return response.status, await response.json()

        # One prompt that is sent eight times takes one turn, and each of them follows it.
        same = await asyncio.gather(*(begun(client, "Same.", "k") for client in (ann, there) * 4))
        assert {status for status, _ in same} == {200}
        assert len({answer["id"] for _, answer in same}) == 1
        got = await asyncio.gather(*(begun(client, f"{n}") for n in range(15) for client in (ann, there)))
        assert sorted(status for status, _ in got) == [200] * 2 + [429] * 28
        refused = next(answer for status, answer in got if status == 429)["error"]
        assert (refused["code"], refused["type"]) == ("budget_exceeded", "insufficient_quota")
        assert "budget of 3 turns a day" in refused["message"]
        assert (await begun(ann, "Same.", "k"))[1]["id"] == same[0][1]["id"]
        assert len((await ann.got("/v1/sessions"))["data"]) == 3, "what was refused has left nothing"
        # Nothing has begun to run, and still it is taken; a session of its own counts no less than a new one.
        await change(ann, turns_per_day=4, turns_per_month=5)
        first = (await ann.got("/v1/sessions"))["data"][0]["session_id"]
        body = {"model": first, "input": "More.", "background": True}
        statuses = [await client.status("POST", "/v1/responses", body) for client in (ann, there)]
        assert statuses == [200, 429]
        await change(ann, turns_per_day=None)
        assert [await ann.status("POST", "/v1/responses", body) for _ in range(2)] == [200, 429]


def test_prices_and_periods() -> None:
    price = parse(("a/b=c=1/2/0.5",))["a/b=c"]
    assert price.of(prompt_tokens=2_000_000, cached_tokens=1_000_000, completion_tokens=500_000) == 1 + 1 + 0.5
    at = datetime(2026, 12, 31, 23, 59, tzinfo=UTC)
    assert budgets.full_at("tokens_per_day", at) == budgets.full_at("turns_per_month", at)
    assert budgets.full_at("tokens_per_month", at) == datetime(2027, 1, 1, tzinfo=UTC)
