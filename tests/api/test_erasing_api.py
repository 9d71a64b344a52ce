"""Who may erase what: a key its owner's, an admin everybody's; an owner goes with its keys, tools and templates."""

import asyncio
from typing import Any

import structlog
from key_helpers import Client, admin_of, client_of, keyed

from longhouse.models.scripted import call
from longhouse.store.database import Database
from server_helpers import Serving


async def mentions(db: Database, word: str) -> set[str]:
    """The tables that have the word in a row."""
    tables = [row[0] for row in await db.rows("SELECT tablename FROM pg_tables WHERE schemaname = current_schema()")]
    rows = {table: await db.rows(f"SELECT t::text FROM {table} t") for table in tables}
    return {table for table, found in rows.items() if any(word in row[0] for row in found)}


async def erased(client: Client, path: str) -> tuple[int, Any]:
    async with client.ask("DELETE", path) as response:
        return response.status, await response.json()


async def test_a_key_erases_what_is_its_owners_and_an_admin_whatever_there_is(serving: Serving) -> None:
    def end(body: Any) -> Any:
        return call("finalanswertool", answer="Done.")

    with structlog.testing.capture_logs() as logs:
        async with keyed(serving, end) as house:
            admin = admin_of(house)
            acme, globex = await client_of(house, "acme-7x1"), await client_of(house, "globex")
            boss = await client_of(house, "boss", "admin")
            talks = {}
            for client in (acme, globex):
                for user in ("ann/Энн", "bob"):
                    talks[client.id, user] = (await client.say("Hi", user=user, chat_id=f"c-{user[:3]}"))["model"]
            # Nobody reaches what is another owner's, and no key without rights reaches /admin.
            assert (await erased(globex, "/v1/users/cem"))[1]["error"]["code"] == "user_not_found"
            assert (await erased(globex, "/v1/conversations/none"))[1]["error"]["code"] == "conversation_not_found"
            for path in ("/admin/owners/acme-7x1", "/admin/owners/acme-7x1/users/bob", "/admin/retention"):
                method = "GET" if path.endswith("retention") else "DELETE"
                assert await globex.status(method, path) == 403
            assert await admin.status("DELETE", "/v1/users/%20") == 400
            assert await admin.status("DELETE", "/v1/users/a%00b") == 400
            # The same user and conversation of another owner are others.
            assert (await erased(globex, "/v1/users/ann/Энн"))[1]["counts"]["sessions"] == 1
            assert (await erased(globex, "/v1/conversations/c-bob"))[1]["object"] == "conversation.deleted"
            assert await house.db.value("SELECT count(*) FROM sessions") == 2
            assert (await erased(admin, "/admin/owners/acme-7x1/conversations/c-bob"))[1]["deleted"]
            # An owner: a stream of its key ends, its tools go, the key opens nothing.
            template = {"name": "clerk", "owner": "acme-7x1", "prompt_pack": {"system_prompt": "Secret sauce."}}
            tool = {
                "name": "stock", "owner": "acme-7x1", "description_short": "Secret stock.",
                "runtime_binding": {"remote_endpoint": "https://warehouse.example/stock"},
                "input_schema": {"type": "object", "properties": {}},
            }  # fmt: skip
            for kind, one in (("templates", template), ("tools", tool)):
                async with admin.ask("POST", f"/admin/{kind}", one) as response:
                    assert response.status == 201, await response.text()
            assert await admin.status("PUT", "/admin/owners/acme-7x1/retention", {"days": {"FAILED": 3}}) == 200
            async with admin.ask("POST", "/admin/tools/search", {"query": "secret stock"}) as response:
                assert response.status == 200
            session = talks[acme.id, "ann/Энн"]
            async with acme.ask("GET", f"/v1/sessions/{session}/events?until=never") as following:
                assert following.status == 200
                status, planned = await erased(admin, "/admin/owners/acme-7x1?dry_run=true")
                status, done = await erased(admin, "/admin/owners/acme-7x1")
                assert (status, done["counts"]) == (200, planned["counts"])
                kinds = ("sessions", "keys", "tools", "templates")
                assert [done["counts"][kind] for kind in kinds] == [1, 1, 2, 1], "a template is a tool for others, too"
                async with asyncio.timeout(20):
                    await following.read()
            assert await acme.status("GET", "/v1/sessions") == 401
            async with asyncio.timeout(20):
                while await mentions(house.db, "acme-7x1") - {"forgotten"} or await mentions(house.db, "ecret s"):
                    await asyncio.sleep(0.05)  # the index of tools follows
            assert (await erased(admin, "/admin/owners/acme-7x1"))[1]["error"]["code"] == "owner_not_found"
            assert (await erased(boss, "/admin/owners/boss"))[1]["error"]["code"] == "own_owner"
    told = str([one for one in logs if one["event"] in ("request", "erased")])
    assert "{user:path}" in told
    assert not any(name in told for name in ("Энн", "acme-7x1")), "the log of an erasure names nobody"
