"""Templates over the Admin API: an agent is there as soon as it is published, and gone when it is retired."""

from typing import Any

from attack_helpers import refused
from key_helpers import Client, admin_of, client_of, keyed
from test_admin_tools import sent

from longhouse.api.admin.docs import TEMPLATE, TOOL
from longhouse.models.scripted import call
from server_helpers import Serving, content

TEMPLATES = "/admin/templates"
CLERK = f"{TEMPLATES}/warehouse_clerk"


def template(**fields: Any) -> dict[str, Any]:
    return {**TEMPLATE, **fields}


def model(**fields: Any) -> dict[str, Any]:
    return template(llm_policy=fields)


def finish(body: Any) -> Any:
    """A script that answers with the first words of its system prompt."""
    return call("finalanswertool", answer=body.messages[0].content.split(".")[0], status="completed")


async def test_an_agent_is_there_once_published_and_follows_its_versions(serving: Serving) -> None:
    async with serving(finish) as house:
        placed = {"name": "warehouse_clerk", "version": 1, "is_active": True}
        assert await sent(house, "POST", TEMPLATES, TEMPLATE) == (201, placed)
        assert content(await house.say("hi", model="warehouse_clerk")) == "You answer questions about our stock"
        patch = {"prompt_pack": {"system_prompt": "You are new."}}
        assert (await sent(house, "PATCH", CLERK, patch))[1] == {**placed, "version": 2}
        assert content(await house.say("hi", model="warehouse_clerk")) == "You are new"
        assert (await sent(house, "POST", f"{CLERK}/rollback"))[1]["version"] == 1
        assert content(await house.say("hi", model="warehouse_clerk")) == "You answer questions about our stock"
        assert content(await house.say("hi", model="warehouse_clerk@2")) == "You are new"
        _, compared = await sent(house, "GET", f"{CLERK}/diff?from=1&to=2")
        assert compared["differences"] == [
            {
                "path": "prompt_pack.system_prompt",
                "from": TEMPLATE["prompt_pack"]["system_prompt"],
                "to": "You are new.",
            }
        ]
        assert (await sent(house, "DELETE", CLERK))[0] == 204
        assert (await house.say("hi", model="warehouse_clerk"))["error"]["code"] == "model_not_found"


async def test_tools_are_found_in_the_spellings_that_files_take(serving: Serving) -> None:
    closed = {"when": "iteration > 3", "exclude": ["ClockTool"], "keep_only": ["final_answer"]}
    policy = {"required": ["FinalAnswerTool"], "allowlist": ["clock_tool", "web_search"], "denylist": ["Letter_Tool"]}
    spelled = template(tool_policy=policy, rules={"availability": [closed]})
    async with serving() as house:
        assert (await sent(house, "POST", TEMPLATES, spelled))[0] == 201
        _, shown = await sent(house, "GET", CLERK)
        lists = {name: shown["tool_policy"][name] for name in policy}
        plain = {
            "allowlist": ["clocktool", "websearchtool"],
            "denylist": ["lettertool"],
            "required": ["finalanswertool"],
        }
        assert lists == plain
        [rule] = shown["rules"]["availability"]
        assert (rule["exclude"], rule["keep_only"]) == (["clocktool"], ["finalanswertool"])
        again = template(tool_policy=plain, rules={"availability": [rule]})
        assert (await sent(house, "POST", TEMPLATES, again))[0] == 200, "it says the same"
        # A tool that has such a name itself is that tool; nobody else's is.
        own = {**TOOL, "name": "web_search"}
        theirs = {**TOOL, "name": "papertool", "owner": "acme"}
        assert [(await sent(house, "POST", "/admin/tools", one))[0] for one in (own, theirs)] == [201, 201]
        await sent(house, "POST", TEMPLATES, spelled)
        _, shown = await sent(house, "GET", CLERK)
        assert shown["tool_policy"]["allowlist"] == ["clocktool", "web_search"]
        # Whatever spelling a tool has itself.
        await sent(house, "POST", "/admin/tools", {**TOOL, "name": "roll_dice"})
        named = ["RollDice", "roll-dice", "rolldice", "roll_dice", "agent.SGRAgent"]
        assert (await sent(house, "POST", TEMPLATES, template(tool_policy={"allowlist": named})))[0] == 201
        _, shown = await sent(house, "GET", CLERK)
        assert shown["tool_policy"]["allowlist"] == [*4 * ["roll_dice"], "agent.sgr_agent"]
        unknown = await refused(house, template(tool_policy={"allowlist": ["PaperTool"]}), TEMPLATES)
        assert (unknown.status, unknown.param) == (400, "tool_policy.allowlist[0]")


async def test_a_template_is_shown_with_all_its_policies(serving: Serving) -> None:
    async with serving() as house:
        await sent(house, "POST", TEMPLATES, TEMPLATE)
        _, shown = await sent(house, "GET", CLERK)
        assert {
            "template_id", "name", "version", "is_active", "base_agent_class", "prompt_pack", "llm_policy",
            "execution_policy", "tool_policy", "rules", "reset_policy", "memory_policy", "multi_agent_meta",
            "owner", "latest", "digest", "published_by", "published_at",
        } <= set(shown)  # fmt: skip
        assert (shown["execution_policy"]["max_iterations"], shown["llm_policy"]["max_tokens"]) == (8, 8000)
        _, page = await sent(house, "GET", TEMPLATES)
        assert {"sgr_agent", "warehouse_clerk"} <= {one["name"] for one in page["data"]}


async def test_templates_that_come_with_the_program_may_be_changed_by_an_admin(serving: Serving) -> None:
    async with serving() as house:
        path = f"{TEMPLATES}/tool_calling_agent"
        status, placed = await sent(house, "PATCH", path, {"execution_policy": {"max_iterations": 3}})
        assert (status, placed["version"]) == (201, 2)
        assert (await sent(house, "GET", path))[1]["execution_policy"]["max_iterations"] == 3
    async with serving() as house:
        assert (await sent(house, "GET", path))[1]["version"] == 2, "the next start leaves it alone"


WRONG: list[tuple[dict[str, Any], str]] = [
    (template(name="auto"), "name"),
    (template(version="abc"), "version"),
    (template(version=True), "version"),
    (template(name="../../etc/passwd"), "name"),
    (template(name="agent.x"), "name"),
    (template(name="x" * 123), "name"),
    (template(base_agent_class="Nobody"), "base_agent_class"),
    (template(base_agent_class="os.system"), "base_agent_class"),
    (template(prompt_pack={"system_prompt_file": "../../etc/passwd"}), "prompt_pack.system_prompt_file"),
    (template(prompt_pack={"system_prompt": 7}), "prompt_pack.system_prompt"),
    (template(prompts={"system_prompt_file": "/etc/passwd"}), "prompts"),
    (template(execution_policy={"max_iterations": 0}), "execution_policy.max_iterations"),
    (template(execution_policy={"stop_conditions": ["__import__('os')"]}), "execution_policy.stop_conditions[0]"),
    (template(execution_policy={"stop_conditions": ["calls > 1 and"]}), "execution_policy.stop_conditions[0]"),
    (template(rules={"availability": [{"when": "nonsense > 1"}]}), "rules.availability[0].when"),
    (template(tool_policy={"required": ["nobodystool"]}), "tool_policy.required[0]"),
    (template(tool_policy={"allowlist": ["clarificationtool", "nobodystool"]}), "tool_policy.allowlist[1]"),
    (template(tool_policy={"max_tools_in_prompt": 129}), "tool_policy.max_tools_in_prompt"),
    (model(api_key="sk-abcdefgh"), "llm_policy.api_key"),
    (model(api_key_ref="sk-abcdefgh", base_url="https://models.example/v1"), "llm_policy.api_key_ref"),
    (model(api_key_ref="k" * 129, base_url="https://models.example/v1"), "llm_policy.api_key_ref"),
    (model(base_url="https://user:pw@a.example/v1"), "llm_policy.base_url"),
    (model(base_url="file:///etc/passwd"), "llm_policy.base_url"),
    (model(temperature=3), "llm_policy.temperature"),
    (model(temperature="hot"), "llm_policy.temperature"),
    (template(memory_policy={"recall": 51}), "memory_policy.recall"),
    (template(memory_policy={"show": ["../../etc/passwd"]}), "memory_policy.show"),
    (template(memory_policy={"show": ["a.md", "./b.md"]}), "memory_policy.show"),
    (template(follow="whim"), "follow"),
    (template(nonsense=1), "nonsense"),
]


async def test_a_template_that_is_not_well_described_is_refused_by_field(serving: Serving) -> None:
    async with serving() as house:
        for body, param in WRONG:
            found = await refused(house, body, TEMPLATES)
            assert (found.status, found.param) == (400, param), (body, found.error)
            assert "sk-abcdefgh" not in found.error["message"]
        assert (await Client(house).refused("POST", TEMPLATES, template(name="SGR_Agent")))[0] == 409
        assert await house.db.value("SELECT count(*) FROM catalog_names WHERE name = 'warehouse_clerk'") == 0


async def test_tools_of_servers_and_agents_may_come_later(serving: Serving) -> None:
    async with serving() as house:
        policy = {"required": ["finalanswertool"], "allowlist": ["depot.*", "depot.stock", "agent.analytic"]}
        assert (await sent(house, "POST", TEMPLATES, template(tool_policy=policy)))[0] == 201
        mine = {"allowlist": ["stock_of_item"]}
        assert (await refused(house, template(tool_policy=mine), TEMPLATES)).param == "tool_policy.allowlist[0]"
        await sent(house, "POST", "/admin/tools", TOOL)
        assert (await sent(house, "POST", TEMPLATES, template(tool_policy=mine)))[0] == 201


async def test_secrets_are_shown_by_name_only(serving: Serving, monkeypatch: Any) -> None:
    monkeypatch.setenv("LONGHOUSE_SECRET_WAREHOUSE", "canary-4f1d9c")
    async with serving(finish) as house:
        secret = {"base_url": "https://models.example/v1", "api_key_ref": "warehouse"}
        await sent(house, "POST", TEMPLATES, template(llm_policy=secret))
        await sent(house, "POST", "/admin/tools", TOOL)
        shown = ""
        for path in (TEMPLATES, CLERK, f"{CLERK}@1", f"{CLERK}/versions", "/admin/tools", "/admin/tools/stock_of_item"):
            async with house.http.get(path) as response:
                shown += await response.text()
        assert '"api_key_ref":"warehouse"' in shown
        assert "canary" not in shown


async def test_only_admins_touch_the_catalog(serving: Serving) -> None:
    async with keyed(serving) as house:
        ann, admin = await client_of(house, "ann"), admin_of(house)
        for client, status in ((Client(house), 401), (ann, 403), (admin, 201)):
            assert await client.status("POST", TEMPLATES, TEMPLATE) == status
        assert await ann.status("GET", CLERK) == 403


async def test_a_template_with_an_owner_is_seen_by_that_owner_only(serving: Serving) -> None:
    async with keyed(serving, finish) as house:
        ann, bob, admin = await client_of(house, "ann"), await client_of(house, "bob"), admin_of(house)
        assert await admin.status("POST", TEMPLATES, template(owner="ann")) == 201
        names = {one["id"] for one in (await ann.got("/v1/models"))["data"]}
        assert "warehouse_clerk" in names
        assert "warehouse_clerk" not in {one["id"] for one in (await bob.got("/v1/models"))["data"]}
        assert (await bob.say("hi", model="warehouse_clerk"))["error"]["code"] == "model_not_found"
        assert (await admin.got(CLERK))["owner"] == "ann"
