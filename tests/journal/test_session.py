"""A session is the sum of its events: what each kind adds, and which state follows."""

from datetime import timedelta

import msgspec
import pytest

from longhouse.agents import rules
from longhouse.errors import UnknownShape
from longhouse.journal import conversation, events, fingerprint
from longhouse.journal.counters import Counters
from longhouse.journal.effects import effects_of
from longhouse.journal.events import Fault, Output
from longhouse.journal.fold import blank, fold
from longhouse.journal.messages import TextPart, User
from longhouse.journal.session import AGENT_FAILED, MOST_LOST, TAKES_WORKERS, Session, State, Turn
from longhouse.journal.timeline import timeline_of
from longhouse.journal.transcript import ImportedMessages, PromptEntry, Step, Summary, Use
from server_helpers import AGENT, BEGAN, LIMITS, folded, opened, prompted, returned, started, used

RUNNING = (opened(), prompted("Will it rain?"), started(2))
FAILED = events.Failed(reason="no model answered", code="provider_error")


def turn_of(session: Session) -> Turn:
    assert session.turn is not None
    return session.turn


def asked(call: str = "1-action-0", question: str = "Which city?") -> events.Called:
    return used(call, tool="clarificationtool", call_kind="ask", question=question)


def test_a_blank_session_is_inited_and_has_nothing_to_do() -> None:
    session = blank("a_1")
    assert session.state is State.INITED
    assert not session.can_move
    assert not session.is_running
    assert session.client_text is None


def test_opened_says_whose_the_session_is() -> None:
    event = events.Opened(agent="a", version=3, owner="acme", user="ann", conversation="c", side="sub", label="x")
    session = folded(event)
    assert (session.agent, session.version, session.owner, session.user) == ("a", 3, "acme", "ann")
    assert (session.conversation, session.side, session.label) == ("c", "sub", "x")
    assert (session.created_at, session.updated_at, session.head) == (BEGAN, BEGAN, 1)
    assert session.state is State.INITED
    assert not session.can_move


def test_a_prompt_waits_in_the_queue_until_it_is_started() -> None:
    session = folded(opened(), prompted("Hello"))
    assert session.state is State.INITED
    assert session.can_move
    assert [waiting.seq for waiting in session.queue] == [2]
    assert session.transcript == ()


@pytest.mark.parametrize("prompt", [1, 2, 7])
def test_a_turn_that_starts_with_a_prompt_that_does_not_wait_is_said_to_be_odd(prompt: int) -> None:
    """It never was, it was no prompt, or it was started before."""
    ended = folded(opened(), prompted("Hello"), started(2), events.Replied(), events.Finished(answer="Hi"))
    with pytest.raises(UnknownShape, match=f"^the journal of {AGENT}_1 starts at 6 with a prompt, {prompt}, that does"):
        folded(started(prompt), session=ended)


def test_a_started_prompt_enters_the_transcript_and_opens_a_turn() -> None:
    prompt = events.Prompted(
        trace="t1",
        content=("Hello", (TextPart(text="there"),)),
        prior=(User(content="before"),),
        system="Be brief.",
        sampling=events.Sampling(seed=7),
        chain="c0",
        reply_to=events.ReplyTo(session="p", call="1-action-0"),
    )
    session = folded(opened(), prompt, started(2))
    turn = turn_of(session)
    assert session.state is State.RESEARCHING
    assert session.queue == ()
    assert session.transcript == (
        ImportedMessages(seq=3, messages=(User(content="before"),)),
        PromptEntry(seq=3, content="Hello", date="2026-01-31"),
        PromptEntry(seq=3, content=(TextPart(text="there"),), date="2026-01-31"),
    )
    assert (turn.task, turn.prompted.system, turn.chain, turn.limits) == ("Hello\n\nthere", "Be brief.", "c0", LIMITS)
    assert turn.prompted.sampling == events.Sampling(seed=7)
    assert turn.prompted.reply_to == events.ReplyTo(session="p", call="1-action-0")
    assert turn.started_at == BEGAN + timedelta(seconds=2)


def test_replies_count_steps_tokens_and_offered_tools() -> None:
    usage = events.Usage(prompt_tokens=10, completion_tokens=2, total_tokens=12, cached_tokens=4)
    session = folded(
        *RUNNING,
        events.Replied(text="hm", usage=usage, offered=("a@1", "b@1")),
        used("1-action-0"),
        returned("1-action-0"),
        events.Replied(usage=usage, offered=("c@1",), withdrawn=("a@1",)),
    )
    turn = turn_of(session)
    assert (turn.iteration, session.iteration, turn.usage.total_tokens) == (2, 2, 24)
    assert turn.usage == events.Usage(prompt_tokens=20, completion_tokens=4, total_tokens=24, cached_tokens=8)
    assert session.offered == ("b@1", "c@1")


def test_parallel_outcomes_come_in_any_order_and_stay_with_their_calls() -> None:
    session = folded(*RUNNING, events.Replied(text="hm"), used("1-action-0"), used("1-action-1"))
    assert list(session.open) == ["1-action-0", "1-action-1"]
    assert [call.call for call in session.due_calls] == ["1-action-0", "1-action-1"]
    assert session.state is State.RESEARCHING
    session = folded(returned("1-action-1", "B"), session=session)
    assert list(session.open) == ["1-action-0"]
    session = folded(events.Returned(call="1-action-0", outcome=Fault(code="x", message="A")), session=session)
    assert session.open == {}
    step = session.transcript[-1]
    assert isinstance(step, Step)
    assert [(use.call, use.outcome) for use in step.uses] == [
        ("1-action-0", Fault(code="x", message="A")),
        ("1-action-1", Output(content="B")),
    ]


def test_a_question_waits_for_clarification_and_its_answer_counts() -> None:
    session = folded(*RUNNING, events.Replied(), asked())
    assert session.state is State.WAITING_FOR_CLARIFICATION
    assert not session.can_move
    assert session.is_running
    assert session.client_text == "Which city?"
    assert [call.call for call in session.questions] == ["1-action-0"]
    assert turn_of(session).clarifications_used == 0
    answer = events.Returned(call="1-action-0", outcome=Output(content="Oslo"), by="user", chain="c2")
    session = folded(answer, session=session)
    assert session.state is State.RESEARCHING
    assert (turn_of(session).clarifications_used, turn_of(session).chain) == (1, "c2")


def test_a_question_that_ends_in_a_fault_is_no_clarification() -> None:
    gone = events.Returned(call="1-action-0", outcome=Fault(code="abandoned", message="x"))
    session = folded(opened(), prompted("Hi", chain="c1"), started(2), events.Replied(), asked(), gone)
    assert (turn_of(session).clarifications_used, turn_of(session).chain) == (0, "c1")


def test_while_a_tool_is_due_a_question_does_not_make_the_session_wait() -> None:
    session = folded(*RUNNING, events.Replied(), asked(), used("1-action-1"))
    assert session.state is State.RESEARCHING
    assert folded(returned("1-action-1"), session=session).state is State.WAITING_FOR_CLARIFICATION


def test_an_agent_call_waits_for_the_agent_and_a_question_goes_first() -> None:
    delegated = used("1-action-0", tool="agent.analytic", call_kind="agent")
    assert folded(*RUNNING, events.Replied(), delegated).state is State.WAITING_FOR_AGENT
    both = folded(*RUNNING, events.Replied(), delegated, asked("1-action-1"))
    assert both.state is State.WAITING_FOR_CLARIFICATION


def test_after_a_takeover_only_once_calls_become_uncertain() -> None:
    session = folded(
        *RUNNING,
        events.Replied(),
        used("1-action-0", tool="pay", effect="once"),
        used("1-action-1", effect="idempotent"),
        used("1-action-2"),
        asked("1-action-3"),
        events.Resumed(worker="w2", previous="w1"),
    )
    assert [call.call for call in session.uncertain] == ["1-action-0"]
    assert [call.call for call in session.due_calls] == ["1-action-1", "1-action-2"]


def lost(times: int) -> list[events.Event]:
    return [events.Resumed(worker=f"w{nth + 1}", previous=f"w{nth}") for nth in range(times)]


def test_a_call_counts_the_workers_that_were_lost_with_it() -> None:
    session = folded(*RUNNING, events.Replied(), used("1-action-0"), used("1-action-1"), *lost(2))
    assert {call.call: call.lost for call in session.due_calls} == {"1-action-0": 2, "1-action-1": 2}
    # From here on one is run at a time, so that the next loss is the fault of that one.
    assert [call.call for call in session.next_calls] == ["1-action-0"]
    session = folded(*lost(1), session=session)
    assert {call.call: call.lost for call in session.due_calls} == {"1-action-0": 3, "1-action-1": 2}
    assert [call.call for call in folded(returned("1-action-0"), session=session).next_calls] == ["1-action-1"]
    assert not session.is_hopeless


@pytest.mark.parametrize("previous", ["w1 (interrupted)", "w2"])
def test_a_worker_that_broke_off_was_not_lost(previous: str) -> None:
    """It said so, or it is the one that takes up its own run again."""
    broken_off = [events.Resumed(worker="w2", previous=previous)] * 3
    session = folded(*RUNNING, events.Replied(), used("1-action-0"), *broken_off)
    assert (session.lost, [call.lost for call in session.next_calls]) == (0, [0])


@pytest.mark.parametrize("progress", [events.Replied(), events.Condensed(upto=2, summary="s")])
def test_progress_makes_up_for_lost_workers(progress: events.Event) -> None:
    session = folded(*RUNNING, *lost(3))
    assert session.is_hopeless
    session = folded(progress, session=session)
    assert (session.lost, session.is_hopeless) == (0, False)
    assert not folded(*lost(2), session=session).is_hopeless


ASKED_STEP = events.Decided(call="step-6", decision="unknown", by="w3", comment="it was interrupted")


@pytest.mark.parametrize("before", [(), (events.Replied(), used("1-action-0"), returned("1-action-0", "seen"))])
def test_a_step_that_lost_its_workers_waits_for_a_person_and_is_no_call(before: tuple[events.Event, ...]) -> None:
    lonely = folded(*RUNNING, *before, *lost(MOST_LOST))
    session = folded(ASKED_STEP, session=lonely)
    assert (session.state, session.can_move) == (State.WAITING_FOR_APPROVAL, False)
    assert (session.uncertain, session.unapproved, session.due_calls, session.wake_at) == ([], [], [], None)
    [asked] = session.open.values()
    assert (asked.question_kind, asked.awaits_person, asked.awaits_decision) == ("worker_lost", True, True)
    question = "The worker was lost three times in this step (step-6). Try it again?"
    assert session.client_text == f"{question}\nDecide at POST /v1/sessions/{session.id}/approval."
    assert session.transcript == lonely.transcript
    assert conversation.messages_of(session) == conversation.messages_of(lonely)
    # A worker that is lost while it rests, and reads of later processes, change nothing of it.
    assert folded(*lost(1), session=session).open == session.open
    assert msgspec.json.decode(msgspec.json.encode(session), type=Session) == session

    again = folded(events.Decided(call="step-6", decision="did_not_happen", by="ann"), session=session)
    assert (again.state, again.lost, again.open, again.transcript) == (State.RESEARCHING, 0, {}, lonely.transcript)
    assert again.is_suspect, "it counts anew, and is still tried alone"
    assert not folded(events.Replied(), session=again).is_suspect
    given_up = folded(events.Decided(call="step-6", decision="give_up", by="ann"), session=session)
    assert (given_up.state, given_up.is_hopeless, given_up.open) == (State.RESEARCHING, True, {})
    assert turn_of(given_up).is_given_up
    condensed = folded(events.Condensed(upto=2, summary="s"), session=given_up)
    assert condensed.is_hopeless, "what became shorter meanwhile is given up all the same"
    assert not folded(FAILED, prompted("Again"), session=given_up).is_hopeless
    for end in (FAILED, events.Cancelled(trace=turn_of(session).trace, by="ann")):
        assert folded(end, session=session).open == {}
    other = events.Cancelled(trace="another", by="ann")
    assert folded(other, session=session).open == session.open, "a prompt that waited in the queue"


def test_time_in_which_a_lost_step_waits_is_nobodys_and_is_told() -> None:
    told: list[events.Event] = [*RUNNING, *lost(MOST_LOST), ASKED_STEP]
    records = [events.Recorded(seq=1 + nth, at=BEGAN, event=event) for nth, event in enumerate(told)]
    later = events.Decided(call="step-6", decision="did_not_happen", by="ann")
    records.append(events.Recorded(seq=8, at=BEGAN + timedelta(hours=1), event=later))
    assert turn_of(fold(records, blank("a_1"))).waited == 3600
    [wait] = timeline_of(records).turns[0].waits
    assert (wait.reason, wait.since, wait.until) == ("worker_lost", BEGAN, BEGAN + timedelta(hours=1))
    counters = Counters()
    for record in records:
        counters.add(record)
        assert counters.questions == (record.event is ASKED_STEP)
    assert (counters.waiting_seconds, counters.work_seconds) == (3600, 0)
    assert effects_of("s", records) == []


def test_what_is_said_while_a_lost_step_waits_is_read_when_it_is_tried_again() -> None:
    aside = events.Prompted(trace="t", content=("In Oslo, 好", "да"), chain="c2", aside=True)
    session = folded(*RUNNING, *lost(MOST_LOST), ASKED_STEP, aside)
    assert (session.state, session.queue, turn_of(session).chain) == (State.WAITING_FOR_APPROVAL, (), "c2")
    said = ["Will it rain?", "In Oslo, 好", "да"]
    assert conversation.dialogue_of(session) == [{"role": "user", "content": one} for one in said]
    condensed = folded(events.Condensed(upto=session.head, summary="S"), session=session)
    assert [entry.content for entry in condensed.transcript if isinstance(entry, PromptEntry)] == said


def test_an_uncertain_call_waits_for_approval_until_somebody_settles_it() -> None:
    session = folded(
        *RUNNING,
        events.Replied(),
        used("1-action-0", tool="pay", effect="once"),
        events.Resumed(worker="w2", previous="w1"),
    )
    assert session.state is State.WAITING_FOR_APPROVAL
    assert not session.can_move
    lost = "A worker was lost while pay (1-action-0) ran: please say whether it happened."
    assert session.client_text == f"{lost}\nDecide at POST /v1/sessions/{session.id}/approval."
    settled = folded(returned("1-action-0", "paid"), session=session)
    assert settled.state is State.RESEARCHING
    assert settled.uncertain == []
    again = folded(events.Decided(call="1-action-0", decision="did_not_happen", by="ann"), session=session)
    assert again.state is State.RESEARCHING
    assert [call.call for call in again.due_calls] == ["1-action-0"]


@pytest.mark.parametrize("code", ["abandoned", "cancelled", "worker_lost"])
def test_what_was_broken_off_may_have_happened_unless_it_still_needed_approval(code: str) -> None:
    told: list[events.Event] = [
        *RUNNING,
        events.Replied(),
        used("doubtful", effect="once"),
        used("lost", effect="idempotent"),
        used("runs", effect="once"),
        used("unapproved", effect="once", approve_by=BEGAN),
        events.Resumed(worker="w2", previous="w1", unbegun=("doubtful", "runs")),
        events.Decided(call="doubtful", decision="unknown", by="w2", comment="it did not answer"),
        *(
            events.Returned(call=call, outcome=Fault(code=code, message="over"))
            for call in ("doubtful", "lost", "runs")
        ),
        events.Returned(call="unapproved", outcome=Fault(code=code, message="over")),
    ]
    records = [events.Recorded(seq=1 + nth, at=BEGAN, event=event) for nth, event in enumerate(told)]
    found = effects_of("s", records)
    assert [(one["call_id"], one["state"], one["doubt"], one["workers_lost"]) for one in found] == [
        ("doubtful", "unknown", "it did not answer", 1),
        ("lost", "unknown", None, 1),
        ("runs", "unknown", None, 1),
        ("unapproved", "not_begun", None, 0),
    ]


def test_calls_that_were_surely_not_begun_are_no_question() -> None:
    session = folded(
        *RUNNING,
        events.Replied(),
        used("1-action-0", effect="once"),
        used("1-action-1", effect="once"),
        events.Resumed(worker="w1", previous="w1", unbegun=("1-action-1",)),
    )
    assert [call.call for call in session.uncertain] == ["1-action-0"]
    assert [call.call for call in session.due_calls] == ["1-action-1"]


def test_a_call_that_a_person_lets_try_again_counts_anew_and_is_still_suspect() -> None:
    session = folded(*RUNNING, events.Replied(), used("1-action-0"), *lost(MOST_LOST))
    asked = events.Decided(call="1-action-0", decision="unknown", by="w9", comment=TAKES_WORKERS)
    again = events.Decided(call="1-action-0", decision="did_not_happen", by="ann")
    retried = folded(asked, again, session=session)
    assert (retried.open["1-action-0"].lost, retried.is_suspect) == (0, True)
    assert not folded(returned("1-action-0"), session=retried).is_suspect


def test_calls_that_waited_while_another_was_tried_alone_are_no_question() -> None:
    """A worker that was lost over one call had not come to the others."""
    unbegun = [
        events.Resumed(worker=f"w{nth + 1}", previous=f"w{nth}", unbegun=("1-action-1",))
        for nth in range(MOST_LOST - 1)
    ]
    session = folded(
        *RUNNING, events.Replied(), used("1-action-0"), used("1-action-1", tool="pay", effect="once"), *unbegun
    )
    assert [call.call for call in session.next_calls] == ["1-action-0"]
    session = folded(events.Resumed(worker="w9", previous="w8"), session=session)
    assert session.uncertain == []
    assert session.open["1-action-0"].lost == MOST_LOST
    # Once it is their turn, they are.
    session = folded(returned("1-action-0"), events.Resumed(worker="w10", previous="w9"), session=session)
    assert [call.call for call in session.uncertain] == ["1-action-1"]


def test_a_call_whose_answer_was_lost_is_a_question_that_says_why() -> None:
    session = folded(
        *RUNNING,
        events.Replied(),
        used("1-action-0", tool="pay", effect="once"),
        used("1-action-1"),
        events.Decided(call="1-action-0", decision="unknown", by="w1", comment="the line broke"),
    )
    assert [call.call for call in session.due_calls] == ["1-action-1"]
    session = folded(returned("1-action-1"), session=session)
    assert session.state is State.WAITING_FOR_APPROVAL
    assert session.client_text is not None
    question, way = session.client_text.split("\n", 1)
    assert question == "It is not known whether pay (1-action-0) took effect: `the line broke`. Did it happen?"
    assert way.endswith("/approval.")
    again = folded(events.Decided(call="1-action-0", decision="did_not_happen", by="ann"), session=session)
    [due] = again.due_calls
    assert (due.uncertain, due.doubt) == (False, "")


@pytest.mark.parametrize("decision", ["approve", "deny", "happened", "give_up"])
def test_other_decisions_leave_the_call_open(decision: events.Decision) -> None:
    session = folded(
        *RUNNING, events.Replied(), used("1-action-0", effect="once"), events.Resumed(worker="w2", previous="w1")
    )
    decided = folded(events.Decided(call="1-action-0", decision=decision, by="ann"), session=session)
    assert decided.open == session.open


def test_a_decision_on_a_call_that_returned_changes_nothing() -> None:
    session = folded(*RUNNING, events.Replied(), used("1-action-0"), returned("1-action-0"))
    decided = folded(events.Decided(call="1-action-0", decision="did_not_happen", by="ann"), session=session)
    assert (decided.open, decided.transcript) == (session.open, session.transcript)


@pytest.mark.parametrize(
    ("end", "state", "text"),
    [
        (events.Finished(answer="Rain."), State.COMPLETED, "Rain."),
        (FAILED, State.FAILED, None),
        (events.Failed(reason="I could not", code=AGENT_FAILED), State.FAILED, "I could not"),
        (events.Cancelled(trace="t", by="user"), State.CANCELLED, None),
    ],
)
def test_a_turn_ends_and_a_new_prompt_begins_another(end: events.Event, state: State, text: str | None) -> None:
    session = folded(*RUNNING, events.Replied(text="hm"), end)
    assert (session.state, session.client_text) == (state, text)
    assert not session.is_running
    assert not session.can_move
    session = folded(prompted("And tomorrow?", trace="t2"), session=session)
    assert (session.state, session.can_move) == (state, True)
    session = folded(started(session.head, trace="t2"), session=session)
    assert (session.state, turn_of(session).trace) == (State.RESEARCHING, "t2")
    assert (turn_of(session).iteration, session.iteration) == (0, 1)


def test_what_replies_have_said_is_what_the_client_will_resend() -> None:
    first, last = "Let me look. ", "It is noon."
    reply = events.Replied(text=first, streamed_chars=len(first))
    end: list[events.Event] = [events.Replied(text=last, streamed_chars=len(last)), events.Finished(answer=last)]
    began = (opened(), prompted("Time?", chain="c"), started(2))
    session = folded(*began, reply, used("1-action-0"), returned("1-action-0"), *end)
    assert session.client_text == "Let me look. \n\nIt is noon."
    assert session.rest_mark == fingerprint.grown("c", [("assistant", "Let me look.It is noon.")])
    reply = events.Replied(text="So: I hope that helps.", streamed_chars=3)
    partly = folded(*RUNNING, reply, events.Finished(answer="Noon."))
    assert partly.client_text == "So:\n\nNoon."


def test_a_journal_of_an_earlier_version_is_known_by_its_answers_alone() -> None:
    """It does not say what was said on the way: that was no content then, and clients do not resend it."""
    step: list[events.Event] = [events.Replied(text="Let me look. "), used("1-action-0"), returned("1-action-0")]
    session = folded(opened(), prompted("Time?", chain="c"), started(2), *step, events.Finished(answer="Noon."))
    assert session.rest_mark == fingerprint.grown("c", [("assistant", "Noon.")])
    assert b'"said"' not in msgspec.json.encode(events.Replied(text="Let me look. "))


def test_an_answer_of_the_user_begins_a_new_response() -> None:
    session = folded(*RUNNING, events.Replied(text="Hm. ", streamed_chars=4), asked())
    assert session.client_text == "Hm. \n\nWhich city?"
    session = folded(returned("1-action-0", "Oslo", by="user", chain="c2"), session=session)
    assert (turn_of(session).reply_texts, turn_of(session).user) == ((), None)
    assert folded(events.Replied(), events.Finished(answer="Rain."), session=session).client_text == "Rain."
    of_another = folded(*RUNNING, events.Replied(), asked(), returned("1-action-0", "Oslo", by="user", user="bob"))
    assert turn_of(of_another).user == "bob"


WAITING = (*RUNNING, events.Replied(text="Hm.", streamed_chars=3), used("1-action-0", tool="pay", approve_by=BEGAN))


def test_what_is_said_while_a_call_waits_is_heard_with_its_outcome() -> None:
    aside = events.Prompted(trace="t", content=("Make it 50",), chain="c2", aside=True)
    session = folded(*WAITING, aside)
    assert (session.state, session.queue) == (State.WAITING_FOR_APPROVAL, ())
    assert (turn_of(session).chain, turn_of(session).reply_texts) == ("c2", ())
    session = folded(returned("1-action-0", "paid", by="user"), events.Replied(), session=session)
    assert [type(entry) for entry in session.transcript] == [PromptEntry, Step, Step]
    assert conversation.dialogue_of(session) == [
        {"role": "user", "content": "Will it rain?"}, {"role": "user", "content": "Make it 50"},
    ]  # fmt: skip
    assert len(session.steps) == 2
    late = folded(*RUNNING, events.Replied(), events.Finished(answer="Rain."), aside)
    assert len(late.queue) == 1, "where nothing waits any more it is a prompt like others"


@pytest.mark.parametrize("chain", ["c2", ""])
def test_a_decision_is_a_word_of_the_client_only_where_it_was_said_in_the_chat(chain: str) -> None:
    session = folded(*WAITING, events.Decided(call="1-action-0", decision="approve", by="user", chain=chain))
    assert (turn_of(session).chain, turn_of(session).reply_texts) == (chain, ())
    unheard = folded(*WAITING, events.Returned(call="1-action-0", outcome=Fault(code="denied", message="too late")))
    assert unheard.rest_mark is None


def test_how_a_turn_failed_is_kept() -> None:
    turn = turn_of(folded(*RUNNING, FAILED))
    assert (turn.error, turn.code, turn.answer) == ("no model answered", "provider_error", None)


def test_prompts_that_arrive_during_a_turn_wait_in_order() -> None:
    session = folded(*RUNNING, prompted("second", trace="t2"), prompted("third", trace="t3"))
    assert session.state is State.RESEARCHING
    assert [waiting.prompt.trace for waiting in session.queue] == ["t2", "t3"]
    session = folded(events.Finished(answer="1"), started(4, trace="t2"), session=session)
    assert [waiting.prompt.trace for waiting in session.queue] == ["t3"]
    prompts = [entry.content for entry in session.transcript if isinstance(entry, PromptEntry)]
    assert prompts == ["Will it rain?", "second"]


def test_a_cancelled_prompt_leaves_the_queue_and_the_running_turn_goes_on() -> None:
    session = folded(*RUNNING, prompted("second", trace="t2"), prompted("third", trace="t3"))
    session = folded(events.Cancelled(trace="t2", by="user"), session=session)
    assert session.state is State.RESEARCHING
    assert [waiting.prompt.trace for waiting in session.queue] == ["t3"]


def test_a_cancel_ends_the_turn_and_the_queued_prompts_of_its_own_trace_only() -> None:
    session = folded(*RUNNING, prompted("again"), prompted("other", trace="t2"), events.Cancelled(trace="t", by="user"))
    assert session.state is State.CANCELLED
    assert [waiting.prompt.trace for waiting in session.queue] == ["t2"]


def test_a_turn_that_has_ended_is_not_cancelled_with_a_later_prompt_of_its_trace() -> None:
    ended = (events.Finished(answer="Rain."), prompted("again"), events.Cancelled(trace="t", by="user"))
    session = folded(*RUNNING, *ended)
    assert (session.state, session.client_text, session.queue) == (State.COMPLETED, "Rain.", ())


def test_a_condensed_history_is_a_summary_and_what_came_after_it() -> None:
    session = folded(
        *RUNNING,
        events.Replied(text="old"),
        events.Finished(answer="Rain."),
        prompted("And tomorrow?", trace="t2"),
        started(6, trace="t2"),
        events.Condensed(upto=5, summary="It rains."),
        events.Replied(text="new"),
    )
    assert session.transcript == (
        Summary(seq=5, text="It rains."),
        PromptEntry(seq=7, content="And tomorrow?", date="2026-01-31"),
        Step(seq=9, text="new"),
    )


def test_an_outcome_of_a_condensed_call_still_closes_it() -> None:
    session = folded(*RUNNING, events.Replied(), used("1-action-0"), events.Condensed(upto=4, summary="s"))
    session = folded(returned("1-action-0"), session=session)
    assert session.open == {}
    assert conversation.shown(session) == [Summary(seq=4, text="s"), *folded(*RUNNING).transcript]


def test_notes_and_files_are_kept() -> None:
    first = events.Stored(path="a.md", digest="1", media_type="text/markdown")
    second = events.Stored(path="a.md", digest="2", media_type="text/markdown")
    session = folded(*RUNNING, events.Noted(text="one"), events.Noted(text="two"), first, second)
    assert session.notes == ("one", "two")
    assert [artifact.file for artifact in session.files] == [first, second]
    assert session.files[0].seq + 1 == session.files[1].seq == session.head


def test_what_a_tool_wrote_is_added_to_the_context() -> None:
    session = folded(
        *RUNNING,
        events.Replied(),
        used("1-action-0"),
        used("1-action-1"),
        returned("1-action-0", writes={"sources": {"u": 1}, "searches_used": 2}),
        returned("1-action-1", writes={"searches": ["q"], "state": "RESEARCHING"}),
    )
    assert session.context == {"sources": {"u": 1}, "searches": ["q"]}
    assert (turn_of(session).searches_used, turn_of(session).verdict) == (2, "")


@pytest.mark.parametrize("verdict", ["COMPLETED", "FAILED"])
def test_a_finishing_tool_leaves_its_verdict_and_the_first_one_stands(verdict: str) -> None:
    session = folded(
        *RUNNING,
        events.Replied(),
        used("1-action-0"),
        used("1-action-1"),
        returned("1-action-0", writes={"state": verdict, "execution_result": "one"}),
        returned("1-action-1", writes={"state": "COMPLETED", "execution_result": "two"}),
    )
    assert (turn_of(session).verdict, turn_of(session).answer) == (verdict, "one")
    assert session.is_running
    assert session.context == {}


def test_waiting_for_people_does_not_count_as_work() -> None:
    session = folded(*RUNNING, events.Replied(), asked(), every=timedelta(seconds=10))
    assert turn_of(session).resting_since == BEGAN + timedelta(seconds=40)
    answered = folded(returned("1-action-0"), session=session, since=BEGAN + timedelta(hours=2))
    assert turn_of(answered).waited == 7200 - 40
    assert turn_of(answered).resting_since is None
    twice = folded(
        events.Replied(), asked("2-action-0"), returned("2-action-0"), session=answered,
        since=BEGAN + timedelta(hours=3), every=timedelta(seconds=5),
    )  # fmt: skip
    assert turn_of(twice).waited == 7200 - 40 + 5


def test_a_tool_that_runs_beside_a_question_is_work_until_it_returns() -> None:
    session = folded(*RUNNING, events.Replied(), asked(), used("1-action-1"))
    assert turn_of(session).resting_since is None
    rested = folded(returned("1-action-1"), session=session, since=BEGAN + timedelta(seconds=60))
    assert turn_of(rested).resting_since == BEGAN + timedelta(seconds=60)


def test_an_answer_written_by_a_clock_that_lags_takes_nothing_away() -> None:
    session = folded(*RUNNING, events.Replied(), asked())
    answered = folded(returned("1-action-0"), session=session, since=BEGAN - timedelta(hours=1))
    assert rules.worked_seconds(turn_of(answered)) == rules.worked_seconds(turn_of(session))


def test_folding_leaves_the_session_it_began_with_as_it_was() -> None:
    session = folded(*RUNNING, events.Replied(), used("1-action-0"))
    folded(returned("1-action-0", writes={"sources": {"u": 1}}), events.Noted(text="x"), session=session)
    assert list(session.open) == ["1-action-0"]
    assert (session.context, session.notes, session.head) == ({}, (), 5)
    assert session.transcript[-1] == Step(seq=4, uses=(Use(call="1-action-0", tool="clocktool", arguments="{}"),))
