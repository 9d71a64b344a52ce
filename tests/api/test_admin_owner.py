"""Whose a template or a tool is stays as it is until an admin names another owner."""

from typing import Any

from key_helpers import Client, admin_of, client_of, keyed

from longhouse.api.admin.docs import TEMPLATE, TOOL
from server_helpers import Serving

TEMPLATES, TOOLS = "/admin/templates", "/admin/tools"
CLERK, AGENT = f"{TEMPLATES}/warehouse_clerk", f"{TOOLS}/agent.warehouse_clerk"


def template(**fields: Any) -> dict[str, Any]:
    return {**TEMPLATE, **fields}


async def sees(client: Client) -> bool:
    return "warehouse_clerk" in {one["id"] for one in (await client.got("/v1/models"))["data"]}


async def owners(admin: Client) -> set[str | None]:
    """Whose it is, wherever it is shown."""
    listed = next(one for one in (await admin.got(TEMPLATES))["data"] if one["name"] == "warehouse_clerk")
    versions = (await admin.got(f"{CLERK}/versions"))["data"]
    shown = [await admin.got(CLERK), await admin.got(f"{CLERK}@1"), await admin.got(AGENT), listed, *versions]
    return {one["owner"] for one in shown}


async def test_what_was_made_private_stays_private_through_every_other_change(serving: Serving) -> None:
    async with keyed(serving) as house:
        ann, bob, admin = await client_of(house, "ann"), await client_of(house, "bob"), admin_of(house)
        await admin.status("POST", TEMPLATES, TEMPLATE)
        assert (await sees(bob), await owners(admin)) == (True, {None})
        changes: list[tuple[str, str, Any]] = [
            ("PATCH", CLERK, {"owner": "ann"}),
            ("PATCH", CLERK, {"prompt_pack": {"system_prompt": "You are new."}}),
            ("POST", f"{TEMPLATES}?activate=false", template(follow="pinned")),
            ("POST", f"{TEMPLATES}?activate=false", template(follow="pinned", owner="bob")),
            ("PUT", CLERK, template(allow_client_system=False)),
            ("POST", TEMPLATES, [template(execution_policy={"max_iterations": 4})]),
            ("POST", f"{CLERK}/rollback", None),
            ("PATCH", CLERK, {"execution_policy": {"max_iterations": 7}}),
            ("POST", f"{CLERK}/activate", {"version": 1}),
            ("POST", f"{CLERK}/deactivate", None),
            ("POST", f"{CLERK}/rollback", None),
            ("PUT", CLERK, await admin.got(f"{CLERK}@1") | {"owner": "ann"}),
        ]
        for change in changes:
            assert await admin.status(*change) in (200, 201), change
            assert (await sees(ann), await sees(bob), await owners(admin)) == (
                "/deactivate" not in change[1],
                False,
                {"ann"},
            ), change
        assert (await bob.say("hi", model="warehouse_clerk"))["error"]["code"] == "model_not_found"


async def test_an_admin_gives_it_to_somebody_else_or_to_everybody(serving: Serving) -> None:
    async with keyed(serving) as house:
        bob, admin = await client_of(house, "bob"), admin_of(house)
        await admin.status("POST", TEMPLATES, template(owner="ann"))
        for change in (
            ("PATCH", CLERK, {"owner": None}),
            ("PATCH", CLERK, {"owner": "ann"}),
            ("PATCH", CLERK, {"owner": "bob"}),
            ("POST", TEMPLATES, template(owner="ann")),
            ("PUT", CLERK, template(owner=None, follow="pinned")),
        ):
            assert await admin.status(*change) in (200, 201)
            owner = change[2]["owner"]
            assert (await sees(bob), await owners(admin)) == (owner in (None, "bob"), {owner}), change


async def test_the_tools_that_a_private_template_names_may_be_its_owners(serving: Serving) -> None:
    async with keyed(serving) as house:
        admin = admin_of(house)
        await admin.status("POST", TOOLS, {**TOOL, "owner": "ann"})
        policy = {"required": ["stock_of_item"]}
        assert await admin.status("POST", TEMPLATES, template(tool_policy=policy)) == 400
        assert await admin.status("POST", TEMPLATES, template(tool_policy=policy, owner="ann")) == 201
        assert await admin.status("PUT", CLERK, template(tool_policy=policy, follow="pinned")) == 201
        assert await admin.status("PATCH", CLERK, {"allow_client_system": False}) == 201
        assert await admin.status("PATCH", CLERK, {"owner": "bob"}) == 400
