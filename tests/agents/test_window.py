"""The transcript that a model sees, message by message."""

from typing import Any

import msgspec
import pytest

from longhouse.agents.requests import window
from longhouse.agents.template import PromptPack, Template, ToolPolicy, render
from longhouse.agents.tool import Tool
from longhouse.journal import events
from longhouse.journal.messages import ImagePart, ImageUrl, TextPart, User
from longhouse.journal.session import Session
from server_helpers import folded, opened, prompted, returned, started, turn_of, used

TEMPLATE = Template(name="t", tool_policy=ToolPolicy(allowlist=()), prompt_pack=PromptPack(system_prompt="Be kind."))
ATTACKS = ["{available_tools.__class__}", "{{7*7}}", "{0}", "{task}", "{current_date}", "{clarifications}", "%s", "{"]


def session_of(*new: events.Event, text: str = "Will it rain?", **prompt: Any) -> Session:
    return folded(opened(), prompted(text, **prompt), started(2), *new)


def seen(session: Session, template: Template = TEMPLATE) -> list[dict[str, object]]:
    composed = window.compose(session, turn_of(session), template, [], {})
    return list(msgspec.json.decode(msgspec.json.encode([*composed])))


def ask(call: str = "1-action-0", question: str = "Which city?") -> events.Called:
    return used(call, tool="clarificationtool", arguments='{"questions": ["…"]}', call_kind="ask", question=question)


def called(id_: str, name: str, arguments: str = "{}") -> dict[str, object]:
    return {"id": id_, "type": "function", "function": {"name": name, "arguments": arguments}}


def test_a_clarification_is_a_call_its_question_and_the_users_message() -> None:
    session = session_of(events.Replied(), ask(), returned("1-action-0", "Oslo"))
    assert seen(session) == [
        {"role": "system", "content": "Be kind."},
        {"role": "user", "content": "Will it rain?"},
        {"role": "assistant", "tool_calls": [called("1-action-0", "clarificationtool", '{"questions": ["…"]}')]},
        {"role": "tool", "tool_call_id": "1-action-0", "content": "Which city?"},
        {"role": "user", "content": "Oslo"},
    ]


def test_a_clarification_beside_other_calls_keeps_results_together_and_the_answer_after_them() -> None:
    session = session_of(
        events.Replied(text="One moment."),
        used("1-action-0"),
        ask("1-action-1"),
        used("1-action-2", arguments='{"z": 1, "a": 2}'),
        returned("1-action-2", "later"),
        returned("1-action-0", "12:00"),
        returned("1-action-1", "Oslo"),
        events.Replied(text="Thanks."),
    )
    assert seen(session)[2:] == [
        {
            "role": "assistant",
            "content": "One moment.",
            "tool_calls": [
                called("1-action-0", "clocktool"),
                called("1-action-1", "clarificationtool", '{"questions": ["…"]}'),
                called("1-action-2", "clocktool", '{"z": 1, "a": 2}'),
            ],
        },
        {"role": "tool", "tool_call_id": "1-action-0", "content": "12:00"},
        {"role": "tool", "tool_call_id": "1-action-1", "content": "Which city?"},
        {"role": "tool", "tool_call_id": "1-action-2", "content": "later"},
        {"role": "user", "content": "Oslo"},
        {"role": "assistant", "content": "Thanks."},
    ]


def test_two_questions_of_one_reply_are_answered_in_their_order() -> None:
    session = session_of(
        events.Replied(),
        ask("1-action-0", "Where?"),
        ask("1-action-1", "When?"),
        returned("1-action-1", "today"),
        returned("1-action-0", "Oslo"),
    )
    assert [(message["role"], message.get("content")) for message in seen(session)[3:]] == [
        ("tool", "Where?"),
        ("tool", "When?"),
        ("user", "Oslo"),
        ("user", "today"),
    ]


def test_an_open_question_is_shown_and_a_failed_one_says_why() -> None:
    assert seen(session_of(events.Replied(), ask()))[-1] == {
        "role": "tool",
        "tool_call_id": "1-action-0",
        "content": "Which city?",
    }
    gone = events.Returned(call="1-action-0", outcome=events.Fault(code="cancelled", message="the turn was cancelled"))
    assert seen(session_of(events.Replied(), ask(), gone))[-1] == {
        "role": "tool",
        "tool_call_id": "1-action-0",
        "content": "Error: the turn was cancelled",
    }


def test_every_call_has_a_result_even_one_that_is_still_open() -> None:
    fault = events.Returned(call="1-action-0", outcome=events.Fault(code="timeout", message="too late"))
    session = session_of(events.Replied(), used("1-action-0"), used("1-action-1"), fault)
    assert [message["content"] for message in seen(session)[3:]] == ["Error: too late", "Error: not answered yet"]


def test_a_reply_without_text_or_calls_is_still_a_message() -> None:
    assert seen(session_of(events.Replied()))[-1] == {"role": "assistant", "content": ""}


def test_what_came_before_the_session_and_what_was_condensed_are_shown() -> None:
    told_before = session_of(prior=(User(content="earlier"),))
    assert [message["content"] for message in seen(told_before)] == ["Be kind.", "earlier", "Will it rain?"]
    condensed = session_of(events.Replied(text="old"), events.Condensed(upto=4, summary="They greeted."))
    assert [message["content"] for message in seen(condensed)[1:]] == [
        "Summary of the conversation so far:\nThey greeted.", "Will it rain?",
    ]  # fmt: skip


def test_several_turns_are_one_transcript() -> None:
    session = session_of(events.Replied(text="Yes."), events.Finished(answer="Yes."))
    session = folded(prompted("And tomorrow?", trace="t2"), session=session)
    session = folded(started(session.head, trace="t2"), session=session)
    assert [message["content"] for message in seen(session)[1:]] == ["Will it rain?", "Yes.", "And tomorrow?"]


def test_the_clients_system_text_is_added_where_the_template_allows_it() -> None:
    session = session_of(system="Answer in {current_date} words.")
    assert seen(session)[0]["content"] == "Be kind.\n\nAnswer in {current_date} words."
    closed = Template(
        name="t", tool_policy=ToolPolicy(allowlist=()), prompt_pack=TEMPLATE.prompt_pack, allow_client_system=False
    )
    assert seen(session, closed)[0]["content"] == "Be kind."


def test_prompts_are_filled_with_date_task_tools_and_answers() -> None:
    pack = PromptPack(
        system_prompt="{current_date}|{available_tools}|{unknown}",
        initial_user_request="Task: {task} ({current_date})",
        clarification_response="Answer: {clarifications}",
    )
    template = Template(name="t", tool_policy=ToolPolicy(allowlist=()), prompt_pack=pack)
    session = session_of(events.Replied(), ask(), returned("1-action-0", "Oslo"))
    tools = [Tool(name="a.b", description="Does {task}", schema={}), Tool(name="c", description="C", schema={})]
    composed = window.compose(session, turn_of(session), template, tools, {"a.b": "a_b", "c": "c"})
    assert [message.content for message in composed if message.content] == [
        "2026-01-31|1. a_b: Does {task}\n2. c: C|{unknown}",
        "Task: Will it rain? (2026-01-31)",
        "Which city?",
        "Answer: Oslo",
    ]


@pytest.mark.parametrize("attack", ATTACKS)
def test_what_people_and_tools_say_is_never_read_as_a_template(attack: str) -> None:
    pack = PromptPack(
        system_prompt="S {current_date}",
        initial_user_request="T {task} {current_date}",
        clarification_response="C {clarifications}",
    )
    template = Template(name="t", tool_policy=ToolPolicy(allowlist=()), prompt_pack=pack)
    session = session_of(
        events.Replied(text=attack), used("1-action-0"), returned("1-action-0", attack),
        events.Replied(), ask("2-action-0", attack), returned("2-action-0", attack),
        text=attack, system=attack,
    )  # fmt: skip
    assert [message.get("content") for message in seen(session, template)] == [
        f"S 2026-01-31\n\n{attack}", f"T {attack} 2026-01-31", attack, attack, None, attack, f"C {attack}",
    ]  # fmt: skip


def test_the_words_around_an_image_are_the_task_and_the_image_stays() -> None:
    picture = ImagePart(image_url=ImageUrl(url="longhouse-file:ab"))
    prompt = events.Prompted(trace="t", content=((TextPart(text="{0} see"), picture),))
    template = Template(
        name="t", tool_policy=ToolPolicy(allowlist=()), prompt_pack=PromptPack(initial_user_request="T {task}")
    )
    session = folded(opened(), prompt, started(2))
    composed = window.compose(session, turn_of(session), template, [], {})
    assert composed[1] == User(content=(TextPart(text="T {0} see"), picture))


def test_render_fills_known_placeholders_once() -> None:
    assert render("{a} {b} {c} {{a}} {a.b} {}", a="{b}", b="2") == "{b} 2 {c} {{b}} {a.b} {}"
