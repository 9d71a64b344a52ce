"""What the program and MCP servers bring gives way to what an operator has decided."""

from collections.abc import Collection, Sequence
from dataclasses import replace

import pytest
from structlog.testing import capture_logs

from longhouse.agents.template import PromptPack, Template, ToolPolicy
from longhouse.agents.tool import Tool
from longhouse.agents.tool_descriptor import RuntimeBinding, SecurityPolicy, ToolDescriptor
from longhouse.app.publish import publish_classes, publish_files
from longhouse.store.catalog.catalog import Catalog
from longhouse.store.catalog.publish import LOCK, Published
from longhouse.store.database import Database, Transaction
from longhouse.tools.base import BaseTool
from longhouse.tools.mcp.client import publish_served

OPERATOR = "key_1"
CLERK = Template(name="clerk", prompt_pack=PromptPack(system_prompt="one"))


def newer(text: str) -> Template:
    return replace(CLERK, prompt_pack=PromptPack(system_prompt=text))


def listed(text: str = "Pay money.", **more: object) -> Tool:
    fields = {"effect": "once", "timeout": 60.0, "schema": {"type": "object", "properties": {}}, **more}
    return Tool(name="bank.pay", description=text, **fields)  # type: ignore[arg-type]


@pytest.fixture
def catalog(db: Database) -> Catalog:
    return Catalog(db)


async def paying(catalog: Catalog) -> ToolDescriptor:
    found = await catalog.tools.find("bank.pay")
    assert found is not None
    return found


async def guarded(catalog: Catalog, **more: object) -> None:
    """An operator changes what the server lists."""
    changed = replace(
        await paying(catalog),
        needs_approval=True,
        approval_timeout=60.0,
        tags=("money",),
        security_policy=SecurityPolicy(risk_level="high"),
        **more,  # type: ignore[arg-type]
    )
    await catalog.tools.publish([changed], by=OPERATOR)


async def publish_templates(
    catalog: Catalog, templates: Sequence[Template], *, touched: Collection[str] = ()
) -> list[Published]:
    return (await publish_files(catalog, (), templates, touched=touched))[1]


async def test_what_a_server_lists_follows_it_while_nobody_else_has_a_say(catalog: Catalog) -> None:
    for version, tool in enumerate((listed(), listed("Pay more."), listed("Pay more.", timeout=5.0)), 1):
        await publish_served(catalog, "bank", [tool])
        found = await paying(catalog)
        assert (found.version, found.description_short, found.timeout) == (version, tool.description, tool.timeout)
        assert found.runtime_binding == RuntimeBinding(mcp="bank.pay")


async def test_a_server_that_changes_takes_no_gate_away(catalog: Catalog) -> None:
    await publish_served(catalog, "bank", [listed()])
    await guarded(catalog)
    await publish_served(catalog, "bank", [listed()])
    assert len(await catalog.tools.versions("bank.pay")) == 2, "it says what it said before"
    with capture_logs() as logs:
        await publish_served(catalog, "bank", [listed("Pay at once.", effect="read", timeout=1.0)])
    assert (await paying(catalog)).version == 2
    assert [(one["log_level"], one["tool"], one["version"]) for one in logs] == [("warning", "bank.pay", 3)]
    waiting = await catalog.tools.find("bank.pay", 3)
    assert waiting == replace(await paying(catalog), version=3, description_short="Pay at once.")
    await catalog.tools.activate("bank.pay", 3)
    await publish_served(catalog, "bank", [listed("Pay at last.")])
    found = await paying(catalog)
    assert (found.version, found.description_short) == (4, "Pay at last."), "it follows what it said itself"
    assert (found.needs_approval, found.security_policy.risk_level, found.tags) == (True, "high", ("money",))


async def test_a_server_that_changes_brings_nothing_back(catalog: Catalog) -> None:
    await publish_served(catalog, "bank", [listed()])
    await catalog.tools.deactivate("bank.pay")
    await publish_served(catalog, "bank", [listed("two")])
    assert await catalog.tools.active("bank.pay") is None
    await catalog.tools.deactivate("bank.pay", retire=True)
    await publish_served(catalog, "bank", [listed("three")])
    assert await catalog.tools.named("bank.pay") is None
    await catalog.tools.activate("bank.pay", 1)
    await guarded(catalog)
    await catalog.tools.deactivate("bank.pay", retire=True)
    await publish_served(catalog, "bank", [listed("four"), replace(listed(), name="bank.ask")])
    assert await catalog.tools.named("bank.pay") is None
    assert await catalog.tools.active("bank.ask") == 1, "the others of the server are not held up"
    assert (await catalog.tools.versions("bank.pay"))[0].descriptor["needs_approval"]


async def test_what_an_operator_has_described_first_stays(catalog: Catalog) -> None:
    described = ToolDescriptor(
        name="bank.pay",
        description_short="Ours.",
        runtime_binding=RuntimeBinding(mcp="bank.pay"),
        needs_approval=True,
        owner="ann",
    )
    await catalog.tools.publish([described], by=OPERATOR)
    await publish_served(catalog, "bank", [listed()])
    assert (await paying(catalog)).version == 1
    waiting = await catalog.tools.version("bank.pay", 2)
    assert waiting is not None
    assert (waiting.descriptor["needs_approval"], waiting.descriptor["owner"]) == (True, "ann")


async def test_a_new_release_replaces_only_what_an_older_one_brought(catalog: Catalog) -> None:
    await publish_templates(catalog, [CLERK])
    [two] = await publish_templates(catalog, [newer("two")])
    assert (two.version, two.is_active) == (2, True)
    denied = replace(newer("two"), tool_policy=ToolPolicy(denylist=("websearchtool",)))
    await catalog.templates.publish([denied], by=OPERATOR)
    [three] = await publish_templates(catalog, [newer("three")])
    assert (three.version, three.is_active) == (4, False)
    assert await catalog.templates.active("clerk") == 3
    await catalog.templates.deactivate("clerk", retire=True)
    [four] = await publish_templates(catalog, [newer("four")])
    assert not four.is_active
    assert await catalog.templates.named("clerk") is None
    assert await catalog.tools.named("agent.clerk") is None


async def test_what_files_leave_goes_back_to_the_program_unless_an_operator_came_between(catalog: Catalog) -> None:
    await publish_templates(catalog, [CLERK])
    await publish_templates(catalog, [newer("file")], touched=["clerk"])
    [back] = await publish_templates(catalog, [CLERK])
    assert (back.version, back.is_active) == (1, True)
    await publish_templates(catalog, [newer("file")], touched=["clerk"])
    await catalog.templates.publish([newer("operator")], by=OPERATOR)
    [kept] = await publish_templates(catalog, [CLERK])
    assert not kept.is_active
    [said] = await publish_templates(catalog, [newer("file, anew")], touched=["clerk"])
    assert said.is_active, "who writes a file is an operator too"


async def test_what_was_given_to_somebody_stays_theirs_at_every_start(catalog: Catalog) -> None:
    await publish_templates(catalog, [CLERK])
    await catalog.templates.publish([replace(CLERK, owner="ann")], by=OPERATOR)
    for touched in ((), ["clerk"]):
        await publish_templates(catalog, [newer(f"next {touched}")], touched=touched)
        assert await catalog.templates.names(owner="bob") == []
    await publish_templates(catalog, [replace(newer("next ['clerk']"), owner="bob")], touched=["clerk"])
    assert await catalog.templates.names(owner="bob") == ["clerk"], "a file may name an owner"
    await catalog.templates.publish([replace(newer("operator"), owner="ann")], by=OPERATOR)
    await publish_templates(catalog, [replace(newer("next ['clerk']"), owner="bob")], touched=["clerk"])
    assert await catalog.templates.names(owner="bob") == [], "it says nothing new"


async def test_a_tool_of_the_program_that_was_switched_off_stays_off(catalog: Catalog) -> None:
    class Priced(BaseTool):
        """Looks up a price."""

    class Repriced(BaseTool):
        """Looks up a price, and better."""

        tool_name = "priced"

    await publish_classes(catalog, [Priced])
    await publish_classes(catalog, [Repriced])
    assert await catalog.tools.active("priced") == 2
    await catalog.tools.deactivate("priced")
    Repriced.description = "Looks up a price, and best."
    await publish_classes(catalog, [Repriced])
    assert await catalog.tools.active("priced") is None
    assert len(await catalog.tools.versions("priced")) == 3


async def test_a_start_that_brings_nothing_new_waits_for_no_publisher(catalog: Catalog) -> None:
    class Hammer(BaseTool):
        """Hit a nail."""

    other = Template(name="повар")
    await publish_classes(catalog, [Hammer])
    first = await publish_templates(catalog, [CLERK, other])
    await catalog.templates.publish([newer("mine")], by=OPERATOR)
    before = await catalog.db.rows("SELECT kind, generation FROM catalog_generation ORDER BY kind")

    async def meanwhile(tx: Transaction) -> None:
        await tx.lock(*LOCK)
        await publish_classes(catalog, [Hammer])

    await catalog.db.together(meanwhile)
    again = await publish_templates(catalog, [CLERK, other])
    assert [(one.name, one.version, one.is_active, one.is_new) for one in again] == [
        ("clerk", 1, False, False), ("повар", 1, True, False)
    ]  # fmt: skip
    assert [one.is_new for one in first] == [True, True]
    assert await catalog.db.rows("SELECT kind, generation FROM catalog_generation ORDER BY kind") == before
    Hammer.description = "Hit a nail on its head."
    await publish_classes(catalog, [Hammer])
    found = await catalog.tools.find("hammer")
    assert found is not None
    assert (found.version, found.description_short) == (2, "Hit a nail on its head.")
