"""Retention: sessions that are at rest for too long go with their sub-agents, by owner and state; nobody else does."""

import asyncio
from typing import Any

from delegating_server import ask, in_steps, playing
from longhouse.models.scripted import Say, call
from longhouse.runtime.cleanup.retention import BEGINNING, Retention
from longhouse.runtime.inbox import Inbox
from longhouse.store.erasing import erasure, retention
from server_helpers import House, Serving, content


async def age(house: House, days: int, conversation: str) -> None:
    await house.db.run(
        """
        UPDATE sessions SET created_at = created_at - make_interval(days => :days),
                            updated_at = updated_at - make_interval(days => :days)
        WHERE conversation_id = :conversation
        """,
        days=days,
        conversation=conversation,
    )


async def left(house: House) -> list[str]:
    return [row[0] for row in await house.db.rows("SELECT DISTINCT conversation_id FROM sessions ORDER BY 1")]


def masters(body: Any) -> Say:
    task = str(body.messages[-1])
    return call("clarificationtool", questions=["Which?"]) if "wait" in task else in_steps(
        ask("ann", "Help"), call("finalanswertool", answer="Done.")
    )(body)  # fmt: skip


ROLES = {"master": masters, "ann": in_steps(call("finalanswertool", answer="Helped."))}


async def test_what_rests_for_too_long_goes_with_its_children_and_who_waits_or_moves_stays(serving: Serving) -> None:
    async with playing(serving, ROLES) as house:
        inbox = Inbox(house.db, house.app.bus)
        for chat in ("done", "failed", "fresh", "waits", "outside"):
            await house.say("wait" if chat == "waits" else "Go", model="master", chat_id=chat)
        note = {"source": "user", "source_type": "user", "target": "master", "target_type": "agent", "type": "input"}
        for chat in ("done", "outside"):
            path, body = f"/v1/conversations/{chat}/interactions", {**note, "content": "By phone"}
            async with house.http.post(path, json=body) as response:
                assert response.status == 201
        for chat in ("done", "failed", "waits"):
            await age(house, 40, chat)
        await house.db.run("UPDATE sessions SET state = 'FAILED' WHERE conversation_id = 'failed' AND side = 'root'")

        await Retention(inbox).sweep()
        assert len(await left(house)) == 5, "without a setting nothing goes"
        await Retention(inbox, days=50).sweep()
        assert len(await left(house)) == 5
        # The owner's own policy, by state; the default for the rest.
        async with house.http.put(
            "/admin/owners/local/retention", json={"days": {"COMPLETED": 30, "FAILED": None}}
        ) as response:
            assert (response.status, (await response.json())["days"]) == (200, {"COMPLETED": 30, "FAILED": None})
        # One at a time: while another process is at it, this one leaves it alone.
        async with house.db.sole(retention.SOLE_ERASER) as is_ours:
            assert is_ours
            await Retention(inbox).sweep()
            assert len(await left(house)) == 5
        # A prompt that comes at the last moment keeps its session.
        page = await retention.page(house.db, default=None, least=30, after=BEGINNING)
        [old] = [one for one in page if one.is_over]
        assert await erasure.forget(house.db, old.id, "local", at_rest_since=old.created_at) is None
        await Retention(inbox).sweep()
        outside = "SELECT count(*) FROM sessions WHERE conversation_id = 'done' AND side = 'external'"
        assert (await house.db.value(outside), await left(house)) == (
            1,
            ["done", "failed", "fresh", "outside", "waits"],
        )
        await Retention(inbox).sweep()
        assert await left(house) == ["failed", "fresh", "outside", "waits"], "now nobody was left there"
        assert await house.db.value("SELECT count(*) FROM sessions WHERE agent = 'ann'") == 3, "children go with them"
        # A child that did something lately, or is at work, keeps its root.
        await age(house, 40, "outside")
        await house.db.run("UPDATE sessions SET updated_at = now() WHERE conversation_id = 'outside' AND agent = 'ann'")
        await Retention(inbox, days=1).sweep()
        assert await left(house) == ["failed", "fresh", "outside", "waits"]
        await house.db.run("UPDATE sessions SET updated_at = created_at WHERE conversation_id = 'outside'")
        async with house.http.get("/admin/retention") as response:
            listed = await response.json()
            assert listed == {
                "default_days": None,
                "data": [{"owner": "local", "days": {"COMPLETED": 30, "FAILED": None}}],
            }
        async with house.http.delete("/admin/owners/local/retention") as response:
            assert response.status == 204
        async with house.http.delete("/admin/owners/local/retention") as response:
            assert (response.status, (await response.json())["error"]["code"]) == (404, "policy_not_found")
        for _ in range(2):
            await Retention(inbox, days=30).sweep()
        assert await left(house) == ["fresh", "waits"], "who waits for a person never goes"
        sides = await house.db.rows("SELECT side FROM sessions WHERE side = 'external'")
        assert not sides, "what was added from outside went when nobody was left"
        # Turns go on meanwhile.
        talking = asyncio.create_task(house.say("Go", model="master", chat_id="fresh"))
        await Retention(inbox, days=30).sweep()
        assert content(await talking) == "Done."
