"""`longhouse sessions …`: what happened, drawn for people, and harmless on their terminals."""

import asyncio
import io
from datetime import timedelta
from typing import Any

import pytest
from rich.console import Console

from client_tools import Program
from delegating_server import CAST, SignTool, answer, ask, in_steps, playing, question, session_of
from longhouse import clock
from longhouse.agents.strategies.protocol import Body
from longhouse.api.sessions.waiting import WaitingStatus, waiting_status
from longhouse.cli.chat.plain import ChatPage
from longhouse.cli.one_line import lasting, plain
from longhouse.cli.sessions.commands import list_sessions
from longhouse.cli.sessions.tree import TreeDrawing
from longhouse.journal import events
from longhouse.journal.events import Recorded
from longhouse.journal.fold import blank, fold
from longhouse.journal.timeline import timeline_of
from longhouse.models.scripted import Say, call, calls, say
from longhouse.settings import Settings
from longhouse.store.lists.timelines import SessionTimeline, timelines_of
from server_helpers import (
    AGENT,
    BEGAN,
    House,
    Serving,
    dictated,
    launched_words,
    opened,
    prompted,
    returned,
    started,
    used,
)

NASTY = "a\x1b[31mb\x1b]0;owned\x07 \x9b31m c\u202egpj\r\nd\u200b [bold]e[/bold]"


async def shown(house: House, session_id: str, last: int = 10) -> list[str]:
    """The lines of the tree, as they are drawn where no terminal is."""
    timelines = (await timelines_of(house.db, session_id, last)).sessions
    session = await house.folded(session_id)
    below = await waiting_status(house.db, session)
    written = io.StringIO()
    console = Console(file=written, width=1_000)
    console.print(TreeDrawing(timelines, clock.now()).session(session, below))
    return written.getvalue().splitlines()


def depth(lines: list[str], words: str) -> int:
    """How far to the right the first line with these words is drawn."""
    line = next(line for line in lines if words in line)
    return len(line) - len(line.lstrip("│├└─ "))


def parts(lines: list[str], words: str) -> list[str]:
    line = next(line for line in lines if words in line)
    return line.lstrip("│├└─ ").split(" · ")


async def test_agents_are_drawn_beneath_the_calls_that_asked_them(serving: Serving) -> None:
    roles: dict[str, Any] = {
        "master": in_steps(calls(say("I ask. "), ask("analytic", "Count.")), answer("It is three.")),
        "analytic": in_steps(call("clocktool"), ask("ann", "Check."), answer("Three.")),
        "ann": in_steps(answer("Right.")),
    }
    async with playing(serving, roles) as house:
        session_id = (await house.say("How many?", model="master", chat_id=12345))["model"]
        lines = await shown(house, session_id)
        assert lines[0] == f"{session_id} · master@1 · COMPLETED"
        assert "owner local · conversation 12345 · opened 2" in lines[1]
        assert parts(lines, "turn 1")[1] == "COMPLETED"
        assert parts(lines, "turn 1")[2].endswith(" s")
        assert parts(lines, "turn 1")[3].endswith(" tokens")
        assert parts(lines, "turn 1")[4] == "“How many?”"
        assert parts(lines, "step 1")[0] == "step 1"
        assert parts(lines, "step 1")[-1] == "“I ask.”"
        tool, status, took, heard = parts(lines, "agent.analytic")
        assert (tool, status, heard) == ('agent.analytic {"task":"Count."}', "ok", "“Three.”")
        assert took.endswith(" s")
        assert parts(lines, "clocktool")[1] == "ok"
        child = await session_of(house.db, "analytic")
        assert parts(lines, child)[:2] == [f"analytic@1 {child}", "COMPLETED"]
        nested = [
            "turn 1",
            "step 1",
            "agent.analytic",
            child,
            "clocktool",
            "agent.ann",
            await session_of(house.db, "ann"),
        ]
        places = [depth(lines, words) for words in nested]
        assert places == sorted(places)
        assert len(set(places)) == len(places) - 1, "the steps of one agent stand side by side"
        assert parts(lines, "answer · “It")[:2] == ["answer", "“It is three.”"]


async def test_a_sub_agent_shows_the_turn_that_its_call_has_caused_and_no_other(serving: Serving) -> None:
    def numbers(body: Body) -> Say:
        return in_steps(ask("ann", f"Number {str(body.messages).count('Again')}."), answer("Ok."))(body)

    roles = {"master": numbers, "ann": in_steps(answer("Right."))}
    async with playing(serving, roles) as house:
        session_id = (await house.say("Go.", model="master"))["model"]
        for _ in range(2):
            await house.say("Again.", model=session_id)
        lines = await shown(house, session_id, last=2)
        assert "1 earlier turns" in "\n".join(lines)
        assert [line.count("“Number") for line in lines if "ann@1" in line] == [1, 1]
        assert ["turn 2" in line for line in lines if "turn" in line and "COMPLETED" in line][:2] == [True, False]
        assert not any("Number 0." in line for line in lines)


async def test_open_questions_are_drawn_with_who_asks(serving: Serving) -> None:
    roles = {
        "master": in_steps(calls(ask("ann", "Ask."), ask("ben", "Sign."))),
        "ann": in_steps(question("Which city?")),
        "ben": in_steps(call("signtool")),
    }
    async with playing(serving, roles) as house:
        session_id = (await house.say("Go.", model="master"))["model"]
        lines = await shown(house, session_id)
        assert lines[0].endswith("WAITING_FOR_CLARIFICATION")
        assert parts(lines, "agent.ann")[1] == "waits for the agent"
        assert parts(lines, "clarificationtool")[1] == "waits for an answer"
        assert parts(lines, "signtool {}")[1].startswith("waits for approval until ")
        assert sorted(line.lstrip("│├└─ ") for line in lines if " asks" in line) == [
            "ann asks · Which city? · 1-action-0", "ben asks · May signtool run? · 1-action-0",
        ]  # fmt: skip


async def test_a_call_that_the_client_runs_is_drawn_as_one_that_waits_for_it(serving: Serving) -> None:
    async with serving([call("get_weather", city="Oslo")]) as house:
        session_id = (await Program(house).say("Rain?"))["model"]
        lines = await shown(house, session_id)
        assert parts(lines, "get_weather {")[1] == "waits for its client"
        told = "The client runs get_weather, and has not sent its result yet."
        assert parts(lines, told) == [f"{AGENT} waits", told, "1-action-0"]


async def test_what_runs_waits_or_was_cancelled_is_drawn_as_such(serving: Serving) -> None:
    async with dictated() as model, serving(llm_base_url=model.url, templates=CAST, tools=[SignTool]) as house:
        asking = asyncio.create_task(house.say("Go.", model="master", chat_id=1))
        pen = await model.asked()
        for index in range(2):
            pen.call("agent_ann", f'{{"task": "Task {index}."}}', index=index)
        pen.end()
        await model.asked()
        session_id = await session_of(house.db, "master", "root")
        later = asyncio.create_task(house.say("Later.", model="master", chat_id=1))
        while len((await house.folded(session_id)).queue) < 1:
            await asyncio.sleep(0.01)
        lines = await shown(house, session_id)
        assert parts(lines, "turn 1")[1] == "WAITING_FOR_AGENT"
        assert [parts([line], "ann@1")[1] for line in lines if "ann@1" in line] == ["RESEARCHING", "waits in its queue"]
        assert parts(lines, "waits in the queue")[1] == "“Later.”"
        for _ in range(2):
            async with house.http.post(f"/v1/sessions/{session_id}/cancel") as response:
                assert response.status == 202
        await asyncio.gather(asking, later)
        lines = await shown(house, session_id)
        assert parts(lines, "turn 1")[1] == "CANCELLED"
        assert [parts([line], "ann@1")[1] for line in lines if "ann@1" in line] == [
            "CANCELLED", "was cancelled before it began",
        ]  # fmt: skip


async def test_nothing_that_a_terminal_would_obey_is_printed(
    serving: Serving, capsys: pytest.CaptureFixture[str]
) -> None:
    roles = {
        "master": in_steps(calls(say(NASTY), ask("ann", NASTY)), answer(NASTY)),
        "ann": in_steps(call("nosuchtool", x=NASTY), answer(NASTY)),
    }
    async with playing(serving, roles) as house:
        session_id = (await house.say(NASTY, model="master"))["model"]
        await house.db.run("UPDATE sessions SET task = :task", task=NASTY)
        lines = await shown(house, session_id)
        text = "\n".join(lines)
        assert all(char.isprintable() or char == "\n" for char in text)
        assert "\\u001b[31mb" in text
        assert "\\u202egpj d\\u200b [bold]e[/bold]" in text
        code, words = await launched_words("sessions", "show", session_id, database_url=serving.dsn)
        assert (code, words.splitlines()[-1]) == (0, lines[-1])
        assert all(char.isprintable() or char == "\n" for char in words)
        capsys.readouterr()
        await list_sessions(Settings(database_url=serving.dsn))
        words = capsys.readouterr().out
        assert session_id in words
        assert words.count("\\u001b[31mb") == 2
        assert all(char.isprintable() or char == "\n" for char in words)


async def test_sessions_are_listed_newest_first(serving: Serving, capsys: pytest.CaptureFixture[str]) -> None:
    settings = Settings(database_url=serving.dsn)
    async with playing(serving, {"master": in_steps(ask("ann", "Ask.")), "ann": in_steps(question("Which?"))}) as house:
        session_id = (await house.say("Go on.", model="master"))["model"]
        child = await session_of(house.db, "ann")
        capsys.readouterr()
        await list_sessions(settings)
        lines = [line.split("  ") for line in capsys.readouterr().out.splitlines()]
        assert [line[0] for line in lines] == [child, session_id]
        assert [line[1::2] for line in lines] == [["WAITING_FOR_CLARIFICATION", "local"]] * 2
        assert [line[4] for line in lines] == ["Ask.", "Go on."]
        await list_sessions(settings, owner="local", limit=1)
        assert capsys.readouterr().out.count("\n") == 1
        await list_sessions(settings, owner="somebody else")
        assert capsys.readouterr().out == ""


async def test_a_session_that_is_not_there_is_one_sentence(dsn: str) -> None:
    code, words = await launched_words("sessions", "show", "\x1b[31m", database_url=dsn)
    assert code == 1
    assert words == "longhouse: there is no session '\\x1b[31m'; `longhouse sessions list` shows the newest.\n"


def test_times_are_those_of_the_journal() -> None:
    story: list[tuple[int, events.Event]] = [
        (0, opened()), (0, prompted("Go.")), (1, started(2)),
        (4, events.Replied(text="Hm.")), (4, used("1-action-0")), (9, returned("1-action-0", "noon", by="memory")),
        (10, prompted("Later.")), (11, events.Replied()), (11, events.Finished(answer="Noon.")),
    ]  # fmt: skip
    moments = enumerate(story, 1)
    records = [Recorded(seq=seq, at=BEGAN + timedelta(seconds=at), event=event) for seq, (at, event) in moments]
    [turn] = timeline_of(records).turns
    assert (turn.task, turn.ended, turn.words, turn.prompt) == ("Go.", "COMPLETED", "Noon.", 2)
    first, second = turn.steps
    [use] = first.uses
    assert use.is_remembered
    assert first.ended_at - first.began_at == timedelta(seconds=3)
    assert second.ended_at - second.began_at == timedelta(seconds=1)
    assert use.ended_at is not None
    assert use.ended_at - use.began_at == timedelta(seconds=5)
    assert turn.ended_at is not None
    assert turn.ended_at - turn.began_at == timedelta(seconds=10)


@pytest.mark.parametrize(
    ("seconds", "said"),
    [(0, "0.00 s"), (0.345, "0.34 s"), (59.9, "59.90 s"), (61, "1 min 01 s"), (3_723, "1 h 02 min"), (-1, "0.00 s")],
)
def test_a_time_is_said_as_people_say_it(seconds: float, said: str) -> None:
    assert lasting(seconds) == said


def test_a_long_text_is_cut() -> None:
    assert plain("x" * 1_000_000, 10) == "xxxxxxxxx…"
    assert plain("  a \n\t b  ") == "a b"
    assert plain("\ud800\x85\u2028é🎉") == "\\ud800 é🎉"


def test_what_a_lost_server_said_is_drawn_harmless() -> None:
    lost = events.Decided(call="1-action-0", decision="unknown", by="w1", comment=NASTY)
    step = (events.Replied(), used("1-action-0", effect="once"), lost)
    story: tuple[events.Event, ...] = (opened(), prompted("Go."), started(2), *step)
    records = [Recorded(seq=seq, at=BEGAN, event=event) for seq, event in enumerate(story, 1)]
    timeline = SessionTimeline("a", "", 1, "WAITING_FOR_APPROVAL", timeline_of(records))
    session, written = fold(records, blank("a_1")), io.StringIO()
    console = Console(file=written, width=1_000)
    console.print(TreeDrawing({"a_1": timeline}, BEGAN).session(session, WaitingStatus(rests=True)))
    text = written.getvalue()
    assert "\\u202egpj d\\u200b [bold]e[/bold]: did it happen?" in text
    assert all(char.isprintable() or char == "\n" for char in text)


def test_nothing_that_is_said_in_a_chat_is_obeyed_by_its_terminal() -> None:
    page = ChatPage(Console(file=io.StringIO(), width=1_000))
    delta = {"choices": [{"delta": {"content": "Да\n是\tبوب\x1b[2J\x9b8m\r👍"}}]}
    act = {"event": "tool_call", "tool": "pay", "arguments": '{"to":"\u202eBob\u200b鲍勃"}'}
    page.show({"choices": [], "x_agent": act})
    page.show(delta)
    page.settle()
    text = page.console.file.getvalue()  # type: ignore[attr-defined]
    assert '· pay {"to":"\\u202eBob\\u200b鲍勃"}\n' in text
    assert "Да\n是" in text
    assert "بوب\\u001b[2J\\u009b8m\\r👍" in text
