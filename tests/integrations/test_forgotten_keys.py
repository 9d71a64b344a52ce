"""What Redis has of a session that was forgotten goes: its keys, and what was put aside for them."""

import pytest
from journal_writer import Scribe
from redis.asyncio import Redis
from redis_helpers import CHAT, OLD, SUB, assistant, get, mirrored, names, put, until, user

from longhouse.store.database import Database
from longhouse.store.erasing import erasure
from redis_server import RedisServer


async def visible(redis: Redis) -> set[str]:
    return {name for name in await names(redis) if not name.startswith("longhouse:mirror:")}


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
        await until(lambda: visible(redis), every)
        if away == "nobody":
            await _forget(db, root, plain, labelled)
            await until(lambda: visible(redis), {theirs, f"longhouse:before:{theirs}"})
            return
        if away == "redis":
            server.hang()
            await _forget(db, root, plain, labelled)
            server.go_on()
            await until(lambda: visible(redis), {theirs, f"longhouse:before:{theirs}"})
            return
    await _forget(db, root, plain, labelled)
    assert await visible(redis) == every
    async with mirrored(db, redis):
        await until(lambda: visible(redis), {theirs, f"longhouse:before:{theirs}"})


async def _forget(db: Database, *sessions: str) -> None:
    for session in sessions:
        assert await erasure.forget(db, session, "local")


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
        await until(lambda: visible(redis), {*kept, f"{SUB}/b"})
    await _forget(db, gone)
    assert await db.value("SELECT count(*) FROM forgotten WHERE label = 'b'") == 0
    # Somebody else has the name since, and is shorter: it is not taken for an older copy.
    await scribe.prompt("analytic", "anew", side="sub", label="b")
    async with mirrored(db, redis):
        await until(lambda: get(redis, f"{SUB}/b"), [])
        await until(lambda: visible(redis), {*kept, f"{SUB}/b"})
        await until(lambda: get(redis, f"{SUB}/c"), [user("plain c"), assistant("ok")])


async def test_what_belongs_to_others_stays_when_a_session_of_the_same_conversation_is_forgotten(
    db: Database, redis: Redis
) -> None:
    """Keys of another program that were never ours, and what was put aside for sessions that stay."""
    scribe, foreign = Scribe(db), {"chat_history:777", "subagent:analytic:777"}
    for key in (SUB, f"{SUB}/c", *foreign):
        await put(redis, key, OLD)
    for label in ("", "c"):
        await scribe.task("analytic", f"plain {label}", "ok", label=label)
    brief = await scribe.turn("master", "Hello", "Hi", conversation="777", label="ephemeral/1")
    gone = [brief] + [
        await scribe.task("analytic", "the divorce", "ok", label=label, conversation=conversation)
        for label, conversation in (("b", "12345"), ("b", "777"), ("ephemeral/1", "777"))
    ]
    kept = {SUB, f"{SUB}/c", f"longhouse:before:{SUB}", f"longhouse:before:{SUB}/c", *foreign}
    async with mirrored(db, redis):
        await until(lambda: visible(redis), {*kept, f"{SUB}/b", "subagent:analytic:777/b"})
        await _forget(db, *gone)
        await until(lambda: visible(redis), kept)
    for key in foreign:
        assert await get(redis, key) == OLD
