"""The documentation holds: its examples run, its links lead somewhere, the files and functions that it names exist."""

import ast
import asyncio
import importlib
import json
import os
import re
import signal
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import typer.main
import yaml

from longhouse.agents import conditions
from longhouse.cli.main import cli
from longhouse.models.scripted import call
from longhouse.models.scripted_server import serve as serve_model
from longhouse.settings import Settings
from longhouse.tools.mcp.config import read_servers
from pages import PAGES, PORT, ROOT, Block, all_blocks, blocks, runnable
from redis_server import RedisServer
from server_helpers import NO_FILES, Serving, answering, free_port

DOCS = ROOT / "docs"
SOURCE = ROOT / "src" / "longhouse"

RUN_BY = {
    "README.md": ("bash", "python"),  # stories/test_readme.py, as those of the next two, which are compared with it
    "docs/quickstart.ru.md": ("bash", "python"),
    "docs/quickstart.zh.md": ("bash", "python"),
    "docs/tutorial.md": ("bash", "python", "yaml", "json", "ini", "text"),  # stories/test_tutorial.py
    "docs/own-program.md": ("bash",),
    "docs/admin.md": ("bash",),
    "docs/approval.md": ("bash",),
    "docs/documents.md": ("bash",),
    "docs/clients.md": ("bash",),
    "docs/responses.md": ("python",),
    "docs/grpc-tools.md": ("bash", "python", "yaml"),  # stories/test_grpc_tools.py
    "docs/sql.md": ("sql",),  # stories/test_sql_questions.py
    "docs/architecture.md": ("text",),
    "docs/templates.md": ("text",),
    "docs/working-memory.md": ("text",),
}
"""Page -> languages in which all its examples that are no fragments are run or compared, by a test that counts them."""
READ = ("json", "jsonl", "yaml")
"""Languages of data, which is read wherever it stands."""

RUN = """
import ast, asyncio, inspect, json, sys
for where, code in json.load(sys.stdin):
    page = where.partition(":")[0]
    if page != globals().get("last"):
        last, scope = page, {"__name__": "example"}
    work = eval(compile(code, where, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT), scope)
    if inspect.iscoroutine(work):
        asyncio.run(work)
    print(where)
"""
"""Runs examples one after another; those of one page share their names."""


def test_every_example_is_run_or_marked_as_a_fragment() -> None:
    """A fragment cannot be run as it stands: the word behind its language, which readers do not see, says so."""
    for page in PAGES:
        found = blocks(page)
        fences = re.findall(r"^\s*```", page.read_text("utf-8"), re.MULTILINE)
        assert len(fences) == 2 * len(found), f"{page.name}: an example begins at the left edge, and ends with ```"
        is_run = {*READ, *(("python",) if page.parent == DOCS else ()), *RUN_BY.get(_name(page), ())}
        for block in found:
            assert not set(block.words) - {"fragment", block.file}, f"{block.where}: {block.words}"
            assert block.is_fragment or block.language in is_run, f"nothing runs {block.where}: run it, or mark it"


def test_targets_of_make_that_are_named_exist() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE))
    named = {word for block in all_blocks("bash") for word in re.findall(r"^make ([a-z-]+)", block.code, re.MULTILINE)}
    assert named <= targets
    assert len(named) > 5


def test_conditions_of_templates_are_understood() -> None:
    (block,) = runnable(DOCS / "templates.md", "text")
    assert [len(conditions.parse(line)) for line in block.code.splitlines()] == [1, 1, 2]


# Python


def test_python_examples_compile_and_import_what_is_there() -> None:
    checked = 0
    for block in all_blocks("python"):
        tree = compile(block.code, block.where, "exec", flags=ast.PyCF_ONLY_AST | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        if block.is_fragment:
            continue
        own = {Path(other.file).stem for other in blocks(block.page, "python") if other.file}
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and node.module and node.module not in own:
                module = importlib.import_module(node.module)
                missing = [name.name for name in node.names if not hasattr(module, name.name)]
                assert not missing, f"{block.where}: {node.module} has no {missing}"
        checked += 1
    assert checked >= 10


def test_python_examples_run(server: RedisServer, tmp_path: Path) -> None:
    """In a process of their own: what they define registers itself."""
    pages = [page for page in PAGES if page.parent == DOCS and "python" not in RUN_BY.get(_name(page), ())]
    chosen = [block for page in pages for block in runnable(page, "python") if not block.file]
    given = [(block.where, block.code.replace("redis://127.0.0.1:6379", server.url)) for block in chosen]
    (prompt,) = runnable(DOCS / "working-memory.md", "text")
    before = next(index for index, block in enumerate(chosen) if block.page == prompt.page)
    given[before] = (given[before][0], f"{given[before][1]}\nassert prompt + '\\n' == {prompt.code!r}, prompt")
    done = subprocess.run(
        [sys.executable, "-c", RUN], input=json.dumps(given), cwd=tmp_path, capture_output=True, text=True, timeout=60,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == [block.where for block in chosen]


# A program of somebody else


async def test_the_programs_of_the_page_on_own_programs_run(dsn: str, tmp_path: Path) -> None:
    page = DOCS / "own-program.md"
    files = {block.file: block.code for block in blocks(page, "python") if block.file}
    assert set(files) == {"agents.py", "ask.py", "web.py"}
    port = str(free_port())
    for name, code in files.items():
        (tmp_path / name).write_text(code.replace("8500", port), "utf-8")
    script = [call("stocktool", item="lamps"), call("finalanswertool", answer="There are 42.", status="completed")]
    async with serve_model([*script, *script]) as model:
        env = _environment(DATABASE_URL=dsn, LLM_BASE_URL=model.url)
        said = await _run(sys.executable, "ask.py", cwd=tmp_path, env=env)
        assert said.splitlines() == ["There are 42."], "and nothing of ours on its output"
        assert "42 pieces of lamps" in str(model.requests[1])
        web = await asyncio.create_subprocess_exec(
            sys.executable, "web.py", cwd=tmp_path, env=env, stderr=asyncio.subprocess.DEVNULL
        )
        try:
            base = f"http://127.0.0.1:{port}"
            await answering(f"{base}/hello")
            (shell,) = runnable(page, "bash")
            said = await _run("bash", "-ec", shell.code.replace("8500", port))
            assert said.startswith('"This route is yours."')
            assert '"id":"clerk"' in said
            async with aiohttp.ClientSession(base) as http:
                body = {"model": "clerk", "messages": [{"role": "user", "content": "How many lamps do we have?"}]}
                async with http.post("/v1/chat/completions", json=body) as response:
                    assert (await response.json())["choices"][0]["message"]["content"] == "There are 42."
        finally:
            web.send_signal(signal.SIGINT)
            async with asyncio.timeout(30):
                await web.wait()


# Shell


def test_shell_examples_are_read_by_bash() -> None:
    for block in all_blocks("bash", "sh"):
        done = subprocess.run(["bash", "-n"], input=block.code, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{block.where}: {done.stderr}"


def test_commands_and_their_options_are_there() -> None:
    """Every `longhouse …` of an example, and of the running text."""
    checked = 0
    for page in PAGES:
        fenced = [line for block in blocks(page, "bash", "sh", "text") for line in block.code.splitlines()]
        inline = re.findall(r"`(longhouse [a-z][^`\n]*)`", page.read_text("utf-8"))
        for line in [*fenced, *inline]:
            if found := re.match(r"\s*(?:\$ )?longhouse ([a-z].*)", line.partition("  #")[0]):
                _check_command(page, found[1])
                checked += 1
    assert checked > 30


def _check_command(page: Path, words: str) -> None:
    command: Any = typer.main.get_command(cli)
    options: set[str] = set()
    for word in re.sub(r"[\[\]…,;:.]+(?=\s|$)|\[", " ", words).split():
        if word.startswith("--"):
            options.add(word.partition("=")[0])
        elif hasattr(command, "commands"):
            assert word in command.commands, f"{page.name}: there is no `longhouse {words}`"
            command = command.commands[word]
    known = {name for parameter in command.params for name in [*parameter.opts, *parameter.secondary_opts]}
    assert options <= known, f"{page.name}: `longhouse {words}` has {sorted(known)}"


async def test_requests_to_the_admin_api_run_and_answer_as_written(
    serving: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LONGHOUSE_SECRET_WEATHER_KEY", "key-of-the-weather")
    async with serving([], llm_api_key="sk-x") as house:
        (publish, policy, trial), (answer,) = runnable(DOCS / "admin.md", "bash"), blocks(DOCS / "admin.md", "json")
        assert json.loads(await _curl(publish, house.url)) == json.loads(answer.code)
        assert json.loads(await _curl(policy, house.url))["effective"]["risk_level"] == "high"
        assert json.loads(await _curl(trial, house.url))["status"] == "ok"
        for page, route in [("templates.md", "/admin/templates"), ("remote-tools.md", "/admin/tools")]:
            (block,) = blocks(DOCS / page, "json")
            async with house.http.post(route, json=json.loads(block.code)) as response:
                assert response.status in (200, 201), f"{block.where}: {await response.text()}"
        (approve,) = runnable(DOCS / "approval.md", "bash")
        assert json.loads(await _curl(approve, house.url, ID="nobody_1"))["error"]["code"] == "session_not_found"


async def test_requests_to_agents_and_for_documents_run(serving: Serving, tmp_path: Path) -> None:
    async with serving() as house:
        ask, add = runnable(DOCS / "documents.md", "bash")
        assert "You asked: 'What happens to a worker that was believed dead?'" in await _curl(ask, house.url)
        said = await _curl(add, house.url, cwd=tmp_path)
        assert ('"change":"added"' in said, '"change":"unchanged"' in said) == (True, False), said
        assert said.count('"reg_id":"house_rules"') >= 2, said
        (talk,) = runnable(DOCS / "clients.md", "bash")
        said = await _curl(talk, house.url)
        assert "which city are you in?" in said
        assert "You answered: 'Oslo'" in said
        (program,) = runnable(DOCS / "responses.md", "python")
        code = program.code.replace(f"http://127.0.0.1:{PORT}", house.url)
        said = await _run(sys.executable, "-c", code, cwd=tmp_path, env=dict(os.environ))
        assert "which city are you in?" in said
        assert "You answered: 'In Oslo.'" in said


def test_other_data_can_be_read(tmp_path: Path) -> None:
    for block in all_blocks("json"):
        json.loads(block.code)
    for block in all_blocks("jsonl"):
        assert all(isinstance(json.loads(line), dict) for line in block.code.splitlines())
    for block in all_blocks("yaml"):
        kind = list if block.is_fragment else dict
        assert isinstance(yaml.safe_load(block.code), kind)
    (servers,) = blocks(DOCS / "mcp.md", "json")
    (tmp_path / "mcp.json").write_text(servers.code, "utf-8")
    named = read_servers(tmp_path / "mcp.json", {"FILES_TOKEN": "f", "TICKETS_KEY": "t"})
    assert [one.name for one in named] == ["files", "tickets"]


# Names and links


def test_links_lead_somewhere() -> None:
    checked = 0
    for page in PAGES:
        for target in re.findall(r"\]\(([^)\s]+)\)", _prose(page)):
            if "://" in target:
                continue
            path, _, anchor = target.partition("#")
            to = (page.parent / path).resolve() if path else page
            assert to.exists(), f"{page.name} links to {target}"
            assert not anchor or anchor in _anchors(to), f"{page.name} links to {target}"
            checked += 1
    assert checked > 50


def test_files_that_are_named_exist() -> None:
    known = [path.relative_to(ROOT).as_posix() for path in _files()]
    for page in PAGES:
        if page.name == "CHANGELOG.md":
            continue  # it tells of what is gone
        examples = {block.file for block in blocks(page, "python")}
        spans = " ".join(re.findall(r"`([^`]+)`", _prose(page)))
        for name in re.findall(r"(?<![\w./-])(?:longhouse/)?([\w-][\w./-]*\.py)\b", spans):
            is_known = name in examples or any(f"/{path}".endswith(f"/{name}") for path in known)
            assert is_known, f"{page.name} names {name}"


def test_the_way_of_a_prompt_has_at_most_ten_hops_and_each_exists() -> None:
    (drawn,) = runnable(DOCS / "architecture.md", "text")
    hops = re.findall(r"^ *(\d+) +(\S+\.py) +([\w.]+)\(\)", drawn.code, re.MULTILINE)
    assert [int(number) for number, _, _ in hops] == list(range(1, len(hops) + 1))
    assert 5 <= len(hops) <= 10
    for _, path, name in hops:
        assert name in _defined(SOURCE / path), f"{path} has no {name}"


SEED_NAMES = """
    AgentFactory AgentRegistry NextStepToolStub NextStepToolsBuilder PromptLoader SessionRunner ToolExecutor
    ToolRegistry MCPBaseTool
    stream_with_context execute_task set_subagent_contexts skip_validation
    _prepare_tools _reasoning_phase _select_action_phase _action_phase _save_agent_log
"""


def test_the_page_of_names_has_what_people_look_for() -> None:
    page = (DOCS / "names.md").read_text()
    assert [name for name in SEED_NAMES.split() if f"`{name}" not in page] == []


def test_functions_that_are_named_beside_their_file_exist() -> None:
    """`name()` of `file.py`, as architecture, glossary, contributing and decisions write it."""
    checked = 0
    for page in [
        DOCS / "architecture.md",
        DOCS / "glossary.md",
        ROOT / "CONTRIBUTING.md",
        *(DOCS / "decisions").glob("*.md"),
    ]:
        for name, path in re.findall(r"`([\w.]+)(?:\(\))?` (?:of|in) `([\w/]+\.py)`", page.read_text("utf-8")):
            file = next(top / path for top in (SOURCE, ROOT) if (top / path).is_file())
            assert name in _defined(file), f"{page.name}: {path} has no {name}"
            checked += 1
    assert checked > 10


def test_the_page_of_settings_has_each_setting_and_no_other() -> None:
    """A line may name several: behind the first, `_MODEL` stands for one that begins like it."""
    settings = {f"LONGHOUSE_{name.upper()}" for name in Settings.model_fields}
    shown = set()
    for cell in re.findall(r"^\| (`LONGHOUSE_[^|]*) \|", (DOCS / "settings.md").read_text("utf-8"), re.MULTILINE):
        first, *others = re.findall(r"`([A-Z_]+)(?:<NAME>\w*)?`", cell)
        shown.add(first)
        for other in others:
            begun = [first[:place] for place, character in enumerate(first) if character == "_"]
            whole = [other] if other.startswith("LONGHOUSE_") else [one + other for one in begun]
            assert settings & {*whole}, f"settings.md: {other} behind {first} is no setting"
            shown |= settings & {*whole}
    assert shown - {"LONGHOUSE_SECRET_"} == settings


def _name(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def _prose(page: Path) -> str:
    return re.sub(r"^```.*?^```$", "", page.read_text("utf-8"), flags=re.DOTALL | re.MULTILINE)


def _anchors(page: Path) -> set[str]:
    heads = re.findall(r"^#+ (.*)$", _prose(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads}


@cache
def _files() -> tuple[Path, ...]:
    tops = ("src", "tests", "chaos", "clients", "tests_model", "bench", "examples", "training")
    return tuple(path for top in tops for path in (ROOT / top).rglob("*.py"))


@cache
def _defined(file: Path) -> set[str]:
    """Functions, classes, methods (also as `Class.method`) and constants of a module."""
    names = set()

    def look(nodes: list[ast.stmt], prefix: str) -> None:
        for node in nodes:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                names.update({node.name, prefix + node.name})
                look(node.body, f"{node.name}." if isinstance(node, ast.ClassDef) else prefix)
            elif isinstance(node, ast.Assign | ast.AnnAssign):
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                names.update(prefix + target.id for target in targets if isinstance(target, ast.Name))

    look(ast.parse(file.read_text("utf-8")).body, "")
    return names


# Running things


def _environment(**settings: str) -> dict[str, str]:
    named = {f"LONGHOUSE_{name.upper()}": value for name, value in {**NO_FILES, **settings}.items()}
    return {**os.environ, **named}


async def _run(*command: str, **options: Any) -> str:
    started = await asyncio.create_subprocess_exec(
        *command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE, **options
    )
    async with asyncio.timeout(60):
        output, trouble = await started.communicate()
    assert started.returncode == 0, trouble.decode()
    return output.decode()


async def _curl(block: Block, url: str, *, cwd: Path | None = None, **environment: str) -> str:
    code = re.sub(rf"(http://127\.0\.0\.1|localhost):{PORT}", url, block.code).replace("curl -X", "curl -s -X")
    return await _run("bash", "-ec", code, env={**os.environ, **environment}, cwd=cwd)
