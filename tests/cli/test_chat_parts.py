"""The parts of the chat on terminals: Markdown while it is written, events as chunks, tables, and the plain loop."""

import io
from datetime import timedelta
from typing import Any, get_args

import msgspec
import pytest
from rich.console import Console
from rich.segment import Segment

from longhouse.cli.chat import pages
from longhouse.cli.chat.client import ServerEvent
from longhouse.cli.chat.conversation import ASKS, decision, outcome, retrial
from longhouse.cli.chat.follow import EventReader
from longhouse.cli.chat.markdown import COLUMNS, SafeMarkdown, finished
from longhouse.cli.chat.plain import ChatPage
from longhouse.cli.chat.turn_view import TurnView
from longhouse.cli.one_line import plain
from longhouse.cli.sessions.table import meant, short_ids, table
from longhouse.journal.session import QuestionKind
from longhouse.journal.words.visible_text import readable_lines
from server_helpers import BEGAN

TEXT = "# Plan\n\nSome *words*.\n\n1. one\n\n2. two\n\n| a | b |\n|---|---|\n| 1 | 2 |\n\n```\nx\n\ny\n```\n\nEnd.\n"


def drawn(renderable: Any, width: int = 80) -> str:
    written = io.StringIO()
    Console(file=written, width=width, force_terminal=True, color_system=None).print(renderable)
    return written.getvalue()


def test_a_block_is_final_when_no_later_text_can_change_it() -> None:
    cuts = [finished(TEXT[:length]) for length in range(len(TEXT) + 1)]
    assert cuts == sorted(cuts), "what was printed stays printed"
    parts = sorted({TEXT[:cut] for cut in cuts})
    assert [part.removesuffix("\n\n").rpartition("\n")[2] for part in parts[1:]] == [
        "# Plan", "Some *words*.", "2. two", "| 1 | 2 |", "```",
    ]  # fmt: skip


@pytest.mark.parametrize("size", [1, 7, 10_000])
def test_an_answer_is_printed_whole_however_it_comes(size: int) -> None:
    written = io.StringIO()
    view = TurnView(Console(file=written, width=80), "master")
    for place in range(0, len(TEXT), size):
        view.show({"choices": [{"delta": {"content": TEXT[place : place + size]}}]})
        view.refresh()
        view._rests_until = 0  # a slow machine would draw more rarely
    view.end()
    words = [line.strip() for line in written.getvalue().splitlines() if line.strip()]
    assert [word for word in words if "─" not in word and "━" not in word] == [
        "master", "Plan", "Some words.", "1 one", "2 two", "a  b", "1  2", "x", "y", "End.",
    ]  # fmt: skip


def test_no_text_moves_the_cursor_or_turns_the_writing() -> None:
    hostile = "\u200f&rlm;a\x1b[2J\x9b31m\r\u202eb &#x202e;c&#27;d [x](http://e.com/\x1b]8) <img src=x onerror=y> \x07"
    text = drawn(SafeMarkdown(readable_lines(hostile)), 200)
    assert not {char for char in text if not char.isprintable()} - {"\n"}
    assert "\\u001b[2J" in text
    assert text.count("\\u202e") == 2
    assert text.count("\\u200f") == 2
    megabyte = readable_lines("word " * 200_000)
    assert finished(megabyte) == 0


def test_html_is_text() -> None:
    for written in ("Use <b>bold</b> here.", "<div>\nin a block\n</div>", "Vec<T> and <!-- a note -->"):
        assert drawn(SafeMarkdown(written)).split() == written.split()
    assert "~~" not in drawn(SafeMarkdown("~~gone~~"))


def test_a_lost_worker_is_told_and_a_state_only_where_a_turn_has_ended() -> None:
    asked = {
        "kind": "unknown_outcome", "agent": "ben", "text": "Did pay happen?", "tool": "pay", "deadline": None,
        "arguments": "{}",
    }  # fmt: skip
    assert "Its worker was lost while it ran" in drawn(pages.decision(asked, 0))
    told = {"text": "Did pay happen? It is not known: the bank is slow."}
    assert "worker" not in drawn(pages.decision(asked | told, 0)), "it has a reason of its own"
    step = {"kind": "worker_lost", "agent": "ben", "text": "Try it again?", "deadline": None}
    assert "Try it again?" in drawn(pages.decision(step, 0))
    session: dict[str, Any] = {"result": None, "error": None}
    assert [*pages.result(session | {"state": "WAITING_FOR_APPROVAL"})] == []
    assert "cancelled" in "".join(map(drawn, pages.result(session | {"state": "CANCELLED"})))


def test_agents_are_listed_with_what_they_can() -> None:
    listed = [{"id": "auto"}, {"id": "ann", "capabilities": "Counts\x1b[2J\nthings."}]
    text = drawn(pages.agents(listed, "ann"))
    assert "● ann" in text
    assert "Counts\\u001b[2J things." in text


def test_a_line_shows_what_nobody_sees_and_says_that_it_is_cut() -> None:
    assert (
        plain("pay\u115f \n\t Bob\ufe0f ❤\ufe0f 👩\u200d👩\u200d👧")
        == "pay\\u115f Bob\\ufe0f ❤\ufe0f 👩\u200d👩\u200d👧"
    )
    assert plain("x" * 120) == "x" * 120
    assert plain("x" * 121) == "x" * 119 + "…"
    assert plain("a" + " " * 9_999 + "b") == "a…"


def test_a_call_is_shown_as_what_will_run() -> None:
    asked = {
        "kind": "approval", "agent": "ben", "text": "May pay run?", "tool": "pay", "deadline": BEGAN.isoformat(),
        "arguments": '{"to":"Bob\\u202e","sum":5,"note":"a\\nb \\u001b[2J"}',
    }  # fmt: skip
    text = drawn(pages.decision(asked, 2))
    assert "ben asks" in text
    assert "Bob\\u202e" in text
    assert "b \\u001b[2J" in text
    assert "2 more wait after this." in text
    long = '{"note":"' + "x" * 30_000 + '","to":"Mallory","sum":123456789012345678901234567890.10}'
    text = drawn(pages.decision(asked | {"arguments": long}, 0))
    assert text.count("x") == 30_000, "all that is approved was shown"
    assert "Mallory" in text
    assert "123456789012345678901234567890.10" in text
    assert "{broken" in drawn(pages.decision(asked | {"arguments": "{broken"}, 0))


def test_the_names_of_arguments_are_text_too() -> None:
    asked = {"kind": "approval", "agent": "ben", "text": "May pay run?", "tool": "pay", "deadline": None}
    names = ("[/x]", "[link=http://e.com]to[/link]", "[conceal]sum[/conceal]", "a\x1b[2J\u202e", "n" * 500)
    given = msgspec.json.encode(dict.fromkeys(names, "v")).decode()
    text = drawn(pages.decision({**asked, "arguments": given}, 0))
    for name in ("[/x]", "[conceal]sum[/conceal]", "a\\u001b[2J\\u202e"):
        assert name in text
    assert "http://e.com" in text
    assert "\x1b" not in text
    assert text.count("n" * 30) == 16, "a long name is shown whole, and leaves room for its value"
    assert text.count(" v ") == 5


@pytest.mark.parametrize("line", ["y", "Yes!", "да", "да, согласен", "ok", "是的。", "yes please"])
def test_a_line_approves_if_all_of_it_does(line: str) -> None:
    assert decision(line) == {"decision": "approve"}


@pytest.mark.parametrize(
    "line", ["да нет", "yes I like this agent", "y not", "ok :(", "yes?", "y e s", "", "maybe", "nothing", "not yet"]
)
def test_any_other_line_decides_nothing(line: str) -> None:
    assert decision(line) is None


def test_a_reason_follows_a_no_and_a_result_follows_what_happened() -> None:
    assert decision("no") == decision("Нет.") == decision("不行") == {"decision": "deny"}
    assert decision("n not today") == {"decision": "deny", "comment": "not today"}
    assert decision("нет, дорого") == {"decision": "deny", "comment": "дорого"}
    assert outcome("h paid 5") == {"decision": "happened", "result": "paid 5"}
    assert outcome("Happened") == {"decision": "happened", "result": ""}
    assert outcome("D") == outcome("it did not happen") == {"decision": "did_not_happen"}
    assert outcome("g") == {"decision": "give_up"}
    assert retrial("T") == retrial("try again") == retrial("да") == {"decision": "did_not_happen"}
    assert retrial("g") == retrial("no") == retrial("放弃") == {"decision": "give_up"}
    assert retrial("h") is retrial("again and again") is None
    assert set(ASKS) == {*get_args(QuestionKind)} - {"clarification", "client"}
    for line in ("d is fine", "give me a minute", "yes", "no", "", "hm"):
        assert outcome(line) is None, line


def test_what_cannot_be_laid_out_is_printed_as_it_was_written() -> None:
    row = "|" + "a|" * (COLUMNS + 1)
    wide = f"{row}\n{row.replace('a', '-')}\n{row}\n"
    assert drawn(SafeMarkdown(wide), 200).split() == wide.split(), "a table of so many columns"
    assert finished(f"{wide}\nx\n\ny\n\nz") == 0, "nor is it parsed again and again"
    tall = "a|" * 20 + "\n" + "-|" * 20 + "\n" + "x\n" * 2_000
    assert finished(f"{tall}\n\ny\n\nz\n") == 0, "nor a table of one cell a line that is made up to twenty"
    many = "|" + "a|" * 40 + "\n|" + "-|" * 40 + "\n" + "|\n" * 60
    assert drawn(SafeMarkdown(many), 200).split() == many.split(), "a table of so many cells"
    for deep in ("> " * 3_000 + "x", "- " * 40 + "x", "Some words\n\n" + "> " * 40 + "x"):
        assert "x" in drawn(SafeMarkdown(deep)), "what is nested so deep is not left out"


def test_the_unfinished_block_is_laid_out_only_so_often(monkeypatch: pytest.MonkeyPatch) -> None:
    view = TurnView(Console(file=io.StringIO(), width=80, force_terminal=True), "master")
    laid_out: list[str] = []

    def note(text: str) -> list[list[Segment]]:
        laid_out.append(text)
        return [[Segment(text)]]

    monkeypatch.setattr(view, "_lines", note)
    with view.drawn():
        for words in ("one ", "two ", "three "):
            view.show({"choices": [{"delta": {"content": words}}]})
            view.refresh()
            view._rests_until = float("inf")
        assert laid_out == ["one "], "drawing takes a fifth of the time at most"
        view.end()
    assert laid_out == ["one ", "one two three "]


def test_what_a_server_says_of_itself_is_text() -> None:
    written = io.StringIO()
    view = TurnView(Console(file=written, width=80), "master")
    activity = {"event": "subagent_completion", "agent": "ann", "depth": 1, "status": "\x1b[2Jlost", "response": ""}
    view.show({"choices": [], "x_agent": activity})
    page = ChatPage(Console(file=written, width=80))
    page.show({"choices": [{"delta": {"content": "a\u202eb\u200fc"}}]})
    assert "\\u001b[2Jlost" in written.getvalue()
    assert "a\\u202eb\\u200fc" in written.getvalue()
    text = "Внимание ⚠\ufe0f! 1\ufe0f\u20e3 是\ufe0f\n家: 👩\u200d👧 Bob 👩🏽\u200d🚀\u200d"
    for piece in text:
        page.show({"choices": [{"delta": {"content": piece}}]})
    page.end()
    assert readable_lines(text) in written.getvalue()
    assert readable_lines(text).count("\\u") == 2, "that which hides is written out"
    assert "\x1b" not in written.getvalue()


def fact(seq: int, kind: str, **event: Any) -> ServerEvent:
    return ServerEvent(kind, str(seq), {"seq": seq, "event": event})


def told(reader: EventReader, *events: ServerEvent) -> tuple[str, list[str]]:
    """What is said, and what is done."""
    chunks = [chunk for event in events for chunk in reader.chunks(event)]
    words = [choice["delta"]["content"] for chunk in chunks for choice in chunk["choices"]]
    return "".join(words), [chunk["x_agent"]["event"] for chunk in chunks if "x_agent" in chunk]


def test_events_become_what_a_chat_would_have_said() -> None:
    reader = EventReader("master", {"1-action-0": "signtool"})
    said, done = told(
        reader,
        fact(4, "Returned", call="1-action-0", outcome={"type": "Output", "content": "signed"}),
        ServerEvent("delta", "", {"kind": "content", "offset": 0, "text": "I "}),
        ServerEvent("delta", "", {"kind": "reasoning", "offset": 0, "text": "hm"}),
        ServerEvent("delta", "", {"kind": "content", "offset": 2, "text": "go"}),
        ServerEvent("retrying", "", {"reason": "the model answered 503"}),
        fact(5, "Replied", text="I go on.", said=8),
        fact(6, "Called", call="2-action-0", tool="clocktool", arguments="{}"),
        fact(7, "Returned", call="2-action-0", outcome={"type": "Fault", "code": "x", "message": "no"}),
        fact(8, "Called", call="3-action-0", tool="clarificationtool", arguments="{}", call_kind="ask"),
        fact(9, "Finished", answer="Done."),
    )
    assert said == "I go on.\n\nDone."
    assert done == ["tool_result", "retrying", "tool_call", "tool_result", "completed"]


def row(session_id: str, **values: Any) -> dict[str, Any]:
    return {
        "session_id": session_id, "state": "COMPLETED", "template": "master", "version": 1, "turns": 2, "questions": 0,
        "title": "標題 " * 50, "task": "", "created_at": BEGAN.isoformat(), **values,
    }  # fmt: skip


def test_short_ids_are_unique_and_the_table_keeps_its_columns() -> None:
    ids = ["master_abcdef01-1", "master_abcdef01-2", "sgr_agent_12345678-9"]
    short = short_ids(ids)
    assert list(short.values()) == ["abcdef01-1", "abcdef01-2", "12345678-9"]
    assert meant(ids, "1234") == meant(ids, "sgr_agent_1") == ids[2:]
    assert len(meant(ids, "abc")) == 2
    rows = [row(ids[0]), row(ids[2], state="WAITING_FOR_APPROVAL", questions=1, title="\x1b[2J")]
    owners = {ids[0]: "ann", ids[2]: "\x1b[31mben"}
    text = drawn(table(rows, BEGAN + timedelta(hours=3), 100, owners=owners), 100)
    assert "abcdef01  COMPLETED" in text
    assert "12345678  WAITING_FOR_APPROVAL (1)  master@1" in text
    assert "3 h" in text
    assert "\\u001b[31mben" in text
    assert "…" in text
    assert len(text.splitlines()) == 3
