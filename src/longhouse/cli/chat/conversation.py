"""The chat on a terminal: messages and commands, turns that can be cancelled, questions and decisions in place."""

import asyncio
import re
import shlex
import signal
import sys
import termios
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import aclosing, contextmanager, suppress
from typing import Any, Final

import aiohttp
import msgspec
from rich.console import Console
from rich.text import Text

from longhouse import clock
from longhouse.cli.chat import pages
from longhouse.cli.chat.client import ChatClient, Chunk, UnansweredError
from longhouse.cli.chat.follow import EventReader
from longhouse.cli.chat.line_editor import LineEditor, state_folder
from longhouse.cli.chat.turn_view import TurnView
from longhouse.cli.sessions.table import meant, table
from longhouse.errors import SetupError
from longhouse.journal.words.decision_words import decision_of
from longhouse.journal.words.visible_text import readable_lines

REFRESH_EVERY: Final = 0.1
PATIENCE: Final = 60
"""Seconds that a server which went away in mid-turn is waited for."""
NO: Final = re.compile(r"(?:n|no|нет|否)(?:[\s.,:;!—-]+(?P<why>.*))?", re.IGNORECASE | re.DOTALL)
HAPPENED: Final = re.compile(r"(?:h|happened)(?:\s+(?P<result>.*))?", re.IGNORECASE | re.DOTALL)
OUTCOMES: Final = {"d": "did_not_happen", "g": "give_up"}
RETRIALS: Final = {"t": "did_not_happen", "g": "give_up"}
FAILURES: Final = (aiohttp.ClientError, TimeoutError, UnansweredError)


class ChatExit(Exception):  # noqa: N818 - no error: the person has left
    """The person has left the chat."""


class TerminalChat:
    """One person at a terminal, who talks in one session at a time."""

    def __init__(self, client: ChatClient, again: Sequence[str]) -> None:
        self.client = client
        self._again = again
        """The options of the command that goes on with the session."""
        self.console = Console(highlight=False)
        self.editor = LineEditor([name.split()[0] for name in pages.HELP], state_folder())
        self.agent = ""
        self.session_id = ""
        self._was_interrupted = False
        self._said = ""
        """The name of the question whose words were said last."""

    async def hold(self, model: str) -> None:
        """Talks until the person leaves."""
        try:
            await self._begin(model)
            while True:
                await self._exchange()
        except ChatExit:
            pass
        finally:
            if self.session_id:
                self._say(f"The session: {self.session_id}", "dim")
                command = shlex.join(["longhouse", "chat", *self._again, "--model", self.session_id])
                # Not broken into lines: it is copied.
                self.console.print(Text(f"Go on with: {readable_lines(command)}", "dim"), soft_wrap=True)

    async def _begin(self, model: str) -> None:
        """Talks to this agent, or goes on with the session that the name means."""
        try:
            names = await self._agents()
            if model.partition("@")[0] in names:
                self.agent = model
                about = f"{readable_lines(self.client.url)} · {readable_lines(model)} · /help tells what you can do"
                self._say(about, "dim")
                return
            found = await self._find(model)
            if found is None:
                await self.client.get(f"/v1/models/{model}")  # says in words what is missing
                self.agent = model
                return
            await self._resume(found)
            await self._settle()
        except FAILURES as error:
            raise SetupError(self.client.reason(error)) from None

    # Reading

    async def _exchange(self) -> None:
        """One message or command, and what follows from it."""
        try:
            text = (await self.editor.message("you> ")).strip()
        except EOFError:
            raise ChatExit from None
        except KeyboardInterrupt:
            if self._was_interrupted:
                raise ChatExit from None
            self._was_interrupted = True
            self._say("Ctrl-C again leaves.", "dim")
            return
        self._was_interrupted = False
        if not text:
            return
        try:
            if not await self._is_command(text):
                await self._send(text)
            elif text.startswith("/resume"):
                await self._settle()
        except FAILURES as error:
            self._say(self.client.reason(error), "red")

    async def _is_command(self, text: str) -> bool:
        """Does what a line says that is a command."""
        if not text.startswith("/") or "\n" in text:
            return False
        await self._command(*text.split(maxsplit=1))
        return True

    async def _command(self, name: str, rest: str = "") -> None:
        match name:
            case "/help":
                self.console.print(pages.help_page())
            case "/agents":
                self.console.print(pages.agents((await self.client.get("/v1/models"))["data"], self.agent))
            case "/new":
                await self._new(rest)
            case "/sessions":
                rows = await self._sessions()
                self.console.print(
                    table(rows, clock.now(), self.console.width) if rows else Text("You have no sessions yet.", "dim")
                )
            case "/resume":
                await self._resume_named(rest)
            case "/show":
                await self._show()
            case "/exit":
                raise ChatExit
            case _:
                self._say(f"There is no command {readable_lines(name)}; /help lists those that there are.", "yellow")

    async def _agents(self) -> list[str]:
        return [one["id"] for one in (await self.client.get("/v1/models"))["data"]]

    async def _sessions(self, limit: int = 20) -> list[dict[str, Any]]:
        """The newest sessions that people have begun; those of sub-agents are part of them."""
        rows = (await self.client.get("/v1/sessions", limit="200"))["data"]
        return [row for row in rows if row["parent"] is None][:limit]

    async def _new(self, agent: str) -> None:
        if agent and agent.partition("@")[0] not in await self._agents():
            self._say(f"There is no agent {readable_lines(agent)}; /agents lists those that there are.", "yellow")
            return
        self.agent, self.session_id = agent or self.agent, ""
        self._say(f"A new session with {readable_lines(self.agent)}.", "dim")

    async def _resume_named(self, start: str) -> None:
        if not start:
            ids = [row["session_id"] for row in await self._sessions() if row["session_id"] != self.session_id]
            found = ids[0] if ids else None
        else:
            found = await self._find(start)
        if found is None:
            self._say("There is no such session; /sessions lists the newest.", "yellow")
            return
        await self._resume(found)

    async def _find(self, start: str) -> str | None:
        """The session with this id, or the one of the newest whose id begins so; None if there is none, or several."""
        ids = [row["session_id"] for row in await self._sessions(200)]
        if start in ids:
            return start
        if len(found := meant(ids, start)) == 1:
            return found[0]
        with suppress(UnansweredError):
            return str((await self.client.get(f"/v1/sessions/{start}"))["session_id"])
        return None

    async def _resume(self, session_id: str) -> None:
        """Shows the talk so far, and goes on with what runs."""
        after = await self.client.now(session_id)
        timeline = await self.client.get(f"/v1/sessions/{session_id}/timeline", turns="20")
        session = await self.client.get(f"/v1/sessions/{session_id}")
        self.session_id, self.agent = session_id, session["template"]
        for part in pages.talk(timeline, session):
            self.console.print(part)
        if session["state"] in pages.MOVING:
            await self._watch(self._events(after))

    async def _show(self) -> None:
        if not self.session_id:
            self._say("There is no session yet: say something, or /resume one.", "yellow")
            return
        self.console.print(pages.tree(await self.client.get(f"/v1/sessions/{self.session_id}/timeline", turns="10")))

    # Turns

    async def _send(self, text: str, reply_to: str = "") -> None:
        self.console.print()
        await self._watch(self.client.say(self.session_id or self.agent, text, reply_to))
        await self._settle()

    async def _events(self, after: str, tools: dict[str, str] | None = None) -> AsyncIterator[Chunk]:
        """What the session does after this place, until it rests."""
        reader = EventReader(self.agent, tools or {})
        async with aclosing(self.client.events(self.session_id, after)) as events:
            async for event in events:
                for chunk in reader.chunks(event):
                    yield chunk

    async def _watch(self, chunks: AsyncIterator[Chunk]) -> None:
        """Draws a turn until it ends, waits for a person, or is cancelled."""
        view = TurnView(self.console, self.agent)
        reading = asyncio.create_task(self._read(chunks, view))
        presses, cancelling = 0, set[asyncio.Task[None]]()

        def on_interrupt() -> None:
            nonlocal presses
            presses += 1
            if presses == 1 and self.session_id:
                view.note("cancelling; Ctrl-C again leaves")
                cancelling.add(asyncio.create_task(self._cancel()))
            else:
                reading.cancel()

        with _interrupts(on_interrupt), _unechoed(), view.drawn():
            while not reading.done():
                view.refresh()
                await asyncio.wait({reading}, timeout=REFRESH_EVERY)
            waiting_for = view.last.get("waiting_for")
            self._said = view.last["name"] if waiting_for == "clarification" else ""
            view.end(keeps_tail=waiting_for != "approval")
        await asyncio.gather(*cancelling)
        if presses > 1:
            reading.cancelled() or reading.exception()  # what it says does not matter any more
            raise ChatExit
        if reading.cancelled():
            self._say("The message was not sent; no session began.", "yellow")
            return
        await self._explain(reading.exception())

    async def _read(self, chunks: AsyncIterator[Chunk], view: TurnView) -> None:
        async for chunk in chunks:
            self.session_id = chunk.get("model") or self.session_id
            view.show(chunk)
            self.agent = view.agent

    async def _cancel(self) -> None:
        with suppress(*FAILURES):
            await self.client.post(f"/v1/sessions/{self.session_id}/cancel")

    async def _explain(self, error: BaseException | None) -> None:
        """Why a turn ended without an answer; a server that went away in mid-turn is waited for."""
        if error is None:
            return
        if isinstance(error, UnansweredError):
            is_wanted = error.code == "cancelled"
            self._say("Cancelled." if is_wanted else str(error), "yellow" if is_wanted else "red")
            return
        if not isinstance(error, FAILURES) or not self.session_id:
            raise error
        await self._reconnect()

    async def _reconnect(self) -> None:
        """Waits for the server, then goes on with the session: nothing that was sent is lost."""
        self._say("The connection was lost. Reconnecting…", "yellow")
        session, after = None, ""
        with suppress(TimeoutError):
            async with asyncio.timeout(PATIENCE):
                while session is None:
                    with suppress(*FAILURES):
                        after = await self.client.now(self.session_id)
                        session = await self.client.get(f"/v1/sessions/{self.session_id}")
                    await asyncio.sleep(0.5)
        if session is None:
            self._say("It did not come back; the session is kept, /resume goes on with it.", "red")
            return
        self._say("Connected again.", "dim")
        if session["state"] in pages.MOVING:
            await self._watch(self._events(after))
            return
        for part in pages.result(session):
            self.console.print(part)

    # Questions and decisions

    async def _settle(self) -> None:
        """Asks the person what the session waits for, until it waits for nothing or the person goes on later."""
        while self.session_id:
            session = await self.client.get(f"/v1/sessions/{self.session_id}")
            questions = [one for one in session["questions"] if one["kind"] != "client"]
            if not questions:
                self._tell_of_client(session["questions"])
                return
            first, *others = sorted(questions, key=lambda one: one["kind"] != "clarification")
            settled = self._answer(first) if first["kind"] == "clarification" else self._decide(first, len(others))
            if not await settled:
                return

    def _tell_of_client(self, calls: list[dict[str, Any]]) -> None:
        """Another program runs these calls; nobody here can answer them."""
        if calls:
            tools = ", ".join(one["tool"] for one in calls)
            self._say(f"It waits for the program that runs {tools}; a message goes on without the result.", "dim")

    async def _answer(self, question: dict[str, Any]) -> bool:
        """Reads the answer to a question; its words may have been said already."""
        if self._said != question["name"]:
            self._said = question["name"]
            self.console.print(pages.question(question))
        try:
            text = (await self.editor.answer("answer> ")).strip()
        except (EOFError, KeyboardInterrupt):
            self._say("The question stays open; /resume asks it again.", "dim")
            return False
        if not text or await self._is_command(text):
            return True
        self.console.print()
        await self._watch(self.client.say(self.session_id, text, question["name"]))
        return True

    async def _decide(self, question: dict[str, Any], others: int) -> bool:
        """Shows a call that waits for a decision, reads it, and follows what it leads to."""
        self.console.print(pages.decision(question, others))
        ask = ASKS[question["kind"]]
        try:
            typed = (await self.editor.decision(ask.prompt)).strip()
        except (EOFError, KeyboardInterrupt):
            self._say("It stays undecided; /resume asks again, and so does the console.", "dim")
            return False
        if await self._is_command(typed):
            return True
        decided = ask.read(typed)
        if decided is None:
            self._say(f"{ask.keys}. Ctrl-D decides later.", "dim")
            return True
        after = await self.client.now(self.session_id)
        # To the session that asks: there its id means this call and no other, whatever has happened since.
        body = {"call_id": question["call_id"], **decided}
        await self.client.post(f"/v1/sessions/{question['session_id']}/approval", body)
        self.console.print()
        is_own = question["session_id"] == self.session_id
        tools = {question["call_id"]: question["tool"]} if is_own and "tool" in question else {}
        await self._watch(self._events(after, tools))
        return True

    def _say(self, words: str, style: str = "") -> None:
        self.console.print(Text(readable_lines(words), style=style))


def decision(typed: str) -> dict[str, str] | None:
    """What a line decides: all of it is a yes, or it begins with a no and goes on with the reason."""
    if found := decision_of(typed):
        return {"decision": found}
    refused = NO.fullmatch(typed)
    return {"decision": "deny", "comment": refused["why"] or ""} if refused else None


def outcome(typed: str) -> dict[str, str] | None:
    """What a line says of a call whose outcome is unknown."""
    if happened := HAPPENED.fullmatch(typed):
        return {"decision": "happened", "result": happened["result"] or ""}
    found = OUTCOMES.get(typed.lower()) or decision_of(typed, is_uncertain=True)
    return {"decision": found} if found else None


def retrial(typed: str) -> dict[str, str] | None:
    """What a line says of a step that lost its workers."""
    found = RETRIALS.get(typed.lower()) or decision_of(typed, is_step=True)
    return {"decision": found} if found else None


class _Ask(msgspec.Struct, frozen=True):
    """How a decision of one kind is typed."""

    prompt: str
    read: Callable[[str], dict[str, str] | None]
    keys: str


ASKS: Final = {
    "approval": _Ask("[y/n] ", decision, "y or n decides; words after n are told to the agent as the reason"),
    "unknown_outcome": _Ask(
        "[h]appened, [d]id not happen, [g]ive up: ", outcome, "h, with its result, or d or g decides"
    ),
    "worker_lost": _Ask("[t]ry again, [g]ive up: ", retrial, "t or g decides"),
}


@contextmanager
def _interrupts(callback: Callable[[], None]) -> Iterator[None]:
    """Ctrl-C calls the callback instead of ending the process."""
    loop, before = asyncio.get_running_loop(), signal.getsignal(signal.SIGINT)
    loop.add_signal_handler(signal.SIGINT, callback)
    try:
        yield
    finally:
        loop.remove_signal_handler(signal.SIGINT)
        signal.signal(signal.SIGINT, before)


@contextmanager
def _unechoed() -> Iterator[None]:
    """Keys that are pressed meanwhile are not drawn into the answer; the next prompt reads them."""
    before = termios.tcgetattr(sys.stdin)
    quiet = [*before]
    quiet[3] &= ~(termios.ECHO | termios.ICANON)
    termios.tcsetattr(sys.stdin, termios.TCSADRAIN, quiet)
    try:
        yield
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)
