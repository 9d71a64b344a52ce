"""What Redis has of a session that was forgotten goes: its keys, and what was put aside for them."""

import pytest
from looking import CHAT, OLD, SUB, assistant, get, mirrored, put, until, user
from redis.asyncio import Redis
from scribe import Scribe

from longhouse.store import forgetting
from longhouse.store.database import Database
from redis_server import RedisServer


async def names(redis: Redis) -> set[str]:
    return {key.decode() for key in await redis.keys() if not key.startswith(b"longhouse:mirror:")}


@pytest.mark.parametrize("away", ["nobody", "mirror", "redis"])
async def test_what_was_put_aside_is_forgotten_with_the_conversation(
    db: Database, redis: Redis, server: RedisServer, away: str
) -> None:
    """Whatever was away when it was forgotten: it is made up for."""
    scribe, theirs = Scribe(db), f"acme/{CHAT}"
    for key in (CHAT, SUB, f"{SUB}/b", theirs):
        await put(redis, key, OLD)
    async with mirrored(db, redis):
        root = await scribe.turn("master", "Hello", "Hi")
        plain = await scribe.task("analytic", "Look", "Seen")
        labelled = await scribe.task("analytic", "Look again", "Seen again", label="b")
        await scribe.turn("master", "Hello", "Hi", owner="acme")
        aside = {f"longhouse:before:{key}" for key in (CHAT, SUB, f"{SUB}/b", theirs)}
        every = {CHAT, SUB, f"{SUB}/b", theirs, *aside}
        await until(lambda: names(redis), every)
        if away == "nobody":
            await _forget(db, root, plain, labelled)
            await until(lambda: names(redis), {theirs, f"longhouse:before:{theirs}"})
            return
        if away == "redis":
            server.hang()
            await _forget(db, root, plain, labelled)
            server.go_on()
            await until(lambda: names(redis), {theirs, f"longhouse:before:{theirs}"})
            return
    await _forget(db, root, plain, labelled)
    assert await names(redis) == every
    async with mirrored(db, redis):
        await until(lambda: names(redis), {theirs, f"longhouse:before:{theirs}"})


async def _forget(db: Database, *sessions: str) -> None:
    for session in sessions:
        assert await forgetting.forget(db, session, "local")


async def test_keys_under_a_label_go_although_no_label_is_kept_and_others_are_written_anew(
    db: Database, redis: Redis
) -> None:
    scribe = Scribe(db)
    gone = await scribe.task("analytic", "the divorce", "a long answer", label="b")
    for label in ("", "c"):
        await scribe.task("analytic", f"plain {label}", "ok", label=label)
    await scribe.task("analytic", "elsewhere", "ok", label="b", conversation="1234")
    await scribe.task("analytic", "theirs", "ok", label="b", owner="acme")
    async with mirrored(db, redis):
        kept = {SUB, f"{SUB}/c", "subagent:analytic:1234/b", f"acme/{SUB}/b"}
        await until(lambda: names(redis), {*kept, f"{SUB}/b"})
    await _forget(db, gone)
    assert await db.value("SELECT count(*) FROM forgotten WHERE label <> ''") == 0
    # Somebody else has the name since, and is shorter: it is not taken for an older copy.
    await scribe.prompt("analytic", "anew", side="sub", label="b")
    async with mirrored(db, redis):
        await until(lambda: get(redis, f"{SUB}/b"), [])
        await until(lambda: names(redis), {*kept, f"{SUB}/b"})
        await until(lambda: get(redis, f"{SUB}/c"), [user("plain c"), assistant("ok")])
