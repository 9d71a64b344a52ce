"""Draws a session as a tree: turns, steps and calls, with each sub-agent below its call."""

from collections.abc import Mapping
from datetime import datetime
from typing import Final

from rich.text import Text
from rich.tree import Tree

from longhouse.api.sessions.waiting import WaitingStatus, own
from longhouse.cli.timeline import Life, TimelineStep, TimelineTurn, TimelineUse
from longhouse.journal.events import Fault
from longhouse.journal.session import Open, Session

SHOWN: Final = 120
"""Characters shown of a task, of arguments, of an outcome."""
STYLES: Final = {"COMPLETED": "green", "FAILED": "red", "CANCELLED": "yellow", "ok": "green", "error": "red"}


def plain(text: str, most: int = SHOWN) -> str:
    """Text on one line, without terminal control sequences."""
    line = " ".join(text[: 20 * most].split())
    line = line if len(line) <= most else f"{line[: most - 1]}…"
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in line)


def lasting(seconds: float) -> str:
    minutes, rest = divmod(max(0.0, seconds), 60)
    if not minutes:
        return f"{rest:.2f} s"
    hours, minutes = divmod(int(minutes), 60)
    return f"{hours} h {minutes:02} min" if hours else f"{minutes} min {rest:02.0f} s"


def drawn(lives: Mapping[str, Life], session_id: str, below: WaitingStatus, *, last: int, now: datetime) -> Tree:
    """The tree of one session; `lives` holds the session and all sub-agents that it called."""
    return _Drawing(lives, now).session(session_id, below, last)


class _Drawing:
    def __init__(self, lives: Mapping[str, Life], now: datetime) -> None:
        self._lives = lives
        self._now = now

    def session(self, session_id: str, below: WaitingStatus, last: int) -> Tree:
        life = self._lives[session_id]
        session, turns = life.session, life.turns
        root = Tree(_line(session.id, _agent(session), _state(below.state or session.state)))
        opened = f"opened {session.created_at:%Y-%m-%d %H:%M:%S}" if session.created_at else ""
        root.add(_line(f"owner {session.owner}", f"conversation {session.conversation}", opened))
        if len(turns) > last:
            root.add(_line(f"{len(turns) - last} earlier turns"))
        for number, turn in list(enumerate(turns, 1))[-last:]:
            self._add_turn(root, life, turn, f"turn {number}")
        for waiting in session.queue:
            root.add(_line("waits in the queue", _said(_words(waiting.prompt.content))))
        for question in (*own(session), *below.questions):
            root.add(_line(f"{question.session.agent} asks", question.text, question.call.call))
        return root

    def _add_turn(self, tree: Tree, life: Life, turn: TimelineTurn, name: str, path: tuple[str, ...] = ()) -> None:
        took = ((turn.ended_at or self._now) - turn.began_at).total_seconds()
        tokens = sum(step.replied.usage.total_tokens for step in turn.steps if step.replied.usage)
        spent = f"{tokens} tokens" if tokens else ""
        state = turn.ended or life.session.state
        node = tree.add(_line(name, _state(state), lasting(took), spent, _said(turn.task)))
        for number, step in enumerate(turn.steps, 1):
            self._add_step(node, life, step, number, path)
        if turn.words:
            node.add(_line("answer" if turn.ended == "COMPLETED" else "reason", _said(turn.words)))

    def _add_step(self, tree: Tree, life: Life, step: TimelineStep, number: int, path: tuple[str, ...]) -> None:
        took = (step.ended_at - step.began_at).total_seconds()
        words = step.replied.problem or step.replied.text
        node = tree.add(_line(f"step {number}", step.replied.phase, lasting(took), _said(words) if words else ""))
        for use in step.uses:
            self._add_use(node, life, use, path)

    def _add_use(self, tree: Tree, life: Life, use: TimelineUse, path: tuple[str, ...]) -> None:
        called, open_ = use.called, life.session.open.get(use.called.call)
        took = lasting(((use.ended_at or self._now) - use.began_at).total_seconds())
        status = Text("error" if isinstance(use.outcome, Fault) else "ok") if use.outcome else _waiting(open_)
        status.style = STYLES.get(status.plain, "cyan")
        node = tree.add(_line(f"{plain(called.tool)} {plain(called.arguments)}", status, took, _outcome(use)))
        task = life.tasks.get(called.call)
        child = self._lives.get(task.child) if task else None
        if task is None or child is None or f"{task.child}:{task.prompt}" in path:
            return
        name = f"{_agent(child.session)} {child.session.id}"
        turn = next((one for one in child.turns if one.prompt == task.prompt), None)
        if turn is None:
            is_queued = any(waiting.seq == task.prompt for waiting in child.session.queue)
            node.add(_line(name, "waits in its queue" if is_queued else "was cancelled before it began"))
        else:
            self._add_turn(node, child, turn, name, (*path, f"{task.child}:{task.prompt}"))


def _line(*parts: str | Text) -> Text:
    """Parts with dots between them; plain strings are stripped of control sequences here."""
    shown = (part if isinstance(part, Text) else Text(plain(part, 3 * SHOWN)) for part in parts if part)
    return Text(" · ").join(shown)


def _said(text: str) -> Text:
    return Text(f"“{plain(text)}”", style="dim")


def _state(state: str) -> Text:
    return Text(state, style=STYLES.get(state, "cyan"))


def _agent(session: Session) -> str:
    version = session.turn.version if session.turn else session.version
    label = f" ({session.label})" if session.label else ""
    return f"{session.agent}@{version}{label}"


def _outcome(use: TimelineUse) -> Text | str:
    if use.outcome is None:
        return _said(use.called.question) if use.called.question else ""
    return _said(use.outcome.message if isinstance(use.outcome, Fault) else use.outcome.content)


def _waiting(call: Open | None) -> Text:
    if call is None:
        return Text("open")
    if call.approve_by:
        return Text(f"waits for approval until {call.approve_by:%Y-%m-%d %H:%M}")
    if call.uncertain:
        return Text(f"{plain(call.doubt) or 'its worker was lost'}: did it happen?")
    return Text({"ask": "waits for an answer", "agent": "waits for the agent"}.get(call.call_kind, "running"))


def _words(content: tuple[object, ...]) -> str:
    return "\n".join(one for one in content if isinstance(one, str))
