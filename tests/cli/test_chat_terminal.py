"""`longhouse chat` on a real pseudo-terminal: what a person sees, types, pastes, decides and cancels."""

import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from delegating_server import answer, ask, in_steps, playing, question, session_of, task_of
from forked_server import Terminal
from longhouse.agents.strategies.protocol import Body
from longhouse.models.scripted import Hang, Say, ScriptedStatus, call, calls, say
from server_helpers import House, Serving

PASTED = "\x1b[200~Сначала это.\nThen 这个.\x1b[201~"
NASTY = "**Oslo** it is.\x1b[2J\x9b31m\u202e [click](javascript:alert(1))"


@contextmanager
def chatting(house: House, folder: Path, *options: str) -> Iterator[Terminal]:
    named = ("--url", house.url, *options)
    terminal = Terminal("chat", *named, XDG_STATE_HOME=str(folder), NO_COLOR="1")
    try:
        yield terminal
    finally:
        terminal.close()


def leads(body: Body) -> Say:
    """Asks an agent, then the user, then for approval; or never answers; or fails once."""
    task = task_of(body)
    if "Hang" in task:
        return say("", fault=Hang(seconds=600))
    if "Fail" in task:
        fails.append(task)
        return say("", fault=ScriptedStatus(status=503, retry_after=1.5)) if len(fails) == 1 else say("Here I am.")
    if task == "Oslo":
        return in_steps(call("signtool"), answer(NASTY))(body)
    return in_steps(calls(say("I ask. "), ask("ann", "Count.")), question("Which *city*?"))(body)


fails: list[str] = []


async def test_a_person_talks_answers_decides_cancels_and_comes_back(serving: Serving, tmp_path: Path) -> None:
    roles: dict[str, Any] = {"master": leads, "ann": in_steps(call("clocktool"), answer("Three."))}
    async with playing(serving, roles) as house:
        with chatting(house, tmp_path, "--model", "master") as terminal:
            await terminal.until("you> ")
            terminal.press(PASTED)
            await terminal.until("Then 这个.")
            terminal.press("\r")
            seen = await terminal.until("answer> ")
            assert "▸ ann Count." in seen
            assert "    ✓ clocktool {}" in seen, "what a sub-agent does is indented"
            assert "✓ ann Three." in seen
            assert seen.index("I ask.") < seen.index("▸ ann") < seen.index("Which city?")
            session_id = await session_of(house.db, "master", "root")
            assert (await house.session(session_id))["task"] == "Сначала это.\nThen 这个.", "one message"
            terminal.press("Oslo\rn\r")  # what is typed ahead decides nothing
            seen = await terminal.until("[y/n] ")
            assert "master asks" in seen
            assert "May signtool run?" in seen
            stays = seen.rpartition("Ctrl-C cancels")[2]  # behind the last frame of the status line
            assert "needs your approval" not in stays, "it is asked once"
            terminal.press("да нет\rn\r")
            await terminal.until("y or n decides")
            await terminal.until("[y/n] ")
            terminal.press("y\r")
            seen = await terminal.until("you> ")
            assert "✓ signtool" in seen
            assert "Oslo it is.\\u001b[2J\\u009b31m\\u202e [click](javascript:alert(1))" in seen
            assert "\x1b[2J" not in terminal.drawn
            assert (await house.session(session_id))["state"] == "COMPLETED"

            terminal.press("Fail.\r")
            seen = await terminal.until("Here I am.")
            assert "the model answered 503; tried again in 2 s" in seen
            await terminal.until("you> ")

            terminal.press("/new\r")
            await terminal.until("A new session with master.")
            await terminal.until("you> ")
            terminal.press("Hang.\r")
            await terminal.until("master · step 1 · thinks")
            terminal.press("\x03")
            await terminal.until("Cancelled.")
            await terminal.until("you> ")

            terminal.press("/sessions\r")
            short = session_id.rpartition("_")[2][:8]
            seen = await terminal.until(f"{short}  COMPLETED")
            assert "CANCELLED" in seen, "the newest first"
            terminal.press(f"/resume {short}\r")
            seen = await terminal.until("you> Сначала это.")
            seen = await terminal.until("Here I am.")
            assert "Oslo it is." in seen
            await terminal.until("you> ")
            terminal.press("/show\r")
            await terminal.until("turn 1 · COMPLETED")
            await terminal.until("✓ agent.ann")
            await terminal.until("you> ")
            terminal.press("\x03")
            await terminal.until("Ctrl-C again leaves.")
            await terminal.until("you> ")
            terminal.press("\x03")
            await terminal.until(f"longhouse chat --url {house.url} --model {session_id}")
            assert await terminal.ended() == 0
        history = tmp_path / "longhouse" / "chat_history"
        assert stat.S_IMODE(history.stat().st_mode) == 0o600
        assert "+Then 这个." in history.read_text("utf-8")
        assert "Oslo" not in history.read_text("utf-8"), "answers are not offered again"


async def test_what_was_left_open_is_asked_again_and_a_signal_ends_the_chat(serving: Serving, tmp_path: Path) -> None:
    def signs(body: Body) -> Say:
        says = (call("signtool"), answer("Done.")) if task_of(body) == "That." else (question("Which?"),)
        return in_steps(*says)(body)

    roles = {"master": signs}
    async with playing(serving, roles) as house:
        session_id = (await house.say("Go.", model="master"))["model"]
        with chatting(house, tmp_path, "--model", session_id.rpartition("_")[2][:6]) as terminal:
            seen = await terminal.until("answer> ")
            assert "you> Go." in seen
            assert "Which?" in seen
            assert '{"questions"' not in seen, "it is asked in words"
            terminal.press("That.\r")
            await terminal.until("[y/n] ")
            terminal.press("n not today\r")
            seen = await terminal.until("you> ")
            assert "the user did not approve this call: not today" in seen
            assert "Done." in seen
            terminal.interrupt()
            assert await terminal.ended() == 130
        with chatting(house, tmp_path, "--model", "nobody") as terminal:
            await terminal.until("'nobody' does not exist")
            assert await terminal.ended() == 1


async def test_a_call_is_decided_while_another_agent_works(serving: Serving, tmp_path: Path) -> None:
    roles: dict[str, Any] = {
        "master": in_steps(calls(ask("ann", "Sign."), ask("ben", "Work."))),
        "ann": in_steps(call("signtool"), answer("It is signed.")),
        "ben": lambda body: say("", fault=Hang(seconds=600)),
    }
    async with playing(serving, roles) as house:
        body = {"model": "master", "stream": True, "messages": [{"role": "user", "content": "Go."}]}
        async with house.http.post("/v1/chat/completions", json=body) as response:
            await response.content.readline()
        session_id = await session_of(house.db, "master", "root")
        await house.until(session_id, "WAITING_FOR_APPROVAL")
        with chatting(house, tmp_path, "--model", session_id) as terminal:
            await terminal.until("[y/n] ")
            terminal.press("/show\r")
            await terminal.until("turn 1 · ")
            await terminal.until("[y/n] ")
            terminal.press("y\r")
            seen = await terminal.until("✓ ann It is signed.")
            assert "    ✓ signtool" in seen
            assert "▸" not in seen, "what had happened before is not told again"
            assert (await house.session(await session_of(house.db, "ben")))["state"] == "RESEARCHING"
            terminal.press("\x03")
            await terminal.until("you> ")
            assert (await house.session(session_id))["state"] == "CANCELLED"
