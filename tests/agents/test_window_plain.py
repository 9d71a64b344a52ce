"""Earlier turns of a sub-agent are a plain talk: tasks, answers, real work; never how it thought or handed in."""

from typing import Any

import pytest

from longhouse.agents.requests import window
from longhouse.agents.template import MemoryPolicy, PromptPack, Template
from longhouse.journal import events
from longhouse.journal.messages import Assistant, Message, System, ToolResult, User
from longhouse.journal.session import Session
from server_helpers import folded, prompted, returned, started, turn_of, used

TEMPLATE = Template(name="helper", prompt_pack=PromptPack(system_prompt="Help.", initial_user_request="Please: {task}"))
NAMES = {"clocktool": "clocktool", "finalanswertool": "finalanswertool"}


def opened(side: Any = "sub") -> events.Event:
    return events.Opened(agent="helper", version=1, owner="local", conversation="c", side=side)


def turn(head: int, nth: int, *, work: bool = False) -> list[events.Event]:
    """A task, perhaps some work, and an answer that is handed in by a tool; its first event comes after `head`."""
    done: list[events.Event] = [prompted(f"task {nth}"), started(head + 1)]
    if work:
        done += [events.Replied(), used(f"{nth}-action-0"), returned(f"{nth}-action-0", "noon")]
    call = f"{nth}-action-9"
    writes = {"state": "COMPLETED", "execution_result": f"answer {nth}"}
    done += [events.Replied(), used(call, tool="finalanswertool"), returned(call, "ok", writes=writes)]
    return [*done, events.Finished(answer=f"answer {nth}")]


def after(turns: int, *, work: bool = False, side: Any = "sub") -> Session:
    """So many turns, and the next one begun."""
    session = folded(opened(side))
    for nth in range(1, turns + 1):
        session = folded(*turn(session.head, nth, work=work), session=session)
    return folded(prompted("now"), started(session.head + 1), session=session)


def composed(session: Session, **policy: Any) -> list[Message]:
    template = Template(name="helper", prompt_pack=TEMPLATE.prompt_pack, memory_policy=MemoryPolicy(**policy))
    first, *others = window.compose(session, turn_of(session), template, (), NAMES)
    assert isinstance(first, System)
    return others


def test_two_messages_after_one_call_and_four_after_two() -> None:
    now = User(content="Please: now")
    assert composed(after(0)) == [now]
    assert composed(after(1)) == [User(content="task 1"), Assistant(content="answer 1"), now]
    assert [type(one) for one in composed(after(2))] == [User, Assistant, User, Assistant, User]


def test_work_with_tools_is_kept_in_pairs() -> None:
    task, called, result, answer, now = composed(after(1, work=True))
    assert isinstance(called, Assistant)
    assert [one.function.name for one in called.tool_calls] == ["clocktool"]
    assert result == ToolResult(tool_call_id="1-action-0", content="noon")
    assert (task, answer, now) == (
        User(content="task 1"), Assistant(content="answer 1"), User(content="Please: now"),
    )  # fmt: skip


def test_a_sub_agent_is_shown_fifty_messages_and_a_root_everything() -> None:
    assert len(composed(after(40))) == 51
    root = composed(after(40, side="root"))
    assert sum(isinstance(one, User) for one in root) == 41
    assert root[0] == User(content="Please: task 1")


@pytest.mark.parametrize("side", ["root", "sub"])
@pytest.mark.parametrize("window_size", range(10))
def test_a_window_never_begins_with_a_result(side: str, window_size: int) -> None:
    session = after(2, work=True, side=side)
    shown = composed(session, context_window=window_size)[:-1]
    assert len(shown) <= window_size
    assert not shown or not isinstance(shown[0], ToolResult)
    calls = [call.id for one in shown if isinstance(one, Assistant) for call in one.tool_calls]
    assert calls == [one.tool_call_id for one in shown if isinstance(one, ToolResult)]


def test_the_present_turn_is_always_shown_in_full() -> None:
    session = folded(
        events.Replied(), used("3-action-0"), returned("3-action-0", "noon"), events.Replied(text="hm"),
        session=after(2, work=True),
    )  # fmt: skip
    shown = composed(session, context_window=0)
    assert [type(one) for one in shown] == [User, Assistant, ToolResult, Assistant]


def test_a_history_that_came_with_the_task_is_counted_as_earlier() -> None:
    prior = (User(content="old task"), Assistant(content="old answer"))
    session = folded(opened(), prompted("now", prior=prior), started(2))
    assert composed(session) == [*prior, User(content="Please: now")]
    assert composed(session, context_window=1) == [prior[1], User(content="Please: now")]


def test_questions_of_earlier_turns_are_words_of_both() -> None:
    asked = used("1-action-0", tool="clarificationtool", question="Which?", call_kind="ask")
    session = folded(
        opened(), prompted("task 1"), started(2), events.Replied(), asked,
        returned("1-action-0", "That one.", by="user"), events.Replied(text="done"), events.Finished(answer="done"),
    )  # fmt: skip
    session = folded(prompted("now"), started(session.head + 1), session=session)
    words = [one.content for one in composed(session)]
    assert words == ["task 1", "Which?", "That one.", "done", "Please: now"]


def test_what_the_asking_agent_shares_is_in_the_system_prompt_of_this_turn_only() -> None:
    shared = (User(content="I am Алия."), Assistant(content="Hello."))
    session = folded(opened(), prompted("now", shared=shared), started(2))
    first = window.compose(session, turn_of(session), TEMPLATE, (), NAMES)[0]
    assert isinstance(first, System)
    assert first.content.endswith("user: I am Алия.\nassistant: Hello.")
    ended = folded(events.Replied(text="ok"), events.Finished(answer="ok"), session=session)
    later = folded(prompted("then"), started(ended.head + 1), session=ended)
    assert window.compose(later, turn_of(later), TEMPLATE, (), NAMES)[0] == System(content="Help.")


def test_a_summary_stays_in_front_of_whatever_the_window_shows() -> None:
    before = after(3)
    ended = folded(events.Replied(text="ok"), events.Finished(answer="ok"), session=before)
    condensed = folded(events.Condensed(upto=before.head - 2, summary="Three tasks."), session=ended)
    session = folded(prompted("later"), started(condensed.head + 1), session=condensed)
    words = [one.content for one in composed(session, context_window=1)]
    assert words == ["Summary of the conversation so far:\nThree tasks.", "ok", "Please: later"]
