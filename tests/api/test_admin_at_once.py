"""Admins who change the same thing at the same time."""

import asyncio
from typing import Any

from key_helpers import Client, admin_of, keyed

from longhouse.api.admin.docs import TEMPLATE, TOOL
from server_helpers import Serving

CLERK = "/admin/templates/warehouse_clerk"


async def test_of_patches_at_once_none_is_lost(serving: Serving) -> None:
    async with keyed(serving) as house:
        admin = admin_of(house)
        for round_ in range(3):
            await admin.status("POST", "/admin/templates", {**TEMPLATE, "name": f"clerk{round_}"})
            patches: list[dict[str, Any]] = [
                {"execution_policy": {"max_iterations": 3}},
                {"execution_policy": {"max_searches": 5}},
                {"follow": "pinned"},
                {"owner": "ann"},
            ]
            path = f"/admin/templates/clerk{round_}"
            told = await asyncio.gather(*(admin.status("PATCH", path, patch) for patch in patches))
            assert set(told) <= {200, 201}
            shown = await admin.got(path)
            policy = shown["execution_policy"]
            assert (policy["max_iterations"], policy["max_searches"]) == (3, 5)
            assert (shown["follow"], shown["owner"]) == ("pinned", "ann")


async def test_of_names_that_look_the_same_one_is_taken_whoever_comes_first(serving: Serving) -> None:
    async with keyed(serving) as house:
        admin = admin_of(house)
        for round_ in range(5):
            names = [f"race{round_}", f"Race{round_}", f"RACE{round_}"]
            posts = (admin.status("POST", "/admin/tools", {**TOOL, "name": name}) for name in names)
            told = await asyncio.gather(*posts)
            assert sorted(told) == [201, 409, 409]
        status, error = await admin.refused("POST", "/admin/tools", [{**TOOL, "name": "rAcE0"}])
        assert (status, error["code"], error["param"]) == (409, "name_taken", "[0].name")


async def test_names_that_came_side_by_side_before_can_both_be_changed(serving: Serving) -> None:
    async with serving() as house:
        await house.db.run(
            """WITH name AS (SELECT unnest(ARRAY['depot.stock', 'depot.Stock']) AS name),
               named AS (INSERT INTO catalog_names (kind, name, active) SELECT 'tool', name, 1 FROM name)
               INSERT INTO catalog_versions (kind, name, version, digest, descriptor, published_by)
               SELECT 'tool', name, 1, 'x', json_build_object('name', name, 'description_short', 'A stock.',
                      'runtime_binding', json_build_object('mcp', name)), 'mcp:depot' FROM name"""
        )
        for name in ("depot.stock", "depot.Stock"):
            assert await Client(house).status("PATCH", f"/admin/tools/{name}", {"needs_approval": True}) == 201
        status, _ = await Client(house).refused(
            "POST", "/admin/tools", {**TOOL, "name": "depot.STOCK", "runtime_binding": {"mcp": "depot.STOCK"}}
        )
        assert status == 409
