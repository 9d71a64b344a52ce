"""What the chat prints besides turns: help, agents, the talk so far, a session as a tree, a call to decide."""

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, Final

import msgspec
from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text
from rich.tree import Tree

from longhouse.cli.chat.markdown import SafeMarkdown
from longhouse.cli.one_line import lasting, plain
from longhouse.cli.sessions.table import STYLES
from longhouse.journal.roles import role_of
from longhouse.journal.words.pending_decisions import happened
from longhouse.journal.words.visible_text import readable, readable_lines

HELP: Final = {
    "/help": "this list",
    "/agents": "the agents that can be talked to, and what each can",
    "/new [agent]": "begin a new session, with this agent or the same one",
    "/sessions": "your newest sessions",
    "/resume [id]": "go on with a session: the newest one, or the one whose id begins so",
    "/show": "what happened in this session: its turns, steps and tools",
    "/exit": "leave; Ctrl-D does the same",
}
KEYS: Final = (
    "Enter sends, Alt-Enter begins a new line, a paste of several lines is one message, the arrows go through what you"
    " wrote before. Ctrl-C cancels the turn; twice leaves."
)
MOVING: Final = ("INITED", "RESEARCHING", "WAITING_FOR_AGENT")
"""States in which something happens without a person."""
ENDED: Final = ("COMPLETED", "FAILED", "CANCELLED")
MARKS: Final = {"ok": ("✓ ", "green"), "memory": ("✓ ", "green"), "error": ("✗ ", "red"), "open": ("… ", "yellow")}
SILENT: Final = ("finishes", "reasons")
"""Roles of calls that are no work: an answer, a thought."""
NAMES: Final = 30
"""Columns for the names of arguments; a longer name goes on below."""


def help_page() -> RenderableType:
    drawn = Table.grid(padding=(0, 3))
    for name, words in HELP.items():
        drawn.add_row(Text(name, "bold"), words)
    return Group(drawn, Text(KEYS, "dim"))


def agents(listed: Sequence[Mapping[str, Any]], current: str) -> RenderableType:
    """The agents by name, each with what it can."""
    lines = Table.grid(padding=(0, 2))
    for one in listed:
        is_current = one["id"] == current
        name = Text(f"{'● ' if is_current else '  '}{plain(one['id'])}", "bold" if is_current else "")
        lines.add_row(name, Text(plain(one.get("capabilities") or ""), "dim"))
    return Group(lines, Text("/new NAME begins a session with one of them; auto chooses one that fits.", "dim"))


def talk(timeline: Mapping[str, Any], session: Mapping[str, Any]) -> Iterator[RenderableType]:
    """What was said in a session: its last turns, each with its message, its tools and its answer."""
    yield Text(f"{plain(session['session_id'])} · {plain(session['state'])}", "dim")
    if earlier := timeline["earlier_turns"]:
        yield Text(f"{earlier} earlier turns are not shown.", "dim")
    last = timeline["turns"][-1] if timeline["turns"] else None
    for turn in timeline["turns"]:
        yield Text.assemble("\n", ("you> ", "bold green"), readable_lines(turn["task"]), "\n")
        yield Text(readable(timeline["agent"]), "bold magenta")
        yield from _calls(turn)
        words = session["result"] if turn is last and session["result"] else turn["answer"]
        if words:
            yield Group(Text(), SafeMarkdown(readable_lines(words)), Text())
        if turn["state"] in ("FAILED", "CANCELLED"):
            yield Text(turn["state"].lower(), STYLES[turn["state"]])


def result(session: Mapping[str, Any]) -> Iterator[RenderableType]:
    """How a turn ended that nobody watched to its end."""
    if words := session["result"] or session["error"]:
        yield Group(SafeMarkdown(readable_lines(words)), Text())
    if session["state"] in ENDED:
        yield Text(session["state"].lower(), STYLES[session["state"]])


def _calls(turn: Mapping[str, Any]) -> Iterator[Text]:
    for call in (call for step in turn["steps"] for call in step["calls"]):
        role = role_of(call["tool"])
        # An open question is asked below, in words.
        if role not in SILENT and not (role == "asks" and call["waiting"]):
            yield Text.assemble("  ", _call(call), no_wrap=True, overflow="ellipsis")


def _call(call: Mapping[str, Any]) -> Text:
    took = f" · {lasting(_seconds(call['began_at'], call['ended_at']))}" if call["ended_at"] else ""
    said = f" · {plain(call['result'] or '')}" if call["result"] else ""
    waits = f" · waits for {'a person' if call['waiting'] == 'person' else 'an agent'}" if call["waiting"] else ""
    asked = plain(call["arguments"])
    return Text.assemble(
        MARKS[call["status"]], (readable(call["tool"]), "bold"), (f" {asked}{took}{waits}{said}", "dim")
    )


def tree(timeline: Mapping[str, Any]) -> Tree:
    """A session with its turns, steps and calls, and its sub-agents below the calls that asked them."""
    title = f"{plain(timeline['session_id'])} · {plain(timeline['agent'])}@{timeline['version']}"
    root = Tree(Text.assemble(title, " · ", (plain(timeline["state"]), STYLES.get(timeline["state"], "cyan"))))
    if timeline["earlier_turns"]:
        root.add(Text(f"{timeline['earlier_turns']} earlier turns", "dim"))
    _add_turns(root, timeline, timeline["children"], set())
    return root


def _add_turns(
    root: Tree, shown: Mapping[str, Any], children: Mapping[str, Any], above: set[str], began_at: str = ""
) -> None:
    for turn in shown["turns"]:
        if turn["began_at"] < began_at:
            continue
        words = Text.assemble(
            f"turn {turn['n']} · ",
            (plain(turn["state"]), STYLES.get(turn["state"], "cyan")),
            (f" “{plain(turn['task'])}”", "dim"),
        )
        branch = root.add(words)
        for step in turn["steps"]:
            line = branch.add(Text(f"step {step['n']} · model {lasting(step['model_seconds'])}"))
            for retry in step["retries"]:
                line.add(Text(f"tried again: {plain(retry['reason'])}", "yellow"))
            for call in (call for call in step["calls"] if role_of(call["tool"]) not in SILENT):
                called = line.add(_call(call))
                child = call["child"]
                if child in children and child not in above:
                    _add_turns(called, children[child], {}, {*above, child}, call["began_at"])
        if turn["answer"]:
            branch.add(Text(f"“{plain(turn['answer'])}”", "dim"))
        if began_at:
            return  # the turn that this call has caused


def question(asked: Mapping[str, Any]) -> RenderableType:
    """A question, with the agent that asks it."""
    words = SafeMarkdown(readable_lines(asked["text"]))
    return Group(Text(readable(asked["agent"]), "bold magenta"), words, Text())


def decision(question: Mapping[str, Any], others: int) -> RenderableType:
    """A call that waits for a person: who wants it, with which arguments, until when."""
    lines = Table.grid(padding=(0, 2))
    lines.add_column(style="dim", max_width=NAMES, overflow="fold")
    lines.add_column(overflow="fold")
    for name, value in _arguments(question.get("arguments") or "{}"):
        lines.add_row(Text(readable(name)), Text(readable_lines(value)))
    if question["deadline"] and question["kind"] == "approval":
        lines.add_row("until", Text(f"{_moment(question['deadline']):%Y-%m-%d %H:%M}", "dim"))
    parts: list[RenderableType] = [Text(readable(question["text"]), "bold"), lines]
    if question["kind"] == "unknown_outcome" and question["text"] == happened(question["tool"], ""):
        parts.insert(1, Text("Its worker was lost while it ran: it may have taken effect, or not.", "yellow"))
    if others:
        parts.append(Text(f"{others} more wait after this.", "dim"))
    asker = f"{readable(question['agent'])} asks"
    return Panel(Group(*parts), title=Text(asker), title_align="left", border_style="magenta", expand=False)


def _arguments(text: str) -> Iterator[tuple[str, str]]:
    """The arguments by name, whole and as they were written: what is approved is what runs."""
    try:
        given = msgspec.json.decode(text, type=dict[str, msgspec.Raw])
    except (msgspec.DecodeError, RecursionError):
        yield "arguments", text
        return
    for name, value in given.items():
        raw = bytes(value).decode()
        yield name, msgspec.json.decode(raw) if raw.startswith('"') else raw


def _moment(text: str) -> datetime:
    return datetime.fromisoformat(text).astimezone()


def _seconds(began_at: str, ended_at: str) -> float:
    return (_moment(ended_at) - _moment(began_at)).total_seconds()
