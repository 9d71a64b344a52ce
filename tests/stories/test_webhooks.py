"""Webhooks: each event comes at least once, in the order of its session, whatever becomes of receiver and sender."""

import asyncio
import os
import re
import signal
from contextlib import AsyncExitStack
from typing import Any

import msgspec

from longhouse.agents.strategies.protocol import Body
from longhouse.journal.messages import User, text_of
from longhouse.models.scripted import Say, call, step_of
from longhouse.models.scripted_server import serve as serve_model
from longhouse.store.database import Database, open_database
from server_helpers import Process, free_port, launched_words, process
from webhook_receiver import Receiver, receiving

# What a process that dies before it has looked leaves behind: notes, and no word of how far the journals were read.
LOST = (
    "DELETE FROM webhook_deliveries",
    "DELETE FROM projection_cursors WHERE projection = 'webhooks'",
    "INSERT INTO webhook_news (session_id) SELECT id FROM sessions",
)
QUICK = ",".join(["0.1"] * 100)
WAITING = ["question.opened", "session.rested WAITING_FOR_CLARIFICATION"]
WHOLE = [*WAITING, "session.rested COMPLETED"]


def asks_first(body: Body) -> Say:
    """Asks in the words of who talks, and ends with the answer."""
    said = [text_of(one.content) for one in body.messages if isinstance(one, User)]
    if len(said) == 1 and not step_of(body.messages):
        return call("clarificationtool", questions=[f"{said[0]} Где? 在哪里？"])
    return call("finalanswertool", answer="Да.")


async def made(house: Process, **fields: Any) -> Any:
    async with house.http.post("/v1/webhooks", json=fields) as response:
        assert response.status == 201, await response.text()
        return await response.json()


async def log_of(house: Process, webhook: str, query: str = "") -> list[Any]:
    async with house.http.get(f"/v1/webhooks/{webhook}/deliveries?limit=200{query}") as response:
        assert response.status == 200, await response.text()
        return list((await response.json())["data"])


async def errors_of(house: Process, webhook: str) -> set[str]:
    """What went wrong at the last attempts."""
    return {one["last_error"] for one in await log_of(house, webhook) if one["last_error"]}


async def test_a_receiver_that_is_down_then_slow_then_broken_misses_nothing_though_its_sender_is_killed(
    dsn: str,
) -> None:
    port, receiver = free_port(), Receiver()
    async with AsyncExitStack() as stack:
        model = await stack.enter_async_context(serve_model(asks_first))
        settings = {
            "database_url": dsn,
            "llm_base_url": model.url,
            "llm_api_key": "sk-test-canary",
            "allow_egress": "127.0.0.0/8",
            "webhook_retry_delays": QUICK,
            "webhook_timeout": "1",
        }
        houses = [await stack.enter_async_context(process(**settings)) for _ in range(2)]
        db = await stack.enter_async_context(open_database(dsn))
        hook = await made(houses[0], url=f"http://127.0.0.1:{port}/hook", description="справочная")
        receiver.secret = hook["secret"]

        sessions = [(await houses[nth].say(words))["model"] for nth, words in enumerate(("Погода?", "天气？"))]
        await houses[1].say("Oslo", model=sessions[0])
        # A process that is held up for a second may have given up before it heard that nobody listens.
        async with asyncio.timeout(30):
            while not any(
                one.startswith("The receiver could not be reached") for one in await errors_of(houses[1], hook["id"])
            ):
                await asyncio.sleep(0.02)

        receiver.answers = [0] * 100  # nothing is answered in time
        await stack.enter_async_context(receiving(receiver, port))
        await receiver.until(lambda one: bool(one.held))
        holder = "SELECT r.pid FROM webhooks w JOIN workers r ON r.id = w.holder WHERE w.id = :id"
        sender = int(await db.value(holder, id=hook["id"]))
        [killed] = [one for one in houses if one.process.pid == sender]
        os.kill(sender, signal.SIGKILL)
        await killed.ended()
        [left] = [one for one in houses if one is not killed]

        late = (await left.say("Где дождь?"))["model"]
        await left.say("Bergen", model=late)
        async with asyncio.timeout(30):  # the receiver answers none of them: whoever sends has given up waiting
            while "The receiver did not answer within 1 seconds" not in await errors_of(left, hook["id"]):
                await asyncio.sleep(0.02)
        assert not receiver.got
        receiver.answers = [500, 500]
        await receiver.first(8)
        assert [receiver.of(one) for one in (*sessions, late)] == [WHOLE, WAITING, WHOLE]
        assert receiver.statuses.count(500) == 2
        assert 401 not in receiver.statuses, "the public library verifies each of them"
        asked = {one.data["session_id"]: one.data for one in receiver.got if one.type == "question.opened"}
        assert asked[sessions[1]]["text"] == "天气？ Где? 在哪里？"
        assert asked[sessions[1]]["kind"] == "clarification"

        async with asyncio.timeout(30):
            while {one["status"] for one in await log_of(left, hook["id"])} != {"delivered"}:
                await asyncio.sleep(0.02)
        ids = {one["id"] for one in await log_of(left, hook["id"])}
        assert ids == {one.id for one in receiver.got}
        await found_again_in_the_journals(left, hook["id"], receiver, db)
        assert {one.id for one in receiver.got} == ids
        await known_to_the_command_line(settings, receiver, db)
        said = "\n".join(line for one in houses for line in one.said)
        dump = await db.rows("SELECT body::text FROM journal")
        assert hook["secret"] not in said + str(dump) + msgspec.json.encode(await log_of(left, hook["id"])).decode()


async def found_again_in_the_journals(house: Process, hook: str, receiver: Receiver, db: Database) -> None:
    """Without a hint: by the sweep alone, and under the same ids."""
    ids, before = {one["id"] for one in await log_of(house, hook)}, len(receiver.got)
    for statement in LOST:
        await db.run(statement)
    await receiver.until(lambda one: {each.id for each in one.got[before:]} >= ids)


async def known_to_the_command_line(settings: dict[str, Any], receiver: Receiver, db: Database) -> None:
    async def said(*words: str) -> str:
        code, text = await launched_words("webhooks", *words, **settings)
        assert code == 0, text
        return text

    code, text = await launched_words("webhooks", "create", "http://10.0.0.1/hook", **settings)
    assert (code, "url cannot be used: 10.0.0.1 is not a public address" in text) == (1, True), text
    assert "LONGHOUSE_ALLOW_EGRESS=host:port of the server allows it" in text
    told = await said("create", receiver.url, "--event", "turn.failed", "--agent", "support", "--description", "日志")
    found, secret = re.search(r"wh_[0-9a-f]{32}", told), re.search(r"whsec_[A-Za-z0-9+/=]{44}", told)
    assert found
    assert secret
    receiver.secret = secret[0]
    listed = await said("list")
    assert f"{found[0]}  active, {receiver.url}, turn.failed, of support, 日志" in listed
    assert "whsec_" not in listed
    sent = re.search(r"msg_[0-9a-f]{32}", await said("test", found[0]))
    assert sent
    await receiver.until(lambda one: sent[0] in {each.id for each in one.got})
    async with asyncio.timeout(30):
        while "webhook.test, delivered, 1 attempts" not in await said("log", found[0]):
            await asyncio.sleep(0.05)
    assert sent[0] in await said("retry", found[0], sent[0])
    await receiver.until(lambda one: [each.id for each in one.got].count(sent[0]) == 2)
    await db.run("UPDATE webhooks SET status = 'paused' WHERE id = :id", id=found[0])
    for words in (("test", found[0]), ("retry", found[0], sent[0])):
        code, text = await launched_words("webhooks", *words, **settings)
        assert (code, "the webhook is paused: `longhouse webhooks resume" in text) == (1, True), text
    assert secret[0] not in await said("rotate", found[0], "--overlap", "60")
    assert "its former secret signs until" in await said("resume", found[0])
    assert "is deleted" in await said("delete", found[0])
    assert (await launched_words("webhooks", "log", found[0], **settings))[0] == 1
