"""Tools over the Admin API: published in versions, changed, compared, rolled back; and what is refused."""

import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
from attack_helpers import canary, refused
from key_helpers import Client, admin_of, client_of, keyed

from delegating_server import answer
from longhouse.agents.tool_descriptor import RuntimeBinding, ToolDescriptor
from longhouse.api.admin.docs import TOOL
from longhouse.catalog.service import CatalogService
from longhouse.catalog.validation import CatalogValidator
from longhouse.store.catalog.catalog import Catalog
from longhouse.store.database import Database
from longhouse.tools import BaseTool, ToolContext
from server_helpers import House, Serving

TOOLS = "/admin/tools"


class SendTool(BaseTool):
    """Sends something, once."""

    tool_name = "send_tool"
    effect = "once"
    needs_approval = True
    text: str

    async def __call__(self, context: ToolContext, config: Any = None, **kwargs: Any) -> str:
        return f"sent {self.text}"


def tool(**fields: Any) -> dict[str, Any]:
    return {**TOOL, **fields}


def bound(**way: Any) -> dict[str, Any]:
    return tool(runtime_binding=way)


async def sent(house: House, method: str, path: str, body: Any = None) -> tuple[int, Any]:
    """The status and what came back."""
    async with Client(house).ask(method, path, body) as response:
        text = await response.text()
        return response.status, msgspec.json.decode(text) if text else None


async def counted(house: House) -> int:
    found: int = await house.db.value("SELECT count(*) FROM catalog_versions WHERE published_by <> 'longhouse'")
    return found


async def test_publishing_gives_versions_and_the_same_content_gives_the_same(serving: Serving) -> None:
    async with serving() as house:
        first = {"name": "stock_of_item", "version": 1, "is_active": True}
        assert await sent(house, "POST", TOOLS, TOOL) == (201, first)
        assert await sent(house, "POST", TOOLS, TOOL) == (200, first)
        status, second = await sent(house, "POST", TOOLS, tool(timeout=20.0))
        assert (status, second) == (201, {**first, "version": 2})
        status, third = await sent(house, "POST", f"{TOOLS}?activate=false", tool(timeout=30.0))
        assert (status, third) == (201, {**first, "version": 3, "is_active": False})
        _, shown = await sent(house, "GET", f"{TOOLS}/stock_of_item")
        assert (shown["tool_id"], shown["version"], shown["latest"], shown["timeout"]) == ("stock_of_item", 2, 3, 20.0)
        assert (shown["is_active"], shown["published_by"]) == (True, "local")


async def test_a_name_with_dots_is_read_by_version(serving: Serving) -> None:
    async with serving() as house:
        named = tool(name="depot.stock", runtime_binding={"mcp": "depot.stock"})
        await sent(house, "POST", TOOLS, named)
        await sent(house, "POST", TOOLS, {**named, "timeout": 11})
        for path, version in (("depot.stock", 2), ("depot.stock@1", 1), ("depot.stock@2", 2)):
            _, shown = await sent(house, "GET", f"{TOOLS}/{path}")
            assert (shown["name"], shown["version"], shown["is_active"]) == ("depot.stock", version, version == 2)
        for path in ("depot.stock@3", "depot", "depot.stock.x", "depot.stock@1@1", "%00", "a%00@1", "x" * 300, "é@1"):
            status, answer = await sent(house, "GET", f"{TOOLS}/{path}")
            assert (status, answer["error"]["code"]) == (404, "tool_not_found"), path
        for wrong in ("0", "-1", "x", "1.0", "", "99999999999", "٣"):
            status, answer = await sent(house, "GET", f"{TOOLS}/depot.stock@{wrong}")
            assert status in (400, 404), wrong


async def test_versions_are_listed_newest_first_and_compared(serving: Serving) -> None:
    async with serving() as house:
        for timeout in (10.0, 20.0, 30.0):
            await sent(house, "POST", TOOLS, tool(timeout=timeout))
        _, page = await sent(house, "GET", f"{TOOLS}/stock_of_item/versions?limit=2")
        assert ([one["version"] for one in page["data"]], page["has_more"]) == ([3, 2], True)
        _, page = await sent(house, "GET", f"{TOOLS}/stock_of_item/versions?limit=2&before={page['next']}")
        assert ([one["version"] for one in page["data"]], page["has_more"], page["next"]) == ([1], False, None)
        changed = [{"path": "timeout", "from": 10.0, "to": 30.0}]
        expected = {"name": "stock_of_item", "from": 1, "to": 3, "differences": changed}
        assert await sent(house, "GET", f"{TOOLS}/stock_of_item/diff?from=1&to=3") == (200, expected)
        _, latest = await sent(house, "GET", f"{TOOLS}/stock_of_item/diff")
        assert (latest["from"], latest["to"]) == (2, 3)
        _, none = await sent(house, "GET", f"{TOOLS}/stock_of_item/diff?from=2&to=2")
        assert none["differences"] == []
        for asked, status in (("from=4", 404), ("from=x", 400), ("to=0", 400), ("by=1", 400), ("from=1&to=9", 404)):
            assert (await sent(house, "GET", f"{TOOLS}/stock_of_item/diff?{asked}"))[0] == status, asked
        assert (await sent(house, "GET", f"{TOOLS}/nothing/versions"))[0] == 404


async def test_put_and_patch_publish_the_next_version_of_a_name_that_is_there(serving: Serving) -> None:
    async with serving() as house:
        path = f"{TOOLS}/stock_of_item"
        for method, body in (("PUT", TOOL), ("PATCH", {"timeout": 5})):
            assert (await sent(house, method, path, body))[0] == 404
        await sent(house, "POST", TOOLS, TOOL)
        unnamed = {key: value for key, value in tool(timeout=12.0).items() if key != "name"}
        assert (await sent(house, "PUT", path, unnamed))[1]["version"] == 2
        assert (await sent(house, "PUT", path, TOOL)) == (200, {"name": TOOL["name"], "version": 1, "is_active": True})
        patch = {"timeout": 13.0, "security_policy": {"rate_limits": {"per_minute": None}}, "tags": ["a", "b"]}
        assert (await sent(house, "PATCH", path, patch))[1] == {"name": TOOL["name"], "version": 3, "is_active": True}
        _, compared = await sent(house, "GET", f"{path}/diff?from=1&to=3")
        assert {one["path"] for one in compared["differences"]} == {
            "timeout", "tags", "security_policy.rate_limits.per_minute",
        }  # fmt: skip
        status, error = await sent(house, "PATCH", f"{path}?activate=false", {"timeout": 14.0})
        assert (status, error["is_active"]) == (201, False)
        for method, body in (("PUT", tool(name="other")), ("PATCH", {"name": "other"})):
            found = await Client(house).refused(method, path, body)
            assert (found[0], found[1]["param"]) == (400, "name")
        for method, wrong in (("PUT", [TOOL]), ("PATCH", [TOOL]), ("PATCH", "x"), ("PATCH", {"timeout": 0})):
            assert (await Client(house).refused(method, path, wrong))[0] == 400, wrong


async def test_whoever_audits_reads_what_holds_and_not_only_what_was_written(serving: Serving) -> None:
    async with serving(lambda body: answer("Done."), tools=(SendTool,), tool_packages=__name__) as house:
        _, sends = await sent(house, "GET", f"{TOOLS}/send_tool")
        # A descriptor of the same class that leaves all to it.
        place = sends["runtime_binding"]["python_entrypoint"]
        silent = {"name": "quiet_tool", "description_short": "x", "runtime_binding": {"python_entrypoint": place}}
        assert (await sent(house, "POST", TOOLS, silent))[0] == 201
        policy = f"{TOOLS}/quiet_tool/security_policy"
        _, held = await sent(house, "PUT", policy, {"risk_level": "high"})
        assert (held["described"]["needs_approval"], held["effective"]["needs_approval"]) == (True, True)
        _, page = await sent(house, "GET", f"{TOOLS}?limit=200")
        [listed] = [one for one in page["data"] if one["name"] == "quiet_tool"]
        for shown in (listed, (await sent(house, "GET", f"{TOOLS}/quiet_tool@1"))[1]):
            assert (shown["effect"], shown["needs_approval"]) == (None, None)
            told = {name: shown["effective"][name] for name in ("effect", "needs_approval", "risk_level")}
            assert told == {"effect": "once", "needs_approval": True, "risk_level": "high"}
        away = {name: value for name, value in TOOL.items() if name not in ("effect", "timeout")}
        await sent(house, "POST", TOOLS, away)
        _, remote = await sent(house, "GET", f"{TOOLS}/stock_of_item")
        assert (remote["effect"], remote["effective"]["effect"], remote["effective"]["needs_approval"]) == (
            None,
            "once",
            False,
        )
        assert (await sent(house, "PUT", f"{TOOLS}/stock_of_item", remote))[0] == 200, "what is shown may be sent back"


async def test_what_is_shown_may_be_sent_back(serving: Serving) -> None:
    async with serving() as house:
        await sent(house, "POST", TOOLS, TOOL)
        _, shown = await sent(house, "GET", f"{TOOLS}/stock_of_item")
        assert (await sent(house, "PUT", f"{TOOLS}/stock_of_item", shown))[0] == 200
        _, page = await sent(house, "GET", f"{TOOLS}?limit=1&before=stock_of_ite")
        assert (await sent(house, "POST", TOOLS, page["data"]))[0] == 200
        for version in (1, 7, 2**40):
            status, placed = await sent(house, "PUT", f"{TOOLS}/stock_of_item", {**shown, "version": version})
            assert (status, placed["version"]) == (200, 1), "the catalog gives the number"
        for odd in ("abc", "1", True, None, 1.5, [1]):
            for method, path in (("PUT", f"{TOOLS}/stock_of_item"), ("POST", TOOLS)):
                status, error = await Client(house).refused(method, path, {**shown, "version": odd})
                assert (status, error["param"]) == (400, "version"), odd
        wrong = {**shown, "tool_id": "other"}
        assert (await Client(house).refused("POST", TOOLS, wrong))[1]["param"] == "tool_id"
        inactive = {**shown, "is_active": False, "timeout": 3.0}
        assert (await Client(house).refused("POST", TOOLS, inactive))[1]["param"] == "is_active"
        assert (await sent(house, "POST", f"{TOOLS}?activate=false", inactive))[0] == 201


async def test_activate_roll_back_deactivate_and_retire(serving: Serving) -> None:
    async with serving() as house:
        path = f"{TOOLS}/stock_of_item"
        await sent(house, "POST", TOOLS, TOOL)
        await sent(house, "POST", TOOLS, tool(timeout=20.0))
        assert (await sent(house, "POST", f"{path}/rollback"))[1]["version"] == 1
        status, error = await Client(house).refused("POST", f"{path}/rollback")
        assert (status, error["code"]) == (409, "no_way_back")
        assert (await sent(house, "POST", f"{path}/activate", {"version": 2}))[1]["is_active"] is True
        assert (await sent(house, "POST", f"{path}/deactivate"))[1] == {
            "name": TOOL["name"], "version": 2, "is_active": False,
        }  # fmt: skip
        _, shown = await sent(house, "GET", path)
        assert (shown["version"], shown["is_active"]) == (2, False)
        assert (await sent(house, "POST", f"{path}/rollback"))[1]["version"] == 2
        for body in (
            {},
            {"version": "2"},
            {"version": 0},
            {"version": 2**40},
            {"version": 2, "x": 1},
            {"version": True},
        ):
            assert (await Client(house).refused("POST", f"{path}/activate", body))[0] == 400, body
        assert (await Client(house).refused("POST", f"{path}/activate", {"version": 9}))[0] == 404
        assert (await sent(house, "DELETE", path))[0] == 204
        assert (await Client(house).refused("DELETE", path))[0] == 404
        for method, gone in (("GET", path), ("POST", f"{path}/rollback"), ("POST", f"{path}/deactivate")):
            assert (await Client(house).refused(method, gone))[0] == 404
        assert (await sent(house, "GET", f"{path}@1"))[0] == 200, "versions stay for turns that began with them"
        assert (await sent(house, "POST", f"{path}/activate", {"version": 1}))[0] == 200
        assert (await sent(house, "GET", path))[1]["version"] == 1


async def test_many_are_published_at_once_or_none(serving: Serving) -> None:
    async with serving() as house:
        many = [tool(name=f"tool_{n:03}") for n in range(200)]
        status, page = await sent(house, "POST", TOOLS, many)
        assert (status, len(page["data"]), page["data"][7]["name"]) == (201, 200, "tool_007")
        assert (await sent(house, "POST", TOOLS, many))[0] == 200
        wrong = [*many[:150], tool(name="tool_new", timeout=0, nonsense=1), *many[151:]]
        found = await refused(house, wrong, TOOLS)
        assert (found.status, found.param) == (400, "[150].timeout")
        assert "[150].nonsense: there is no such field" in found.error["message"]
        assert await counted(house) == 200
        twice = [tool(name="twice"), tool(name="twice", timeout=1)]
        bodies: tuple[Any, ...] = (twice, [TOOL] * 5_001, [[]], [None], "x", 1, None)
        for body in bodies:
            assert (await refused(house, body, TOOLS)).status == 400


WRONG: list[tuple[dict[str, Any], str]] = [
    (tool(description_short=7), "description_short"),
    (tool(type="magic"), "type"),
    (tool(tags=["x" * 101]), "tags[0]"),
    (tool(timeout=-1), "timeout"),
    (tool(timeout="10"), "timeout"),
    (tool(effect="maybe"), "effect"),
    (tool(max_output=0), "max_output"),
    (tool(owner="a/b"), "owner"),
    (tool(nonsense=1), "nonsense"),
    (tool(security_policy={"allow": {"all": True}}), "security_policy.allow.all"),
    (tool(runtime_binding={}), "runtime_binding"),
    (bound(mcp="a.b", agent="a"), "runtime_binding"),
    (bound(mcp="a.b"), "runtime_binding.mcp"),
    (bound(remote_endpoint="https://a.example/", api_key_ref="has space"), "runtime_binding.api_key_ref"),
    (bound(remote_endpoint="https://a.example/", api_key_ref="x" * 129), "runtime_binding.api_key_ref"),
    (bound(remote_endpoint="https://a.example/", api_key_ref="sk-abcdefgh"), "runtime_binding.api_key_ref"),
    (bound(remote_endpoint="file:///etc/passwd"), "runtime_binding.remote_endpoint"),
    (bound(remote_endpoint="http://127.0.0.1:8400/"), "runtime_binding.remote_endpoint"),
    (bound(remote_endpoint="http://[::ffff:169.254.169.254]/"), "runtime_binding.remote_endpoint"),
    (bound(remote_endpoint="http://user:pass@a.example/"), "runtime_binding.remote_endpoint"),
    *[
        (bound(python_entrypoint=text), "runtime_binding.python_entrypoint")
        for text in (
            "os:system",
            "builtins:eval",
            "subprocess:Popen",
            "..x:y",
            "longhouse.tools.builtin.dialogue:__class__",
            "os",
        )
    ],
    *[
        (tool(name=name), "name")
        for name in (
            "",
            "x" * 300,
            "__proto__",
            "stосk",
            "ｓtock",
            "a b",
            "a\nb",
            "../x",
            "a..b",
            "agent.x",
            "7x",
            "x\x00",
        )
    ],
    (tool(probe="stock_of_item", effect="once"), "probe"),
    (tool(probe="clocktool", effect="read"), "probe"),
    (tool(probe="clocktool", effect="idempotent"), "probe"),
    (tool(remembers="page", effect=None), "remembers"),
    (tool(remembers="page", effect="idempotent"), "remembers"),
    (tool(remembers="everything", effect="read"), "remembers"),
    (tool(input_schema={"type": "string"}), "input_schema"),
    (tool(input_schema={"type": "object", "properties": {"a": {"$ref": "http://127.0.0.1/x"}}}), "input_schema"),
    (tool(input_schema={"type": "object", "properties": {"a": {"$ref": "file:///etc/passwd"}}}), "input_schema"),
    (tool(input_schema={"type": "object", "properties": {"a": {"$ref": "#/properties/a"}}}), "input_schema"),
    (tool(input_schema={"type": "object", "properties": {"a": {"pattern": "(a+)+$"}}}), "input_schema"),
    (tool(input_schema={"type": "object", "description": "x" * 70_000}), "input_schema"),
]


async def test_a_tool_that_is_not_well_described_is_refused_by_field(serving: Serving) -> None:
    async with serving() as house:
        for body, param in WRONG:
            found = await refused(house, body, TOOLS)
            assert found.status == 400, body
            assert found.param in (param, None if body["name"] == "x\x00" else param), (body, found.error)
            assert "sk-abcdefgh" not in found.error["message"]
        assert await counted(house) == 0


async def test_a_probe_that_cannot_be_asked_is_warned_of(serving: Serving) -> None:
    async with serving() as house:
        _, published = await sent(house, "POST", TOOLS, tool(probe="nobody", effect="once", needs_approval=True))
        [warning] = published["warnings"]
        assert "probe" in warning
        assert "there is no tool 'nobody' to ask" in warning
        _, published = await sent(
            house, "POST", TOOLS, tool(probe="createfiletool", effect="once", needs_approval=True)
        )
        assert "createfiletool does not only read" in published["warnings"][0]
        both = [tool(probe="asked", effect="once", needs_approval=True), tool(name="asked", effect="read")]
        assert all("warnings" not in one for one in (await sent(house, "POST", TOOLS, both))[1]["data"])
        clocked = tool(probe="clocktool", effect="once", needs_approval=True)
        assert "warnings" not in (await sent(house, "POST", TOOLS, clocked))[1]


async def test_who_publishes_what_any_agent_may_do_once_unasked_is_warned(serving: Serving) -> None:
    warned = "needs_approval: its calls take effect once and nobody is asked before"
    async with serving() as house:
        for safe in (
            {"effect": "read"},
            {"effect": "once", "needs_approval": True},
            {"effect": "once", "security_policy": {"allow": {"templates": ["payer"]}}},
        ):
            assert "warnings" not in (await sent(house, "POST", TOOLS, tool(**safe)))[1], safe
        for risky in (tool(effect="once"), tool(effect=None)):
            status, published = await sent(house, "POST", TOOLS, risky)
            assert status == 201, "it is taken"
            assert [one.startswith(warned) for one in published["warnings"]] == [True]
        policy = f"{TOOLS}/{risky['name']}/security_policy"
        assert (await sent(house, "PUT", policy, {"needs_approval": True}))[0] in (200, 201)
        assert "warnings" not in (await sent(house, "POST", TOOLS, tool(effect="once", timeout=7)))[1]


async def test_all_mistakes_are_named_at_once(serving: Serving) -> None:
    async with serving() as house:
        wrong = tool(name=7, timeout=0, nonsense=1, effect="maybe", tags=["", "x"])
        message = (await refused(house, wrong, TOOLS)).error["message"]
        for field in ("name", "timeout", "nonsense", "effect", "tags[0]"):
            assert f"{field}: " in message
        wrong = bound(python_entrypoint="os:system") | {"input_schema": {"type": "string"}, "name": "__proto__"}
        message = (await refused(house, wrong, TOOLS)).error["message"]
        for field in ("name", "input_schema", "runtime_binding.python_entrypoint"):
            assert f"{field}: " in message


async def test_bodies_that_are_no_descriptors_are_refused_in_bounded_time(serving: Serving) -> None:
    async with serving() as house:
        deep = b'{"name":' * 3_000 + b"1" + b"}" * 3_000
        million = msgspec.json.encode({**TOOL, **{f"f{n}": 1 for n in range(300_000)}})
        tags = msgspec.json.encode(tool(tags=[""] * 1_000_000))
        huge = msgspec.json.encode(tool(timeout=1)).replace(b'"timeout":1', b'"timeout":1' + b"0" * 400)
        for body in (b"", b"{", b"NaN", b'"\xff"', b'{"name":"\\ud800"}', deep, million, tags, huge):
            assert (await refused(house, body, TOOLS)).status == 400, body[:40]
        nul = msgspec.json.encode(tool(description_short="a\x00b"))
        assert (await refused(house, nul, TOOLS)).status == 400
        backslash = tool(name="backslash", description_short="a \\u0000 in words")
        assert (await sent(house, "POST", TOOLS, backslash))[0] == 201
        schema = msgspec.json.encode(tool(input_schema={"type": "object", "enum": ["x" * 10_000_000]}))
        assert (await refused(house, schema, TOOLS)).status == 413
        await sent(house, "POST", TOOLS, TOOL)
        patch = b'{"input_schema":' * 900 + b"1" + b"}" * 900
        async with house.http.patch(
            f"{TOOLS}/stock_of_item", data=patch, headers={"content-type": "application/json"}
        ) as response:
            assert response.status == 400


async def test_a_name_that_passes_for_another_is_refused(serving: Serving) -> None:
    async with serving() as house:
        for name in ("finalanswertool", "FinalAnswerTool", "websearchTool"):
            status, error = await Client(house).refused("POST", TOOLS, tool(name=name))
            assert (status, error["code"], error["param"]) == (409, "name_taken", "name"), name
        await sent(house, "POST", TOOLS, TOOL)
        status, error = await Client(house).refused("POST", TOOLS, tool(name="Stock_Of_Item"))
        assert (status, error["param"]) == (409, "name")
        await sent(house, "DELETE", f"{TOOLS}/stock_of_item")
        assert (await Client(house).refused("POST", TOOLS, tool(name="Stock_Of_Item")))[0] == 409
        assert (await sent(house, "POST", TOOLS, TOOL))[0] == 200, "a retired name comes back by itself only"
        status, _ = await Client(house).refused("PUT", f"{TOOLS}/websearchtool", tool(name="websearchtool"))
        assert status == 409
        status, _ = await Client(house).refused("PATCH", f"{TOOLS}/websearchtool", {"timeout": 1.0})
        assert status == 409


async def test_nothing_is_imported_or_fetched_to_check_a_tool(
    serving: Serving, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "intruder.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\nclass Tool: pass\n")
    monkeypatch.syspath_prepend(tmp_path)
    async with canary() as heard, serving(tool_packages="intruder", allow_egress=heard.url[7:]) as house:
        assert (await sent(house, "POST", TOOLS, bound(python_entrypoint="intruder:Tool")))[0] == 201
        remote = tool(name="remote", runtime_binding={"remote_endpoint": f"{heard.url}/x"})
        assert (await sent(house, "POST", TOOLS, remote))[0] == 201
        await sent(house, "GET", f"{TOOLS}/stock_of_item")
        assert (heard.calls, "intruder" in sys.modules, (tmp_path / "ran").exists()) == (0, False, False)


async def test_who_published_is_known_by_the_id_of_the_key(serving: Serving) -> None:
    async with keyed(serving) as house:
        boss = await client_of(house, "longhouse", "admin")
        for client, timeout in ((admin_of(house), 10.0), (boss, 20.0)):
            assert await client.status("POST", TOOLS, tool(timeout=timeout)) == 201
        page = await boss.got(f"{TOOLS}/stock_of_item/versions")
        assert [one["published_by"] for one in page["data"]] == [boss.id, "admin"]
        assert boss.key not in str(page)


async def test_a_tool_that_a_newer_release_has_published_is_listed_and_can_be_switched_off(db: Database) -> None:
    await Catalog(db).tools.publish(
        [ToolDescriptor(name="stock", description_short="x", runtime_binding=RuntimeBinding(mcp="stock"))], by="a test"
    )
    newer = "jsonb_set(descriptor::jsonb, '{effect}', '\"hologram\"')::json"
    await db.run(f"UPDATE catalog_versions SET descriptor = {newer}")
    catalog = Catalog(db)
    service = CatalogService(catalog, "tool", CatalogValidator(catalog))
    [entry] = await service.repository.page(after=None, limit=10)
    assert entry.descriptor["effect"] == "hologram"
    assert await service.held([entry]) == [{"effective": None}]
    held = await service.decide(entry.name, lambda before: {"enabled": False}, by="a test")
    assert held["effective"]["enabled"] is False
