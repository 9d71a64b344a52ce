"""Tools of foreign packages run in processes of their own: what they do there is a fault of their call, and no more."""

import asyncio
import gc
import importlib
import os
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from bench.isolation import DEADLY
from structlog.testing import capture_logs
from test_takeover import eventually

from longhouse.agents.strategies.protocol import Body
from longhouse.journal.messages import ToolResult, User, text_of
from longhouse.models.scripted import Say, call
from longhouse.models.scripted_server import serve as serve_model
from server_helpers import House, Process, Serving, content, process

TOOLS = (
    DEADLY
    + """
import asyncio
import ctypes
import os
import sys
import time
from pathlib import Path
from typing import ClassVar

from longhouse.tools import BaseTool, tool
from longhouse.tools.context import MadeFile


class Crashes(BaseTool):
    "Reads where nothing is."

    def __call__(self, context, config=None, **kwargs):
        ctypes.string_at(0)


class Burns(BaseTool):
    "Uses CPU time."

    def __call__(self, context, config=None, **kwargs):
        until = time.process_time() + 60
        while time.process_time() < until:
            pass


class Charge(BaseTool):
    "Charges a card, and ends its process."

    effect: ClassVar[str] = "once"

    async def __call__(self, context, config=None, **kwargs):
        with (Path(__file__).parent / "ledger").open("a") as ledger:
            ledger.write(context.key + "\\n")
        os._exit(0)


class Rude:
    def __str__(self):
        raise ValueError("no words")


class Bill(BaseTool):
    "Pays a bill, and then something is wrong."

    effect: ClassVar[str] = "once"
    text: str = ""

    async def __call__(self, context, config=None, **kwargs):
        if self.text == "lost":
            raise ConnectionResetError("the bank is gone")
        if self.text == "refused":
            raise ValueError("no money")
        return Rude()


class Looks(BaseTool):
    "Looks around."

    text: str = ""

    async def __call__(self, context, config=None, **kwargs):
        os.write(1, b"\\x00garbage \\xff\\n")
        print("printed", self.text)
        context.custom_context = {"looked": self.text, "before": dict(context.custom_context or {})}
        context.made.append(MadeFile(path="seen.txt", content=self.text.encode(), media_type="text/plain"))
        try:
            context.services.memory
        except RuntimeError as error:
            services = str(error)
        return "|".join([
            self.text, context.session.agent, str(config.execution.max_iterations), services, str(os.getpid()),
            ",".join(sorted(os.environ)), os.environ.get("ACME_HINT", ""), sys.stdin.read(),
        ])


class Long(BaseTool):
    "Says much."

    max_output: ClassVar[int] = 50

    def __call__(self, context, config=None, **kwargs):
        return asyncio.run(self.said())

    async def said(self):
        return "字" * 1_000_000


class Where(BaseTool):
    "Says in which process it runs."

    def __call__(self, context, config=None, **kwargs):
        return os.getpid()


@tool(isolation="process")
async def apart() -> int:
    "Says in which process it runs."
    return os.getpid()


class Raises(BaseTool):
    "Fails in words."

    async def __call__(self, context, config=None, **kwargs):
        raise ValueError("не вышло")
"""
)

LIMITED: dict[str, dict[str, Any]] = {
    "loops": {"timeout": 2.0},
    "takes": {"max_memory": 500_000_000},
    "burns": {"cpu_time": 1.0},
}
"""What descriptors say of the tools."""


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    name = f"acme_{uuid.uuid4().hex[:12]}"
    folder = tmp_path / name
    folder.mkdir()
    (folder / "__init__.py").touch()
    (folder / "tools.py").write_text(TOOLS)
    (folder / "deadly.py").write_text("import os\nos._exit(7)\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setenv("ACME_HINT", "a hint")
    monkeypatch.setenv("ACME_API_KEY", "sk-canary-77")
    return name


def clerk(body: Body) -> Say:
    """The task names the tools to use one after another; then the turn ends with what they said."""
    task = next(text_of(one.content) for one in body.messages if isinstance(one, User)).split()
    results = [text_of(one.content) for one in body.messages if isinstance(one, ToolResult)]
    if len(results) == len(task):
        return call("finalanswertool", answer="\n".join(results) or "done")
    name, _, text = task[len(results)].partition("=")
    return call(name, text=text) if text else call(name)


async def post(there: House | Process, path: str, given: Any, status: int = 201) -> Any:
    async with there.http.post(path, json=given) as response:
        assert response.status == status, await response.text()
        return await response.json()


async def furnish(there: House | Process, package: str, *names: str, **said: Any) -> None:
    """Publishes the tools, and the agent that has them."""
    for name in names:
        module = "deadly" if name == "deadly" else "tools"
        binding = {"python_entrypoint": f"{package}.{module}:{name.title()}"}
        tool = {"name": name, "description_short": name, "runtime_binding": binding, **LIMITED.get(name, {}), **said}
        await post(there, "/admin/tools", tool)
    allowed = [*names, "clocktool", "finalanswertool"]
    await post(there, "/admin/templates", {"name": "clerk", "tool_policy": {"allowlist": allowed}})


@pytest.fixture
def quick_collections() -> Iterator[None]:
    """As in `longhouse serve`: garbage collections do not look through what was there before. In a process of many
    tests that would take a second, which is noticed as a blocked event loop."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.mark.usefixtures("quick_collections")
async def test_a_tool_cannot_take_the_house_down(serving: Serving, package: str) -> None:
    deadly = ("exits", "loops", "takes", "crashes", "burns", "deadly")
    async with serving(clerk, tool_packages=package) as house:
        await furnish(house, package, *deadly, "raises")
        with capture_logs() as logs:
            guilty = [asyncio.create_task(house.say(name, model="clerk")) for name in (*deadly, "raises")]
            await eventually(lambda: any(one["event"] == "tool_process_ended" for one in logs))
            others = await asyncio.gather(
                *(house.say(f"clocktool={nth}", model="tool_calling_agent") for nth in range(20))
            )
            assert len(others) == 20
            told = dict(zip((*deadly, "raises"), map(content, await asyncio.gather(*guilty)), strict=True))
        assert told == {
            "exits": "Error: exits failed: it ended its process with the exit code 1",
            "loops": "Error: loops did not answer within 2 seconds",
            "takes": "Error: takes failed: it took more than its 0.5 GB of memory",
            "crashes": "Error: crashes failed: its process was ended by SIGSEGV",
            "burns": "Error: burns failed: it used more than its 1 seconds of CPU time",
            "deadly": "Error: deadly cannot be used: its class was not described: it ended its process with the exit"
            " code 7",
            "raises": "Error: ValueError: не вышло",
        }
        blocked = [one for one in logs if one["event"] == "event_loop_blocked"]
        assert not blocked
        ended = {one["tool"]: one["reason"] for one in logs if one["event"] == "tool_process_ended"}
        assert ended.keys() == set(deadly)
        async with house.http.get("/metrics") as response:
            numbers = await response.text()
        for cause in ("exit", "time", "memory", "signal", "cpu"):
            assert f'longhouse_tool_processes_ended_total{{cause="{cause}"}}' in numbers
        assert "longhouse_tool_processes " in numbers
        # One that was ended is replaced, and a class that the server has not imported is known all the same.
        assert content(await house.say("raises exits raises", model="clerk")).count("ValueError") == 2
        weaker = {"python_entrypoint": f"{package}.tools:Raises"}
        given = {"name": "raises", "description_short": "x", "runtime_binding": weaker, "max_memory": 5}
        await post(house, "/admin/tools", given, status=400)
        remote = {"remote_endpoint": "https://tools.example.com/x"}
        given = {"name": "far", "description_short": "x", "runtime_binding": remote, "isolation": "process"}
        refused = await post(house, "/admin/tools", given, status=400)
        assert "python_entrypoint" in refused["error"]["message"]


async def test_what_a_tool_reads_and_writes_crosses_the_boundary_and_secrets_do_not(
    serving: Serving, package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LONGHOUSE_ADMIN_KEY_CANARY", "sk-canary-78")
    async with serving(clerk, tool_packages=package, tool_environment="ACME_HINT") as house:
        await furnish(house, package, "looks", "long")
        with capture_logs() as logs:
            answered = await house.say("looks=Привет looks=你好 long", model="clerk")
            await eventually(lambda: any("你好" in one.get("line", "") for one in logs))
        first, second, long = content(answered).split("\n", 2)
        text, agent, iterations, services, pid, names, hint, typed = first.split("|")
        assert (text, agent, iterations, hint, typed) == ("Привет", "clerk", "20", "a hint", "")
        assert "isolation none" in services
        assert not {"ACME_API_KEY", "LONGHOUSE_ADMIN_KEY_CANARY"} & {*names.split(",")}
        assert second.split("|")[4] == pid, "the process is kept"
        assert int(pid) != os.getpid()
        assert long.startswith("字" * 50 + "\n[cut: 999950 of 1000000")
        session = await house.folded(answered["model"])
        kept = session.context["custom_context"]
        assert (kept["looked"], kept["before"]["looked"]) == ("你好", "Привет")
        assert [one.file.path for one in session.files] == ["seen.txt", "seen.txt"]
        assert {one["tool"] for one in logs if one["event"] == "tool_output"} == {"looks"}
        # The operator may have a tool run in the server, as one of an older release does.
        await furnish(house, package, "where", isolation="none")
        assert content(await house.say("where", model="clerk")) == str(os.getpid())
        row = await house.db.value("SELECT descriptor FROM catalog_versions WHERE name = 'long' AND version = 1")
        assert "isolation" not in row, "a release that does not know it reads the row"


async def test_a_once_tool_whose_process_ends_is_a_question_and_never_runs_twice(
    serving: Serving, package: str, tmp_path: Path
) -> None:
    async with serving(clerk, tool_packages=package) as house:
        await furnish(house, package, "charge")
        answered = await house.say("charge", model="clerk")
        shown = await house.until(answered["model"], "WAITING_FOR_APPROVAL")
        [question] = shown["questions"]
        assert question["kind"] == "unknown_outcome"
        assert "exit code 0" in str(question)
        given = {"call_id": question["call_id"], "decision": "happened", "result": "charged"}
        await post(house, f"/v1/sessions/{answered['model']}/approval", given, status=202)
        assert (await house.until(answered["model"], "COMPLETED"))["result"] == "charged"
        assert len((tmp_path / package / "ledger").read_text().split()) == 1


async def test_a_once_tool_whose_answer_is_lost_or_cannot_be_read_is_a_question(serving: Serving, package: str) -> None:
    async with serving(clerk, tool_packages=package) as house:
        await furnish(house, package, "bill")
        for text, words in (("lost", "the bank is gone"), ("rude", "no words")):
            answered = await house.say(f"bill={text}", model="clerk")
            shown = await house.until(answered["model"], "WAITING_FOR_APPROVAL")
            [question] = shown["questions"]
            assert question["kind"] == "unknown_outcome"
            assert words in str(question)
        assert "no money" in content(await house.say("bill=refused", model="clerk")), "what it says itself is known"


async def test_a_class_of_the_program_itself_says_where_it_runs(serving: Serving, package: str) -> None:
    module = importlib.import_module(f"{package}.tools")
    async with serving(clerk, tools=[module.apart, module.Where], tool_packages=package) as house:
        allowed = ["apart", "where", "finalanswertool"]
        await post(house, "/admin/templates", {"name": "clerk", "tool_policy": {"allowlist": allowed}})
        apart, here = content(await house.say("apart where", model="clerk")).split("\n")
        assert here == str(os.getpid())
        assert int(apart) in [child.pid for child in psutil.Process().children()]


async def test_a_server_that_is_killed_leaves_no_tool_process(dsn: str, package: str, tmp_path: Path) -> None:
    async with (
        serve_model(clerk) as model,
        process(database_url=dsn, llm_base_url=model.url, tool_packages=package) as house,
    ):
        await furnish(house, package, "loops", timeout=600.0)
        saying = asyncio.create_task(house.say("loops", model="clerk"))
        looping = tmp_path / package / "looping"
        await eventually(lambda: looping.exists() and looping.read_text() != "")
        child = psutil.Process(int(looping.read_text()))
        assert child.ppid() == house.process.pid
        house.kill()
        await house.ended()
        await eventually(lambda: not child.is_running() or child.status() == psutil.STATUS_ZOMBIE)
        await asyncio.gather(saying, return_exceptions=True)


SLIPS = """
import os
import time

from longhouse.tools import tool


class Thing:
    pass


@tool
def reads() -> str:
    "Reads a key."
    return _key()


def _key() -> str:
    return os.environ["WEATHER_KEY"]


@tool
def tells() -> str:
    "Raises a secret."
    raise ValueError("the key was " + os.environ["KNOWN_KEY"])


@tool
def things() -> dict:
    "Returns what is no JSON."
    return {"thing": Thing()}


@tool(timeout=1)
def sleeps() -> str:
    "Is late."
    time.sleep(60)


@tool
def plain(text: str) -> str:
    "A function that is not async."
    return text.upper()
"""


async def test_what_a_tool_raises_and_its_lateness_are_in_the_log_with_what_to_do(
    serving: Serving, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = f"slips_{uuid.uuid4().hex[:8]}"
    (tmp_path / f"{package}.py").write_text(SLIPS)
    named = ["reads", "tells", "things", "sleeps", "plain"]
    tools = ", ".join(f'"{package}:{name}"' for name in named)
    (tmp_path / "agents.yaml").write_text(
        f"tool_packages: [{package}]\nagents:\n  slips: {{tools: [{tools}, finalanswertool]}}\n"
    )
    monkeypatch.setenv("WEATHER_KEY", "w-12345678")
    monkeypatch.setenv("KNOWN_KEY", "secret-canary-77")
    script = [
        *(call(name, **({"text": "ab"} if name == "plain" else {})) for name in named),
        call("finalanswertool", answer="Done."),
    ]
    settings: dict[str, Any] = {"agents_file": tmp_path / "agents.yaml", "tool_environment": ("KNOWN_KEY",)}
    with capture_logs() as log:
        async with serving(script, **settings) as house:
            await house.say("Go", model="slips")
            assert house.model is not None
            messages = house.model.requests[-1]["messages"]
            told = dict(zip(named, [one["content"] for one in messages if one["role"] == "tool"], strict=True))
    raised = {one["tool"]: one for one in log if one["event"] == "tool_raised"}
    assert raised["reads"]["log_level"] == "warning"
    assert f'{package}.py", line' in raised["reads"]["exception"]
    assert "in _key" in raised["reads"]["exception"]
    assert raised["reads"]["message"] == (
        "WEATHER_KEY is set, but tools do not see it: name it in LONGHOUSE_TOOL_ENVIRONMENT"
    )
    assert "secret-canary-77" not in str(raised["tells"]), "values that are known as secrets are hidden"
    assert "ValueError: the key was [hidden]" in raised["tells"]["exception"]
    [late] = [one for one in log if one["event"] == "tool_timed_out"]
    assert (late["log_level"], late["tool"], late["seconds"]) == ("warning", "sleeps", 1.0)
    assert "returned an object of the class Thing, which is no JSON" in told["things"]
    things = raised["things"]
    assert (things["log_level"], things["message"]) == ("warning", "a tool has run, and what it gave is no JSON")
    assert told["plain"] == "AB"
