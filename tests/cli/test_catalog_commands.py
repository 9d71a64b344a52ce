"""`longhouse tools …` and `longhouse templates …`: the same catalog, from the command line."""

import json
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr

from acme import acme
from longhouse.agents.entrypoints import EntrypointError
from longhouse.agents.tool_descriptor import RuntimeBinding, ToolDescriptor
from longhouse.api.admin.docs import TEMPLATE, TOOL
from longhouse.app import TOOLS
from longhouse.app.publish import publish_classes
from longhouse.cli import catalog as commands
from longhouse.errors import CallerError, SetupError
from longhouse.settings import Settings
from longhouse.store.catalog.catalog import Catalog
from longhouse.store.database import Database
from server_helpers import launched_words

Say = Callable[[Awaitable[None]], Awaitable[list[str]]]


@pytest.fixture
def said(capsys: pytest.CaptureFixture[str]) -> Say:
    """Runs a command; what it printed, by line."""

    async def run(command: Awaitable[None]) -> list[str]:
        capsys.readouterr()
        await command
        return capsys.readouterr().out.splitlines()

    return run


@pytest.fixture
def settings(dsn: str) -> Settings:
    return Settings(database_url=SecretStr(dsn))


def written(folder: Path, name: str, *values: Any) -> Path:
    """A file with one value, or with one on each line."""
    file = folder / name
    file.write_text("\n\n".join(json.dumps(value) for value in values) + "\n")
    return file


async def test_descriptors_are_published_from_json_and_from_lines(
    settings: Settings, tmp_path: Path, said: Say
) -> None:
    many = [{**TOOL, "name": f"tool_{n}"} for n in range(3)]
    one = written(tmp_path, "one.json", TOOL)
    assert await said(commands.publish(settings, "tool", one, activate=True)) == ["stock_of_item@1"]
    assert await said(commands.publish(settings, "tool", one, activate=True)) == ["stock_of_item@1, unchanged"]
    some = written(tmp_path, "some.json", many[:2])
    assert await said(commands.publish(settings, "tool", some, activate=False)) == [
        "tool_0@1, not active",
        "tool_1@1, not active",
    ]
    lines = written(tmp_path, "all.jsonl", *many)
    assert await said(commands.publish(settings, "tool", lines, activate=True)) == [
        "tool_0@1, unchanged",
        "tool_1@1, unchanged",
        "tool_2@1",
    ]
    listed = await said(commands.list_all(settings, "tool", inactive=True))
    assert [line.partition("  ")[0] for line in listed] == ["stock_of_item@1", "tool_0@1", "tool_1@1", "tool_2@1"]


async def test_a_policy_is_put_over_a_tool_that_comes_with_the_program(
    settings: Settings, db: Database, said: Say
) -> None:
    await publish_classes(Catalog(db), TOOLS)

    async def decided(clear: bool = False, **fields: Any) -> Any:
        lines = await said(commands.policy(settings, "clocktool", clear=clear, **fields))
        return json.loads("".join(lines[lines.index("{") :]))

    assert (await decided())["overlay"] is None
    await decided(risk_level="high")
    held = await decided(per_minute=3, enabled=False)
    assert (held["overlay"]["risk_level"], held["overlay"]["changed_by"]) == ("high", "command line")
    assert held["effective"] == {
        **held["described"],
        "risk_level": "high",
        "rate_limits": {"per_minute": 3},
        "enabled": False,
    }
    assert await Catalog(db).active_tools(["clocktool", "reasoningtool"], "local") == {"reasoningtool": 1}
    held = await decided(clear=True, enabled=True)
    assert (held["overlay"], held["effective"]) == (None, held["described"])
    with pytest.raises(SetupError, match="There is no tool 'clocktol'"):
        await commands.policy(settings, "clocktol", enabled=False)
    with pytest.raises(CallerError, match="risk_level: Input should be 'low', 'medium' or 'high'"):
        await commands.policy(settings, "clocktool", risk_level="huge")


async def test_versions_are_shown_compared_and_moved(settings: Settings, tmp_path: Path, said: Say) -> None:
    for nth, timeout in enumerate((10.0, 20.0)):
        file = written(tmp_path, f"{nth}.json", {**TOOL, "timeout": timeout})
        await said(commands.publish(settings, "tool", file, activate=True))
    name = "stock_of_item"
    assert json.loads("".join(await said(commands.show(settings, "tool", name))))["timeout"] == 20.0
    first = json.loads("".join(await said(commands.show(settings, "tool", f"{name}@1"))))
    assert (first["timeout"], first["version"]) == (10.0, 1)
    versions = await said(commands.list_versions(settings, "tool", name))
    assert [line.split()[0] for line in versions] == [f"{name}@2", f"{name}@1"]
    assert "by command line, active" in versions[0]
    assert await said(commands.compare(settings, "tool", name, 1, 2)) == ["timeout: 10.0 -> 20.0"]
    assert await said(commands.roll_back(settings, "tool", name)) == [f"{name}@1 is active"]
    assert await said(commands.activate(settings, "tool", name, 2)) == [f"{name}@2 is active"]
    await said(commands.deactivate(settings, "tool", name))
    [line] = await said(commands.list_all(settings, "tool", inactive=True))
    assert line.startswith(f"{name}, not active, latest @2")
    assert await said(commands.list_all(settings, "tool", inactive=False)) == []
    assert await said(commands.retire(settings, "tool", name)) == [f"{name} is retired"]
    assert await said(commands.list_all(settings, "tool", inactive=True)) == []


async def test_mistakes_end_in_one_sentence(settings: Settings, db: Database, tmp_path: Path, said: Say) -> None:
    await publish_classes(Catalog(db), TOOLS)
    wrong = written(tmp_path, "wrong.json", {**TOOL, "timeout": 0, "nonsense": 1})
    with pytest.raises(CallerError, match=r"timeout: .*nonsense: there is no such field"):
        await commands.publish(settings, "tool", wrong, activate=True)
    taken = written(tmp_path, "taken.json", {**TOOL, "name": "finalanswertool"})
    with pytest.raises(CallerError, match="comes with the program"):
        await commands.publish(settings, "tool", taken, activate=True)
    (tmp_path / "no.json").write_text("{")
    for file in ("no.json", "nowhere.json"):
        with pytest.raises(SetupError, match=file):
            await commands.publish(settings, "tool", tmp_path / file, activate=True)
    for refused in (
        commands.show(settings, "tool", "nothing"),
        commands.show(settings, "tool", "nothing@x"),
        commands.list_versions(settings, "tool", "nothing"),
        commands.compare(settings, "tool", "finalanswertool", 1, 2),
        commands.activate(settings, "tool", "finalanswertool", 2),
        commands.roll_back(settings, "tool", "nothing"),
        commands.retire(settings, "tool", "nothing"),
    ):
        with pytest.raises(SetupError):
            await refused
    with pytest.raises(CallerError, match="No other version was active before"):
        await commands.roll_back(settings, "tool", "finalanswertool")


async def test_the_command_itself_publishes_and_ends_in_one_sentence(dsn: str, tmp_path: Path) -> None:
    template = {**TEMPLATE, "tool_policy": {"allowlist": ["depot.*"]}}
    file = written(tmp_path, "clerk.json", template)
    code, told = await launched_words("templates", "publish", str(file), database_url=dsn)
    assert (code, "warehouse_clerk@1" in told, "1 new, 0 unchanged" in told) == (0, True, True), told
    options = ("--off", "--per-minute", "3", "--templates", "a, b", "--no-sub-agents")
    code, told = await launched_words(
        "tools", "policy", "agent.warehouse_clerk", *options, database_url=dsn, log_level="warning"
    )
    assert code == 0, told
    overlay = {"allow": {"templates": ["a", "b"], "sub_agents": False}, "rate_limits": {"per_minute": 3}}
    assert {**overlay, "enabled": False}.items() <= json.loads(told)["overlay"].items()
    code, told = await launched_words("templates", "rollback", "warehouse_clerk", database_url=dsn)
    assert (code, told.startswith("longhouse: No other version was active before"), told.count("\n")) == (1, True, 1)


async def test_the_number_of_a_version_is_one_that_a_version_can_have(dsn: str) -> None:
    code, told = await launched_words("templates", "diff", "clerk", "1", "2147483648", database_url=dsn)
    assert (code, "Traceback" in told, "2147483647" in told) == (2, False, True), told


async def test_a_class_is_described_whole_and_from_allowed_packages_only(
    dsn: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: Say
) -> None:
    with acme(tmp_path, monkeypatch) as package:
        place = f"{package}:Pay"
        code, words = await launched_words("tools", "describe", place, tool_packages=package)
        described = json.loads(words)
        assert code == 0, words
        assert described["runtime_binding"] == {"python_entrypoint": place}
        told = {name: described[name] for name in ("name", "effect", "timeout", "max_output", "needs_approval")}
        assert told == {"name": "pay", "effect": "once", "timeout": 120.0, "max_output": 1000, "needs_approval": True}
        assert described["input_schema"]["properties"]["amount"] == {
            "description": "In cents", "minimum": 1, "type": "integer",
        }  # fmt: skip
        settings = Settings(database_url=SecretStr(dsn), tool_packages=package)
        file = written(tmp_path, "pay.json", described)
        published, *printed = await said(commands.publish(settings, "tool", file, activate=True))
        stored = json.loads("\n".join(await said(commands.show(settings, "tool", "pay@1"))))
        effective = stored.pop("effective")
        assert (published, json.loads("\n".join(printed))) == ("pay@1", stored), "the whole descriptor, as it is stored"
        # Whoever leaves it to the class is shown what the class says.
        silent = {name: described[name] for name in ("name", "description_short", "runtime_binding")}
        await said(commands.publish(settings, "tool", written(tmp_path, "silent.json", silent), activate=True))
        shown = json.loads("\n".join(await said(commands.show(settings, "tool", "pay@2"))))
        assert (shown["effect"], shown["needs_approval"], shown["effective"]) == (None, None, effective)
        assert (effective["effect"], effective["needs_approval"], effective["probe"]) == ("once", True, "")
        held = json.loads("\n".join(await said(commands.policy(settings, "pay"))))
        assert (held["described"]["needs_approval"], held["effective"]["needs_approval"]) == (True, True)
        elsewhere = Settings(database_url=SecretStr(dsn), tool_packages="other")
        shown = json.loads("\n".join(await said(commands.show(elsewhere, "tool", "pay"))))
        assert shown["effective"] is None, "its class cannot be loaded here"
        assert json.loads("\n".join(printed))["runtime_binding"]["python_entrypoint"] == place
        with pytest.raises(EntrypointError, match=f"{package} has no tool class Nothing"):
            await commands.describe(settings, f"{package}:Nothing")
        with pytest.raises(EntrypointError, match="is not in a package that tools may come from"):
            await commands.describe(Settings(database_url=SecretStr(dsn), tool_packages="other"), place)


async def test_tools_that_cannot_be_used_here_are_named_before_an_agent_stumbles(
    dsn: str, db: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    servers = {"gone": {"command": "no-such-command-here"}}
    (tmp_path / "mcp.json").write_text(json.dumps({"mcpServers": servers}))
    monkeypatch.setenv("LONGHOUSE_SECRET_KNOWN", "a-secret-value")
    catalog = Catalog(db)
    await publish_classes(catalog, TOOLS)
    with acme(tmp_path, monkeypatch) as package:
        settings = Settings(
            database_url=SecretStr(dsn), tool_packages=f"{package},absent", mcp_config=tmp_path / "mcp.json",
            config_file=None, agents_file=None,
        )  # fmt: skip
        assert await check_output(settings, capsys) == [f"all {len(TOOLS)} active tools can be used here"]
        away = RuntimeBinding(remote_endpoint="https://example.com/", api_key_ref="known")
        wrong: dict[str, tuple[RuntimeBinding, dict[str, Any], str]] = {
            "a_module": (RuntimeBinding(python_entrypoint="absent.tools:Pay"), {}, "No module named 'absent'"),
            "b_package": (RuntimeBinding(python_entrypoint="os.path:Pay"), {}, "not in a package that tools may come"),
            "c_weaker": (RuntimeBinding(python_entrypoint=f"{package}:Pay"), {"effect": "read"}, "effect: the class"),
            "d_secret": (replace(away, api_key_ref="unknown"), {}, "the secret 'unknown' is not set here; give it"),
            "e_place": (RuntimeBinding(remote_endpoint="http://127.0.0.1/"), {}, "127.0.0.1 is not a public address"),
            "f_schema": (away, {"input_schema": {"type": "string"}}, "input_schema: "),
            "g.tool": (RuntimeBinding(mcp="g.tool"), {}, "no MCP server that is configured here brings it"),
            "gone.tool": (RuntimeBinding(mcp="gone.tool"), {}, "'gone' cannot be reached: there is no command"),
            "agent.nobody": (RuntimeBinding(agent="nobody"), {}, "there is no active agent 'nobody'"),
        }
        fine = ToolDescriptor(name="fine", description_short="x", runtime_binding=away)
        pay = replace(fine, name="pay", runtime_binding=RuntimeBinding(python_entrypoint=f"{package}:Pay"))
        given = [replace(fine, name=name, runtime_binding=way, **more) for name, (way, more, _) in wrong.items()]
        await catalog.tools.publish([fine, pay, *given], by="a test")
        await catalog.tools.publish([replace(fine, name="off", runtime_binding=given[0].runtime_binding)], by="a test")
        await catalog.tools.deactivate("off")
        unasked = {"asks": "nobody", "asks_writer": "createfiletool", "asks_clock": "clocktool"}
        once = [replace(fine, name=name, effect="once", probe=probe) for name, probe in unasked.items()]
        await catalog.tools.publish(once, by="a test")
        with pytest.raises(SetupError, match=f"9 of {len(TOOLS) + 14} active tools cannot be used here"):
            await check_output(settings, capsys)
        lines = capsys.readouterr().out.splitlines()
        problems = {line.partition("@1: ")[0]: line.partition("@1: ")[2] for line in lines if "@1: " in line}
        assert problems.pop("asks") == "its probe: there is no tool 'nobody' to ask: a person will be asked instead"
        assert problems.pop("asks_writer").startswith("its probe: createfiletool does not only read")
        assert problems.keys() == wrong.keys()
        for name, (_, _, words) in wrong.items():
            assert words in problems[name]
        assert "a-secret-value" not in str(lines)


async def check_output(settings: Settings, capsys: pytest.CaptureFixture[str]) -> list[str]:
    """What the check prints, logs apart."""
    capsys.readouterr()
    await commands.check(settings)
    return [line for line in capsys.readouterr().out.splitlines() if not line.startswith("[")]


async def test_a_check_that_finds_something_ends_with_one(dsn: str, db: Database) -> None:
    broken = ToolDescriptor(
        name="broken", description_short="x", runtime_binding=RuntimeBinding(python_entrypoint="os.path:Pay")
    )
    await Catalog(db).tools.publish([broken], by="a test")
    code, words = await launched_words("tools", "check", database_url=dsn)
    assert code == 1
    assert "broken@1: broken cannot be used: os.path is not in a package that tools may come from" in words
    assert "longhouse: 1 of 1 active tools cannot be used here." in words
