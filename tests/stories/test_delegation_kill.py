"""Killed at any moment, agents that call agents go on where they were: nothing is lost, nothing happens twice."""

import asyncio
import random
from collections import Counter
from typing import Any

import aiohttp

from delegating_server import answer, appears, ask, cast, cast_house, last_result, results, task_of
from longhouse.agents.strategies.protocol import Body
from longhouse.journal import events
from longhouse.models.scripted import Say, calls, step_of
from longhouse.models.scripted_server import serve as serve_model
from longhouse.store import journals
from longhouse.store.database import Database
from server_helpers import Process

ROUNDS, KILLS = 4, 3


def slowly(reply: Say) -> Say:
    """Written in pieces, so that there is time to die in the middle."""
    return Say(calls=reply.calls, chunk=4, delay=0.004)


def master(body: Body) -> Say:
    step = step_of(body.messages)
    if step == ROUNDS:
        return answer(" ".join(results(body)))
    return slowly(calls(ask("ann", f"{step}"), ask("ben", f"{step}"), ask("ann", f"{step}+")))


def helper(body: Body) -> Say:
    """Ann asks cem, and passes on what it said."""
    if results(body):
        return slowly(last_result(body))
    return slowly(ask("cem", task_of(body)))


ROLES: dict[str, Any] = {
    "master": master,
    "ann": helper,
    "ben": lambda body: slowly(answer(f"ben{task_of(body)}")),
    "cem": lambda body: slowly(answer(f"cem{task_of(body)}")),
}
DONE = " ".join(f"cem{step} ben{step} cem{step}+" for step in range(ROUNDS))


async def test_a_tree_of_agents_survives_being_killed_again_and_again(dsn: str, db: Database) -> None:
    dice = random.Random()
    async with serve_model(cast(**ROLES)) as model:
        settings = {"database_url": dsn, "llm_base_url": model.url, "llm_api_key": "sk-test-canary"}
        async with cast_house(**settings) as first:
            saying = asyncio.create_task(first.say("Go", model="master"))
            root = str(await appears(db, "SELECT id FROM sessions WHERE side = 'root'"))
            await asyncio.sleep(dice.uniform(0, 0.4))
            first.kill()
            await first.ended()
            await asyncio.gather(saying, return_exceptions=True)
            assert isinstance(saying.exception(), aiohttp.ClientError)
        for _ in range(KILLS - 1):
            head = await db.value("SELECT sum(head) FROM sessions")
            async with cast_house(**settings) as again:
                # Some way into the work, wherever that is.
                await appears(
                    db, "SELECT sum(head) > :head OR NOT bool_or(due) FROM sessions", head=head + dice.randrange(12)
                )
                again.kill()
                await again.ended()
        async with cast_house(**settings) as last:
            assert (await completed(last, root))["result"] == DONE
    await asserts_nothing_is_lost_or_doubled(db)


async def completed(house: Process, root: str) -> Any:
    """The session in the end. A step that each kill has met rests as a question: a person lets it try again."""
    async with asyncio.timeout(60):
        while (shown := await house.until(root, "COMPLETED", "WAITING_FOR_APPROVAL", within=30))[
            "state"
        ] != "COMPLETED":
            for one in shown["questions"]:
                assert one["kind"] == "worker_lost"
                decision = {"call_id": one["name"], "decision": "did_not_happen"}
                async with house.http.post(f"/v1/sessions/{root}/approval", json=decision) as response:
                    assert response.status in (202, 409), await response.text()  # 409: it has just been decided
    return shown


async def asserts_nothing_is_lost_or_doubled(db: Database) -> None:
    prompts: Counter[tuple[str, str]] = Counter()
    made: Counter[tuple[str, str]] = Counter()
    for row in await db.rows("SELECT id, side FROM sessions"):
        told = await journals.read(db, row["id"])
        assert [one.seq for one in told] == list(range(1, len(told) + 1))
        kinds = Counter(events.kind_of(one.event) for one in told)
        assert kinds["Prompted"] == kinds["Started"] == kinds["Finished"]
        called = [one.event for one in told if isinstance(one.event, events.Called)]
        returned = [one.event for one in told if isinstance(one.event, events.Returned)]
        assert sorted(one.call for one in called) == sorted(one.call for one in returned)
        assert len({one.call for one in called}) == len(called)
        assert all(isinstance(one.outcome, events.Output) for one in returned)
        made.update((row["id"], one.call) for one in called if one.call_kind == "agent")
        asked = [one.event.reply_to for one in told if isinstance(one.event, events.Prompted) and one.event.reply_to]
        prompts.update((one.session, one.call) for one in asked)
    assert set(made.values()) == {1}
    assert prompts == made
    assert await db.value("SELECT count(*) FROM delegations WHERE outcome IS NULL") == 0
    assert await db.value("SELECT count(*) FROM delegations") == made.total()
    assert await db.value("SELECT count(*) FROM awaits") == 0
