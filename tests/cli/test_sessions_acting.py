"""`longhouse sessions approve | deny | answer | cancel | tail`: acting in sessions from the command line."""

import re

import pytest

from delegating_server import answer, ask, in_steps, playing, question, session_of, task_of
from longhouse.agents.strategies.protocol import Body
from longhouse.cli import sessions as commands
from longhouse.errors import SetupError
from longhouse.journal import events
from longhouse.models.scripted import Hang, Say, call, calls, say
from longhouse.settings import Settings
from longhouse.store import journals
from server_helpers import Serving


def ben(body: Body) -> Say:
    says = (call("signtool"), answer("Fine.")) if task_of(body) == "Oslo" else (question("Which?"),)
    return in_steps(*says)(body)


async def test_what_a_session_waits_for_is_answered_and_decided(
    serving: Serving, capsys: pytest.CaptureFixture[str]
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

        with pytest.raises(SetupError, match="no call of it waits for approval"):
            await said("approve_call")
        assert await said("answer_question", "Oslo") == "ben/1-action-0 is answered"
        await house.until(session_id, "WAITING_FOR_APPROVAL")
        child = await session_of(house.db, "ben")
        assert await said("deny_call", None, "not now") == "ben/2-action-0 is denied"
        await house.until(child, "COMPLETED")
        await house.until(session_id, "WAITING_FOR_APPROVAL")
        with pytest.raises(SetupError, match="several calls wait: 2-action-0, 2-action-1; name one"):
            await said("approve_call")
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
        assert lines[-2:] == ["master  answers: \\x1b[2JAll done.", "master  is titled: Papers"]
        with pytest.raises(SetupError, match="there is no session ''"):
            await commands.show_session(settings, "")
        with pytest.raises(SetupError, match="there is no session"):
            await commands.cancel_turn(settings, "no\x00where")


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
