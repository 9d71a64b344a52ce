"""Draws a session as a tree: turns, steps and calls, with each sub-agent below its call."""

from collections.abc import Mapping
from datetime import datetime
from typing import Final

import msgspec
from rich.text import Text
from rich.tree import Tree

from longhouse.api.sessions.waiting import WaitingStatus
from longhouse.cli.one_line import SHOWN, lasting, plain
from longhouse.journal.events import Fault
from longhouse.journal.session import Open, Session
from longhouse.journal.timeline import TimelineTurn, TimelineUse, task_of
from longhouse.store.lists.timelines import SessionTimeline

STYLES: Final = {"COMPLETED": "green", "FAILED": "red", "CANCELLED": "yellow", "ok": "green", "error": "red"}


class TreeDrawing(msgspec.Struct, frozen=True):
    """Draws a session; the timelines are those of the session and of all sub-agents that it called."""

    timelines: Mapping[str, SessionTimeline]
    now: datetime

    def session(self, session: Session, status: WaitingStatus) -> Tree:
        """The turns of the session, what waits in its queue, and what it asks."""
        shown = self.timelines[session.id]
        root = Tree(_line(session.id, _agent(shown), _state(status.state or session.state)))
        opened = f"opened {session.created_at:%Y-%m-%d %H:%M:%S}" if session.created_at else ""
        root.add(_line(f"owner {session.owner}", f"conversation {session.conversation}", opened))
        if earlier := shown.timeline.turns_before:
            root.add(_line(f"{earlier} earlier turns"))
        for turn in shown.turns:
            self._add_turn(root, shown, turn, f"turn {turn.number}")
        for waiting in session.queue:
            root.add(_line("waits in the queue", _quoted(task_of(waiting.prompt))))
        for question in status.questions:
            does = "waits" if question.call.is_client else "asks"
            root.add(_line(f"{question.session.agent} {does}", question.text, question.call.call))
        return root

    def _add_turn(
        self,
        tree: Tree,
        timeline: SessionTimeline,
        turn: TimelineTurn,
        name: str,
        path: tuple[tuple[str, int], ...] = (),
    ) -> None:
        took = ((turn.ended_at or self.now) - turn.began_at).total_seconds()
        tokens = sum(step.replied.usage.total_tokens for step in turn.steps if step.replied.usage)
        spent = f"{tokens} tokens" if tokens else ""
        state = turn.ended or timeline.state
        node = tree.add(_line(name, _state(state), lasting(took), spent, _quoted(turn.task)))
        for number, step in enumerate(turn.steps, 1):
            took, words = (step.ended_at - step.began_at).total_seconds(), step.replied.problem or step.replied.text
            line = _line(f"step {number}", step.replied.phase, lasting(took), _quoted(words) if words else "")
            branch = node.add(line)
            for use in step.uses:
                self._add_use(branch, timeline, use, path)
        if turn.words:
            node.add(_line("answer" if turn.ended == "COMPLETED" else "reason", _quoted(turn.words)))

    def _add_use(
        self, tree: Tree, timeline: SessionTimeline, use: TimelineUse, path: tuple[tuple[str, int], ...]
    ) -> None:
        called, took = use.called, ((use.ended_at or self.now) - use.began_at).total_seconds()
        if use.outcome is None:
            status, text = _waiting(timeline.timeline.open.get(called.call)), called.question
        elif isinstance(use.outcome, Fault):
            status, text = "error", use.outcome.message
        else:
            status, text = "ok", use.outcome.content
        shown = _quoted(text) if text or use.outcome else ""
        asked, by = f"{plain(called.tool)} {plain(called.arguments)}", "from memory" if use.is_remembered else ""
        node = tree.add(_line(asked, _state(status), by, lasting(took), shown))
        task = timeline.tasks.get(called.call)
        child = self.timelines.get(task[0]) if task else None
        if task is None or child is None or task in path:
            return
        name = f"{_agent(child)} {task[0]}"
        turn = next((one for one in child.turns if one.prompt == task[1]), None)
        if turn is None:
            is_queued = task[1] in child.timeline.queue
            node.add(_line(name, "waits in its queue" if is_queued else "was cancelled before it began"))
        else:
            self._add_turn(node, child, turn, name, (*path, task))


def _line(*parts: str | Text) -> Text:
    """Parts with dots between them; plain strings are stripped of control sequences here."""
    shown = (part if isinstance(part, Text) else Text(plain(part, 3 * SHOWN)) for part in parts if part)
    return Text(" · ").join(shown)


def _quoted(text: str) -> Text:
    return Text(f"“{plain(text)}”", style="dim")


def _state(state: str) -> Text:
    return Text(state, style=STYLES.get(state, "cyan"))


def _agent(shown: SessionTimeline) -> str:
    version = f"@{shown.version}" if shown.version else ""
    label = f" ({shown.label})" if shown.label else ""
    return f"{shown.agent}{version}{label}"


def _waiting(call: Open | None) -> str:
    if call is None:
        return "open"
    if call.approve_by:
        return f"waits for approval until {call.approve_by:%Y-%m-%d %H:%M}"
    if call.probed:
        return "its probe is asked whether it happened"
    if call.takes_workers:
        return "took three workers down: is it tried again?"
    if call.uncertain:
        return f"{plain(call.doubt) or 'its worker was lost'}: did it happen?"
    waits = {"ask": "waits for an answer", "agent": "waits for the agent", "client": "waits for its client"}
    return waits.get(call.call_kind, "running")
