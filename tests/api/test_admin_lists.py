"""What operators list: names of the catalog, and the sessions, instances and workers of everybody."""

from typing import Any
from urllib.parse import quote

from attack_helpers import ask
from key_helpers import Client, admin_of, client_of, keyed
from test_admin_tools import sent, tool

from longhouse.api.admin import docs
from server_helpers import House, Serving


async def names(house: House, asked: str) -> tuple[list[str], Any]:
    _, page = await sent(house, "GET", f"/admin/tools?{asked}")
    return [one["name"] for one in page["data"]], page["next"]


async def test_names_are_listed_in_pages_in_alphabetical_order(serving: Serving) -> None:
    async with serving() as house:
        await sent(house, "POST", "/admin/tools", [tool(name=f"zz_{n}") for n in range(5)])
        await sent(house, "POST", "/admin/tools?activate=false", tool(name="zz_draft"))
        await sent(house, "DELETE", "/admin/tools/zz_3")
        first, following = await names(house, "limit=3&before=zz")
        assert (first, following) == (["zz_0", "zz_1", "zz_2"], "zz_2")
        second, following = await names(house, f"limit=3&before={following}")
        assert (second, following) == (["zz_4", "zz_draft"], None)
        assert (await names(house, "before=zz&inactive=false"))[0] == ["zz_0", "zz_1", "zz_2", "zz_4"]
        _, page = await sent(house, "GET", "/admin/tools?before=zz_4")
        [draft] = page["data"]
        assert (draft["version"], draft["is_active"], draft["latest"]) == (1, False, 1)
        for wrong in ("limit=0", "limit=201", "inactive=maybe", "before=%00", "state=x", "before=a/b"):
            assert (await Client(house).refused("GET", f"/admin/tools?{wrong}"))[0] == 400, wrong


async def test_sessions_of_all_owners_are_listed_and_filtered(serving: Serving) -> None:
    async with keyed(serving, ask) as house:
        admin, ann, bob = admin_of(house), await client_of(house, "ann"), await client_of(house, "bob")
        for client, conversation in ((ann, "one"), (bob, "one"), (ann, "two")):
            await client.say("hi", metadata={"conversation_id": conversation})
        await bob.say("hi", model="sgr_agent", metadata={"conversation_id": "three"})

        async def found(asked: str) -> list[tuple[str, str]]:
            page = await admin.got(f"/admin/sessions?{asked}")
            return [(one["owner"], one["conversation_id"]) for one in page["data"]]

        everything = [("bob", "three"), ("ann", "two"), ("bob", "one"), ("ann", "one")]
        assert await found("") == everything
        assert await found("owner=ann") == [("ann", "two"), ("ann", "one")]
        assert await found("conversation_id=one") == [("bob", "one"), ("ann", "one")]
        assert await found("template=sgr_agent") == [("bob", "three")]
        assert await found("state=WAITING_FOR_CLARIFICATION&owner=bob&template=tool_calling_agent") == [("bob", "one")]
        assert await found("state=COMPLETED") == []
        page = await admin.got("/admin/sessions?limit=3")
        assert (page["has_more"], set(page["data"][0])) == (True, set(docs.SESSION))
        assert await found(f"limit=3&before={page['next']}") == everything[3:]
        middle = quote(page["data"][1]["created_at"])
        assert await found(f"since={middle}") == everything[:2]
        assert await found(f"until={middle}") == everything[2:]
        for wrong in ("state=ASLEEP", "since=today", "owner=a/b", "before=x", "parent=x", "limit=9999", "template=%00"):
            assert (await admin.refused("GET", f"/admin/sessions?{wrong}"))[0] == 400, wrong
        assert (await ann.refused("GET", "/admin/sessions"))[0] == 403


async def test_the_roster_of_instances_is_listed_and_filtered(serving: Serving) -> None:
    async with serving() as house:
        await house.db.run("""
            INSERT INTO agent_instances
            SELECT 'clerk-' || n, CASE WHEN n < 3 THEN 'clerk' ELSE 'cook' END, 1,
                   (ARRAY['IDLE', 'BUSY', 'RESETTING', 'ERROR', 'STOPPED'])[n + 1], 'host', 'worker_' || n % 2, NULL,
                   now() + make_interval(mins => n), '{"served": 1}'
            FROM generate_series(0, 4) n""")

        async def found(asked: str) -> list[str]:
            _, page = await sent(house, "GET", f"/admin/instances?{asked}")
            return [one["instance_id"].removeprefix("clerk-") for one in page["data"]]

        assert (await found(""))[:4] == ["4", "3", "2", "1"]
        assert await found("template=cook") == ["4", "3"]
        assert await found("status=RESETTING") == ["2"]
        assert await found("template=cook&worker=worker_1") == ["3"]
        _, page = await sent(house, "GET", "/admin/instances?template=clerk&limit=1")
        assert await found(f"template=clerk&limit=2&before={page['next']}") == ["1", "0"]
        assert (set(page["data"][0]), page["data"][0]["metrics"]) == (set(docs.INSTANCE), {"served": 1})
        for wrong in ("status=ASLEEP", "node=x", "before=x", "worker=%00"):
            assert (await Client(house).refused("GET", f"/admin/instances?{wrong}"))[0] == 400, wrong


async def test_workers_are_listed_with_what_they_hold(serving: Serving) -> None:
    async with serving() as house, serving() as other:
        _, page = await sent(house, "GET", "/admin/workers")
        assert [one["worker_id"] for one in page["data"]] == [other.app.worker.id, house.app.worker.id]
        assert [(one["is_alive"], one["slots"], one["sessions"]) for one in page["data"]] == [(True, 8, 0)] * 2
        assert set(page["data"][0]) == set(docs.WORKER)
        _, first = await sent(house, "GET", "/admin/workers?limit=1")
        _, second = await sent(house, "GET", f"/admin/workers?limit=1&before={first['next']}")
        paged = [one["worker_id"] for one in (*first["data"], *second["data"])]
        assert (paged, second["has_more"]) == ([one["worker_id"] for one in page["data"]], False)


async def test_every_admin_route_is_described_with_examples_that_hold(serving: Serving) -> None:
    async with serving() as house:
        async with house.http.get("/openapi.json") as response:
            paths = (await response.json())["paths"]
        operations = [
            (method, path, operation)
            for path, methods in paths.items()
            # What is below a session is that of /v1 once more, described as it is there.
            if path.startswith("/admin/") and not path.startswith("/admin/sessions/{session_id}")
            for method, operation in methods.items()
        ]
        assert len(operations) > 25
        for method, path, operation in operations:
            assert operation["summary"], path
            assert operation["description"], path
            if method in ("put", "patch"):
                assert "requestBody" in operation, path
            for told in [operation.get("requestBody"), *operation["responses"].values()]:
                for kind in (told or {}).get("content", {}).values():
                    assert "example" in kind or "$ref" in str(kind), (method, path)
            done = [one for status, one in operation["responses"].items() if status.startswith("2")]
            assert any("content" in one for one in done) or "204" in operation["responses"], (method, path)
        for kind in ("tool", "template"):
            body = paths[f"/admin/{kind}s"]["post"]["requestBody"]["content"]["application/json"]
            assert (await sent(house, "POST", f"/admin/{kind}s", body["example"]))[0] == 201
            name = body["example"]["name"]
            patch = paths[f"/admin/{kind}s/{{name}}"]["patch"]["requestBody"]["content"]["application/json"]["example"]
            assert (await sent(house, "PATCH", f"/admin/{kind}s/{name}", patch))[0] == 201
            _, shown = await sent(house, "GET", f"/admin/{kind}s/{name}")
            assert set(docs.shown(kind)) <= set(shown)
