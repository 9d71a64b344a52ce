"""gRPC tools in sessions: called, failing, cancelled, refused; and a payment in the middle of which the house dies."""

import asyncio
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs
from test_files import written
from test_kill import each_once, left_alone, session_ids, task_of, until

from grpc_server import PROTO, GrpcServer, grpc_server
from longhouse.agents.strategies.protocol import Body
from longhouse.journal.events import Fault, Output
from longhouse.journal.messages import ToolResult, text_of
from longhouse.models.scripted import Say, call
from longhouse.models.scripted_server import serve as serve_model
from pages import ROOT, runnable
from server_helpers import House, Process, Serving, content, data_folder, free_port, launched_words, process

SECRET = "canary-of-the-grpc-till"
WORDS = "Заплатите за дождь в Осло，请付款 ☂"
AGENT = "cashier"


def files(place: str) -> str:
    """Three tools at one server, and an agent that has them."""
    return f"""
tools:
  look:
    description_short: Look something up.
    runtime_binding: {{remote_endpoint: "grpc://{place}", api_key_ref: till}}
    effect: read
    timeout: 1
  watch:
    description_short: Watch until something happens.
    runtime_binding: {{remote_endpoint: "grpc://{place}", api_key_ref: till}}
    effect: idempotent
  pay:
    description_short: Pay a bill.
    runtime_binding: {{remote_endpoint: "grpc://{place}", api_key_ref: till}}
    timeout: 60
agents:
  {AGENT}: {{base_class: ToolCallingAgent, tools: [look, watch, pay, FinalAnswerTool]}}
"""


@pytest.fixture(autouse=True)
def _secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LONGHOUSE_SECRET_TILL", SECRET)


@pytest.fixture
def folder() -> Iterator[Path]:
    with data_folder() as folder:
        yield folder


def cashier(body: Body) -> Say:
    """The task says which tool is called once, and for what; the turn ends with what the tool said."""
    results = [m for m in body.messages if isinstance(m, ToolResult)]
    if results:
        return call("finalanswertool", answer=text_of(results[-1].content))
    tool, _, do = task_of(list(body.messages)).partition(" ")
    return call(tool, do=do.split(":")[0], words=WORDS)


async def outcome(house: House, session_id: str) -> Output | Fault:
    uses = [use for step in (await house.folded(session_id)).steps for use in step.uses]
    [found] = [use.outcome for use in uses if use.tool in ("look", "pay")]
    assert found is not None
    return found


async def test_tools_of_a_file_are_called_over_grpc_and_whatever_they_do_the_session_goes_on(
    serving: Serving, tmp_path: Path, folder: Path
) -> None:
    async with grpc_server(folder, "no_probe") as served:
        given = written(tmp_path, agents=files(served.place))
        with capture_logs() as logs:
            async with serving(cashier, **given) as house:
                said = await house.say("look around", model=AGENT)
                assert WORDS in content(said)
                [asked] = served.asked()
                assert asked["arguments"] == {"do": "around", "words": WORDS}
                assert asked["key"] == f"{said['model']}:1-action-0"
                assert asked["metadata"]["authorization"] == f"Bearer {SECRET}"

                failed = content(await house.say("look raise", model=AGENT))
                assert (
                    failed == "Error: RemoteError: look answered UNKNOWN: Exception calling application: out of order"
                )
                late = await outcome(house, (await house.say("look hang", model=AGENT))["model"])
                assert late == Fault(code="timeout", message="look did not answer within 1 seconds")
                echoed = content(await house.say("look echo", model=AGENT))
                assert "[hidden]" in echoed

                # A session that is cancelled cancels its call at the server.
                await served.saw("Cancelled", 1)
                saying = asyncio.create_task(house.say("watch hang", model=AGENT))
                await served.saw("Call", 5)
                watching = served.asked()[-1]["key"].partition(":")[0]
                async with house.http.post(f"/v1/sessions/{watching}/cancel") as response:
                    assert (await response.json())["state"] == "CANCELLED"
                assert (await saying)["error"]["code"] == "cancelled"
                await served.saw("Cancelled", 2)

                # Its answer is lost, and its server does not know Probe: a person is asked.
                lost = (await house.say("pay die", model=AGENT))["model"]
                shown = await house.until(lost, "WAITING_FOR_APPROVAL")
                assert "pay was asked, and its answer was lost" in str(shown["questions"])
                await refuses_wrong_addresses(house, served.place)
        assert SECRET not in str(logs)
        assert SECRET not in echoed
        assert len(served.asked()) == 6


async def refuses_wrong_addresses(house: House, place: str) -> None:
    """What is published over the API keeps to the egress rules, and says what is wrong with an address."""
    for url, words in (
        ("grpc://127.0.0.1:50051", "127.0.0.1 is not a public address"),
        ("grpcs://localhost:50051", "localhost is not a public address"),
        ("grpc://169.254.169.254:80", "is a link-local or metadata address"),
        ("grpc://tools.example", "is grpc://host:port or grpcs://host:port, without a path"),
        ("grpc://tools.example:50051/pay", "is grpc://host:port or grpcs://host:port, without a path"),
        ("grpc://tools.example:50051?x=1", "is grpc://host:port or grpcs://host:port, without a path"),
        ("grpc://user:pass@tools.example:50051", "contains a user or a password"),
        ("grpc://:50051", "begins with http://, https://, grpc:// or grpcs:// and a host"),
        ("grpcx://tools.example:50051", "begins with http://, https://, grpc:// or grpcs:// and a host"),
        ("ipv4:127.0.0.1:50051", "begins with http://, https://, grpc:// or grpcs:// and a host"),
        ("unix:///run/tool.sock", "begins with http://, https://, grpc:// or grpcs:// and a host"),
    ):
        body = {"name": "spy", "description_short": "Looks.", "runtime_binding": {"remote_endpoint": url}}
        async with house.http.post("/admin/tools", json=body) as response:
            error = (await response.json())["error"]
        assert (response.status, error["param"]) == (400, "runtime_binding.remote_endpoint"), url
        assert words in error["message"], error["message"]
    model = {"name": "m", "llm_policy": {"base_url": "grpc://models.example:50051"}}
    async with house.http.post("/admin/templates", json=model) as response:
        error = (await response.json())["error"]
    assert (response.status, error["param"]) == (400, "llm_policy.base_url"), "no model speaks it"
    async with house.http.post("/v1/webhooks", json={"url": f"http://{place}/"}) as response:
        error = (await response.json())["error"]
    assert (response.status, error["param"]) == (400, "url"), "an endpoint of a file is for its tool alone"


async def test_a_payment_in_the_middle_of_which_the_house_is_killed_is_settled_by_its_server(
    dsn: str, tmp_path: Path, folder: Path
) -> None:
    async with serve_model(cashier) as model, grpc_server(folder) as served:
        described = {name: str(path) for name, path in written(tmp_path, agents=files(served.place)).items()}
        settings: dict[str, Any] = {"database_url": dsn, "llm_base_url": model.url, **described}
        tasks = {name: f"pay pay:{name}" for name in ("happened", "did not", "unknown")}
        said: list[str] = []
        async with process(**settings) as first:
            assert not has_grpc(first), "nobody pays for the library before the first call"
            saying = [asyncio.create_task(first.say(task, model=AGENT)) for task in tasks.values()]
            await until(lambda: len(served.asked()) == 3)
            assert has_grpc(first)
            ids = {name: (await session_ids(first))[task] for name, task in tasks.items()}
            first.kill()
            for one in saying:
                await left_alone(one)
            await first.ended()
            said += first.said
        settle(served, ids["happened"], '{"outcome": "HAPPENED", "result_json": "\\"Оплачено 付款了\\""}')
        settle(served, ids["unknown"], '{"outcome": "UNKNOWN"}')
        (folder / "go").touch()
        async with process(**settings) as second:
            assert (await second.until(ids["happened"], "COMPLETED", within=20))["result"] == "Оплачено 付款了"
            assert (await second.until(ids["did not"], "COMPLETED", within=20))["result"] == "paid"
            shown = await second.until(ids["unknown"], "WAITING_FOR_APPROVAL", within=20)
            assert [one["kind"] for one in shown["questions"]] == ["unknown_outcome"]
            asked = {one["key"] for one in served.asked("Probe")}
            assert asked == {f"{one}:1-action-0" for one in ids.values()}
            assert served.asked("Probe")[0]["arguments"] == {"do": "pay", "words": WORDS}
            made = [one["key"] for one in served.asked()]
            assert sorted(made) == sorted([*asked, f"{ids['did not']}:1-action-0"]), "under the same key, and only it"
            for name in ("happened", "did not"):
                facts = await second.facts(ids[name])
                assert each_once(facts)
                assert "probe:pay" in [fact["event"].get("by") for fact in facts]
            await decided(second, ids["unknown"])
            said += second.said
        assert SECRET not in "".join(said)
        code, words = await launched_words("tools", "check", **settings)
        assert (code, words.strip().splitlines()[-1].endswith("can be used here")) == (0, True), words


async def test_a_payment_that_ends_without_a_message_is_asked_about_and_not_made_again(
    serving: Serving, tmp_path: Path, folder: Path
) -> None:
    async with grpc_server(folder, "silent") as served:
        described: dict[str, Any] = dict(written(tmp_path, agents=files(served.place)))
        async with serving(cashier, **described) as house:
            assert content(await house.say("pay pay", model=AGENT)) == "Оплачено 付款了"
            assert [one["method"] for one in served.seen] == ["Call", "Probe"]


async def test_the_page_on_grpc_tools_is_followed_word_by_word(
    serving: Serving, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "src"))
    monkeypatch.setenv("BANK_KEY", SECRET)
    monkeypatch.setenv("LONGHOUSE_SECRET_BANK", SECRET)
    commands, program, described = runnable(ROOT / "docs" / "grpc-tools.md")
    assert [commands.language, program.file, described.language] == ["bash", "bank.py", "yaml"]
    run = ["bash", "-ec", commands.code]
    await asyncio.to_thread(subprocess.run, run, cwd=tmp_path, check=True, timeout=60)
    assert (tmp_path / "tool.proto").read_bytes() == PROTO.read_bytes()
    port = str(free_port())
    (tmp_path / "bank.py").write_text(program.code.replace("50051", port))
    given = written(tmp_path, agents=described.code.replace("50051", port))
    script = [
        call("pay", to="Алия", amount=7),
        *(call("balance"), call("pay", to="Ann", amount=700), call("finalanswertool", answer="Done.")),
    ]
    bank = await asyncio.create_subprocess_exec(sys.executable, "bank.py", cwd=tmp_path)
    try:
        await listening(int(port))
        async with serving(script, **given) as house:
            assert content(await house.say("Pay.", model="cashier")) == "Done."
            assert house.model is not None
            results = [one["content"] for one in house.model.requests[-1]["messages"] if one["role"] == "tool"]
            assert results[:2] == ["paid 7 to Алия", '{"balance":99}']
            assert "pay answered no_money: There is not enough money for this." in results[2]
    finally:
        bank.kill()
        await bank.wait()


async def listening(port: int) -> None:
    async with asyncio.timeout(30):
        while True:
            try:
                _, writer = await asyncio.open_connection("127.0.0.1", port)
            except ConnectionRefusedError:
                await asyncio.sleep(0.05)
                continue
            writer.close()
            await writer.wait_closed()
            return


def has_grpc(there: Process) -> bool:
    return "cygrpc" in Path(f"/proc/{there.process.pid}/maps").read_text()


def settle(served: GrpcServer, session_id: str, outcome: str) -> None:
    folder = served.folder / "settled"
    folder.mkdir(exist_ok=True)
    (folder / f"{session_id}:1-action-0").write_text(outcome)


async def decided(house: Process, session_id: str) -> None:
    verdict = {"call_id": "1-action-0", "decision": "happened", "result": "so says a person"}
    async with house.http.post(f"/v1/sessions/{session_id}/approval", json=verdict) as response:
        assert response.status == 202
    assert (await house.until(session_id, "COMPLETED"))["result"] == "so says a person"
