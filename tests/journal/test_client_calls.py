"""Calls that the client runs, as the fold of a journal knows them."""

import pytest
from msgspec.structs import replace

from longhouse.errors import UnknownShape
from longhouse.journal import events, fingerprint
from longhouse.journal.events import ClientTool, ClientTools
from longhouse.journal.fingerprint import client_id
from longhouse.journal.session import Session, State
from server_helpers import folded, opened, prompted, returned, started, turn_of, used

OFFER = ClientTools(
    tools=(ClientTool(name="get_weather"), ClientTool(name="finalanswertool")), must_call=("get_weather",)
)
BEGUN = (
    opened(),
    prompted("Rain?", chain="c1", client_tools=OFFER),
    started(2),
    events.Replied(text="I look.", streamed_chars=7),
)
CALL = used("1-action-0", tool="get_weather", call_kind="client", role="client")
OTHER = used("1-action-1", tool="finalanswertool", call_kind="client", role="client")


def waiting() -> Session:
    return folded(*BEGUN, CALL, OTHER)


def test_the_session_waits_for_its_client() -> None:
    session = waiting()
    assert session.state is State.WAITING_FOR_CLARIFICATION
    assert [call.question_kind for call in session.client_calls] == ["client", "client"]
    assert (session.questions, session.undecided_calls, session.closing_text) == ([], [], "")
    assert [step.role for step in session.steps[0].uses] == ["client", "client"], "whatever they are called"
    assert {*session.client_ids} == {client_id(session.id, one) for one in ("1-action-0", "1-action-1")}
    assert session.rest_mark == fingerprint.of_calls(reversed([*session.client_ids])), "by the calls alone"
    assert session.text_mark == fingerprint.grown("c1", [("assistant", "I look.")])


def test_an_own_call_runs_before_the_session_rests() -> None:
    session = folded(*BEGUN, CALL, used("1-action-1"))
    assert session.can_move
    assert [call.call for call in session.due_calls] == ["1-action-1"]
    assert folded(returned("1-action-1"), session=session).state is State.WAITING_FOR_CLARIFICATION


def test_results_go_on_with_the_turn_and_with_what_the_client_says_now() -> None:
    session = waiting()
    assert turn_of(session).client_tools == replace(OFFER, must_call=()), "it has called one"
    less = ClientTools(tools=OFFER.tools[:1])
    after = folded(
        returned("1-action-0", "12°", by="user", chain="c2"),
        returned("1-action-1", "13°", by="user", chain="c2", client_tools=less),
        session=session,
    )
    turn = turn_of(after)
    assert (after.can_move, turn.client_tools, turn.chain, turn.reply_texts) == (True, less, "c2", ())
    assert turn.waited == 3.0, "waiting for the client is nobody's work"
    assert turn.clarifications_used == 0


def test_a_takeover_makes_no_question_of_it() -> None:
    session = folded(events.Resumed(worker="w2", previous="w1"), session=waiting())
    assert not session.uncertain
    assert len(session.client_calls) == 2


def test_what_is_said_with_the_results_is_read_with_them() -> None:
    fault = events.Fault(code="not_run", message="no")
    aside = prompted("Forget it", aside=True, chain="c2")
    closed = [events.Returned(call=one, outcome=fault, by="user", chain="c2") for one in ("1-action-0", "1-action-1")]
    session = folded(aside, *closed, session=waiting())
    assert (session.can_move, session.queue, session.steps[0].asides) == (True, (), ("Forget it",))
    assert turn_of(session).chain == "c2"


def test_an_older_process_does_not_read_what_it_would_misunderstand(monkeypatch: pytest.MonkeyPatch) -> None:
    """The release before this one knew version 2 of prompts, and no version but 1 of calls."""
    monkeypatch.setattr(
        events, "_current", {one for one in events._current if b'"v":3' not in one and b"Called" not in one}
    )
    for event in (BEGUN[1], CALL):
        with pytest.raises(UnknownShape, match="in version"):
            events.decode(events.encode(event))
    assert events.decode(events.encode(prompted("Hm?", aside=True))) == prompted("Hm?", aside=True)
