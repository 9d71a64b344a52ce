"""A session as a plain conversation: task and answer, and the real work in between."""

from typing import Any

from msgspec import UNSET, Raw

from longhouse.journal import conversation, events
from longhouse.journal.events import Fault, ProviderCall
from longhouse.journal.messages import Assistant, ImagePart, ImageUrl, System, TextPart, User
from longhouse.journal.session import AGENT_FAILED, Session
from server_helpers import folded, opened, prompted, returned, started, used

ANSWER = '{"answer": "It is five."}'


def answered(call: str, text: str) -> list[events.Event]:
    """A final answer through the tool for it, as the engine records one."""
    return [
        events.Replied(calls=(ProviderCall(id="p", name="finalanswertool", arguments=ANSWER),)),
        used(call, tool="finalanswertool", arguments=ANSWER),
        returned(call, text, writes={"state": "COMPLETED", "execution_result": text}),
        events.Finished(answer=text),
    ]


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def assistant(text: str) -> dict[str, Any]:
    return {"role": "assistant", "content": text}


def one_call() -> Session:
    return folded(opened(), prompted("What time is it?"), started(2), *answered("1-action-0", "It is five."))


def test_a_task_and_its_answer_are_two_messages_and_four_after_two() -> None:
    session = one_call()
    first = [user("What time is it?"), assistant("It is five.")]
    assert conversation.messages_of(session) == first
    again = folded(prompted("And now?"), started(8), *answered("2-action-0", "Six."), session=session)
    assert conversation.messages_of(again) == [*first, user("And now?"), assistant("Six.")]


def test_an_answer_in_words_is_the_same_as_one_through_its_tool() -> None:
    replied: list[events.Event] = [events.Replied(text="It is five."), events.Finished(answer="It is five.")]
    session = folded(opened(), prompted("What time is it?"), started(2), *replied)
    assert conversation.messages_of(session) == conversation.messages_of(one_call())
    dialogue = conversation.dialogue_of(session)
    assert dialogue == conversation.dialogue_of(one_call()) == conversation.messages_of(session)


def test_real_calls_and_results_stand_between_task_and_answer() -> None:
    work: list[events.Event] = [
        events.Replied(text="Let me look."),
        used("1-action-0", arguments='{"zone": "UTC"}'),
        used("1-action-1", tool="tickets.create"),
        events.Returned(call="1-action-1", outcome=Fault(code="x", message="closed")),
        returned("1-action-0", "17:00"),
    ]
    session = folded(opened(), prompted("Time?"), started(2), *work, *answered("2-action-0", "Five."))

    def call(name: str, tool: str, arguments: str) -> dict[str, Any]:
        return {"id": name, "type": "function", "function": {"name": tool, "arguments": arguments}}

    assert conversation.messages_of(session) == [
        user("Time?"),
        {
            "role": "assistant",
            "content": "Let me look.",
            "tool_calls": [
                call("1-action-0", "clocktool", '{"zone": "UTC"}'),
                call("1-action-1", "tickets.create", "{}"),
            ],
        },
        {"role": "tool", "content": "17:00", "tool_call_id": "1-action-0", "name": "clocktool"},
        {"role": "tool", "content": "Error: closed", "tool_call_id": "1-action-1", "name": "tickets.create"},
        assistant("Five."),
    ]
    assert conversation.dialogue_of(session) == [user("Time?"), assistant("Five.")]


def test_thoughts_are_nobody_elses_business() -> None:
    thinking: list[events.Event] = [
        events.Replied(phase="reasoning"),
        used("1-reasoning", tool="reasoningtool"),
        returned("1-reasoning", '{"enough_data": false}'),
        events.Replied(thought='{"plan_status": "begun"}'),
        used("2-action-0"),
        returned("2-action-0", "17:00"),
        events.Replied(problem="no JSON", text="hm"),
        events.Replied(phase="reasoning", thought="I am done"),
    ]
    session = folded(opened(), prompted("Time?"), started(2), *thinking, *answered("3-action-0", "Five."))
    shown = conversation.messages_of(session)
    assert [message["role"] for message in shown] == ["user", "assistant", "tool", "assistant"]
    assert shown[1]["content"] == ""
    assert [call["function"]["name"] for call in shown[1]["tool_calls"]] == ["clocktool"]


def test_thinking_goes_back_to_its_source_alone_and_never_from_an_old_journal() -> None:
    call = ProviderCall(id="p", name="clocktool", arguments="{}", extra='{"signature":"s"}')

    def given_back(asked: str, **replied: Any) -> list[Any]:
        work: list[events.Event] = [
            events.Replied(calls=(call,), **replied),
            used("1-action-0", provider_id="p"),
            returned("1-action-0", "5"),
        ]
        session = folded(opened(), prompted("Time?"), started(2), *work)
        [message] = [
            one
            for entry in session.transcript
            for one in conversation.messages_with_calls(entry, asked=asked)
            if isinstance(one, Assistant)
        ]
        return [message.reasoning_content, message.extra_content, message.tool_calls[0].extra_content]

    nothing = [None, UNSET, UNSET]
    thought: dict[str, Any] = {"reasoning": "hm", "returns_reasoning": True, "extra": '{"b":1,"a":0}'}
    assert given_back("here", source="here", **thought) == ["hm", Raw(b'{"b":1,"a":0}'), Raw(b'{"signature":"s"}')]
    assert given_back("here", source="here", reasoning="as `reasoning`") == [None, UNSET, Raw(b'{"signature":"s"}')]
    for asked, source in (("there", "here"), ("", "here"), ("here", ""), ("", "")):
        assert given_back(asked, source=source, **thought) == nothing


def test_calls_appear_when_all_of_them_have_returned() -> None:
    work: list[events.Event] = [
        events.Replied(),
        used("1-action-0"),
        used("1-action-1"),
        returned("1-action-0", "17:00"),
    ]
    session = folded(opened(), prompted("Time?"), started(2), *work)
    assert conversation.messages_of(session) == [user("Time?")]
    session = folded(returned("1-action-1", "18:00"), session=session)
    assert [message["role"] for message in conversation.messages_of(session)] == ["user", "assistant", "tool", "tool"]


def test_a_question_and_its_answer_are_words_of_both_sides() -> None:
    question = used("1-action-0", tool="clarificationtool", call_kind="ask", question="Which city?")
    session = folded(opened(), prompted("Rain?"), started(2), events.Replied(), question)
    assert (
        conversation.messages_of(session)
        == conversation.dialogue_of(session)
        == [user("Rain?"), assistant("Which city?")]
    )
    session = folded(returned("1-action-0", "Oslo", by="user"), *answered("2-action-0", "Yes."), session=session)
    dialogue = [user("Rain?"), assistant("Which city?"), user("Oslo"), assistant("Yes.")]
    assert conversation.dialogue_of(session) == dialogue


def test_an_agent_that_gives_up_in_words_has_answered_and_one_that_broke_has_not() -> None:
    begun = (opened(), prompted("Fly!"), started(2), events.Replied(text="No."))
    given_up = folded(*begun, events.Failed(reason="I cannot fly.", code=AGENT_FAILED))
    assert conversation.messages_of(given_up) == [user("Fly!"), assistant("I cannot fly.")]
    broken = folded(*begun, events.Failed(reason="the model failed", code="provider_error"))
    assert conversation.messages_of(broken) == [user("Fly!")]
    cancelled = folded(*begun, events.Cancelled(trace="t", by="ann"))
    assert conversation.messages_of(cancelled) == [user("Fly!")]


def test_what_a_session_was_told_comes_first_and_system_texts_are_not_history() -> None:
    prior = (System(content="Be brief."), User(content="Hi"), Assistant(content="Hello"))
    session = folded(opened(), prompted("Time?", prior=prior), started(2), *answered("1-action-0", "Five."))
    assert conversation.messages_of(session) == [user("Hi"), assistant("Hello"), user("Time?"), assistant("Five.")]


def test_a_summary_stands_for_what_it_represents() -> None:
    session = folded(events.Condensed(upto=7, summary="They spoke of time."), session=one_call())
    assert conversation.messages_of(session) == [user("Summary of the conversation so far:\nThey spoke of time.")]


def deleted(*turns: int) -> events.Noted:
    return events.Noted(about="outdated", deleted=turns)


def test_a_deleted_turn_is_not_shown_and_one_that_runs_is_until_it_ends() -> None:
    """It started with event 3; the next one with event 9 goes on while both are deleted."""
    later = (prompted("And now?"), started(8), events.Replied(text="Let me look."), used("2-action-0"))
    both = folded(*later, deleted(3, 9), session=one_call())
    assert conversation.messages_of(both) == conversation.dialogue_of(both) == [user("And now?")]
    ended = folded(returned("2-action-0", "18:00"), *answered("3-action-0", "Six."), session=both)
    assert conversation.messages_of(ended) == []
    after = folded(prompted("Bye"), started(ended.head + 1), session=ended)
    assert conversation.messages_of(after) == [user("Bye")]
    assert conversation.messages_of(folded(*later, deleted(9), session=one_call()))[0] == user("What time is it?")
    assert conversation.messages_of(folded(deleted(3), deleted(3), session=one_call())) == []


def test_a_summary_that_may_tell_of_a_deleted_turn_goes_with_it() -> None:
    summed = folded(events.Condensed(upto=7, summary="They spoke of time."), session=one_call())
    asked = folded(prompted("And now?"), started(9), *answered("2-action-0", "Six."), session=summed)
    assert conversation.messages_of(folded(deleted(10), session=asked))[0]["content"].endswith("They spoke of time.")
    both = [user("And now?"), assistant("Six.")]
    gone = folded(deleted(3), session=asked)
    assert conversation.messages_of(gone) == both
    # One that was being written meanwhile, or by a process that shows deleted turns, is not taken.
    late = folded(events.Condensed(upto=asked.head, summary="It was five, then six."), session=gone)
    assert conversation.messages_of(late) == both
    knowing = events.Condensed(upto=asked.head, summary="It was six.", deleted=1)
    assert "It was six." in str(conversation.messages_of(folded(knowing, session=gone)))


def test_an_image_is_only_named() -> None:
    image = ImagePart(image_url=ImageUrl(url="longhouse-file:abc"))
    said = events.Prompted(trace="t", content=((TextPart(text="What is this?"), image), (image,)))
    session = folded(opened(), said, started(2))
    assert conversation.messages_of(session) == [user("What is this?"), user("[image]")]


def test_a_finishing_tool_of_ones_own_is_shown_with_the_answer_it_set() -> None:
    work: list[events.Event] = [
        events.Replied(),
        used("1-action-0", tool="handovertool"),
        returned("1-action-0", "noted", writes={"state": "COMPLETED", "execution_result": "Ann has it now."}),
        events.Finished(answer="Ann has it now."),
    ]
    session = folded(opened(), prompted("Take it"), started(2), *work)
    session = folded(prompted("Thanks"), started(8), *answered("2-action-0", "Welcome."), session=session)
    assert conversation.dialogue_of(session) == [
        user("Take it"), assistant("Ann has it now."), user("Thanks"), assistant("Welcome."),
    ]  # fmt: skip
