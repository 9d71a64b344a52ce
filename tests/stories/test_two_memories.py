"""Two processes have one conversation in memory, and one of them is killed: whoever goes on knows all of it, once."""

import asyncio
from typing import Any

from delegating_server import answer, appears, ask, cast, cast_house, requests_of, results, task_of
from longhouse.agents.strategies.protocol import Body
from longhouse.models.scripted import Say
from longhouse.models.scripted_server import serve as serve_model
from longhouse.store import journals
from longhouse.store.database import Database

TASKS = ("Запомни: красный", "记住：蓝色", "Запомни: é\u2028", "记住：\U0001f600", "Что было?")


def slowly(reply: Say) -> Say:
    """Written in pieces, so that there is time to die in the middle."""
    return Say(calls=reply.calls, chunk=2, delay=0.02)


def master(body: Body) -> Say:
    return answer(results(body)[-1]) if results(body) else ask("ann", task_of(body))


ROLES: dict[str, Any] = {"master": master, "ann": lambda body: slowly(answer(f"Помню: {task_of(body)}"))}


def tasks_in(messages: list[dict[str, Any]]) -> list[str]:
    return [one["content"] for one in messages if one["role"] == "user"]


async def test_a_conversation_and_its_sub_agent_go_on_in_whichever_process_is_left(dsn: str, db: Database) -> None:
    async with serve_model(cast(**ROLES)) as model:
        settings = {"database_url": dsn, "llm_base_url": model.url, "llm_api_key": "sk-test-canary"}
        spoken: dict[str, Any] = {"model": "master", "chat_id": "c"}
        async with cast_house(**settings) as there:
            async with cast_house(**settings) as here:
                for house, task in zip((here, there), TASKS[:2], strict=True):
                    assert (await house.say(task, **spoken))["choices"][0]["message"]["content"] == f"Помню: {task}"
                lost = asyncio.create_task(here.say(TASKS[2], **spoken))
                # Ann has begun to answer, in one of the two.
                await appears(
                    db, "SELECT count(*) = 3 FROM journal j JOIN sessions s ON s.id = j.session_id"
                    " WHERE s.agent = 'ann' AND j.kind = 'Started'",
                )  # fmt: skip
                here.kill()
                await here.ended()
                await asyncio.gather(lost, return_exceptions=True)
            assert (await there.say(TASKS[3], **spoken))["choices"][0]["message"]["content"] == f"Помню: {TASKS[3]}"
            async with cast_house(**settings) as again:
                said = await again.say(TASKS[4], **spoken)
                assert said["choices"][0]["message"]["content"] == f"Помню: {TASKS[4]}"
        for name in ("master", "ann"):
            assert tasks_in(requests_of(model, name)[-1]) == list(TASKS), name
    sessions = await db.rows("SELECT id, agent FROM sessions ORDER BY side")
    assert [row["agent"] for row in sessions] == ["master", "ann"]
    for row in sessions:
        told = await journals.read(db, row["id"])
        assert [one.seq for one in told] == list(range(1, len(told) + 1))
        assert (await journals.load(db, row["id"])).state == "COMPLETED"
