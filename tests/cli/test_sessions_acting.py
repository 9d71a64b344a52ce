"""`longhouse sessions approve | deny | settle | answer | cancel | tail`: acting in sessions from the command line."""

import io
import json
import re
from typing import Any, ClassVar

import pytest
import typer

from delegating_server import (
    CAST,
    PLAIN,
    SignTool,
    agent,
    answer,
    ask,
    in_steps,
    playing,
    question,
    session_of,
    task_of,
)
from longhouse.agents.strategies.protocol import Body
from longhouse.api.sessions import tree_reader
from longhouse.cli.sessions import commands
from longhouse.errors import SetupError
from longhouse.journal import events
from longhouse.journal.events import Effect
from longhouse.models.scripted import Hang, Say, call, calls, say
from longhouse.settings import Settings
from longhouse.store import journals
from longhouse.tools import BaseTool, ToolContext
from longhouse.tools.outcomes import CallError
from server_helpers import Serving


class PayTool(BaseTool):
    """Pay somebody."""

    needs_approval: ClassVar[bool] = True
    to: str

    async def __call__(self, context: ToolContext, config: Any = None, **kwargs: Any) -> str:
        return "paid"


class WireTool(BaseTool):
    """Send money, once; the bank does not answer."""

    effect: ClassVar[Effect] = "once"

    async def __call__(self, context: ToolContext, config: Any = None, **kwargs: Any) -> str:
        raise CallError("the bank did not answer", in_doubt=True)


def ben(body: Body) -> Say:
    says = (call("signtool"), answer("Fine.")) if task_of(body) == "Oslo" else (question("Which?"),)
    return in_steps(*says)(body)


class Terminal(io.StringIO):
    """What somebody types."""

    def isatty(self) -> bool:
        return True


async def test_what_a_session_waits_for_is_answered_and_decided(
    serving: Serving, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    signs = calls(call("signtool"), call("signtool"))
    roles = {"master": in_steps(ask("ben", "Go."), signs, answer("\x1b[2JAll done."))}
    async with playing(serving, {**roles, "ben": ben}) as house:
        settings = Settings(database_url=serving.dsn)
        session_id = (await house.say("Go.", model="master"))["model"]
        short = session_id.rpartition("_")[2][:8]
        capsys.readouterr()

        async def said(name: str, *arguments: str | None) -> str:
            await getattr(commands, name)(settings, short, *arguments)
            return capsys.readouterr().out.splitlines()[-1]  # the server in this process logs there too

        with pytest.raises(SetupError, match="no call waits for approval"):
            await said("approve_call")
        assert await said("answer_question", "Oslo") == "ben/1-action-0 is answered"
        await house.until(session_id, "WAITING_FOR_APPROVAL")
        child = await session_of(house.db, "ben")
        assert await said("deny_call", None, "not now") == "ben/2-action-0 is denied"
        await house.until(child, "COMPLETED")
        await house.until(session_id, "WAITING_FOR_APPROVAL")
        with pytest.raises(SetupError, match="several calls wait: 2-action-0, 2-action-1; name one"):
            await said("approve_call")
        with monkeypatch.context() as terminal:
            terminal.setattr("sys.stdin", Terminal("n\n"))
            with pytest.raises(typer.Abort):
                await said("approve_call", "2-action-1")
        assert "signtool {}\nApprove it? [y/N]: " in capsys.readouterr().out, "whoever is asked reads what it is"
        assert await said("approve_call", "2-action-1") == "2-action-1 is approved"
        assert await said("deny_call", "2-action-0") == "2-action-0 is denied"
        await house.until(session_id, "COMPLETED")
        with pytest.raises(SetupError, match="it asks nothing"):
            await said("answer_question", "again")
        await journals.note(house.db, session_id, [events.Spent(usage=events.Usage(), title="Papers")])
        await commands.tail_session(settings, short, last=100)
        lines = re.findall(r"^\d\d:\d\d:\d\d  (.*)$", capsys.readouterr().out, re.MULTILINE)
        assert lines[:2] == ["master  is told: Go.", "master  begins a turn"]
        told = ["  ben  asks: Which? (1-action-0)", "  ben  deny by cli: not now (2-action-0)", "master  gets: signed"]
        places = [lines.index(line) for line in told]
        assert places == sorted(places)
        assert lines[-2:] == ["master  answers: \\u001b[2JAll done.", "master  is titled: Papers"]
        monkeypatch.setattr(tree_reader, "PAGE", 3)
        await commands.tail_session(settings, short, last=9)
        again = re.findall(r"^\d\d:\d\d:\d\d  (.*)$", capsys.readouterr().out, re.MULTILINE)
        assert again == lines[-9:], "however long the journals are, the last lines are the latest"
        with pytest.raises(SetupError, match="there is no session ''"):
            await commands.show_session(settings, "")
        with pytest.raises(SetupError, match="there is no session"):
            await commands.cancel_turn(settings, "no\x00where")


async def test_who_approves_reads_all_that_will_run(serving: Serving, capsys: pytest.CaptureFixture[str]) -> None:
    to = f"Bob\u115f\ufe0f  {'x' * 30_000} TAIL 👩\u200d👧"
    pays = agent("master", tools=(*PLAIN, "paytool"))
    roles = {"master": in_steps(call("paytool", to=to), answer("Done."))}
    async with playing(serving, roles, templates=(pays, *CAST[1:]), tools=[SignTool, PayTool]) as house:
        settings = Settings(database_url=serving.dsn)
        session_id = (await house.say("Go.", model="master"))["model"]
        await house.until(session_id, "WAITING_FOR_APPROVAL")
        capsys.readouterr()
        await commands.approve_call(settings, session_id)
        shown, settled = capsys.readouterr().out.splitlines()[-2:]
        assert settled == "1-action-0 is approved"
        arguments = shown.removeprefix("paytool ")
        assert "Bob\\u115f\\ufe0f  xx" in arguments, "what nobody sees is written out, and spaces stay"
        assert arguments.endswith('TAIL 👩\u200d👧"}'), "what is one picture stays so, and nothing is cut"
        assert json.loads(arguments) == {"to": to}


async def test_an_unknown_outcome_is_settled_and_a_call_in_the_background_is_decided(
    serving: Serving, capsys: pytest.CaptureFixture[str]
) -> None:
    begins = calls(ask("ben", "Oslo", wait=False), call("wiretool"))
    roles = {"master": in_steps(begins, call("wiretool"), answer("Done.")), "ben": ben}
    wires = agent("master", tools=(*PLAIN, "wiretool"))
    async with playing(serving, roles, templates=(wires, *CAST[1:]), tools=[SignTool, WireTool]) as house:
        settings = Settings(database_url=serving.dsn)
        session_id = (await house.say("Go.", model="master"))["model"]
        with pytest.raises(SetupError, match=r"use `longhouse sessions settle`"):
            await commands.approve_call(settings, session_id)
        with pytest.raises(SetupError, match="--result goes with `happened`"):
            await commands.settle_call(settings, session_id, "give-up", None, "wired")
        capsys.readouterr()
        await commands.settle_call(settings, session_id, "happened", None, "wired 5 这个")
        assert capsys.readouterr().out.splitlines()[-1] == "1-action-1 is settled: happened"
        await house.until(session_id, "WAITING_FOR_APPROVAL")
        await commands.settle_call(settings, session_id, "give-up", "2-action-0")
        await house.until(session_id, "COMPLETED")
        with pytest.raises(SetupError, match=r"has an unknown outcome .*COMPLETED"):
            await commands.settle_call(settings, session_id, "did-not-happen")
        child = await session_of(house.db, "ben")
        await house.until(child, "WAITING_FOR_APPROVAL")
        await commands.approve_call(settings, session_id, "ben/1-action-0")
        await house.until(child, "COMPLETED")
        capsys.readouterr()
        await commands.tail_session(settings, session_id, last=100)
        told = capsys.readouterr().out
        assert "master  gets: wired 5 这个" in told
        assert "give_up by cli (2-action-0)" in told


async def test_a_turn_is_cancelled_from_another_process(serving: Serving, capsys: pytest.CaptureFixture[str]) -> None:
    async with playing(serving, {"master": lambda body: say("", fault=Hang(seconds=600))}) as house:
        body = {"model": "master", "stream": True, "messages": [{"role": "user", "content": "Go."}]}
        async with house.http.post("/v1/chat/completions", json=body) as response:
            await response.content.readline()
            session_id = await session_of(house.db, "master", "root")
            await house.until(session_id, "RESEARCHING")
            await commands.cancel_turn(Settings(database_url=serving.dsn), session_id)
            assert capsys.readouterr().out.strip().endswith("CANCELLED")
            assert b'"cancelled"' in await response.read()
