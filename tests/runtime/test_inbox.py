"""Whatever reaches a session from outside is committed, and then the worker and the followers hear of it, once."""

import asyncio
import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from engine_fixture import Room

from longhouse.api import auth, wire
from longhouse.api.openai.session_resolver import SessionResolver
from longhouse.api.openai.turn_handle import TurnHandle
from longhouse.errors import AlreadyReturned
from longhouse.journal import events
from longhouse.journal.session import State
from longhouse.models.scripted import call
from longhouse.runtime.bus.items import Gone, Item, JournalGrew
from longhouse.runtime.bus.local import Bus, Subscription
from longhouse.runtime.inbox import Inbox, with_outcome
from longhouse.store import journals, leases
from longhouse.store.catalog.catalog import Catalog
from longhouse.store.database import Database, Transaction
from longhouse.store.requests import RequestIdentity
from server_helpers import AGENT, House, Serving, user

ASK = call("clarificationtool", questions=["Which city?"])
DONE = call("finalanswertool", answer="Rain in Oslo.")


@contextmanager
def heard_by(bus: Bus, session_id: str) -> Iterator[tuple[list[str], Subscription]]:
    """Who is woken meanwhile, and what a follower of this session hears."""
    woken: list[str] = []
    bus.on_wake.append(woken.append)
    with bus.subscribed(session_id) as subscription:
        yield woken, subscription


async def taken(subscription: Subscription) -> list[Item]:
    async with asyncio.timeout(20):
        return await subscription.take()


async def test_each_message_is_told_once_with_the_head_that_it_made(db: Database) -> None:
    room = Room(db, [ASK])
    inbox, asking = Inbox(db, room.bus), await room.run()
    assert asking.state is State.WAITING_FOR_CLARIFICATION
    prompt = events.Prompted(trace="later", content=("And tomorrow?",))
    with heard_by(room.bus, asking.id) as (woken, follower):
        answered = await inbox.answer(asking, "1-action-0", "Oslo", by="user")
        assert (answered.session.head, answered.is_behind) == (asking.head + 1, False)
        assert await taken(follower) == [JournalGrew(asking.head + 1)]
        # It is queued by somebody who has not heard of the answer: he gets the session with both.
        queued = await inbox.prompt(asking, prompt)
        assert (queued.session.head, queued.is_behind) == (asking.head + 2, True)
        assert queued.session == await journals.load(db, asking.id)
        assert await taken(follower) == [JournalGrew(asking.head + 2)]
        cancelled = await inbox.cancel(queued.session, by="user")
        assert [one.prompt.trace for one in cancelled.queue] == ["later"]
        assert await taken(follower) == [JournalGrew(cancelled.head)]
        assert woken == [asking.id] * 3
        assert await inbox.forget(asking.id, "local")
        assert await taken(follower) == [Gone()]
        assert not await inbox.forget(asking.id, "local")


def test_the_outcome_that_a_decision_gives_is_from_who_decided() -> None:
    decisions: tuple[events.Decision, ...] = ("happened", "give_up", "deny")
    for decision in decisions:
        decided = events.Decided(call="1-action-0", decision=decision, by="key_1", user="admin")
        [_, returned] = with_outcome(decided, "paid")
        assert isinstance(returned, events.Returned)
        assert (returned.by, returned.user) == ("key_1", None)


async def test_a_prompt_in_anothers_transaction_begins_the_conversation_anew_where_its_session_was_deleted(
    db: Database,
) -> None:
    """As a schedule fires: its session may have been deleted since it was found."""
    room = Room(db, [DONE])
    inbox, first = Inbox(db, room.bus), await room.run()
    opened = events.Opened(agent=first.agent, version=1, owner=first.owner, user=first.owner, conversation="again")

    async def fired(session_id: str | None, run: str, *, fails: bool = False) -> journals.Placed:
        prompt = events.Prompted(trace=run, content=("Good morning.",))
        accepted = RequestIdentity(owner=first.owner, digest=run)

        async def write(tx: Transaction) -> journals.Placed:
            placed = await inbox.prompt_within(
                tx, session_id, opened, prompt, task="Good morning.", accepted=accepted, most_waiting=9
            )
            if fails:
                raise LookupError("something else in the transaction was refused")
            return placed

        return await db.together(write)

    with heard_by(room.bus, first.id) as (woken, follower):
        with pytest.raises(LookupError):
            await fired(first.id, "refused", fails=True)
        assert (await journals.load(db, first.id)).head == first.head
        there = await fired(first.id, "there")
        assert (there.session_id, there.seq, woken) == (first.id, first.head + 1, []), "hints come after the commit"
        inbox.notify(there)
        assert woken == [first.id]
        assert await taken(follower) == [JournalGrew(there.seq)]
    await inbox.forget(first.id, first.owner)
    anew = await fired(first.id, "gone")
    assert anew.session_id != first.id
    began = await journals.load(db, anew.session_id)
    assert (began.conversation, [one.prompt.trace for one in began.queue]) == ("again", ["gone"])
    again = await fired(None, "next")
    assert (again.session_id, again.seq) == (anew.session_id, anew.seq + 1), "the conversation has one session"


async def test_what_is_refused_wakes_nobody(db: Database) -> None:
    room = Room(db, [ASK, DONE])
    inbox, asking = Inbox(db, room.bus), await room.run()
    await room.answer(asking.id, "1-action-0", "Bergen")
    aside = events.Prompted(trace="t", content=("Quick!",), aside=True)
    decided = events.Decided(call="1-action-0", decision="deny", by="user")
    with heard_by(room.bus, asking.id) as (woken, follower):
        with pytest.raises(AlreadyReturned):
            await inbox.answer(asking, "1-action-0", "Oslo", by="user")
        with pytest.raises(journals.NotThere):
            await inbox.prompt(asking, aside)
        with pytest.raises(journals.NotThere):
            await inbox.decide(asking, decided)
        follower.put(Gone())
        assert (woken, await taken(follower)) == ([], [Gone()])


async def test_a_session_is_claimed_where_it_is_opened_also_if_its_client_leaves_meanwhile(
    serving: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    opening, may_open, claims = asyncio.Event(), asyncio.Event(), list[str]()
    really_open, really_claim = journals.open, leases.claim

    async def open_slowly(*args: Any, **more: Any) -> journals.Placed:
        opening.set()
        await may_open.wait()
        if refusals:
            raise refusals.pop()
        return await really_open(*args, **more)

    async def claim(db: Database, session_id: str, *args: Any, **more: Any) -> leases.Claim:
        claims.append(session_id)
        return await really_claim(db, session_id, *args, **more)

    monkeypatch.setattr(journals, "open", open_slowly)
    monkeypatch.setattr(leases, "claim", claim)
    refusals = [ConnectionError("Postgres is away"), asyncio.CancelledError()]

    async def has_caught_up() -> None:
        """A sweep that came while the only slot was reserved takes what it has missed first."""
        worker = house.app.bus.on_open[0].__self__  # type: ignore[attr-defined]
        async with asyncio.timeout(20):
            while worker._is_behind or not worker._free:
                await asyncio.sleep(0.01)

    async with serving([DONE] * 4, worker_slots=1) as house:
        may_open.set()
        for _ in range(2):  # the slot that was reserved is free again
            await has_caught_up()
            with pytest.raises((ConnectionError, asyncio.CancelledError)):
                await attached(house)
        await has_caught_up()
        left = await attached(house)
        assert (await house.until(left.session.id, "COMPLETED"))["result"] == "Rain in Oslo."
        for client in ("leaves", "stays"):
            await has_caught_up()
            opening.clear()
            may_open.clear()
            asking = asyncio.create_task(attached(house))
            await opening.wait()
            assert house.app.bus.reserve("another") is None  # there is one slot
            if client == "leaves":
                asking.cancel()
                await asyncio.wait([asking])
            may_open.set()
            async with asyncio.timeout(20):
                while await house.db.value("SELECT count(*) FROM sessions WHERE state = 'COMPLETED'") < 2:
                    await asyncio.sleep(0.01)
            assert asking.cancelled() or client == "stays"
            await house.db.run("DELETE FROM sessions WHERE id <> :id", id=left.session.id)
        kinds = await house.db.rows("SELECT DISTINCT kind FROM journal WHERE kind = 'Resumed' OR fence <> 1")
        assert (claims, kinds) == ([], [])
        monkeypatch.undo()
        # Whoever writes again is claimed as ever.
        await house.say("And tomorrow?", model=left.session.id)
        assert await house.db.value("SELECT fence FROM sessions") == 2


async def attached(house: House) -> TurnHandle:
    turns = SessionResolver(house.db, Catalog(house.db), Inbox(house.db, house.app.bus))
    request = wire.ChatRequest.model_validate({"model": AGENT, "messages": [user("Will it rain?")]})
    return await turns.attach(auth.LOCAL, request, b"", {})


async def test_every_door_wakes_the_worker_once_and_a_retry_never(serving: Serving) -> None:
    async with serving([ASK, DONE, ASK, DONE, ASK, DONE, DONE]) as house:
        heard: list[str] = []
        house.app.bus.on_wake.append(heard.append)
        said, key = await house.say("Will it rain?"), {"idempotency-key": "k1"}
        session_id = said["model"]
        assert heard == []  # it is claimed where it is opened
        await posted(house, f"/v1/sessions/{session_id}/clarification", {"answer": "Oslo"})
        await house.until(session_id, "COMPLETED")
        assert heard == [session_id] * 1
        # The answer in the chat, and the same request again.
        await house.say("And tomorrow?", model=session_id)
        body = {"model": session_id, "messages": [user("Oslo")]}
        first, again = [await posted(house, "/v1/chat/completions", body, key) for _ in range(2)]
        assert json.loads(first)["choices"] == json.loads(again)["choices"]
        assert heard == [session_id] * 3
        await house.say("And on Sunday?", model=session_id)
        await posted(house, f"/agents/{session_id}/provide_clarification", {"clarifications": "Oslo"})
        assert heard == [session_id] * 5
        async with asyncio.timeout(20):
            while house.app.bus.followed:  # until the last request is over
                await asyncio.sleep(0.01)


async def posted(house: House, path: str, body: dict[str, Any], headers: dict[str, str] | None = None) -> bytes:
    async with house.http.post(path, json=body, headers=headers) as response:
        assert response.status < 300, await response.text()
        return await response.read()
