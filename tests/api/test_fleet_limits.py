"""What a key may use is counted for the whole fleet: requests, open ones, sessions that run."""

import asyncio
import time
from typing import Any

from key_helpers import ADMIN, Client, admin_of, client_of, keyed

from delegating_server import agent
from longhouse.agents.builtin import BUILT_IN
from longhouse.models.scripted import Say, call
from server_helpers import Serving, content, dictated, process, sse


async def test_two_gateways_share_the_limits_of_a_key(serving: Serving) -> None:
    async with keyed(serving, works=False) as one, keyed(serving, works=False) as other:
        ann = await client_of(one, "ann", rate_limit=30)
        clients = [ann, Client(other, ann.key, ann.id)]

        async def status(client: Client) -> int:
            async with client.ask("GET", "/v1/models") as response:
                if response.status == 429:
                    message = (await response.json())["error"]["message"]
                    assert "This key may send 30 requests a minute. Try again in" in message
                    assert int(response.headers["retry-after"]) >= 1
                    assert response.headers["x-ratelimit-remaining-requests"] in {"0", "1"}
                return int(response.status)

        began = time.monotonic()
        answers = [await status(clients[number % 2]) for number in range(50)]
        refilled = (time.monotonic() - began) / 2
        assert 28 <= answers.count(200) <= 30 + refilled, "a permit comes back every two seconds"
        assert answers.count(200) + answers.count(429) == 50
        used = [
            next(row["used"] for row in (await admin_of(house).got("/admin/keys"))["data"] if row["id"] == ann.id)
            for house in (one, other)
        ]
        refilled = (time.monotonic() - began) / 2
        assert all(28 - refilled <= row["rate_limit"] <= 30 for row in used)


async def test_a_gateway_that_dies_takes_its_open_requests_with_it(serving: Serving, dsn: str) -> None:
    async with keyed(serving) as house, process("serve", "--port", "0", "--no-worker", database_url=dsn) as dying:
        ann = await client_of(house, "ann", max_concurrent=1)
        session_id = (await ann.say("hi"))["model"]
        path = f"/v1/sessions/{session_id}/events?until=never"
        async with asyncio.timeout(10):
            while await house.db.value("SELECT sum(open) FROM open_requests WHERE key_id = :id", id=ann.id):
                await asyncio.sleep(0.01)
        async with dying.http.get(path, headers=ann.headers) as response:
            await anext(sse(response))
            async with asyncio.timeout(10):  # what the other gateway told is looked at again within two seconds
                while await ann.status("GET", "/v1/models") == 200:
                    await asyncio.sleep(0.1)
            async with ann.ask("GET", "/v1/models") as refused:
                message = (await refused.json())["error"]["message"]
            assert (refused.status, message) == (
                429, "This key has 1 open requests, which is its limit. Try again in 1 s."
            )  # fmt: skip
            [row] = (await admin_of(house).got("/admin/keys"))["data"]
            assert row["used"]["max_concurrent"] == 1
            dying.kill()
            async with asyncio.timeout(10):
                while await ann.status("GET", "/v1/models") == 429:
                    await asyncio.sleep(0.2)


async def test_sessions_of_a_key_run_one_after_another_and_their_sub_agents_too(serving: Serving) -> None:
    async with dictated() as model, keyed(serving, llm_base_url=model.url) as house:
        ann, bob = await client_of(house, "ann", max_running=1), await client_of(house, "ann")
        asking = [asyncio.create_task(ann.say(text)) for text in ("one", "two")]
        pen = await model.asked()
        free = asyncio.create_task(bob.say("bob"))
        other = await model.asked()
        assert other.body["messages"][-1]["content"] == "bob"
        rows = (await admin_of(house).got("/admin/keys"))["data"]
        assert [row["used"]["max_running"] for row in rows if row["id"] == ann.id] == [1]
        for one in (other, pen):
            one.call("finalanswertool", '{"answer": "Done."}')
            one.end()
        pen = await model.asked()
        pen.call("finalanswertool", '{"answer": "Done."}')
        pen.end()
        assert [content(await task) for task in (*asking, free)] == ["Done."] * 3


async def test_an_agent_that_waits_for_its_sub_agent_leaves_it_the_only_place(serving: Serving) -> None:
    def play(body: Any) -> Say:
        system = str(body.messages[0])
        is_answered = "ToolResult" in str([type(message).__name__ for message in body.messages])
        if "master" in system and not is_answered:
            return call("agent.ann", task="count")
        return call("finalanswertool", answer="Done.")

    policy = {"calls": ("ann",), "tools": ("finalanswertool",)}
    templates = (*BUILT_IN, agent("master", **policy), agent("ann", **policy))
    async with keyed(serving, play, templates=templates) as house:
        ann = await client_of(house, "ann", max_running=1)
        async with asyncio.timeout(20):
            assert content(await ann.say("go", model="master")) == "Done."
        keys = [row["key_id"] for row in await house.db.rows("SELECT key_id FROM sessions")]
        assert keys == [ann.id, ann.id], "a sub-agent's session counts for the key that prompted"


async def test_the_key_of_the_settings_is_counted_too(serving: Serving) -> None:
    async with keyed(serving, works=False, rate_limit=2) as house:
        admin = Client(house, ADMIN)
        assert [await admin.status("GET", "/v1/models") for _ in range(3)] == [200, 200, 429]
